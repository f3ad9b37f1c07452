//! Time as a number.

use std::cell::Cell;

use fatbtree_verbs::time::Instant;

use crate::cluster::Clock;

/// A clock that goes when it is told to.
#[derive(Debug, Default)]
pub struct VirtualClock {
    now: Cell<Instant>,
}

impl VirtualClock {
    /// Creates a clock at time zero.
    pub fn new() -> Self {
        Self { now: Cell::new(Instant::ZERO) }
    }

    /// Goes on to `at`; a time in the past changes nothing.
    pub fn advance_to(&self, at: Instant) {
        self.now.set(self.now.get().max(at));
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        self.now.get()
    }
}
