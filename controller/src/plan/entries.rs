//! From the plan to typed table entries per switch.

use std::collections::{BTreeMap, BTreeSet};

use fatbtree_topology::{SetGroup, SwitchId};

use super::ranges::Target;
use super::shape::{OFFSET, Pivots, distances};
use super::{CachedNode, Plan, RangeMatch, STAGES, sub_table};
use crate::tables::{Entry, NodeSet, child, coarse, core_route, fat_root, fine, hot_key, run};

impl Plan {
    /// Every entry by switch, in key order: hot keys, and fat root and node sets of this epoch.
    ///
    /// What makes packets use them is [`Plan::descend`], and comes last.
    pub fn entries(&self) -> BTreeMap<SwitchId, Vec<Entry>> {
        let mut all: BTreeMap<SwitchId, Vec<Entry>> = BTreeMap::new();
        let mut fat_root = Vec::new();
        self.fat_root_entries(&mut fat_root);
        for root in &self.roots {
            all.entry(*root).or_default().extend(&fat_root);
        }
        let mut strides = BTreeSet::new();
        for node in &self.nodes {
            let SetGroup { switches, set, .. } = self.group_of(node);
            for switch in switches {
                node_entries(node, *set, self.epoch, all.entry(*switch).or_default());
                strides.extend(node.is_regular().then_some((*switch, *set, node.stride)));
            }
        }
        for (switch, set, stride) in strides {
            all.entry(switch).or_default().extend(run_entries(set, stride));
        }
        let hot: Vec<Entry> = self.hot_entries().collect();
        for switch in self.first_hops.iter().filter(|_| !hot.is_empty()) {
            all.entry(*switch).or_default().extend(&hot);
        }
        for entries in all.values_mut() {
            entries.sort_unstable();
        }
        all
    }

    /// The default action of `core_route` in each switch that holds the fat root: it sends packets into this epoch.
    pub fn descend(&self) -> core_route::Action {
        core_route::Action::Descend { epoch: self.epoch, sub_table: self.root_sub_table() }
    }

    fn hot_entries(&self) -> impl Iterator<Item = Entry> {
        self.hot.iter().filter_map(|hot| {
            let at = self.partitions.iter().find(|partition| u64::from(partition.id) == hot.address >> 48)?;
            let key = hot_key::Key { dst_ip: at.ip, key: hot.key };
            Some(Entry::HotKey(key, hot_key::Action { address: hot.address, kind: hot.kind }))
        })
    }

    fn fat_root_entries(&self, entries: &mut Vec<Entry>) {
        for (number, table) in self.tables.tables.iter().enumerate() {
            let id = sub_table(number as u32, self.parity);
            let mut left = [0; STAGES];
            table.entries.iter().for_each(|entry| left[entry.stage] += 1);
            for entry in &table.entries {
                let (low, _) = self.budget.range_match.best(entry.low, entry.high);
                // One-sided matching needs the order; exact ranges do not overlap.
                let priority = match self.budget.range_match {
                    RangeMatch::Exact => 1,
                    RangeMatch::OneSided => left[entry.stage],
                };
                left[entry.stage] -= 1;
                let slice = |n: u32| u16::try_from(n).expect("slices are 16 bits");
                let key = fat_root::Key {
                    stage: u8::try_from(entry.stage).expect("four stages"),
                    sub_table: id,
                    low: slice(low),
                    high: slice(entry.high),
                    priority: u16::try_from(priority)
                        .expect("a table has at most 2^16 - 1 entries by budget"),
                };
                let action = match entry.target {
                    Target::Table(next) => fat_root::Action::NextTable {
                        slice: u8::try_from(self.tables.tables[next as usize].slice).expect("four slices"),
                        sub_table: sub_table(next, self.parity),
                    },
                    Target::Range(range) => {
                        let range = &self.fat_root[range as usize];
                        fat_root::Action::Land {
                            address: range.address,
                            partition: range.partition,
                            kind: range.kind,
                        }
                    }
                };
                entries.push(Entry::FatRoot(key, action));
            }
        }
    }
}

fn node_entries(node: &CachedNode, set: NodeSet, epoch: u8, entries: &mut Vec<Entry>) {
    let CachedNode { slot, address, pivots, .. } = *node;
    let whole = pivots == Pivots::Whole;
    // No key is above the last of all: children that are not there are never found. And none but the first begins at key 0.
    let last_before = |branch: usize| {
        let child = node.children.get(branch);
        child.map_or(u64::MAX, |child| child.low.saturating_sub(1))
    };
    let last = |branches: [usize; 3]| pivots.last(branches.map(last_before));
    let first = node.children.first().map_or(0, |child| child.address & OFFSET);
    let action = coarse::Action {
        last: last([4, 8, 12]),
        slot,
        first_child: if node.is_regular() { first } else { 0 },
        stride: node.stride,
        kind: node.child_kind(),
    };
    entries.push(Entry::Coarse(coarse::Key { set, whole, epoch, address }, action));
    for quarter in 0..4u8 {
        let last = last([1, 2, 3].map(|at| 4 * usize::from(quarter) + at));
        entries.push(Entry::Fine(fine::Key { set, whole, epoch, slot, quarter }, fine::Action { last }));
    }
    if !node.is_regular() {
        for (branch, child) in (0u8..).zip(&node.children) {
            // Cached nodes are those whose children are on their own server.
            let action = child::Action { offset: child.address & OFFSET };
            entries.push(Entry::Child(child::Key { set, epoch, slot, branch }, action));
        }
    }
}

/// The distances of siblings that nodes of a set have.
fn run_entries(set: NodeSet, stride: u8) -> impl Iterator<Item = Entry> {
    distances(stride)
        .map(move |(branch, distance)| Entry::Run(run::Key { set, stride, branch }, run::Action { distance }))
}
