//! What a card and its threads have spent, to tell the cause of a result.

use fatbtree_verbs::time::Duration;

/// Totals of a card and the threads that share it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    /// Requests completed.
    pub(crate) requests: u64,
    /// Doorbells that threads have rung.
    pub(crate) doorbells: u64,
    /// Time of threads from the start of a post to its doorbell, waiting included.
    pub(crate) posting: Duration,
    /// Time of threads in the queues of doorbell registers.
    pub(crate) in_registers: Duration,
    /// Time of threads in the queues of queue pairs.
    pub(crate) in_queue_pairs: Duration,
    /// Time for which the bus was busy towards the host, misses of the card's cache included.
    pub(crate) bus_up: Duration,
    /// Time for which the bus was busy towards the card.
    pub(crate) bus_down: Duration,
    /// Time for which the busiest bucket of atomics was busy.
    pub(crate) busiest_bucket: Duration,
    /// Requests that were read once more from the host; a part of one counts as such.
    pub(crate) missed: f64,
    /// Bytes of the host's memory: results and completions written, work requests read once more.
    pub(crate) memory_bytes: u64,
}

impl Usage {
    /// Totals since `before`. The busiest bucket's time is right if it was the busiest before, too, and otherwise too short.
    #[must_use]
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            doorbells: self.doorbells - before.doorbells,
            posting: self.posting.saturating_sub(before.posting),
            in_registers: self.in_registers.saturating_sub(before.in_registers),
            in_queue_pairs: self.in_queue_pairs.saturating_sub(before.in_queue_pairs),
            bus_up: self.bus_up.saturating_sub(before.bus_up),
            bus_down: self.bus_down.saturating_sub(before.bus_down),
            busiest_bucket: self.busiest_bucket.saturating_sub(before.busiest_bucket),
            missed: self.missed - before.missed,
            memory_bytes: self.memory_bytes - before.memory_bytes,
        }
    }
}
