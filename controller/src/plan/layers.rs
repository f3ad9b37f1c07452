//! Which nodes go into which node set: set by set in path order (paper §III-C, ARCHITECTURE.md "Planning").
//!
//! The *frontier* is what a packet can still be led to: children of the fat root at first. Each set takes the most visited
//! frontier nodes up to its room; their children join the frontier; a node passed over may be cached further down.
//! A pod's aggregation switches only see its partitions, an edge switch only its servers', so room is counted per group of switches.

use std::collections::BTreeMap;

use super::Budget;
use super::budget::SetRoom;
use super::fat_root::Child;
use super::favour::Favour;
use super::groups::Groups;
use crate::frequency::Frequencies;
use crate::tree::{NONE, Tree};

/// A node and where it is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) node: u32,
    pub(super) group: u16,
    /// Unique in its set.
    pub(super) slot: u16,
}

/// Places nodes; the result is ordered by group and slot.
pub(super) fn place(
    tree: &Tree,
    frequencies: &Frequencies,
    favour: &Favour,
    fat_root: &[Child],
    groups: &Groups,
    budget: &Budget,
) -> Vec<Placed> {
    let mut frontier: Vec<u32> =
        fat_root.iter().map(|child| child.node).filter(|node| *node != NONE).collect();
    let mut placed = Vec::new();
    let longest = groups.of_servers.iter().map(Vec::len).max().unwrap_or(0);
    for place in 0..longest {
        let mut by_group: BTreeMap<u16, Vec<u32>> = BTreeMap::new();
        let mut next = Vec::new();
        for node in frontier {
            match groups.of_servers[usize::from(tree.node(node).partition)].get(place) {
                Some(group) if tree.cacheable(node) => by_group.entry(*group).or_default().push(node),
                _ => next.push(node),
            }
        }
        for (group, mut nodes) in by_group {
            let set = &groups.all[usize::from(group)];
            let room = SetRoom::of(budget, set);
            let rank = |node: &u32| {
                let (visits, leaves, place) = frequencies.rank(tree, *node);
                std::cmp::Reverse((favour.in_set(set, tree.node(*node).address, visits), leaves, place))
            };
            nodes.sort_by_cached_key(rank);
            let mut taken = SetRoom::default();
            nodes.retain(|node| {
                let children = tree.children(*node);
                let is_run = tree.stride(*node) != 0;
                let mut with = taken;
                with.add(tree.pivots(*node), is_run, children.len());
                let fits = with.is_within(&room);
                if fits {
                    taken = with;
                } else {
                    next.push(*node);
                }
                fits
            });
            // Slots in key order, so that equal plans are equal whatever order the queue had.
            nodes.sort_unstable_by_key(|node| (tree.node(*node).partition, tree.node(*node).low, *node));
            for (slot, node) in nodes.into_iter().enumerate() {
                let slot = u16::try_from(slot).expect("the budget keeps nodes within the slots");
                placed.push(Placed { node, group, slot });
                next.extend(
                    tree.children(node).iter().map(|child| child.node).filter(|child| *child != NONE),
                );
            }
        }
        frontier = next;
    }
    placed
}
