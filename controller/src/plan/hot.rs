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
//! Switches are not told when a record is written anew elsewhere. Its entry then costs a round trip and saves none, until the next plan
//! finds the new place. So a key whose record has moved between two plans gets no entry, until it has stayed where it is from one plan
//! to the next.

use std::collections::{BTreeMap, HashMap, HashSet};

use fatbtree_topology::SwitchId;
use serde::{Deserialize, Serialize};

use super::favour::favoured;
use super::{Plan, next};
use crate::tables::NodeKind;
use crate::tree::Tree;

/// A key that has an entry of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HotKey {
    /// The key.
    pub key: u64,
    /// Address of its record, or of its leaf.
    pub address: u64,
    /// Whether that is its leaf: if not, its kind is not known.
    pub kind: NodeKind,
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

impl Located {
    /// Keys whose place a memory server knows.
    pub fn known(keys: &[u64], places: impl IntoIterator<Item = Option<u64>>) -> Vec<Self> {
        let places = keys.iter().zip(places);
        places.filter_map(|(key, address)| Some(Self { key: *key, address: address? })).collect()
    }
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

/// Keys that suffice to tell whether values are in the leaves.
const PROBE: usize = 64;

/// The keys that a memory server is asked for first, and the others.
pub fn probe(keys: &[u64]) -> (&[u64], &[u64]) {
    keys.split_at(PROBE.min(keys.len()))
}

/// Places of other keys, if those that were `found` lie in their leaves: none has a record then. `None`: ask for these, too.
pub fn in_leaves(tree: &Tree, found: &[Located], keys: &[u64]) -> Option<Vec<Located>> {
    let in_leaves = !found.is_empty() && found.iter().all(|at| tree.leads_to(at.key, at.address));
    in_leaves.then(|| keys.iter().map(|key| Located { key: *key, address: tree.leaf_of(*key) }).collect())
}

/// One more candidate for so many that there is room for.
const SPARE: usize = 8;

/// Hot keys of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotKeys {
    /// The most visited one first.
    keys: Vec<HotKey>,
    /// Maximum number of hot keys with an entry.
    room: usize,
    /// Keys whose record has moved, and where it was last.
    restless: Vec<Located>,
    /// Visits of those that are led to records.
    of_records: u64,
}

impl HotKeys {
    /// Chooses keys by their `visits`, of those that are `located`, for switches with room for so many. Second: the visits that the fat root
    /// and the node sets are left with, all but those of records. `active` is the plan that they hold.
    pub fn choose(
        tree: &Tree,
        visits: &[(u64, u64)],
        located: &[Located],
        room: usize,
        active: Option<&Plan>,
    ) -> (Self, Vec<(u64, u64)>) {
        let before: HashMap<u64, u64> =
            active.iter().flat_map(|plan| plan.located()).map(|at| (at.key, at.address)).collect();
        let moved = |at: &&Located| before.get(&at.key).is_some_and(|before| *before != at.address);
        let restless: Vec<Located> = located.iter().filter(moved).copied().collect();
        let weights = weights(visits);
        let mut keys: Vec<HotKey> = located
            .iter()
            .filter(|at| !moved(at))
            .filter_map(|at| {
                let weight = *weights.get(&at.key)?;
                let is_leaf = tree.leaf_of(at.key) == at.address;
                let kind = if is_leaf { NodeKind::Leaf } else { NodeKind::Undescribed };
                Some(HotKey { key: at.key, address: at.address, kind, weight })
            })
            .collect();
        let is_held = |hot: &HotKey| active.is_some_and(|plan| plan.hot_address(hot.key).is_some());
        let rank = |hot: &HotKey| (std::cmp::Reverse(favoured(is_held(hot), hot.weight)), hot.key);
        keys.sort_by_cached_key(rank);
        keys.dedup_by_key(|hot| hot.key);
        let records = keys.iter().filter(|hot| !tree.leads_to(hot.key, hot.address));
        let taken: HashSet<u64> = records.take(room).map(|hot| hot.key).collect();
        let (of_records, rest): (Vec<_>, Vec<_>) = visits.iter().partition(|(key, _)| taken.contains(key));
        let of_records = of_records.iter().fold(0u64, |sum, (_, weight)| sum.saturating_add(*weight));
        (Self { keys, room, restless, of_records }, rest)
    }
}

impl Plan {
    /// This plan with hot keys. Those that index reads without an entry would lead to the same place get none: others get theirs.
    #[must_use]
    pub fn with_hot_keys(mut self, hot: HotKeys) -> Self {
        let HotKeys { keys, room, mut restless, of_records } = hot;
        let is_of_its_partition = |hot: &HotKey| {
            let range = &self.fat_root[self.range_of(hot.key)];
            hot.address >> 48 == u64::from(range.partition)
        };
        let useful = |hot: &HotKey| is_of_its_partition(hot) && self.resolve(hot.key).address != hot.address;
        let mut useful = keys.into_iter().filter(useful);
        let mut chosen: Vec<HotKey> = useful.by_ref().take(room).collect();
        let next = next::of_hot_keys(useful.map(|hot| hot.weight), &self.budget.target);
        chosen.sort_unstable_by_key(|hot| hot.key);
        restless.sort_unstable();
        self.of_records = of_records;
        self.next.extend(next.filter(|_| !self.first_hops.is_empty()));
        (self.hot, self.restless) = (chosen, restless);
        self
    }

    /// The keys that are worth asking memory servers for where they lie: the most visited ones, and the most visited ones of those that this
    /// plan does not lead to their leaf. None where no switch is the first one of a client.
    pub fn hot_candidates(&self, tree: &Tree, visits: &[(u64, u64)]) -> Vec<u64> {
        if self.first_hops.is_empty() {
            return Vec::new();
        }
        let room = self.budget.hot_keys;
        let ends_above = |key: u64| tree.trips(key, self.resolve(key).address) > 1;
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

    /// Address to which the first switches of clients lead an index read for `key` at once; `None` if it goes the way of all others.
    pub fn hot_address(&self, key: u64) -> Option<u64> {
        self.hot_key(key).map(|hot| hot.address)
    }

    fn hot_key(&self, key: u64) -> Option<&HotKey> {
        let at = self.hot.binary_search_by_key(&key, |hot| hot.key).ok()?;
        Some(&self.hot[at])
    }

    /// Address at which an index read for `key` reads when every switch holds this plan: `or_record` if it does not want a node, and from
    /// this offset on if it comes to a leaf.
    pub fn read_at(&self, key: u64, or_record: bool, offset_in_leaf: u64) -> u64 {
        let hot = self.hot_key(key).filter(|_| or_record);
        let (address, kind) = match hot {
            Some(hot) => (hot.address, hot.kind),
            None => {
                let landing = self.resolve(key);
                (landing.address, landing.kind)
            }
        };
        if kind == NodeKind::Leaf { address + offset_in_leaf } else { address }
    }

    /// Whether there are keys that got no entry because their records had moved.
    pub(crate) fn has_restless_keys(&self) -> bool {
        !self.restless.is_empty()
    }

    /// Known places of records when the plan was made: of hot keys, and of those that have moved.
    fn located(&self) -> impl Iterator<Item = Located> {
        let hot = self.hot.iter().map(|hot| Located { key: hot.key, address: hot.address });
        hot.chain(self.restless.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use fatbtree_topology::{Cluster, HostId, Network};

    use super::*;
    use crate::frequency::Frequencies;
    use crate::plan::{Budget, Placement, SETS};
    use crate::tables::{Entry, fat_root};
    use crate::test_support::{naive_path, top};

    const SERVER: u64 = 3;

    /// The n-th place of a record.
    fn place(n: u64) -> u64 {
        SERVER << 48 | 1 << 47 | n << 6
    }

    fn at(key: u64, n: u64) -> Located {
        Located { key, address: place(n) }
    }

    /// A plan of 64 leaves, one every 2^20 keys, with room for so many hot keys.
    fn plan(visits: &[(u64, u64)], located: &[Located], room: usize, active: Option<&Plan>) -> Plan {
        let lows: Vec<u64> = (0..64).map(|leaf| leaf << 20).collect();
        let tree = Tree::new(&[top(SERVER as u16, 0, &lows, &[16, 16])]).unwrap();
        let placement: Placement = [(SERVER as u16, HostId(0))].into_iter().collect();
        let placement = placement.with_clients([HostId(9)]);
        let budget = Budget { fat_root_ranges: 4, set_nodes: [0; SETS], hot_keys: room, ..Budget::bmv2() };
        let (hot, rest) = HotKeys::choose(&tree, visits, located, room, active);
        let frequencies = Frequencies::from_weighted(&tree, &rest);
        let topology = Network::one_core(4).unwrap();
        let plan = Plan::following(&topology, &placement, &tree, &frequencies, &budget, 1, active);
        plan.unwrap().with_hot_keys(hot)
    }

    fn keys(plan: &Plan) -> Vec<u64> {
        plan.hot_keys().iter().map(|hot| hot.key).collect()
    }

    /// A place on another memory server than the one that reported it is ignored.
    #[test]
    fn places_on_other_servers_are_left_out() {
        let lie = Located { key: 1, address: (SERVER + 1) << 48 | 64 };
        assert_eq!(keys(&plan(&[(1, 9), (2, 1)], &[lie, at(2, 2)], 2, None)), [2]);
        assert_eq!(keys(&plan(&[(1, 9)], &[Located { key: 1, address: 64 }], 2, None)), [0u64; 0]);
    }

    /// Whatever a memory server says of one key, the plan has it once.
    #[test]
    fn a_key_is_hot_once() {
        let twice = plan(&[(1, 9), (2, 1)], &[at(1, 1), at(2, 2), at(1, 7)], 3, None);
        assert_eq!(keys(&twice), [1, 2]);
        assert_eq!(Plan::from_json(&twice.to_json()).unwrap(), twice);
    }

    #[test]
    fn shares_are_of_all_visits() {
        let plan = plan(&[(1, 9), (2, 1)], &[at(1, 1)], 2, None);
        assert!((plan.summary().hot_share - 0.9).abs() < 1e-9);
    }

    #[test]
    fn a_key_whose_record_moves_is_hot_again_when_it_has_stayed() {
        let visits = [(1, 9), (2, 5)];
        let first = plan(&visits, &[at(1, 1), at(2, 2)], 2, None);
        assert_eq!(keys(&first), [1, 2]);
        let second = plan(&visits, &[at(1, 11), at(2, 2)], 2, Some(&first));
        assert_eq!(keys(&second), [2], "1 has moved");
        let moved_again = plan(&visits, &[at(1, 12), at(2, 2)], 2, Some(&second));
        assert_eq!(keys(&moved_again), [2]);
        let third = plan(&visits, &[at(1, 11), at(2, 2)], 2, Some(&second));
        assert_eq!((keys(&third), third.hot_address(1)), (vec![1, 2], Some(place(11))));
    }

    #[test]
    fn who_is_hot_stays_so_unless_another_is_clearly_hotter() {
        let places = [at(1, 1), at(2, 2)];
        let first = plan(&[(1, 100), (2, 99)], &places, 1, None);
        assert_eq!(keys(&first), [1]);
        assert_eq!(keys(&plan(&[(1, 100), (2, 105)], &places, 1, Some(&first))), [1]);
        assert_eq!(keys(&plan(&[(1, 100), (2, 105)], &places, 1, None)), [2]);
        assert_eq!(keys(&plan(&[(1, 100), (2, 120)], &places, 1, Some(&first))), [2]);
    }

    /// Counters have counted for a second, and samples are of an hour: a hot key does not weigh more for it.
    #[test]
    fn a_sampled_hot_key_stands_for_as_many_as_others_do() {
        let plan = plan(&[(1, 9)], &[at(1, 1)], 2, None);
        let other = 40 << 20;
        let range = &plan.fat_root[plan.range_of(other)];
        let counted = plan.entries().into_iter().flat_map(|(switch, entries)| {
            entries.into_iter().filter_map(move |entry| match entry {
                Entry::FatRoot(_, fat_root::Action::Land { address, .. }) if address == range.address => {
                    Some((switch, entry, 10))
                }
                _ => None,
            })
        });
        let counted: Vec<_> = counted.take(1).collect();
        assert_eq!(counted.len(), 1);
        let sampled: Vec<u64> = (0..100).map(|n| other + n).chain([1]).collect();
        let weights = weights(&plan.visits(counted, &sampled));
        let (hot, other) = (weights[&1], weights[&other]);
        assert!(hot.abs_diff(other) <= 1, "{hot} {other}");
        // Without counts, each sample is one visit.
        let weights = super::weights(&plan.visits([], &sampled));
        assert!(weights[&1].abs_diff(weights[&(40 << 20)]) <= 1);
    }

    /// A key without samples this time makes room for keys with samples, and for no others.
    #[test]
    fn hot_keys_stay_while_there_is_room() {
        let first = plan(&[(1, 9), (2, 5)], &[at(1, 1), at(2, 2)], 2, None);
        let visits = first.visits([], &[7, 2, 2]);
        assert_eq!(hottest(&visits, 9), [2, 7, 1]);
        let places = [at(1, 1), at(2, 2), at(7, 7)];
        assert_eq!(keys(&plan(&visits, &places, 3, Some(&first))), [1, 2, 7]);
        assert_eq!(keys(&plan(&visits, &places, 2, Some(&first))), [2, 7]);
    }

    #[test]
    fn files_with_other_hot_keys_are_refused() {
        let plan = plan(&[(1, 9), (2, 5)], &[at(1, 1), at(2, 2)], 2, None);
        let good: serde_json::Value = serde_json::from_str(&plan.to_json()).unwrap();
        let refuse = |change: &dyn Fn(&mut serde_json::Value), reason: &str| {
            let mut bad = good.clone();
            change(&mut bad);
            let error = Plan::from_json(&bad.to_string()).unwrap_err().to_string();
            assert!(error.contains(reason), "expected {reason:?} in: {error}");
        };
        refuse(&|v| v["hot"][0]["address"] = 64.into(), "expected it on server 3");
        refuse(&|v| v["hot"][1]["key"] = 1.into(), "each once");
        refuse(&|v| v["budget"]["hot_keys"] = 1.into(), "hot_key (keys) needs 2, the limit is 1");
    }

    /// The cluster has other clients than when the plan was made, or the file names switches that do not exist.
    #[test]
    fn plans_for_other_first_switches_are_refused() {
        let cluster = Cluster::from_toml(Cluster::local_toml()).unwrap();
        let lows = [0, 1 << 62];
        let tops = lows.iter().zip(0u16..).map(|(low, id)| top(id, *low, &[*low, low + 9], &[4]));
        let tree = Tree::new(&tops.collect::<Vec<_>>()).unwrap();
        let frequencies = Frequencies::from_weighted(&tree, &[]);
        let (topology, placement) = (cluster.tree(), Placement::of(&cluster));
        let plan = Plan::new(topology, &placement, &tree, &frequencies, &Budget::bmv2(), 1).unwrap();
        plan.check_network(&cluster).unwrap();
        for first_hops in [vec![], vec![SwitchId(9999)]] {
            let other = Plan { first_hops, ..plan.clone() };
            let error = other.check_network(&cluster).unwrap_err().to_string();
            assert!(error.contains("first switches of clients"), "{error}");
        }
    }

    #[test]
    fn the_hottest_come_first_and_each_once() {
        let visits = [(7, 1), (3, 2), (7, 4), (9, 2), (1, 1)];
        assert_eq!(hottest(&visits, 3), [7, 3, 9]);
        assert_eq!(hottest(&visits, 9), [7, 3, 9, 1]);
        assert_eq!(hottest(&[], 9), [0u64; 0]);
    }

    #[test]
    fn where_values_are_in_leaves_few_keys_are_asked_for() {
        let tops = [top(0, 0, &[0, 2, 4, 6], &[2])];
        let tree = Tree::new(&tops).unwrap();
        let leaf = |key: u64| Located { key, address: *naive_path(&tops, key).last().unwrap() };
        let keys: Vec<u64> = (0..100).collect();
        let (first, rest) = probe(&keys);
        assert_eq!((first.len(), rest.len()), (64, 36));
        assert_eq!(in_leaves(&tree, &[leaf(1), leaf(7)], &[2, 5]).unwrap(), [leaf(2), leaf(5)]);
        let record = Located { key: 7, address: 1 << 40 };
        assert_eq!(in_leaves(&tree, &[leaf(1), record], rest), None);
        assert_eq!(in_leaves(&tree, &[], rest), None, "none of the first keys is there: unknown");
    }

    #[test]
    fn what_has_an_entry_is_not_planned_for() {
        let tops = [top(0, 0, &[0, 2, 4, 6], &[2])];
        let tree = Tree::new(&tops).unwrap();
        let visits = [(1, 5), (2, 9), (3, 1), (2, 1), (4, 8)];
        let at = |key: u64| Located { key, address: key << 8 };
        let leaf = |key: u64| Located { key, address: *naive_path(&tops, key).last().unwrap() };
        let (hot, rest) = HotKeys::choose(&tree, &visits, &[at(1), at(2), at(3)], 2, None);
        assert_eq!(rest, [(3, 1), (4, 8)], "4 is hot, but its place is unknown");
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
