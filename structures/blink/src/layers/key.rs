//! Keys of bytes as layers see them: words of eight bytes, in the order of the keys.
//!
//! ```text
//!   "user:4711"        75 73 65 72 3a 34 37 31 | 31 00 00 00 00 00 00 00 | 00 …
//!   "a"                61 00 00 00 00 00 00 00 | 00 …
//!   "a\0"              61 00 ff 00 00 00 00 00 | 00 …      a zero byte of the key is 00 ff
//! ```
//!
//! A key goes on in zeros without end, and a zero byte in it is written as `00 ff`, as FoundationDB's tuples do. So no two keys are the same
//! word by word, none is the beginning of another one, and the words are in the order of the keys. Eight bytes at any place of it are a
//! number, big endian; no length stands beside it, and text, which has no zero bytes, has all eight.

use std::borrow::Cow;

/// Bytes of a word.
pub(crate) const WORD: usize = 8;

/// A key in the form in which layers have it, without the zeros at its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Spelled<'k>(Cow<'k, [u8]>);

impl<'k> Spelled<'k> {
    /// Copies the key only if it has zero bytes.
    pub(crate) fn of(key: &'k [u8]) -> Self {
        if !key.contains(&0) {
            return Self(Cow::Borrowed(key));
        }
        let mut spelled = Vec::with_capacity(key.len() + 8);
        for &byte in key {
            spelled.push(byte);
            if byte == 0 {
                spelled.push(0xff);
            }
        }
        Self(Cow::Owned(spelled))
    }

    /// The bytes of it up to the zeros.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The word that begins with this byte.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> u64 {
        let rest = self.0.get(at..).unwrap_or_default();
        if let Some(word) = rest.first_chunk() {
            return u64::from_be_bytes(*word);
        }
        let mut word = [0; WORD];
        word[..rest.len()].copy_from_slice(rest);
        u64::from_be_bytes(word)
    }

    /// One byte of it.
    pub(crate) fn byte(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    /// Whether the key has ended before this byte.
    #[inline]
    pub(crate) fn has_ended(&self, at: usize) -> bool {
        self.0.len() <= at
    }

    /// The key that begins like this one and ends with its byte before `at`.
    pub(crate) fn ended_at(&self, at: usize) -> Vec<u8> {
        read(&self.0[..at.min(self.0.len())])
    }

    /// How the bytes from `at` on compare with these.
    pub(crate) fn compare(&self, at: usize, with: &[u8]) -> std::cmp::Ordering {
        let rest = self.0.get(at..).unwrap_or_default();
        let both = rest.len().min(with.len());
        let ordering = rest[..both].cmp(&with[..both]);
        // The rest of a key that has ended is zeros.
        ordering.then_with(|| match with[both..].iter().all(|&byte| byte == 0) {
            true => std::cmp::Ordering::Equal,
            false => std::cmp::Ordering::Less,
        })
    }

    /// Number of bytes from `at` on that another key has as well, up to `most`.
    pub(crate) fn common(&self, other: &Self, at: usize, most: usize) -> usize {
        (at..at + most).take_while(|&at| self.byte(at) == other.byte(at)).count()
    }
}

/// The key that is spelled so: up to its end, or to that of these bytes.
pub(crate) fn read(spelled: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(spelled.len());
    let mut bytes = spelled.iter();
    while let Some(&byte) = bytes.next() {
        if byte == 0 && bytes.next() != Some(&0xff) {
            break;
        }
        key.push(byte);
    }
    key
}

/// The least key whose spelling is at least this one.
pub(crate) fn least_key(spelled: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(spelled.len());
    let mut rest = spelled;
    while rest.iter().any(|&byte| byte != 0) {
        match rest {
            [0, 0xff, behind @ ..] => {
                key.push(0);
                rest = behind;
            }
            // No key is spelled so: the next one has a zero byte here.
            [0, ..] => {
                key.push(0);
                break;
            }
            [byte, behind @ ..] => {
                key.push(*byte);
                rest = behind;
            }
            [] => break,
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(&[0, 1, 0x61, 0xfe, 0xff][..]), 0..20)
    }

    proptest! {
        #[test]
        fn words_are_in_the_order_of_the_keys(one in key(), other in key()) {
            let words = |key: &[u8]| (0..6).map(|n| Spelled::of(key).word(n * WORD)).collect::<Vec<_>>();
            prop_assert_eq!(words(&one).cmp(&words(&other)), one.cmp(&other));
        }

        #[test]
        fn a_key_is_read_as_it_was_spelled(key in key(), zeros in 0..9_usize) {
            let mut spelled = Spelled::of(&key).bytes().to_vec();
            spelled.resize(spelled.len() + zeros, 0);
            prop_assert_eq!(read(&spelled), key);
        }

        #[test]
        fn beginnings_compare_as_keys_do(one in key(), other in key(), at in 0..4_usize) {
            let (one, other) = (Spelled::of(&one), Spelled::of(&other));
            let common = one.common(&other, at, 100);
            let beginning = |length: usize| (at..at + length).map(|n| other.bytes().get(n).copied().unwrap_or(0)).collect::<Vec<_>>();
            prop_assert_eq!(one.compare(at, &beginning(common)), std::cmp::Ordering::Equal);
            if common < 100 {
                prop_assert_ne!(one.compare(at, &beginning(common + 1)), std::cmp::Ordering::Equal);
            }
        }
    }
}
