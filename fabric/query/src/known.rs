//! State that a server keeps of a client: its address and the outcomes of its last writes.

use std::net::SocketAddr;

use fatbtree_verbs::time::Instant;
use fatbtree_wire::query::{Assembly, QueryHeader, WINDOW};

use crate::checks::Check;

/// State of one client.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) address: SocketAddr,
    /// Left edge of the window: writes with lower ids are not executed. It never decreases.
    floor: u64,
    pub(crate) last_seen: Instant,
    /// Slots of the window, by the write's id modulo their count.
    slots: Vec<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    id: u64,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Empty,
    /// The value is only partially received.
    Receiving(Assembly),
    Running,
    /// The write has ended with this response.
    Done(QueryHeader),
}

/// State of a write when one of its packets arrives.
#[derive(Debug)]
pub(crate) enum Seen {
    /// The packet is the first of its write, or one more part of the value.
    New,
    /// The write is in progress.
    Running,
    /// The write has ended before, with this response.
    Again(QueryHeader),
    /// The write is older than all that are remembered.
    Forgotten,
    /// The slot belongs to another write, which is still in progress.
    Occupied,
}

impl Known {
    pub(crate) fn new(address: SocketAddr, floor: u64, now: Instant) -> Self {
        let slots = (0..WINDOW).map(|_| Slot::default()).collect();
        Self { address, floor, last_seen: now, slots }
    }

    fn slot(&mut self, id: u64) -> &mut Slot {
        let at = (id % WINDOW) as usize;
        &mut self.slots[at]
    }

    /// Looks a write up and advances the window. A client has at most [`WINDOW`] requests in progress, so for it all
    /// writes left of the advanced window have ended. They are refused from now on, even if this write is not
    /// executed, because its slot is where an outcome of theirs was remembered.
    pub(crate) fn look(&mut self, id: u64) -> Seen {
        if id < self.floor {
            return Seen::Forgotten;
        }
        if Check::WindowMovesOn.on() {
            self.floor = self.floor.max(id.saturating_sub(WINDOW - 1));
        }
        let slot = self.slot(id);
        match &slot.state {
            State::Empty => Seen::New,
            // Left of the window, which has moved on with the later write: a second line.
            _ if slot.id > id => Seen::Forgotten,
            State::Running if slot.id == id => Seen::Running,
            State::Running => Seen::Occupied,
            State::Done(response) if slot.id == id => Seen::Again(*response),
            State::Receiving(_) | State::Done(_) => Seen::New,
        }
    }

    /// Takes the received parts of a write that has not begun; `None` if there are none. Parts of an older write in
    /// its slot are dropped.
    pub(crate) fn take_parts(&mut self, id: u64) -> Option<Assembly> {
        let slot = self.slot(id);
        match std::mem::take(&mut slot.state) {
            State::Receiving(parts) if slot.id == id => Some(parts),
            _ => None,
        }
    }

    /// Size of the partially received value in this write's slot, in bytes.
    pub(crate) fn waiting(&mut self, id: u64) -> u32 {
        match &self.slot(id).state {
            State::Receiving(parts) => parts.total(),
            _ => 0,
        }
    }

    /// Size of all partially received values, in bytes.
    pub(crate) fn all_waiting(&self) -> u64 {
        let parts = self.slots.iter().map(|slot| match &slot.state {
            State::Receiving(parts) => u64::from(parts.total()),
            _ => 0,
        });
        parts.sum()
    }

    /// Drops all partially received values; the client sends them again, whole.
    pub(crate) fn drop_parts(&mut self) {
        for slot in &mut self.slots {
            if matches!(slot.state, State::Receiving(_)) {
                slot.state = State::Empty;
            }
        }
    }

    pub(crate) fn receives(&mut self, id: u64, parts: Assembly) {
        *self.slot(id) = Slot { id, state: State::Receiving(parts) };
    }

    pub(crate) fn runs(&mut self, id: u64) {
        *self.slot(id) = Slot { id, state: State::Running };
    }

    /// Stores the outcome of a write; `None` if it has none, so that it may be sent again.
    pub(crate) fn ends(&mut self, id: u64, response: Option<QueryHeader>) {
        let slot = self.slot(id);
        if slot.id == id {
            slot.state = response.map_or(State::Empty, State::Done);
        }
    }
}
