//! Blocks: a key and its value, as a [record](fatbtree_remote_memory::record) in memory of its own.
//!
//! RACE's block has key, value and checksum. The product's record has them, too, and a version. A block is a record that begins at a
//! multiple of 64 bytes; it is read, and checked, as it was written or not at all.

use fatbtree_remote_memory::record::{
    RECORD_HEAD, RecordHead, RecordPointer, UNPUBLISHED, read_record, record_bytes, write_record,
};

use crate::slot::{BlockPointer, UNIT, block_units};

/// The largest length that a slot tells, in units: such a block has as many units, or more.
const MOST_UNITS: u32 = u8::MAX as u32;

/// Bytes of the block of a value with `length` bytes: a multiple of 64 with three significant bits. So at most a fifth of it is empty
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

/// Writes the record of a value. After it bytes are left as they are.
pub(crate) fn write(bytes: &mut Vec<u8>, key: u64, version: u32, value: &[u8]) {
    bytes.resize(RECORD_HEAD + value.len(), 0);
    // No switch leads readers here: the mark of a published record is not needed.
    write_record(bytes, key, version, UNPUBLISHED, |room| room.copy_from_slice(value));
}

/// A block that is what a slot says: some record of the right version, whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) key: u64,
    /// Bytes of the value.
    pub(crate) length: u32,
    /// Version of the record, all of its bits.
    pub(crate) version: u32,
}

/// What lies in a block, if it is the record that the slot meant. `None`: it was freed, and is being used again.
pub(crate) fn find(bytes: &[u8], pointer: BlockPointer) -> Option<Found> {
    let head = head_of(bytes)?;
    let (key, length, version) = (head.key(), head.length(), head.version());
    let pointer = RecordPointer { address: pointer.place.address(), length, version: pointer.version };
    read_record(bytes, key, pointer).ok().map(|_| Found { key, length, version })
}

/// The key and length of a block of which only the head was read. `None`: it is another record than the slot meant.
pub(crate) fn find_head(bytes: &[u8], pointer: BlockPointer) -> Option<Found> {
    let head = head_of(bytes)?;
    let of = RecordPointer { address: pointer.place.address(), length: 0, version: pointer.version };
    of.is_version(head.version()).then(|| Found {
        key: head.key(),
        length: head.length(),
        version: head.version(),
    })
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
        fn a_block_is_read_as_it_was_written(key: u64, version: u32, length in 0..2_000_u32, cut: prop::sample::Index) {
            let (value, mut bytes) = (vec![7; length as usize], Vec::new());
            write(&mut bytes, key, version, &value);
            let pointer = pointer(length, version);
            prop_assert!(first_bytes(pointer) >= bytes.len() as u32 && first_bytes(pointer) <= block_bytes(length));
            bytes.resize(first_bytes(pointer) as usize, 0xee);
            prop_assert_eq!(find(&bytes, pointer), Some(Found { key, length, version }));
            prop_assert_eq!(find_head(&bytes, pointer), Some(Found { key, length, version }));
            let later = BlockPointer { version: version.wrapping_add(1), ..pointer };
            prop_assert_eq!(find(&bytes, later), None);
            prop_assert_eq!(find_head(&bytes, later), None);
            // Any other byte of the record but its mark.
            let at = 2 + cut.index(RECORD_HEAD + length as usize - 2);
            bytes[at] ^= 1;
            prop_assert_eq!(find(&bytes, pointer), None);
        }
    }

    #[test]
    fn a_long_block_says_how_much_is_left() {
        let (mut bytes, value) = (Vec::new(), vec![1; 20_000]);
        write(&mut bytes, 5, 1, &value);
        let pointer = pointer(20_000, 1);
        assert_eq!(rest_bytes(pointer, &bytes[..100]), Some(20_024 - 255 * 64));
        assert_eq!(rest_bytes(pointer, &[]), None);
        assert_eq!(find(&bytes[..255 * 64], pointer), None);
        assert_eq!(find(&bytes, pointer), Some(Found { key: 5, length: 20_000, version: 1 }));
    }
}
