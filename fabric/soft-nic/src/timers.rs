//! Deadlines of many queue pairs, earliest first.
//!
//! A queue pair moves its deadline with almost every frame, to later, since time never goes back: rearming a heap each time would
//! cost more than the frame. So a queue pair has one live entry in the heap, at or before its true deadline, and entries are corrected
//! when they come to the top ([`settle`](Timers::settle)). After settling, the top is exact. Entries that stand for nothing any more go when they come to the top,
//! or all together when they are too many ([`sweep`](Timers::sweep)).

use fatbtree_verbs::QueuePair;
use fatbtree_verbs::time::Instant;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// State of an entry of the heap.
pub(crate) enum Entry {
    /// The entry's time is the deadline.
    Exact,
    /// The deadline is at another time.
    Moved(Instant),
    /// There is no deadline, or another entry stands for it.
    Gone,
}

#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, QueuePair)>>,
}

impl Timers {
    /// Notes a deadline; `entry` is the time of the queue pair's live entry, which the queue pair keeps.
    #[inline]
    pub(crate) fn arm(
        &mut self,
        queue_pair: QueuePair,
        deadline: Option<Instant>,
        entry: &mut Option<Instant>,
    ) {
        if let Some(deadline) = deadline
            && entry.is_none()
        {
            *entry = Some(deadline);
            self.heap.push(Reverse((deadline, queue_pair)));
        }
    }

    /// Corrects the top until it is exact. `check` returns the state of an entry for its queue pair, which notes that
    /// the entry has moved or gone.
    #[inline]
    pub(crate) fn settle(&mut self, mut check: impl FnMut(QueuePair, Instant) -> Entry) {
        while let Some(&Reverse((at, queue_pair))) = self.heap.peek() {
            match check(queue_pair, at) {
                Entry::Exact => return,
                Entry::Gone => _ = self.heap.pop(),
                Entry::Moved(to) => {
                    self.heap.pop();
                    self.heap.push(Reverse((to, queue_pair)));
                }
            }
        }
    }

    /// Number of entries, live or not.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Removes all entries that are not live.
    pub(crate) fn sweep(&mut self, mut is_live: impl FnMut(QueuePair, Instant) -> bool) {
        let mut entries = std::mem::take(&mut self.heap).into_vec();
        entries.retain(|&Reverse((at, queue_pair))| is_live(queue_pair, at));
        entries.sort_unstable();
        entries.dedup();
        self.heap = entries.into();
    }

    pub(crate) fn earliest(&self) -> Option<(Instant, QueuePair)> {
        self.heap.peek().map(|&Reverse(top)| top)
    }
}
