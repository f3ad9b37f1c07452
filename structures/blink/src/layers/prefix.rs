//! What the first layer leaves out of keys.

use std::fmt;

use super::key::{Spelled, least_key, read};
use super::{Beginning, LESS};
use crate::node::LINE;

/// Of so many keys one may lack the prefix that a load chooses.
const FEW: usize = 64;

/// What nearly all keys of a tree begin with, and the first layer leaves out: of URLs their `https://www.`, so that their words begin behind
/// it. A load chooses it for all servers; it stays until the next one. Keys without it lie in two entries, as in all
/// [layers](crate::layers).
///
/// A region has it behind its superblock, in a line of its own:
///
/// ```text
/// offset size field
///      0    4 CRC-32 of the other bytes
///      4    1 bytes of the prefix, up to 48
///     16   48 the prefix as layers spell it, then zeros
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyPrefix {
    length: u8,
    spelled: [u8; Self::MOST],
}

impl KeyPrefix {
    /// Bytes of the longest one.
    pub const MOST: usize = 48;

    /// Nothing is left out.
    pub const NONE: Self = Self { length: 0, spelled: [0; Self::MOST] };

    /// Bytes of the line that a region has of it.
    pub const LINE: u32 = LINE as u32;

    /// What a load of these keys chooses, which are sorted: what all have in common but a 64th of them at most.
    pub fn of_sorted<'k>(count: usize, key: impl Fn(usize) -> &'k [u8]) -> Self {
        let Some(last) = count.checked_sub(1) else { return Self::NONE };
        let few = count / FEW / 2;
        let (first, last) = (Spelled::of(key(few)), Spelled::of(key(last - few)));
        let most = first.bytes().len().min(last.bytes().len()).min(Self::MOST);
        Self::new(&first.bytes()[..first.common(&last, 0, most)]).unwrap_or(Self::NONE)
    }

    /// These bytes, as layers spell them. `None` if there are too many.
    #[must_use]
    pub fn new(spelled: &[u8]) -> Option<Self> {
        let mut prefix = Self { length: spelled.len() as u8, ..Self::NONE };
        prefix.spelled.get_mut(..spelled.len())?.copy_from_slice(spelled);
        Some(prefix)
    }

    /// The bytes as layers spell them.
    #[must_use]
    pub fn spelled(&self) -> &[u8] {
        &self.spelled[..usize::from(self.length)]
    }

    /// The beginning of keys which is left out.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        read(self.spelled())
    }

    /// The word of a key in the first layer: what an index read carries, and what partitions are of.
    #[must_use]
    pub fn word(&self, key: &[u8]) -> u64 {
        Beginning::first(self.spelled()).word(&Spelled::of(key))
    }

    /// The least key whose [word](Self::word) is at least this one: what a border between partitions is in bytes.
    ///
    /// ```
    /// use fatbtree_blink::layers::KeyPrefix;
    /// let prefix = KeyPrefix::new(b"user:").unwrap();
    /// assert_eq!(prefix.least_key(prefix.word(b"user:4711")), b"user:4711");
    /// assert_eq!(KeyPrefix::NONE.least_key(0x61_00_80_00_00_00_00_00), b"a\0", "which is spelled 61 00 ff");
    /// ```
    #[must_use]
    pub fn least_key(&self, word: u64) -> Vec<u8> {
        // All keys without the prefix that are less than those with it.
        if word == LESS {
            return Vec::new();
        }
        let mut spelled = self.spelled().to_vec();
        // The key that ends with the prefix has the least word of those with it.
        spelled.extend(if word == LESS + 1 { [0; 8] } else { word.to_be_bytes() });
        least_key(&spelled)
    }

    /// The line of a region with it.
    #[must_use]
    pub fn to_line(&self) -> [u8; LINE] {
        let mut line = [0; LINE];
        line[4] = self.length;
        line[LINE - Self::MOST..].copy_from_slice(&self.spelled);
        let sum = crc32fast::hash(&line[4..]);
        line[..4].copy_from_slice(&sum.to_le_bytes());
        line
    }

    /// Reads a region's line. `None` if it has been damaged.
    #[must_use]
    pub fn parse(line: &[u8; LINE]) -> Option<Self> {
        let (sum, rest) = line.split_first_chunk()?;
        let prefix = rest[LINE - Self::MOST - 4..].get(..usize::from(rest[0]))?;
        (u32::from_le_bytes(*sum) == crc32fast::hash(rest)).then(|| Self::new(prefix))?
    }
}

impl Default for KeyPrefix {
    fn default() -> Self {
        Self::NONE
    }
}

impl fmt::Debug for KeyPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPrefix({})", self.bytes().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PREFIXES: &[&[u8]] = &[b"", b"a", b"a\0", b"https://www."];

    fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(&[0, 1, 0x61, 0xfe, 0xff][..]), 0..most)
    }

    /// Words with the bytes of such keys, spelled or not.
    fn border() -> impl Strategy<Value = u64> {
        bytes(9).prop_map(|mut bytes| {
            bytes.resize(8, 0);
            u64::from_be_bytes(*bytes.first_chunk().unwrap())
        })
    }

    proptest! {
        #[test]
        fn borders_are_keys(
            prefix in prop::sample::select(PREFIXES),
            has_prefix in any::<bool>(),
            key in bytes(20),
            word in prop_oneof![0..u64::MAX, border().prop_filter("a border below", |word| *word < u64::MAX)],
        ) {
            let key = if has_prefix { [prefix, &key].concat() } else { key };
            let prefix = KeyPrefix::new(Spelled::of(prefix).bytes()).unwrap();
            let (first, least) = (prefix.word(&key), prefix.least_key(word));
            prop_assert_eq!(first >= word, key >= least, "{:?} {:?}", key, least);
            prop_assert_eq!(prefix.least_key(first) <= key, true);
        }
    }

    fn of(keys: &[&[u8]]) -> Vec<u8> {
        KeyPrefix::of_sorted(keys.len(), |at| keys[at]).bytes()
    }

    #[test]
    fn it_is_what_nearly_all_keys_have_in_common() {
        assert_eq!(of(&[]), b"");
        assert_eq!(of(&[b"https://www.a", b"https://www.b"]), b"https://www.");
        assert_eq!(of(&[b"a", b"a"]), b"a");
        assert_eq!(of(&[b"", b"a"]), b"");
        assert_eq!(of(&[&[7; 100], &[7; 101]]), [7; KeyPrefix::MOST]);
        let mut keys: Vec<&[u8]> = vec![b"user:1"; 200];
        (keys[0], keys[199]) = (b"a", b"z");
        assert_eq!(of(&keys), b"user:1", "two keys of 200 lack it");
        keys[1] = b"a";
        assert_eq!(of(&keys), b"", "three lack it");
    }

    #[test]
    fn a_zero_byte_is_left_out_whole() {
        assert_eq!(of(&[b"a\0b", b"a\0c"]), b"a\0");
        // The first zero byte of 48 bytes of keys has its second byte behind them.
        let keys = [[b"x".repeat(47), b"\0a".to_vec()].concat(), [b"x".repeat(47), b"\0b".to_vec()].concat()];
        let found = KeyPrefix::of_sorted(2, |at| &keys[at]);
        assert_eq!(found.spelled().len(), 48);
        assert_eq!(found.bytes(), b"x".repeat(47));
    }

    #[test]
    fn a_line_is_read_as_it_was_written_and_every_bit_matters() {
        for prefix in [&b""[..], b"https://www.", &[7; KeyPrefix::MOST]] {
            let prefix = KeyPrefix::new(prefix).unwrap();
            let mut line = prefix.to_line();
            assert_eq!(KeyPrefix::parse(&line), Some(prefix));
            for bit in 0..LINE * 8 {
                line[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(KeyPrefix::parse(&line), None, "bit {bit}");
                line[bit / 8] ^= 1 << (bit % 8);
            }
        }
        assert_eq!(KeyPrefix::new(&[0; KeyPrefix::MOST + 1]), None);
        assert_eq!(KeyPrefix::parse(&[0; LINE]), None);
    }
}
