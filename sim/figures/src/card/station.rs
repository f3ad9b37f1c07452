//! Stations: places where requests wait for each other. Their times are in picoseconds, because a card takes less than
//! ten nanoseconds for a request.

use fatbtree_verbs::time::{Duration, Instant};

/// Span of virtual time in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Picos(pub(super) u64);

impl Picos {
    /// Time of `bytes` at this many picoseconds each.
    pub(super) const fn of_bytes(bytes: u64, each: Picos) -> Self {
        Self(bytes * each.0)
    }

    /// The span in nanoseconds.
    pub(super) fn rounded(self) -> Duration {
        Duration::from_nanos(self.0 / 1_000)
    }

    /// This part of the span.
    pub(super) fn part(self, share: f64) -> Self {
        Self((self.0 as f64 * share) as u64)
    }
}

impl std::ops::Add for Picos {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

/// A place that serves one request after the other, in the order in which they are brought.
#[derive(Debug, Default)]
pub(super) struct Station {
    /// Time at which it is free, in ps.
    free: u64,
    /// Time for which it has been busy, in ps.
    busy: u64,
}

impl Station {
    /// Serves a request that comes at `from`, for `span`; returns the end, rounded up to nanoseconds.
    pub(super) fn serve(&mut self, from: Instant, span: Picos) -> Instant {
        self.free = self.free.max(from.as_nanos() * 1_000) + span.0;
        self.busy += span.0;
        Instant::from_nanos(self.free.div_ceil(1_000))
    }

    /// Time for which it has been busy.
    pub(super) fn busy(&self) -> Picos {
        Picos(self.busy)
    }
}
