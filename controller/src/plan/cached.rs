//! The share of a tree that a plan holds, and the room that it takes.

use std::collections::HashSet;

use super::Plan;
use crate::tables::Entry;
use crate::tree::{NONE, Tree};

impl Plan {
    /// Inner nodes of `tree` that the switches hold: those in node sets, and those that are merged into the fat root.
    pub fn held_nodes(&self, tree: &Tree) -> usize {
        let ranges: HashSet<u64> = self.fat_root.iter().map(|range| range.address).collect();
        let sets: HashSet<u64> = self.nodes.iter().map(|node| node.address).collect();
        let mut merged = 0;
        let mut next: Vec<u32> = tree.partitions().iter().map(|partition| partition.node).collect();
        while let Some(node) = next.pop().filter(|node| *node != NONE) {
            if !ranges.contains(&tree.node(node).address) {
                merged += 1;
                next.extend(tree.children(node).iter().map(|child| child.node).filter(|node| *node != NONE));
            }
        }
        merged + (0..tree.node_count() as u32).filter(|node| sets.contains(&tree.node(*node).address)).count()
    }

    /// Bytes of all entries: what each matches and what it says, every field in whole bytes, and nothing of how a chip stores them.
    /// A client that keeps nodes needs so much for the same keys and addresses.
    pub fn entry_bytes(&self) -> usize {
        self.entries().values().flatten().map(Entry::bytes).sum()
    }

    /// Bytes among them of the entries for hot keys.
    pub fn hot_key_bytes(&self) -> usize {
        let entries = self.entries();
        let hot = entries.values().flatten().filter(|entry| matches!(entry, Entry::HotKey(..)));
        hot.map(Entry::bytes).sum()
    }
}
