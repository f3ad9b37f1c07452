//! Filling a server that has lost its memory from the others.
//!
//! ```text
//!   1   lock of the server                     one client fills it
//!   2   WRITE a new era on each other server   what is logged from now on writes no data
//!   3   READ all logs of the other servers     those with items of the lost one are brought to their end
//!   4   copy each node that has items          from its primary, or from its first backup if the primary was lost
//!   5   WRITE whole                            clients begin transactions again
//! ```
//!
//! **Nothing is changed under a copy.** A transaction with an item of the lost server is of one of three kinds.
//!
//! * It begins when all servers have their items: after step 5.
//! * It has no log that the lost server acknowledged before. It never writes data, for no log of it is acknowledged there any more: its
//!   session with that server has ended.
//! * The lost server has acknowledged its log, and logs of the others may come late. If one comes before step 3 it is read there, and the
//!   fill waits until the transaction has ended. Otherwise it comes after step 2: the transaction reads the new era after it, and writes
//!   no data. It has read the old era before the server was lost, because it had its log acknowledged there afterwards.
//!
//! So items may be copied under a lock: its transaction has not begun to write, and never will. The locks themselves are not copied.
//!
//! **The latest first.** If a primary was lost, its locks are gone, and a transaction that has ended may look as if it had not: its log is still
//! open on another server, and a later one has left a mixture in an item of both. So transactions of living coordinators are waited for. Of the
//! others, one that another one has followed on an item is recovered after that one.

use std::rc::Rc;

use arrayvec::ArrayVec;
use fatbtree_remote_memory::{CommonError, GlobalAddress, HEADER_BYTES, Lane, LockError, LockGuard, word_at};
use fatbtree_verbs::{MAX_BATCH, Verbs};

use super::Tables;
use super::coordinator::Identity;
use super::plan::{Plan, batch};
use super::recover::{Job, participants, positions};
use super::whole::is_to_be_filled;
use crate::checks::Check;
use crate::error::DtxError;
use crate::item::BODY;
use crate::layout::{NODE_HEAD, Place, TableShape, WHOLE};
use crate::seat::{Log, Roster};

/// Nodes of which heads are read in one round trip.
const COPIES: u32 = 4 * MAX_BATCH as u32;

/// A log that is open on a server.
struct Open {
    roster: Roster,
    log: Log,
}

impl Open {
    /// Whether another transaction has changed an item after this one.
    fn is_followed_by(&self, other: &Self) -> bool {
        let is_earlier = |entry: &_| {
            let before: &crate::seat::Before = entry;
            other.log.entries.iter().any(|of| of.place == before.place && of.version > before.version)
        };
        self.log.entries.iter().any(is_earlier)
    }
}

impl<V: Verbs> Tables<V> {
    /// Fills a server, unless another client does. Afterwards it is to be asked again whether it is whole.
    pub(super) async fn fill(&self, identity: &Rc<Identity>, position: usize) -> Result<(), DtxError> {
        let lane = self.memory.take_lane();
        let at = self.state_at(position);
        // Waits for the client that fills it, and takes over if that dies.
        let taken = LockGuard::lock_and_read(&self.memory, &lane, at, HEADER_BYTES as u32).await;
        let (guard, line) = match taken {
            Ok(taken) => taken,
            Err(LockError::Locked) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let session = guard.writer().owner;
        // The lock is of the present session, and the identity may be older.
        let is_present = session == identity.writer(at.server()).owner;
        if is_to_be_filled(word_at(&line, 0)) && is_present {
            let mut plan = self.take_plan();
            let whole = self.whole_servers(identity, &lane, &mut plan).await?;
            if Check::ResolvedFirst.on() {
                plan.clear();
                for other in positions(whole) {
                    // The name of a session is new. A second fill in the same one needs no other: see the third kind.
                    let era = session.session.0;
                    plan.write(self.era_at(other), |data| data.extend_from_slice(&era.to_le_bytes()));
                }
                self.carry_out(identity, &lane, &mut plan).await?;
                self.resolve_all(identity, position, whole, &lane, &mut plan).await?;
            }
            self.copy_all(identity, position, whole, &lane, &mut plan).await?;
            plan.clear();
            // One chain: the server is not whole before its load has its name.
            plan.write(self.load_at(position), |data| data.extend_from_slice(&identity.load().to_le_bytes()));
            plan.write(at, |data| data.extend_from_slice(&WHOLE.to_le_bytes()));
            self.carry_out(identity, &lane, &mut plan).await?;
            self.keep_plan(plan);
        }
        Ok(guard.release(&lane).await?)
    }

    /// Brings all transactions to their end that have logged something for a server.
    async fn resolve_all(
        &self,
        identity: &Rc<Identity>,
        lost: usize,
        whole: u32,
        lane: &Lane,
        plan: &mut Plan,
    ) -> Result<(), DtxError> {
        let (mut began, mut count) = (self.memory.reactor().now(), usize::MAX);
        for attempt in 0.. {
            let open = self.open_logs(identity, lost, whole, lane, plan).await?;
            if open.is_empty() {
                return Ok(());
            }
            if open.len() < count {
                (began, count) = (self.memory.reactor().now(), open.len());
            }
            let mut alive = false;
            for Open { roster, log } in &open {
                let servers = participants(&self.shape, log) & whole;
                alive |= self.is_alive_at_any(roster, servers, lane).await?;
            }
            // Those of living coordinators end by themselves.
            let last = |of: &&Open| !open.iter().any(|other| of.is_followed_by(other));
            if let Some(last) = open.iter().find(last).filter(|_| !alive) {
                self.recover(Job::for_fill(last.roster.clone(), lane.apart())).await?;
            } else if self.memory.reactor().now() - began > self.memory.config().patience {
                return Err(CommonError::GaveUp { attempts: attempt }.into());
            } else {
                self.memory.pause(attempt).await;
            }
        }
        Ok(())
    }

    /// Logs that have something for a server, on all others.
    async fn open_logs(
        &self,
        identity: &Identity,
        lost: usize,
        whole: u32,
        lane: &Lane,
        plan: &mut Plan,
    ) -> Result<Vec<Open>, DtxError> {
        let concerns =
            |log: &Log| log.entries.iter().any(|entry| self.shape.rank_on(entry.place, lost).is_some());
        let mut all: Vec<Open> = Vec::new();
        let count = if Check::EachLog.on() { usize::MAX } else { 1 };
        for position in positions(whole).take(count) {
            for first in (0..self.shape.seats).step_by(MAX_BATCH) {
                let seats = first..self.shape.seats.min(first + MAX_BATCH as u16);
                plan.clear();
                for seat in seats.clone() {
                    plan.read(self.seat_at(position, seat).behind(self.shape.seat_layout().log()), 8);
                }
                self.carry_out(identity, lane, plan).await?;
                let is_open = |step: usize| plan.bytes(step).iter().any(|&byte| byte != 0);
                let open: Vec<u16> =
                    seats.zip(0..).filter(|(_, step)| is_open(*step)).map(|(seat, _)| seat).collect();
                for number in open {
                    let seat = self.read_seat(identity, position, number, lane, plan).await?;
                    let (Some((_, roster)), Some(log)) = (seat.roster, seat.log) else { continue };
                    if concerns(&log) && !all.iter().any(|of| of.roster == roster) {
                        all.push(Open { roster, log });
                    }
                }
            }
        }
        Ok(all)
    }

    /// Copies all nodes of which a server has a replica.
    async fn copy_all(
        &self,
        identity: &Rc<Identity>,
        lost: usize,
        whole: u32,
        lane: &Lane,
        plan: &mut Plan,
    ) -> Result<(), DtxError> {
        for (table, shape) in (0..).zip(self.shape.tables()) {
            for first in (0..shape.nodes).step_by(COPIES as usize) {
                let mut copies: ArrayVec<(GlobalAddress, GlobalAddress), { COPIES as usize }> =
                    ArrayVec::new();
                for node in first..shape.nodes.min(first.saturating_add(COPIES)) {
                    let place = Place { table, node, slot: None };
                    let Some(rank) = self.shape.rank_on(place, lost) else { continue };
                    let is_source = |&of: &usize| whole >> self.shape.replica(place, of) & 1 == 1;
                    let source = (0..self.shape.replicas()).find(is_source);
                    let source = source.ok_or(DtxError::Lost(self.shape.server(lost)))?;
                    copies.push((self.shape.address(place, source), self.shape.address(place, rank)));
                }
                self.copy(identity, *shape, &copies, lane, plan).await?;
            }
        }
        Ok(())
    }

    /// Copies nodes without their locks. The memory of the server that is filled is empty, and nodes that never had a key are, too.
    async fn copy(
        &self,
        identity: &Identity,
        table: TableShape,
        copies: &[(GlobalAddress, GlobalAddress)],
        lane: &Lane,
        plan: &mut Plan,
    ) -> Result<(), DtxError> {
        plan.clear();
        for (from, _) in copies {
            plan.read(*from, 16);
        }
        self.carry_out(identity, lane, plan).await?;
        let is_used = |step: &usize| word_at(plan.bytes(*step), 8) != 0;
        let used: ArrayVec<usize, { COPIES as usize }> = (0..copies.len()).filter(is_used).collect();
        for some in used.chunks(batch(table.node_bytes())) {
            plan.clear();
            for &number in some {
                plan.read(copies[number].0, table.node_bytes());
            }
            self.carry_out(identity, lane, plan).await?;
            let mut nodes: Vec<Vec<u8>> = (0..some.len()).map(|step| plan.bytes(step).to_vec()).collect();
            plan.clear();
            for (bytes, &number) in nodes.iter_mut().zip(some) {
                let items = (0..usize::from(table.slots))
                    .map(|slot| NODE_HEAD as usize + slot * table.item_bytes() as usize);
                for at in std::iter::once(0).chain(items) {
                    bytes[at..at + BODY].fill(0);
                }
                plan.write(copies[number].1, |data| data.extend_from_slice(bytes));
            }
            self.carry_out(identity, lane, plan).await?;
        }
        Ok(())
    }
}
