//! A walk over the whole table that checks its structure, while nothing changes it.

use std::collections::BTreeMap;
use std::fmt;

use fatbtree_remote_memory::{CommonError, GlobalAddress};
use fatbtree_verbs::Verbs;

use crate::block::{self, block_bytes};
use crate::error::TableError;
use crate::hash::Hash;
use crate::key::Key;
use crate::layout::{
    BUCKET_BYTES, BucketHeader, Leaf, SUCCESSORS, entry_offset, may_be_at, slot_offsets, word_at,
};
use crate::slot::{Place, Slot, State};
use crate::table::Table;

/// What a walk has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verified {
    /// Keys.
    pub keys: u64,
    /// Subtables in use.
    pub subtables: u64,
    /// Servers of these, a bit for each number.
    pub servers: u32,
    /// Subtables that were split. They keep their memory.
    pub former: u64,
    /// Subtables in use whose split was begun, and not finished.
    pub unfinished: u64,
    /// Insertions that were left under way: slots that others may take.
    pub tentative: u64,
    /// Entries of the directory that lead to a subtable that was split.
    pub stale_entries: u64,
    /// Bytes of all blocks.
    pub block_bytes: u64,
    /// The largest local depth.
    pub depth: u8,
}

/// Words for people: `whole: 4999 keys in 16 subtables, …`.
impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, subtables, former, depth, block_bytes, .. } = self;
        write!(
            f,
            "whole: {keys} keys in {subtables} subtables, {former} former ones; directory of depth {depth}; {block_bytes} bytes of blocks"
        )
    }
}

/// A fault in the structure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Something cannot be read.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A bucket has the wrong header.
    #[error("bucket at {at}: expected the header of depth {} and suffix {:#x}, found {found:#x}", expected.depth, expected.suffix)]
    Header {
        /// The bucket.
        at: GlobalAddress,
        /// Header of its subtable.
        expected: BucketHeader,
        /// Word in memory.
        found: u64,
    },
    /// A subtable that was split has slots that can change.
    #[error("subtable at {at} has successors, and a slot that is not frozen")]
    Thawed {
        /// The subtable.
        at: GlobalAddress,
    },
    /// A slot does not match its check bits.
    #[error("slot at {at}: {slot:#018x} does not match its check bits")]
    Slot {
        /// The slot.
        at: GlobalAddress,
        /// Word in memory.
        slot: u64,
    },
    /// A pointer leads to something else than its record.
    #[error("slot at {at}: no record of its version at {block}")]
    Block {
        /// The slot.
        at: GlobalAddress,
        /// Where it leads.
        block: GlobalAddress,
    },
    /// A key is in the wrong place.
    #[error("slot at {at}: key {key} belongs elsewhere, by its suffix, bucket or fingerprint")]
    Misplaced {
        /// The slot.
        at: GlobalAddress,
        /// The key.
        key: Key,
    },
    /// A key is there twice.
    #[error("slots at {one} and {other} both hold key {key}")]
    Twice {
        /// The key.
        key: Key,
        /// One of its slots.
        one: GlobalAddress,
        /// Another one.
        other: GlobalAddress,
    },
    /// Two pointers share memory.
    #[error("the block at {at} overlaps another one")]
    Shared {
        /// The block.
        at: GlobalAddress,
    },
    /// An entry leads to another subtable than its own, or to none.
    #[error("directory entry {number} leads to no subtable of its suffix")]
    Entry {
        /// Its number.
        number: u32,
    },
}

/// State of a walk.
#[derive(Default)]
struct Walk {
    verified: Verified,
    keys: BTreeMap<Key, GlobalAddress>,
    /// Ends of blocks, by begin.
    blocks: BTreeMap<u64, u64>,
    /// Subtables by begin: header, and whether they are in use.
    subtables: BTreeMap<u64, (BucketHeader, bool)>,
}

impl<V: Verbs> Table<V> {
    /// Walks over all subtables and blocks. Nothing may change the table meanwhile.
    ///
    /// # Errors
    /// The first fault.
    pub async fn verify(&self) -> Result<Verified, Fault> {
        let shape = *self.shape();
        let depth = self.word(self.home()).await?;
        let depth = u8::try_from(depth).ok().filter(|&depth| depth <= shape.directory_bits);
        let damaged = CommonError::Damaged { at: self.home(), expected: "a global depth" };
        let count = 1_u32 << depth.ok_or(TableError::from(damaged))?;
        let entries = self.read_all(self.home().behind(entry_offset(0)), u64::from(count) * 8).await?;
        let entry = |number: u32| Leaf::from_word(word_at(&entries, u64::from(number) * 8));
        // After the directory lies the first subtable, to which all others are successors.
        let root = Place::of(self.home().behind(shape.directory_bytes()));
        let root = Leaf { place: root.ok_or(Fault::Entry { number: 0 })?, depth: 0 };
        let mut walk = Walk::default();
        let mut left = vec![(root, BucketHeader { depth: 0, suffix: 0 })];
        while let Some((leaf, header)) = left.pop() {
            left.extend(self.verify_subtable(&mut walk, leaf, header).await?);
        }
        for number in 0..count {
            let of = entry(number).and_then(|leaf| walk.subtables.get(&leaf.place.address().raw()));
            let (header, is_present) = of.ok_or(Fault::Entry { number })?;
            if number & ((1 << header.depth) - 1) != header.suffix {
                return Err(Fault::Entry { number });
            }
            walk.verified.stale_entries += u64::from(!is_present);
        }
        walk.verified.keys = walk.keys.len() as u64;
        Ok(walk.verified)
    }

    /// Checks a subtable. Returns its successors.
    async fn verify_subtable(
        &self,
        walk: &mut Walk,
        leaf: Leaf,
        header: BucketHeader,
    ) -> Result<Vec<(Leaf, BucketHeader)>, Fault> {
        let (shape, at) = (*self.shape(), leaf.place.address());
        let bytes = self.read_all(at, shape.subtable_bytes()).await?;
        for offset in (0..shape.subtable_bytes()).step_by(BUCKET_BYTES as usize) {
            let found = word_at(&bytes, offset);
            if found != header.word() {
                return Err(Fault::Header { at: at.behind(offset), expected: header, found });
            }
        }
        let slots: Vec<_> =
            slot_offsets(&shape).map(|offset| (offset, Slot(word_at(&bytes, offset)))).collect();
        if let Some((offset, slot)) = slots.iter().find(|(_, slot)| !slot.is_sound()) {
            return Err(Fault::Slot { at: at.behind(*offset), slot: slot.0 });
        }
        let damaged = |at, expected| TableError::from(CommonError::Damaged { at, expected });
        let pair = Place::of_link(word_at(&bytes, SUCCESSORS))
            .map_err(|_| damaged(at.behind(SUCCESSORS), "the successors of a subtable"))?;
        walk.subtables.insert(at.raw(), (header, pair.is_none()));
        if let Some(pair) = pair {
            walk.verified.former += 1;
            if slots.iter().any(|(_, slot)| !slot.is_frozen()) {
                return Err(Fault::Thawed { at });
            }
            if header.depth >= shape.directory_bits {
                return Err(damaged(at, "no successors at the directory's depth").into());
            }
            let halves = leaf.halves(pair, &shape).ok_or(TableError::OutOfReach { at: pair.address() })?;
            return Ok(halves.into_iter().zip(header.halves()).collect());
        }
        walk.verified.subtables += 1;
        walk.verified.servers |= 1 << (at.server() & 31);
        walk.verified.depth = walk.verified.depth.max(header.depth);
        walk.verified.unfinished += u64::from(slots.iter().any(|(_, slot)| slot.is_frozen()));
        for (offset, slot) in slots.into_iter().filter(|(_, slot)| slot.pointer().is_some()) {
            match slot.state() {
                State::Committed => self.verify_key(walk, header, at, offset, slot).await?,
                State::Tentative => walk.verified.tentative += 1,
            }
        }
        Ok(Vec::new())
    }

    async fn verify_key(
        &self,
        walk: &mut Walk,
        header: BucketHeader,
        subtable: GlobalAddress,
        offset: u64,
        slot: Slot,
    ) -> Result<(), Fault> {
        let at = subtable.behind(offset);
        let Some(pointer) = slot.pointer() else { return Ok(()) };
        let block = pointer.place.address();
        let (found, key) = self.read_found(pointer).await?.ok_or(Fault::Block { at, block })?;
        let hash = Hash::of(found.word);
        let is_in_place = key.is_sound()
            && header.covers(hash)
            && hash.fingerprint() == pointer.fingerprint
            && pointer.units == block::slot_units(found.length)
            && may_be_at(self.shape(), hash, offset);
        if !is_in_place {
            return Err(Fault::Misplaced { at, key });
        }
        if let Some(&one) = walk.keys.get(&key) {
            return Err(Fault::Twice { key, one, other: at });
        }
        walk.keys.insert(key, at);
        let (from, bytes) = (block.raw(), u64::from(block_bytes(found.length)));
        let before = walk.blocks.range(..from + bytes).next_back();
        if before.is_some_and(|(_, &end)| end > from) {
            return Err(Fault::Shared { at: block });
        }
        walk.blocks.insert(from, from + bytes);
        walk.verified.block_bytes += bytes;
        Ok(())
    }
}
