//! Twelve bytes of an entry that hold a short value, or the pointer to a record.
//!
//! ```text
//!   pointer   offset 0, 1 byte    3 bits: of the record's version; 5 bits: the highest of its length, 0 to 16
//!             offset 1, 10 bytes  address of the record, lower bytes of its length
//!             offset 11, 1 byte   the rest of its version
//!   value     offset 0, 1 byte    17 and its length, 0 to 11
//!             offset 1, n bytes   the value, then zeros
//! ```
//!
//! No record has more than 2²⁰ bytes, so the highest five bits of 21 for a length are never above 16: a pointer has a byte that says so, and it
//! comes first here. An entry lies within one line, so it is read whole: value, length and kind are of the same writing.

use fatbtree_remote_memory::record::{MAX_VALUE, RecordPointer};

use crate::config::MAX_SHORT_VALUE;

/// Bytes of both.
pub(super) const BYTES: usize = RecordPointer::BYTES;

/// Byte of a [`RecordPointer`] with the highest bits of the length.
const HIGHEST: usize = 10;

/// Bits of the length in that byte.
const LENGTH: u8 = 0b1_1111;

/// First byte of an empty value.
const EMPTY: u8 = 17;

const _: () = {
    assert!(MAX_VALUE >> 16 < EMPTY as u32 && EMPTY + MAX_SHORT_VALUE <= LENGTH);
    assert!(1 + MAX_SHORT_VALUE as usize == BYTES);
};

/// Bytes of the value that lies here. `None` if it is a pointer.
#[inline]
pub(super) fn length(bytes: &[u8; BYTES]) -> Option<usize> {
    // No writer leaves a longer one: then the bytes are a pointer that leads to no record.
    (bytes[0] & LENGTH).checked_sub(EMPTY).filter(|length| *length <= MAX_SHORT_VALUE).map(usize::from)
}

/// Begins a value of so many bytes, which are to be filled.
///
/// # Panics
/// When there is no room for it.
pub(super) fn begin(bytes: &mut [u8], length: usize) -> &mut [u8] {
    assert!(length <= MAX_SHORT_VALUE.into(), "an entry holds up to {MAX_SHORT_VALUE} bytes");
    bytes.fill(0);
    bytes[0] = EMPTY + length as u8;
    &mut bytes[1..=length]
}

/// A pointer as it lies here.
#[inline]
pub(super) fn pointer(mut bytes: [u8; BYTES]) -> [u8; BYTES] {
    bytes[..=HIGHEST].rotate_right(1);
    bytes
}

/// A pointer that lies here.
#[inline]
pub(super) fn of_pointer(mut bytes: [u8; BYTES]) -> [u8; BYTES] {
    bytes[..=HIGHEST].rotate_left(1);
    bytes
}

#[cfg(test)]
mod tests {
    use fatbtree_remote_memory::GlobalAddress;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_pointer_is_never_taken_for_a_value(server: u16, offset in 0..1_u64 << 48, length in 0..=MAX_VALUE, version in 0..2048_u32) {
            let written = RecordPointer { address: GlobalAddress::new(server, offset), length, version };
            let here = pointer(written.to_bytes());
            prop_assert_eq!(super::length(&here), None);
            prop_assert_eq!(RecordPointer::from_bytes(&of_pointer(here)), written);
        }

        #[test]
        fn a_value_is_read_as_it_was_written(value in prop::collection::vec(any::<u8>(), 0..=11), before: [u8; BYTES]) {
            let mut bytes = before;
            begin(&mut bytes, value.len()).copy_from_slice(&value);
            prop_assert_eq!(length(&bytes), Some(value.len()));
            prop_assert_eq!(&bytes[1..=value.len()], &value[..]);
            prop_assert!(bytes[1 + value.len()..].iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn the_longest_record_is_no_value() {
        let written = RecordPointer { address: GlobalAddress::new(1, 64), length: MAX_VALUE, version: 2047 };
        assert_eq!(pointer(written.to_bytes())[0], 0b1111_0000);
        assert_eq!(length(&[EMPTY + MAX_SHORT_VALUE + 1; BYTES]), None);
    }
}
