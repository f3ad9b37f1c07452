//! Which nodes go into which node set: layer by layer in path order, per switch (paper §III-C, DESIGN §8).
//!
//! The *frontier* is what a packet can still be led to: children of the fat root at first. Each layer takes the most visited
//! frontier nodes up to its switch's room; their children join the frontier; a node passed over may be cached further down.
//! An aggregation switch only sees its pod's partitions, an edge switch only its servers', so room is counted per switch.

use std::collections::BTreeMap;

use fatbtree_topology::SwitchId;

use super::budget::SetRoom;
use super::fat_root::Child;
use super::favour::Favour;
use super::{Budget, LAYERS};
use crate::frequency::Frequencies;
use crate::tree::{NONE, Tree};

/// A node and where it is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) node: u32,
    pub(super) layer: usize,
    pub(super) switch: SwitchId,
    /// Unique in its set.
    pub(super) slot: u16,
}

/// Places nodes; the result is ordered by layer, switch and slot. `homes` are the switches of each partition by layer.
pub(super) fn place(
    tree: &Tree,
    frequencies: &Frequencies,
    favour: &Favour,
    fat_root: &[Child],
    homes: &[[SwitchId; LAYERS]],
    budget: &Budget,
) -> Vec<Placed> {
    let mut frontier: Vec<u32> =
        fat_root.iter().map(|child| child.node).filter(|node| *node != NONE).collect();
    let mut placed = Vec::new();
    for (layer, room) in (0..LAYERS).map(|layer| (layer, SetRoom::of(budget, layer))) {
        let mut by_switch: BTreeMap<SwitchId, Vec<u32>> = BTreeMap::new();
        let mut next = Vec::new();
        for node in frontier {
            if tree.cacheable(node) {
                let home = homes[usize::from(tree.node(node).partition)][layer];
                by_switch.entry(home).or_default().push(node);
            } else {
                next.push(node);
            }
        }
        for (switch, mut nodes) in by_switch {
            let rank = |node: &u32| {
                let (visits, leaves, place) = frequencies.rank(tree, *node);
                std::cmp::Reverse((favour.in_layer(layer, tree.node(*node).address, visits), leaves, place))
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
                placed.push(Placed { node, layer, switch, slot });
                next.extend(
                    tree.children(node).iter().map(|child| child.node).filter(|child| *child != NONE),
                );
            }
        }
        frontier = next;
    }
    placed
}
