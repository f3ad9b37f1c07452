//! The two combined buckets of a key, as one READ each has brought them.

use fatbtree_remote_memory::{CommonError, GlobalAddress, bytes_of};
use fatbtree_verbs::{Buffer, Operation, Output, Remote, Verbs};

use super::{Op, Table};
use crate::checks::Check;
use crate::error::Stop;
use crate::hash::Hash;
use crate::layout::{
    BUCKET_BYTES, BucketHeader, COMBINED_BYTES, Leaf, Shape, combined_offset, is_slot, main_bucket,
    may_be_at, word_at,
};
use crate::slot::{Place, Slot, State};

/// A slot that was read, and where: an offset in the subtable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    pub(super) offset: u64,
    pub(super) slot: Slot,
}

/// Both combined buckets of a key. Each of their words was read at some moment of one round trip.
pub(super) struct Buckets {
    pub(super) leaf: Leaf,
    numbers: [u32; 2],
    bytes: [Buffer; 2],
}

impl Buckets {
    /// Slots of both, each once.
    pub(super) fn slots(&self) -> impl Iterator<Item = Seen> + '_ {
        let offsets = self.numbers.map(combined_offset);
        let shared = offsets[0]..offsets[0] + u64::from(COMBINED_BYTES);
        let of_one = move |which: usize| {
            let words = (0..u64::from(COMBINED_BYTES)).step_by(8).map(move |at| (offsets[which] + at, at));
            let slots = words.filter(|&(offset, _)| is_slot(offset));
            slots.map(move |(offset, at)| Seen { offset, slot: Slot(word_at(&self.bytes[which], at)) })
        };
        of_one(0).chain(of_one(1).filter(move |seen| !shared.contains(&seen.offset)))
    }

    /// Slots whose pointer has this fingerprint.
    pub(super) fn matching(&self, hash: Hash) -> impl Iterator<Item = Seen> + '_ {
        let matches =
            move |slot: Slot| slot.pointer().is_some_and(|pointer| pointer.fingerprint == hash.fingerprint());
        self.slots().filter(move |seen| matches(seen.slot))
    }

    /// Slots of the key's fingerprint whose pointer counts.
    pub(super) fn candidates(&self, hash: Hash) -> impl Iterator<Item = Seen> + '_ {
        let counts = |slot: Slot| slot.state() == State::Committed || !Check::Tentative.on();
        self.matching(hash).filter(move |seen| counts(seen.slot))
    }

    /// Whether a split of the subtable has begun.
    pub(super) fn any_frozen(&self) -> bool {
        self.slots().any(|seen| seen.slot.is_frozen())
    }

    /// The slot at an offset.
    pub(super) fn at(&self, offset: u64) -> Option<Slot> {
        self.slots().find(|seen| seen.offset == offset).map(|seen| seen.slot)
    }

    /// The first free slot for a new key: in the combined bucket with more room, and there in the main bucket first.
    pub(super) fn free(&self) -> Option<u64> {
        let free_in = |which: usize| {
            let from = combined_offset(self.numbers[which]);
            let free = self.slots().filter(move |seen| seen.slot.is_empty());
            free.map(|seen| seen.offset)
                .filter(move |offset| (from..from + u64::from(COMBINED_BYTES)).contains(offset))
        };
        let which = usize::from(free_in(1).count() > free_in(0).count());
        let main = combined_offset(self.numbers[which]) + main_bucket(self.numbers[which]);
        let in_main = |offset: &u64| (main..main + BUCKET_BYTES).contains(offset);
        free_in(which).min_by_key(|offset| (!in_main(offset), *offset))
    }

    /// Depth of the subtable.
    fn depth(&self) -> Option<u8> {
        BucketHeader::from_word(word_at(&self.bytes[0], 0)).map(|header| header.depth)
    }

    /// A slot that no client has written so.
    fn unsound(&self) -> Option<Seen> {
        self.slots().find(|seen| !seen.slot.is_sound())
    }

    /// Whether a key may be in one of the slots: its hash, and the slot's offset.
    pub(super) fn may_hold(&self, shape: &Shape, hash: Hash, offset: u64) -> bool {
        let header = BucketHeader::from_word(word_at(&self.bytes[0], 0));
        header.is_some_and(|header| header.covers(hash)) && may_be_at(shape, hash, offset)
    }

    /// Whether the subtable is the key's.
    fn are_of(&self, hash: Hash) -> bool {
        let header = |bytes: &Buffer, at| BucketHeader::from_word(word_at(bytes, at));
        let is_its = |found: Option<BucketHeader>| {
            found.is_some_and(|header| header.covers(hash) || !Check::Suffix.on())
        };
        self.bytes.iter().all(|bytes| is_its(header(bytes, 0)) && is_its(header(bytes, BUCKET_BYTES)))
    }
}

impl<V: Verbs> Table<V> {
    /// The READs of a key's combined buckets.
    pub(super) fn bucket_reads(shape: &Shape, leaf: Leaf, hash: Hash, rkey: u32) -> [Operation<'static>; 2] {
        hash.buckets(shape).map(|bucket| {
            let address = leaf.place.address().behind(combined_offset(bucket)).raw();
            Operation::Read { from: Remote { address, rkey }, len: COMBINED_BYTES }
        })
    }

    /// Reads a key's combined buckets: a round trip.
    pub(super) async fn read_buckets(&self, leaf: Leaf, op: &mut Op<'_>) -> Result<Buckets, Stop> {
        let path = op.lane.to(leaf.place.address().server());
        let reads = |rkey| Self::bucket_reads(&self.shape, leaf, op.state.hash, rkey);
        let outputs = self.memory.post(path, reads).await?;
        self.buckets(leaf, op, outputs).await
    }

    /// Takes what [`bucket_reads`](Self::bucket_reads) have brought. A subtable of other keys means that the directory was read while it
    /// changed: it is read again.
    pub(super) async fn buckets(
        &self,
        leaf: Leaf,
        op: &mut Op<'_>,
        outputs: [Output; 2],
    ) -> Result<Buckets, Stop> {
        let [one, other] = outputs;
        let bytes = [bytes_of(one)?, bytes_of(other)?];
        let buckets = Buckets { leaf, numbers: op.state.hash.buckets(&self.shape), bytes };
        if buckets.depth().is_some_and(|depth| depth != leaf.depth) {
            let expected = "a subtable of the depth that the directory says";
            return Err(CommonError::Damaged { at: leaf.place.address(), expected }.into());
        }
        if !buckets.are_of(op.state.hash) {
            let headers = [0, 1].map(|which| word_at(&buckets.bytes[which], 0)).map(u64::to_le_bytes);
            let at = leaf.place.address();
            let stop = op.doubt(at, 0, headers.as_flattened(), "the header of the key's subtable");
            if let Stop::Later = stop {
                self.reload(op).await?;
            }
            return Err(stop);
        }
        if let Some(seen) = buckets.unsound().filter(|_| Check::SoundSlots.on()) {
            let at = leaf.place.address().behind(seen.offset);
            return Err(op.doubt(at, seen.slot.0, &[], "a slot that matches its check bits"));
        }
        Ok(buckets)
    }

    /// The pair of subtables into which one was split, if it was.
    pub(super) async fn successors(&self, leaf: Leaf, op: &mut Op<'_>) -> Result<Option<Place>, Stop> {
        let word = self.memory.read_word(&op.lane, successors_of(leaf)).await?;
        Place::of_link(word).map_err(|_| op.doubt(successors_of(leaf), word, &[], super::thaw::EXPECTED))
    }
}

/// Address of the word that names a subtable's successors.
pub(super) fn successors_of(leaf: Leaf) -> GlobalAddress {
    leaf.place.address().behind(crate::layout::SUCCESSORS)
}
