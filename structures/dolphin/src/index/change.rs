//! Insert, update, upsert, compare-and-swap and delete.
//!
//! ```text
//!              1                    2                        3
//!   update     [announce, READ]     [WRITE value, end]
//!   swap       [announce, READ]     READ record, compare     [CAS value → value, end]
//!   delete     [announce, READ]     [CAS key, end]
//!   insert     [announce, READ]     CAS free slot → key      [CAS none → value, end]
//! ```
//!
//! An insertion takes effect with its value: until then the key has *none*, which reads as absent. It
//! is a CAS, so that of several insertions one succeeds. A deletion leaves a tombstone, and the slot
//! is used again after a structure change only. So an update that comes late meets no other key.
//!
//! In an index of long values all words are changed by CAS, because one client must free the record
//! before. There a deletion takes the value away and leaves the key. An index of fixed values has no
//! compare-and-swap: its updates are WRITEs, and no CAS excludes a WRITE.

use fatbtree_remote_memory::{CommonError, GlobalAddress};
use fatbtree_verbs::{Operation, Output, Remote, Verbs};

use super::announce::Announced;
use super::descend::{Held, Reached};
use super::space::Fresh;
use super::structure::NAME;
use super::{Answer, Change, Index, Op};
use crate::checks::Check;
use crate::error::{IndexError, Stop};
use crate::leaf::{Place, Use, free_word, key_offset, tombstone, value_offset};
use crate::word::Word;

/// Items of a leaf at which a deletion tries to merge it: at two levels only, so that a leaf with full
/// neighbours does not try again with each deletion.
const THIN: [usize; 3] = [12, 4, 0];

/// Whether a change puts a key that was not there.
const fn puts_new(change: Change<'_>) -> bool {
    matches!(change, Change::Insert(_) | Change::Upsert(_))
}

impl<V: Verbs> Index<V> {
    /// Puts a value where none is; says whether it did. Three round trips.
    ///
    /// # Errors
    /// In the answer, as of all changes: see [`IndexError`](crate::IndexError). Behind
    /// [`CommonError::Unknown`] the change may have been made.
    pub async fn insert(&self, key: u64, value: &[u8]) -> Answer<bool> {
        self.change(key, Change::Insert(value)).await
    }

    /// Replaces the value where one is; says whether it did. Two round trips.
    pub async fn update(&self, key: u64, value: &[u8]) -> Answer<bool> {
        self.change(key, Change::Update(value)).await
    }

    /// Puts a value, whether one is there or not; always true. Two or three round trips.
    pub async fn upsert(&self, key: u64, value: &[u8]) -> Answer<bool> {
        self.change(key, Change::Upsert(value)).await
    }

    /// Replaces the value where it is the expected one, byte by byte; says whether it did. Two round
    /// trips, and one more where the present value is out of line. An index of [fixed](crate::Shape::fixed)
    /// values has no such change.
    pub async fn compare_and_swap(&self, key: u64, expected: &[u8], value: &[u8]) -> Answer<bool> {
        self.change(key, Change::CompareAndSwap { expected, value }).await
    }

    /// Takes the value away where one is; says whether it did. Two round trips.
    pub async fn delete(&self, key: u64) -> Answer<bool> {
        self.change(key, Change::Delete).await
    }

    /// Changes a key; says whether the change applied.
    ///
    /// More round trips where the client does not know the leaf, where the leaf is full, thin or being
    /// changed, and where others change the same key.
    pub async fn change(&self, key: u64, change: Change<'_>) -> Answer<bool> {
        if self.shape.fixed() && change.expected().is_some() {
            let lacks = CommonError::Lacks { structure: NAME, operation: "compare_and_swap" };
            return Answer { result: Err(lacks.into()), round_trips: 0 };
        }
        let inline = match change.value().map(|value| self.word_of(value)).transpose() {
            Ok(word) => word.flatten(),
            Err(error) => return Answer { result: Err(error), round_trips: 0 },
        };
        let _turn = self.memory.compete().await;
        self.answer(self.op(key), async |op| self.try_change(change, inline, op).await).await
    }

    async fn try_change(&self, change: Change<'_>, inline: Option<Word>, op: &mut Op) -> Result<bool, Stop> {
        let mut held = match self.reach(op, Use::Change).await? {
            Reached::Leaf(held) => held,
            Reached::Gap(_) if !puts_new(change) => return Ok(false),
            Reached::Gap(gap) => {
                self.fill_gap(gap, op).await?;
                return Err(Stop::Anew);
            }
        };
        let Some(mut announced) = held.announced.take() else { return Err(Stop::Later) };
        let place = held.leaf().find(op.key);
        let (slot, old) = match place {
            Place::At(slot, old) if !old.is_none() || !Check::NoValue.on() => (slot, Some(old)),
            Place::At(slot, _) => (slot, None),
            Place::Nowhere(free) if puts_new(change) => {
                let Some(free) = self.free_slot(&held, free) else {
                    announced.clear(op).await?;
                    drop(announced);
                    let wants = self.foresee(&held, op.key);
                    self.make_room(held.parent, wants, op).await?;
                    return Err(Stop::Anew);
                };
                self.claim(&mut announced, &held, free, op).await?;
                (free, None)
            }
            Place::Nowhere(_) => {
                announced.clear(op).await?;
                return Ok(false);
            }
        };
        let is_other = match (change.expected(), old) {
            (Some(expected), Some(old)) if Check::Compares.on() => {
                *self.value_of(op.key, old, op).await? != *expected
            }
            _ => false,
        };
        match (change, old) {
            (Change::CompareAndSwap { .. }, _) if is_other => {
                announced.clear(op).await?;
                Ok(false)
            }
            (Change::Insert(_), Some(_))
            | (Change::Update(_) | Change::CompareAndSwap { .. } | Change::Delete, None) => {
                announced.clear(op).await?;
                Ok(false)
            }
            (Change::Delete, Some(old)) => {
                self.take_away(&mut announced, &held, slot, old, op).await?;
                let left = held.leaf().count_items().saturating_sub(1);
                let parent = held.parent;
                drop((announced, held));
                if THIN.contains(&left) {
                    // The key is gone, whatever becomes of this.
                    self.thin(parent, op).await.ok();
                }
                Ok(true)
            }
            (
                Change::Insert(value)
                | Change::Update(value)
                | Change::Upsert(value)
                | Change::CompareAndSwap { value, .. },
                old,
            ) => {
                self.put(&mut announced, &held, slot, old, (value, inline), op).await?;
                Ok(true)
            }
        }
    }

    /// The slot for a new key.
    fn free_slot(&self, held: &Held<'_, V>, first: Option<usize>) -> Option<usize> {
        if Check::FirstFree.on() {
            return first;
        }
        held.leaf().any_free(self.stamps.replace(self.stamps.get() + 7) as usize)
    }

    /// Puts the key into a free slot, without a value: a round trip.
    async fn claim(
        &self,
        announced: &mut Announced<'_, V>,
        held: &Held<'_, V>,
        slot: usize,
        op: &mut Op,
    ) -> Result<(), Stop> {
        let (at, free, key) = (held.at.behind(key_offset(slot)).raw(), free_word(held.leaf().min()), op.key);
        let swap = |rkey| {
            let at = Remote { address: at, rkey };
            [Operation::CompareSwap { at, compare: free, swap: key }]
        };
        let [found] = announced.post(swap, op).await?;
        let is_mine = matches!(found, Output::Atomic(found) if found == free);
        self.memory.note_attempt(!is_mine);
        if is_mine {
            return Ok(());
        }
        announced.clear(op).await?;
        Err(Stop::Anew)
    }

    /// Puts a value into the slot of the key.
    async fn put(
        &self,
        announced: &mut Announced<'_, V>,
        held: &Held<'_, V>,
        slot: usize,
        old: Option<Word>,
        (value, inline): (&[u8], Option<Word>),
        op: &mut Op,
    ) -> Result<(), Stop> {
        let at = held.at.behind(value_offset(slot));
        if let (Some(_), Some(word), true) = (old, inline, self.shape.fixed()) {
            let bytes = word.0.to_le_bytes();
            let write = |rkey| [Operation::Write { to: Remote { address: at.raw(), rkey }, data: &bytes }];
            announced.conclude(write, op).await?;
            return Ok(());
        }
        let expected = old.unwrap_or(Word::NONE);
        let (server, writer) = (held.at.server(), *announced.writer());
        let replaced = self.record_of(expected);
        let mut fresh = None;
        if inline.is_none() {
            if let Some(old) = old.filter(|_| !Check::NewRecord.on())
                && let Some(written) = self.overwrite(announced, old, value, op).await?
            {
                return written;
            }
            fresh = self.new_record(server, &writer, value, op).await?;
            if fresh.is_none() {
                announced.clear(op).await?;
                self.until_room(server, value, op).await?;
                return Err(Stop::Anew);
            }
        }
        let Some(word) = inline.or(fresh.as_ref().map(|fresh| fresh.word)) else { return Err(Stop::Later) };
        fresh.iter_mut().for_each(Fresh::hold);
        let swapped = self.swap(announced, at, (expected, word), fresh.as_ref(), op).await;
        match swapped {
            Ok(true) => {
                self.free_record(held.at.server(), replaced);
                Ok(())
            }
            Ok(false) => {
                fresh.iter_mut().for_each(Fresh::release);
                Err(Stop::Anew)
            }
            // The leaf may lead to the record.
            Err(stop @ Stop::Failed(IndexError::Common(CommonError::Unknown(_)))) => Err(stop),
            // Nothing was posted.
            Err(stop) => {
                fresh.iter_mut().for_each(Fresh::release);
                Err(stop)
            }
        }
    }

    /// Writes a record and swaps the word of a value, and ends the announcement: a round trip. Says
    /// whether the word was what was expected.
    async fn swap(
        &self,
        announced: &mut Announced<'_, V>,
        at: GlobalAddress,
        (old, new): (Word, Word),
        fresh: Option<&Fresh<'_, V>>,
        op: &mut Op,
    ) -> Result<bool, Stop> {
        let swap = |rkey| {
            let at = Remote { address: at.raw(), rkey };
            Operation::CompareSwap { at, compare: old.0, swap: new.0 }
        };
        let found = match fresh {
            Some(fresh) => {
                let [_, found] = announced.conclude(|rkey| [fresh.write(rkey), swap(rkey)], op).await?;
                found
            }
            None => {
                let [found] = announced.conclude(|rkey| [swap(rkey)], op).await?;
                found
            }
        };
        let is_done = match found {
            Output::Atomic(found) => found == old.0,
            _ => !Check::AwaitsLast.on(),
        };
        self.memory.note_attempt(!is_done);
        Ok(is_done)
    }

    /// Takes the value of a key away.
    async fn take_away(
        &self,
        announced: &mut Announced<'_, V>,
        held: &Held<'_, V>,
        slot: usize,
        old: Word,
        op: &mut Op,
    ) -> Result<(), Stop> {
        let (min, key) = (held.leaf().min(), op.key);
        let replaced = self.record_of(old);
        let is_done = if self.shape.fixed() {
            // As published, the slot is free at once.
            let gone = if Check::Tombstone.on() { tombstone(min) } else { free_word(min) };
            let at = held.at.behind(key_offset(slot));
            self.swap(announced, at, (Word(key), Word(gone)), None, op).await?
        } else {
            let at = held.at.behind(value_offset(slot));
            self.swap(announced, at, (old, Word::NONE), None, op).await?
        };
        if !is_done {
            return Err(Stop::Anew);
        }
        self.free_record(held.at.server(), replaced);
        Ok(())
    }

    /// Writes a value over the record of the one before, as published. `None`: it has no record, or one
    /// of another size.
    async fn overwrite(
        &self,
        announced: &mut Announced<'_, V>,
        old: Word,
        value: &[u8],
        op: &mut Op,
    ) -> Result<Option<Result<(), Stop>>, Stop> {
        let Some(pointer) = self.pointer(old) else { return Ok(None) };
        if crate::word::place_bytes(value.len() as u32) != pointer.bytes {
            return Ok(None);
        }
        let mut data = Vec::new();
        crate::word::write(&mut data, op.key, pointer.version, value);
        let write = |rkey| [Operation::Write { to: Remote { address: pointer.at.raw(), rkey }, data: &data }];
        announced.conclude(write, op).await?;
        Ok(Some(Ok(())))
    }
}
