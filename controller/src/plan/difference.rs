//! A plan as a difference to the active one: in the same epoch, with the slots of what stays.
//!
//! A node that stays as it is keeps its slot, so nothing of it is written. A node that has changed gets another slot, which no node had recently:
//! what it consists of is written beside its former self. While both plans are there, packets are led only into nodes that are the same in
//! both; then the fat root changes, and then nodes that are new or have changed are led into. So no packet goes by half of a node, or by one
//! node of the old tree and one of the new. A fat root whose borders are the same changes entry by entry, each a whole answer; another one is
//! written beside it, and the flip moves packets to it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{CachedNode, Plan, PlannedPartition};

/// Group, partition and address of a node.
type Place = (u16, u16, u64);

fn place(node: &CachedNode) -> Place {
    (node.group, node.partition, node.address)
}

impl Plan {
    /// The same plan as a difference to `old`, which is active: it is loaded beside it in the same epoch. None where they have too little in
    /// common, or slots have run out: then a new epoch is written.
    #[must_use]
    pub fn difference_to(&self, old: &Plan) -> Option<Plan> {
        let homes = |plan: &Plan| -> Vec<_> {
            plan.partitions
                .iter()
                .map(|PlannedPartition { id, low, groups, .. }| (*id, *low, groups.clone()))
                .collect()
        };
        if self.roots != old.roots || self.groups != old.groups || homes(self) != homes(old) {
            return None;
        }
        let before: HashMap<Place, &CachedNode> = old.nodes.iter().map(|node| (place(node), node)).collect();
        let mut taken: BTreeMap<u16, BTreeSet<u16>> = BTreeMap::new();
        for node in &old.nodes {
            taken.entry(node.group).or_default().insert(node.slot);
        }
        // Slots go round, so that one which was given up is not given again while a switch may still hold something of it.
        let mut newest: BTreeMap<u16, u16> = BTreeMap::new();
        let highest = old.nodes.iter().map(|node| (node.group, node.slot));
        for (group, slot) in highest.chain(old.newest_slots.iter().copied()) {
            newest.insert(group, slot);
        }
        let mut plan = self.clone();
        plan.epoch = old.epoch;
        let mut kept = 0;
        for node in &mut plan.nodes {
            let is_same = |before: &&&CachedNode| {
                let what = |node: &CachedNode| (node.pivots, node.stride);
                what(before) == what(node) && before.children == node.children
            };
            if let Some(before) = before.get(&place(node)).filter(is_same) {
                node.slot = before.slot;
                kept += 1;
                continue;
            }
            let set = node.group;
            let taken = taken.entry(set).or_default();
            if taken.len() > usize::from(u16::MAX) {
                return None;
            }
            let newest = newest.entry(set).or_insert(u16::MAX);
            *newest = newest.wrapping_add(1);
            while taken.contains(newest) {
                *newest = newest.wrapping_add(1);
            }
            taken.insert(*newest);
            node.slot = *newest;
        }
        if 2 * kept < plan.nodes.len() {
            return None;
        }
        plan.nodes.sort_unstable_by_key(|node| (node.group, node.slot));
        let lows = |plan: &Plan| plan.fat_root.iter().map(|range| range.low).collect::<Vec<_>>();
        // Another budget may have other places for the same borders.
        let is_same_root = lows(self) == lows(old)
            && self.tables == old.tables
            && self.budget.range_match == old.budget.range_match;
        plan.parity = if is_same_root { old.parity } else { 1 - old.parity };
        plan.newest_slots = newest.into_iter().collect();
        plan.index = super::execute::Index::of(&plan.nodes);
        Some(plan)
    }

    /// This plan in an epoch after one whose fat root has this parity.
    pub(crate) fn after(self, epoch: u8, parity: u8) -> Self {
        Self { epoch, parity: 1 - parity, ..self }
    }

    /// Which of two sets of sub-table ids the fat root has: 0 or 1.
    pub(crate) fn parity(&self) -> u8 {
        self.parity
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frequency::Frequencies;
    use crate::plan::{Budget, Placement, SETS, diff};
    use crate::test_support::{arb_tops, top};
    use crate::tree::Tree;
    use fatbtree_blink::TreeTop;
    use fatbtree_topology::{HostId, Network};

    fn plan(tops: &[TreeTop], keys: &[u64], budget: &Budget, epoch: u8) -> Plan {
        following(tops, keys, budget, epoch, None)
    }

    fn following(tops: &[TreeTop], keys: &[u64], budget: &Budget, epoch: u8, active: Option<&Plan>) -> Plan {
        let (topology, tree) = (Network::one_core(4).unwrap(), Tree::new(tops).unwrap());
        let placement: Placement = [2u16, 0, 7, 65535].into_iter().zip((0..).map(HostId)).collect();
        let frequencies = Frequencies::from_keys(&tree, keys);
        Plan::following(&topology, &placement, &tree, &frequencies, budget, epoch, active).unwrap()
    }

    /// What the issue of recovery asks for: where one node in a hundred has changed, fewer than five entries in a hundred are written.
    #[test]
    fn few_changes_are_few_entries() {
        let lows: Vec<u64> = (0..60_000).map(|leaf| leaf << 20).collect();
        let before = vec![top(0, 0, &lows, &[12])];
        let mut after = before.clone();
        let parents: Vec<&mut _> = after[0].nodes.iter_mut().filter(|node| node.level == 1).collect();
        let count = parents.len();
        for (at, node) in parents.into_iter().step_by(100).enumerate() {
            let split = node.children[5].0 + (1 << 19);
            node.children.insert(6, (split, (1 << 40) + at as u64 * 64));
        }
        let budget = Budget { fat_root_ranges: 300, ..Budget::bmv2() };
        let old = plan(&before, &[], &budget, 3);
        let new = following(&after, &[], &budget, 4, Some(&old));
        assert!(old.nodes().len() > count / 2, "the switches hold {} nodes", old.nodes().len());
        let difference = new.difference_to(&old).expect("they have most in common");
        assert_eq!(difference.epoch(), 3);
        let entries: usize = old.entries().values().map(Vec::len).sum();
        let changes: usize = diff(&old.entries(), &difference.entries()).values().map(Vec::len).sum();
        assert!(changes > 0 && 20 * changes < entries, "{changes} changes of {entries} entries");
    }

    /// The same borders in other stages are no change entry by entry: what is matched first would be gone before it is there again.
    #[test]
    fn another_place_of_a_fat_root_is_another_fat_root() {
        let lows: Vec<u64> = (0..4_000).map(|leaf| leaf << 49).collect();
        let make = |stage_entries, epoch| {
            plan(&[top(0, 0, &lows, &[8])], &[], &Budget { stage_entries, ..budget_of_ranges(60) }, epoch)
        };
        let (one, same, narrow) = (make(8192, 3), make(4096, 4), make(40, 4));
        assert_eq!((one.fat_root(), one.summary().stage_entries[1]), (narrow.fat_root(), 0));
        assert!(narrow.summary().stage_entries[1] > 0, "{:?}", narrow.summary().stage_entries);
        assert_eq!(same.difference_to(&one).unwrap().parity(), one.parity());
        assert_ne!(narrow.difference_to(&one).unwrap().parity(), one.parity());
    }

    fn budget_of_ranges(fat_root_ranges: usize) -> Budget {
        Budget { fat_root_ranges, ..Budget::bmv2() }
    }

    #[test]
    fn plans_that_have_little_in_common_are_none_of_the_same_epoch() {
        let (here, there): (Vec<u64>, Vec<u64>) = (0..4_000).map(|leaf| (leaf * 100, leaf * 100 + 7)).unzip();
        let budget = Budget { fat_root_ranges: 30, ..Budget::bmv2() };
        let old = plan(&[top(0, 0, &here, &[8])], &[], &budget, 3);
        assert!(
            plan(&[top(0, 0, &there, &[8])], &[], &budget, 4).difference_to(&old).is_none(),
            "other borders"
        );
        assert!(
            plan(&[top(2, 0, &here, &[8])], &[], &budget, 4).difference_to(&old).is_none(),
            "another partition"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// One difference after another: each leads where its plan does, is whole, and gives no slot to two nodes.
        #[test]
        fn a_difference_leads_as_its_plan_does(
            tops in arb_tops(),
            asked in prop::collection::vec(prop::collection::vec(any::<u64>(), 1..60), 2..6),
            keys in prop::collection::vec(any::<u64>(), 1..100),
        ) {
            let budget = Budget { fat_root_ranges: 24, set_nodes: [6; SETS], ..Budget::bmv2() };
            let mut active = plan(&tops, &[], &budget, 9);
            for asked in asked {
                let next = following(&tops, &asked, &budget, 10, Some(&active));
                let Some(difference) = next.difference_to(&active) else { continue };
                for key in &keys {
                    prop_assert_eq!(difference.resolve(*key), next.resolve(*key));
                }
                // Epochs do not tell them apart, fingerprints do.
                prop_assert_eq!(difference.fingerprint(), next.fingerprint());
                let leads = |plan: &Plan| keys.iter().map(|key| plan.resolve(*key)).collect::<Vec<_>>();
                if leads(&active) != leads(&difference) {
                    prop_assert_ne!(difference.fingerprint(), active.fingerprint());
                }
                prop_assert_eq!(&Plan::from_json(&difference.to_json()).unwrap(), &difference);
                for entries in difference.entries().values() {
                    prop_assert!(entries.is_sorted_by(|a, b| a.cmp_keys(b).is_lt()));
                }
                active = difference;
            }
        }
    }
}
