//! Hot keys: those that are asked for so often that the first switches know where each of them lies (`hot_key`).
//!
//! ```text
//!   visits ──Plan::following()──▶ plan ──hot_candidates()──▶ keys ──memory servers──▶ where each lies ──HotKeys::choose()──┐
//!                                                                                                                      │
//!                                  plan ◀──with_hot_keys()── Plan::following() ◀── the visits that are left ◀──────────┘
//! ```
//!
//! An entry leads to the record of the key or, where values are in the leaves, to its leaf: it saves all round trips but one. Lookups
//! that are led to a record need neither fat root nor node sets, so these are planned once more for the other keys. Where values are in the
//! leaves, node sets lead to most of the leaves that are asked for, and a node serves many keys: they are planned for all keys, and
//! entries go to the hottest of the keys that they do not lead as far.
//!
//! Nobody tells switches when a record is written anew elsewhere. Its entry then costs a round trip and saves none, until the next plan
//! finds the new place. So a key whose record has moved between two plans gets no entry, until it has stayed where it is from one plan
//! to the next.

use std::collections::{BTreeMap, HashMap, HashSet};

use fatbtree_topology::SwitchId;
use serde::{Deserialize, Serialize};

use super::favour::favoured;
use super::{Plan, next};
use crate::tree::Tree;

/// A key that has an entry of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HotKey {
    /// The key.
    pub key: u64,
    /// Where its record lies, or its leaf.
    pub address: u64,
    /// Sampled visits.
    pub weight: u64,
}

/// A key, and where its record lies in memory, or its leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Located {
    /// The key.
    pub key: u64,
    /// The address, with the number of the server.
    pub address: u64,
}

/// The most visited keys, the most visited one first; at most `count` of them. Of keys that are visited alike, the lower one comes first.
pub(super) fn hottest(visits: &[(u64, u64)], count: usize) -> Vec<u64> {
    let mut keys: Vec<(u64, u64)> = weights(visits).into_iter().collect();
    keys.sort_unstable_by_key(|(key, weight)| (std::cmp::Reverse(*weight), *key));
    keys.truncate(count);
    keys.into_iter().map(|(key, _)| key).collect()
}

fn weights(visits: &[(u64, u64)]) -> HashMap<u64, u64> {
    let mut weights: HashMap<u64, u64> = HashMap::new();
    for (key, weight) in visits {
        let sum = weights.entry(*key).or_default();
        *sum = sum.saturating_add(*weight);
    }
    weights
}

/// Keys by the partition that each is in, in their order.
pub fn by_partition(tree: &Tree, keys: &[u64]) -> BTreeMap<u16, Vec<u64>> {
    let mut all: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
    for key in keys {
        all.entry(tree.partition_of(*key)).or_default().push(*key);
    }
    all
}

/// One more candidate for so many that there is room for.
const SPARE: usize = 8;

/// What of the hot keys a plan is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotKeys {
    /// The most visited one first.
    keys: Vec<HotKey>,
    /// As many of them have an entry at most.
    room: usize,
    /// Keys whose record has moved, and where it was last.
    restless: Vec<Located>,
}

impl HotKeys {
    /// Chooses keys by their `visits`, of those that are `located`, for switches with room for so many. Second: the visits that the fat root
    /// and the node sets are left with, all but those of records. `in_force` is the plan that they hold.
    pub fn choose(
        tree: &Tree,
        visits: &[(u64, u64)],
        located: &[Located],
        room: usize,
        in_force: Option<&Plan>,
    ) -> (Self, Vec<(u64, u64)>) {
        let before: HashMap<u64, u64> =
            in_force.iter().flat_map(|plan| plan.located()).map(|at| (at.key, at.address)).collect();
        let moved = |at: &&Located| before.get(&at.key).is_some_and(|before| *before != at.address);
        let restless: Vec<Located> = located.iter().filter(moved).copied().collect();
        let weights = weights(visits);
        let mut keys: Vec<HotKey> = located
            .iter()
            .filter(|at| !moved(at))
            .filter_map(|at| {
                let weight = *weights.get(&at.key)?;
                Some(HotKey { key: at.key, address: at.address, weight })
            })
            .collect();
        let is_held = |hot: &HotKey| in_force.is_some_and(|plan| plan.hot_address(hot.key).is_some());
        let rank = |hot: &HotKey| (std::cmp::Reverse(favoured(is_held(hot), hot.weight)), hot.key);
        keys.sort_by_cached_key(rank);
        keys.dedup_by_key(|hot| hot.key);
        let records = keys.iter().filter(|hot| !tree.leads_to(hot.key, hot.address));
        let taken: HashSet<u64> = records.take(room).map(|hot| hot.key).collect();
        let rest = visits.iter().filter(|(key, _)| !taken.contains(key)).copied().collect();
        (Self { keys, room, restless }, rest)
    }
}

impl Plan {
    /// The same plan with hot keys. Those that index reads without an entry would lead to the same place get none: others get theirs.
    #[must_use]
    pub fn with_hot_keys(mut self, hot: HotKeys) -> Self {
        let HotKeys { keys, room, mut restless } = hot;
        let is_of_its_partition = |hot: &HotKey| {
            let range = &self.fat_root[self.range_of(hot.key)];
            hot.address >> 48 == u64::from(range.partition)
        };
        let useful = |hot: &HotKey| is_of_its_partition(hot) && self.land(hot.key).address != hot.address;
        let mut useful = keys.into_iter().filter(useful);
        let mut chosen: Vec<HotKey> = useful.by_ref().take(room).collect();
        let next = next::of_hot_keys(useful.map(|hot| hot.weight), &self.budget.target);
        chosen.sort_unstable_by_key(|hot| hot.key);
        restless.sort_unstable();
        let weight = |sum: u64, hot: &HotKey| sum.saturating_add(hot.weight);
        self.total_weight = chosen.iter().fold(self.total_weight, weight);
        self.next.extend(next.filter(|_| !self.first_hops.is_empty()));
        (self.hot, self.restless) = (chosen, restless);
        self
    }

    /// The keys that are worth asking memory servers for where they lie: the most visited ones, and the most visited ones of those that this
    /// plan does not lead to their leaf.
    pub fn hot_candidates(&self, tree: &Tree, visits: &[(u64, u64)]) -> Vec<u64> {
        let room = self.budget.hot_keys;
        let ends_above = |key: u64| tree.trips(key, self.land(key).address) > 1;
        let above: Vec<(u64, u64)> = visits.iter().filter(|(key, _)| ends_above(*key)).copied().collect();
        // Some of them have moved, or are not there.
        let mut keys = hottest(visits, room + room / SPARE);
        keys.extend(hottest(&above, room + room / SPARE));
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Hot keys, in key order.
    pub fn hot_keys(&self) -> &[HotKey] {
        &self.hot
    }

    /// The switches that have the hot keys: the first ones of all clients, ascending.
    pub fn first_hops(&self) -> &[SwitchId] {
        &self.first_hops
    }

    /// Where the first switches of clients lead an index read for `key` at once; none: it goes the way of all others.
    pub fn hot_address(&self, key: u64) -> Option<u64> {
        let at = self.hot.binary_search_by_key(&key, |hot| hot.key).ok()?;
        Some(self.hot[at].address)
    }

    /// What is known of where records lay when the plan was made: of hot keys, and of those that have moved.
    fn located(&self) -> impl Iterator<Item = Located> {
        let hot = self.hot.iter().map(|hot| Located { key: hot.key, address: hot.address });
        hot.chain(self.restless.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{naive_path, top};

    #[test]
    fn the_hottest_come_first_and_each_once() {
        let visits = [(7, 1), (3, 2), (7, 4), (9, 2), (1, 1)];
        assert_eq!(hottest(&visits, 3), [7, 3, 9]);
        assert_eq!(hottest(&visits, 9), [7, 3, 9, 1]);
        assert_eq!(hottest(&[], 9), [0u64; 0]);
    }

    #[test]
    fn what_has_an_entry_is_not_planned_for() {
        let tops = [top(0, 0, &[0, 2, 4, 6], &[2])];
        let tree = Tree::new(&tops).unwrap();
        let visits = [(1, 5), (2, 9), (3, 1), (2, 1), (4, 8)];
        let at = |key: u64| Located { key, address: key << 8 };
        let leaf = |key: u64| Located { key, address: *naive_path(&tops, key).last().unwrap() };
        let (hot, rest) = HotKeys::choose(&tree, &visits, &[at(1), at(2), at(3)], 2, None);
        assert_eq!(rest, [(3, 1), (4, 8)], "4 is hot, but nobody knows where it lies");
        assert_eq!(
            hot.keys.iter().map(|hot| (hot.key, hot.weight)).collect::<Vec<_>>(),
            [(2, 10), (1, 5), (3, 1)]
        );
        let (_, rest) = HotKeys::choose(&tree, &visits, &[leaf(1), leaf(2), at(3)], 2, None);
        assert_eq!(
            rest.len(),
            4,
            "nodes are planned for keys with values in the leaves, and these are hotter"
        );
        assert!(!rest.contains(&(3, 1)));
    }
}
