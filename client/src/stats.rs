//! Counters of a client.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::Error;

/// A snapshot of a client's counters. All clones count together. Each key of a batch, and each part of a scan, counts as one operation.
///
/// Metrics for Prometheus are at the address that `[metrics]` in the cluster file gives the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Lookups that have ended.
    pub reads: u64,
    /// Changes that have ended.
    pub changes: u64,
    /// Parts of scans that have ended.
    pub scans: u64,
    /// Operations that have failed, timeouts among them.
    pub failed: u64,
    /// Failed changes that may have been carried out.
    pub unknown: u64,
    /// Total time of all operations, from the queue to the answer.
    pub time: Duration,
}

impl Stats {
    /// Mean time of an operation; `None` if there was none.
    pub fn mean_time(&self) -> Option<Duration> {
        let count = self.reads + self.changes + self.scans;
        (count > 0).then(|| Duration::from_nanos(self.time.as_nanos() as u64 / count))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    reads: AtomicU64,
    changes: AtomicU64,
    scans: AtomicU64,
    failed: AtomicU64,
    unknown: AtomicU64,
    nanos: AtomicU64,
}

impl Counters {
    pub(crate) fn read<T>(&self, since: Instant, result: &Result<T, Error>) {
        self.count(&self.reads, since, result);
    }

    pub(crate) fn change<T>(&self, since: Instant, result: &Result<T, Error>) {
        self.count(&self.changes, since, result);
    }

    pub(crate) fn scan<T>(&self, since: Instant, result: &Result<T, Error>) {
        self.count(&self.scans, since, result);
    }

    fn count<T>(&self, kind: &AtomicU64, since: Instant, result: &Result<T, Error>) {
        let add = |counter: &AtomicU64, number| _ = counter.fetch_add(number, Ordering::Relaxed);
        add(kind, 1);
        add(&self.nanos, since.elapsed().as_nanos() as u64);
        if let Err(error) = result {
            add(&self.failed, 1);
            add(&self.unknown, error.may_have_happened().into());
        }
    }

    pub(crate) fn snapshot(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            reads: get(&self.reads),
            changes: get(&self.changes),
            scans: get(&self.scans),
            failed: get(&self.failed),
            unknown: get(&self.unknown),
            time: Duration::from_nanos(get(&self.nanos)),
        }
    }
}
