//! Need of ranges in the four range tables, computed without building them.
//!
//! Every entry of a [range table](super::ranges) belongs to one range or leads to another table.
//!
//! * What a range takes follows from where it begins and where the next one does: a table lies in its way exactly where one of
//!   these two keys lies strictly inside a cell. Ranges elsewhere change nothing.
//! * An entry that leads on is one row, and there is one for every cell with the beginning of a range strictly inside.
//!
//! So what it takes more to cut a range into several is the same whatever else the fat root holds: it is counted once.

use super::ranges::{RangeMatch, RangeTables};
use super::{SLICE_BITS, STAGES};

/// Need of some ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) ranges: usize,
    /// Entries of each slice.
    pub(super) entries: [usize; STAGES],
    /// Entries among these that lead on.
    pub(super) leading: [usize; STAGES],
    /// TCAM rows of each slice.
    pub(super) rows: [usize; STAGES],
}

const LAST: u32 = (1 << SLICE_BITS) - 1;

impl Need {
    /// Need of built tables.
    pub(super) fn of_tables(ranges: usize, tables: &RangeTables, how: RangeMatch) -> Self {
        Self {
            ranges,
            entries: tables.entries_per_slice(),
            leading: tables.leading_per_slice(),
            rows: tables.rows_per_slice(how),
        }
    }

    /// Need of the ranges that begin at `lows`, the first of them at key 0, and cover all keys.
    pub(super) fn of_all(lows: &[u64], how: RangeMatch) -> Self {
        let mut whole = Self::default();
        whole.add_range(0, None, how);
        whole.plus(&Self::of_cutting(lows, None, how))
    }

    /// Additional need of cutting the range from `lows[0]` to before `next` at all other `lows`.
    ///
    /// It is never less than nothing: two pieces of an entry take at least as many rows as the entry did.
    pub(super) fn of_cutting(lows: &[u64], next: Option<u64>, how: RangeMatch) -> Self {
        let mut need = Self::default();
        let Some((&first, inside)) = lows.split_first() else { return need };
        let mut from = first;
        for &low in inside {
            need.add_range(from, Some(low), how);
            need.add_cells(from, low, next);
            from = low;
        }
        need.add_range(from, next, how);
        let mut whole = Self::default();
        whole.add_range(first, next, how);
        need.minus(&whole)
    }

    /// The first, and one for each entry that leads on.
    pub(super) fn sub_tables(&self) -> usize {
        1 + self.leading.iter().sum::<usize>()
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        self.with(other, |a, b| a + b)
    }

    fn minus(&self, other: &Self) -> Self {
        self.with(other, usize::saturating_sub)
    }

    fn with(&self, other: &Self, f: impl Fn(usize, usize) -> usize) -> Self {
        let each =
            |a: [usize; STAGES], b: [usize; STAGES]| std::array::from_fn(|slice| f(a[slice], b[slice]));
        Self {
            ranges: f(self.ranges, other.ranges),
            entries: each(self.entries, other.entries),
            leading: each(self.leading, other.leading),
            rows: each(self.rows, other.rows),
        }
    }

    fn add_entry(&mut self, slice: usize, low: u32, high: u32, how: RangeMatch) {
        if low <= high {
            self.entries[slice] += 1;
            self.rows[slice] += how.best(low, high).1;
        }
    }

    /// The entries of one range.
    fn add_range(&mut self, low: u64, next: Option<u64>, how: RangeMatch) {
        self.ranges += 1;
        let last = next.map_or(u64::MAX, |next| next.wrapping_sub(1));
        // Down to the table in which the two ends lie in different cells, or in a cell that is the range's alone.
        let mut slice = 0;
        while cell(low, slice) == cell(last, slice) && (cut_before(low, slice) || cut_after(last, slice)) {
            slice += 1;
        }
        let from = value(low, slice) + u32::from(cut_before(low, slice));
        let Some(to) = value(last, slice).checked_sub(u32::from(cut_after(last, slice))) else {
            return; // the ends are the wrong way round: such a tree is damaged
        };
        self.add_entry(slice, from, to, how);
        // Then the rest of the first cell to its end, and of the last cell from its beginning.
        for slice in slice + 1..STAGES {
            if cut_before(low, slice - 1) {
                self.add_entry(slice, value(low, slice) + u32::from(cut_before(low, slice)), LAST, how);
            }
            if cut_after(last, slice - 1)
                && let Some(to) = value(last, slice).checked_sub(u32::from(cut_after(last, slice)))
            {
                self.add_entry(slice, 0, to, how);
            }
        }
    }

    /// The cells that lead on because a range begins at `low`, and did not before: neither for the range `before` it nor for
    /// `next`.
    fn add_cells(&mut self, before: u64, low: u64, next: Option<u64>) {
        for slice in 0..STAGES - 1 {
            let there = cut_before(before, slice) && cell(before, slice) == cell(low, slice)
                || next.is_some_and(|next| cell(next, slice) == cell(low, slice));
            if cut_before(low, slice) && !there {
                self.entries[slice] += 1;
                self.leading[slice] += 1;
                self.rows[slice] += 1;
            }
        }
    }
}

/// Bits after a slice.
const fn shift(slice: usize) -> u32 {
    SLICE_BITS * (STAGES - 1 - slice) as u32
}

/// The cell of a slice, with all slices before it.
const fn cell(key: u64, slice: usize) -> u64 {
    key >> shift(slice)
}

/// Slice of a key that is matched.
const fn value(key: u64, slice: usize) -> u32 {
    cell(key, slice) as u32 & LAST
}

/// Whether a range that begins at `low` leaves out the front of its cell.
const fn cut_before(low: u64, slice: usize) -> bool {
    cell(low, slice) << shift(slice) != low
}

/// Whether a range that ends with `last` leaves out the end of its cell.
const fn cut_after(last: u64, slice: usize) -> bool {
    cut_before(!last, slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::ops::Bound::{Excluded, Unbounded};

    /// Built, and counted there.
    fn built(lows: &BTreeSet<u64>, how: RangeMatch) -> Need {
        let lows: Vec<u64> = lows.iter().copied().collect();
        let tables = RangeTables::build(&lows, SLICE_BITS, STAGES);
        let need = Need::of_tables(lows.len(), &tables, how);
        assert_eq!(need.sub_tables(), tables.tables.len());
        need
    }

    proptest! {
        /// Whatever else is there, what a cut is said to take is what the tables then take more.
        #[test]
        fn it_is_what_the_tables_take(
            random in prop::collection::vec(any::<u64>(), 0..20),
            coarse in prop::collection::vec((any::<u16>(), 0u32..4).prop_map(|(k, s)| u64::from(k) << (16 * s)), 0..20),
            near in prop::collection::vec((any::<prop::sample::Index>(), -3i64..4), 0..20),
            groups in prop::collection::vec(any::<u64>(), 1..60), steps in 1..6u64,
        ) {
            let mut lows: BTreeSet<u64> = random.into_iter().chain(coarse).chain([0]).collect();
            let some: Vec<u64> = lows.iter().copied().collect();
            lows.extend(near.iter().map(|(at, d)| at.get(&some).wrapping_add_signed(*d)));
            // Each key comes in one of several steps; those of one step and one range come together.
            let step_of: Vec<(u64, u64)> =
                lows.iter().enumerate().map(|(n, low)| (*low, groups[n % groups.len()] % steps)).collect();
            for how in [RangeMatch::Exact, RangeMatch::OneSided] {
                let mut there = BTreeSet::from([0]);
                let mut need = built(&there, how);
                for step in 0..steps {
                    for first in there.clone() {
                        let next = there.range((Excluded(first), Unbounded)).next().copied();
                        let inside = |low: u64| low > first && next.is_none_or(|next| low < next);
                        let new = step_of.iter().filter(|(low, of)| *of == step && inside(*low)).map(|(low, _)| *low);
                        let cut: Vec<u64> = [first].into_iter().chain(new).collect();
                        need = need.plus(&Need::of_cutting(&cut, next, how));
                        there.extend(&cut);
                        prop_assert_eq!(need, built(&there, how), "cut at {:x?} before {:x?}", cut, next);
                    }
                }
            }
        }
    }
}
