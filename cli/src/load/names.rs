//! Keys of bytes as a hash table is loaded with them: by the numbers that it makes of them, each with key and value as in its record.

use fatbtree_blink_host::BytePairs;
use fatbtree_memserver::grpc::LoadData;

/// Keys by their numbers, ascending, and their values.
pub(super) struct Names {
    words: Vec<u64>,
    /// Place of each in `pairs`.
    places: Vec<usize>,
    pairs: BytePairs,
}

impl Names {
    pub(super) fn new(pairs: BytePairs, word_of: fn(&[u8]) -> u64) -> Self {
        let mut all: Vec<_> = (0..pairs.len()).map(|at| (word_of(pairs.pair(at).0), at)).collect();
        all.sort_unstable();
        let (words, places) = all.into_iter().unzip();
        Self { words, places, pairs }
    }

    /// Key and value at a position.
    pub(super) fn pair(&self, at: usize) -> (&[u8], &[u8]) {
        self.pairs.pair(self.places[at])
    }

    /// Bytes of all values together.
    pub(super) fn value_bytes(&self) -> u64 {
        (0..self.places.len()).map(|at| self.pair(at).1.len() as u64).sum()
    }
}

impl LoadData for Names {
    fn keys(&self) -> &[u64] {
        &self.words
    }

    fn length(&self, at: usize) -> u32 {
        self.pairs.record(self.places[at]).len() as u32
    }

    fn append(&self, at: usize, to: &mut Vec<u8>) {
        to.extend_from_slice(self.pairs.record(self.places[at]));
    }
}
