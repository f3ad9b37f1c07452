//! Mixing of the bits of a word, for tables whose keys may lie in rows.

/// Mixes all bits: each bit of the result depends on all of the word's. A bijection; 0 stays 0. (Finalizer of SplitMix64, Steele et al.,
/// OOPSLA 2014.)
#[inline]
#[must_use]
pub const fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
