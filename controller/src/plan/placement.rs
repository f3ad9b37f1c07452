//! In which stage each entry of the fat root stands.
//!
//! A range table looks at one slice of the key, and may stand in several stages: where a stage has no entry for a slice, a later one may
//! ([`fat_root.p4`](fatbtree_p4)). So the stages share their rows:
//!
//! ```text
//!   slice 0  ███████████████░░░░░░░░░░░     stage 0  ████████│████████│████████│████████
//!   slice 1  ░░                          ─▶           leading ░░│
//!   slice 2  ░                                        to slice 1  ░│
//! ```
//!
//! * Entries that lead to another table stand in the stage of their slice's number, so the tables of each slice begin there. They are
//!   single values, one row each, and first in line.
//! * Entries that resolve stand there as long as there is room, then in the next stage, in the order of tables and keys: so what an entry
//!   covers by lying after another one ([one-sided](RangeMatch::OneSided)) is matched before it, in its stage or an earlier one. A part
//!   of a table takes no entry to lead to it.
//! * Later slices choose first, for they have fewer stages.
//!
//! Where all of a slice fits its own stage it is there, and nothing else is: small fat roots look like the paper's.

use super::STAGES;
use super::need::Need;
use super::ranges::{RangeMatch, RangeTables};

/// Room of the stages for one epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct StageRoom {
    /// Entries of each stage.
    pub(super) entries: [usize; STAGES],
    /// TCAM rows of each stage; `None` where entries are all that counts.
    pub(super) rows: Option<[usize; STAGES]>,
    pub(super) range_match: RangeMatch,
}

/// The need without room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full {
    /// First stage of the full ones.
    pub(super) from: usize,
    /// Last stage.
    pub(super) to: usize,
    /// Rows, not entries.
    pub(super) of_rows: bool,
    /// Need in these stages.
    pub(super) need: usize,
    /// Their room.
    pub(super) limit: usize,
}

/// Free room of one stage.
#[derive(Clone, Copy, Debug)]
struct Left {
    entries: usize,
    rows: usize,
}

impl Left {
    fn holds(self, entries: usize, rows: usize) -> bool {
        entries <= self.entries && rows <= self.rows
    }

    fn less(self, entries: usize, rows: usize) -> Self {
        Self { entries: self.entries.saturating_sub(entries), rows: self.rows.saturating_sub(rows) }
    }
}

impl StageRoom {
    fn left(&self) -> [Left; STAGES] {
        std::array::from_fn(|stage| {
            let entries = self.entries[stage];
            // Without rows an entry is one.
            Left { entries, rows: self.rows.map_or(entries, |rows| rows[stage]) }
        })
    }

    /// Rows of an entry.
    fn rows_of(&self, low: u32, high: u32) -> usize {
        if self.rows.is_some() { self.range_match.best(low, high).1 } else { 1 }
    }

    /// Whether all of it certainly has a place: [`place`](Self::place) finds one for what takes so much, whatever it consists of.
    ///
    /// A stage is not filled to its last row where the next entry takes more rows than are left. So what goes on to the next stages may be
    /// too much by the rows of an entry less one; that is all by which this differs from the truth.
    pub(super) fn holds(&self, need: &Need) -> bool {
        let lost = if self.rows.is_some() { self.range_match.most_rows() - 1 } else { 0 };
        // An entry takes a row at least: where so many rows go, no more entries do.
        let takes = |left: Left| left.rows.saturating_sub(lost).min(left.entries);
        let mut left = self.left();
        for slice in (0..STAGES).rev() {
            let entries = need.entries[slice];
            let rows = if self.rows.is_some() { need.rows[slice] } else { entries };
            let leading = need.leading[slice];
            if left[slice].holds(entries, rows) {
                left[slice] = left[slice].less(entries, rows);
                continue;
            }
            if !left[slice].holds(leading, leading) {
                return false;
            }
            let mut over = rows - takes(left[slice]).min(rows);
            left[slice] = Left { entries: 0, rows: 0 };
            for left in &mut left[slice + 1..] {
                if left.holds(over, over) {
                    *left = left.less(over, over);
                    over = 0;
                    break;
                }
                over -= takes(*left).min(over);
                *left = Left { entries: 0, rows: 0 };
            }
            if over > 0 {
                return false;
            }
        }
        true
    }

    /// Gives each entry its stage. Tables with the same entries get the same stages.
    pub(super) fn place(&self, tables: &mut RangeTables) -> Result<(), Full> {
        let need = Need::of_tables(0, tables, self.range_match);
        let mut left = self.left();
        for slice in (0..STAGES).rev() {
            let leading = need.leading[slice];
            if !left[slice].holds(leading, leading) {
                return Err(self.full(slice, slice, leading > left[slice].entries, leading, leading));
            }
            left[slice] = left[slice].less(leading, leading);
            let mut stage = slice;
            for table in tables.tables.iter_mut().filter(|table| table.slice == slice) {
                for entry in &mut table.entries {
                    entry.stage = slice;
                    if entry.leads_on() {
                        continue;
                    }
                    let rows = self.rows_of(entry.low, entry.high);
                    while !left.get(stage).is_none_or(|left| left.holds(1, rows)) {
                        stage += 1;
                    }
                    let Some(left) = left.get_mut(stage) else {
                        let sum = |needs: [usize; STAGES]| needs[slice..].iter().sum();
                        let of_entries = left[STAGES - 1].entries == 0;
                        let (entries, rows) = (sum(need.entries), sum(need.rows));
                        return Err(self.full(slice, STAGES - 1, of_entries, entries, rows));
                    };
                    *left = left.less(1, rows);
                    entry.stage = stage;
                }
            }
        }
        Ok(())
    }

    fn full(&self, from: usize, to: usize, of_entries: bool, entries: usize, rows: usize) -> Full {
        let (need, limits, of_rows) = match self.rows {
            Some(limits) if !of_entries => (rows, limits, true),
            _ => (entries, self.entries, false),
        };
        let limit: usize = limits[from..=to].iter().sum();
        // Rows may be left that are too few for any entry.
        Full { from, to, of_rows, need: need.max(limit + 1), limit }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::super::SLICE_BITS;
    use super::super::ranges::Target;
    use super::*;

    fn arb_lows() -> impl Strategy<Value = Vec<u64>> {
        let wide = prop::collection::vec(any::<u64>(), 0..40);
        let short = (any::<u16>(), 0u32..4).prop_map(|(key, slice)| u64::from(key) << (16 * slice));
        let near = prop::collection::vec((any::<prop::sample::Index>(), -40i64..40), 0..60);
        (wide, prop::collection::vec(short, 0..120), near).prop_map(|(wide, short, near)| {
            let mut lows: BTreeSet<u64> = wide.into_iter().chain(short).chain([0]).collect();
            let some: Vec<u64> = lows.iter().copied().collect();
            lows.extend(near.iter().map(|(at, d)| at.get(&some).wrapping_add_signed(*d)));
            lows.into_iter().collect()
        })
    }

    fn arb_room() -> impl Strategy<Value = StageRoom> {
        let how = prop_oneof![Just(RangeMatch::Exact), Just(RangeMatch::OneSided)];
        let rows = prop_oneof![Just(None), prop::array::uniform4(1usize..200).prop_map(Some)];
        (prop::array::uniform4(1usize..200), rows, how).prop_map(|(entries, rows, range_match)| StageRoom {
            entries,
            rows,
            range_match,
        })
    }

    /// What a switch does with a key: every stage matches by priority, and one without an entry changes nothing.
    fn look_up(tables: &RangeTables, how: RangeMatch, key: u64) -> u32 {
        let mut table = 0;
        for stage in 0..STAGES {
            let of = &tables.tables[table as usize];
            let value = (key >> (16 * (STAGES - 1 - of.slice))) as u16;
            let here = of.entries.iter().filter(|entry| entry.stage == stage);
            let mut hits =
                here.filter(|entry| (how.best(entry.low, entry.high).0..=entry.high).contains(&value.into()));
            match hits.next().map(|hit| hit.target) {
                None => {}
                Some(Target::Range(range)) => return range,
                Some(Target::Table(next)) => table = next,
            }
        }
        panic!("{key:#x} lands nowhere")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// What is said to have room gets it; what has a place lands each key in its range; and no stage holds more than it can.
        #[test]
        fn what_is_placed_lands(
            lows in arb_lows(), mut room in arb_room(), tight in prop::option::of(prop::array::uniform4(0usize..6)),
        ) {
            let mut tables = RangeTables::build(&lows, SLICE_BITS, STAGES);
            let before = tables.clone();
            let how = room.range_match;
            let need = Need::of_tables(lows.len(), &tables, how);
            // As many rows as it takes, and few more.
            if let (Some(rows), Some(more)) = (&mut room.rows, tight) {
                *rows = more.map(|more| need.rows.iter().sum::<usize>() / STAGES + more);
                room.entries = [need.entries.iter().sum(); STAGES];
            }
            let placed = room.place(&mut tables);
            prop_assert!(placed.is_ok() || !room.holds(&need), "{:?}", placed);
            if let Err(full) = placed {
                prop_assert!(full.need > full.limit && full.from <= full.to, "{full:?}");
                return Ok(());
            }
            for (stage, entries) in tables.entries_per_stage::<STAGES>().into_iter().enumerate() {
                prop_assert!(entries <= room.entries[stage]);
            }
            for (rows, room) in tables.rows_per_stage::<STAGES>(how).into_iter().zip(room.rows.into_iter().flatten()) {
                prop_assert!(rows <= room);
            }
            let fits = |slice: usize| {
                let rows = room.rows.is_none_or(|rows| need.rows[slice] <= rows[slice]);
                rows && need.entries[slice] <= room.entries[slice]
            };
            if (0..STAGES).all(fits) {
                prop_assert!(room.holds(&need));
                prop_assert_eq!(&tables, &before, "where there is room nothing moves");
            }
            let mut again = before;
            room.place(&mut again).unwrap();
            prop_assert_eq!(&again, &tables);
            for low in &lows {
                for key in [*low, low.wrapping_sub(1), low.wrapping_add(1), low ^ 0x8000, low ^ 1 << 63] {
                    let range = lows.iter().filter(|low| **low <= key).count() - 1;
                    prop_assert_eq!(look_up(&tables, how, key) as usize, range, "key {:#x}", key);
                }
            }
        }

        /// What there was no room for has none with more.
        #[test]
        fn more_never_fits_better(
            rooms in arb_room(), parts in prop::collection::vec((0usize..STAGES, 0usize..90, 0usize..7), 1..12),
        ) {
            let (mut need, mut held) = (Need::default(), true);
            for (slice, landing, rows) in parts {
                need.entries[slice] += landing + rows;
                need.rows[slice] += landing * rooms.range_match.most_rows().min(rows + 1) + rows;
                if slice < STAGES - 1 {
                    need.leading[slice] += rows;
                }
                let holds = rooms.holds(&need);
                prop_assert!(held || !holds);
                held = holds;
            }
        }
    }

    /// Short separators, as random keys have them: without sharing the first stage ends the fat root.
    #[test]
    fn the_first_slice_takes_the_rows_of_all_stages() {
        let lows: Vec<u64> = (0..300u64).map(|n| n << 53 | u64::from(n % 20 == 7) << 40).collect();
        let mut tables = RangeTables::build(&lows, SLICE_BITS, STAGES);
        let how = RangeMatch::OneSided;
        let need = Need::of_tables(lows.len(), &tables, how);
        let all: usize = need.rows.iter().sum();
        let quarter = all / STAGES + 4;
        assert!(need.rows[0] > 2 * quarter && need.leading[0] > 0, "{need:?}");
        let room = StageRoom { entries: [1000; STAGES], rows: Some([quarter; STAGES]), range_match: how };
        assert!(room.holds(&need));
        room.place(&mut tables).unwrap();
        let mut of_first: BTreeMap<usize, usize> = BTreeMap::new();
        tables.tables[0].entries.iter().for_each(|entry| *of_first.entry(entry.stage).or_default() += 1);
        assert_eq!(of_first.len(), STAGES, "the first slice stands in every stage: {of_first:?}");
        let less = StageRoom { rows: Some([all / STAGES - 2; STAGES]), ..room };
        assert!(!less.holds(&need));
        let full = less.place(&mut tables).unwrap_err();
        assert_eq!((full.from, full.to, full.of_rows, full.need), (0, STAGES - 1, true, all));
    }
}
