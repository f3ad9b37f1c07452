//! Keys: numbers, or strings of bytes.
//!
//! A block has a key's *word* in its head: the number itself, or a number of 64 bits that is made of all bytes of a key. The word alone has
//! the hash, so what needs no more than a hash, as a split does, is the same for both kinds. A block of a key of bytes has the whole key
//! [before its value](fatbtree_remote_memory::byte_keys); several keys may have one word, and are told apart by it.

use std::fmt;

use bytes::Bytes;
use fatbtree_remote_memory::byte_keys::key_room;
use fatbtree_remote_memory::{Keys, mix};

use crate::block::Found;
use crate::checks::Check;

/// State of [`word_of`] before the first byte: any number but 0.
const BEGIN: u64 = 0x243f_6a88_85a3_08d3;

/// The word of a key of bytes: each eight bytes, little endian, are mixed into it one after the other; then the last ones, filled up with
/// zeros, and the length.
///
/// Part of the layout: blocks have it.
#[must_use]
pub fn word_of(key: &[u8]) -> u64 {
    let (words, rest) = key.as_chunks::<8>();
    let word = words.iter().fold(BEGIN, |state, word| mix(state ^ u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(mix(word ^ u64::from_le_bytes(last)) ^ key.len() as u64)
}

/// Another key with the word of this one, which begins with these bytes. So a client that chooses its keys can have them share their buckets.
/// `None`: the key has less than sixteen bytes.
#[must_use]
pub fn twin_of(key: &[u8], begin: [u8; 8]) -> Option<Vec<u8>> {
    let ([first, second, ..], _) = key.as_chunks::<8>() else { return None };
    // The state into which the second word is mixed depends on the first one.
    let states = [*first, begin].map(|word| mix(BEGIN ^ u64::from_le_bytes(word)));
    let other = u64::from_le_bytes(*second) ^ states[0] ^ states[1];
    let mut twin = key.to_vec();
    twin[..8].copy_from_slice(&begin);
    twin[8..16].copy_from_slice(&other.to_le_bytes());
    Some(twin)
}

/// The key that an operation is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'k> {
    /// Its word.
    pub(crate) word: u64,
    /// All of it, if it is one of bytes.
    bytes: Option<&'k [u8]>,
}

impl Asked<'_> {
    /// A number.
    pub(crate) const fn number(key: u64) -> Self {
        Self { word: key, bytes: None }
    }
}

impl<'k> Asked<'k> {
    /// A key of bytes.
    pub(crate) fn of_bytes(key: &'k [u8]) -> Self {
        Self { word: word_of(key), bytes: Some(key) }
    }

    /// Its kind.
    pub(crate) const fn kind(&self) -> Keys {
        if self.bytes.is_some() { Keys::Bytes } else { Keys::Numbers }
    }

    /// All of it, if it is one of bytes.
    pub(crate) const fn bytes(&self) -> Option<&'k [u8]> {
        self.bytes
    }

    /// Bytes that it takes in its record, beside the value.
    pub(crate) const fn room(&self) -> usize {
        match self.bytes {
            Some(key) => key_room(key),
            None => 0,
        }
    }

    /// Whether a block is this key's, of which the bytes were read, too.
    #[inline]
    pub(crate) fn is_of(&self, found: &Found, block: &[u8]) -> bool {
        let is_whole = |key: &[u8]| found.key_in(block) == key || !Check::WholeKey.on();
        found.word == self.word && self.bytes.is_none_or(is_whole)
    }
}

/// A key that was found.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key {
    /// A number.
    Number(u64),
    /// A string of bytes, with its [word](word_of).
    Bytes(u64, Bytes),
}

impl Key {
    /// The key in a block of a table whose keys are of this kind.
    pub(crate) fn of(keys: Keys, found: &Found, block: &[u8]) -> Self {
        match keys {
            Keys::Numbers => Self::Number(found.word),
            Keys::Bytes => Self::Bytes(found.word, Bytes::copy_from_slice(found.key_in(block))),
        }
    }

    /// Its word.
    pub(crate) const fn word(&self) -> u64 {
        match self {
            Self::Number(word) | Self::Bytes(word, _) => *word,
        }
    }

    /// Whether its word is made of its bytes, if it has some.
    pub(crate) fn is_sound(&self) -> bool {
        match self {
            Self::Number(_) => true,
            Self::Bytes(word, bytes) => word_of(bytes) == *word,
        }
    }
}

/// Words for people: `0x7`, or `"user:4711"`.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number:#x}"),
            Self::Bytes(_, bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Hash;

    /// The words lie in memory.
    #[test]
    fn golden_words() {
        let words = [&b""[..], b"a", b"user:4711", b"a key of more than sixteen bytes"].map(word_of);
        let golden =
            [0xa887_1e37_18ca_0053, 0xa719_81a6_cc19_1569, 0xfc3b_1549_ba3f_7227, 0x8df2_ea7c_b246_af52];
        assert_eq!(words, golden);
    }

    #[test]
    fn keys_that_begin_or_end_alike_have_other_words() {
        let zeros = [0; 40];
        let mut keys: Vec<Vec<u8>> = (0..40).map(|length| zeros[..length].to_vec()).collect();
        keys.extend((0..40).map(|at| {
            let mut key = zeros.to_vec();
            key[at] = 1;
            key
        }));
        keys.extend((0..4_000).map(|number| format!("user:{number}").into_bytes()));
        keys.extend((0..4_000).map(|number| format!("https://www.example.com/{number}/").into_bytes()));
        let mut words: Vec<u64> = keys.iter().map(|key| word_of(key)).collect();
        // All fields of their hashes are spread.
        let mut used = [0_u32; 256];
        words.iter().for_each(|word| used[usize::from(Hash::of(*word).fingerprint())] += 1);
        assert!(used.iter().all(|&count| (10..70).contains(&count)), "{used:?}");
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), keys.len());
    }

    #[test]
    fn twins_have_one_word() {
        let key = b"a key of more than sixteen bytes";
        let twin = twin_of(key, *b"another ").expect("it is long enough");
        assert!(twin.starts_with(b"another ") && twin.ends_with(b"an sixteen bytes"));
        assert!(twin[..] != key[..] && word_of(&twin) == word_of(key));
        assert_eq!(twin_of(&key[..15], [0; 8]), None);
    }

    #[test]
    fn keys_are_shown_as_what_they_are() {
        let bytes = Key::Bytes(0, Bytes::from_static(b"a\"\xff"));
        assert_eq!((Key::Number(7).to_string(), bytes.to_string()), ("0x7".into(), r#""a\"\xff""#.into()));
    }
}
