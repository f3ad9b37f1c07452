//! Records: values kept out of line.
//!
//! ```text
//! offset  0, 8 bytes  key: whoever comes with a stale address notices
//! offset  8, 4 bytes  length n of the value
//! offset 12, 4 bytes  version
//! offset 16, n bytes  value
//! offset 16+n, 4      version again: differs while the record is being written
//! ```
//!
//! Twenty bytes beside the value, so that a value of 1000 bytes and its record fit in one packet of 1024.
//! Larger records are read by an ordinary READ of several packets: only *index* reads must fit in one.
//! A record is written before the leaf entry that points to it and never changed in place, so the versions
//! guard against one thing only: a record that is freed and written anew while somebody still reads it.

use crate::node::NodeFault;

/// Bytes before the value.
pub const RECORD_HEAD: usize = 16;

/// Bytes behind the value.
pub const RECORD_TAIL: usize = 4;

/// Records begin at multiples of this many bytes.
pub const RECORD_ALIGN: u64 = 8;

/// Bytes of a record whose value has `length` bytes: what a READ of it asks for. Saturates at 4 GiB.
#[must_use]
pub const fn record_bytes(length: u32) -> u32 {
    length.saturating_add((RECORD_HEAD + RECORD_TAIL) as u32)
}

/// Writes everything but the value, and gives out the value's bytes to be filled.
///
/// # Panics
/// When `bytes` has no room for head and tail.
pub fn write_record(bytes: &mut [u8], key: u64, version: u32) -> &mut [u8] {
    let length = bytes.len().checked_sub(RECORD_HEAD + RECORD_TAIL).expect("a record has a head and a tail");
    let length = u32::try_from(length).expect("values have less than 4 GiB");
    let (head, rest) = bytes.split_at_mut(RECORD_HEAD);
    let (value, tail) = rest.split_at_mut(length as usize);
    head[..8].copy_from_slice(&key.to_le_bytes());
    head[8..12].copy_from_slice(&length.to_le_bytes());
    head[12..].copy_from_slice(&version.to_le_bytes());
    tail.copy_from_slice(&version.to_le_bytes());
    value
}

/// Checks a record that was read with the length its leaf entry gave, and gives out its value.
///
/// # Errors
/// When it is another key's, has another length, is cut short, or was written meanwhile.
#[inline]
pub fn read_record(bytes: &[u8], key: u64, length: u32) -> Result<&[u8], NodeFault> {
    let expected = record_bytes(length) as usize;
    let short = NodeFault::Short { found: bytes.len(), expected };
    let bytes = bytes.get(..expected).ok_or(short)?;
    let (head, rest) = bytes.split_first_chunk::<RECORD_HEAD>().ok_or(short)?;
    let (value, tail) = rest.split_last_chunk::<RECORD_TAIL>().ok_or(short)?;
    let [k0, k1, k2, k3, k4, k5, k6, k7, l0, l1, l2, l3, v0, v1, v2, v3] = *head;
    let found_key = u64::from_le_bytes([k0, k1, k2, k3, k4, k5, k6, k7]);
    let found_length = u32::from_le_bytes([l0, l1, l2, l3]);
    let (head, tail) = (u32::from_le_bytes([v0, v1, v2, v3]), u32::from_le_bytes(*tail));
    if found_key != key {
        return Err(NodeFault::RecordKey { found: found_key, expected: key });
    }
    if found_length != length {
        return Err(NodeFault::RecordLength { found: found_length, expected: length });
    }
    if head != tail {
        return Err(NodeFault::TornRecord { head, tail });
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_and_every_fault() {
        let mut bytes = [0; 23];
        write_record(&mut bytes, 0x0102, 0x0a0b).copy_from_slice(b"abc");
        assert_eq!(bytes, *b"\x02\x01\0\0\0\0\0\0\x03\0\0\0\x0b\x0a\0\0abc\x0b\x0a\0\0");
        assert_eq!(read_record(&bytes, 0x0102, 3), Ok(&b"abc"[..]));
        assert_eq!(read_record(&bytes, 7, 3), Err(NodeFault::RecordKey { found: 0x0102, expected: 7 }));
        assert_eq!(read_record(&bytes, 0x0102, 2), Err(NodeFault::RecordLength { found: 3, expected: 2 }));
        assert_eq!(read_record(&bytes[..22], 0x0102, 3), Err(NodeFault::Short { found: 22, expected: 23 }));
        bytes[22] = 1;
        assert!(read_record(&bytes, 0x0102, 3).unwrap_err().is_torn());
    }

    #[test]
    fn thousand_byte_value_fits_one_packet() {
        assert!(record_bytes(1000) <= 1024);
    }
}
