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
/// use fatbtree_index::value;
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

#[cfg(test)]
mod tests {
    use super::*;

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
