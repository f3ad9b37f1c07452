//! How far apart leaves are: where the next ones begin that no inner node has named, and how many of them hold so many pairs.

use fatbtree_remote_memory::KeyRange;

/// Weight of a leaf in the means.
const WEIGHT: f64 = 1.0 / 8.0;

/// Part of a leaf's width by which guesses are apart. Less than all of it reads a leaf twice now and then, and passes over few.
const STEP: f64 = 7.0 / 8.0;

/// Means of the leaves that scans have taken, the last ones most.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Spacing {
    /// Keys of the key space that a leaf is responsible for; 0: no leaf was taken yet.
    width: f64,
    /// Pairs of a leaf.
    pairs: f64,
}

impl Spacing {
    /// Notes a leaf with so many pairs. The last one of all keys tells nothing of its neighbours.
    pub(crate) fn note(&mut self, range: &KeyRange, pairs: usize) {
        let Some(high) = range.high else { return };
        let (width, pairs) = (high.saturating_sub(range.low) as f64, pairs as f64);
        if self.width == 0.0 {
            *self = Self { width, pairs };
        } else {
            self.width += WEIGHT * (width - self.width);
            self.pairs += WEIGHT * (pairs - self.pairs);
        }
    }

    /// Keys from one guess to the next. `None` while no leaf is known.
    pub(crate) fn step(&self) -> Option<u64> {
        (self.width > 0.0).then(|| ((STEP * self.width) as u64).max(1))
    }

    /// Leaves that hold so many pairs, if one may begin before the first of them or not; where no leaf is known as many as are three quarters
    /// full.
    pub(crate) fn leaves(&self, pairs: usize, begins_before: bool, capacity: usize) -> usize {
        let each = if self.width > 0.0 { self.pairs } else { 0.75 * capacity as f64 };
        // A quarter of a leaf for those that have less than the mean.
        let more = if begins_before { 1.0 } else { 0.25 };
        (pairs as f64 / each.max(1.0) + more).ceil() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_means_follow_the_leaves() {
        let mut spacing = Spacing::default();
        assert_eq!((spacing.step(), spacing.leaves(60, true, 40)), (None, 3));
        spacing.note(&KeyRange::of(800..), 30);
        assert_eq!(spacing.step(), None, "the last leaf has no width");
        spacing.note(&KeyRange::of(0..800), 20);
        assert_eq!(spacing.step(), Some(700));
        assert_eq!([1, 10, 20, 100].map(|pairs| spacing.leaves(pairs, false, 40)), [1, 1, 2, 6]);
        (0..100).for_each(|_| spacing.note(&KeyRange::of(0..8), 10));
        assert_eq!((spacing.step(), spacing.leaves(100, true, 40)), (Some(7), 11));
        spacing = Spacing::default();
        spacing.note(&KeyRange::of(5..6), 0);
        assert_eq!((spacing.step(), spacing.leaves(3, false, 40)), (Some(1), 4));
    }
}
