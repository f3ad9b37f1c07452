//! Parts of a region that something leads to, a bit for each: what a walk of a [`Tenant`](crate::Tenant::begin_marks) has met.

use std::ops::Range;

/// Words of a [window](Marked::windows): 32 KiB.
const WINDOW: usize = 4096;

/// Parts of a region that something leads to. By default it has none, and [`is_marked`](Self::is_marked) is always true.
#[derive(Clone, Debug, Default)]
pub struct Marked {
    /// Bytes of a part.
    unit: u64,
    /// A bit for each part.
    words: Vec<u64>,
}

impl Marked {
    /// No part of a region of `bytes` bytes. Parts have `unit` bytes each.
    #[must_use]
    pub fn none(bytes: u64, unit: u64) -> Self {
        Self { unit, words: vec![0; bytes.div_ceil(unit * 64) as usize] }
    }

    /// Marks the parts of a block.
    pub fn mark(&mut self, block: Range<u64>) {
        for part in block.start / self.unit..block.end.div_ceil(self.unit) {
            if let Some(word) = self.words.get_mut((part / 64) as usize) {
                *word |= 1 << (part % 64);
            }
        }
    }

    /// Marks all parts, where it cannot be told what leads to them.
    pub fn mark_all(&mut self) {
        self.words.fill(u64::MAX);
    }

    /// Marks what another walk has met. Says whether that was over the same region, in parts of the same size.
    pub fn join(&mut self, other: &Self) -> bool {
        let fits = self.unit == other.unit && self.words.len() == other.words.len();
        if fits {
            self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
        }
        fits
    }

    /// Bytes of a part.
    pub(crate) const fn unit(&self) -> u64 {
        self.unit
    }

    /// Marks in pieces, each with the number of its first word, without those in which nothing is marked.
    pub(crate) fn windows(&self) -> impl Iterator<Item = (u64, &[u64])> {
        let windows = (0..).step_by(WINDOW).zip(self.words.chunks(WINDOW));
        windows.filter(|(_, words)| words.iter().any(|&word| word != 0))
    }

    /// Marks what a piece says. Says whether it lies in the region.
    pub(crate) fn add_window(&mut self, first: u64, words: impl ExactSizeIterator<Item = u64>) -> bool {
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        let own = first.checked_add(words.len()).and_then(|end| self.words.get_mut(first..end));
        let fits = own.is_some();
        own.into_iter().flatten().zip(words).for_each(|(own, word)| *own |= word);
        fits
    }

    /// Whether a part of a block is marked, or is none of the region's.
    #[must_use]
    pub fn is_marked(&self, block: Range<u64>) -> bool {
        let is_marked =
            |part: u64| self.words.get((part / 64) as usize).is_none_or(|word| word >> (part % 64) & 1 == 1);
        self.unit == 0 || (block.start / self.unit..block.end.div_ceil(self.unit)).any(is_marked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_that_a_block_touches_is_marked() {
        assert!(Marked::default().is_marked(0..64), "nothing was looked at");
        let mut marked = Marked::none(10_000, 64);
        marked.mark(128..200);
        let found = [0..128, 128..129, 199..200, 200..256, 256..10_000, 5_000..100_000];
        assert_eq!(found.map(|block| marked.is_marked(block)), [false, true, true, true, false, true]);
        marked.mark(1 << 40..(1 << 40) + 64);
        marked.mark_all();
        assert!(marked.is_marked(0..64));
    }

    #[test]
    fn marks_are_put_together_also_by_pieces() {
        const BYTES: u64 = 64 << 20;
        let of = |blocks: &[u64]| {
            let mut marked = Marked::none(BYTES, 64);
            blocks.iter().for_each(|&block| marked.mark(block..block + 64));
            marked
        };
        let (mut one, other) = (of(&[0, 640]), of(&[128, BYTES - 64]));
        assert!(one.join(&other));
        let found = [0, 64, 128, 640, BYTES - 64].map(|at| one.is_marked(at..at + 64));
        assert_eq!(found, [true, false, true, true, true]);
        assert!(!one.join(&Marked::none(BYTES / 2, 64)) && !one.join(&Marked::none(BYTES, 32)));
        // Where nothing was looked at everything stays marked.
        assert!(!one.join(&Marked::default()));

        let mut copy = Marked::none(BYTES, 64);
        assert_eq!(one.windows().count(), 2, "what lies between has no mark");
        for (first, words) in one.windows() {
            assert!(copy.add_window(first, words.iter().copied()));
        }
        assert_eq!([0, 64, 640, BYTES - 64].map(|at| copy.is_marked(at..at + 64)), [true, false, true, true]);
        for first in [BYTES / 64 / 64, u64::MAX] {
            assert!(!copy.add_window(first, [1].into_iter()));
        }
    }
}
