//! Bytes of an entry that hold a short value, or the pointer to a record: twelve, or more where the tree has more room for short values.
//!
//! ```text
//!   pointer   offset 0, 1 byte    3 bits: of the record's version; 5 bits: the highest of its length, 0 to 16
//!             offset 1, 10 bytes  address of the record, lower bytes of its length
//!             offset 11, 1 byte   the rest of its version, then zeros
//!   layer     offset 0, 1 byte    255: several keys of bytes share the entry
//!             offset 1, 8 bytes   address of the layer that tells them apart, then zeros
//!   value     offset 0, 1 byte    of its length n: 3 bits: n / 15; 5 bits: 17 and n mod 15
//!             offset 1, n bytes   the value, then zeros
//! ```
//!
//! No record has more than 2²⁰ bytes, so the highest five bits of 21 for a length are never above 16: a pointer has a byte that says so, and it
//! comes first here. An entry lies within one line, so it is read whole: value, length and kind are of the same writing.

use fatbtree_remote_memory::GlobalAddress;
use fatbtree_remote_memory::record::{MAX_VALUE, RecordPointer};

use crate::config::{MAX_INLINE_VALUE, POINTER_ROOM};

/// Bytes of a pointer.
pub(super) const BYTES: usize = RecordPointer::BYTES;

/// Byte of a [`RecordPointer`] with the highest bits of the length.
const HIGHEST: usize = 10;

/// Number of bits of the length in that byte.
const BITS: u32 = 5;

/// These bits of an empty value.
const EMPTY: u8 = 17;

/// First byte of the pointer to a layer: no value has such a length.
const LAYER: u8 = u8::MAX;

/// Lengths that these bits tell apart.
const CODES: u8 = (1 << BITS) - EMPTY;

const _: () = {
    assert!(MAX_VALUE >> 16 < EMPTY as u32 && MAX_INLINE_VALUE / CODES < 1 << (8 - BITS));
    assert!(1 + POINTER_ROOM as usize == BYTES);
    assert!((LAYER >> BITS) * CODES + (LAYER % (1 << BITS) - EMPTY) > MAX_INLINE_VALUE);
};

/// Bytes of the value whose place begins with this byte. `None` if that is a pointer.
#[inline]
pub(super) fn length(first: u8) -> Option<usize> {
    let low = (first % (1 << BITS)).checked_sub(EMPTY)?;
    Some(usize::from((first >> BITS) * CODES + low))
}

/// Address of the layer to which these bytes lead. `None` if they do not lead to one.
#[inline]
pub(super) fn layer(bytes: &[u8]) -> Option<GlobalAddress> {
    let (first, rest) = bytes.split_first()?;
    let address = rest.first_chunk().map(|bytes| GlobalAddress(u64::from_le_bytes(*bytes)));
    address.filter(|_| *first == LAYER)
}

/// Writes the pointer to a layer over all of `bytes`.
pub(super) fn put_layer(bytes: &mut [u8], layer: GlobalAddress) {
    bytes.fill(0);
    bytes[0] = LAYER;
    bytes[1..9].copy_from_slice(&layer.raw().to_le_bytes());
}

/// Begins a value of so many bytes, which are to be filled.
///
/// # Panics
/// When there is no room for it.
pub(super) fn begin(bytes: &mut [u8], length: usize) -> &mut [u8] {
    assert!(length < bytes.len(), "an entry holds up to {} bytes", bytes.len() - 1);
    bytes.fill(0);
    let (high, low) = (length as u8 / CODES, length as u8 % CODES);
    bytes[0] = (high << BITS) | (EMPTY + low);
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
            prop_assert_eq!((super::length(here[0]), layer(&here)), (None, None));
            prop_assert_eq!(RecordPointer::from_bytes(&of_pointer(here)), written);
        }

        #[test]
        fn a_value_is_read_as_it_was_written(value in prop::collection::vec(any::<u8>(), 0..=64), more in 0..20_usize) {
            let mut bytes = vec![0xff; 1 + value.len() + more];
            begin(&mut bytes, value.len()).copy_from_slice(&value);
            prop_assert_eq!((length(bytes[0]), layer(&bytes)), (Some(value.len()), None));
            prop_assert_eq!(&bytes[1..=value.len()], &value[..]);
            prop_assert!(bytes[1 + value.len()..].iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn the_longest_record_is_no_value() {
        let written = RecordPointer { address: GlobalAddress::new(1, 64), length: MAX_VALUE, version: 2047 };
        assert_eq!(pointer(written.to_bytes())[0], 0b1111_0000);
    }

    #[test]
    fn values_in_the_place_of_a_pointer_begin_as_they_always_did() {
        for short in 0..=POINTER_ROOM {
            let mut bytes = [0; BYTES];
            begin(&mut bytes, short.into());
            assert_eq!(bytes[0], 17 + short);
        }
    }
}
