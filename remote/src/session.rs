//! A client's session with one memory server, and everything that the client has of that server.

use std::task::Waker;

use crate::allocator::Allocator;
use crate::checks::Check;
use crate::locks::{LocalLocks, Writer};

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
}

impl Session {
    /// A session that has just begun.
    pub(crate) fn new(server: u16, writer: Writer) -> Self {
        Self { writer, allocator: Allocator::new(server), locks: LocalLocks::default() }
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
        if !Check::ForgetsChunks.on() {
            self.allocator.keep_chunks(&former.allocator);
        }
        if !Check::ForgetsPlaces.on() {
            self.allocator.keep_blocks(&mut former.allocator);
        }
        waiting
    }
}
