//! Gain from more memory: for each table, the entries that one more block of SRAM would hold.
//!
//! A program's tables are fixed when it is compiled. For a given tree and load, this module shows
//! where one more block of memory saves most round trips.

use std::collections::{BTreeMap, HashMap};

use fatbtree_topology::SwitchId;
use serde::{Deserialize, Serialize};

use super::fat_root::Child;
use super::groups::Groups;
use super::layers::Placed;
use super::{Plan, ROLE_SETS, SETS, sizes};
use crate::frequency::Frequencies;
use crate::tree::{NONE, Tree};

/// One more block of SRAM for a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextBlock {
    /// A node set, or `hot keys`.
    pub table: String,
    /// The switches that would each need it; none: the first switches of all clients.
    pub switches: Vec<SwitchId>,
    /// Nodes or keys that it would hold.
    pub entries: usize,
    /// Round trips that these would save, in sampled visits.
    pub saves: u64,
}

/// Nodes and keys in a block of SRAM.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PerBlock {
    pub(super) nodes: [f64; SETS],
    pub(super) hot_keys: f64,
}

/// Gain of each node set from one more block. A node that switches lead to, and that none of them holds, would save each of its visits
/// a round trip.
pub(super) fn of_node_sets(
    tree: &Tree,
    frequencies: &Frequencies,
    fat_root: &[Child],
    placed: &[Placed],
    groups: &Groups,
    target: &str,
) -> Vec<NextBlock> {
    let Some(PerBlock { nodes, .. }) = sizes::per_block(target) else { return Vec::new() };
    // The first group in which a node may be.
    let mut from: HashMap<u32, u16> = fat_root.iter().map(|child| (child.node, 0)).collect();
    for at in placed {
        from.extend(tree.children(at.node).iter().map(|child| (child.node, at.group + 1)));
    }
    for at in placed {
        from.remove(&at.node);
    }
    let mut visits: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
    for (node, first) in from.into_iter().filter(|(node, _)| *node != NONE && tree.cacheable(*node)) {
        let homes = &groups.of_servers[usize::from(tree.node(node).partition)];
        for group in homes.iter().filter(|group| **group >= first) {
            visits.entry(*group).or_default().push(frequencies.of(node));
        }
    }
    let next = visits.into_iter().map(|(group, mut visits)| {
        let group = &groups.all[usize::from(group)];
        let room = ROLE_SETS.iter().zip(nodes).find(|(own, _)| **own == (group.role, group.set));
        visits.sort_unstable_by(|a, b| b.cmp(a));
        visits.truncate(room.map_or(0, |(_, nodes)| nodes as usize));
        let (switches, entries) = (group.switches.clone(), visits.len());
        NextBlock { table: group.name(), switches, entries, saves: visits.iter().sum() }
    });
    next.filter(|next| next.saves > 0).collect()
}

/// Gain of further hot keys: `left` are the visits of the next ones, the most visited first. Each saves one round trip or more.
pub(super) fn of_hot_keys(left: impl Iterator<Item = u64>, target: &str) -> Option<NextBlock> {
    let PerBlock { hot_keys, .. } = sizes::per_block(target)?;
    let visits: Vec<u64> = left.take(hot_keys as usize).collect();
    let (table, entries, saves) = ("hot keys".to_owned(), visits.len(), visits.iter().sum());
    (saves > 0).then_some(NextBlock { table, switches: Vec::new(), entries, saves })
}

impl Plan {
    /// Gain of each table from one more block of SRAM, the most first; nothing where the target's memory has no blocks, or nothing is
    /// known of the visits.
    pub fn next_blocks(&self) -> Vec<&NextBlock> {
        let mut all: Vec<&NextBlock> = self.next.iter().collect();
        all.sort_by_key(|next| std::cmp::Reverse(next.saves));
        all
    }
}

#[cfg(test)]
mod tests {
    use fatbtree_topology::{HostId, Network};

    use super::*;
    use crate::plan::{Budget, HotKeys, Located, Placement};
    use crate::program::Target;
    use crate::test_support::top;

    /// 64 level-1 nodes of 16 leaves below 4 nodes of the fat root; the n-th is visited n times.
    #[test]
    fn the_next_nodes_are_the_most_visited_that_are_left() {
        let lows: Vec<u64> = (0..1024).map(|leaf| leaf << 20).collect();
        let tree = Tree::new(&[top(3, 0, &lows, &[16, 16])]).unwrap();
        let visits: Vec<(u64, u64)> = (0..64).map(|node| ((node * 16) << 20, node)).collect();
        let frequencies = Frequencies::from_weighted(&tree, &visits);
        let placement: Placement = [(3, HostId(0))].into_iter().collect();
        let placement = placement.with_clients([HostId(9)]);
        let topology = Network::one_core(4).unwrap();
        let budget = |set_nodes: [usize; SETS]| Budget {
            fat_root_ranges: 64,
            set_nodes,
            hot_keys: 1,
            ..Budget::compiled(Target::Tofino1)
        };
        let plan = |set_nodes: [usize; SETS]| {
            let plan = Plan::new(&topology, &placement, &tree, &frequencies, &budget(set_nodes), 1).unwrap();
            let located = [(0u64, 7u64), (1, 5), (2, 9)]
                .map(|(key, weight)| (Located { key, address: (3 << 48) | (1 << 40) | key }, weight));
            let visits: Vec<(u64, u64)> = located.iter().map(|(at, weight)| (at.key, *weight)).collect();
            let (hot, _) = HotKeys::choose(&tree, &visits, &located.map(|(at, _)| at), 1, None);
            plan.with_hot_keys(hot)
        };
        let few = plan([10, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let next = few.next_blocks();
        let of = |name: &str| next.iter().find(|next| next.table == name).unwrap();
        // A block of the core holds all that are left but one, which has no visits.
        assert_eq!((of("core A").entries, of("core A").saves), (53, (0..54).sum()));
        assert_eq!(of("edge B").switches, [topology.edge_of(HostId(0)).id]);
        assert_eq!(
            (of("hot keys").entries, of("hot keys").saves, of("hot keys").switches.len()),
            (2, 7 + 5, 0)
        );
        assert!(
            few.print().contains("one block of SRAM more for core A in core-0 would save"),
            "{}",
            few.print()
        );
        let enough = plan([64, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(enough.next_blocks().iter().map(|next| &next.table).collect::<Vec<_>>(), ["hot keys"]);
        assert_eq!(Plan::from_json(&few.to_json()).unwrap(), few);
    }
}
