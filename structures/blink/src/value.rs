//! Values for demos, benchmarks and tests: bytes that follow from key and seed, so that every answer can be checked.

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX: u64 = 0xd6e8_feb8_6659_fd93;

/// Full mixing, once per value.
const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 32)).wrapping_mul(MIX);
    x = (x ^ (x >> 32)).wrapping_mul(MIX);
    x ^ (x >> 32)
}

/// One multiplication per eight bytes.
#[inline]
const fn word(state: u64) -> u64 {
    (state ^ (state >> 32)).wrapping_mul(MIX)
}

#[inline]
const fn start(key: u64, seed: u64) -> u64 {
    mix(key ^ mix(seed ^ STEP))
}

/// Fills `out` with the value of `key`. A longer value begins with the shorter one.
///
/// ```
/// use fatbtree_blink::value;
/// let mut bytes = [0; 1000];
/// value::fill(7, 42, &mut bytes);
/// assert!(value::check(7, 42, &bytes));
/// assert!(!value::check(8, 42, &bytes) && !value::check(7, 43, &bytes));
/// ```
#[inline]
pub fn fill(key: u64, seed: u64, out: &mut [u8]) {
    let mut state = start(key, seed);
    let (words, rest) = out.as_chunks_mut::<8>();
    for out in words {
        *out = word(state).to_le_bytes();
        state = state.wrapping_add(STEP);
    }
    let last = word(state).to_le_bytes();
    rest.copy_from_slice(&last[..rest.len()]);
}

/// Whether `bytes` are the value of `key`, all of them.
#[inline]
#[must_use]
pub fn check(key: u64, seed: u64, bytes: &[u8]) -> bool {
    let mut state = start(key, seed);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut difference = 0;
    for bytes in words {
        difference |= u64::from_le_bytes(*bytes) ^ word(state);
        state = state.wrapping_add(STEP);
    }
    let last = word(state).to_le_bytes();
    difference == 0 && *rest == last[..rest.len()]
}

/// Bytes of the shortest value that can be stamped: half of it holds the stamp, the other half confirms it.
pub const STAMPED_BYTES: usize = 16;

/// Fills `out` with a value of `key` that names its writer: the stamp, little-endian, followed by bytes that
/// are computed from stamp and key. A reader that knows the key can tell such a value from any other bytes.
///
/// ```
/// use fatbtree_blink::value;
/// let mut bytes = [0; 100];
/// value::stamp(7, 4711, &mut bytes);
/// assert_eq!(value::stamp_of(7, &bytes), Some(4711));
/// assert_eq!(value::stamp_of(8, &bytes), None);
/// ```
///
/// # Panics
/// When `out` is shorter than [`STAMPED_BYTES`].
#[inline]
pub fn stamp(key: u64, stamp: u64, out: &mut [u8]) {
    assert!(
        out.len() >= STAMPED_BYTES,
        "a stamped value has at least {STAMPED_BYTES} bytes, this one {}",
        out.len()
    );
    let (head, rest) = out.split_at_mut(8);
    head.copy_from_slice(&stamp.to_le_bytes());
    fill(key, stamp, rest);
}

/// The stamp of a value of `key`; none if [`stamp`] has not made it for this key.
#[inline]
#[must_use]
pub fn stamp_of(key: u64, bytes: &[u8]) -> Option<u64> {
    let (head, rest) = bytes.split_first_chunk()?;
    let stamp = u64::from_le_bytes(*head);
    (bytes.len() >= STAMPED_BYTES && check(key, stamp, rest)).then_some(stamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_a_stamped_value_matters() {
        for length in STAMPED_BYTES..40 {
            let mut bytes = vec![0; length];
            stamp(9, 0x1234_5678_9abc_def0, &mut bytes);
            assert_eq!(stamp_of(9, &bytes), Some(0x1234_5678_9abc_def0));
            for bit in 0..length * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(stamp_of(9, &bytes), None, "bit {bit} of {length} bytes");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            assert_eq!(stamp_of(9, &bytes[..STAMPED_BYTES - 1]), None);
        }
    }

    #[test]
    fn every_bit_matters_at_every_length() {
        for length in 1..40 {
            let mut bytes = vec![0; length];
            fill(9, 1, &mut bytes);
            assert!(check(9, 1, &bytes));
            for bit in 0..length * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(!check(9, 1, &bytes), "bit {bit} of {length} bytes");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        assert!(check(9, 1, &[]));
    }
}
