//! Blocks that an operation takes, and puts back if nothing leads to them.
//!
//! ```text
//!   take ──► Spare ──► written ──► linked: held, it is the structure's
//!     ▲        │ not linked, or the operation is dropped
//!     └────────┘
//! ```

use fatbtree_verbs::Verbs;

use super::{CommonError, Op, Stop};
use crate::address::GlobalAddress;
use crate::allocator::{Block, SizeClass, Want};
use crate::locks::Writer;
use crate::memory::RemoteMemory;

/// A block that the client has taken, or that its operation has unlinked.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Identity under which it was taken or unlinked: in another session it is not the client's.
    pub writer: Writer,
    /// Its class.
    pub class: SizeClass,
    /// Bytes of the block.
    pub bytes: u32,
    /// The block.
    pub block: Block,
}

/// A block that an operation has taken. Dropped, it is one of the client's free blocks again, unless it is held.
#[must_use = "dropped, it is a free block again"]
pub struct Spare<'m, V: Verbs> {
    memory: &'m RemoteMemory<V>,
    /// The block.
    pub taken: Taken,
    is_held: bool,
}

impl<V: Verbs> std::fmt::Debug for Spare<'_, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { taken, is_held, .. } = self;
        f.debug_struct("Spare").field("taken", taken).field("is_held", is_held).finish_non_exhaustive()
    }
}

impl<V: Verbs> Drop for Spare<'_, V> {
    fn drop(&mut self) {
        if !self.is_held {
            self.memory.put_back(&self.taken);
        }
    }
}

impl<V: Verbs> Spare<'_, V> {
    /// Where it lies.
    pub const fn address(&self) -> GlobalAddress {
        self.taken.block.address
    }

    /// Takes the block out of this care: it is put back by hand, or is the structure's.
    #[must_use]
    pub fn keep(mut self) -> Taken {
        self.is_held = true;
        self.taken
    }

    /// Holds the block, or lets it go: it is held as long as something may lead to it, or a WRITE of it may be under way.
    pub const fn set_held(&mut self, is_held: bool) {
        self.is_held = is_held;
    }
}

impl<V: Verbs> RemoteMemory<V> {
    /// Takes a block that the client has at hand, in the session of `writer`. `None`: see [`until_memory`](Self::until_memory).
    pub fn take_at_hand(&self, writer: &Writer, want: Want) -> Option<Spare<'_, V>> {
        let Want { server, class, bytes, .. } = want;
        let block = self.with_allocator(server, writer, |allocator| allocator.take(want))??;
        Some(Spare { memory: self, taken: Taken { writer: *writer, class, bytes, block }, is_held: false })
    }

    /// Takes a block in the present session with a server. Waits for the server if it has to give more, as long as the operation has
    /// patience.
    ///
    /// # Errors
    /// [`CommonError::NoMemory`], and when the connection is given up.
    pub async fn take<S, E: From<CommonError>>(
        &self,
        op: &Op<S>,
        want: Want,
    ) -> Result<Spare<'_, V>, Stop<E>> {
        let server = want.server;
        loop {
            // A session begins before its first connection.
            self.patiently(op, self.until_up(op.lane.to(server).id)).await.ok_or(Stop::Later)??;
            if let Some(spare) = self.take_at_hand(&self.writer(server)?, want) {
                return Ok(spare);
            }
            let has = self.patiently(op, self.until_memory(want)).await;
            has.ok_or(Stop::Later)?.map_err(|shortage| CommonError::NoMemory { server, shortage })?;
        }
    }

    /// Puts a block back that was never linked, or to which nothing leads any more. What was of a session that has ended is left alone.
    pub fn put_back(&self, taken: &Taken) {
        let Taken { writer, class, bytes, block } = taken;
        let server = block.address.server();
        let _ended =
            self.with_allocator(server, writer, |allocator| allocator.put_back(*class, *bytes, *block));
    }
}
