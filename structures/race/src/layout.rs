//! Where everything lies: region header, directory, subtables, buckets.
//!
//! ```text
//!   region of the first server             directory                       subtable
//!   ┌────────────────────┐ 0               ┌──────────────────────┐ 0      ┌──────────────────────────┐ 0
//!   │ region header      │                 │ global depth, members│        │ bucket header            │
//!   ├────────────────────┤ 64              ├──────────────────────┤ 64     │ successors, or 0         │
//!   │ directory          │                 │ entry of suffix 0    │        ├──────────────────────────┤ 64
//!   ├────────────────────┤                 │ entry of suffix 1    │        │ main bucket     ┐ group  │
//!   │ first subtable     │                 │ …                    │        │ overflow bucket │        │
//!   ├────────────────────┤ spare memory    │ 2^bits entries       │        │ main bucket     ┘        │
//!   │ chunks             │                 └──────────────────────┘        │ …                        │
//!   └────────────────────┘                                                 └──────────────────────────┘
//!
//!   bucket, 64 bytes:  header │ slot │ slot │ slot │ slot │ slot │ slot │ slot
//!   combined bucket, 128 bytes:  main and overflow, or overflow and main, of one group
//! ```
//!
//! Headers never change: a subtable has one depth and one suffix for ever. The region of each other server has a line for the word of
//! members where the first server's has the directory, and chunks after it.

use std::fmt;

#[cfg(doc)]
use fatbtree_remote_memory::byte_keys::longest_value;
use fatbtree_remote_memory::byte_keys::{KEY_LENGTH, MAX_KEY_BYTES};
use fatbtree_remote_memory::record::MAX_VALUE;
use fatbtree_remote_memory::{GlobalAddress, HEADER_BYTES, Keys, RegionHeader, ServerSet, SizeClass};

use crate::hash::Hash;
use crate::slot::{MAX_SERVERS, Place, Slot, UNIT, sum};

/// Name of the structure in the region's header.
pub const STRUCTURE: [u8; 8] = *b"racehash";

/// Size class of blocks: records of keys and values, of several sizes, all multiples of 64 bytes.
pub const BLOCKS: SizeClass = SizeClass(0);

/// Size class of pairs of subtables, into which a subtable is split.
pub const PAIRS: SizeClass = SizeClass(1);

/// Bytes of a bucket: a header of 8 bytes and [`SLOTS`] slots.
pub const BUCKET_BYTES: u64 = 64;

/// Slots of a bucket.
pub const SLOTS: usize = 7;

/// Bytes of a combined bucket, which one READ brings.
pub const COMBINED_BYTES: u32 = 128;

/// Bits of a suffix: the directory has 2^16 entries at most.
pub const MAX_DIRECTORY_BITS: u8 = 16;

/// Buckets of a group: main, overflow, main.
const GROUP_BUCKETS: u64 = 3;
const GROUP_BYTES: u64 = GROUP_BUCKETS * BUCKET_BYTES;

/// Bytes before a subtable's first bucket, and before a directory's first entry.
pub(crate) const HEAD_BYTES: u64 = 64;

/// Offset of the word in a subtable that names its successors.
pub(crate) const SUCCESSORS: u64 = 8;

/// Offset of the word that names the generations of all servers: in a directory, or in the line at the same place of another server.
pub(crate) const MEMBERS: u64 = 8;

/// Stands in each bucket header.
const MAGIC: u64 = 0x5ace;

/// Version of this layout, in the region's header of a table whose keys are numbers.
const FORMAT: u8 = 2;

/// The same where keys are bytes: programs that do not know of such keys take the table for none.
const FORMAT_BYTES: u8 = 3;

/// A memory server's description of its part of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableInfo {
    /// Shape of the table.
    pub shape: Shape,
    /// Address of the directory, on the table's first server.
    pub directory: GlobalAddress,
}

/// Words for people: `table directory=64 groups=64`.
impl fmt::Display for TableInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, directory } = self;
        write!(f, "table directory={} groups={}", directory.raw(), shape.groups)?;
        match shape.keys {
            Keys::Numbers => Ok(()),
            Keys::Bytes => write!(f, " keys=bytes"),
        }
    }
}

/// Shape of a table. It is chosen when the table is made, and never changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "host", derive(serde::Serialize, serde::Deserialize))]
pub struct Shape {
    /// Groups of a subtable, each with 21 slots: 1 to 65,536.
    pub groups: u32,
    /// Binary logarithm of the directory's entries: 1 to [`MAX_DIRECTORY_BITS`]. The table has as many subtables at most.
    pub directory_bits: u8,
    /// Memory servers that subtables and blocks are spread over: a bit for each number.
    pub servers: u32,
    /// Longest value in bytes; with a key of bytes no more than [`longest_value`]. A server's chunks hold the block of the longest
    /// [record](Self::longest_record).
    pub max_value: u32,
    /// Kind of the keys.
    #[cfg_attr(feature = "host", serde(default, skip_serializing_if = "are_numbers"))]
    pub keys: Keys,
}

/// Descriptions of such tables are as they were before there were others.
#[cfg(feature = "host")]
fn are_numbers(keys: &Keys) -> bool {
    *keys == Keys::Numbers
}

/// Words for people.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { groups, directory_bits, servers, max_value, keys } = *self;
        let servers = ServerSet(servers);
        write!(f, "{servers}, values of up to {max_value} bytes, ")?;
        write!(f, "{groups} groups a subtable, {directory_bits} bits of directory")?;
        match keys {
            Keys::Numbers => Ok(()),
            Keys::Bytes => write!(f, ", keys of bytes"),
        }
    }
}

impl Default for Shape {
    /// One server, number 0; subtables of 64 groups, up to 65,536 of them; values of up to 1 MiB; keys that are numbers.
    fn default() -> Self {
        let (max_value, keys) = (MAX_VALUE, Keys::Numbers);
        Self { groups: 64, directory_bits: MAX_DIRECTORY_BITS, servers: 1, max_value, keys }
    }
}

/// A shape that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadShape {
    /// No or too many groups.
    #[error("a subtable of {0} groups: choose 1 to 65536")]
    Groups(u32),
    /// No or too many entries.
    #[error("a directory of 2^{0} entries: choose 1 to {MAX_DIRECTORY_BITS} bits")]
    Directory(u8),
    /// No server.
    #[error("a table on no server: name at least one memory server below {MAX_SERVERS}")]
    Servers,
    /// Values longer than a record.
    #[error("values of {0} bytes: choose 1 MiB or less")]
    Values(u32),
}

impl Shape {
    /// Whether such a table can be.
    ///
    /// # Errors
    /// The first field that is out of bounds.
    pub const fn check(&self) -> Result<(), BadShape> {
        if self.groups == 0 || self.groups > 1 << 16 {
            return Err(BadShape::Groups(self.groups));
        }
        if self.directory_bits == 0 || self.directory_bits > MAX_DIRECTORY_BITS {
            return Err(BadShape::Directory(self.directory_bits));
        }
        if self.servers == 0 {
            return Err(BadShape::Servers);
        }
        if self.max_value > MAX_VALUE {
            return Err(BadShape::Values(self.max_value));
        }
        Ok(())
    }

    /// Bytes of the longest record without its head: a value, and the key before it if keys are bytes.
    #[must_use]
    pub const fn longest_record(&self) -> u32 {
        let key = match self.keys {
            Keys::Numbers => 0,
            Keys::Bytes => (KEY_LENGTH + MAX_KEY_BYTES) as u32,
        };
        let longest = self.max_value.saturating_add(key);
        if longest < MAX_VALUE { longest } else { MAX_VALUE }
    }

    /// Combined buckets of a subtable.
    #[must_use]
    pub const fn combined_buckets(&self) -> u32 {
        self.groups * 2
    }

    /// Slots of a subtable.
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.groups as usize * GROUP_BUCKETS as usize * SLOTS
    }

    /// Bytes of a subtable, a multiple of 64.
    #[must_use]
    pub const fn subtable_bytes(&self) -> u64 {
        HEAD_BYTES + self.groups as u64 * GROUP_BYTES
    }

    /// Bytes of a directory, a multiple of 64.
    #[must_use]
    pub const fn directory_bytes(&self) -> u64 {
        HEAD_BYTES + (8_u64 << self.directory_bits).next_multiple_of(UNIT)
    }

    /// The server with the `number`th bit of [`servers`](Self::servers), counted round and round.
    #[must_use]
    pub fn server(&self, number: u32) -> u16 {
        let nth = number % self.servers.count_ones().max(1);
        let rest = (0..nth).fold(self.servers, |servers, _| servers & servers.wrapping_sub(1));
        rest.trailing_zeros() as u16
    }

    /// The header of a server's region. `directory` lies on the table's first server.
    #[must_use]
    pub fn header(&self, directory: GlobalAddress, generation: u64, region_bytes: u64) -> RegionHeader {
        let mut configuration = [0; fatbtree_remote_memory::CONFIGURATION_BYTES];
        let format = match self.keys {
            Keys::Numbers => FORMAT,
            Keys::Bytes => FORMAT_BYTES,
        };
        (configuration[0], configuration[1]) = (format, self.directory_bits);
        configuration[4..8].copy_from_slice(&self.groups.to_le_bytes());
        configuration[8..12].copy_from_slice(&self.servers.to_le_bytes());
        configuration[12..16].copy_from_slice(&self.max_value.to_le_bytes());
        RegionHeader { structure: STRUCTURE, root: directory, generation, region_bytes, configuration }
    }

    /// Shape and directory that a region's header tells. `None` if no table of this format lies there.
    #[must_use]
    pub fn of_header(line: &[u8; HEADER_BYTES]) -> Option<(Self, GlobalAddress)> {
        let RegionHeader { root, configuration, .. } = RegionHeader::parse(line, &STRUCTURE)?;
        let word =
            |at: usize| configuration[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let keys = match configuration[0] {
            FORMAT => Keys::Numbers,
            FORMAT_BYTES => Keys::Bytes,
            _ => return None,
        };
        let directory_bits = configuration[1];
        let shape = Self { groups: word(4), directory_bits, servers: word(8), max_value: word(12), keys };
        let fits = shape.check().is_ok() && Place::of(root).is_some();
        fits.then_some((shape, root))
    }
}

/// First word of each bucket, and of each subtable: depth and suffix of the subtable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BucketHeader {
    /// Local depth of the subtable.
    pub depth: u8,
    /// Low `depth` bits of the hashes of all keys in it.
    pub suffix: u32,
}

impl BucketHeader {
    /// The word in memory: suffix, local depth and a magic number of 16 bits.
    #[must_use]
    pub const fn word(self) -> u64 {
        (self.suffix as u64) << 24 | (self.depth as u64) << 16 | MAGIC
    }

    /// Reads the word. `None` if it is none.
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Self> {
        let header = Self { depth: (word >> 16) as u8, suffix: (word >> 24) as u32 };
        let fits = header.word() == word && header.depth <= MAX_DIRECTORY_BITS;
        if fits && (header.suffix as u64) < 1 << header.depth { Some(header) } else { None }
    }

    /// Whether keys of this hash belong here.
    #[must_use]
    pub const fn covers(self, hash: Hash) -> bool {
        hash.suffix(self.depth) == self.suffix
    }

    /// The two halves of the subtable: lower and upper.
    #[must_use]
    pub const fn halves(self) -> [Self; 2] {
        let depth = self.depth + 1;
        [Self { depth, ..self }, Self { depth, suffix: self.suffix | 1 << self.depth }]
    }
}

/// A subtable as a directory names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// Where it begins.
    pub place: Place,
    /// Its local depth.
    pub depth: u8,
}

impl Leaf {
    const DEPTH: u32 = 48;

    /// Bits of an entry that are a sum of the others.
    const SUM: u32 = 8;

    /// Entry of a directory: RACE's, 8 bits of depth and 48 of pointer; and 8 bits that are a sum of these.
    #[must_use]
    pub const fn word(self) -> u64 {
        let word = (self.depth as u64) << Self::DEPTH | self.place.word();
        word | sum(word, Self::SUM)
    }

    /// Reads an entry. `None` if there is none, or one that is damaged.
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Self> {
        let depth = (word >> Self::DEPTH) as u8;
        match Place::from_word(word) {
            Some(place) if depth <= MAX_DIRECTORY_BITS => {
                let entry = Self { place, depth };
                if entry.word() == word { Some(entry) } else { None }
            }
            _ => None,
        }
    }

    /// The two halves of this subtable, which lie side by side.
    #[must_use]
    pub fn halves(self, pair: Place, shape: &Shape) -> Option<[Self; 2]> {
        let depth = self.depth + 1;
        let upper = Place::of(pair.address().behind(shape.subtable_bytes()))?;
        Some([Self { place: pair, depth }, Self { place: upper, depth }])
    }
}

/// Offset of an entry in its directory.
#[must_use]
pub(crate) const fn entry_offset(number: u32) -> u64 {
    HEAD_BYTES + number as u64 * 8
}

/// Offset of a combined bucket in its subtable.
#[must_use]
pub(crate) const fn combined_offset(bucket: u32) -> u64 {
    HEAD_BYTES + (bucket / 2) as u64 * GROUP_BYTES + (bucket % 2) as u64 * BUCKET_BYTES
}

/// Offset of the bucket in a combined bucket that belongs to it alone.
#[must_use]
pub(crate) const fn main_bucket(bucket: u32) -> u64 {
    (bucket % 2) as u64 * BUCKET_BYTES
}

/// Whether the word at this offset of a subtable is a slot.
#[must_use]
pub(crate) const fn is_slot(offset: u64) -> bool {
    offset >= HEAD_BYTES && !offset.is_multiple_of(BUCKET_BYTES)
}

/// Whether a key of this hash may be in the slot at an offset of its subtable.
pub(crate) fn may_be_at(shape: &Shape, hash: Hash, offset: u64) -> bool {
    let its = hash.buckets(shape);
    buckets_of(offset).any(|bucket| its.contains(&bucket))
}

/// Combined buckets in which the slot at an offset lies.
fn buckets_of(offset: u64) -> impl Iterator<Item = u32> {
    let bucket = (offset - HEAD_BYTES) / BUCKET_BYTES;
    let (group, place) = (bucket / GROUP_BUCKETS, bucket % GROUP_BUCKETS);
    let first = (group * 2 + place / 2) as u32;
    first..=first + u32::from(place == 1)
}

/// Offsets of all slots of a subtable, ascending.
pub(crate) fn slot_offsets(shape: &Shape) -> impl Iterator<Item = u64> {
    (HEAD_BYTES..shape.subtable_bytes()).step_by(8).filter(|&offset| is_slot(offset))
}

/// Bytes of a subtable with these slots, by the offsets of [`slot_offsets`].
pub(crate) fn write_subtable(bytes: &mut [u8], header: BucketHeader, slot: impl Fn(u64) -> Slot) {
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        let offset = at as u64 * 8;
        let value = match offset {
            _ if is_slot(offset) => slot(offset).0,
            _ if offset.is_multiple_of(BUCKET_BYTES) => header.word(),
            _ => 0,
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// A word of bytes that were read; 0 beyond their end.
pub(crate) fn word_at(bytes: &[u8], offset: u64) -> u64 {
    fatbtree_remote_memory::word_at(bytes, usize::try_from(offset).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn combined_buckets_of_a_group_share_the_overflow_bucket() {
        assert_eq!([0, 1, 2, 3].map(combined_offset), [64, 128, 256, 320]);
        assert_eq!(Shape { groups: 2, ..Shape::default() }.subtable_bytes(), 64 + 2 * 192);
        let of = |offset| buckets_of(offset).collect::<Vec<_>>();
        assert_eq!((of(64 + 8), of(128 + 56), of(192 + 8)), (vec![0], vec![0, 1], vec![1]));
        assert_eq!(of(256 + 8), [2]);
    }

    #[test]
    fn a_subtable_has_a_header_in_each_bucket() {
        let shape = Shape { groups: 2, ..Shape::default() };
        let header = BucketHeader { depth: 3, suffix: 5 };
        let mut bytes = vec![0; shape.subtable_bytes() as usize];
        write_subtable(&mut bytes, header, Slot);
        assert_eq!(word_at(&bytes, SUCCESSORS), 0);
        assert!((0..7).all(|bucket| word_at(&bytes, bucket * 64) == header.word()));
        assert!(slot_offsets(&shape).all(|offset| word_at(&bytes, offset) == offset));
        assert_eq!(slot_offsets(&shape).count(), shape.slots());
        assert_eq!(word_at(&bytes, 1 << 40), 0);
    }

    #[test]
    fn servers_are_counted_round_and_round() {
        let shape = Shape { servers: 0b1010_0001, ..Shape::default() };
        assert_eq!([0, 1, 2, 3, 4].map(|number| shape.server(number)), [0, 5, 7, 0, 5]);
    }

    proptest! {
        #[test]
        fn headers_and_entries_are_read_as_they_were_written(
            depth in 0..=MAX_DIRECTORY_BITS,
            suffix: u32,
            unit in 1..1_u64 << 30,
            word: u64,
        ) {
            let header = BucketHeader { depth, suffix: suffix & ((1 << depth) - 1) };
            prop_assert_eq!(BucketHeader::from_word(header.word()), Some(header));
            if let Some(found) = BucketHeader::from_word(word) {
                prop_assert_eq!(found.word(), word);
            }
            let place = Place::of(GlobalAddress::new(1, unit * 64)).unwrap();
            let leaf = Leaf { place, depth };
            prop_assert_eq!(Leaf::from_word(leaf.word()), Some(leaf));
            prop_assert!((0..64).all(|bit| Leaf::from_word(leaf.word() ^ 1 << bit).is_none()));
        }

        #[test]
        fn a_shape_is_read_as_it_was_written(
            groups in 1..=1_u32 << 16,
            directory_bits in 1..=MAX_DIRECTORY_BITS,
            servers in 1..=u32::MAX,
            max_value in 0..=1_u32 << 20,
            is_bytes: bool,
        ) {
            let keys = if is_bytes { Keys::Bytes } else { Keys::Numbers };
            let shape = Shape { groups, directory_bits, servers, max_value, keys };
            let directory = GlobalAddress::new(4, 64);
            let line = shape.header(directory, 7, 1 << 20).to_bytes();
            prop_assert_eq!(Shape::of_header(&line), Some((shape, directory)));
        }
    }
}
