//! Values: eight bytes in the leaf, or a pointer to a record.
//!
//! An index of [fixed](crate::Shape::fixed) values holds eight bytes a key, and every word but one
//! is a value. In another index a word that begins with a tag of 12 bits is no value: it is a
//! pointer to a record, or says that there is none. A value of eight bytes that begins so gets a
//! record, too.
//!
//! ```text
//!   63      52 51    46 45     35 34    30 29          0
//!   tag 0xda1  length   version   server   64-byte units
//!      12        6        11        5         30
//! ```
//!
//! The length is the class of the record's place, of which there are 53. The version is the record's, so
//! that no word comes twice to a key: a place has 2048 records before it does.

use fatbtree_remote_memory::record::{
    RECORD_HEAD, RecordHead, RecordPointer, UNPUBLISHED, read_record, record_bytes, write_record,
};
use fatbtree_remote_memory::{CommonError, GlobalAddress};
use fatbtree_verbs::LARGEST_BUFFER;

use crate::entry::UNIT;
use crate::error::IndexError;
use crate::layout::{MAX_VALUE, Shape};

const TAG: u64 = 0xda1;
const TAG_AT: u32 = 52;
const CLASS_AT: u32 = 46;
const VERSION_AT: u32 = 35;
const SERVER_AT: u32 = 30;

/// Memory servers that records may lie on: numbers below this.
pub const MAX_RECORD_SERVERS: u16 = 1 << 5;

/// Bytes of a server's region that records may lie in: 64 GiB.
pub const MAX_RECORD_REGION: u64 = UNIT << SERVER_AT;

/// A value's word in a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Word(pub(crate) u64);

/// A pointer to a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pointer {
    pub(crate) at: GlobalAddress,
    /// Bytes of the place.
    pub(crate) bytes: u32,
    /// Low 11 bits of the record's version.
    pub(crate) version: u32,
}

impl Word {
    /// No value: the key is absent.
    pub(crate) const NONE: Self = Self(TAG << TAG_AT);

    pub(crate) const fn is_none(self) -> bool {
        self.0 == Self::NONE.0
    }

    /// The word of an eight-byte value in an index of fixed values. `None`: the word is reserved.
    pub(crate) const fn fixed(value: u64) -> Option<Self> {
        if value == Self::NONE.0 { None } else { Some(Self(value)) }
    }

    /// The word of an eight-byte value in another index. `None`: it needs a record.
    pub(crate) const fn inline(value: u64) -> Option<Self> {
        if value >> TAG_AT == TAG { None } else { Some(Self(value)) }
    }

    /// The word of a value in an index of a shape. `None`: the value needs a record.
    ///
    /// # Errors
    /// When such an index takes no such value.
    pub(crate) fn of_value(value: &[u8], shape: &Shape) -> Result<Option<Self>, IndexError> {
        let (found, most) = (value.len(), shape.max_value);
        let eight = value.try_into().ok().map(u64::from_le_bytes);
        if shape.fixed() {
            let word = eight.ok_or(IndexError::Length { found, expected: "exactly 8" })?;
            return Self::fixed(word).map(Some).ok_or(IndexError::Reserved { word });
        }
        if found > most as usize {
            return Err(CommonError::TooLong { found, most }.into());
        }
        Ok(eight.and_then(Self::inline))
    }

    /// The word that leads to a record. `None` if words do not reach it.
    pub(crate) const fn of_record(pointer: Pointer) -> Option<Self> {
        let (server, offset) = (pointer.at.server(), pointer.at.offset());
        let fits = server < MAX_RECORD_SERVERS && offset < MAX_RECORD_REGION && offset > 0;
        if !fits || !offset.is_multiple_of(UNIT) {
            return None;
        }
        let class = class_of(pointer.bytes / UNIT as u32) as u64;
        let version = (pointer.version & 0x7ff) as u64;
        let place = ((server as u64) << SERVER_AT) | (offset / UNIT);
        Some(Self(TAG << TAG_AT | class << CLASS_AT | version << VERSION_AT | place))
    }

    /// The pointer, in an index whose values may be long.
    pub(crate) const fn pointer(self) -> Option<Pointer> {
        if self.0 >> TAG_AT != TAG || self.is_none() {
            return None;
        }
        let at =
            GlobalAddress::new((self.0 >> SERVER_AT & 31) as u16, (self.0 & ((1 << SERVER_AT) - 1)) * UNIT);
        let bytes = units_of((self.0 >> CLASS_AT & 63) as u32) * UNIT as u32;
        Some(Pointer { at, bytes, version: (self.0 >> VERSION_AT & 0x7ff) as u32 })
    }
}

/// Bytes of the place of a record whose value has `length` bytes: a multiple of 64 with three
/// significant bits, or the record of the longest value. A reader asks for as many, because a word tells the class and
/// not the length.
#[must_use]
pub const fn place_bytes(length: u32) -> u32 {
    units_of(class_of(units(length))) * UNIT as u32
}

/// Units that hold the record of a value.
const fn units(length: u32) -> u32 {
    record_bytes(length).div_ceil(UNIT as u32)
}

/// The largest class: its places hold the record of the longest value, and no more.
const LAST_CLASS: u32 = class_of(units(MAX_VALUE));
const _: () = assert!(LAST_CLASS < 64 && place_bytes(MAX_VALUE) <= LARGEST_BUFFER);

/// Number of the smallest class with so many units: 1 to 8 one by one, then four up to each double.
const fn class_of(units: u32) -> u32 {
    if units <= 8 {
        return units.saturating_sub(1);
    }
    let power = (units - 1).ilog2();
    let step = 1 << (power - 2);
    8 + (power - 3) * 4 + (units - (1 << power)).div_ceil(step) - 1
}

/// Units of a class.
const fn units_of(class: u32) -> u32 {
    if class < 8 {
        return class + 1;
    }
    if class >= LAST_CLASS {
        return units(MAX_VALUE);
    }
    let power = (class - 8) / 4 + 3;
    (1 << power) + ((class - 8) % 4 + 1) * (1 << (power - 2))
}

/// Writes the record of a value.
pub(crate) fn write(bytes: &mut Vec<u8>, key: u64, version: u32, value: &[u8]) {
    bytes.clear();
    bytes.resize(RECORD_HEAD + value.len(), 0);
    // No switch leads readers here: the mark of a published record is not needed.
    write_record(bytes, key, version, UNPUBLISHED, |room| room.copy_from_slice(value));
}

/// Length and version of the record that a pointer means. `None`: another one lies there.
pub(crate) fn find(bytes: &[u8], key: u64, pointer: Pointer) -> Option<(u32, u32)> {
    let head = bytes.first_chunk::<RECORD_HEAD>().map(RecordHead::parse)?;
    let (length, version) = (head.length(), head.version());
    let of = RecordPointer { address: pointer.at, length, version: pointer.version };
    read_record(bytes, key, of).ok().map(|_| (length, version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_few_sizes_and_words_tell_them() {
        let mut before = 0;
        let borders = (0..=LAST_CLASS).map(|class| units_of(class) * UNIT as u32 - RECORD_HEAD as u32);
        let around =
            borders.flat_map(|last| [last - 1, last, last + 1]).filter(|length| *length <= MAX_VALUE);
        let mut lengths: Vec<u32> = (0..3_000).chain([65_536, 100_000, MAX_VALUE]).chain(around).collect();
        lengths.sort_unstable();
        for length in lengths {
            let bytes = place_bytes(length);
            assert!(bytes >= record_bytes(length) && bytes <= LARGEST_BUFFER, "{length}");
            assert!(bytes >= before, "{length}");
            assert!(bytes <= 512 || bytes - record_bytes(length) <= bytes / 5, "{length}");
            before = bytes;
            for version in [0, 1, 2047] {
                let pointer = Pointer { at: GlobalAddress::new(31, 64 * 77), bytes, version };
                let word = Word::of_record(pointer).unwrap();
                assert_eq!(word.pointer(), Some(pointer), "{length}");
                assert!(!word.is_none() && Word::inline(word.0).is_none());
            }
        }
        assert_eq!((LAST_CLASS, place_bytes(MAX_VALUE)), (52, (1 << 20) + 64));
    }

    #[test]
    fn words_without_a_record() {
        assert_eq!(Word::NONE.pointer(), None);
        assert!(Word::fixed(Word::NONE.0).is_none() && Word::inline(Word::NONE.0).is_none());
        assert_eq!(Word::inline(7), Some(Word(7)));
        assert_eq!(Word(7).pointer(), None);
        for (server, offset) in [(32, 64), (0, MAX_RECORD_REGION), (0, 0), (0, 32)] {
            let at = GlobalAddress::new(server, offset);
            assert_eq!(Word::of_record(Pointer { at, bytes: 64, version: 1 }), None);
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let (mut bytes, at) = (Vec::new(), GlobalAddress::new(0, 64));
        write(&mut bytes, 7, 3, b"hello");
        let pointer = Pointer { at, bytes: place_bytes(5), version: 3 };
        bytes.resize(pointer.bytes as usize, 0xee);
        assert_eq!(find(&bytes, 7, pointer), Some((5, 3)));
        assert_eq!(find(&bytes, 8, pointer), None);
        assert_eq!(find(&bytes, 7, Pointer { version: 4, ..pointer }), None);
    }
}
