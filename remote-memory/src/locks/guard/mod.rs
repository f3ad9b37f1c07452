//! A lock while an operation has it.

mod give_back;
mod take;

use std::task::Waker;

use fatbtree_verbs::{Output, Verbs};

use super::{End, Left, LocalLocks, LockId, Taken, Ticket, Unfinished, Writer};
use crate::connection::{BreakReason, ConnectionId, Event};
use crate::memory::{RemoteMemory, Trouble, word_of};
use crate::operation::{Lane, Path};

pub use give_back::restructure_all;

/// Errors from something under a lock that did not lead to its end.
#[derive(Debug)]
pub enum LockError {
    /// Something is the matter with the connection or the session.
    Trouble(Trouble),
    /// Another client holds the lock for longer than an operation waits.
    Locked,
    /// The connection broke while the operation wrote, and what became of that cannot be found out any more.
    Unknown(BreakReason),
}

impl From<Trouble> for LockError {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

/// A lock that an operation has, or wants. Dropped without a proper end, it leaves to the next one what is to be finished.
pub struct LockGuard<'p, V: Verbs> {
    pool: &'p RemoteMemory<V>,
    writer: Writer,
    lock: LockId,
    lane: u8,
    place: Place,
    /// Attempts that found the lock taken.
    losses: u32,
    /// Work that remains before the lock is free: there as long as the global lock is, or may be, this client's.
    unfinished: Option<Unfinished>,
}

/// Place of an operation among others of its client that want a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// The operation waits for its turn, or has it.
    Queued(Ticket),
    /// Without a queue: the first operation to find the global lock free has it.
    Racing,
    /// The operation has ended.
    Left,
}

impl<V: Verbs> Drop for LockGuard<'_, V> {
    fn drop(&mut self) {
        let end = self.unfinished.take().map_or(End::Released, End::Unfinished);
        self.leave(end);
    }
}

impl<V: Verbs> LockGuard<'_, V> {
    /// Does something with the client's own queues for locks. They are of one session: when that has ended, so has every turn.
    fn with_locks<T>(&self, work: impl FnOnce(&mut LocalLocks) -> T) -> Result<T, Trouble> {
        with_locks(self.pool, self.lock, &self.writer, work)
    }

    /// Notes that the global lock may be this client's from now on, and nothing is written.
    fn may_be_taken(&mut self) {
        self.unfinished = Some(Unfinished { lane: self.lane });
    }

    /// The owner that took the lock, and its session.
    pub fn writer(&self) -> Writer {
        self.writer
    }

    fn judge(&self, found: &Output, believed: u64) -> Result<Taken, LockError> {
        Ok(self.writer.taken(self.lock, believed, word_of(found)?))
    }

    /// The way to the lock's server by the connection on which the lock is taken.
    fn path<'l>(&self, lane: &'l Lane) -> Path<'l> {
        lane.by(ConnectionId { server: self.lock.server, lane: self.lane })
    }

    fn leave(&mut self, end: End) {
        let place = std::mem::replace(&mut self.place, Place::Left);
        let left = self.with_locks(|locks| match (place, end) {
            (Place::Queued(ticket), end) => locks.leave(self.lock, ticket, end),
            (Place::Racing, End::Unfinished(unfinished)) => locks.end_race(self.lock, Some(unfinished)),
            (Place::Racing, _) => locks.end_race(self.lock, None),
            (Place::Left, _) => Left::Nobody,
        });
        // A session that has ended has no locks: its queues are gone.
        match left.unwrap_or(Left::Nobody) {
            Left::Next(waker) => waker.into_iter().for_each(Waker::wake),
            Left::Nobody => {}
            Left::Unfinished => self.pool.push_event(Event::Unfinished { server: self.lock.server }),
        }
    }
}

/// Does something with the client's own queues for the locks of a server, in the session of `writer`.
fn with_locks<V: Verbs, T>(
    pool: &RemoteMemory<V>,
    lock: LockId,
    writer: &Writer,
    work: impl FnOnce(&mut LocalLocks) -> T,
) -> Result<T, Trouble> {
    pool.in_session(lock.server, writer, |session| work(&mut session.locks)).ok_or(Trouble::Lapsed)
}

impl<V: Verbs> RemoteMemory<V> {
    /// Gives back the locks of changes that were dropped before their end, as [`Event::Unfinished`] asks for. The next change does
    /// so, too; until then other clients wait for these locks.
    pub async fn finish(&self) {
        while let Some((lock, writer)) = self.take_left() {
            let lane = Lane::new(0);
            // What fails here is left once more, for the next change.
            let Ok((guard, taken)) = LockGuard::enter(self, writer, lock, &lane).await else { return };
            if taken && guard.release(&lane).await.is_err() {
                return;
            }
        }
    }
}
