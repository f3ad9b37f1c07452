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
//! And not for a record of the same key, as long as a lookup can be under way that has read the address in a leaf: key and checksum
//! of the new record are right, so that lookup would find a value that no leaf leads to yet, and a later one still the value before.

use crate::checks::Check;
use crate::node::NodeFault;

/// Bytes before the value.
pub const RECORD_HEAD: usize = 20;

/// Records begin at multiples of this many bytes.
pub const RECORD_ALIGN: u64 = 8;

const LENGTH: usize = 8;
const VERSION: usize = 12;
const SUM: usize = 16;

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

/// The version of a record that is written over `memory`: one more than what is found there.
#[must_use]
pub fn next_version(memory: &[u8]) -> u32 {
    let found = memory.get(VERSION..).and_then(|bytes| bytes.first_chunk::<4>());
    found.map_or(1, |bytes| u32::from_le_bytes(*bytes).wrapping_add(1))
}

/// Checks a record that was read with the length its leaf entry gave, and gives out its value.
///
/// # Errors
/// When it is another key's, is cut short, has another length, or was written meanwhile.
#[inline]
pub fn read_record(bytes: &[u8], key: u64, length: u32) -> Result<&[u8], NodeFault> {
    let expected = record_bytes(length) as usize;
    let short = NodeFault::Short { found: bytes.len(), expected };
    let bytes = bytes.get(..expected).ok_or(short)?;
    let (head, value) = bytes.split_first_chunk::<RECORD_HEAD>().ok_or(short)?;
    let [k0, k1, k2, k3, k4, k5, k6, k7, .., s0, s1, s2, s3] = *head;
    let found = u64::from_le_bytes([k0, k1, k2, k3, k4, k5, k6, k7]);
    if found != key && Check::RecordKey.on() {
        return Err(NodeFault::RecordKey { found, expected: key });
    }
    // A record of another length does not match either: the sum is taken over as many bytes as the leaf says.
    if u32::from_le_bytes([s0, s1, s2, s3]) != sum(head, value) && Check::RecordChecksum.on() {
        return Err(NodeFault::TornRecord);
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

    #[test]
    fn golden_bytes_and_every_fault() {
        let mut bytes = [0; 23];
        write_record(&mut bytes, 0x0102, 0x0a0b, |value| value.copy_from_slice(b"abc"));
        assert_eq!(bytes[..16], *b"\x02\x01\0\0\0\0\0\0\x03\0\0\0\x0b\x0a\0\0");
        assert_eq!(bytes[20..], *b"abc");
        assert_eq!(read_record(&bytes, 0x0102, 3), Ok(&b"abc"[..]));
        assert_eq!(read_record(&bytes, 7, 3), Err(NodeFault::RecordKey { found: 0x0102, expected: 7 }));
        assert_eq!(read_record(&bytes[..22], 0x0102, 3), Err(NodeFault::Short { found: 22, expected: 23 }));
        assert_eq!(next_version(&bytes), 0x0a0c);
        for bit in 0..23 * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let fault = read_record(&bytes, 0x0102, 3).unwrap_err();
            assert_eq!(fault.is_torn(), bit >= 64, "bit {bit}: {fault}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        // A shorter record of the same key, behind whose end old bytes follow.
        let mut longer = [0; 30];
        write_record(&mut longer[..23], 1, 1, |value| value.fill(7));
        assert!(read_record(&longer, 1, 10).is_err());
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
        assert_eq!(read_record(&old, 9, 180), Err(NodeFault::TornRecord));
    }

    #[test]
    fn thousand_byte_value_fits_one_packet() {
        assert!(record_bytes(1000) <= 1024);
    }
}
