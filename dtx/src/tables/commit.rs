//! Commit and abort.
//!
//! ```text
//!   1   log and validation   [WRITE log] on each server with a replica; [READ lock, version] of items that were only read
//!   2   data                 [WRITE item] on each replica
//!   3   release              [WRITE lock 0] on each primary; [WRITE log closed] on each server
//! ```
//!
//! **Committed** is a transaction whose data lies on all replicas. The log holds what the items were before. An undo log can be written
//! while the items that were read are validated, because nothing follows from it alone: an open log with untouched items is undone by
//! closing it. A redo log would have to wait for the validation, or be taken back: a round trip more.

use fatbtree_verbs::Verbs;

use super::coordinator::Coordinator;
use super::recover::Outcome;
use super::transaction::{Change, LockState, Stage, Transaction};
use crate::checks::Check;
use crate::error::DtxError;
use crate::item::{BODY, Presence, next_version, write_body};
use crate::layout::Place;
use crate::seat::{Before, write_entry, write_log_head};

/// An item that the transaction changes, and what it becomes.
struct Write {
    before: Before,
    /// Its value before, and afterwards: ranges of the transaction's values.
    old: std::ops::Range<usize>,
    new: std::ops::Range<usize>,
    key: u64,
    presence: Presence,
}

impl<V: Verbs> Transaction<'_, V> {
    /// Commits.
    pub(super) async fn finish(&mut self) -> Result<(), DtxError> {
        let writes = self.writes();
        let most = self.tables.shape().writes;
        if writes.len() > usize::from(most) {
            self.give_up().await;
            return Err(DtxError::TooMany(most));
        }
        if writes.is_empty() {
            let valid = self.validate_alone().await;
            self.give_up().await;
            return valid;
        }
        match self.prepare(&writes).await {
            Ok(true) => {}
            Ok(false) => {
                let conflict = self.conflict();
                self.give_up().await;
                return Err(conflict);
            }
            Err(_) => return self.find_out().await,
        }
        if self.write_data(&writes).await.is_err() {
            return self.find_out().await;
        }
        // It is committed. What the release leaves undone is done by this client's next transaction, or by others when it is dead.
        self.release().await;
        Ok(())
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

    /// Adds READs of lock and version of the items that were only read. Returns the step of the first one.
    fn plan_validation(&mut self) -> Vec<(usize, usize)> {
        let shape = *self.tables.shape();
        let mut reads = Vec::new();
        for number in 0..self.entries.len() {
            let entry = &self.entries[number];
            let is_locked = self.is_held(entry.place);
            let is_absent = entry.place.slot.is_none();
            if is_locked || !Check::Validation.on() || is_absent && !Check::Absence.on() {
                continue;
            }
            reads.push((number, self.plan.read(shape.address(entry.place, 0), 16)));
        }
        reads
    }

    /// Whether all items are as they were read, and no other transaction has locked one.
    fn is_valid(&self, reads: &[(usize, usize)]) -> bool {
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
        reads.iter().all(|&(number, read)| {
            let (entry, bytes) = (&self.entries[number], self.plan.bytes(read));
            let is_free = word(bytes) == 0 || !Check::LockedReads.on();
            is_free && bytes.get(8..).is_some_and(|version| word(version) == entry.version)
        })
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
        if self.is_valid(&reads) { Ok(()) } else { Err(self.conflict()) }
    }

    fn conflict(&self) -> DtxError {
        let read = self.entries.iter().find(|entry| !entry.want.writes).or(self.entries.first());
        let at = read.map_or(fatbtree_remote::GlobalAddress::NULL, |entry| {
            self.tables.shape().address(entry.place, 0)
        });
        DtxError::Conflict { at, lock: 0 }
    }

    async fn carry_out(&mut self) -> Result<(), DtxError> {
        let Some(coordinator) = &self.coordinator else { return Err(DtxError::Broke) };
        let (identity, lane) = (coordinator.identity.clone(), coordinator.lane);
        Ok(self.tables.carry_out(&identity, lane, &mut self.plan, &mut self.trips).await?)
    }

    /// Positions of the servers with replicas of what is written.
    fn servers_of(&self, writes: &[Write]) -> u32 {
        let shape = self.tables.shape();
        writes.iter().fold(0, |all, write| {
            (0..shape.replicas()).fold(all, |all, rank| all | 1 << shape.replica(write.before.place, rank))
        })
    }

    /// First round trip: the log, and the validation. Says whether the items are still valid.
    async fn prepare(&mut self, writes: &[Write]) -> Result<bool, DtxError> {
        let shape = *self.tables.shape();
        let Some(coordinator) = &mut self.coordinator else { return Err(DtxError::Broke) };
        coordinator.sequence += 1;
        let mut entries = Vec::new();
        for write in writes {
            let value = &self.values[write.old.clone()];
            write_entry(
                &mut entries,
                &write.before,
                &value[..shape.value_bytes_at(write.before.place).min(value.len())],
            );
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
        let participants = self.participants;
        let Some(coordinator) = &self.coordinator else { return Err(DtxError::Broke) };
        for position in (0..shape.server_count()).filter(|position| participants >> position & 1 == 1) {
            let seat = self.tables.seat_at(position, coordinator.roster[position].seat);
            self.plan.write(seat.behind(shape.seat_layout().log()), |data| {
                write_log_head(data, coordinator.sequence, coordinator.word(position), &entries);
                data.extend_from_slice(&entries);
            });
        }
        let reads = self.plan_validation();
        self.carry_out().await?;
        Ok(self.is_valid(&reads))
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
        if self.stage == Stage::Logged
            && let Some(coordinator) = &self.coordinator
        {
            for position in
                (0..shape.server_count()).filter(|position| self.participants >> position & 1 == 1)
            {
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
                self.tables.state.borrow_mut().idle.push(idle);
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
