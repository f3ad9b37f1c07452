//! A client that a server knows, and what became of its last writes.

use std::net::SocketAddr;
use std::time::Duration;

use fatbtree_wire::query::{Assembly, QueryHeader, WINDOW};

use crate::checks::Check;

/// One client.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) address: SocketAddr,
    /// Left edge of the window: writes with lower ids are not carried out. It never goes back.
    floor: u64,
    pub(crate) last_seen: Duration,
    /// By id, modulo their count.
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
    /// Parts of its value are missing.
    Receiving(Assembly),
    Running,
    /// Its response.
    Done(QueryHeader),
}

/// Kind of a write's packet.
#[derive(Debug)]
pub(crate) enum Seen {
    /// The first of its id, or one more part.
    New,
    /// It is at work.
    Running,
    /// It was carried out before: the response.
    Again(QueryHeader),
    /// Older than all that are remembered.
    Forgotten,
    /// In its place is one that is still at work.
    Occupied,
}

impl Known {
    pub(crate) fn new(address: SocketAddr, floor: u64, now: Duration) -> Self {
        let slots = (0..WINDOW).map(|_| Slot::default()).collect();
        Self { address, floor, last_seen: now, slots }
    }

    fn slot(&mut self, id: u64) -> &mut Slot {
        let at = (id % WINDOW) as usize;
        &mut self.slots[at]
    }

    /// Looks a write up, and moves the window on: a client has at most [`WINDOW`] requests under way, so those that are
    /// older than a window before this one have ended for the client. They are refused for good, whatever becomes of
    /// this one: its slot is where their outcomes were remembered.
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

    /// The parts of a write that has not begun; none where it is the first. Those of an older write in its place are dropped.
    pub(crate) fn take_parts(&mut self, id: u64) -> Option<Assembly> {
        let slot = self.slot(id);
        match std::mem::take(&mut slot.state) {
            State::Receiving(parts) if slot.id == id => Some(parts),
            _ => None,
        }
    }

    /// Bytes that wait in the place of this write.
    pub(crate) fn waiting(&mut self, id: u64) -> u32 {
        match &self.slot(id).state {
            State::Receiving(parts) => parts.total(),
            _ => 0,
        }
    }

    /// Bytes that wait in all places.
    pub(crate) fn all_waiting(&self) -> u64 {
        let parts = self.slots.iter().map(|slot| match &slot.state {
            State::Receiving(parts) => u64::from(parts.total()),
            _ => 0,
        });
        parts.sum()
    }

    /// Drops values of which parts are missing. They come again, whole.
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

    /// Its outcome; `None` if it has none, so that it may come again.
    pub(crate) fn ends(&mut self, id: u64, response: Option<QueryHeader>) {
        let slot = self.slot(id);
        if slot.id == id {
            slot.state = response.map_or(State::Empty, State::Done);
        }
    }
}
