//! Nodes that the active plan holds come first where another would bring hardly more: what stays is not written again.

use std::collections::{HashMap, HashSet};

use fatbtree_topology::{NodeSet, Role, SetGroup};

use super::{CachedNode, Plan};
use crate::tree::{NONE, Tree};

/// Which nodes of a tree are where they were in the active plan.
#[derive(Debug, Default)]
pub(super) struct Favour {
    /// Whether a node was merged into the fat root, by node.
    merged: Vec<bool>,
    /// Node set that held a node, by address.
    sets: HashMap<u64, (Role, NodeSet)>,
}

impl Favour {
    pub(super) fn of(active: Option<&Plan>, tree: &Tree) -> Self {
        let Some(plan) = active else { return Self::default() };
        let ranges: HashSet<u64> = plan.fat_root.iter().map(|range| range.address).collect();
        let mut merged = vec![false; tree.node_count()];
        // Breadth-first order: children come after their parents.
        for node in (0..tree.node_count()).rev() {
            let was_below = |child: &crate::tree::TreeChild| {
                ranges.contains(&child.address) || (child.node != NONE && merged[child.node as usize])
            };
            merged[node] = tree.children(node as u32).iter().any(was_below);
        }
        let set = |node: &CachedNode| {
            let group = plan.group_of(node);
            (node.address, (group.role, group.set))
        };
        Self { merged, sets: plan.nodes.iter().map(set).collect() }
    }

    /// Whether a node was in the fat root.
    pub(super) fn in_fat_root(&self, node: u32) -> bool {
        self.merged.get(node as usize).copied().unwrap_or(false)
    }

    /// Whether a node was in such a node set.
    pub(super) fn in_set(&self, group: &SetGroup, address: u64) -> bool {
        self.sets.get(&address).is_some_and(|held| *held == (group.role, group.set))
    }

    /// Gain of a node: an eighth more if it stays where it was.
    pub(super) fn of_held(is_held: bool, brings: f64) -> f64 {
        if is_held { brings * 1.125 } else { brings }
    }
}

/// An eighth more; and more than nothing, so that ties go to what stays.
pub(super) fn favoured(is_held: bool, brings: u64) -> u64 {
    if is_held { brings.saturating_add(brings / 8).saturating_add(1) } else { brings }
}
