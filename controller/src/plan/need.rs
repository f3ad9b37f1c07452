//! What ranges take of the four range tables, told without building them.
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

/// What some ranges take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) ranges: usize,
    /// Entries of each stage.
    pub(super) entries: [usize; STAGES],
    /// TCAM rows of each stage.
    pub(super) rows: [usize; STAGES],
}

const LAST: u32 = (1 << SLICE_BITS) - 1;

impl Need {
    /// What tables take that are built.
    pub(super) fn of_tables(ranges: usize, tables: &RangeTables, how: RangeMatch) -> Self {
        Self { ranges, entries: tables.entries_per_stage(), rows: tables.rows_per_stage(how) }
    }

    /// What the ranges take that begin at `lows`, the first of them at key 0, and cover all keys.
    pub(super) fn of_all(lows: &[u64], how: RangeMatch) -> Self {
        let mut whole = Self::default();
        whole.add_range(0, None, how);
        whole.plus(&Self::of_cutting(lows, None, how))
    }

    /// What it takes more to cut the range from `lows[0]` to before `next` at all other `lows`.
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

    pub(super) fn plus(&self, other: &Self) -> Self {
        self.with(other, |a, b| a + b)
    }

    fn minus(&self, other: &Self) -> Self {
        self.with(other, usize::saturating_sub)
    }

    fn with(&self, other: &Self, f: impl Fn(usize, usize) -> usize) -> Self {
        let each =
            |a: [usize; STAGES], b: [usize; STAGES]| std::array::from_fn(|stage| f(a[stage], b[stage]));
        Self {
            ranges: f(self.ranges, other.ranges),
            entries: each(self.entries, other.entries),
            rows: each(self.rows, other.rows),
        }
    }

    fn add_entry(&mut self, stage: usize, low: u32, high: u32, how: RangeMatch) {
        if low <= high {
            self.entries[stage] += 1;
            self.rows[stage] += how.best(low, high).1;
        }
    }

    /// The entries of one range.
    fn add_range(&mut self, low: u64, next: Option<u64>, how: RangeMatch) {
        self.ranges += 1;
        let last = next.map_or(u64::MAX, |next| next.wrapping_sub(1));
        // Down to the table in which the two ends lie in different cells, or in a cell that is the range's alone.
        let mut stage = 0;
        while cell(low, stage) == cell(last, stage) && (cut_before(low, stage) || cut_after(last, stage)) {
            stage += 1;
        }
        let from = slice(low, stage) + u32::from(cut_before(low, stage));
        let Some(to) = slice(last, stage).checked_sub(u32::from(cut_after(last, stage))) else {
            return; // the ends are the wrong way round: such a tree is damaged
        };
        self.add_entry(stage, from, to, how);
        // Then the rest of the first cell to its end, and of the last cell from its beginning.
        for stage in stage + 1..STAGES {
            if cut_before(low, stage - 1) {
                self.add_entry(stage, slice(low, stage) + u32::from(cut_before(low, stage)), LAST, how);
            }
            if cut_after(last, stage - 1)
                && let Some(to) = slice(last, stage).checked_sub(u32::from(cut_after(last, stage)))
            {
                self.add_entry(stage, 0, to, how);
            }
        }
    }

    /// The cells that lead on because a range begins at `low`, and did not before: neither for the range `before` it nor for
    /// `next`.
    fn add_cells(&mut self, before: u64, low: u64, next: Option<u64>) {
        for stage in 0..STAGES - 1 {
            let there = cut_before(before, stage) && cell(before, stage) == cell(low, stage)
                || next.is_some_and(|next| cell(next, stage) == cell(low, stage));
            if cut_before(low, stage) && !there {
                self.entries[stage] += 1;
                self.rows[stage] += 1;
            }
        }
    }
}

/// Bits behind those that a stage looks at.
const fn shift(stage: usize) -> u32 {
    SLICE_BITS * (STAGES - 1 - stage) as u32
}

/// The cell of a stage, with all slices before it.
const fn cell(key: u64, stage: usize) -> u64 {
    key >> shift(stage)
}

/// What a stage matches.
const fn slice(key: u64, stage: usize) -> u32 {
    cell(key, stage) as u32 & LAST
}

/// Whether a range that begins at `low` leaves out the front of its cell.
const fn cut_before(low: u64, stage: usize) -> bool {
    cell(low, stage) << shift(stage) != low
}

/// Whether a range that ends with `last` leaves out the end of its cell.
const fn cut_after(last: u64, stage: usize) -> bool {
    cut_before(!last, stage)
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
        Need::of_tables(lows.len(), &RangeTables::build(&lows, SLICE_BITS, STAGES), how)
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
