//! Deadlines of many queue pairs, earliest first.
//!
//! A queue pair moves its deadline with almost every frame, mostly to later: rearming a heap each time would cost more than the frame. So
//! the heap has one live entry per queue pair, at or before its true deadline, and entries are corrected when they come to the
//! top ([`settle`](Timers::settle)). After settling, the top is exact.

use crate::time::Instant;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Where a timer belongs; the NIC's slot of the queue pair.
pub(crate) type Slot = u32;

/// What has become of an entry of the heap.
pub(crate) enum Entry {
    /// It is the deadline.
    Exact,
    /// The deadline is another.
    Moved(Instant),
    /// There is none, or another entry stands for it.
    Gone,
}

#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, Slot)>>,
}

impl Timers {
    /// Notes that `slot` has a deadline; `entry` is the queue pair's own memory of its live entry.
    #[inline]
    pub(crate) fn arm(&mut self, slot: Slot, deadline: Option<Instant>, entry: &mut Option<Instant>) {
        if let Some(deadline) = deadline
            && entry.is_none_or(|at| deadline < at)
        {
            *entry = Some(deadline);
            self.heap.push(Reverse((deadline, slot)));
        }
    }

    /// Corrects the top until it is exact. `check` says what the queue pair of an entry makes of it, and notes in its own memory that
    /// the entry has moved or gone.
    #[inline]
    pub(crate) fn settle(&mut self, mut check: impl FnMut(Slot, Instant) -> Entry) {
        while let Some(&Reverse((at, slot))) = self.heap.peek() {
            match check(slot, at) {
                Entry::Exact => return,
                Entry::Gone => _ = self.heap.pop(),
                Entry::Moved(to) => {
                    self.heap.pop();
                    self.heap.push(Reverse((to, slot)));
                }
            }
        }
    }

    pub(crate) fn earliest(&self) -> Option<(Instant, Slot)> {
        self.heap.peek().map(|&Reverse(top)| top)
    }
}
