//! Atomics of one bucket wait for each other.

use fatbtree_verbs::time::{Duration, Instant};
use rustc_hash::FxHashMap;

/// Addresses whose lowest 12 bits are the same share a bucket (Sherman section 3.2.2, after Kalia et al., USENIX ATC 2016).
const BUCKET: u64 = 0xfff;

/// Buckets of a card. Host memory and the card's own memory have buckets of their own.
#[derive(Debug, Default)]
pub(super) struct Buckets {
    free: FxHashMap<(bool, u64), Instant>,
    /// Time for which the busiest bucket was busy.
    busy: FxHashMap<(bool, u64), Duration>,
}

impl Buckets {
    /// Occupies a bucket for `span` from `from` on or as soon as it is free; returns the end.
    pub(super) fn occupy(&mut self, on_card: bool, address: u64, from: Instant, span: Duration) -> Instant {
        let bucket = (on_card, address & BUCKET);
        let free = self.free.entry(bucket).or_default();
        *free = from.max(*free) + span;
        let busy = self.busy.entry(bucket).or_default();
        *busy = *busy + span;
        *free
    }

    /// Time for which the busiest bucket has been busy.
    pub(super) fn busiest(&self) -> Duration {
        self.busy.values().copied().max().unwrap_or_default()
    }
}
