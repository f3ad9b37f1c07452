//! A node's lock while an operation has it.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use fatbtree_verbs::{Buffer, Operation, Output, Remote, Verbs};

use crate::address::GlobalAddress;
use crate::descent::Reason;
use crate::locks::{Admission, LockId, Taken, Ticket, Writer};
use crate::pool::{BreakReason, ConnectionId, Pool, Trouble};

/// A part of the tree's memory that is to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'d> {
    pub(super) at: GlobalAddress,
    pub(super) bytes: &'d [u8],
}

/// A lock that this operation has, or wants. Dropped without a proper end, it is noted as abandoned.
pub(super) struct Held<'p, V: Verbs> {
    pool: &'p Pool<V>,
    writer: Writer,
    lock: LockId,
    lane: u8,
    ticket: Ticket,
    /// The global lock is, or may be, this client's.
    taken: bool,
}

impl<V: Verbs> Drop for Held<'_, V> {
    fn drop(&mut self) {
        if self.taken {
            self.pool.abandon_lock(self.lock, self.lane);
        }
        self.leave(false);
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
        let (mut held, admission) = Self::enter(pool, writer, writer.lock_of(node), lane, false).await;
        let read = |rkey| Operation::Read { from: Remote { address: node.raw(), rkey }, len };
        if admission == Admission::First {
            let mut believed = 0;
            let chain = |rkey| [writer.take(held.lock, believed), read(rkey)];
            held.taken = true;
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

    /// Waits for this operation's turn among the client's own. `abandoned`: the global lock may be this client's already.
    async fn enter(
        pool: &'p Pool<V>,
        writer: Writer,
        lock: LockId,
        lane: u8,
        abandoned: bool,
    ) -> (Self, Admission) {
        let ticket = pool.with_locks(|locks| locks.enter(lock));
        let mut held = Held { pool, writer, lock, lane, ticket, taken: abandoned };
        let turn =
            poll_fn(|context| match pool.with_locks(|locks| locks.poll(lock, ticket, context.waker())) {
                Some(admission) => Poll::Ready(admission),
                None => Poll::Pending,
            });
        let admission = turn.await;
        held.taken |= admission == Admission::HandedOver;
        (held, admission)
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
                    self.taken = false;
                    if self.pool.reactor().now() - began > self.pool.config().limits.patience {
                        return Err(Reason::Locked);
                    }
                    self.pool.pause(attempt.min(SLOWEST)).await;
                    self.taken = true;
                    attempt += 1;
                }
            }
        }
    }

    /// Takes the global lock unless somebody else has it; says whether it is this client's now.
    async fn take_once(&self) -> Result<bool, Reason> {
        let mut believed = 0;
        loop {
            let [found] =
                self.pool.chain(self.connection(), |_| [self.writer.take(self.lock, believed)]).await?;
            match self.judge(&found, believed)? {
                Taken::Now | Taken::Before => return Ok(true),
                Taken::Not => return Ok(false),
                Taken::Neighbour(found) => believed = found,
            }
        }
    }

    /// Writes parts of the tree and gives the lock back, with one doorbell; or leaves it to the next operation of this client.
    pub(super) async fn write_back(mut self, parts: &[Part<'_>], trips: &mut u32) -> Result<(), Reason> {
        let handed_over = self.pool.with_locks(|locks| locks.may_hand_over(self.lock));
        let mut breaks = 0;
        loop {
            match self.post(parts, !handed_over).await {
                Ok(()) => break,
                Err(Trouble::Broke(reason)) => {
                    breaks += 1;
                    if breaks > self.pool.config().limits.reconnects {
                        return Err(Reason::Unknown(reason));
                    }
                    if self.was_carried_out(handed_over, reason).await? {
                        break;
                    }
                }
                Err(other) => return Err(other.into()),
            }
        }
        *trips += 1;
        self.taken = false;
        self.leave(handed_over);
        Ok(())
    }

    /// Gives the lock back, or leaves it to the next operation of this client; nothing was changed.
    pub(super) async fn let_go(self, trips: &mut u32) -> Result<(), Reason> {
        if self.pool.with_locks(|locks| locks.may_hand_over(self.lock)) {
            let mut held = self;
            held.taken = false;
            held.leave(true);
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

    /// After a break: whether all of the chain was carried out. If not, the lock is this client's still, and the chain can be posted
    /// again.
    async fn was_carried_out(&mut self, handed_over: bool, reason: BreakReason) -> Result<bool, Reason> {
        let mut believed = 0;
        loop {
            self.pool.until_up(self.connection()).await?;
            if self.pool.writer(self.lock.server)?.owner != self.writer.owner {
                // The session ended, and the server has freed its locks.
                self.taken = false;
                return Err(Reason::Unknown(reason));
            }
            let found =
                match self.pool.chain(self.connection(), |_| [self.writer.take(self.lock, believed)]).await {
                    Ok([found]) => found,
                    Err(Trouble::Broke(_)) => continue,
                    Err(other) => return Err(other.into()),
                };
            match self.judge(&found, believed)? {
                Taken::Before => return Ok(false),
                Taken::Neighbour(found) => believed = found,
                Taken::Not if handed_over => {
                    self.taken = false;
                    return Err(Reason::Unknown(reason));
                }
                Taken::Not => return Ok(true),
                Taken::Now => {
                    // It was given back, and is taken once more now.
                    let _ = self.post(&[], true).await;
                    return if handed_over { Err(Reason::Unknown(reason)) } else { Ok(true) };
                }
            }
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

    fn leave(&self, handed_over: bool) {
        let next = self.pool.with_locks(|locks| locks.leave(self.lock, self.ticket, handed_over));
        next.into_iter().for_each(Waker::wake);
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
    /// Gives back locks that writes have left which were dropped before their end.
    pub(super) async fn give_back_abandoned(&self) {
        while let Some((lock, lane)) = self.take_abandoned_lock() {
            let Ok(writer) = self.writer(lock.server) else { continue };
            let (mut held, admission) = Held::enter(self, writer, lock, lane, true).await;
            if admission == Admission::First {
                match held.take_once().await {
                    Ok(ours) => held.taken = ours,
                    // It is noted again, for the next change.
                    Err(_) => return,
                }
            }
            let mut trips = 0;
            if held.taken && held.let_go(&mut trips).await.is_err() {
                return;
            }
        }
    }
}
