//! Future events, in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fatbtree_verbs::time::Instant;

/// The place of something in the order of all that happens: by time, then by when it was decided. So two things of the same
/// nanosecond never race.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) at: Instant,
    pub(super) order: u64,
}

/// Something to happen. Numbers are those of the fabric's lists.
///
/// An access's touches and its end have one place in the order: the touches, which are first here, come before the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// An access touches one line.
    Touch { access: u32, unit: u32 },
    /// An access has touched all lines.
    End { access: u32 },
    /// A request passes the switches.
    Pass { packet: u32 },
    /// A request is at the responder.
    Arrive { packet: u32 },
    /// An answer is at the requester.
    Answer { access: u32 },
    /// A queue pair looks whether something was not answered.
    Retry { pair: u32 },
    /// A sleeping task of a machine is due.
    Wake { machine: u32, generation: u32 },
    /// The thread of a machine has handed a chain to the card.
    Posted { machine: u32, generation: u32 },
    /// The thread of a machine takes a completion.
    Taken { machine: u32, generation: u32 },
}

/// All that is to happen.
#[derive(Debug, Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<(Place, Event)>>,
    last_order: u64,
}

impl Events {
    /// A new place at `at`, after all that was decided before for the same time.
    pub(super) fn place(&mut self, at: Instant) -> Place {
        self.last_order += 1;
        Place { at, order: self.last_order }
    }

    pub(super) fn push(&mut self, at: Instant, event: Event) {
        let place = self.place(at);
        self.push_at(place, event);
    }

    pub(super) fn push_at(&mut self, place: Place, event: Event) {
        self.heap.push(Reverse((place, event)));
    }

    pub(super) fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((place, _))| place.at)
    }

    pub(super) fn pop(&mut self) -> Option<(Place, Event)> {
        self.heap.pop().map(|Reverse(next)| next)
    }
}
