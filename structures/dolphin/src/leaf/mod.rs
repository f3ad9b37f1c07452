//! Leaves: 49 keys and their values in 1 KB, each line with the stamp of the last structure change.
//!
//! ```text
//!   line 0        │ stamp │ mark │ parent │ min │ max │ own │ sum │ …            header
//!   lines 1–7     │ stamp │ key  │ key │ key │ key │ key │ key │ key │            49 keys
//!   lines 8–14    │ stamp │ value│ …                                             their values
//!   line 15       │ state and stamp │ task │ from │ partner │ count │ …          lock
//! ```
//!
//! *min* and *max* are the lowest and highest key that the leaf may hold, *parent* is the entry of
//! the node above: the reverse pointer. *own* is the leaf's own address, for clients that switches have
//! led here: an index read does not say where it has ended. *sum* depends on these: a header is written as one
//! line, so one that does not match it is damaged.
//!
//! Updates, insertions and deletions change one word and leave the stamps. A structure change gives
//! all lines a new stamp, so a READ that it has torn does not pass for a leaf. The lock line says
//! what a structure change has begun: with that, and with what lies there, each client can end it.
//!
//! All 2^64 keys can be stored: what stands for a free slot, or for a deleted key, is a word outside
//! of the leaf's range. No leaf has keys of both halves of the key space.

mod build;

use fatbtree_remote_memory::{GlobalAddress, mix, word_at};

pub(crate) use build::{build, rewritten};

use crate::checks::Check;
use crate::entry::Entry;
use crate::word::Word;

/// Bytes of a leaf.
pub const LEAF_BYTES: usize = 1024;

/// Keys of a leaf.
pub const SLOTS: usize = 49;

const LINE: usize = 64;
/// Slots of a line, after the stamp.
const PER_LINE: usize = 7;
const KEYS: usize = LINE;
const VALUES: usize = KEYS + LINE * PER_LINE;
/// Offset of the lock line.
pub(crate) const LOCK: u64 = (VALUES + LINE * PER_LINE) as u64;
const _: () = assert!(LOCK as usize + LINE == LEAF_BYTES);

/// Offset of the word to which clients add as published.
pub(crate) const COUNT: u64 = LOCK + 32;

/// Bytes of a leaf's first line.
pub(crate) const HEADER_LINE: usize = LINE;

/// Bytes of the lock line that a structure change writes: all but the count.
pub(crate) const LOCK_BYTES: usize = 32;

/// Stands in each header.
const MARK: u64 = 0xd01f_1eaf_0001_0000;

/// State of a leaf, in the low bits of a word that has its stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LeafState {
    /// Free for all.
    Open = 1,
    /// Locked by a structure change that has changed nothing yet. What is there counts.
    Frozen = 2,
    /// Being changed as the lock line says.
    Changing = 3,
    /// Written, and not linked yet.
    Unborn = 4,
    /// Replaced by another leaf or node; or free memory.
    Retired = 5,
}

/// A structure change that has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Task {
    /// Slots of deleted keys become free.
    Clean,
    /// Keys from one on are the partner's.
    Split,
    /// The partner, an inner node, has all keys.
    Burst,
    /// The partner has all keys, and those of other leaves.
    Merge,
    /// The partner has all keys, and takes the parent's place.
    Collapse,
}

impl Task {
    const ALL: [Self; 5] = [Self::Clean, Self::Split, Self::Burst, Self::Merge, Self::Collapse];
}

/// Content of a lock line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LockLine {
    /// State word: stamp and [`LeafState`].
    pub(crate) word: u64,
    /// What has begun, if the leaf is changing.
    pub(crate) task: Option<Task>,
    /// Lowest key of the partner.
    pub(crate) from: u64,
    /// Entry of the partner.
    pub(crate) partner: Entry,
}

impl LockLine {
    /// The line of a state without a task.
    pub(crate) const fn plain(stamp: u64, state: LeafState) -> Self {
        Self { word: stamp | state as u64, task: None, from: 0, partner: Entry::EMPTY }
    }

    pub(crate) const fn changing(stamp: u64, task: Task, from: u64, partner: Entry) -> Self {
        Self { word: stamp | LeafState::Changing as u64, task: Some(task), from, partner }
    }

    /// Reads the line, whatever is there.
    pub(crate) fn parse(line: &[u8]) -> Self {
        let at = |at: usize| word_at(line, at);
        let task = at(8).checked_sub(1).and_then(|task| Task::ALL.get(usize::try_from(task).ok()?)).copied();
        Self { word: at(0), task, from: at(16), partner: Entry(at(24)) }
    }

    pub(crate) fn to_bytes(self) -> [u8; LOCK_BYTES] {
        let mut bytes = [0; LOCK_BYTES];
        let task = self.task.map_or(0, |task| task as u64 + 1);
        for (place, word) in bytes.chunks_exact_mut(8).zip([self.word, task, self.from, self.partner.0]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(crate) const fn is(&self, state: LeafState) -> bool {
        self.word & 7 == state as u64
    }

    pub(crate) const fn stamp(&self) -> u64 {
        self.word & !7
    }
}

/// Reasons for which bytes are not a leaf that answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoLeaf {
    /// Another one is in its place, or never was one.
    Gone,
    /// A structure change is under way: again, a moment later.
    Busy,
    /// The header does not match its sum.
    Damaged,
}

/// Whether an operation only reads a leaf, or will change a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    Read,
    Change,
}

/// A key in a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// In this slot, with this value; or with none yet.
    At(usize, Word),
    /// Nowhere, and this slot is the first free one.
    Nowhere(Option<usize>),
}

/// What the first line of a leaf says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) min: u64,
    pub(crate) max: u64,
    /// Address of the leaf.
    pub(crate) own: GlobalAddress,
    /// Entry of the node above.
    pub(crate) parent: Entry,
}

impl Header {
    /// `None`: these are no leaf's bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let at = |at: usize| word_at(bytes, at);
        let (own, parent) = (GlobalAddress(at(40)), Entry(at(16)));
        let is_one = at(8) == MARK && !own.is_null() && is_sound(bytes);
        is_one.then_some(Self { min: at(24), max: at(32), own, parent })
    }

    pub(crate) const fn covers(&self, key: u64) -> bool {
        self.min <= key && key <= self.max
    }
}

/// Offset of the sum of a header.
const SUM: usize = 48;

/// Sum of what a header says.
fn sum(line: &[u8]) -> u64 {
    (8..SUM).step_by(8).fold(0, |sum, at| mix(sum ^ word_at(line, at)))
}

/// Whether a header matches its sum.
fn is_sound(line: &[u8]) -> bool {
    word_at(line, SUM) == sum(line) || !Check::SoundHeaders.on()
}

/// The bytes of a leaf that was read.
#[derive(Clone, Copy)]
pub(crate) struct Leaf<'b>(&'b [u8; LEAF_BYTES]);

/// Offset of a slot's key.
pub(crate) const fn key_offset(slot: usize) -> u64 {
    (KEYS + slot / PER_LINE * LINE + 8 + slot % PER_LINE * 8) as u64
}

/// Offset of a slot's value.
pub(crate) const fn value_offset(slot: usize) -> u64 {
    key_offset(slot) + (VALUES - KEYS) as u64
}

/// The word of a free slot, in a leaf with this lowest key.
pub(crate) const fn free_word(min: u64) -> u64 {
    if min >> 63 == 0 { u64::MAX } else { 0 }
}

/// The word of a deleted key.
pub(crate) const fn tombstone(min: u64) -> u64 {
    free_word(min) ^ 1
}

impl<'b> Leaf<'b> {
    /// Bytes as a leaf. `None` if they are of another number.
    pub(crate) fn new(bytes: &'b [u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    fn word(&self, at: usize) -> u64 {
        word_at(self.0, at)
    }

    pub(crate) fn lock(&self) -> LockLine {
        LockLine::parse(&self.0[LOCK as usize..])
    }

    /// Entry of the parent.
    pub(crate) fn parent(&self) -> Entry {
        Entry(self.word(16))
    }

    pub(crate) fn min(&self) -> u64 {
        self.word(24)
    }

    pub(crate) fn max(&self) -> u64 {
        self.word(32)
    }

    /// Address of the leaf, as it says itself.
    pub(crate) fn own(&self) -> GlobalAddress {
        GlobalAddress(self.word(40))
    }

    pub(crate) fn stamp(&self) -> u64 {
        self.word(0)
    }

    /// Whether there is, or was, a leaf.
    pub(crate) fn is_leaf(&self) -> bool {
        self.word(8) == MARK
    }

    pub(crate) fn covers(&self, key: u64) -> bool {
        (self.min() <= key && key <= self.max()) || !Check::Range.on()
    }

    /// Whether all lines but the lock's have the stamp of the lock line.
    fn is_whole(&self) -> bool {
        let stamp = self.lock().stamp();
        (0..LOCK as usize).step_by(LINE).all(|line| self.word(line) == stamp)
    }

    /// Whether the leaf may be used so now.
    pub(crate) fn check(&self, how: Use) -> Result<(), NoLeaf> {
        let lock = self.lock();
        if !self.is_leaf() {
            return Err(NoLeaf::Gone);
        }
        if !is_sound(self.0) {
            return Err(NoLeaf::Damaged);
        }
        if lock.is(LeafState::Retired) {
            return Err(NoLeaf::Gone);
        }
        let allows = match how {
            Use::Read => {
                lock.is(LeafState::Open)
                    || lock.is(LeafState::Frozen)
                    || lock.is(LeafState::Changing) && !Check::Stamps.on()
            }
            Use::Change => {
                lock.is(LeafState::Open)
                    || (lock.is(LeafState::Frozen) || lock.is(LeafState::Changing)) && !Check::Locked.on()
            }
        };
        if lock.is(LeafState::Unborn) {
            return if Check::Unborn.on() { Err(NoLeaf::Busy) } else { Ok(()) };
        }
        let is_right = allows && (self.is_whole() || !Check::Stamps.on());
        if is_right { Ok(()) } else { Err(NoLeaf::Busy) }
    }

    /// Whether its lock line says that no structure change is under way, or nothing that a client says, and its lines have several
    /// stamps all the same. Torn reads look so, too.
    pub(crate) fn is_mixed(&self) -> bool {
        let lock = self.lock();
        match () {
            () if lock.is(LeafState::Open) || lock.is(LeafState::Frozen) => !self.is_whole(),
            () => !(1..=5).contains(&(lock.word & 7)),
        }
    }

    /// What a structure change writes of a leaf: header and stamps. Keys and values change without one.
    pub(crate) fn skeleton(&self) -> [u8; LINE * 3] {
        let mut bytes = [0; LINE * 3];
        bytes[..LINE].copy_from_slice(&self.0[..LINE]);
        for (line, place) in bytes[LINE..].chunks_exact_mut(8).enumerate() {
            place.copy_from_slice(&self.0[line * LINE..][..8]);
        }
        bytes
    }

    /// A key that is neither in the leaf's range, nor stands for a free slot or a deleted key.
    pub(crate) fn stray(&self) -> Option<usize> {
        let (range, free) = (self.min()..=self.max(), free_word(self.min()));
        let is_stray = |key: u64| !range.contains(&key) && key != free && key != free ^ 1;
        (0..SLOTS).find(|&slot| is_stray(self.key(slot)))
    }

    pub(crate) fn key(&self, slot: usize) -> u64 {
        self.word(key_offset(slot) as usize)
    }

    pub(crate) fn value(&self, slot: usize) -> Word {
        Word(self.word(value_offset(slot) as usize))
    }

    /// Looks for a key among all slots.
    pub(crate) fn find(&self, key: u64) -> Place {
        let free = free_word(self.min());
        let mut first = None;
        for slot in 0..SLOTS {
            let found = self.key(slot);
            if found == key {
                return Place::At(slot, self.value(slot));
            }
            if found == free {
                first = first.or(Some(slot));
                if !Check::AllSlots.on() {
                    break;
                }
            }
        }
        Place::Nowhere(first)
    }

    /// A free slot that is not the first one, as must not be.
    pub(crate) fn any_free(&self, draw: usize) -> Option<usize> {
        let free = free_word(self.min());
        (0..SLOTS).map(|at| (at + draw) % SLOTS).find(|&slot| self.key(slot) == free)
    }

    /// Keys that have a value, with their values, in no order.
    pub(crate) fn items(&self) -> impl Iterator<Item = (u64, Word)> + use<'b> {
        let leaf = *self;
        let range = leaf.min()..=leaf.max();
        let slots = (0..SLOTS).map(move |slot| (leaf.key(slot), leaf.value(slot)));
        slots.filter(move |(key, value)| range.contains(key) && !value.is_none())
    }

    /// Number of keys that have a value.
    pub(crate) fn count_items(&self) -> usize {
        self.items().count()
    }
}
