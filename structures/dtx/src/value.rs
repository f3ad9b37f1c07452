//! Values of any length up to a bound in a table, whose values have one length.
//!
//! ```text
//!   0 length │ 2 value │ zeros
//! ```
//!
//! Programs that come by the library or by commands see such values. A transaction in this crate sees the table's bytes.

use fatbtree_remote_memory::CommonError;

use crate::error::DtxError;

/// Bytes of a length.
pub const LENGTH: usize = 2;

/// A value as it lies in a table whose values have `value_bytes`: its length, little-endian, the value, and zeros.
///
/// # Errors
/// [`CommonError::TooLong`] if it has more than `value_bytes` − [`LENGTH`] bytes.
///
/// ```
/// use fatbtree_dtx::{pack, unpack};
/// assert_eq!(pack(b"one", 6)?, [3, 0, b'o', b'n', b'e', 0]);
/// assert_eq!(unpack(&pack(b"one", 6)?), b"one");
/// assert!(pack(b"three", 6).is_err());
/// # Ok::<(), fatbtree_dtx::DtxError>(())
/// ```
pub fn pack(value: &[u8], value_bytes: usize) -> Result<Vec<u8>, DtxError> {
    if LENGTH + value.len() > value_bytes {
        let most = value_bytes.saturating_sub(LENGTH) as u32;
        return Err(CommonError::TooLong { found: value.len(), most }.into());
    }
    let mut packed = Vec::with_capacity(value_bytes);
    packed.extend_from_slice(&(value.len() as u16).to_le_bytes());
    packed.extend_from_slice(value);
    packed.resize(value_bytes, 0);
    Ok(packed)
}

/// The value in a table's bytes. One that says to be longer than they are ends with them.
#[must_use]
pub fn unpack(packed: &[u8]) -> &[u8] {
    let Some((length, rest)) = packed.split_first_chunk::<LENGTH>() else { return &[] };
    &rest[..usize::from(u16::from_le_bytes(*length)).min(rest.len())]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_value_is_read_as_it_was_written(value in prop::collection::vec(any::<u8>(), 0..20), more in 0..5_usize) {
            let packed = pack(&value, value.len() + LENGTH + more).unwrap();
            prop_assert_eq!((unpack(&packed), packed.len()), (&value[..], value.len() + LENGTH + more));
            prop_assert_eq!(pack(&value, value.len() + LENGTH - 1).is_err(), true);
        }
    }

    #[test]
    fn damaged_lengths_end_with_the_bytes() {
        assert_eq!(unpack(&[9, 0, 1]), [1]);
        assert_eq!(unpack(&[9]), [0; 0]);
    }
}
