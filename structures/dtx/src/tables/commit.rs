//! Commit and abort.
//!
//! ```text
//!   1   log and validation   [WRITE log, READ era] on each server with a replica; [READ lock, version] of items that do not change
//!   2   data                 [WRITE item] on each replica
//!   3   release              [WRITE lock 0] on each primary; [WRITE log closed] on each server
//! ```
//!
//! **Committed** is a transaction whose data lies on all replicas. The log holds what the items were before. An undo log can be written
//! while the items that were read are validated, because nothing follows from it alone: an open log with untouched items is undone by
//! closing it. A redo log would have to wait for the validation, or be taken back: a round trip more.
//!
//! **One moment.** All items were as they were read when the first round trip began. Items that change: their locks were taken before they
//! were read, and each of their servers has acknowledged the log in the session that took the lock. Other clients break a lock only after
//! this session has ended, and then only if they find no log. Items that do not change, locked or not: version and lock are read once more.
//! A lock is this transaction's still, or there was none and there is none. Afterwards such an item may change: then the other transaction
//! comes after this one.
//!
//! **Eras.** A server that has lost its memory is filled from others. It may have acknowledged a log before, and then the log of another
//! server comes late. The client that fills it first begins a new era on all other servers, and then reads their logs. A transaction reads the era
//! after its log on the same connection. So either its log is seen, or it sees the new era and writes no data. [`fill`](super::fill) has the
//! other half.

use std::ops::Range;
use std::rc::Rc;

use arrayvec::ArrayVec;
use fatbtree_remote_memory::{GlobalAddress, word_at};
use fatbtree_verbs::Verbs;

use super::coordinator::Coordinator;
use super::recover::{Outcome, positions};
use super::transaction::{Change, LockState, Stage, Transaction};
use crate::checks::Check;
use crate::error::DtxError;
use crate::item::{BODY, Presence, next_version, write_body};
use crate::layout::{MAX_SERVERS, Place};
use crate::seat::{Before, Log, write_entry, write_log_head};

/// What an item that does not change is expected to be.
struct Expected {
    at: GlobalAddress,
    /// Step of the plan that reads it once more.
    read: usize,
    lock: u64,
    version: u64,
}

/// An item that the transaction changes, and what it becomes.
struct Write {
    before: Before,
    /// Its value before, and afterwards: ranges of the transaction's values.
    old: Range<usize>,
    new: Range<usize>,
    key: u64,
    presence: Presence,
}

impl<V: Verbs> Transaction<'_, V> {
    /// Commits.
    pub(super) async fn finish(&mut self) -> Result<(), DtxError> {
        let writes = self.writes();
        let most = self.tables.shape().writes;
        let too_many = (writes.len() > usize::from(most)).then_some(DtxError::TooMany(most));
        if let Some(error) = self.refusal().or(too_many) {
            self.give_up().await;
            return Err(error);
        }
        if writes.is_empty() {
            return self.end_unchanged().await;
        }
        match self.prepare(&writes).await {
            Ok(None) => {}
            Ok(Some(refusal)) => {
                self.stage = Stage::Decided(Outcome::Undone);
                self.release().await;
                return Err(refusal);
            }
            Err(_) => return self.find_out().await,
        }
        if self.write_data(&writes).await.is_err() {
            return self.find_out().await;
        }
        // It is committed. What the release leaves undone is done by this client's next transaction, or by others when it is dead.
        self.stage = Stage::Decided(Outcome::Committed);
        self.release().await;
        Ok(())
    }

    /// Reason for which it cannot be committed, as far as it is known before anything is posted.
    fn refusal(&mut self) -> Option<DtxError> {
        self.doom.take().or(self.stale.take())
    }

    /// Ends without a change, when all items were as they were read at one moment.
    pub(super) async fn end_unchanged(&mut self) -> Result<(), DtxError> {
        let valid = match self.refusal() {
            Some(refusal) => Err(refusal),
            None => self.validate_alone().await,
        };
        self.give_up().await;
        valid
    }

    /// Changes, each place once.
    fn writes(&self) -> Vec<Write> {
        let mut writes: Vec<Write> = Vec::new();
        for entry in &self.entries {
            let (new, presence) = match &entry.change {
                Change::None => continue,
                Change::Put(new) => (new.clone(), Presence::Present),
                Change::Remove => (entry.value.clone(), Presence::Deleted),
            };
            let before = Before {
                place: entry.place,
                version: entry.version,
                key: entry.key,
                presence: entry.presence,
            };
            writes.retain(|other| other.before.place != entry.place);
            writes.push(Write { before, old: entry.value.clone(), new, key: entry.want.key, presence });
            // A key that gets its first slot changes the node's head, so that others notice that it is not absent any more.
            let node = Place { slot: None, ..entry.place };
            if let Some(version) = entry.head
                && !writes.iter().any(|other| other.before.place == node)
            {
                let presence = if version == 0 { Presence::Free } else { Presence::Present };
                let before = Before { place: node, version, key: 0, presence };
                writes.push(Write { before, old: 0..0, new: 0..0, key: 0, presence: Presence::Present });
            }
        }
        writes
    }

    /// Adds READs of lock and version of the items that do not change.
    fn plan_validation(&mut self) -> Vec<Expected> {
        let shape = *self.tables.shape();
        let mut reads = Vec::new();
        for entry in &self.entries {
            let (place, version) = entry.read();
            let (is_held, is_absent) = (self.is_held(place), place.slot.is_none());
            let is_asked = if is_held { Check::LockedValidation } else { Check::Validation };
            if entry.change != Change::None || !is_asked.on() || is_absent && !Check::Absence.on() {
                continue;
            }
            let at = shape.address(place, 0);
            let lock = if is_held { self.word_on(at.server()) } else { 0 };
            reads.push(Expected { at, read: self.plan.read(at, 16), lock, version });
        }
        reads
    }

    /// The first item that is not as it was read, or is locked by another transaction.
    fn changed(&self, all: &[Expected]) -> Option<DtxError> {
        let is_as_read = |expected: &&Expected| {
            let bytes = self.plan.bytes(expected.read);
            let has_lock = word_at(bytes, 0) == expected.lock || !Check::LockedReads.on();
            bytes.len() == 16 && has_lock && word_at(bytes, 8) == expected.version
        };
        let changed = all.iter().find(|expected| !is_as_read(expected))?;
        let found = word_at(self.plan.bytes(changed.read), 0);
        Some(DtxError::Conflict { at: changed.at, lock: if found == changed.lock { 0 } else { found } })
    }

    /// Validates a transaction that changes nothing: a round trip. A single item needs none: it was read whole, and unlocked.
    async fn validate_alone(&mut self) -> Result<(), DtxError> {
        if self.entries.len() < 2 {
            return Ok(());
        }
        self.plan.clear();
        let reads = self.plan_validation();
        if reads.is_empty() {
            return Ok(());
        }
        self.carry_out().await?;
        self.changed(&reads).map_or(Ok(()), Err)
    }

    async fn carry_out(&mut self) -> Result<(), DtxError> {
        let Some(coordinator) = &self.coordinator else { return Err(DtxError::Broke) };
        let identity = Rc::clone(&coordinator.identity);
        Ok(self.tables.carry_out(&identity, &self.lane, &mut self.plan).await?)
    }

    /// Positions of the servers with replicas of what is written.
    fn servers_of(&self, writes: &[Write]) -> u32 {
        let shape = self.tables.shape();
        writes.iter().fold(0, |all, write| {
            (0..shape.replicas()).fold(all, |all, rank| all | 1 << shape.replica(write.before.place, rank))
        })
    }

    /// The undo log, for what has become of it to be found out.
    pub(super) fn log(&self, coordinator: &Coordinator) -> Log {
        let mut log = Log { sequence: coordinator.sequence, entries: ArrayVec::new(), bodies: Vec::new() };
        for Write { before, old, .. } in self.writes() {
            let value = self.old_value(&before, &old);
            write_body(&mut log.bodies, before.version, before.key, before.presence, value);
            log.entries.push(before);
        }
        log
    }

    fn old_value(&self, before: &Before, old: &Range<usize>) -> &[u8] {
        let value = &self.values[old.clone()];
        &value[..self.tables.shape().value_bytes_at(before.place).min(value.len())]
    }

    /// First round trip: the log, and the validation. `Some`: the transaction must not go on, and writes no data.
    async fn prepare(&mut self, writes: &[Write]) -> Result<Option<DtxError>, DtxError> {
        let shape = *self.tables.shape();
        let sequence = self.tables.next_sequence();
        let Some(coordinator) = &mut self.coordinator else { return Err(DtxError::Broke) };
        coordinator.sequence = sequence;
        let mut entries = Vec::new();
        for Write { before, old, .. } in writes {
            write_entry(&mut entries, before, self.old_value(before, old));
        }
        if !Check::UndoLog.on() {
            entries.clear();
        }
        self.plan.clear();
        self.stage = Stage::Logged;
        if !Check::LogFirst.on() {
            self.plan_data(writes);
        }
        self.participants = self.servers_of(writes);
        let Some(coordinator) = &self.coordinator else { return Err(DtxError::Broke) };
        let identity = Rc::clone(&coordinator.identity);
        let mut eras = ArrayVec::<(usize, usize), MAX_SERVERS>::new();
        for position in positions(self.participants) {
            let seat = self.tables.seat_at(position, coordinator.roster[position].seat);
            self.plan.write(seat.behind(shape.seat_layout().log()), |data| {
                write_log_head(data, coordinator.sequence, coordinator.word(position), &entries);
                data.extend_from_slice(&entries);
            });
            eras.push((position, self.plan.read(self.tables.era_at(position), 8)));
        }
        let reads = self.plan_validation();
        self.carry_out().await?;
        let has_ended = |&(position, read): &(usize, usize)| {
            self.plan.bytes(read) != identity.era(position).to_le_bytes() && Check::Eras.on()
        };
        if eras.iter().any(has_ended) {
            self.tables.renounce(&identity);
            return Ok(Some(DtxError::Broke));
        }
        Ok(self.changed(&reads))
    }

    fn plan_data(&mut self, writes: &[Write]) {
        let shape = *self.tables.shape();
        let transaction = self.coordinator.as_ref().map_or(0, Coordinator::transaction);
        for Write { before, new, key, presence, .. } in writes {
            let value = &self.values[new.clone()];
            let value = &value[..shape.value_bytes_at(before.place).min(value.len())];
            let version = next_version(before.version, transaction);
            for rank in 0..shape.replicas() {
                let at = shape.address(before.place, rank).behind(BODY as u64);
                self.plan.write(at, |data| write_body(data, version, *key, *presence, value));
            }
        }
    }

    /// Second round trip: the data of all replicas.
    async fn write_data(&mut self, writes: &[Write]) -> Result<(), DtxError> {
        self.plan.clear();
        if !Check::ReleaseLast.on() {
            self.plan_release();
        }
        if Check::LogFirst.on() {
            self.plan_data(writes);
        }
        if self.plan.is_empty() {
            return Ok(());
        }
        self.carry_out().await
    }

    fn plan_release(&mut self) {
        let shape = *self.tables.shape();
        for lock in &self.locks {
            let is_held = match lock.state {
                LockState::Held => true,
                LockState::Asked => false,
                LockState::Refused => !Check::OwnLocks.on(),
            };
            if is_held {
                self.plan.write(lock.at, |data| data.extend_from_slice(&[0; 8]));
            }
        }
        if let Some(coordinator) = &self.coordinator {
            for position in positions(self.participants) {
                let seat = self.tables.seat_at(position, coordinator.roster[position].seat);
                let log = seat.behind(shape.seat_layout().log());
                self.plan.write(log, |data| data.extend_from_slice(&[0; 8]));
            }
        }
    }

    /// Releases the locks and closes the log: a round trip, if there is anything.
    async fn release(&mut self) {
        let is_unsure = self.locks.iter().any(|lock| lock.state == LockState::Asked);
        self.plan.clear();
        self.plan_release();
        let is_done = self.plan.is_empty() || self.carry_out().await.is_ok();
        if is_done && !is_unsure {
            self.stage = Stage::Ended;
        }
        self.leave();
    }

    /// Aborts, unless it has ended.
    pub(super) async fn give_up(&mut self) {
        if self.coordinator.is_some() {
            self.release().await;
        }
    }

    /// Finds out what became of a commit whose connection broke, and brings it to its end.
    async fn find_out(&mut self) -> Result<(), DtxError> {
        let Some(coordinator) = self.coordinator.take() else { return Err(DtxError::Unknown) };
        let left = match self.unsettled(coordinator) {
            Ok(idle) => {
                self.tables.put_back(idle);
                return Err(DtxError::Broke);
            }
            Err(left) => left,
        };
        match self.tables.settle(left).await {
            Ok(Outcome::Committed) => Ok(()),
            Ok(Outcome::Undone) => Err(DtxError::Broke),
            Ok(Outcome::Gone) | Err(_) => Err(DtxError::Unknown),
        }
    }
}
