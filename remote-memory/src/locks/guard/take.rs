//! Taking a lock: the turn among the client's own operations, then the lock of the server.

use std::future::poll_fn;
use std::task::Poll;

use fatbtree_verbs::{Buffer, Operation, Output, Remote, Verbs};

use super::{LockError, LockGuard, Place, with_locks};
use crate::address::GlobalAddress;
use crate::checks::Check;
use crate::config::Combine;
use crate::connection::ConnectionId;
use crate::locks::{Admission, End, LockId, Taken, Unfinished, Writer};
use crate::memory::{RemoteMemory, bytes_of, word_of};
use crate::operation::{Growth, Lane};

impl<'p, V: Verbs> LockGuard<'p, V> {
    /// Waits for this operation's turn among the client's own; then takes the lock of what begins at an address and reads it, with one
    /// doorbell.
    ///
    /// # Errors
    /// When the lock stays another client's, or the connection or session ends.
    pub async fn lock_and_read(
        pool: &'p RemoteMemory<V>,
        lane: &Lane,
        at: GlobalAddress,
        len: u32,
    ) -> Result<(Self, Buffer), LockError> {
        let writer = pool.writer(at.server())?;
        let (mut guard, taken) = Self::enter(pool, writer, writer.lock_of(at), lane).await?;
        let read = |rkey| Operation::Read { from: Remote { address: at.raw(), rkey }, len };
        if !taken {
            let mut believed = 0;
            guard.may_be_taken();
            if pool.config().locking.combine == Combine::LockToo {
                let writer = guard.writer;
                let chain = |rkey| [writer.take(guard.lock, believed), read(rkey)];
                let [found, bytes] = pool.chain(guard.path(lane), &guard.writer, chain).await?;
                match guard.judge_taken(&found, believed)? {
                    Taken::Now | Taken::Before => return Ok((guard, bytes_of(bytes)?)),
                    Taken::Neighbour(found) => believed = found,
                    Taken::Not(_) => {}
                }
            }
            guard.take_in_the_end(believed, lane).await?;
        }
        let [bytes] = pool.chain(guard.path(lane), &guard.writer, |rkey| [read(rkey)]).await?;
        Ok((guard, bytes_of(bytes)?))
    }

    /// Takes the lock and reads, if no operation has or wants the lock; otherwise `None`.
    ///
    /// # Errors
    /// When the connection or session ends.
    pub async fn try_lock_and_read(
        pool: &'p RemoteMemory<V>,
        lane: &Lane,
        at: GlobalAddress,
        len: u32,
    ) -> Result<Option<(Self, Buffer)>, LockError> {
        let writer = pool.writer(at.server())?;
        let lock = writer.lock_of(at);
        let techniques = pool.config().locking;
        let place = with_locks(pool, lock, &writer, |locks| {
            if techniques.hierarchical {
                locks.try_enter(lock).map(Place::Queued)
            } else {
                locks.race(lock).then_some(Place::Racing)
            }
        })?;
        let Some(place) = place else { return Ok(None) };
        let mut guard =
            LockGuard { pool, writer, lock, lane: lane.number(), place, losses: 0, unfinished: None };
        let mut believed = 0;
        loop {
            guard.may_be_taken();
            let path = guard.path(lane);
            let read = |rkey| Operation::Read { from: Remote { address: at.raw(), rkey }, len };
            let (found, bytes) = if techniques.combine == Combine::LockToo {
                let [found, bytes] =
                    pool.chain(path, &writer, |rkey| [writer.take(lock, believed), read(rkey)]).await?;
                (found, Some(bytes))
            } else {
                let [found] = pool.chain(path, &writer, |_| [writer.take(lock, believed)]).await?;
                (found, None)
            };
            match guard.judge_taken(&found, believed)? {
                Taken::Now | Taken::Before => {
                    if let Some(bytes) = bytes {
                        return Ok(Some((guard, bytes_of(bytes)?)));
                    }
                    let [bytes] = pool.chain(path, &writer, |rkey| [read(rkey)]).await?;
                    return Ok(Some((guard, bytes_of(bytes)?)));
                }
                Taken::Neighbour(found) => believed = found,
                Taken::Not(_) => {
                    guard.unfinished = None;
                    return Ok(None);
                }
            }
        }
    }

    /// Waits for this operation's turn, and finishes what the one before it has left. Says whether the global lock is this client's
    /// already.
    pub(super) async fn enter(
        pool: &'p RemoteMemory<V>,
        writer: Writer,
        lock: LockId,
        lane: &Lane,
    ) -> Result<(Self, bool), LockError> {
        let queues = pool.config().locking.hierarchical;
        let place = with_locks(pool, lock, &writer, |locks| {
            if !queues && locks.race(lock) { Place::Racing } else { Place::Queued(locks.enter(lock)) }
        })?;
        let mut guard =
            LockGuard { pool, writer, lock, lane: lane.number(), place, losses: 0, unfinished: None };
        let taken = guard.be_admitted(lane).await?;
        Ok((guard, taken))
    }

    /// Waits for its turn, if it waits in the queue. Says whether the global lock is this client's already.
    async fn be_admitted(&mut self, lane: &Lane) -> Result<bool, LockError> {
        let lock = self.lock;
        let Place::Queued(ticket) = self.place else { return Ok(false) };
        let turn =
            poll_fn(|context| match self.with_locks(|locks| locks.poll(lock, ticket, context.waker())) {
                Ok(Some(admission)) => Poll::Ready(Ok(admission)),
                Ok(None) => Poll::Pending,
                Err(lapsed) => Poll::Ready(Err(lapsed)),
            });
        match turn.await? {
            Admission::First => Ok(false),
            Admission::HandedOver => {
                self.may_be_taken();
                Ok(true)
            }
            Admission::Unfinished(unfinished) => {
                self.unfinished = Some(unfinished);
                let mut taken = self.finish(unfinished, lane).await?;
                // What was posted on another lane may still come, and would overwrite a write before it.
                while let Some(unfinished) = self.with_locks(|locks| locks.take_more(lock))? {
                    self.unfinished = Some(unfinished);
                    taken = self.finish(unfinished, lane).await?;
                }
                Ok(taken)
            }
        }
    }

    /// Finishes what another operation of this client has left. Says whether the global lock is this client's now.
    async fn finish(&mut self, left: Unfinished, lane: &Lane) -> Result<bool, LockError> {
        let path = lane.by(ConnectionId { server: self.lock.server, lane: left.lane });
        let mut believed = 0;
        loop {
            let [found] =
                self.pool.chain(path, &self.writer, |_| [self.writer.take(self.lock, believed)]).await?;
            match self.judge(&found, believed)? {
                Taken::Neighbour(found) => believed = found,
                // Of what it wanted to write, all was written, or the first parts, or nothing: the index is right in any case.
                Taken::Now | Taken::Before => break,
                Taken::Not(_) => {
                    self.unfinished = None;
                    return Ok(false);
                }
            }
        }
        self.may_be_taken();
        Ok(true)
    }

    /// Asks for the global lock until it is this client's. From time to time it asks whether the owner is alive.
    async fn take_in_the_end(&mut self, mut believed: u64, lane: &Lane) -> Result<(), LockError> {
        let backoff = &self.pool.config().contention.backoff;
        let began = self.pool.reactor().now();
        let mut attempt = 0;
        loop {
            let [found] = self
                .pool
                .chain(self.path(lane), &self.writer, |_| [self.writer.take(self.lock, believed)])
                .await?;
            let races = self.place == Place::Racing;
            let round_ends = backoff.ends_round(attempt);
            match self.judge_taken(&found, believed)? {
                Taken::Now | Taken::Before => return Ok(()),
                // The lock was free, and a lock beside it was taken or given back meanwhile.
                Taken::Neighbour(found) => {
                    self.unfinished = None;
                    believed = found;
                }
                Taken::Not(owner) => {
                    self.unfinished = None;
                    if races && !self.with_locks(|locks| locks.may_race(self.lock))? {
                        // Another one has left something unfinished here: that is done one after the other.
                        self.leave(End::Released);
                        self.place = Place::Queued(self.with_locks(|locks| locks.enter(self.lock))?);
                        if self.be_admitted(lane).await? {
                            return Ok(());
                        }
                        (believed, attempt) = (0, 0);
                        self.may_be_taken();
                        continue;
                    }
                    let looks = round_ends && !(races && owner == self.writer.owner.number);
                    if looks && self.take_over(owner, word_of(&found)?, lane).await? {
                        return Ok(());
                    }
                }
            }
            let (waited, patience) = (self.pool.reactor().now() - began, self.pool.config().patience);
            if waited > patience {
                return Err(LockError::Locked);
            }
            // Without a queue, Sherman's clients never pause.
            if round_ends && (!races || backoff.growth != Growth::None) {
                let left = patience.saturating_sub(waited);
                self.pool.back_off(backoff, attempt, Some(left)).await;
            }
            self.may_be_taken();
            attempt += 1;
        }
    }

    /// Takes the lock of an owner that is dead. Says whether it is this client's now.
    async fn take_over(&mut self, owner: u16, believed: u64, lane: &Lane) -> Result<bool, LockError> {
        let (at, bit) = self.writer.life_of(owner);
        let read = Operation::Read { from: at, len: 8 };
        let [life] = self.pool.chain(self.path(lane), &self.writer, |_| [read]).await?;
        let life = bytes_of(life)?.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
        if life & bit != 0 && Check::OwnerLife.on() {
            return Ok(false);
        }
        self.may_be_taken();
        let take_over = self.writer.take_over(self.lock, believed, owner);
        let [found] = self.pool.chain(self.path(lane), &self.writer, |_| [take_over]).await?;
        let taken = self.writer.has_taken_over(self.lock, believed, owner, word_of(&found)?);
        if taken {
            self.pool.count(|stats| stats.inherited_locks += 1);
        } else {
            self.unfinished = None;
        }
        Ok(taken)
    }

    /// Result of an attempt to take the lock. A racing operation has not taken it if another one of this client has.
    fn judge_taken(&mut self, found: &Output, believed: u64) -> Result<Taken, LockError> {
        let taken = match self.judge(found, believed)? {
            Taken::Before if self.place == Place::Racing => Taken::Not(self.writer.owner.number),
            taken => taken,
        };
        let failed = matches!(taken, Taken::Not(_));
        self.pool.note_attempt(failed);
        if failed {
            self.pool.count(|stats| stats.lock_retries += 1);
            self.pool.count_loss(self.losses);
            self.losses = self.losses.saturating_add(1);
        }
        Ok(taken)
    }
}
