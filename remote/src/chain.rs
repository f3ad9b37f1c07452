//! Parts of a server's memory that are written one after the other, with one doorbell if they may be combined.

use fatbtree_verbs::{Failure, Operation, Remote, Verbs};

use crate::address::GlobalAddress;
use crate::checks::Check;
use crate::connection::{BreakReason, ConnectionId};
use crate::locks::Writer;
use crate::memory::{RemoteMemory, Trouble};

/// A part of a server's memory that is to be written.
#[derive(Clone, Copy, Debug)]
pub struct Part<'d> {
    /// Where.
    pub at: GlobalAddress,
    /// What.
    pub bytes: &'d [u8],
}

impl<V: Verbs> RemoteMemory<V> {
    /// Writes parts on one server, in their order, and then does the rest, with one doorbell if they may be combined. Says how many
    /// round trips that took.
    ///
    /// # Errors
    /// When nothing was posted, or the connection broke under it.
    ///
    /// # Panics
    /// With more than seven parts and operations.
    pub async fn write_chain(
        &self,
        id: ConnectionId,
        writer: &Writer,
        parts: &[Part<'_>],
        rest: &[Operation<'static>],
    ) -> Result<u32, Trouble> {
        self.count(|stats| {
            stats.written_bytes += parts.iter().map(|part| part.bytes.len() as u64).sum::<u64>()
        });
        if !self.config().locking.combine {
            return self.write_one_by_one(id, writer, parts, rest).await;
        }
        match parts.len() + rest.len() {
            0 => return Ok(0),
            1 => self.chain(id, writer, |rkey| all::<1>(rkey, parts, rest)).await.map(drop),
            2 => self.chain(id, writer, |rkey| all::<2>(rkey, parts, rest)).await.map(drop),
            3 => self.chain(id, writer, |rkey| all::<3>(rkey, parts, rest)).await.map(drop),
            4 => self.chain(id, writer, |rkey| all::<4>(rkey, parts, rest)).await.map(drop),
            5 => self.chain(id, writer, |rkey| all::<5>(rkey, parts, rest)).await.map(drop),
            6 => self.chain(id, writer, |rkey| all::<6>(rkey, parts, rest)).await.map(drop),
            7 => self.chain(id, writer, |rkey| all::<7>(rkey, parts, rest)).await.map(drop),
            _ => unreachable!("no change has more than seven parts and releases"),
        }?;
        Ok(1)
    }

    /// The same, but each waits for the one before.
    async fn write_one_by_one(
        &self,
        id: ConnectionId,
        writer: &Writer,
        parts: &[Part<'_>],
        rest: &[Operation<'static>],
    ) -> Result<u32, Trouble> {
        let mut round_trips = 0;
        for at in 0..parts.len() + rest.len() {
            let operation = |rkey| match parts.get(at) {
                Some(part) => [write(rkey, part)],
                None => [rest[at - parts.len()]],
            };
            match self.chain(id, writer, operation).await {
                Ok(_) => round_trips += 1,
                Err(Trouble::Broke(reason)) => return Err(Trouble::Broke(reason)),
                Err(trouble) if round_trips == 0 => return Err(trouble),
                // A part was written: it is as if the connection had broken behind it.
                Err(_) => return Err(Trouble::Broke(BreakReason::Failed(Failure::Flushed))),
            }
        }
        Ok(round_trips)
    }
}

fn write<'d>(rkey: u32, part: &Part<'d>) -> Operation<'d> {
    Operation::Write { to: Remote { address: part.at.raw(), rkey }, data: part.bytes }
}

fn all<'d, const N: usize>(rkey: u32, parts: &[Part<'d>], rest: &[Operation<'static>]) -> [Operation<'d>; N] {
    let writes = parts.iter().map(|part| write(rkey, part));
    let mut chain = writes.chain(rest.iter().copied());
    let mut operations = std::array::from_fn(|_| chain.next().expect("there are as many as were counted"));
    if !Check::UnlockLast.on() {
        operations.reverse();
    }
    operations
}
