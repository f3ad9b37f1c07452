//! Operations under way, told apart by the era in which they began.
//!
//! A memory server that looks for blocks which clients have lost must know when operations have ended that may still link or hold such a
//! block. It asks the client to *settle*:
//!
//! ```text
//!   end_era, set_aside    blocks that the client has freed are set aside, and so are all that it frees from now on
//!   has_ended             the operations of that era have ended, and no request of a dropped operation is under way
//!   take_set_aside        what was set aside is given back
//! ```
//!
//! Operations of the next era go on meanwhile. They use memory that the server gives them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use fatbtree_verbs::Verbs;

use super::RemoteMemory;
use crate::allocator::ReturnedBlocks;

/// Operations under way, by era.
#[derive(Debug, Default)]
pub(super) struct Eras {
    present: Cell<u64>,
    under_way: RefCell<BTreeMap<u64, u32>>,
}

/// An operation that may link a block or free one, from its begin to its end; see [`RemoteMemory::begin`].
#[derive(Debug)]
#[must_use = "the operation ends when this is dropped"]
pub struct Ongoing {
    eras: Rc<Eras>,
    era: u64,
}

impl Drop for Ongoing {
    fn drop(&mut self) {
        let mut under_way = self.eras.under_way.borrow_mut();
        if let Some(count) = under_way.get_mut(&self.era) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.era);
            }
        }
    }
}

/// An era that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Era(u64);

impl<V: Verbs> RemoteMemory<V> {
    /// Begins an operation of a structure whose servers look for lost blocks: every operation that may link a block or free one holds
    /// this until it ends.
    pub fn begin(&self) -> Ongoing {
        let era = self.eras.present.get();
        *self.eras.under_way.borrow_mut().entry(era).or_default() += 1;
        Ongoing { eras: Rc::clone(&self.eras), era }
    }

    /// Ends the present era.
    pub fn end_era(&self) -> Era {
        let era = self.eras.present.get();
        self.eras.present.set(era + 1);
        Era(era)
    }

    /// Sets aside all blocks of a server that the client has freed, and all that it frees from now on.
    pub fn set_aside(&self, server: u16) {
        if let Some(session) = self.state.borrow_mut().sessions.get_mut(&server) {
            session.allocator.set_aside();
        }
    }

    /// Whether all operations of an era and of those before it have ended. Requests of operations that were dropped are not counted: see
    /// [`Reactor::has_abandoned`](fatbtree_verbs::Reactor::has_abandoned).
    pub fn has_ended(&self, era: Era) -> bool {
        self.eras.under_way.borrow().first_key_value().is_none_or(|(&first, _)| first > era.0)
    }

    /// Bytes of the blocks of a server that the client has freed, or was given, and has not used again.
    pub fn kept_bytes(&self, server: u16) -> u64 {
        let state = self.state.borrow();
        state.sessions.get(&server).map_or(0, |session| session.allocator.kept_bytes())
    }

    /// All blocks of a server that were set aside. They are not the client's any more. From now on it keeps what it frees again.
    pub fn take_set_aside(&self, server: u16) -> Vec<ReturnedBlocks> {
        let mut state = self.state.borrow_mut();
        let session = state.sessions.get_mut(&server);
        session
            .map(|session| session.allocator.take_set_aside(session.writer.owner.session))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use fatbtree_verbs::plain::PlainNetwork;

    use super::*;
    use crate::config::RemoteConfig;

    #[test]
    fn an_era_ends_with_its_last_operation() {
        let memory =
            RemoteMemory::new(PlainNetwork::new().device(), [0].into_iter(), RemoteConfig::default(), 1);
        let memory = memory.expect("there are lanes");
        let [one, other] = [memory.begin(), memory.begin()];
        let first = memory.end_era();
        let later = memory.begin();
        drop(one);
        assert!(!memory.has_ended(first));
        drop(other);
        assert!(memory.has_ended(first), "operations of the next era do not count");
        let second = memory.end_era();
        assert!(memory.has_ended(first) && !memory.has_ended(second));
        drop(later);
        assert!(memory.has_ended(second));
    }
}
