//! Range lookup of wide keys by several narrow range tables: the paper's Algorithm 1 (§III-B), built from the n
//! boundaries instead of by visiting 2^16 cells per table.
//!
//! ```text
//!  key 0x0001_2345_…   stage 0: 0x0001 ─▶ sub-table 4   stage 1: sub-table 4, 0x2345 ─▶ range 17
//! ```
//!
//! A table covers the keys that share the slices before it, and looks at the next one. Boundaries strictly inside it cut it into pieces: a cell with
//! a boundary strictly inside *it* gets a sub-table of the next slice, all else goes straight to a range, and neighbouring
//! cells of one range share an entry by construction.
//!
//! Built here, the tables of a slice stand in the stage of the same number. [`placement`](super::placement) moves on what is too much
//! there.
//!
//! **Bounds.** With n ranges (n - 1 boundaries) a slice has at most n - 1 tables after the first. A table with m boundaries
//! inside has at most 2m + 1 entries (m + 1 in the last slice, where every boundary is aligned), so a slice has at most
//! 2n - 1 entries (first), 3(n - 1) (middle), 2(n - 1) (last). The paper says "does not exceed 2 × n" for every stage;
//! for the middle ones this holds only while tables share boundaries: n - 1 boundaries in n - 1 different cells need three
//! entries each (left of the boundary's cell, the cell, right of it). See the test `the_papers_bound_fails_in_the_middle`.

use serde::{Deserialize, Serialize};

/// Target of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// Range of this number.
    Range(u32),
    /// Table of the next slice in a later stage.
    Table(u32),
}

/// `low..=high` of the slice leads to `target`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RangeEntry {
    pub(crate) low: u32,
    pub(crate) high: u32,
    pub(crate) target: Target,
    /// The stage that it stands in: the slice's or a later one.
    pub(crate) stage: usize,
}

impl RangeEntry {
    /// Whether it leads to another table.
    pub(crate) fn leads_on(&self) -> bool {
        matches!(self.target, Target::Table(_))
    }
}

/// One range table; its entries tile all values of its slice, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RangeTable {
    /// Which slice of the key it looks at, 0 to 3.
    pub(crate) slice: usize,
    pub(crate) entries: Vec<RangeEntry>,
}

/// All tables of a fat root. Table 0 is the one of the first slice; a table is numbered before those it leads to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct RangeTables {
    pub(crate) tables: Vec<RangeTable>,
}

impl RangeTables {
    /// Tables for ranges that begin at `lows` (ascending, the first at 0) over keys of `stages` slices of `width` bits.
    /// O(n) tables and O(n) time per slice.
    pub(crate) fn build(lows: &[u64], width: u32, slices: usize) -> Self {
        debug_assert!(
            lows.first() == Some(&0) && lows.is_sorted_by(|a, b| a < b),
            "ranges tile the key space"
        );
        let mut build = Builder { lows, width, slices, tables: Vec::new() };
        build.table(0, 0, 1..lows.len());
        Self { tables: build.tables }
    }

    /// Entries per stage.
    pub(crate) fn entries_per_stage<const STAGES: usize>(&self) -> [usize; STAGES] {
        self.sums(|_, entry| (entry.stage, 1))
    }

    /// TCAM rows per stage, for 16-bit slices.
    pub(crate) fn rows_per_stage<const STAGES: usize>(&self, how: RangeMatch) -> [usize; STAGES] {
        self.sums(|_, entry| (entry.stage, how.best(entry.low, entry.high).1))
    }

    /// Entries per slice.
    pub(crate) fn entries_per_slice<const SLICES: usize>(&self) -> [usize; SLICES] {
        self.sums(|slice, _| (slice, 1))
    }

    /// TCAM rows per slice, for 16-bit slices.
    pub(crate) fn rows_per_slice<const SLICES: usize>(&self, how: RangeMatch) -> [usize; SLICES] {
        self.sums(|slice, entry| (slice, how.best(entry.low, entry.high).1))
    }

    /// Entries per slice that lead to another table.
    pub(crate) fn leading_per_slice<const SLICES: usize>(&self) -> [usize; SLICES] {
        self.sums(|slice, entry| (slice, usize::from(entry.leads_on())))
    }

    /// Tables per slice.
    pub(crate) fn tables_per_slice<const SLICES: usize>(&self) -> [usize; SLICES] {
        let mut sums = [0; SLICES];
        self.tables.iter().for_each(|table| sums[table.slice] += 1);
        sums
    }

    /// Sums over each entry and the slice of its table: where it counts, and for how much.
    fn sums<const N: usize>(&self, of: impl Fn(usize, &RangeEntry) -> (usize, usize)) -> [usize; N] {
        let mut sums = [0; N];
        for table in &self.tables {
            for entry in &table.entries {
                let (at, much) = of(table.slice, entry);
                sums[at] += much;
            }
        }
        sums
    }
}

struct Builder<'a> {
    lows: &'a [u64],
    width: u32,
    slices: usize,
    tables: Vec<RangeTable>,
}

impl Builder<'_> {
    /// The table of `slice` whose first key is in range `first`, and strictly inside of which the ranges `inside` begin.
    fn table(&mut self, slice: usize, first: u32, inside: std::ops::Range<usize>) -> u32 {
        let number = self.tables.len() as u32;
        self.tables.push(RangeTable { slice, entries: Vec::new() });
        let entry = |low, high, target| RangeEntry { low, high, target, stage: slice };
        let shift = self.width * (self.slices - 1 - slice) as u32;
        let slice_mask = (1u64 << self.width) - 1;
        let within = (1u64 << shift) - 1;
        let cell_of = |low: u64| ((low >> shift) & slice_mask) as u32;

        let mut entries = Vec::new();
        let (mut range, mut from) = (first, 0u32); // cells from `from` on belong to `range`
        let mut at = inside.start;
        while at < inside.end {
            let cell = cell_of(self.lows[at]);
            let run = self.lows[at..inside.end].partition_point(|low| cell_of(*low) == cell);
            let in_cell = at..at + run;
            if cell > from {
                entries.push(entry(from, cell - 1, Target::Range(range)));
            }
            let aligned = self.lows[at] & within == 0;
            if aligned {
                range = at as u32;
            }
            let deeper = in_cell.start + usize::from(aligned)..in_cell.end;
            from = cell;
            if !deeper.is_empty() {
                let next = self.table(slice + 1, range, deeper);
                entries.push(entry(cell, cell, Target::Table(next)));
                range = (in_cell.end - 1) as u32;
                from = cell + 1;
            }
            at = in_cell.end;
        }
        let last = slice_mask as u32;
        if from <= last {
            entries.push(entry(from, last, Target::Range(range)));
        }
        self.tables[number as usize].entries = entries;
        number
    }
}

/// Way in which a 16-bit range is matched, and its cost in TCAM rows.
///
/// Tofino matches ranges nibble by nibble: one row holds, for each of the four nibbles, any set of its 16 values. A range
/// is then a few products of nibble intervals: `0x1234..=0xffff` is `1 2 3 4-f`, `1 2 4-f *`, `1 3-f * *`, `2-f * * *`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RangeMatch {
    /// Every entry matches exactly its own range: at most 7 rows.
    Exact,
    /// An entry may begin below its own low end where that is cheaper, for the entries below it have a higher priority: at most 4
    /// rows.
    #[default]
    OneSided,
}

impl RangeMatch {
    /// Rows that an entry takes at most.
    pub(crate) fn most_rows(self) -> usize {
        match self {
            Self::Exact => 7,
            Self::OneSided => 4,
        }
    }

    /// The low end to match from, and the rows it costs.
    pub(crate) fn best(self, low: u32, high: u32) -> (u32, usize) {
        let exact = (low, tcam_rows(low, high));
        match self {
            Self::Exact => exact,
            // What it begins with in common with its high end costs nothing; then zeros are the cheapest.
            Self::OneSided => {
                let begins = [4, 8, 12, 16].map(|zeros| low >> zeros << zeros);
                let all = begins.map(|from| (from, tcam_rows(from, high)));
                std::iter::once(exact).chain(all).min_by_key(|(_, rows)| *rows).unwrap_or(exact)
            }
        }
    }
}

/// Rows of nibble-wise matching that the 16-bit range `low..=high` needs: at most 7.
pub(crate) fn tcam_rows(low: u32, high: u32) -> usize {
    rows(low, high, 12)
}

fn rows(low: u32, high: u32, shift: u32) -> usize {
    let (a, b) = (low >> shift, high >> shift);
    if shift == 0 {
        return 1;
    }
    let mask = (1 << shift) - 1;
    let (low_rest, high_rest) = (low & mask, high & mask);
    if a == b {
        return if low_rest == 0 && high_rest == mask { 1 } else { rows(low_rest, high_rest, shift - 4) };
    }
    // The first and last nibble value may be covered only in part; what is between takes one row.
    let left = low_rest != 0;
    let right = high_rest != mask;
    let middle = a + u32::from(left) + u32::from(right) <= b;
    let part = |needed: bool, low, high| if needed { rows(low, high, shift - 4) } else { 0 };
    part(left, low_rest, mask) + usize::from(middle) + part(right, 0, high_rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn look_up(tables: &RangeTables, key: u64, width: u32, stages: usize) -> u32 {
        let mut table = 0;
        for stage in 0..stages {
            let slice = ((key >> (width * (stages - 1 - stage) as u32)) & ((1 << width) - 1)) as u32;
            let found = &tables.tables[table as usize];
            assert_eq!(found.slice, stage);
            let mut hits = found.entries.iter().filter(|e| (e.low..=e.high).contains(&slice));
            let hit = hits.next().expect("entries cover every slice");
            assert!(hits.next().is_none(), "entries do not overlap");
            match hit.target {
                Target::Range(range) => return range,
                Target::Table(next) => table = next,
            }
        }
        panic!("the last stage leads to ranges only");
    }

    fn naive(lows: &[u64], key: u64) -> u32 {
        (lows.iter().filter(|low| **low <= key).count() - 1) as u32
    }

    fn check_bounds(tables: &RangeTables, n: usize) {
        let entries = tables.entries_per_stage::<4>();
        let count = tables.tables_per_slice::<4>();
        assert!(count[0] == 1 && count[1..].iter().all(|c| *c < n.max(1)), "{count:?} tables for {n} ranges");
        assert!(entries[0] < 2 * n);
        assert!(
            entries[1] <= 3 * (n - 1) && entries[2] <= 3 * (n - 1) && entries[3] <= 2 * (n - 1),
            "{entries:?}"
        );
        for pair in tables.tables.iter().flat_map(|t| t.entries.windows(2)) {
            assert_eq!(pair[0].high + 1, pair[1].low, "entries tile");
            assert_ne!(pair[0].target, pair[1].target, "equal neighbours are merged");
        }
    }

    #[test]
    fn figure_4_of_the_paper() {
        // R1 = [0,10], R2 = [11,14], R3 = [15,37], R4 = [38,56], R5 = [57,63], 6-bit keys, 2-bit slices.
        let lows = [0, 11, 15, 38, 57];
        let tables = RangeTables::build(&lows, 2, 3);
        assert_eq!(tables.tables_per_slice::<3>(), [1, 3, 4]);
        assert_eq!(tables.entries_per_stage::<3>(), [4, 9, 8]);
        for key in 0..64 {
            assert_eq!(look_up(&tables, key, 2, 3), naive(&lows, key), "key {key}");
        }
        // T0: 0 leads on, 1 is all R3, 2 and 3 lead on.
        let entry = |low, target| RangeEntry { low, high: low, target, stage: 0 };
        let expected = [Target::Table(1), Target::Range(2), Target::Table(4), Target::Table(6)];
        let expected: Vec<_> =
            expected.into_iter().zip(0..).map(|(target, low)| entry(low, target)).collect();
        assert_eq!(tables.tables[0].entries, expected);
    }

    #[test]
    fn one_range_needs_one_entry() {
        let tables = RangeTables::build(&[0], 16, 4);
        assert_eq!(tables.entries_per_stage::<4>(), [1, 0, 0, 0]);
        assert_eq!(look_up(&tables, u64::MAX, 16, 4), 0);
    }

    #[test]
    fn the_papers_bound_fails_in_the_middle() {
        let lows = [0, 0x0001_8000_8000_8000, 0x0002_8000_8000_8000, 0x0003_8000_8000_8000];
        let entries = RangeTables::build(&lows, 16, 4).entries_per_stage::<4>();
        assert_eq!(entries, [5, 9, 9, 6]);
        assert!(entries[1] > 2 * lows.len());
    }

    #[test]
    fn rows_equal_the_smallest_cover() {
        assert_eq!(tcam_rows(0x1234, 0xffff), 4);
        assert_eq!(tcam_rows(0, 0xffff), 1);
        assert_eq!(tcam_rows(0x1000, 0x2fff), 1);
        assert_eq!(tcam_rows(5, 5), 1);
        assert_eq!(tcam_rows(0x0001, 0xfffe), 7);
        assert_eq!(tcam_rows(0x1235, 0x1236), 1);
        assert_eq!(tcam_rows(0x0fff, 0x1000), 2);
        assert_eq!(RangeMatch::OneSided.best(0x0001, 0xffff), (0, 1));
        assert_eq!(RangeMatch::OneSided.best(0x1234, 0x1234), (0x1234, 1));
        assert_eq!(RangeMatch::OneSided.best(0x1234, 0x13ff), (0x1200, 1));
        assert_eq!(RangeMatch::OneSided.best(0x1234, 0x1237), (0x1234, 1));
    }

    proptest! {
        #[test]
        fn rows_stay_within_what_the_hardware_needs(a: u16, b: u16) {
            let (low, high) = (u32::from(a.min(b)), u32::from(a.max(b)));
            let exact = tcam_rows(low, high);
            prop_assert!((1..=RangeMatch::Exact.most_rows()).contains(&exact));
            let of = |low, high| RangeMatch::OneSided.best(low, high);
            let (from, one_sided) = of(low, high);
            prop_assert!(one_sided <= exact && one_sided <= RangeMatch::OneSided.most_rows());
            prop_assert!(from <= low && one_sided == tcam_rows(from, high));
            // No other beginning is cheaper.
            let cheapest = (0..=low).step_by(1 + low as usize / 500).map(|from| tcam_rows(from, high)).min();
            prop_assert!(cheapest >= Some(one_sided), "{:?} rows of {:x}..={:x}", cheapest, low, high);
            // Splitting a range never makes it cheaper: what did not fit the fat root never will.
            let middle = low + (high - low) / 2;
            if middle < high {
                prop_assert!(exact <= tcam_rows(low, middle) + tcam_rows(middle + 1, high));
                prop_assert!(one_sided <= of(low, middle).1 + of(middle + 1, high).1);
            }
        }

        #[test]
        fn agrees_with_the_naive_model_everywhere_it_can_differ(
            random in prop::collection::btree_set(any::<u64>(), 0..60),
            coarse in prop::collection::btree_set((any::<u16>(), 0u32..4).prop_map(|(k, s)| u64::from(k) << (16 * s)), 0..60),
            near in prop::collection::vec((any::<prop::sample::Index>(), -3i64..4), 0..60),
        ) {
            let mut lows: BTreeSet<u64> = random.into_iter().chain(coarse).chain([0]).collect();
            let some: Vec<u64> = lows.iter().copied().collect();
            lows.extend(near.iter().map(|(at, d)| at.get(&some).wrapping_add_signed(*d)));
            let lows: Vec<u64> = lows.into_iter().collect();
            let tables = RangeTables::build(&lows, 16, 4);
            check_bounds(&tables, lows.len());
            for low in lows.iter().copied().chain([0, u64::MAX]) {
                for key in [low, low.wrapping_sub(1), low.wrapping_add(1)] {
                    prop_assert_eq!(look_up(&tables, key, 16, 4), naive(&lows, key), "key {:#x}", key);
                }
            }
        }

        #[test]
        fn agrees_for_other_slice_widths(lows in prop::collection::btree_set(0u64..4096, 0..200)) {
            let lows: Vec<u64> = lows.into_iter().chain([0]).collect::<BTreeSet<_>>().into_iter().collect();
            for (width, stages) in [(2, 6), (3, 4), (4, 3), (6, 2), (12, 1)] {
                let tables = RangeTables::build(&lows, width, stages);
                for key in 0..4096 {
                    prop_assert_eq!(look_up(&tables, key, width, stages), naive(&lows, key));
                }
            }
        }
    }
}
