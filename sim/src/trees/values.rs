//! Values that say which write they are of, and whether they are whole.

use fatbtree_blink::value;

/// Bytes of the shortest value: the word that names the write.
pub(crate) const SHORTEST: usize = 8;

const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The word of the `number`th write of a scenario. Mixtures of two words are words of no write.
pub(crate) fn word(number: u64) -> u64 {
    let mixed = number.wrapping_add(1).wrapping_mul(ODD);
    mixed ^ mixed >> 29
}

/// Writes the value of a write: its word, and bytes that follow from key and word.
pub(crate) fn fill(key: u64, word: u64, out: &mut [u8]) {
    let (head, rest) = out.split_at_mut(SHORTEST);
    head.copy_from_slice(&word.to_le_bytes());
    value::fill(key, word, rest);
}

/// The word of a value that is whole.
pub(crate) fn open(key: u64, bytes: &[u8]) -> Option<u64> {
    let (head, rest) = bytes.split_first_chunk::<SHORTEST>()?;
    let word = u64::from_le_bytes(*head);
    value::check(key, word, rest).then_some(word)
}
