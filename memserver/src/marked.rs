//! Parts of a region that something leads to, a bit for each: help for [`Tenant::is_marked`](crate::Tenant::is_marked).

use std::ops::Range;

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
}
