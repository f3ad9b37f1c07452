//! Blocks: a key and its value, as a [record](fatbtree_remote_memory::record) in memory of its own.
//!
//! RACE's block has key, value and checksum. The product's record has them, too, and a version. A block is a record that begins at a
//! multiple of 64 bytes; it is read, and checked, as it was written or not at all. One of a key of bytes has the key
//! [before the value](fatbtree_remote_memory::byte_keys).

use std::ops::Range;

use fatbtree_remote_memory::Keys;
use fatbtree_remote_memory::byte_keys::{KEY_LENGTH, join, key_room, parts};
use fatbtree_remote_memory::record::{
    RECORD_HEAD, RecordHead, RecordPointer, UNPUBLISHED, read_record, record_bytes, write_record,
};

use crate::key::Asked;
use crate::slot::{BlockPointer, UNIT, block_units};

/// The largest length that a slot tells, in units: such a block has as many units, or more.
const MOST_UNITS: u32 = u8::MAX as u32;

/// Bytes of the block of a value, or of a key of bytes and its value, with `length` bytes: a multiple of 64 with three significant bits. So at most a fifth of it is empty
/// after the first eight units, and what one block leaves another one can use.
#[must_use]
pub const fn block_bytes(length: u32) -> u32 {
    block_units(units(length)) * UNIT as u32
}

/// Units that hold the record of a value.
const fn units(length: u32) -> u32 {
    record_bytes(length).div_ceil(UNIT as u32)
}

/// Units in the slot of a value: those of its block.
pub(crate) const fn slot_units(length: u32) -> u8 {
    let units = block_units(units(length));
    if units < MOST_UNITS { units as u8 } else { MOST_UNITS as u8 }
}

/// Bytes of a block that the first READ asks for.
pub(crate) const fn first_bytes(pointer: BlockPointer) -> u32 {
    pointer.units as u32 * UNIT as u32
}

/// Bytes that the first READ of a block leaves to be read, as its head says.
pub(crate) fn rest_bytes(pointer: BlockPointer, head: &[u8]) -> Option<u32> {
    let length = head_of(head)?.length();
    let rest = record_bytes(length).saturating_sub(first_bytes(pointer));
    (pointer.units == u8::MAX && rest > 0).then_some(rest)
}

/// Writes the record of a key's value.
pub(crate) fn write(bytes: &mut Vec<u8>, key: Asked<'_>, version: u32, value: &[u8]) {
    fill(bytes, key.word, version, key.room() + value.len(), |room| match key.bytes() {
        Some(key) => join(room, key, value),
        None => room.copy_from_slice(value),
    });
}

/// Writes a record of this word: of a value, or of a key of bytes [and its value](join).
#[cfg(feature = "host")]
pub(crate) fn write_whole(bytes: &mut Vec<u8>, word: u64, version: u32, whole: &[u8]) {
    fill(bytes, word, version, whole.len(), |room| room.copy_from_slice(whole));
}

fn fill(bytes: &mut Vec<u8>, word: u64, version: u32, length: usize, fill: impl FnOnce(&mut [u8])) {
    bytes.resize(RECORD_HEAD + length, 0);
    // No switch leads readers here: the mark of a published record is not needed.
    write_record(bytes, word, version, UNPUBLISHED, fill);
}

/// A block that is what a slot says: some record of the right version, whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    /// [Word](crate::key) of the key.
    pub(crate) word: u64,
    /// Bytes of the record without its head: of a key of bytes, and of the value.
    pub(crate) length: u32,
    /// Bytes of these before the value.
    room: u32,
    /// Version of the record, all of its bits.
    pub(crate) version: u32,
}

impl Found {
    /// The key in the block, if it is one of bytes; empty if it is a number.
    pub(crate) fn key_in<'b>(&self, block: &'b [u8]) -> &'b [u8] {
        let payload = &block[RECORD_HEAD..][..self.room as usize];
        payload.get(KEY_LENGTH..).unwrap_or_default()
    }

    /// Where the value lies in the block.
    pub(crate) const fn value(&self) -> Range<usize> {
        RECORD_HEAD + self.room as usize..RECORD_HEAD + self.length as usize
    }
}

/// What lies in a block of a table whose keys are of this kind, if it is the record that the slot meant. `None`: it was freed, and is being
/// used again.
pub(crate) fn find(bytes: &[u8], pointer: BlockPointer, keys: Keys) -> Option<Found> {
    let head = head_of(bytes)?;
    let (word, length, version) = (head.key(), head.length(), head.version());
    let pointer = RecordPointer { address: pointer.place.address(), length, version: pointer.version };
    let record = read_record(bytes, word, pointer).ok()?;
    let room = match keys {
        Keys::Numbers => 0,
        Keys::Bytes => key_room(parts(record)?.0) as u32,
    };
    Some(Found { word, length, room, version })
}

/// The word of the key in a block of which only the head was read. `None`: it is another record than the slot meant.
pub(crate) fn find_head(bytes: &[u8], pointer: BlockPointer) -> Option<u64> {
    let head = head_of(bytes)?;
    let of = RecordPointer { address: pointer.place.address(), length: 0, version: pointer.version };
    of.is_version(head.version()).then(|| head.key())
}

fn head_of(bytes: &[u8]) -> Option<RecordHead> {
    bytes.first_chunk::<RECORD_HEAD>().map(RecordHead::parse)
}

#[cfg(test)]
mod tests {
    use fatbtree_remote_memory::GlobalAddress;
    use proptest::prelude::*;

    use super::*;
    use crate::slot::Place;

    fn pointer(length: u32, version: u32) -> BlockPointer {
        let place = Place::of(GlobalAddress::new(0, 64)).unwrap();
        BlockPointer { fingerprint: 0, units: slot_units(length), version, place }
    }

    #[test]
    fn blocks_have_few_sizes() {
        let bytes = [0, 40, 41, 104, 552, 600, 1 << 20].map(block_bytes);
        assert_eq!(bytes, [64, 64, 128, 128, 640, 640, 20_480 * 64]);
        assert_eq!([0, 600, 14_000, 14_313, 1 << 20].map(slot_units), [1, 10, 224, 255, 255]);
    }

    proptest! {
        #[test]
        fn a_block_is_read_as_it_was_written(
            word: u64,
            name in prop::option::of(prop::collection::vec(any::<u8>(), 0..600)),
            version: u32,
            length in 0..2_000_usize,
            cut: prop::sample::Index,
        ) {
            let (value, mut bytes) = (vec![7; length], Vec::new());
            let key = name.as_deref().map_or(Asked::number(word), Asked::of_bytes);
            write(&mut bytes, key, version, &value);
            let whole = bytes.len();
            let pointer = pointer((whole - RECORD_HEAD) as u32, version);
            let block = block_bytes((whole - RECORD_HEAD) as u32);
            prop_assert!(first_bytes(pointer) >= whole as u32 && first_bytes(pointer) <= block);
            bytes.resize(first_bytes(pointer) as usize, 0xee);
            let find = |bytes: &[u8], pointer| find(bytes, pointer, key.kind());
            let found = find(&bytes, pointer).expect("it is what was written");
            prop_assert!(key.is_of(&found, &bytes) && found.version == version && found.value().end == whole);
            prop_assert_eq!((&bytes[found.value()], found.key_in(&bytes)), (&value[..], key.bytes().unwrap_or_default()));
            prop_assert_eq!(find_head(&bytes, pointer), Some(key.word));
            let later = BlockPointer { version: version.wrapping_add(1), ..pointer };
            prop_assert_eq!(find(&bytes, later), None);
            prop_assert_eq!(find_head(&bytes, later), None);
            // Any other byte of the record but its mark.
            let at = 2 + cut.index(whole - 2);
            bytes[at] ^= 1;
            prop_assert_eq!(find(&bytes, pointer), None);
        }
    }

    #[test]
    fn a_block_without_its_whole_key_is_none() {
        let mut bytes = Vec::new();
        write(&mut bytes, Asked::number(5), 1, &[3, 0, b'a', b'b']);
        let pointer = pointer(4, 1);
        assert_eq!(
            (
                find(&bytes, pointer, Keys::Numbers).map(|found| found.word),
                find(&bytes, pointer, Keys::Bytes)
            ),
            (Some(5), None)
        );
    }

    #[test]
    fn a_long_block_says_how_much_is_left() {
        let (mut bytes, value) = (Vec::new(), vec![1; 20_000]);
        write(&mut bytes, Asked::number(5), 1, &value);
        let pointer = pointer(20_000, 1);
        assert_eq!(rest_bytes(pointer, &bytes[..100]), Some(20_024 - 255 * 64));
        assert_eq!(rest_bytes(pointer, &[]), None);
        assert_eq!(find(&bytes[..255 * 64], pointer, Keys::Numbers), None);
        let found = find(&bytes, pointer, Keys::Numbers).expect("it is whole");
        assert_eq!((found.word, found.value(), found.version), (5, RECORD_HEAD..20_024, 1));
    }
}
