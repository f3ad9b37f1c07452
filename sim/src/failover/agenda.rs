//! Future events by time.

use std::collections::BTreeMap;

use fatbtree_verbs::time::Instant;

/// Things with times; those of one time come in the order in which they were put in.
#[derive(Debug)]
pub(super) struct Agenda<T> {
    things: BTreeMap<(Instant, u64), T>,
    count: u64,
}

impl<T> Agenda<T> {
    pub(super) fn new() -> Self {
        Self { things: BTreeMap::new(), count: 0 }
    }

    pub(super) fn add(&mut self, at: Instant, thing: T) {
        self.count += 1;
        self.things.insert((at, self.count), thing);
    }

    pub(super) fn next_at(&self) -> Option<Instant> {
        self.things.first_key_value().map(|((at, _), _)| *at)
    }

    /// The next thing that is due by now.
    pub(super) fn pop(&mut self, now: Instant) -> Option<T> {
        let due = self.next_at().is_some_and(|at| at <= now);
        if due { self.things.pop_first().map(|(_, thing)| thing) } else { None }
    }
}
