//! Scenarios with clients of both kinds on one tree, over links that lose, duplicate and reorder.
//!
//! RDMA clients work by software NICs, and query clients ask query workers. Workers are started anew, and sleep for
//! longer than their leases. Every answer must be explained.
//!
//! ```text
//!   2 RDMA clients: Client ─ Nic ── frames, some lost ──────► Nic ─┐
//!                                                                  ├─ MemoryServer: sessions, locks, one tree
//!   2 query clients: QueryClient ── frames, some lost ─► switches ── ─► QueryWorker ─ LocalVerbs
//!                                                      ▲          └──► QueryWorker ─ LocalVerbs     started anew, or asleep
//!                                                      └ a controller loads one plan after the other
//! ```
//!
//! The switches of query clients are compiled ones, in networks of one switch or several; some scenarios have none.
//! Their content is always old, because the tree has changed since it was read. A reload takes its time, during which
//! queries pass.
//!
//! The nodes are the real ones, byte by byte. The seed decides the links, the workload and the mishaps of workers. It
//! also decides in which order steps of a worker's operations come between those of others.
//!
//! ```
//! let outcome = fatbtree_sim::queries::Scenario::from_seed(7).run().expect("every answer is explained");
//! assert!(outcome.answered > 0);
//! ```

mod clients;
mod lab;
mod way;

use fatbtree_blink::{Integrity, TreeConfig, ValueLayout};
use fatbtree_soft_nic::faults::FaultRates;
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;
use serde::Serialize;

use crate::world::random;

/// A scenario: everything follows from the seed.
#[derive(Clone, Debug)]
pub struct Scenario {
    seed: u64,
    config: TreeConfig,
    /// Keys that operations are about; every other one is there at first.
    keys: u64,
    /// Tasks of each client; each runs operations one after the other.
    tasks: u32,
    /// Operations of each task.
    operations: u32,
    /// Length of a phase of a task, in operations. Phases that mostly put keys and phases that mostly delete
    /// alternate, so that nodes are split, and merged.
    tide: u32,
    /// Percentage of operations that scan.
    scans: u32,
    /// Time for which sessions last.
    lease: Duration,
    /// Faults of the query clients' links.
    datagrams: FaultRates,
    /// Frames of theirs with a flipped bit, of 10,000.
    flips: u32,
    /// Interval between steps of the controller, where queries go through switches: each writes a part of a
    /// plan, or makes the next one.
    reloads: Option<Duration>,
    /// Whether a plan is loaded before clients begin.
    warm: bool,
    /// Faults of the RDMA clients' links.
    frames: FaultRates,
    /// Interval between mishaps of workers.
    calm: Duration,
    /// Whether workers cache inner nodes.
    cache: bool,
    /// Bytes of a part of a value or an answer.
    part: usize,
    /// Mean pause between two strikes of a hostile writer, if there is one.
    hostile: Option<Duration>,
}

counters! {
    /// Result of a scenario.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    pub struct Outcome {
        /// Operations that were answered, and explained.
        pub answered: u64,
        /// Operations that ended with an error, or whose result is unknown.
        pub unknown: u64,
        /// Changes by queries that were carried out.
        pub query_writes: u64,
        /// Changes by RDMA that were carried out.
        pub rdma_writes: u64,
        /// Requests that clients sent again.
        pub again: u64,
        /// Writes that came to a worker again, and were not carried out again.
        pub not_again: u64,
        /// Workers that were started anew.
        pub restarts: u64,
        /// Workers that slept.
        pub sleeps: u64,
        /// Sessions that ended because they were not renewed.
        pub lapsed: u64,
        /// Attempts to take a lock that found it taken, of both kinds of clients.
        pub lock_retries: u64,
        /// Locks taken from clients whose sessions had ended.
        pub inherited_locks: u64,
        /// Nodes split by query workers.
        pub worker_splits: u64,
        /// Nodes split by RDMA clients.
        pub splits: u64,
        /// Nodes merged into their left neighbours, by both.
        pub merges: u64,
        /// Answers to gets and changes that were asked for through switches.
        pub through_switches: u64,
        /// Answers through switches that began at a node that switches had found.
        pub led: u64,
        /// Requests with the address of a node where none was for their key.
        pub stale_hints: u64,
        /// Plans that were loaded.
        pub reloads: u64,
        /// Frames with queries that were damaged.
        pub damaged: u64,
        /// Frames with queries that have come to another host.
        pub elsewhere: u64,
        /// Datagrams and frames that were lost.
        pub lost: u64,
        /// Pieces of damage that a hostile writer has written.
        pub strikes: u64,
        /// Requests that workers answered with "damaged".
        pub refused: u64,
    }
}

impl Scenario {
    /// The scenario of a seed.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let draw = &mut random(seed, 131);
        // What servers have made of each kind: by length now, and out of line in folders of former releases.
        let values = match (draw.random_bool(0.5), random(seed, 139).random_bool(0.5)) {
            (true, _) => ValueLayout::Inline(8),
            (false, true) => ValueLayout::SHORT,
            (false, false) => ValueLayout::OutOfLine,
        };
        let leaf = 64 * draw.random_range(3..=5);
        let config = TreeConfig::with_integrity(draw.random_range(3..=6), leaf, values, Integrity::Checksums)
            .expect("there is room for two entries");
        let mut rates = |most: u16, corrupt: u16| FaultRates {
            drop: draw.random_range(0..=most),
            duplicate: draw.random_range(0..=most),
            delay: draw.random_range(0..=most),
            corrupt,
            longest_delay: Duration::from_micros(draw.random_range(1..=2_000)),
        };
        // (queries have damage of their own, which UDP's checksum finds: single bits; RoCE's is the NIC's own affair)
        let (datagrams, frames) = (rates(2_000, 0), rates(300, 100));
        Self {
            seed,
            config,
            keys: draw.random_range(4..=120),
            tasks: draw.random_range(1..=5),
            operations: draw.random_range(10..=50),
            tide: draw.random_range(3..=50),
            scans: draw.random_range(0..=20),
            lease: Duration::from_micros(draw.random_range(1_000..=8_000)),
            datagrams,
            frames,
            calm: Duration::from_micros(draw.random_range(300..=8_000)),
            cache: draw.random_bool(0.5),
            part: if draw.random_bool(0.3) { 24 } else { fatbtree_query::PART },
            flips: draw.random_range(0..=300),
            reloads: draw.random_bool(0.7).then(|| Duration::from_micros(draw.random_range(5..=1_000))),
            warm: draw.random_bool(0.7),
            hostile: None,
        }
    }

    /// The scenario of a seed with a hostile writer, which damages the structure of the tree. Answers are not
    /// checked: answers about damaged nodes need not be right. Each operation ends, and nothing panics.
    #[must_use]
    pub fn hostile(seed: u64) -> Self {
        let draw = &mut random(seed, 134);
        let hostile = Some(Duration::from_micros(draw.random_range(20..=2_000)));
        let scenario = Self::from_seed(seed);
        // A worker is patient for a second with each operation on a damaged node.
        Self { hostile, tasks: 1, operations: scenario.operations.min(5), ..scenario }
    }

    /// Runs the scenario to its end.
    ///
    /// # Errors
    /// An answer that nothing explains, a tree that is none, an operation without an end although everything works.
    pub fn run(&self) -> Result<Outcome, String> {
        lab::run(self).map_err(|why| format!("{why}\n  in {self:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds::{Campaign, Seeds};

    #[test]
    fn both_kinds_of_clients_are_explained_by_one_order() {
        let report = Campaign { command: "fatbtree simulate queries --seed", ..Campaign::default() }
            .run(Seeds::fixed(150), |seed| Scenario::from_seed(seed).run());
        assert!(report.failures.is_empty(), "{report}");
        let sum = report.total;
        for (what, count) in [
            ("writes by queries", sum.query_writes),
            ("writes by RDMA", sum.rdma_writes),
            ("writes that came again", sum.not_again),
            ("restarts", sum.restarts),
            ("sleeps", sum.sleeps),
            ("sessions that lapsed", sum.lapsed),
            ("locks that were taken", sum.lock_retries),
            ("locks taken over", sum.inherited_locks),
            ("splits by workers", sum.worker_splits),
            ("splits by RDMA", sum.splits),
            ("merges", sum.merges),
            ("writes with unknown outcomes", sum.unknown),
            ("answers from nodes that switches had found", sum.led),
            ("requests with a stale hint", sum.stale_hints),
            ("plans loaded", sum.reloads),
            ("damaged frames", sum.damaged),
            ("frames elsewhere", sum.elsewhere),
        ] {
            assert!(count > 0, "no {what}");
        }
        let (led, all) = (sum.led, sum.through_switches);
        assert!(led * 2 > all, "switches have found nodes for {led} of {all} only");
    }

    #[test]
    fn operations_on_a_tree_that_a_hostile_writer_damages_end() {
        const SEEDS: u64 = 40;
        let report = Campaign { command: "fatbtree simulate hostile-queries --seed", ..Campaign::default() }
            .run(Seeds::fixed(SEEDS), |seed| Scenario::hostile(seed).run());
        assert!(report.failures.is_empty(), "{report}");
        let sum = report.total;
        // Shown with --nocapture.
        eprintln!("{sum:#?}");
        assert!(sum.strikes > SEEDS && sum.refused > 0 && sum.reloads > 0, "{sum:?}");
    }

    #[test]
    fn a_seed_repeats_itself() {
        let run = |seed| Scenario::from_seed(seed).run().expect("it passes");
        assert_eq!(run(3), run(3));
    }
}
