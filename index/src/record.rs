//! Records: values kept out of line.
//!
//! ```text
//! offset  0, 8 bytes  key: whoever comes with a stale address notices
//! offset  8, 4 bytes  length n of the value
//! offset 12, 4 bytes  version
//! offset 16, 4 bytes  CRC-32 of all the rest
//! offset 20, n bytes  value
//! ```
//!
//! Twenty bytes beside the value, so that a value of 1000 bytes and its record fit in one packet of 1024.
//! Larger records are read by an ordinary READ of several packets: only *index* reads must fit in one.
//!
//! A record is written before the leaf entry that points to it and never changed in place. The checksum guards against a
//! record that is freed and written anew while somebody still reads it: whatever mixture of old and new such a reader gets
//! is noticed, wherever old ends and new begins. Memory that was a record is used again for records only.
//!
//! A leaf entry says which *version* of the memory its record is: each record that is written to a place has another one than the
//! one before. Without it, a lookup that has read the address in a leaf, and sleeps, could find a new record of the same key there:
//! a value that no leaf leads to yet, while a later lookup still finds the value before. (The version has 11 bits: a lookup that
//! sleeps while its place is written 2048 times, and wakes between the record and its entry, is not told.)
//!
//! Places for records have few sizes ([`place_bytes`]), so that what one record leaves another one can use.

use crate::address::GlobalAddress;
use crate::checks::Check;
use crate::node::NodeFault;

/// Bytes before the value.
pub const RECORD_HEAD: usize = 20;

/// Records begin at multiples of this many bytes.
pub const RECORD_ALIGN: u64 = 8;

const LENGTH: usize = 8;
const VERSION: usize = 12;
const SUM: usize = 16;

/// Bits of a leaf entry that hold the length of a value; the other 11 of 32 hold the record's version.
const LENGTH_BITS: u32 = 21;

/// What a leaf entry says of its record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordPointer {
    /// Where the record begins.
    pub address: GlobalAddress,
    /// Bytes of the value, up to 2^20; the record has more, see [`record_bytes`].
    pub length: u32,
    /// The record's version, of which the low 11 bits count.
    pub version: u32,
}

impl RecordPointer {
    /// Bytes of it in a leaf entry.
    pub const BYTES: usize = 12;

    /// As it lies in a leaf entry: address, then length and version in 32 bits.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let rest = self.version << LENGTH_BITS | self.length;
        bytes[..8].copy_from_slice(&self.address.raw().to_le_bytes());
        bytes[8..].copy_from_slice(&rest.to_le_bytes());
        bytes
    }

    /// Reads it.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, r0, r1, r2, r3] = *bytes;
        let rest = u32::from_le_bytes([r0, r1, r2, r3]);
        Self {
            address: GlobalAddress(u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7])),
            length: rest & ((1 << LENGTH_BITS) - 1),
            version: rest >> LENGTH_BITS,
        }
    }

    /// Whether a record of this version is meant.
    #[must_use]
    pub const fn is_version(&self, version: u32) -> bool {
        (self.version ^ version) << LENGTH_BITS == 0
    }
}

/// Bytes of a place for a record whose value has `length` bytes: a multiple of 8, at least 32, with three significant bits. So at most
/// a fifth of it is empty, and there are four sizes between a power of two and the next.
#[must_use]
pub const fn place_bytes(length: u32) -> u32 {
    const LEAST: u32 = 32;
    let bytes = record_bytes(length);
    if bytes <= LEAST {
        return LEAST;
    }
    let step = 1 << ((bytes - 1).ilog2() - 2);
    bytes.next_multiple_of(if step > 8 { step } else { 8 })
}

/// Bytes of a record whose value has `length` bytes: what a READ of it asks for. Saturates at 4 GiB.
#[must_use]
pub const fn record_bytes(length: u32) -> u32 {
    length.saturating_add(RECORD_HEAD as u32)
}

/// Writes a record over all of `bytes`; `fill` writes the value.
///
/// # Panics
/// When `bytes` has no room for the head, or 4 GiB or more.
#[inline]
pub fn write_record(bytes: &mut [u8], key: u64, version: u32, fill: impl FnOnce(&mut [u8])) {
    let (head, value) = bytes.split_first_chunk_mut::<RECORD_HEAD>().expect("a record has at least its head");
    let length = u32::try_from(value.len()).expect("values have less than 4 GiB");
    head[..LENGTH].copy_from_slice(&key.to_le_bytes());
    head[LENGTH..VERSION].copy_from_slice(&length.to_le_bytes());
    head[VERSION..SUM].copy_from_slice(&version.to_le_bytes());
    fill(value);
    let sum = sum(head, value);
    head[SUM..].copy_from_slice(&sum.to_le_bytes());
}

/// The version of a record that is written over `memory`, of which nothing else is known: one more than what is found there.
#[must_use]
pub fn next_record_version(memory: &[u8]) -> u32 {
    let found = memory.get(VERSION..).and_then(|bytes| bytes.first_chunk::<4>());
    found.map_or(1, |bytes| u32::from_le_bytes(*bytes).wrapping_add(1))
}

/// Checks a record that was read where its leaf entry said, and gives out its value.
///
/// # Errors
/// When it is another key's, is cut short, has another length or version, or was written meanwhile.
#[inline]
pub fn read_record(bytes: &[u8], key: u64, pointer: RecordPointer) -> Result<&[u8], NodeFault> {
    let expected = record_bytes(pointer.length) as usize;
    let short = NodeFault::Short { found: bytes.len(), expected };
    let bytes = bytes.get(..expected).ok_or(short)?;
    let (head, value) = bytes.split_first_chunk::<RECORD_HEAD>().ok_or(short)?;
    let [k0, k1, k2, k3, k4, k5, k6, k7, _, _, _, _, v0, v1, v2, v3, s0, s1, s2, s3] = *head;
    let found = u64::from_le_bytes([k0, k1, k2, k3, k4, k5, k6, k7]);
    if found != key && Check::RecordKey.on() {
        return Err(NodeFault::RecordKey { found, expected: key });
    }
    // A record of another length does not match either: the sum is taken over as many bytes as the leaf says.
    if u32::from_le_bytes([s0, s1, s2, s3]) != sum(head, value) && Check::RecordChecksum.on() {
        return Err(NodeFault::TornRecord);
    }
    let found = u32::from_le_bytes([v0, v1, v2, v3]);
    if !pointer.is_version(found) && Check::RecordVersion.on() {
        return Err(NodeFault::RecordVersion { found, expected: pointer.version });
    }
    Ok(value)
}

fn sum(head: &[u8; RECORD_HEAD], value: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&head[..SUM]);
    hasher.update(value);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointer(length: u32, version: u32) -> RecordPointer {
        RecordPointer { address: GlobalAddress::new(1, 64), length, version }
    }

    #[test]
    fn pointers_are_read_as_they_were_written() {
        for (length, version) in [(0, 0), (1 << 20, 2047), (1000, 77)] {
            let written = pointer(length, version);
            assert_eq!(RecordPointer::from_bytes(&written.to_bytes()), written);
            assert!(written.is_version(version + 2048) && !written.is_version(version + 1));
        }
        let golden = [64, 0, 0, 0, 0, 0, 1, 0, 3, 0, 0x40, 0];
        assert_eq!(pointer(3, 2).to_bytes(), golden);
    }

    #[test]
    fn places_have_few_sizes_and_little_is_empty() {
        let mut sizes = std::collections::BTreeSet::new();
        for length in 0..=1 << 20 {
            let (bytes, place) = (record_bytes(length), place_bytes(length));
            assert!(place >= bytes && place.is_multiple_of(RECORD_ALIGN as u32), "{length}");
            assert!(place == 32 || place * 4 <= bytes * 5 || place - bytes < 8, "{length}: {place}");
            sizes.insert(place);
        }
        assert!(sizes.len() < 64, "{}", sizes.len());
        assert_eq!((place_bytes(0), place_bytes(1000), place_bytes(13)), (32, 1024, 40));
    }

    #[test]
    fn golden_bytes_and_every_fault() {
        let mut bytes = [0; 23];
        write_record(&mut bytes, 0x0102, 0x0a0b, |value| value.copy_from_slice(b"abc"));
        assert_eq!(bytes[..16], *b"\x02\x01\0\0\0\0\0\0\x03\0\0\0\x0b\x0a\0\0");
        assert_eq!(bytes[20..], *b"abc");
        assert_eq!(read_record(&bytes, 0x0102, pointer(3, 0x0a0b)), Ok(&b"abc"[..]));
        assert_eq!(
            read_record(&bytes, 7, pointer(3, 0x0a0b)),
            Err(NodeFault::RecordKey { found: 0x0102, expected: 7 })
        );
        assert_eq!(
            read_record(&bytes[..22], 0x0102, pointer(3, 0x0a0b)),
            Err(NodeFault::Short { found: 22, expected: 23 })
        );
        let other = NodeFault::RecordVersion { found: 0x0a0b, expected: 0x0a0c };
        assert_eq!(read_record(&bytes, 0x0102, pointer(3, 0x0a0c)), Err(other));
        for bit in 0..23 * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let fault = read_record(&bytes, 0x0102, pointer(3, 0x0a0b)).unwrap_err();
            assert_eq!(fault.is_torn(), bit >= 64, "bit {bit}: {fault}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        // A shorter record of the same key, behind whose end old bytes follow.
        let mut longer = [0; 30];
        write_record(&mut longer[..23], 1, 1, |value| value.fill(7));
        assert!(read_record(&longer, 1, pointer(10, 1)).is_err());
    }

    /// Old head, new middle, old tail: what versions at both ends would let pass.
    #[test]
    fn a_new_middle_in_an_old_record_is_noticed() {
        let record = |version, byte| {
            let mut bytes = [0; 200];
            write_record(&mut bytes, 9, version, |value| value.fill(byte));
            bytes
        };
        let (mut old, new) = (record(1, 0xaa), record(2, 0xbb));
        old[64..128].copy_from_slice(&new[64..128]);
        assert_eq!(read_record(&old, 9, pointer(180, 1)), Err(NodeFault::TornRecord));
    }

    #[test]
    fn thousand_byte_value_fits_one_packet() {
        assert!(record_bytes(1000) <= 1024);
    }
}
