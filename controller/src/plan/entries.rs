//! From the plan to typed table entries per switch.

use std::collections::BTreeMap;

use fatbtree_topology::SwitchId;

use super::ranges::Target;
use super::{CachedNode, Plan, RangeMatch, sub_table};
use crate::tables::{Entry, NodeSet, child, core_route, fat_root, pivot};

/// The node set of each layer.
const SETS: [NodeSet; super::LAYERS] = [NodeSet::A, NodeSet::A, NodeSet::B, NodeSet::A, NodeSet::B];

impl Plan {
    /// Every entry of this epoch by switch, in key order: fat root and node sets.
    ///
    /// What makes packets use them is [`Plan::descend`], and comes last.
    pub fn entries(&self) -> BTreeMap<SwitchId, Vec<Entry>> {
        let mut all: BTreeMap<SwitchId, Vec<Entry>> = BTreeMap::new();
        self.fat_root_entries(all.entry(self.core).or_default());
        for node in &self.nodes {
            node_entries(node, self.epoch, all.entry(node.switch).or_default());
        }
        for entries in all.values_mut() {
            entries.sort_unstable();
        }
        all
    }

    /// The default action of `core_route` in S_c that sends packets into this epoch.
    pub fn descend(&self) -> core_route::Action {
        core_route::Action::Descend { epoch: self.epoch, sub_table: self.root_sub_table() }
    }

    fn fat_root_entries(&self, entries: &mut Vec<Entry>) {
        for (number, table) in self.tables.tables.iter().enumerate() {
            let id = sub_table(number as u32, self.epoch);
            let count = table.entries.len();
            for (at, entry) in table.entries.iter().enumerate() {
                let (low, _) = self.budget.range_match.best(entry.low, entry.high);
                // One-sided matching needs the order; exact ranges do not overlap.
                let priority = match self.budget.range_match {
                    RangeMatch::Exact => 1,
                    RangeMatch::OneSided => count - at,
                };
                let slice = |n: u32| u16::try_from(n).expect("slices are 16 bits");
                let key = fat_root::Key {
                    stage: u8::try_from(table.stage).expect("four stages"),
                    sub_table: id,
                    low: slice(low),
                    high: slice(entry.high),
                    priority: u16::try_from(priority)
                        .expect("a table has at most 2^16 - 1 entries by budget"),
                };
                let action = match entry.target {
                    Target::Table(next) => {
                        fat_root::Action::NextTable { sub_table: sub_table(next, self.epoch) }
                    }
                    Target::Range(range) => {
                        let range = &self.fat_root[range as usize];
                        fat_root::Action::Land {
                            address: range.address,
                            partition: range.partition,
                            node_id: range.node_id,
                        }
                    }
                };
                entries.push(Entry::FatRoot(key, action));
            }
        }
    }
}

fn node_entries(node: &CachedNode, epoch: u8, entries: &mut Vec<Entry>) {
    let set = SETS[usize::from(node.layer)];
    let last = node.children.len() - 1;
    for index in 0..16u8 {
        // Pivot 0 is the low fence; a node with fewer children repeats its last pivot, so its last child is all ones.
        let child = &node.children[usize::from(index).min(last)];
        let key = pivot::Key { set, index, epoch, node_id: node.id };
        entries.push(Entry::Pivot(key, pivot::Action { pivot: child.low }));
    }
    for (at, child) in node.children.iter().enumerate() {
        let results = if at == last { u16::MAX } else { (1 << (at + 1)) - 1 };
        let key = child::Key { set, epoch, node_id: node.id, results };
        entries.push(Entry::Child(key, child::Action { address: child.address, node_id: child.node_id }));
    }
}
