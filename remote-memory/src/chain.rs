//! Parts of a server's memory that are written one after the other, with one doorbell if they may be combined.

use fatbtree_verbs::{Failure, Operation, Remote, Verbs};

use crate::address::GlobalAddress;
use crate::checks::Check;
use crate::config::Combine;
use crate::connection::BreakReason;
use crate::locks::Writer;
use crate::memory::{RemoteMemory, Trouble};
use crate::operation::Path;

/// A part of a server's memory that is to be written.
#[derive(Clone, Copy, Debug)]
pub struct Part<'d> {
    /// Where.
    pub at: GlobalAddress,
    /// The bytes to write.
    pub bytes: &'d [u8],
}

impl<V: Verbs> RemoteMemory<V> {
    /// Writes parts on one server, in their order, and then does the rest, with one doorbell if they may be combined.
    ///
    /// # Errors
    /// When nothing was posted, because they are more than [`MAX_BATCH`](fatbtree_verbs::MAX_BATCH) for example, or the connection
    /// broke under it.
    pub async fn write_chain(
        &self,
        path: Path<'_>,
        writer: &Writer,
        parts: &[Part<'_>],
        rest: &[Operation<'static>],
    ) -> Result<(), Trouble> {
        self.count(|stats| {
            stats.written_bytes += parts.iter().map(|part| part.bytes.len() as u64).sum::<u64>()
        });
        let count = parts.len() + rest.len();
        let operation = |rkey: u32, at: usize| match parts.get(at) {
            Some(part) => Operation::Write { to: Remote { address: part.at.raw(), rkey }, data: part.bytes },
            None => rest[at - parts.len()],
        };
        if self.config().locking.combine == Combine::Off {
            return self.one_by_one(path, writer, count, operation).await;
        }
        if count == 0 {
            return Ok(());
        }
        let in_order = Check::UnlockLast.on();
        let place = move |at| if in_order { at } else { count - 1 - at };
        self.batch(path, writer, |rkey| (0..count).map(move |at| operation(rkey, place(at)))).await.map(drop)
    }

    /// Posts operations one by one: each waits for the one before.
    async fn one_by_one<'d>(
        &self,
        path: Path<'_>,
        writer: &Writer,
        count: usize,
        operation: impl Fn(u32, usize) -> Operation<'d>,
    ) -> Result<(), Trouble> {
        for at in 0..count {
            match self.chain(path, writer, |rkey| [operation(rkey, at)]).await {
                Ok(_) => {}
                Err(Trouble::Broke(reason)) => return Err(Trouble::Broke(reason)),
                Err(trouble) if at == 0 => return Err(trouble),
                // A part was written: it is as if the connection had broken after it.
                Err(_) => return Err(Trouble::Broke(BreakReason::Failed(Failure::Flushed))),
            }
        }
        Ok(())
    }
}
