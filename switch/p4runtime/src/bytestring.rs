//! Integers as P4Runtime carries them: big-endian byte strings (P4Runtime specification, "Bytestrings").
//!
//! The canonical form is the shortest one, with at least one byte; senders must use it. Receivers accept any number of
//! leading zero bytes and check only that the *value* fits the field.

use thiserror::Error;

/// Errors from decoding a byte string as a value of its field. A server answers these with `OUT_OF_RANGE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BytestringError {
    /// The byte string is empty; a value has at least one byte.
    #[error("expected a value of {bitwidth} bits, found an empty byte string; zero is one byte 00")]
    Empty {
        /// Width of the field, bits.
        bitwidth: u32,
    },
    /// The value needs more bits than the field has.
    #[error("expected a value of at most {bitwidth} bits, found one that needs {needed} bits")]
    TooWide {
        /// Width of the field, bits.
        bitwidth: u32,
        /// Bits the value needs.
        needed: u64,
    },
    /// The value is legal in its field but does not fit this library's 128-bit integers.
    #[error("expected a value of at most 128 bits, found {needed} bits in a field of {bitwidth}")]
    Above128 {
        /// Width of the field, bits.
        bitwidth: u32,
        /// Bits the value needs.
        needed: u64,
    },
}

/// Encodes `value` canonically.
///
/// ```
/// # use fatbtree_p4runtime::bytestring::encode;
/// assert_eq!(encode(0u64), [0]);
/// assert_eq!(encode(0x3064u64), [0x30, 0x64]);
/// ```
#[inline]
pub fn encode(value: impl Into<u128>) -> Vec<u8> {
    let value = value.into();
    // One allocation of the exact size; the 64-bit path is the one that matters for table entries.
    match u64::try_from(value) {
        Ok(narrow) => {
            let skip = (narrow.leading_zeros() / 8).min(7) as usize;
            narrow.to_be_bytes()[skip..].to_vec()
        }
        Err(_) => {
            let skip = (value.leading_zeros() / 8) as usize;
            value.to_be_bytes()[skip..].to_vec()
        }
    }
}

/// Checks that `bytes` is a value of `bitwidth` bits and returns it without leading zero bytes (empty for zero).
pub fn trimmed(bytes: &[u8], bitwidth: u32) -> Result<&[u8], BytestringError> {
    if bytes.is_empty() {
        return Err(BytestringError::Empty { bitwidth });
    }
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    let rest = &bytes[zeros..];
    let needed = needed_bits(rest);
    if needed > u64::from(bitwidth) {
        return Err(BytestringError::TooWide { bitwidth, needed });
    }
    Ok(rest)
}

/// Decodes a value of `bitwidth` bits.
///
/// ```
/// # use fatbtree_p4runtime::bytestring::{decode, BytestringError};
/// assert_eq!(decode(&[0, 0x63], 8), Ok(99)); // leading zeros are accepted
/// assert_eq!(decode(&[0x01, 0x63], 8), Err(BytestringError::TooWide { bitwidth: 8, needed: 9 }));
/// ```
#[inline]
pub fn decode(bytes: &[u8], bitwidth: u32) -> Result<u128, BytestringError> {
    let rest = trimmed(bytes, bitwidth)?;
    if rest.len() > 16 {
        return Err(BytestringError::Above128 { bitwidth, needed: needed_bits(rest) });
    }
    Ok(rest.iter().fold(0, |value, byte| value << 8 | u128::from(*byte)))
}

fn needed_bits(without_leading_zeros: &[u8]) -> u64 {
    match without_leading_zeros.first() {
        None => 0,
        Some(first) => without_leading_zeros.len() as u64 * 8 - u64::from(first.leading_zeros()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Tests the unsigned examples of the specification's two tables.
    #[test]
    fn specification_examples() {
        for (width, bytes, value) in [
            (8, &[0x63][..], 99),
            (16, &[0x00, 0x63], 99),
            (16, &[0x63], 99),
            (16, &[0x30, 0x64], 12388),
            (16, &[0x00, 0x30, 0x64], 12388),
            (12, &[0x00, 0x63], 99),
            (12, &[0x00, 0x00, 0x63], 99),
        ] {
            assert_eq!(decode(bytes, width), Ok(value), "{width} {bytes:?}");
        }
        for (width, bytes) in [
            (8, &[0x01, 0x63][..]),
            (8, &[]),
            (16, &[0x01, 0x00, 0x63]),
            (12, &[0x10, 0x63]),
            (12, &[0x01, 0x00, 0x63]),
            (12, &[0x00, 0x40, 0x63]),
        ] {
            assert!(decode(bytes, width).is_err(), "{width} {bytes:?}");
        }
    }

    #[test]
    fn wide_fields() {
        let bytes = [0xffu8; 17];
        assert_eq!(decode(&bytes, 136), Err(BytestringError::Above128 { bitwidth: 136, needed: 136 }));
        assert_eq!(trimmed(&bytes, 136), Ok(&bytes[..]));
        assert_eq!(decode(&bytes[..16], 128), Ok(u128::MAX));
        assert_eq!(encode(u128::MAX).len(), 16);
    }

    proptest! {
        #[test]
        fn round_trip_is_minimal(value: u128, shift in 0u32..128, zeros in 0usize..4) {
            let value = value >> shift;
            let width = (128 - value.leading_zeros()).max(1);
            let bytes = encode(value);
            prop_assert_eq!(decode(&bytes, width), Ok(value));
            prop_assert_eq!(bytes.len(), width.div_ceil(8) as usize);
            let mut padded = vec![0; zeros];
            padded.extend(&bytes);
            prop_assert_eq!(decode(&padded, width), Ok(value));
            if width > 1 {
                prop_assert_eq!(
                    decode(&bytes, width - 1),
                    Err(BytestringError::TooWide { bitwidth: width - 1, needed: u64::from(width) })
                );
            }
        }
    }
}
