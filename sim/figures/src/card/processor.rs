//! Processors of client threads: the time of posting and polling.

use fatbtree_verbs::time::Duration;

/// A kind of processor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Processor {
    /// Time of a thread for a request, its share of polling included. SMART's figure 4a, 12 threads: each request beyond the
    /// fourth of a batch takes 0.215 µs.
    pub(super) request: Duration,
    /// Part of `request` in which a thread has the doorbell register.
    pub(super) ring: Duration,
    /// Time from the completion in memory until the thread goes on. Figure 4a, batches of 1 and 4: what grows with the number of
    /// threads is 0.215 µs a request and 0.44 µs a batch.
    pub(super) wake: Duration,
    /// Slowness of threads by their number: (threads, percent), linear in between. Figure 4a, batches of 1 and 4, and of 8 up to 48
    /// threads, where no card is busy, against 12 threads. Up to 48 they share caches and memory; beyond, two share a core.
    pub(super) slowness: &'static [(u32, u32)],
    /// A client's own work for an index operation.
    pub(super) operation: Duration,
}

impl Processor {
    /// SMART's clients, two Xeon 6240R: 48 cores, 96 threads.
    pub(super) const XEON_6240R: Self = Self {
        request: Duration::from_nanos(215),
        ring: Duration::from_nanos(100),
        wake: Duration::from_nanos(440),
        slowness: &[(12, 100), (24, 110), (36, 116), (48, 130), (60, 143), (72, 156), (84, 171), (96, 185)],
        operation: Duration::ZERO,
    };

    /// Sherman's clients, two Xeon E5-2650 v4, on which no request is measured by itself: as above, for 22 threads on 24 cores. An
    /// operation takes 4.9 µs in half where most are lookups (Sherman section 5.2), and a READ of 1 KB 2.2 µs of it.
    pub(super) const XEON_2650: Self =
        Self { slowness: &[(1, 100)], operation: Duration::from_nanos(2_700), ..Self::XEON_6240R };

    /// Time in thousandths that so many threads take for a thousandth of one's work.
    pub(super) fn slowness(&self, threads: u32) -> u64 {
        let above = self.slowness.partition_point(|&(at, _)| at < threads);
        let Some(&(to, high)) = self.slowness.get(above) else {
            return self.slowness.last().map_or(1_000, |&(_, percent)| u64::from(percent) * 10);
        };
        let Some(&(from, low)) = above.checked_sub(1).and_then(|below| self.slowness.get(below)) else {
            return u64::from(high) * 10;
        };
        u64::from(low) * 10 + u64::from(high - low) * 10 * u64::from(threads - from) / u64::from(to - from)
    }
}
