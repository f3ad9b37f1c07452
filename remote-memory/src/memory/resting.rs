//! Blocks that rest until a change on another server is on its disk.
//!
//! ```text
//!   word on server 1 ──led to──► block on server 2
//!        │ changed                  │ rests in the client: no operation takes it
//!        └─── on server 1's disk ───┴──► is one of the client's free blocks
//! ```
//!
//! Of two servers that lose their power, each comes back as it was at a moment of its own. Were the block used again at once, server 1 could come
//! back with the word that leads to it, and server 2 with what it holds now.

use fatbtree_verbs::Verbs;

use super::RemoteMemory;
use crate::checks::Check;
use crate::connection::Event;
use crate::operation::Taken;

/// Number of blocks that rest for one server before it is asked to sync. A sync serves all of them.
pub const RESTING: usize = 32;

/// A block that rests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resting {
    /// Number of the sync that ends its rest, among those of the server whose word led there.
    pub(crate) sync: u64,
    taken: Taken,
}

impl<V: Verbs> RemoteMemory<V> {
    /// Puts a block back to which a word on the server `led` led until now. Where the block is on another server
    /// and `led` has a disk, it rests until the change is on that disk. What was of a session that has ended is left alone.
    pub fn put_back_after(&self, led: u16, taken: &Taken) {
        if led == taken.block.address.server() || !Check::Rests.on() {
            return self.put_back(taken);
        }
        let mut state = self.state.borrow_mut();
        // Nothing tells when the change of a session that has ended is on a disk.
        let Some(session) = state.sessions.get_mut(&led) else { return };
        if !session.writer.syncs {
            drop(state);
            return self.put_back(taken);
        }
        let sync = session.syncs.ask();
        session.resting.push(Resting { sync, taken: *taken });
        // Numbers ascend: so many rest for the same sync.
        let is_enough = session.resting.iter().nth_back(RESTING - 1).is_some_and(|rests| rests.sync == sync);
        drop(state);
        if is_enough {
            self.push_event(Event::SyncWanted { server: led });
        }
    }

    /// Asks the servers for whose disks blocks rest to sync now. Says whether there are any.
    pub fn sync_for_resting(&self) -> bool {
        let servers: Vec<u16> = {
            let state = self.state.borrow();
            let resting = state.sessions.iter().filter(|(_, session)| !session.resting.is_empty());
            resting.map(|(&server, _)| server).collect()
        };
        servers.iter().for_each(|&server| self.push_event(Event::SyncWanted { server }));
        !servers.is_empty()
    }

    /// Whether blocks rest.
    pub fn has_resting(&self) -> bool {
        self.state.borrow().sessions.values().any(|session| !session.resting.is_empty())
    }

    /// Leaves alone what rests for a server: that will not tell what is on its disk before the client ends.
    pub fn forget_resting(&self, server: u16) {
        if let Some(session) = self.state.borrow_mut().sessions.get_mut(&server) {
            session.resting.clear();
        }
    }

    /// Lets blocks be used whose rest a sync of a server has ended.
    pub(super) fn end_rest(&self, rested: &[Resting]) {
        rested.iter().for_each(|Resting { taken, .. }| self.put_back(taken));
    }
}
