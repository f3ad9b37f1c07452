//! Following a tree that changes: when the next plan is worth its entries, and what it is made from (paper §IV-B: structure changes
//! reach the switches lazily).
//!
//! ```text
//!  clients ── keys, index reads, how many stale hints─▶ report()
//!                                                            │  poll_timeout(): from then on it may be worth it
//!  memory servers ── TreeTop ──┐                             ▼
//!  switches ── counters ───────┴────────────────────────▶ replan() ──▶ Replanned { plan } ──▶ Controller::load
//!                                                            ▲                                          │
//!                                                            └──────────────── loaded() ◀───────────────┘
//! ```
//!
//! There is no hurry: a cache that is behind costs round trips, never a wrong answer. Nor is there a need to tell the switches of
//! every split: one below a node that no switch knows costs nothing. So what counts is what clients pay, the share of index reads that
//! find a *stale hint*: the address of a node that had been split, merged or freed. Clients count them by the way. The tops say whether planning anew
//! would help: how many of the keys that are asked for the active plan leads to a node that is not on their way any more. A split
//! that its parent has not been told of costs a step as well, and no plan helps there.
//!
//! The same mechanism follows what clients ask for: when other keys are asked for than the active plan was made for, the switches walk
//! fewer levels. That is seen from the sampled keys alone; whether another plan would save round trips, the tops and counters say.

use std::collections::{HashMap, VecDeque};

use fatbtree_blink::TreeTop;
use fatbtree_topology::{Network, SwitchId};
use fatbtree_verbs::time::{Duration, Instant};

use crate::cost::Cost;
use crate::frequency::Frequencies;
use crate::plan::{HotKeys, Located, Placement, Plan, PlanError, diff, next_epoch};
use crate::tables::Entry;
use crate::tree::{SnapshotError, Tree};

/// Sampled keys that are kept, the newest of them: four for each hot key of a Tofino's edge switch.
const SAMPLES: usize = 1 << 18;

/// Sampled keys that say something about what is asked for now: the newest.
const RECENT: usize = 1 << 12;

/// Factor by which more sampled keys justify another look at hot keys.
const MORE: usize = 4;

/// Drift that makes the follower look: levels walked for recent keys, less than for the keys of the plan, as a share.
const DRIFT: f64 = 0.03;

/// Fewer index reads with a stale hint than this say nothing: some always meet a split that is under way.
const EVIDENCE: u64 = 16;

/// Gains that make another plan worth its entries.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FollowOptions {
    /// Least share of index reads with a stale hint, 0 to 1.
    pub worth: f64,
    /// Least share of round trips down to the leaf that clients would save, 0 to 1.
    pub gain: f64,
    /// Changes of table entries per second that reloads may come to on average, over all switches. After each reload nothing is
    /// planned for as long as its changes take at this rate.
    pub entries_per_s: f64,
}

impl Default for FollowOptions {
    /// One stale hint in a hundred index reads, 3 round trips in a hundred saved; 50,000 changes per second.
    fn default() -> Self {
        Self { worth: 0.01, gain: 0.03, entries_per_s: 50_000.0 }
    }
}

/// A plan that is worth loading.
#[derive(Clone, Debug)]
pub struct Replanned {
    /// The plan, of the epoch after the active one. When it is loaded, [`Follower::loaded`] is told.
    pub plan: Plan,
    /// The share of visits for which the active plan has a stale hint; this plan has none.
    pub stale_hints: f64,
    /// Cost of an average visit from where the switches lead it down to the leaf: under the active plan, and under this one.
    pub costs: (Cost, Cost),
}

/// Errors from making the next plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FollowError {
    /// The tops make no tree.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The tree makes no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Decides when to plan anew. It knows no clock and no network: the caller reads tops and counters when
/// [`poll_timeout`](Self::poll_timeout) says so, loads what [`replan`](Self::replan) gives, and tells when that is done.
///
/// Whatever comes in, the changes that it asks for stay below [`FollowOptions::entries_per_s`], but for the first reload.
#[derive(Clone, Debug)]
pub struct Follower {
    topology: Network,
    placement: Placement,
    options: FollowOptions,
    active: Plan,
    /// Since the last attempt.
    index_reads: u64,
    stale_hints: u64,
    keys: VecDeque<u64>,
    /// Keys that were sampled since the active plan was loaded, or looked into last.
    fresh: usize,
    /// Levels that the switches walk for an average key of those that the plan was made for; `None` if none was known.
    usual_levels: Option<f64>,
    /// Keys that were known at the last look.
    known: usize,
    /// The next attempt is made then at the earliest.
    not_before: Instant,
}

impl Follower {
    /// Follows the tree that `active` was made from; all switches hold that plan.
    pub fn new(topology: &Network, placement: &Placement, active: Plan, options: FollowOptions) -> Self {
        Self {
            topology: topology.clone(),
            placement: placement.clone(),
            options,
            active,
            index_reads: 0,
            stale_hints: 0,
            keys: VecDeque::new(),
            fresh: 0,
            usual_levels: None,
            known: 0,
            not_before: Instant::ZERO,
        }
    }

    /// The plan that all switches hold.
    pub fn active(&self) -> &Plan {
        &self.active
    }

    /// Takes a client's observations since its last report: index reads, how many of their hints were stale, and a sample of the keys that it was asked
    /// for. What is old or counted twice does no harm: at worst, tops are read without need.
    pub fn report(&mut self, index_reads: u64, stale_hints: u64, keys: &[u64]) {
        self.index_reads = self.index_reads.saturating_add(index_reads);
        self.stale_hints = self.stale_hints.saturating_add(stale_hints);
        let keys = &keys[keys.len().saturating_sub(SAMPLES)..];
        let gone = (self.keys.len() + keys.len()).saturating_sub(SAMPLES);
        self.keys.drain(..gone);
        self.keys.extend(keys);
        self.fresh = self.fresh.saturating_add(keys.len());
    }

    /// Levels that the switches walk for an average recent key. They spare those of hot keys all levels.
    fn recent_levels(&self) -> Option<f64> {
        let recent = self.keys.iter().rev().take(RECENT);
        let levels_of = |key: u64| match self.active.hot_address(key) {
            Some(_) => 1 + self.active.longest_way() as u64,
            None => u64::from(self.active.resolve(key).levels),
        };
        let levels: u64 = recent.clone().map(|key| levels_of(*key)).sum();
        let count = recent.count();
        (count > 0).then(|| levels as f64 / count as f64)
    }

    /// Whether many more keys are known than before, or others are asked for than the active plan was made for.
    fn has_drifted(&self) -> bool {
        if self.keys.len() / MORE >= self.known.max(RECENT / MORE) {
            return true;
        }
        let fewer = || match (self.usual_levels, self.recent_levels()) {
            (Some(usual), Some(recent)) => recent < usual * (1.0 - DRIFT),
            (None, _) => true,
            (Some(_), None) => false,
        };
        self.fresh >= RECENT && fewer()
    }

    /// Whether keys that are not hot because their records moved may be found where they were by now. A client that asks for nothing moves nothing,
    /// and needs no entries.
    fn may_have_settled(&self) -> bool {
        self.active.has_restless_keys() && self.fresh >= MORE * RECENT
    }

    /// From when on it may be worth to read tops and counters and to [plan anew](Self::replan); none as long as clients are led right, as
    /// far as they were, and no hot key waits for its record to stay where it is.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let enough = self.stale_hints >= EVIDENCE.max((self.options.worth * self.index_reads as f64) as u64);
        (enough || self.has_drifted() || self.may_have_settled()).then_some(self.not_before)
    }

    /// The keys that the next plan may make hot: memory servers are to be asked where their records lie.
    pub fn hot_candidates(&self, tree: &Tree) -> Vec<u64> {
        // Those that are hot already come last, as long as no client has sampled them again.
        let held = self.active.hot_keys().iter().map(|hot| (hot.key, 1));
        let visits: Vec<(u64, u64)> = self.keys.iter().map(|key| (*key, 2)).chain(held).collect();
        self.active.hot_candidates(tree, &visits)
    }

    /// Plans the next epoch, if that is worth it now. `tops` are the trees' as the memory servers have read them of late, `counters` what
    /// [`Fleet::read_counters`](crate::Fleet::read_counters) says, or nothing; `located` where the
    /// [candidates](Self::hot_candidates) lie. Asked without being [due](Self::poll_timeout), it decides by tops and places alone.
    ///
    /// # Errors
    /// When there can be no plan. The next attempt is as far off as if there had been one.
    pub fn replan(
        &mut self,
        now: Instant,
        tops: &[TreeTop],
        counters: impl IntoIterator<Item = (SwitchId, Entry, u64)>,
        located: &[Located],
    ) -> Result<Option<Replanned>, FollowError> {
        if now < self.not_before {
            return Ok(None);
        }
        (self.index_reads, self.stale_hints) = (0, 0);
        let changes = self.active.summary().entries;
        self.wait(now, 2 * changes);
        let has_drifted = self.has_drifted() || self.may_have_settled();
        (self.usual_levels, self.fresh, self.known) = (self.recent_levels(), 0, self.keys.len());
        let tree = Tree::new(tops)?;
        let visits = self.active.visits(counters, self.keys.make_contiguous());
        let stale_hints = self.active.share_of_stale_hints(&tree, &visits, located);
        let has_stale_hints = stale_hints >= self.options.worth && stale_hints > 0.0;
        if !has_stale_hints && !has_drifted {
            return Ok(None);
        }
        let (epoch, budget) = (next_epoch(self.active.epoch()), self.active.budget());
        let (topology, placement, active) = (&self.topology, &self.placement, Some(&self.active));
        let (hot, rest) = HotKeys::choose(&tree, &visits, located, budget.hot_keys, active);
        let frequencies = Frequencies::from_weighted(&tree, &rest);
        let plan = Plan::following(topology, placement, &tree, &frequencies, budget, epoch, active)?;
        let plan = plan.with_hot_keys(hot);
        let costs = (self.active.cost(&tree, &visits), plan.cost(&tree, &visits));
        let (before, after) = (costs.0.round_trips, costs.1.round_trips);
        if !has_stale_hints && before - after < self.options.gain * before {
            return Ok(None);
        }
        self.wait(now, diff(&self.active.entries(), &plan.entries()).values().map(Vec::len).sum());
        Ok(Some(Replanned { plan, stale_hints, costs }))
    }

    /// All switches hold this plan now, and nothing of the one before. (A reload that failed half-way is not followed by another one
    /// of the same epoch: first the switches are put in order.)
    pub fn loaded(&mut self, plan: Plan) {
        self.active = plan;
        (self.index_reads, self.stale_hints, self.fresh) = (0, 0, 0);
        self.usual_levels = self.recent_levels();
    }

    /// A reload took so many changes, fewer than from epoch to epoch if it was [a difference](Plan::difference_to): the next one may come the earlier.
    pub fn spent(&mut self, now: Instant, changes: usize) {
        self.wait(now, changes);
    }

    fn wait(&mut self, now: Instant, changes: usize) {
        self.not_before = now + Duration::from_secs_f64(changes as f64 / self.options.entries_per_s);
    }
}

impl Plan {
    /// The share of `visits` that this plan has a stale hint in a tree: it names a node that is not on the key's way or, if the key is
    /// hot, to where it does not lie any more; `located` says where keys lie now. Of the tree that the plan was made from, it is 0.
    pub fn share_of_stale_hints(&self, tree: &Tree, visits: &[(u64, u64)], located: &[Located]) -> f64 {
        let sum = |visits: &mut dyn Iterator<Item = &(u64, u64)>| -> f64 {
            visits.map(|(_, weight)| *weight as f64).sum()
        };
        let now: HashMap<u64, u64> = located.iter().map(|at| (at.key, at.address)).collect();
        let is_stale_hint = |key: u64| match self.hot_address(key) {
            Some(led) => now.get(&key).is_some_and(|now| *now != led),
            None => !tree.leads_to(key, self.resolve(key).address),
        };
        let stale_hints = &mut visits.iter().filter(|(key, _)| is_stale_hint(*key));
        let (stale_hints, all) = (sum(stale_hints), sum(&mut visits.iter()));
        // The sum of nothing is -0.
        if all > 0.0 && stale_hints > 0.0 { stale_hints / all } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Budget, SETS};
    use crate::test_support::{arb_tops, naive_path, top};
    use fatbtree_topology::HostId;
    use proptest::prelude::*;

    fn topology() -> Network {
        Network::one_core(4).unwrap()
    }

    fn placement() -> Placement {
        [2u16, 0, 7, 65535].into_iter().zip((0..).map(HostId)).collect()
    }

    fn follower(tops: &[TreeTop], options: FollowOptions) -> Follower {
        let tree = Tree::new(tops).unwrap();
        let budget = Budget { fat_root_ranges: 20, set_nodes: [4; SETS], ..Budget::bmv2() };
        let (topology, placement) = (topology(), placement());
        let frequencies = Frequencies::none(&tree);
        let plan = Plan::new(&topology, &placement, &tree, &frequencies, &budget, 255).unwrap();
        Follower::new(&topology, &placement, plan, options)
    }

    /// A tree of 400 leaves, 100 keys each.
    fn tops() -> Vec<TreeTop> {
        let lows: Vec<u64> = (0..400).map(|leaf| leaf * 100).collect();
        vec![top(0, 0, &lows, &[8])]
    }

    fn keys() -> Vec<u64> {
        (0..40_000).step_by(7).collect()
    }

    /// Splits the leaf of a key in its middle. The fan-out of test trees has no bound.
    fn split(tops: &mut [TreeTop], key: u64) {
        let free =
            1 << 40 | tops.iter().flat_map(|top| &top.nodes).map(|n| n.children.len() as u64).sum::<u64>();
        let leaves = tops[0].nodes.iter_mut().filter(|node| node.level == 1);
        let parent = leaves.filter(|node| node.low() <= key).max_by_key(|node| node.low()).unwrap();
        let at = parent.children.partition_point(|(low, _)| *low <= key);
        let (low, high) =
            (parent.children[at - 1].0, parent.children.get(at).map_or(key + 50, |next| next.0));
        if high - low > 1 {
            parent.children.insert(at, (low + (high - low) / 2, free));
        }
    }

    const SECOND: Duration = Duration::from_secs(1);
    const START: Instant = Instant::from_nanos(SECOND.as_nanos());

    #[test]
    fn a_tree_that_has_grown_is_followed() {
        let mut tops = tops();
        let mut follower = follower(&tops, FollowOptions::default());
        assert_eq!(follower.poll_timeout(), None);
        follower.report(10_000, 15, &keys()[..100]);
        assert_eq!(follower.poll_timeout(), None, "too few to say anything");
        (0..40_000).step_by(1000).for_each(|key| split(&mut tops, key));
        follower.report(10_000, 1_000, &keys());
        assert_eq!(follower.poll_timeout(), Some(Instant::ZERO));
        let next = follower.replan(START, &tops, [], &[]).unwrap().expect("many hints are stale");
        assert!((0.01..0.05).contains(&next.stale_hints), "{}", next.stale_hints);
        assert_eq!(next.plan.epoch(), 2);
        for key in keys() {
            assert!(naive_path(&tops, key).contains(&next.plan.resolve(key).address), "{key}");
        }
        assert_eq!(follower.active().epoch(), 255, "it is not loaded yet");
        follower.loaded(next.plan);
        assert_eq!((follower.active().epoch(), follower.poll_timeout()), (2, None));
    }

    /// The paper's figure 6: other keys become hot.
    /// The records of all hot keys are written anew: the next plan has none of these keys, but the one after has them again, if their
    /// records have stayed where they are.
    #[test]
    fn keys_whose_records_have_moved_are_hot_again() {
        let tops = tops();
        let mut follower = follower(&tops, FollowOptions::default());
        let asked: Vec<u64> = (0..4 * 16_384).map(|n| n % 500 * 80).collect();
        let located = |times: u64| -> Vec<Located> {
            let keys = asked[..500].iter();
            keys.map(|key| Located { key: *key, address: 1 << 47 | times << 40 | key << 4 }).collect()
        };
        let mut now = START;
        let mut look = |follower: &mut Follower, stale_hints, times| {
            follower.report(asked.len() as u64, stale_hints, &asked);
            now = now.max(follower.poll_timeout()?);
            let next = follower.replan(now, &tops, [], &located(times)).unwrap()?;
            now += SECOND * 100;
            follower.loaded(next.plan);
            Some(follower.active().hot_keys().len())
        };
        assert_eq!(look(&mut follower, 0, 0), Some(500));
        assert_eq!(look(&mut follower, 30_000, 1), Some(0), "all have moved");
        assert_eq!(look(&mut follower, 0, 1), Some(500), "they have not moved since");
        assert!((0..3).all(|_| look(&mut follower, 0, 1).is_none()), "nothing is to be done");
        assert_eq!(look(&mut follower, 30_000, 2), Some(0));
        for times in 3..6 {
            assert_eq!(look(&mut follower, 0, times), None, "they do not stay");
        }
        assert!(follower.active().hot_keys().is_empty());
    }

    #[test]
    fn other_hot_keys_are_followed() {
        let lows: Vec<u64> = (0..8_000).map(|leaf| leaf * 100).collect();
        let tops = vec![top(0, 0, &lows, &[8])];
        let mut follower = follower(&tops, FollowOptions::default());
        let hot = |first: u64| -> Vec<u64> { (0..RECENT as u64).map(|n| first + n * 7 % 4_000).collect() };
        let mut now = Instant::ZERO;
        for first in [400_000, 130_000] {
            for _ in 0..SAMPLES / RECENT {
                follower.report(1_000, 0, &hot(first));
            }
            now = now.max(follower.poll_timeout().expect("other keys are asked for, or none were known"));
            let next = follower.replan(now, &tops, [], &[]).unwrap().expect("it saves round trips");
            assert!(next.costs.1.round_trips < 0.97 * next.costs.0.round_trips, "{:?}", next.costs);
            follower.loaded(next.plan);
            follower.report(1_000, 0, &hot(first));
            assert_eq!(follower.poll_timeout(), None, "they are what was planned for");
        }
    }

    #[test]
    fn what_no_plan_helps_is_not_planned_for() {
        let tops = tops();
        let mut follower = follower(&tops, FollowOptions::default());
        follower.report(1_000, 500, &keys());
        assert!(follower.replan(START, &tops, [], &[]).unwrap().is_none(), "the parents know of no split");
        assert_eq!(follower.poll_timeout(), None, "what was told was looked into");
        follower.report(1_000, 500, &keys());
        let due = follower.poll_timeout().expect("again");
        assert!(due > START, "tops are not read all the time: {due:?}");
        // Tops that cannot be are told; and asked for again as late as others.
        let error = follower.replan(due, &[], [], &[]).unwrap_err();
        assert_eq!(error, FollowError::Snapshot(SnapshotError::Empty));
        follower.report(1_000, 500, &keys());
        assert!(follower.poll_timeout().expect("once more") > due);
    }

    /// Leaves are split all the time, and clients complain all the time.
    #[test]
    fn entries_written_have_a_bound() {
        let mut tops = tops();
        let options = FollowOptions { entries_per_s: 9.0, ..FollowOptions::default() };
        let mut follower = follower(&tops, options);
        let (mut written, mut reloads, mut first) = (0, 0, None);
        for second in 0..600u32 {
            for leaf in 0..20 {
                split(&mut tops, u64::from(second * 7919 + leaf * 2003) % 40_000);
            }
            follower.report(1_000, 900, &keys());
            let now = Instant::ZERO + SECOND * u64::from(second);
            if let Some(next) = follower.replan(now, &tops, [], &[]).unwrap() {
                let changes = diff(&follower.active().entries(), &next.plan.entries());
                let changes = changes.values().map(Vec::len).sum::<usize>();
                written += changes;
                reloads += 1;
                first.get_or_insert(changes);
                follower.loaded(next.plan);
            }
        }
        let bound = 600 * 9 + first.expect("it follows");
        assert!(reloads > 0 && written < bound, "{written} changes in {reloads} reloads, {bound} at most");
    }

    #[test]
    fn samples_have_a_bound_and_the_newest_stay() {
        let mut follower = follower(&tops(), FollowOptions::default());
        let keys: Vec<u64> = (0..SAMPLES as u64 + 10).collect();
        follower.report(0, 0, &keys[..20]);
        follower.report(0, 0, &keys);
        assert_eq!((follower.keys.len(), follower.keys[0]), (SAMPLES, 10));
        follower.report(0, 0, &[1, 2, 3]);
        assert_eq!((follower.keys.len(), follower.keys[0], follower.keys.back()), (SAMPLES, 13, Some(&3)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// A plan's hint is stale exactly where a naive walk says so.
        #[test]
        fn the_share_is_that_of_a_naive_walk(
            (old, new) in (arb_tops(), arb_tops()),
            keys in prop::collection::vec((any::<u64>(), 1u64..9), 1..200),
        ) {
            let plan = follower(&old, FollowOptions::default()).active().clone();
            prop_assert_eq!(plan.share_of_stale_hints(&Tree::new(&old).unwrap(), &keys, &[]), 0.0);
            let is_stale_hint = |key: &u64| !naive_path(&new, *key).contains(&plan.resolve(*key).address);
            let weight: u64 = keys.iter().filter(|(key, _)| is_stale_hint(key)).map(|(_, weight)| weight).sum();
            let all: u64 = keys.iter().map(|(_, weight)| weight).sum();
            let share = plan.share_of_stale_hints(&Tree::new(&new).unwrap(), &keys, &[]);
            prop_assert!((share - weight as f64 / all as f64).abs() < 1e-9);
        }
    }
}
