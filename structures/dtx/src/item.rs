//! An item: lock, version, key, checksum and value.
//!
//! ```text
//!   0 lock │ 8 version │ 16 key │ 24 CRC-32 │ 28 presence │ 29 zeros │ 32 value
//! ```
//!
//! The lock is changed by compare-and-swap, or by its holder. All after it, the *body*, is written by the holder alone. The checksum covers
//! the body, so a reader notices a mixture of two bodies. Memory of zeros is an item that was never used.

use fatbtree_remote_memory::word_at;

use crate::checks::Check;

/// Bytes of an item before its value.
pub const ITEM_HEAD: usize = 32;

/// Offset of an item's body: everything after the lock.
pub(crate) const BODY: usize = 8;

/// Bytes of a body before the value.
pub(crate) const BODY_HEAD: usize = ITEM_HEAD - BODY;

/// Bits of a version that name the transaction; above them is a counter.
const TAG_BITS: u32 = 24;

/// The version that a transaction gives to an item: one more than before, with bits of the transaction's own. So a recovery tells what its
/// transaction has written from what others have written since.
pub(crate) fn next_version(before: u64, transaction: u64) -> u64 {
    let transaction = if Check::Tags.on() { transaction } else { 0 };
    ((before >> TAG_BITS) + 1) << TAG_BITS | transaction & ((1 << TAG_BITS) - 1)
}

/// What a slot holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Presence {
    /// No key was ever here.
    #[default]
    Free,
    /// The key has this value.
    Present,
    /// The key was deleted. Another key of the node may take the slot.
    Deleted,
}

impl Presence {
    const fn byte(self) -> u8 {
        match self {
            Self::Free => 0,
            Self::Present => 1,
            Self::Deleted => 2,
        }
    }

    const fn of(byte: u8) -> Self {
        match byte {
            1 => Self::Present,
            2 => Self::Deleted,
            _ => Self::Free,
        }
    }
}

/// An item as it was read, without its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Head {
    /// Word of the lock; 0 if it is free.
    pub(crate) lock: u64,
    pub(crate) version: u64,
    pub(crate) key: u64,
    pub(crate) presence: Presence,
    /// Whether the checksum is right.
    pub(crate) is_whole: bool,
}

impl Head {
    /// Reads an item of `value_bytes`. Bytes that are missing are taken for zeros.
    pub(crate) fn parse(item: &[u8], value_bytes: usize) -> Self {
        let word = |at: usize| word_at(item, at);
        let body = item.get(BODY..ITEM_HEAD + value_bytes).unwrap_or_default();
        let sum = item.get(24..28).unwrap_or_default();
        let is_unused = word(8) == 0 && word(16) == 0 && word(24) == 0;
        Self {
            lock: word(0),
            version: word(8),
            key: word(16),
            presence: Presence::of(item.get(28).copied().unwrap_or(0)),
            is_whole: !body.is_empty() && (is_unused || checksum(body).to_le_bytes() == *sum),
        }
    }
}

/// Appends the body of an item.
pub(crate) fn write_body(to: &mut Vec<u8>, version: u64, key: u64, presence: Presence, value: &[u8]) {
    let begin = to.len();
    to.extend_from_slice(&version.to_le_bytes());
    to.extend_from_slice(&key.to_le_bytes());
    to.extend_from_slice(&[0, 0, 0, 0, presence.byte(), 0, 0, 0]);
    to.extend_from_slice(value);
    let sum = checksum(&to[begin..]);
    to[begin + 16..begin + 20].copy_from_slice(&sum.to_le_bytes());
}

/// CRC-32 of a body, without the sum itself.
fn checksum(body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&body[..16]);
    hasher.update(body.get(20..).unwrap_or_default());
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_item_is_read_as_it_was_written_and_every_bit_of_its_body_matters(
            lock: u64,
            version in 1..u64::MAX,
            key: u64,
            which in 0..3_u8,
            value in prop::collection::vec(any::<u8>(), 0..60),
            bit: prop::sample::Index,
        ) {
            let presence = Presence::of(which);
            let mut item = lock.to_le_bytes().to_vec();
            write_body(&mut item, version, key, presence, &value);
            let head = Head { lock, version, key, presence, is_whole: true };
            prop_assert_eq!(Head::parse(&item, value.len()), head);
            // The three bytes after the presence are covered, too.
            let at = 64 + bit.index(item.len() * 8 - 64);
            item[at / 8] ^= 1 << (at % 8);
            prop_assert!(!Head::parse(&item, value.len()).is_whole);
        }
    }

    #[test]
    fn zeros_are_an_unused_item_and_missing_bytes_are_none() {
        assert_eq!(Head::parse(&[0; 64], 8), Head { is_whole: true, ..Head::default() });
        assert!(!Head::parse(&[0; 8], 8).is_whole);
    }
}
