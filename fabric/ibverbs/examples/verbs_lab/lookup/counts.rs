//! What came of some lookups.

use std::collections::BTreeMap;
use std::fmt;

use fatbtree_blink::{OperationError, PoolStats, RemoteStats, Value, value};

/// Of the values, as `udp_memserver` has them if it is not told otherwise.
const SEED: u64 = 42;
const VALUE_BYTES: usize = 100;

/// Prints as words `name=value`.
#[derive(Default)]
pub(crate) struct Counts {
    lookups: u64,
    found: u64,
    not_found: u64,
    /// Another value than the key's, a key that is not there, or none for one that is.
    pub(crate) wrong: u64,
    pub(crate) failed: u64,
    /// Index reads that were accepted, by the level of the node on which they landed.
    landed: BTreeMap<u8, u64>,
    /// Before them, and what they added.
    stats: PoolStats,
}

impl Counts {
    /// Of lookups that begin now.
    pub(crate) fn since(stats: PoolStats) -> Self {
        Self { stats, ..Self::default() }
    }

    /// They have ended.
    pub(crate) fn until(mut self, now: PoolStats) -> Self {
        let before = self.stats;
        let remote = RemoteStats {
            reads: now.remote.reads - before.remote.reads,
            broken_connections: now.remote.broken_connections - before.remote.broken_connections,
            refused_index_reads: now.remote.refused_index_reads - before.remote.refused_index_reads,
            inherited_locks: now.remote.inherited_locks - before.remote.inherited_locks,
            ..now.remote
        };
        self.stats = PoolStats {
            remote,
            lookups: now.lookups - before.lookups,
            index_reads: now.index_reads - before.index_reads,
            unregistered: now.unregistered - before.unregistered,
            retries: now.retries - before.retries,
            fallbacks: now.fallbacks - before.fallbacks,
            new_roots: now.new_roots - before.new_roots,
            restarts: now.restarts - before.restarts,
            splits: now.splits - before.splits,
            merges: now.merges - before.merges,
            settled: now.settled - before.settled,
            ..now
        };
        self
    }

    /// One of them has ended; `there` says what there is to be found.
    pub(crate) fn add(&mut self, key: u64, result: &Result<Option<Value>, OperationError>, there: bool) {
        self.lookups += 1;
        let right = match result {
            Ok(Some(bytes)) => {
                self.found += 1;
                there && bytes.len() == VALUE_BYTES && value::check(key, SEED, bytes)
            }
            Ok(None) => {
                self.not_found += 1;
                !there
            }
            Err(error) => {
                self.failed += 1;
                if self.failed == 1 {
                    println!("failed {error}");
                }
                true
            }
        };
        if !right {
            self.wrong += 1;
            println!("wrong key={key:#x} there={there} result={result:?}");
        }
    }

    pub(crate) fn landed(&mut self, level: Option<u8>) {
        if let Some(level) = level {
            *self.landed.entry(level).or_default() += 1;
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lookups, found, not_found, wrong, failed, landed, stats } = self;
        let PoolStats { remote, index_reads, unregistered, fallbacks, restarts, .. } = stats;
        let RemoteStats { reads, broken_connections: broken, refused_index_reads: refused, .. } = remote;
        let per_lookup = *reads as f64 / *lookups as f64;
        write!(
            f,
            "lookups={lookups} found={found} not_found={not_found} wrong={wrong} failed={failed} round_trips={reads} \
             per_lookup={per_lookup:.2} index_reads={index_reads} unregistered={unregistered} fallbacks={fallbacks} \
             broken={broken} refused={refused} restarts={restarts}"
        )?;
        landed.iter().try_for_each(|(level, count)| write!(f, " landed_{level}={count}"))
    }
}
