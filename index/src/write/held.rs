//! A node's lock while an operation has it.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use fatbtree_verbs::{Buffer, Operation, Output, Remote, Verbs};

use crate::address::GlobalAddress;
use crate::descent::Reason;
use crate::locks::{Admission, End, LocalLocks, LockId, Taken, Ticket, Unfinished, Writer};
use crate::pool::{BreakReason, ConnectionId, Pool, Trouble};

/// A part of the tree's memory that is to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'d> {
    pub(super) at: GlobalAddress,
    pub(super) bytes: &'d [u8],
}

/// A lock that this operation has, or wants. Dropped without a proper end, it leaves to the next one what is to be finished.
pub(super) struct Held<'p, V: Verbs> {
    pool: &'p Pool<V>,
    writer: Writer,
    lock: LockId,
    lane: u8,
    ticket: Ticket,
    /// What is to be finished before the lock is free: there as long as the global lock is, or may be, this client's.
    unfinished: Option<Unfinished>,
}

impl<V: Verbs> Drop for Held<'_, V> {
    fn drop(&mut self) {
        let end = self.unfinished.take().map_or(End::Released, End::Unfinished);
        self.leave(end);
    }
}

impl<'p, V: Verbs> Held<'p, V> {
    /// Waits for this operation's turn among the client's own; then takes the lock of the node and reads it, with one doorbell.
    /// Counts its round trips.
    pub(super) async fn lock_and_read(
        pool: &'p Pool<V>,
        lane: u8,
        node: GlobalAddress,
        len: u32,
        trips: &mut u32,
    ) -> Result<(Self, Buffer), Reason> {
        let writer = pool.writer(node.server())?;
        let (mut held, taken) = Self::enter(pool, writer, writer.lock_of(node), lane, trips).await?;
        let read = |rkey| Operation::Read { from: Remote { address: node.raw(), rkey }, len };
        if !taken {
            let mut believed = 0;
            held.may_be_taken();
            let chain = |rkey| [writer.take(held.lock, believed), read(rkey)];
            let [found, bytes] = pool.chain(held.connection(), chain).await?;
            *trips += 1;
            match held.judge(&found, believed)? {
                Taken::Now | Taken::Before => return Ok((held, bytes_of(bytes)?)),
                Taken::Neighbour(found) => believed = found,
                Taken::Not => {}
            }
            held.take_in_the_end(believed, trips).await?;
        }
        let [bytes] = pool.chain(held.connection(), |rkey| [read(rkey)]).await?;
        *trips += 1;
        Ok((held, bytes_of(bytes)?))
    }

    /// Waits for this operation's turn, and finishes what the one before it has left. Says whether the global lock is this client's
    /// already.
    async fn enter(
        pool: &'p Pool<V>,
        writer: Writer,
        lock: LockId,
        lane: u8,
        trips: &mut u32,
    ) -> Result<(Self, bool), Reason> {
        let ticket = pool.with_locks(|locks| locks.enter(lock));
        let mut held = Held { pool, writer, lock, lane, ticket, unfinished: None };
        let turn =
            poll_fn(|context| match pool.with_locks(|locks| locks.poll(lock, ticket, context.waker())) {
                Some(admission) => Poll::Ready(admission),
                None => Poll::Pending,
            });
        let taken = match turn.await {
            Admission::First => false,
            Admission::HandedOver => {
                held.may_be_taken();
                true
            }
            Admission::Unfinished(unfinished) => {
                held.unfinished = Some(unfinished.clone());
                held.finish(&unfinished, trips).await?
            }
        };
        Ok((held, taken))
    }

    /// Finishes what another operation of this client has left. Says whether the global lock is this client's now.
    async fn finish(&mut self, left: &Unfinished, trips: &mut u32) -> Result<bool, Reason> {
        if left.owner != self.writer.owner {
            // The session ended, and the server has freed its locks.
            self.unfinished = None;
            return Ok(false);
        }
        let id = ConnectionId { server: self.lock.server, lane: left.lane };
        let mut believed = 0;
        loop {
            let [found] = self.pool.chain(id, |_| [self.writer.take(self.lock, believed)]).await?;
            *trips += 1;
            match self.judge(&found, believed)? {
                Taken::Neighbour(found) => believed = found,
                Taken::Not => {
                    self.unfinished = None;
                    return Ok(false);
                }
                // It was released: everything before that was written.
                Taken::Now => break,
                // Nobody has seen the node meanwhile: what was to be written is written once more.
                Taken::Before => {
                    for (at, bytes) in &left.parts {
                        let part = Part { at: *at, bytes };
                        self.pool.chain(id, |rkey| [write(rkey, &part)]).await?;
                        *trips += 1;
                    }
                    break;
                }
            }
        }
        self.may_be_taken();
        Ok(true)
    }

    /// From now on the global lock may be this client's, and nothing is written.
    fn may_be_taken(&mut self) {
        let (owner, lane) = (self.writer.owner, self.lane);
        self.unfinished = Some(Unfinished { owner, lane, parts: Vec::new() });
    }

    /// Asks for the global lock until it is this client's.
    async fn take_in_the_end(&mut self, mut believed: u64, trips: &mut u32) -> Result<(), Reason> {
        /// Pauses grow up to this attempt: a lock is held for a round trip or two.
        const SLOWEST: u32 = 4;
        let began = self.pool.reactor().now();
        let mut attempt = 0;
        loop {
            let [found] =
                self.pool.chain(self.connection(), |_| [self.writer.take(self.lock, believed)]).await?;
            *trips += 1;
            match self.judge(&found, believed)? {
                Taken::Now | Taken::Before => return Ok(()),
                Taken::Neighbour(found) => believed = found,
                Taken::Not => {
                    self.unfinished = None;
                    if self.pool.reactor().now() - began > self.pool.config().limits.patience {
                        return Err(Reason::Locked);
                    }
                    self.pool.pause(attempt.min(SLOWEST)).await;
                    self.may_be_taken();
                    attempt += 1;
                }
            }
        }
    }

    /// Writes parts of the tree and gives the lock back, with one doorbell; or leaves it to the next operation of this client.
    pub(super) async fn write_back(mut self, parts: &[Part<'_>], trips: &mut u32) -> Result<(), Reason> {
        let handed_over = self.pool.with_locks(|locks| locks.may_hand_over(self.lock));
        let mut writing = Writing { held: &mut self, parts, ended: false };
        let mut breaks = 0;
        loop {
            match writing.held.post(parts, !handed_over).await {
                Ok(()) => break,
                Err(Trouble::Broke(reason)) => {
                    breaks += 1;
                    if breaks > writing.held.pool.config().limits.reconnects {
                        return Err(Reason::Unknown(reason));
                    }
                    if writing.was_carried_out(handed_over, reason).await? {
                        *trips += 1;
                        return Ok(());
                    }
                }
                Err(other) => {
                    // Nothing was posted, and nothing is to be.
                    writing.ended = breaks == 0 && matches!(other, Trouble::Refused(_));
                    return Err(other.into());
                }
            }
        }
        writing.ended = true;
        drop(writing);
        *trips += 1;
        self.unfinished = None;
        self.leave(if handed_over { End::HandedOver } else { End::Released });
        Ok(())
    }

    /// Gives the lock back, or leaves it to the next operation of this client; nothing was changed.
    pub(super) async fn let_go(mut self, trips: &mut u32) -> Result<(), Reason> {
        if self.pool.with_locks(|locks| locks.may_hand_over(self.lock)) {
            self.unfinished = None;
            self.leave(End::HandedOver);
            return Ok(());
        }
        self.write_back(&[], trips).await
    }

    async fn post(&self, parts: &[Part<'_>], release: bool) -> Result<(), Trouble> {
        let end = self.writer.give_back(self.lock);
        let (pool, id) = (self.pool, self.connection());
        match (parts, release) {
            ([], false) => Ok(()),
            ([], true) => pool.chain(id, |_| [end]).await.map(drop),
            ([a], false) => pool.chain(id, |rkey| [write(rkey, a)]).await.map(drop),
            ([a], true) => pool.chain(id, |rkey| [write(rkey, a), end]).await.map(drop),
            ([a, b], false) => pool.chain(id, |rkey| [write(rkey, a), write(rkey, b)]).await.map(drop),
            ([a, b], true) => pool.chain(id, |rkey| [write(rkey, a), write(rkey, b), end]).await.map(drop),
            ([a, b, c], false) => {
                pool.chain(id, |rkey| [write(rkey, a), write(rkey, b), write(rkey, c)]).await.map(drop)
            }
            ([a, b, c], true) => {
                let chain = |rkey| [write(rkey, a), write(rkey, b), write(rkey, c), end];
                pool.chain(id, chain).await.map(drop)
            }
            _ => unreachable!("no change has more than three parts"),
        }
    }

    fn judge(&self, found: &Output, believed: u64) -> Result<Taken, Reason> {
        match found {
            Output::Atomic(found) => Ok(self.writer.taken(self.lock, believed, *found)),
            _ => Err(Trouble::Broke(BreakReason::Failed(fatbtree_verbs::Failure::Other)).into()),
        }
    }

    fn connection(&self) -> ConnectionId {
        ConnectionId { server: self.lock.server, lane: self.lane }
    }

    fn leave(&self, end: End) {
        let next = self.pool.with_locks(|locks| locks.leave(self.lock, self.ticket, end));
        next.into_iter().for_each(Waker::wake);
    }
}

/// Parts of the tree while they are written. Dropped before the end, it notes them for whoever has the lock next.
struct Writing<'h, 'p, 'd, V: Verbs> {
    held: &'h mut Held<'p, V>,
    parts: &'d [Part<'d>],
    ended: bool,
}

impl<V: Verbs> Drop for Writing<'_, '_, '_, V> {
    fn drop(&mut self) {
        if !self.ended {
            self.held.may_be_taken();
            let parts = self.parts.iter().map(|part| (part.at, part.bytes.to_vec())).collect();
            if let Some(unfinished) = &mut self.held.unfinished {
                unfinished.parts = parts;
            }
        }
    }
}

impl<V: Verbs> Writing<'_, '_, '_, V> {
    /// The lock is not this client's any more.
    fn lost(&mut self) {
        self.ended = true;
        self.held.unfinished = None;
    }

    /// After a break: whether all of the chain was carried out. If not, the lock is this client's still, and the chain can be posted
    /// again.
    async fn was_carried_out(&mut self, handed_over: bool, reason: BreakReason) -> Result<bool, Reason> {
        let mut believed = 0;
        loop {
            let held = &mut *self.held;
            held.pool.until_up(held.connection()).await?;
            if held.pool.writer(held.lock.server)?.owner != held.writer.owner {
                // The session ended, and the server has freed its locks.
                self.lost();
                return Err(Reason::Unknown(reason));
            }
            let take = |_| [held.writer.take(held.lock, believed)];
            let found = match held.pool.chain(held.connection(), take).await {
                Ok([found]) => found,
                Err(Trouble::Broke(_)) => continue,
                Err(other) => return Err(other.into()),
            };
            match held.judge(&found, believed)? {
                Taken::Before => return Ok(false),
                Taken::Neighbour(found) => believed = found,
                Taken::Not => self.lost(),
                Taken::Now => {
                    // It was given back, and is taken once more now. Where it cannot be given back, the next one does it.
                    self.ended = true;
                    held.may_be_taken();
                    if held.post(&[], true).await.is_ok() {
                        held.unfinished = None;
                    }
                }
            }
            if self.ended {
                return if handed_over { Err(Reason::Unknown(reason)) } else { Ok(true) };
            }
        }
    }
}

fn write<'d>(rkey: u32, part: &Part<'d>) -> Operation<'d> {
    Operation::Write { to: Remote { address: part.at.raw(), rkey }, data: part.bytes }
}

fn bytes_of(output: Output) -> Result<Buffer, Reason> {
    match output {
        Output::Read(bytes) => Ok(bytes),
        _ => Err(Trouble::Broke(BreakReason::Failed(fatbtree_verbs::Failure::Other)).into()),
    }
}

impl<V: Verbs> Pool<V> {
    /// Finishes what writes have left that were dropped before their end, where nobody waits for their locks.
    pub(super) async fn finish_left(&self) {
        while let Some(lock) = self.with_locks(LocalLocks::take_left) {
            let (Ok(writer), mut trips) = (self.writer(lock.server), 0) else { continue };
            // What fails here is left once more, for the next change.
            let Ok((held, taken)) = Held::enter(self, writer, lock, 0, &mut trips).await else { return };
            if taken && held.let_go(&mut trips).await.is_err() {
                return;
            }
        }
    }
}
