//! A lock while an operation has it.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use arrayvec::ArrayVec;
use fatbtree_verbs::{Buffer, Failure, Operation, Output, Remote, Verbs};

use super::{Admission, End, Left, LocalLocks, LockId, Taken, Ticket, Unfinished, Writer};
use crate::address::GlobalAddress;
use crate::chain::Part;
use crate::checks::Check;
use crate::connection::{BreakReason, ConnectionId, Event};
use crate::memory::{RemoteMemory, Trouble};

/// Why something under a lock did not lead to its end.
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
pub struct Held<'p, V: Verbs> {
    pool: &'p RemoteMemory<V>,
    writer: Writer,
    lock: LockId,
    lane: u8,
    place: Place,
    /// What is to be finished before the lock is free: there as long as the global lock is, or may be, this client's.
    unfinished: Option<Unfinished>,
}

/// How an operation competes with others of its client for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// It waits for its turn, or has it.
    Queued(Ticket),
    /// Without a queue: whoever is the first to find the global lock free has it.
    Racing,
    /// It has ended.
    Left,
}

impl<V: Verbs> Drop for Held<'_, V> {
    fn drop(&mut self) {
        let end = self.unfinished.take().map_or(End::Released, End::Unfinished);
        self.leave(end);
    }
}

impl<'p, V: Verbs> Held<'p, V> {
    /// Waits for this operation's turn among the client's own; then takes the lock of what begins at an address and reads it, with one
    /// doorbell. Counts its round trips.
    ///
    /// # Errors
    /// When the lock stays another client's, or the connection or session ends.
    pub async fn lock_and_read(
        pool: &'p RemoteMemory<V>,
        lane: u8,
        at: GlobalAddress,
        len: u32,
        trips: &mut u32,
    ) -> Result<(Self, Buffer), LockError> {
        let writer = pool.writer(at.server())?;
        let (mut held, taken) = Self::enter(pool, writer, writer.lock_of(at), lane, trips).await?;
        let read = |rkey| Operation::Read { from: Remote { address: at.raw(), rkey }, len };
        if !taken {
            let mut believed = 0;
            held.may_be_taken();
            if pool.config().locking.combine {
                let writer = held.writer;
                let chain = |rkey| [writer.take(held.lock, believed), read(rkey)];
                let [found, bytes] = pool.chain(held.connection(), &held.writer, chain).await?;
                *trips += 1;
                match held.judge_taken(&found, believed)? {
                    Taken::Now | Taken::Before => return Ok((held, bytes_of(bytes)?)),
                    Taken::Neighbour(found) => believed = found,
                    Taken::Not(_) => {}
                }
            }
            held.take_in_the_end(believed, trips).await?;
        }
        let [bytes] = pool.chain(held.connection(), &held.writer, |rkey| [read(rkey)]).await?;
        *trips += 1;
        Ok((held, bytes_of(bytes)?))
    }

    /// The same if nobody has or wants the lock; nothing otherwise.
    ///
    /// # Errors
    /// When the connection or session ends.
    pub async fn try_lock_and_read(
        pool: &'p RemoteMemory<V>,
        lane: u8,
        at: GlobalAddress,
        len: u32,
        trips: &mut u32,
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
        let mut held = Held { pool, writer, lock, lane, place, unfinished: None };
        let mut believed = 0;
        loop {
            held.may_be_taken();
            let id = held.connection();
            let read = |rkey| Operation::Read { from: Remote { address: at.raw(), rkey }, len };
            let (found, bytes) = if techniques.combine {
                let [found, bytes] =
                    pool.chain(id, &writer, |rkey| [writer.take(lock, believed), read(rkey)]).await?;
                (found, Some(bytes))
            } else {
                let [found] = pool.chain(id, &writer, |_| [writer.take(lock, believed)]).await?;
                (found, None)
            };
            *trips += 1;
            match held.judge_taken(&found, believed)? {
                Taken::Now | Taken::Before => {
                    if let Some(bytes) = bytes {
                        return Ok(Some((held, bytes_of(bytes)?)));
                    }
                    let [bytes] = pool.chain(id, &writer, |rkey| [read(rkey)]).await?;
                    *trips += 1;
                    return Ok(Some((held, bytes_of(bytes)?)));
                }
                Taken::Neighbour(found) => believed = found,
                Taken::Not(_) => {
                    held.unfinished = None;
                    return Ok(None);
                }
            }
        }
    }

    /// Waits for this operation's turn, and finishes what the one before it has left. Says whether the global lock is this client's
    /// already.
    async fn enter(
        pool: &'p RemoteMemory<V>,
        writer: Writer,
        lock: LockId,
        lane: u8,
        trips: &mut u32,
    ) -> Result<(Self, bool), LockError> {
        let queues = pool.config().locking.hierarchical;
        let place = with_locks(pool, lock, &writer, |locks| {
            if !queues && locks.race(lock) { Place::Racing } else { Place::Queued(locks.enter(lock)) }
        })?;
        let mut held = Held { pool, writer, lock, lane, place, unfinished: None };
        let taken = held.be_admitted(trips).await?;
        Ok((held, taken))
    }

    /// Does something with the client's own queues for locks. They are of one session: when that has ended, so has every turn.
    fn with_locks<T>(&self, work: impl FnOnce(&mut LocalLocks) -> T) -> Result<T, Trouble> {
        with_locks(self.pool, self.lock, &self.writer, work)
    }

    /// Waits for its turn, if it waits in the queue. Says whether the global lock is this client's already.
    async fn be_admitted(&mut self, trips: &mut u32) -> Result<bool, LockError> {
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
                let mut taken = self.finish(unfinished, trips).await?;
                // What was posted on another lane may still come. Who writes before that is overwritten.
                while let Some(unfinished) = self.with_locks(|locks| locks.take_more(lock))? {
                    self.unfinished = Some(unfinished);
                    taken = self.finish(unfinished, trips).await?;
                }
                Ok(taken)
            }
        }
    }

    /// Finishes what another operation of this client has left. Says whether the global lock is this client's now.
    async fn finish(&mut self, left: Unfinished, trips: &mut u32) -> Result<bool, LockError> {
        let id = ConnectionId { server: self.lock.server, lane: left.lane };
        let mut believed = 0;
        loop {
            let [found] =
                self.pool.chain(id, &self.writer, |_| [self.writer.take(self.lock, believed)]).await?;
            *trips += 1;
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

    /// From now on the global lock may be this client's, and nothing is written.
    fn may_be_taken(&mut self) {
        self.unfinished = Some(Unfinished { lane: self.lane });
    }

    /// Asks for the global lock until it is this client's. From time to time it asks whether the owner is alive.
    async fn take_in_the_end(&mut self, mut believed: u64, trips: &mut u32) -> Result<(), LockError> {
        let backoff = &self.pool.config().locking.backoff;
        let began = self.pool.reactor().now();
        let mut attempt = 0;
        loop {
            let [found] = self
                .pool
                .chain(self.connection(), &self.writer, |_| [self.writer.take(self.lock, believed)])
                .await?;
            *trips += 1;
            match self.judge_taken(&found, believed)? {
                Taken::Now | Taken::Before => return Ok(()),
                Taken::Neighbour(found) => believed = found,
                Taken::Not(owner) => {
                    self.unfinished = None;
                    let races = self.place == Place::Racing;
                    if races && !self.with_locks(|locks| locks.may_race(self.lock))? {
                        // Another one has left something unfinished here: that is done one after the other.
                        self.leave(End::Released);
                        self.place = Place::Queued(self.with_locks(|locks| locks.enter(self.lock))?);
                        if self.be_admitted(trips).await? {
                            return Ok(());
                        }
                        (believed, attempt) = (0, 0);
                        self.may_be_taken();
                        continue;
                    }
                    let round_ends = backoff.ends_round(attempt);
                    let looks = round_ends && !(races && owner == self.writer.owner.number);
                    if looks && self.inherit(owner, word_of(&found)?, trips).await? {
                        return Ok(());
                    }
                    if self.pool.reactor().now() - began > self.pool.config().patience {
                        return Err(LockError::Locked);
                    }
                    if round_ends && !races {
                        self.pool.back_off(backoff, attempt).await;
                    }
                    self.may_be_taken();
                    attempt += 1;
                }
            }
        }
    }

    /// Takes the lock of an owner that is dead. Says whether it is this client's now.
    async fn inherit(&mut self, owner: u16, believed: u64, trips: &mut u32) -> Result<bool, LockError> {
        let (at, bit) = self.writer.life_of(owner);
        let read = Operation::Read { from: at, len: 8 };
        let [life] = self.pool.chain(self.connection(), &self.writer, |_| [read]).await?;
        *trips += 1;
        let life = bytes_of(life)?.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
        if life & bit != 0 && Check::OwnerLife.on() {
            return Ok(false);
        }
        self.may_be_taken();
        let inherit = self.writer.inherit(self.lock, believed, owner);
        let [found] = self.pool.chain(self.connection(), &self.writer, |_| [inherit]).await?;
        *trips += 1;
        let taken = self.writer.has_inherited(self.lock, believed, owner, word_of(&found)?);
        if taken {
            self.pool.count(|stats| stats.inherited_locks += 1);
        } else {
            self.unfinished = None;
        }
        Ok(taken)
    }

    /// What the lock was taken by, and in which session.
    pub fn writer(&self) -> Writer {
        self.writer
    }

    /// Writes parts of one thing and gives the lock back, with one doorbell; or leaves it to the next operation of this client. Where
    /// the connection breaks it finds out what became of that, and goes on.
    ///
    /// # Errors
    /// When the connection or session ends, and the parts were not written, or it is unknown whether they were.
    pub async fn write_back(mut self, parts: &[Part<'_>], trips: &mut u32) -> Result<(), LockError> {
        let handed_over = self.may_hand_over();
        let mut breaks = 0;
        let round_trips = loop {
            match self.post(parts, !handed_over).await {
                Ok(round_trips) => break round_trips,
                // If the client's number is in the lock, it may be another one's who was quicker.
                Err(Trouble::Broke(reason)) if self.place == Place::Racing => {
                    return Err(LockError::Unknown(reason));
                }
                Err(Trouble::Broke(reason)) => {
                    breaks += 1;
                    if breaks > self.pool.config().reconnects {
                        return Err(LockError::Unknown(reason));
                    }
                    if self.was_carried_out(handed_over, reason).await? {
                        *trips += 1;
                        return Ok(());
                    }
                }
                // Nothing was posted now. If anything was before, nobody can tell what became of it.
                Err(other) if breaks == 0 => return Err(other.into()),
                Err(_) => return Err(LockError::Unknown(BreakReason::Failed(Failure::Flushed))),
            }
        };
        *trips += round_trips;
        self.end(handed_over);
        Ok(())
    }

    /// Writes parts of several things, each of which leaves the index right, and gives the lock back. Where the connection breaks, the
    /// first of them are written or all.
    ///
    /// # Errors
    /// When the connection or session ends.
    pub async fn restructure(mut self, parts: &[Part<'_>], trips: &mut u32) -> Result<(), LockError> {
        let handed_over = self.may_hand_over();
        *trips += self.post(parts, !handed_over).await?;
        self.end(handed_over);
        Ok(())
    }

    /// Writes parts and keeps the lock.
    ///
    /// # Errors
    /// When the connection or session ends.
    pub async fn write(&self, parts: &[Part<'_>], trips: &mut u32) -> Result<(), LockError> {
        *trips += self.post(parts, false).await?;
        Ok(())
    }

    /// Gives the lock back, or leaves it to the next operation of this client; nothing was changed.
    ///
    /// # Errors
    /// When the connection or session ends.
    pub async fn let_go(self, trips: &mut u32) -> Result<(), LockError> {
        self.restructure(&[], trips).await
    }

    fn end(&mut self, handed_over: bool) {
        self.unfinished = None;
        self.leave(if handed_over { End::HandedOver } else { End::Released });
    }

    /// Whether the next one of this client may have the lock as it is.
    fn may_hand_over(&self) -> bool {
        let may = self.pool.config().locking.hierarchical
            && self.with_locks(|locks| locks.may_hand_over(self.lock)).is_ok_and(|may| may);
        if may {
            self.pool.count(|stats| stats.hand_overs += 1);
        }
        may
    }

    fn release(&self) -> Operation<'static> {
        if self.pool.config().locking.on_chip {
            self.writer.give_back(self.lock)
        } else {
            self.writer.write_back(self.lock)
        }
    }

    /// Writes parts, and gives the lock back if it is to be. Says how many round trips that took.
    async fn post(&self, parts: &[Part<'_>], release: bool) -> Result<u32, Trouble> {
        let unlock = [self.release()];
        self.pool
            .write_chain(self.connection(), &self.writer, parts, if release { &unlock } else { &[] })
            .await
    }

    /// After a break: whether all of the chain was carried out. If not, the lock is this client's still, and the chain can be posted
    /// again.
    async fn was_carried_out(&mut self, handed_over: bool, reason: BreakReason) -> Result<bool, LockError> {
        self.pool.until_up(self.connection()).await.map_err(|_| LockError::Unknown(reason))?;
        let mut believed = 0;
        let taken = loop {
            let take = self.writer.take(self.lock, believed);
            // Only in the session of the lock: the table of locks that another one has been given knows nothing of this chain. If the
            // answer to this is lost as well, nobody can tell any more whose release it was that is missing.
            let answer = self.pool.chain(self.connection(), &self.writer, |_| [take]).await;
            let [found] = answer.map_err(|_| LockError::Unknown(reason))?;
            match self.judge(&found, believed)? {
                Taken::Neighbour(found) => believed = found,
                taken => break taken,
            }
        };
        match taken {
            Taken::Before => return Ok(false),
            // It was given back, and is taken once more now. Where it cannot be given back, the next one does it.
            Taken::Now => {
                if self.post(&[], true).await.is_ok() {
                    self.unfinished = None;
                }
            }
            _ => self.unfinished = None,
        }
        if handed_over { Err(LockError::Unknown(reason)) } else { Ok(true) }
    }

    fn judge(&self, found: &Output, believed: u64) -> Result<Taken, LockError> {
        match found {
            Output::Atomic(found) => Ok(self.writer.taken(self.lock, believed, *found)),
            _ => Err(Trouble::Broke(BreakReason::Failed(Failure::Other)).into()),
        }
    }

    /// What an attempt to take the lock came to. Who races has not taken it if another one of this client has.
    fn judge_taken(&self, found: &Output, believed: u64) -> Result<Taken, LockError> {
        let taken = match self.judge(found, believed)? {
            Taken::Before if self.place == Place::Racing => Taken::Not(self.writer.owner.number),
            taken => taken,
        };
        if let Taken::Not(_) = taken {
            self.pool.count(|stats| stats.lock_retries += 1);
        }
        Ok(taken)
    }

    fn connection(&self) -> ConnectionId {
        ConnectionId { server: self.lock.server, lane: self.lane }
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

/// As [`Held::restructure`], under several locks of one server.
///
/// # Errors
/// When the connection or session ends.
pub async fn restructure_all<V: Verbs, const N: usize>(
    mut helds: [Held<'_, V>; N],
    parts: &[Part<'_>],
    trips: &mut u32,
) -> Result<(), LockError> {
    let Some(first) = helds.first() else { return Ok(()) };
    let (pool, id, writer) = (first.pool, first.connection(), first.writer);
    let handed_over = helds.each_ref().map(Held::may_hand_over);
    let kept = helds.iter().zip(handed_over).filter(|(_, handed_over)| !handed_over);
    let unlocks: ArrayVec<Operation<'static>, N> = kept.map(|(held, _)| held.release()).collect();
    *trips += pool.write_chain(id, &writer, parts, &unlocks).await?;
    for (held, handed_over) in helds.iter_mut().zip(handed_over) {
        held.end(handed_over);
    }
    Ok(())
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

fn bytes_of(output: Output) -> Result<Buffer, LockError> {
    match output {
        Output::Read(bytes) => Ok(bytes),
        _ => Err(Trouble::Broke(BreakReason::Failed(Failure::Other)).into()),
    }
}

fn word_of(output: &Output) -> Result<u64, LockError> {
    match output {
        Output::Atomic(found) => Ok(*found),
        _ => Err(Trouble::Broke(BreakReason::Failed(Failure::Other)).into()),
    }
}

impl<V: Verbs> RemoteMemory<V> {
    /// Gives back the locks of changes that were dropped before their end, as [`Event::Unfinished`] asks for. The next change does
    /// so, too; until then other clients wait for these locks.
    pub async fn finish(&self) {
        while let Some((lock, writer)) = self.take_left() {
            let mut trips = 0;
            // What fails here is left once more, for the next change.
            let Ok((held, taken)) = Held::enter(self, writer, lock, 0, &mut trips).await else { return };
            if taken && held.let_go(&mut trips).await.is_err() {
                return;
            }
        }
    }
}
