//! Steps of operations: read, post chains, pause.

use std::future::poll_fn;
use std::task::Poll;

use arrayvec::ArrayVec;
use fatbtree_verbs::{
    Broken, Buffer, Error, Failure, MAX_BATCH, Operation, Output, QueuePair, Remote, Verbs,
};

use super::{RemoteMemory, Trouble};
use crate::address::GlobalAddress;
use crate::checks::Check;
use crate::connection::{BreakReason, ConnectionId, Link};
use crate::locks::Writer;
use crate::operation::{Lane, Path};

impl<V: Verbs> RemoteMemory<V> {
    /// The lane of the next operation.
    pub fn take_lane(&self) -> Lane {
        let mut state = self.state.borrow_mut();
        let lane = state.next_lane;
        state.next_lane = (lane + 1) % self.config.lanes;
        Lane::new(lane)
    }

    /// Waits until a connection is up. Says whether it is registered.
    ///
    /// # Errors
    /// When it was given up, or there is none.
    pub async fn until_up(&self, id: ConnectionId) -> Result<bool, Trouble> {
        poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            let Ok(connection) = state.connections.get_mut(id) else {
                return Poll::Ready(Err(Trouble::UnknownServer(id.server)));
            };
            match connection.link {
                Link::Up { .. } => Poll::Ready(Ok(connection.registered)),
                Link::Abandoned => Poll::Ready(Err(Trouble::Abandoned(id))),
                Link::Lost => Poll::Ready(Err(Trouble::Lost(id.server))),
                Link::Down | Link::Opening { .. } => {
                    if !connection.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                        connection.waiting.push(context.waker().clone());
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Queue pair and rkey of a connection, if it is up now.
    ///
    /// # Errors
    /// When it is not, and why.
    #[inline]
    pub fn link(&self, id: ConnectionId) -> Result<(QueuePair, u32), Trouble> {
        let mut state = self.state.borrow_mut();
        let Ok(connection) = state.connections.get_mut(id) else {
            return Err(Trouble::UnknownServer(id.server));
        };
        match connection.link {
            Link::Up { queue_pair, rkey } => Ok((queue_pair, rkey)),
            Link::Abandoned => Err(Trouble::Abandoned(id)),
            Link::Lost => Err(Trouble::Lost(id.server)),
            Link::Down | Link::Opening { .. } => Err(Trouble::Broke(connection.reason)),
        }
    }

    /// Queue pair and rkey of a connection, as soon as it is up.
    #[inline]
    pub(super) async fn link_when_up(&self, id: ConnectionId) -> Result<(QueuePair, u32), Trouble> {
        match self.link(id) {
            Err(Trouble::Broke(_)) => {
                self.until_up(id).await?;
                self.link(id)
            }
            link => link,
        }
    }

    /// Connection for a write in the session of `writer`.
    #[inline]
    pub(super) async fn link_in_session(
        &self,
        id: ConnectionId,
        writer: &Writer,
    ) -> Result<(QueuePair, u32), Trouble> {
        let link = self.link_when_up(id).await?;
        if !self.writer(id.server)?.owner.is(writer.owner) && Check::Session.on() {
            return Err(Trouble::Lapsed);
        }
        Ok(link)
    }

    /// Reads `len` bytes at an address, when the connection there is up.
    ///
    /// # Errors
    /// When it cannot be posted, or the connection breaks.
    #[inline]
    pub async fn read(&self, lane: &Lane, from: GlobalAddress, len: u32) -> Result<Buffer, Trouble> {
        let path = lane.to(from.server());
        let (queue_pair, rkey) = self.link_when_up(path.id).await?;
        let operation = Operation::Read { from: Remote { address: from.raw(), rkey }, len };
        let [bytes] = self.fetch(path, queue_pair, [operation]).await?;
        Ok(bytes)
    }

    /// Posts operations that bring bytes, with one doorbell, on a [`link`](Self::link) that is up. Nothing is promised about the order in
    /// which they are carried out.
    ///
    /// # Errors
    /// When they cannot be posted, or the connection breaks.
    #[inline]
    pub async fn fetch<const N: usize>(
        &self,
        path: Path<'_>,
        queue_pair: QueuePair,
        operations: [Operation<'_>; N],
    ) -> Result<[Buffer; N], Trouble> {
        operations.iter().for_each(|operation| self.count_read(operation));
        let outputs = self.reactor.chain(queue_pair, operations).await;
        let outputs = self.waited(path, queue_pair, outputs)?;
        // A device that answers a READ with something else than bytes is broken, and so is what it says.
        if !outputs.iter().all(|output| matches!(output, Output::Read(_))) {
            return Err(self.failed(path.id, queue_pair, Failure::Other.into()));
        }
        Ok(outputs.map(|output| bytes_of(output).expect("each was seen to be bytes")))
    }

    pub(super) fn count_read(&self, operation: &Operation<'_>) {
        let (Operation::Read { len, .. } | Operation::IndexRead { len, .. }) = *operation else { return };
        self.count(|stats| {
            stats.reads += 1;
            stats.read_bytes += u64::from(len);
        });
    }

    /// Posts operations on one server's memory and locks with one doorbell, when the connection there is up. `operations` is told
    /// the rkey of that memory.
    ///
    /// They are posted in the session of `writer` or not at all. What is written under a lock must not be written after the session
    /// has ended, when the lock is another client's; a queue pair of the next session would let it through.
    ///
    /// # Errors
    /// When nothing was posted, or the connection broke under it.
    pub async fn chain<'d, const N: usize>(
        &self,
        path: Path<'_>,
        writer: &Writer,
        operations: impl FnOnce(u32) -> [Operation<'d>; N],
    ) -> Result<[Output; N], Trouble> {
        let (queue_pair, rkey) = self.link_in_session(path.id, writer).await?;
        let done = self.reactor.chain(queue_pair, operations(rkey)).await;
        self.waited(path, queue_pair, done)
    }

    /// Posts a number of operations that is known only at run time, up to [`MAX_BATCH`].
    ///
    /// # Errors
    /// As [`chain`](Self::chain), and when there are none or too many.
    pub async fn batch<'d, O>(
        &self,
        path: Path<'_>,
        writer: &Writer,
        operations: impl FnOnce(u32) -> O,
    ) -> Result<ArrayVec<Output, MAX_BATCH>, Trouble>
    where
        O: IntoIterator<Item = Operation<'d>> + Clone + Unpin,
    {
        let (queue_pair, rkey) = self.link_in_session(path.id, writer).await?;
        let done = self.reactor.batch(queue_pair, operations(rkey)).await;
        self.waited(path, queue_pair, done)
    }

    /// Pauses before the same is read again, or tried again from the beginning, for as long as [`RemoteConfig::reads`](crate::RemoteConfig::reads) says of this
    /// `attempt`.
    pub async fn pause(&self, attempt: u32) {
        self.back_off(&self.config.reads, attempt, None).await;
    }

    /// Counts a round trip that was waited for, if it was one, and says why it failed.
    #[inline]
    pub(super) fn waited<T>(
        &self,
        path: Path<'_>,
        queue_pair: QueuePair,
        done: Result<T, Error>,
    ) -> Result<T, Trouble> {
        path.lane.count(std::slice::from_ref(&done));
        done.map_err(|error| self.failed(path.id, queue_pair, error))
    }

    /// Why an operation failed. What broke its connection is known already in most cases, and better than by an operation that was
    /// only flushed.
    #[cold]
    pub(super) fn failed(&self, id: ConnectionId, queue_pair: QueuePair, error: Error) -> Trouble {
        let failure = match error {
            Error::Post(error) if error.queue_pair_survived() => return Trouble::Refused(error),
            Error::Post(_) => Failure::Flushed,
            Error::Failed(failure) => failure,
        };
        self.broke(Broken { queue_pair, failure, index_read: false });
        let mut state = self.state.borrow_mut();
        let reason = state.connections.get_mut(id).map(|connection| connection.reason);
        Trouble::Broke(reason.unwrap_or(BreakReason::Failed(failure)))
    }
}

/// Trouble with a device that answers an operation with what no such operation has.
pub(super) const fn no_answer() -> Trouble {
    Trouble::Broke(BreakReason::Failed(Failure::Other))
}

/// The bytes that a READ has brought.
///
/// # Errors
/// When the device answers with something else.
pub fn bytes_of(output: Output) -> Result<Buffer, Trouble> {
    match output {
        Output::Read(bytes) => Ok(bytes),
        _ => Err(no_answer()),
    }
}

/// The word that an atomic has found.
///
/// # Errors
/// When the device answers with something else.
pub fn word_of(output: &Output) -> Result<u64, Trouble> {
    match output {
        Output::Atomic(found) => Ok(*found),
        _ => Err(no_answer()),
    }
}

/// A little-endian word of bytes that were read; 0 if it lies beyond their end.
///
/// ```
/// use fatbtree_remote_memory::word_at;
/// let bytes = [7, 0, 0, 0, 0, 0, 0, 0, 1];
/// assert_eq!((word_at(&bytes, 0), word_at(&bytes, 1), word_at(&bytes, 2)), (7, 1 << 56, 0));
/// ```
#[inline]
#[must_use]
pub fn word_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}
