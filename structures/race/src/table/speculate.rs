//! Search in one round trip: the slot and the block of a key are read at once, where this client found them last.
//!
//! ```text
//!   [READ slot, READ block]      slot as it was?   ─ no ──► forgotten; [READ 128 × 2], READ block
//!                                block of its version, with the key? ─ yes ──► the value
//! ```
//!
//! **Why the answer is right.** A slot that has the word again which the client has seen has had it all the time, or at least leads to the
//! same record: no word comes twice, because of the block's version. So at the moment at which the slot was read, its record was the key's
//! value. What was read of the block is that record if it has the version, the key and the checksum; a record does not change until
//! its slot has another word. It does not matter which of the two READs came first. A slot that is frozen, or in a subtable that was split,
//! has another word than the one that was remembered.
//!
//! The places are bounded, and belong to one table of one client. A place that is stale costs one round trip.

use fatbtree_remote_memory::{GlobalAddress, ReadBytes, bytes_of, mix};
use fatbtree_verbs::{Operation, Remote, Verbs};

use super::search::Value;
use super::{Op, Table};
use crate::block;
use crate::checks::Check;
use crate::error::Stop;
use crate::layout::word_at;
use crate::slot::{Slot, State};

/// Places in a set. A key has one set.
const WAYS: usize = 4;

/// Use of the remembered places.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlaceStats {
    /// Searches that the remembered place answered, in one round trip.
    pub hits: u64,
    /// Searches of keys without a place.
    pub misses: u64,
    /// Searches whose place had changed. Each cost a round trip.
    pub stale: u64,
    /// Bytes of all places, used or not.
    pub bytes: u64,
    /// Places that fit.
    pub places: u64,
}

/// Where a key's value was found. Of several keys of bytes with one [word](crate::key) one has the place.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// Word of the key.
    key: u64,
    /// The slot. The null address: no place.
    at: GlobalAddress,
    slot: Slot,
    /// Whether it was used since the others of its set came.
    is_used: bool,
}

/// Places of keys, as many as fit their memory.
#[derive(Debug, Default)]
pub(super) struct Places {
    sets: Vec<[Found; WAYS]>,
    stats: PlaceStats,
}

impl Places {
    /// Places in up to `bytes` of memory; none below the size of a set.
    pub(super) fn new(bytes: u64) -> Self {
        let sets = usize::try_from(bytes / size_of::<[Found; WAYS]>() as u64).unwrap_or(usize::MAX);
        let sets = vec![[Found::default(); WAYS]; sets];
        let (bytes, places) = (size_of_val(&sets[..]) as u64, (sets.len() * WAYS) as u64);
        Self { sets, stats: PlaceStats { bytes, places, ..PlaceStats::default() } }
    }

    fn set(&mut self, key: u64) -> Option<&mut [Found; WAYS]> {
        let count = self.sets.len() as u64;
        let number = (u128::from(mix(key)) * u128::from(count)) >> 64;
        self.sets.get_mut(number as usize)
    }

    fn get(&mut self, key: u64) -> Option<(GlobalAddress, Slot)> {
        let found = self.set(key)?.iter_mut().find(|found| found.key == key && !found.at.is_null());
        let found = found.map(|found| {
            found.is_used = true;
            (found.at, found.slot)
        });
        self.stats.misses += u64::from(found.is_none());
        found
    }

    /// Remembers a place. In a full set one goes that was not used.
    pub(super) fn put(&mut self, key: u64, at: GlobalAddress, slot: Slot) {
        let Some(set) = self.set(key) else { return };
        let known = set.iter().position(|found| found.key == key && !found.at.is_null());
        let known = known.or_else(|| set.iter().position(|found| found.at.is_null()));
        let way = known.or_else(|| set.iter().position(|found| !found.is_used)).unwrap_or_else(|| {
            set.iter_mut().for_each(|found| found.is_used = false);
            0
        });
        set[way] = Found { key, at, slot, is_used: false };
    }

    /// Forgets a place.
    pub(super) fn remove(&mut self, key: u64) {
        if let Some(set) = self.set(key)
            && let Some(found) = set.iter_mut().find(|found| found.key == key)
        {
            *found = Found::default();
        }
    }
}

impl<V: Verbs> Table<V> {
    /// Remembers where keys were found, in up to `bytes` of memory, 32 a place: a search at a remembered place takes one round trip. 0: no
    /// place, as in the beginning.
    pub fn remember_places(&self, bytes: u64) {
        *self.places.borrow_mut() = Places::new(bytes);
    }

    /// Use of the remembered places since [`remember_places`](Self::remember_places).
    pub fn place_stats(&self) -> PlaceStats {
        self.places.borrow().stats
    }

    /// Reads slot and block where they were found last. `None`: they are not known, or not there any more.
    pub(super) async fn speculate(&self, op: &mut Op<'_>) -> Result<Option<Value>, Stop> {
        let Some((at, slot)) = self.places.borrow_mut().get(op.key) else { return Ok(None) };
        let Some(pointer) = slot.pointer() else { return Ok(None) };
        let block = pointer.place.address();
        // One doorbell rings for one server, and brings blocks that one READ brings whole.
        if block.server() != at.server() || pointer.units == u8::MAX {
            return Ok(None);
        }
        let reads = |rkey| {
            let read =
                |at: GlobalAddress, len| Operation::Read { from: Remote { address: at.raw(), rkey }, len };
            [read(at, 8), read(block, block::first_bytes(pointer))]
        };
        let path = op.lane.to(at.server());
        let [word, bytes] = self.memory.post(path, reads).await?;
        let (word, bytes) = (bytes_of(word)?, bytes_of(bytes)?);
        let is_same = word_at(&word, 0) == slot.0 || !Check::Remembered.on();
        let found = block::find(&bytes, pointer, self.shape.keys);
        let found = found.filter(|found| is_same && op.state.key.is_of(found, &bytes));
        let places = &mut *self.places.borrow_mut();
        match found {
            Some(found) => {
                places.stats.hits += 1;
                Ok(Some(Value::new(ReadBytes::Whole(bytes), &found)))
            }
            None => {
                places.stats.stale += 1;
                places.remove(op.key);
                Ok(None)
            }
        }
    }

    /// Remembers that a key's value is behind a slot; an empty slot: that it is nowhere.
    pub(super) fn remember(&self, key: u64, at: GlobalAddress, slot: Slot) {
        let places = &mut *self.places.borrow_mut();
        let is_frozen = slot.is_frozen() && Check::RememberFrozen.on();
        match is_frozen || slot.is_empty() || slot.state() == State::Tentative {
            true => places.remove(key),
            false => places.put(key, at, slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_those_in_use_stay() {
        let bytes = size_of::<[Found; WAYS]>() as u64;
        assert_eq!((size_of::<Found>(), Places::new(bytes - 1).sets.len()), (32, 0));
        let mut places = Places::new(bytes);
        let at = |key: u64| GlobalAddress::new(1, key * 64);
        for key in 1..=4 {
            places.put(key, at(key), Slot(key));
        }
        assert_eq!(places.get(3), Some((at(3), Slot(3))));
        for key in 5..=30 {
            places.put(key, at(key), Slot(key));
            assert_eq!(places.get(3), Some((at(3), Slot(3))), "{key}");
            assert_eq!(places.sets[0].iter().filter(|found| !found.at.is_null()).count(), 4);
        }
        places.put(3, at(7), Slot(8));
        assert_eq!(places.get(3), Some((at(7), Slot(8))));
        places.remove(3);
        assert_eq!(places.get(3), None);
        // Without memory nothing is remembered.
        let mut none = Places::new(0);
        none.put(1, at(1), Slot(1));
        assert_eq!(none.get(1), None);
    }
}
