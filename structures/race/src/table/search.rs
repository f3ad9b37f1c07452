//! Search: [READ 128 × 2], then READ of the block. Two round trips.

use std::ops::{Deref, Range};

use fatbtree_remote_memory::{ReadBytes, bytes_of};
use fatbtree_verbs::{Operation, Remote, Verbs};

use super::buckets::{Buckets, Seen};
use super::{Answer, Op, Table};
use crate::block::{self, Found};
use crate::checks::Check;
use crate::error::Stop;
use crate::hash::Hash;
use crate::key::Asked;
use crate::slot::BlockPointer;

/// A value that was read.
#[derive(Debug)]
pub struct Value {
    /// The block, head included.
    bytes: ReadBytes,
    value: Range<usize>,
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.value.clone()]
    }
}

impl Value {
    /// The value of a block that was read.
    pub(super) const fn new(bytes: ReadBytes, found: &Found) -> Self {
        Self { bytes, value: found.value() }
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// The slot that leads to a key's block, and what lies there.
pub(super) struct Hit {
    pub(super) seen: Seen,
    pub(super) pointer: BlockPointer,
    pub(super) found: Found,
    pub(super) bytes: ReadBytes,
}

impl Hit {
    /// The value.
    pub(super) fn value(&self) -> &[u8] {
        &self.bytes[self.found.value()]
    }
}

impl<V: Verbs> Table<V> {
    /// Finds the value of a key. One round trip, if its place is [remembered](Self::remember_places) and still right. Else two round trips,
    /// if the client's directory is right and no other key has the fingerprint; one more while the subtable is being split, one for each split
    /// that the client did not know, and one for a value longer than 16 KB.
    ///
    /// # Errors
    /// In the answer: see [`TableError`](crate::TableError).
    pub async fn search(&self, key: u64) -> Answer<Option<Value>> {
        self.search_for(Asked::number(key)).await
    }

    /// Finds the value of a key of bytes. Round trips are those of a [number](Self::search); one more for another key of the same
    /// [word](crate::word_of).
    ///
    /// # Errors
    /// In the answer: see [`TableError`](crate::TableError).
    pub async fn search_bytes(&self, key: &[u8]) -> Answer<Option<Value>> {
        self.search_for(Asked::of_bytes(key)).await
    }

    async fn search_for<'k>(&self, key: Asked<'k>) -> Answer<Option<Value>> {
        if let Err(error) = self.check_key(key) {
            return Answer { result: Err(error), round_trips: 0 };
        }
        let search = async |op: &mut Op<'k>| match self.speculate(op).await? {
            Some(value) => Ok(Some(value)),
            None => self.try_search(op).await,
        };
        self.answer(self.op(key), search).await
    }

    async fn try_search(&self, op: &mut Op<'_>) -> Result<Option<Value>, Stop> {
        let leaf = self.reach(op).await?;
        let buckets = self.read_buckets(leaf, op).await?;
        // What is not frozen was in use when it was read. What is frozen stays as it is, and counts if no successor took its place: then
        // it did still when the successors were asked for.
        if buckets.any_frozen()
            && Check::Successors.on()
            && let Some(pair) = self.successors(leaf, op).await?
        {
            self.follow(leaf, pair, op);
            return Err(Stop::Anew);
        }
        let hit = self.find(&buckets, op).await?;
        Ok(hit.map(|hit| {
            self.remember(op.key, leaf.place.address().behind(hit.seen.offset), hit.seen.slot);
            Value::new(hit.bytes, &hit.found)
        }))
    }

    /// Finds the block of a key by its buckets.
    pub(super) async fn find(&self, buckets: &Buckets, op: &mut Op<'_>) -> Result<Option<Hit>, Stop> {
        for seen in buckets.candidates(op.state.hash) {
            let Some(pointer) = seen.slot.pointer() else { continue };
            let bytes = self.read_block(pointer, op).await?;
            let found = block::find(&bytes, pointer, self.shape.keys);
            if let Some(found) = found
                && op.state.key.is_of(&found, &bytes)
            {
                return Ok(Some(Hit { seen, pointer, found, bytes }));
            }
            if found.is_none() && !Check::FreedBlock.on() {
                continue;
            }
            let is_other = |found: Found| {
                let hash = Hash::of(found.word);
                hash.fingerprint() == pointer.fingerprint && buckets.may_hold(&self.shape, hash, seen.offset)
            };
            // A block that was freed since the slot was read: the slot has changed.
            if !found.is_some_and(is_other) && (found.is_none() || Check::OthersKey.on()) {
                let at = pointer.place.address();
                return Err(op.doubt(at, seen.slot.0, &bytes, "the block of a key of this slot"));
            }
        }
        Ok(None)
    }

    /// Reads a block: a round trip, or two if it is longer than a slot can tell.
    pub(super) async fn read_block(&self, pointer: BlockPointer, op: &mut Op<'_>) -> Result<ReadBytes, Stop> {
        let (at, first) = (pointer.place.address(), block::first_bytes(pointer));
        let path = op.lane.to(at.server());
        let read = |rkey| [Operation::Read { from: Remote { address: at.raw(), rkey }, len: first }];
        let [output] = self.memory.post(path, read).await?;
        let head = bytes_of(output)?;
        if block::rest_bytes(pointer, &head).is_none() {
            return Ok(ReadBytes::Whole(head));
        }
        let mut bytes = head.to_vec();
        drop(head);
        self.read_rest(pointer, &mut bytes, op).await?;
        Ok(ReadBytes::Pieces(bytes))
    }

    /// Reads what the first READ of a block has left, if it is longer than a slot can tell.
    pub(super) async fn read_rest(
        &self,
        pointer: BlockPointer,
        bytes: &mut Vec<u8>,
        op: &mut Op<'_>,
    ) -> Result<(), Stop> {
        let Some(rest) = block::rest_bytes(pointer, bytes) else { return Ok(()) };
        let first = block::first_bytes(pointer);
        // The head may be another record's by now: the bound keeps the READ within the region.
        let most = block::block_bytes(self.shape.longest_record()).saturating_sub(first);
        let (from, rest) = (pointer.place.address().behind(first.into()), u64::from(rest.min(most)));
        bytes.extend_from_slice(&self.memory.read_long(&op.lane, from, rest).await?);
        Ok(())
    }
}
