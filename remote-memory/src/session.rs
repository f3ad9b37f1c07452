//! A client's session with one memory server, and everything that the client has of that server.

use std::task::Waker;

use crate::allocator::Allocator;
use crate::checks::Check;
use crate::locks::{LocalLocks, Writer};
use crate::memory::Resting;

/// Everything that a client has of one memory server. It hangs on the session's identity: with another session it is dropped whole,
/// because the server has given it to others, or its memory was filled anew, or is another process that knows nothing of it.
#[derive(Debug)]
pub(crate) struct Session {
    /// Credentials for the server's locks.
    pub(crate) writer: Writer,
    /// Rests of chunks, and places of nodes and records that were freed.
    pub(crate) allocator: Allocator,
    /// Queues for the server's locks, and locks that are still to be given back.
    pub(crate) locks: LocalLocks,
    /// Operations that wait until the server has brought what it has to its disk.
    pub(crate) syncs: Syncs,
    /// Blocks on other servers that rest until this one has synced.
    pub(crate) resting: Vec<Resting>,
}

/// Syncs of a server that operations have asked for. They are numbered.
#[derive(Debug, Default)]
pub(crate) struct Syncs {
    asked: u64,
    /// Number of the last one for which the server was asked, and of the last one that it has done.
    begun: u64,
    done: u64,
    /// Number of the last one that the server does not do.
    failed: u64,
    waiting: Vec<Waker>,
}

impl Syncs {
    /// Asks for a sync that begins from now on. Returns its number.
    pub(crate) fn ask(&mut self) -> u64 {
        // One that was asked for, and has not begun, is the same.
        self.asked = self.asked.max(self.begun + 1);
        self.asked
    }

    /// Whether a sync is done, or failed. Otherwise `waker` is woken.
    pub(crate) fn poll(&mut self, number: u64, waker: &Waker) -> Option<bool> {
        if self.done >= number || self.failed >= number {
            return Some(self.done >= number);
        }
        self.waiting.push(waker.clone());
        None
    }

    /// The server is asked now.
    pub(crate) fn begin(&mut self) {
        self.begun = self.asked;
    }

    /// The server has done what it was asked for last, or does not do it. Returns the operations that wait.
    pub(crate) fn end(&mut self, is_done: bool) -> Vec<Waker> {
        match is_done {
            true => self.done = self.begun,
            false => (self.begun, self.failed) = (self.asked, self.asked),
        }
        std::mem::take(&mut self.waiting)
    }
}

impl Session {
    /// A session that has just begun.
    pub(crate) fn new(server: u16, writer: Writer) -> Self {
        Self {
            writer,
            allocator: Allocator::new(server),
            locks: LocalLocks::default(),
            syncs: Syncs::default(),
            resting: Vec::new(),
        }
    }

    /// Takes out the blocks whose rest has ended. Where a sync failed, the next one ends the rest.
    pub(crate) fn take_rested(&mut self) -> Vec<Resting> {
        let rested = self.resting.iter().take_while(|resting| resting.sync <= self.syncs.done).count();
        self.resting.drain(..rested).collect()
    }

    /// Replaces the session with what a server has said of the present one. Returns the operations that wait for something of a session
    /// that has ended: they begin again.
    pub(crate) fn renew(&mut self, server: u16, writer: Writer) -> Vec<Waker> {
        if self.writer.owner.is(writer.owner) {
            self.writer = writer;
            return Vec::new();
        }
        let mut former = std::mem::replace(self, Self::new(server, writer));
        let mut waiting = former.allocator.take_waiting();
        waiting.extend(former.locks.take_waiting());
        waiting.append(&mut former.syncs.waiting);
        if !Check::ForgetsChunks.on() {
            self.allocator.keep_chunks(&former.allocator);
        }
        if !Check::ForgetsPlaces.on() {
            self.allocator.keep_blocks(&mut former.allocator);
        }
        waiting
    }
}
