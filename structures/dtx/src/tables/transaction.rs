//! A transaction as its client sees it.

use std::ops::Range;

use fatbtree_remote_memory::{GlobalAddress, Lane};
use fatbtree_verbs::Verbs;

use super::coordinator::Coordinator;
use super::plan::Plan;
use super::recover::{Job, Outcome};
use super::{Left, Tables};
use crate::checks::Check;
use crate::error::DtxError;
use crate::item::Presence;
use crate::layout::Place;

/// A key that a transaction wants to read, or to read and change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Want {
    /// Number of the table.
    pub table: u8,
    /// The key.
    pub key: u64,
    /// Whether its item may be changed: then it is locked.
    pub writes: bool,
}

impl Want {
    /// Reads an item. It is read again at the commit, and must not have changed.
    #[must_use]
    pub const fn read(table: u8, key: u64) -> Self {
        Self { table, key, writes: false }
    }

    /// Locks an item and reads it. Where the key is absent, its place is locked.
    #[must_use]
    pub const fn write(table: u8, key: u64) -> Self {
        Self { table, key, writes: true }
    }
}

/// An item that a transaction has fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item(pub(super) usize);

/// An item under a transaction.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) want: Want,
    /// Place of the item; for a key that is absent and only read, the head of its node.
    pub(super) place: Place,
    pub(super) version: u64,
    pub(super) presence: Presence,
    /// Key in the slot before: of an insertion, another one's.
    pub(super) key: u64,
    /// Its value among the transaction's, if it is present.
    pub(super) value: Range<usize>,
    /// Version of the node's head, where the key has no slot yet.
    pub(super) head: Option<u64>,
    pub(super) change: Change,
}

impl Entry {
    /// The place that was read, and its version: of an absent key without a slot, the head of its node.
    pub(super) fn read(&self) -> (Place, u64) {
        match self.head {
            Some(version) => (Place { slot: None, ..self.place }, version),
            None => (self.place, self.version),
        }
    }
}

/// What becomes of an item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Change {
    None,
    /// A value among the transaction's.
    Put(Range<usize>),
    Remove,
}

/// A lock that a transaction has asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lock {
    pub(super) place: Place,
    pub(super) at: GlobalAddress,
    pub(super) state: LockState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LockState {
    /// The compare-and-swap was posted, and its outcome is not known.
    Asked,
    /// The lock is the transaction's.
    Held,
    /// Another transaction has it.
    Refused,
}

/// How far a transaction has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Nothing is logged.
    Open,
    /// The log may lie in memory, and the data.
    Logged,
    /// The same, and its outcome is known.
    Decided(Outcome),
    /// It has ended, and nothing is left.
    Ended,
}

/// A transaction: reads and locks items, and then changes all of them at once, or none.
///
/// Each key has one [`Item`] in a transaction, however often it is fetched. Where it is read first and locked later it must not have changed
/// in between, or the commit fails. After an error of a connection, or a conflict, the transaction can only be given up: further calls return the same error.
///
/// A transaction ends with [`commit`](Self::commit) or [`abort`](Self::abort). If it is dropped before, its client's next transaction, or
/// [`Tables::finish`], ends it.
pub struct Transaction<'t, V: Verbs> {
    pub(super) tables: &'t Tables<V>,
    /// There until it ends.
    pub(super) coordinator: Option<Coordinator>,
    pub(super) plan: Plan,
    pub(super) entries: Vec<Entry>,
    pub(super) locks: Vec<Lock>,
    pub(super) values: Vec<u8>,
    pub(super) stage: Stage,
    /// Error after which it can only be given up.
    pub(super) doom: Option<DtxError>,
    /// Reason for which it cannot be committed: an item that has changed after it was read, and before it was locked.
    pub(super) stale: Option<DtxError>,
    /// Positions of the servers with its log, a bit for each.
    pub(super) participants: u32,
    pub(super) lane: Lane,
}

impl<V: Verbs> std::fmt::Debug for Transaction<'_, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl<V: Verbs> Drop for Transaction<'_, V> {
    fn drop(&mut self) {
        self.tables.keep_plan(std::mem::take(&mut self.plan));
        self.leave();
    }
}

impl<'t, V: Verbs> Transaction<'t, V> {
    pub(super) fn new(tables: &'t Tables<V>, coordinator: Coordinator, plan: Plan) -> Self {
        Self {
            tables,
            lane: coordinator.lane.apart(),
            coordinator: Some(coordinator),
            plan,
            entries: Vec::new(),
            locks: Vec::new(),
            values: Vec::new(),
            stage: Stage::Open,
            doom: None,
            stale: None,
            participants: 0,
        }
    }

    /// Round trips so far, one after the other.
    #[must_use]
    pub fn round_trips(&self) -> u32 {
        self.lane.round_trips()
    }

    /// The value of an item, with the transaction's own changes. `None` if the key is absent.
    #[must_use]
    pub fn value(&self, item: Item) -> Option<&[u8]> {
        let entry = &self.entries[item.0];
        match &entry.change {
            Change::Put(value) => Some(&self.values[value.clone()]),
            Change::None if entry.presence == Presence::Present => Some(&self.values[entry.value.clone()]),
            Change::None | Change::Remove => None,
        }
    }

    /// Changes an item that was fetched for writing: gives it a value, whether it was present or not.
    ///
    /// # Errors
    /// [`DtxError::NotLocked`], [`DtxError::Length`].
    pub fn put(&mut self, item: Item, value: &[u8]) -> Result<(), DtxError> {
        let entry = &mut self.entries[item.0];
        let expected = self.tables.shape().value_bytes(entry.want.table);
        if value.len() != expected {
            return Err(DtxError::Length { found: value.len(), expected });
        }
        if !entry.want.writes {
            return Err(DtxError::NotLocked);
        }
        let from = self.values.len();
        self.values.extend_from_slice(value);
        entry.change = Change::Put(from..self.values.len());
        Ok(())
    }

    /// Takes away an item that was fetched for writing. Says whether it was present.
    ///
    /// # Errors
    /// [`DtxError::NotLocked`].
    pub fn remove(&mut self, item: Item) -> Result<bool, DtxError> {
        let is_present = self.value(item).is_some();
        let entry = &mut self.entries[item.0];
        if !entry.want.writes {
            return Err(DtxError::NotLocked);
        }
        entry.change = if entry.presence == Presence::Present { Change::Remove } else { Change::None };
        Ok(is_present)
    }

    /// Reads a value.
    ///
    /// # Errors
    /// As of [`fetch`](Self::fetch).
    pub async fn read(&mut self, table: u8, key: u64) -> Result<Option<&[u8]>, DtxError> {
        let [item] = self.fetch([Want::read(table, key)]).await?;
        Ok(self.value(item))
    }

    /// Puts a value, whether one is there or not.
    ///
    /// # Errors
    /// As of [`fetch`](Self::fetch) and [`put`](Self::put).
    pub async fn write(&mut self, table: u8, key: u64, value: &[u8]) -> Result<(), DtxError> {
        let [item] = self.fetch([Want::write(table, key)]).await?;
        self.put(item, value)
    }

    /// Puts a value where none is; says whether it did.
    ///
    /// # Errors
    /// As of [`fetch`](Self::fetch) and [`put`](Self::put).
    pub async fn insert(&mut self, table: u8, key: u64, value: &[u8]) -> Result<bool, DtxError> {
        let [item] = self.fetch([Want::write(table, key)]).await?;
        let is_new = self.value(item).is_none();
        if is_new {
            self.put(item, value)?;
        }
        Ok(is_new)
    }

    /// Takes the value away where one is; says whether it did.
    ///
    /// # Errors
    /// As of [`fetch`](Self::fetch).
    pub async fn delete(&mut self, table: u8, key: u64) -> Result<bool, DtxError> {
        let [item] = self.fetch([Want::write(table, key)]).await?;
        self.remove(item)
    }

    /// Commits: all changes take effect at one moment, with all items as they were read.
    ///
    /// # Errors
    /// [`DtxError::Conflict`] and [`DtxError::Broke`]: nothing has changed. [`DtxError::Unknown`]: all may have changed, or nothing.
    pub async fn commit(mut self) -> Result<(), DtxError> {
        self.finish().await
    }

    /// Gives the transaction up: releases the locks that it holds. What it has read is not validated: to be sure of that, commit it.
    pub async fn abort(mut self) {
        self.give_up().await;
    }

    pub(super) fn is_held(&self, place: Place) -> bool {
        self.locks.iter().any(|lock| lock.place == place && lock.state == LockState::Held)
    }

    /// Leaves what is not settled to the client's next transaction.
    pub(super) fn leave(&mut self) {
        let Some(coordinator) = self.coordinator.take() else { return };
        match self.unsettled(coordinator) {
            Ok(idle) => self.tables.put_back(idle),
            Err(left) => self.tables.leave(left),
        }
    }

    /// What is not settled. `Ok`: nothing, and the seats can be used again.
    pub(super) fn unsettled(&self, coordinator: Coordinator) -> Result<Coordinator, Left> {
        let is_asked = |lock: &&Lock| match lock.state {
            LockState::Asked => Check::AskedLocks.on(),
            LockState::Held => true,
            LockState::Refused => !Check::OwnLocks.on(),
        };
        let is_clean = self.stage == Stage::Open && !self.locks.iter().any(|lock| is_asked(&lock));
        if self.stage == Stage::Ended || is_clean {
            return Ok(coordinator);
        }
        let locks = self.locks.iter().filter(is_asked).map(|lock| lock.at).collect();
        let outcome = match self.stage {
            Stage::Decided(outcome) => Some(outcome),
            _ => None,
        };
        let is_logged = self.stage != Stage::Open;
        let job = is_logged.then(|| Box::new(Job::own(&coordinator, self.log(&coordinator), outcome)));
        Err(Left { coordinator: Some((coordinator, job.is_none())), locks, job })
    }
}
