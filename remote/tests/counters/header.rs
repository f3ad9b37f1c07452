//! The first line of a region of counters: where their array lies.

use fatbtree_remote::GlobalAddress;

/// Bytes of the header.
pub(crate) const LINE: u32 = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"counters");

/// Place of the array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) base: GlobalAddress,
    pub(crate) bytes: u64,
}

impl Header {
    /// The line as it lies in memory: the last word is the sum of the others.
    pub(crate) fn to_bytes(self) -> [u8; LINE as usize] {
        let mut line = [0; LINE as usize];
        let words = [MAGIC, self.base.raw(), self.bytes];
        let sum = words.iter().fold(0, |sum: u64, word| sum.wrapping_add(*word));
        for (at, word) in words.into_iter().chain([sum]).enumerate() {
            line[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
        line
    }

    /// `None` if there is no array, or the line is being written.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(*line.get(at * 8..)?.first_chunk()?));
        let header = Self { base: GlobalAddress(word(1)?), bytes: word(2)? };
        (line.get(..LINE as usize)? == header.to_bytes()).then_some(header)
    }
}
