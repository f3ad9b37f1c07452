//! A tree that grows under switches that hold a plan, and a controller that follows it.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use anyhow::Result;
use fatbtree_controller::FollowOptions;
use fatbtree_remote_memory::Report;
use fatbtree_workload::ycsb::WorkloadSpec;

use super::control::Control;
use super::measure::{Kind, Runner, Way};
use super::result::GrowthResult;

/// Measurement of lookups in a tree that grows.
pub(super) struct Growth {
    /// Lookups, as the active plan was made for.
    pub(super) lookups: WorkloadSpec,
    /// Number of lookups for each figure.
    pub(super) operations: u64,
    /// Way of the lookups: by index reads, without a client's cache.
    pub(super) kind: Kind,
    /// Report from which the active plan was made.
    pub(super) learned: Report,
}

/// New keys for each lookup.
const INSERTS_PER_LOOKUP: u64 = 2;

/// Seeds, so that no figure is of lookups that the controller has learned from.
const BEFORE: u64 = 0x1001;
const STALE: u64 = 0x1002;
const LEARNED: u64 = 0x1003;
const FOLLOWED: u64 = 0x1004;

impl Growth {
    /// Measures lookups before new keys come, and then under switches that know nothing of them. A last measurement
    /// follows when the controller has seen by itself whether it is time to plan anew. `None` if there is no room for
    /// new keys.
    pub(super) async fn run(
        self,
        loaded: &[u64],
        runner: &mut Runner,
        control: &mut Control,
    ) -> Result<Option<(GrowthResult, Vec<Way>)>> {
        let Self { lookups, operations, kind, learned } = self;
        let new = keys_beside(&learned.keys, loaded, INSERTS_PER_LOOKUP * operations);
        if new.is_empty() {
            return Ok(None);
        }
        let mut follower = control.follower(FollowOptions::default())?;
        follower.report(0, 0, &learned.keys);
        let since = Instant::now();
        let before = runner.once(&lookups, &kind, operations, BEFORE, "looking up").await?;
        // What was told until now is of a tree that was as planned.
        runner.report()?;
        let inserted = new.len() as u64;
        let insert = runner.insert(new, &kind).await?;
        let stale = runner.once(&lookups, &kind, operations, STALE, "looking up in the grown tree").await?;

        runner.sample()?;
        let learn = runner.once(&lookups, &kind, operations, LEARNED, "noticing what has grown").await?;
        let report = runner.report()?;
        follower.report(report.index_reads, report.stale_hints, &report.keys);
        let changes = control.follow(&mut follower, since).await?;
        let followed =
            runner.once(&lookups, &kind, operations, FOLLOWED, "looking up by the next plan").await?;

        let round_trips = |way: &Way| way.done.recorder().summary(1).round_trips;
        let result = GrowthResult {
            inserted,
            operations,
            before: round_trips(&before),
            stale: round_trips(&stale),
            followed: round_trips(&followed),
            stale_hints: report.stale_hints as f64 / report.index_reads.max(1) as f64,
            changes,
        };
        Ok(Some((result, vec![before, insert, stale, learn, followed])))
    }
}

/// New keys, on both sides of those that were asked for, the more the more often: at most `most`.
fn keys_beside(asked: &[u64], loaded: &[u64], most: u64) -> Vec<u64> {
    let (mut tried, mut taken) = (HashMap::new(), HashSet::new());
    let beside = |key: &u64| {
        let tried = tried.entry(*key).or_insert(0u64);
        *tried += 1;
        let distance = tried.div_ceil(2);
        let new = if tried.is_multiple_of(2) { key.checked_sub(distance) } else { key.checked_add(distance) };
        new.filter(|new| loaded.binary_search(new).is_err() && taken.insert(*new))
    };
    asked.iter().filter_map(beside).take(most as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_keys_are_new_and_beside_those_asked_for() {
        let loaded = [10, 11, 20, 30, u64::MAX];
        assert_eq!(keys_beside(&[20, 20, 20, 30, 20], &loaded, 9), [21, 19, 22, 31, 18]);
        assert_eq!(keys_beside(&[20, 20, 20], &loaded, 2), [21, 19]);
        assert_eq!(keys_beside(&[10, 10, 10, u64::MAX, 0, 0], &loaded, 9), [9, 12, 1]);
        assert_eq!(keys_beside(&[1, 2], &loaded, 9), [2, 3]);
        assert_eq!(keys_beside(&[1, 3], &[0, 1, 2, 3], 9), [4]);
    }
}
