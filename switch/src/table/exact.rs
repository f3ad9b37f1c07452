//! Exact tables: one hash, and what belongs to a key lies beside it.
//!
//! ```text
//! record   key, 1 to 4 words | row: action + 1 (0: free), params ..., packets, bytes | padding
//! ```
//!
//! Node sets are large and are asked for any node: what a lookup costs is the cache lines that it fetches. So records do
//! not lie behind an index, they *are* the index (open addressing, linear probing), spaced so that a record of up to eight
//! words lies in one line. At most half of them are in use: most lookups end at the first.
//!
//! A table that is full doubles, and no packet waits for that: the old records stay where they are, and every change moves a
//! few of them to the new place. Until all are there, a lookup that misses in the new place looks in the old one.

use super::records::{HASH_BITS, Layout, Records, seed};
use super::{Key, KeyPart, NONE, pack_slots};
use crate::code::Words;

/// Number of records of a table with its first entry.
const FEW: usize = 8;

/// Steps of a move that each change makes: a record that is looked at, or one that is moved. A table of `n` records doubles when
/// `n / 2` are in use, then has to make `3 n / 2` steps within the `n / 2` changes that fill it again at the earliest.
const STEPS: usize = 8;

/// Records that a slice looks at, at most, beside those of one round.
const LOOKED_AT: usize = 8192;

/// Records of the new place that a slice looks at in one round.
const ROUND: u64 = 64;

/// The entries of one table. A row's number is its record's position, those in the old place after those in the new: it holds until the
/// next insertion or removal.
#[derive(Debug)]
pub(crate) struct Exact {
    parts: Box<[KeyPart]>,
    layout: Layout,
    new: Records,
    /// Records that are being moved away; empty most of the time.
    old: Records,
    /// The records of the old place before this one are free.
    moved: usize,
    /// Old places from which all records were moved: see [`take_retired`](Self::take_retired).
    retired: Vec<Vec<u64>>,
    len: usize,
}

impl Exact {
    /// A table without entries.
    pub(crate) fn new(parts: &[KeyPart], row_words: usize) -> Self {
        let layout = Layout::new(parts, row_words);
        let (new, old) = (Records::default(), Records::default());
        Exact { parts: parts.into(), layout, new, old, moved: 0, retired: Vec::new(), len: 0 }
    }

    /// Bytes that a table needs for so many entries, at most.
    pub(crate) fn bytes(parts: &[KeyPart], row_words: usize, entries: u64) -> u64 {
        let records = entries.saturating_mul(2).checked_next_power_of_two().unwrap_or(u64::MAX);
        // All old places together are as large as the new one.
        let records = records.saturating_mul(2);
        records.saturating_mul((Layout::new(parts, row_words).stride * size_of::<u64>()) as u64)
    }

    /// The row of the packet's entry, or [`NONE`].
    #[inline]
    pub(crate) fn look_up(&self, slots: &Words) -> u32 {
        match self.len {
            0 => NONE,
            _ => self.find(pack_slots(&self.parts, slots)),
        }
    }

    /// The row of the entry for this key, or [`NONE`].
    #[inline]
    pub(crate) fn find(&self, key: Key) -> u32 {
        if self.len == 0 {
            return NONE;
        }
        let [a, b, c, d] = key;
        let found = match self.layout.key_words {
            1 => self.row_number([a]),
            2 => self.row_number([a, b]),
            3 => self.row_number([a, b, c]),
            _ => self.row_number([a, b, c, d]),
        };
        found.unwrap_or(NONE)
    }

    /// Adds an entry for a key that has none.
    pub(crate) fn insert(&mut self, key: Key, words: &[u64]) {
        if self.len == 0 && self.old.count == 0 {
            self.layout.seed = seed(&key);
        }
        if 2 * (self.len + 1) > self.new.count {
            self.grow();
        }
        let Self { layout, new, .. } = self;
        let (Ok(row) | Err(row)) = new.place(layout, &key);
        let at = new.at(layout, row);
        new.cells[at..at + layout.key_words].copy_from_slice(&key[..layout.key_words]);
        let at = at + layout.key_words;
        new.cells[at..at + words.len()].copy_from_slice(words);
        self.len += 1;
        self.move_some(STEPS);
    }

    /// Removes an entry. Entries after it that it kept from their places move up.
    pub(crate) fn remove(&mut self, row: u32) {
        match row.checked_sub(self.new.count as u32) {
            None => self.new.remove(&self.layout, row),
            Some(row) => self.old.remove(&self.layout, row),
        }
        self.len -= 1;
        self.move_some(STEPS);
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends the rows of the entries whose hash is at least `from`, in the order of their hashes, until these are `most` or a few more,
    /// or many records were looked at. Returns from where to go on; `None` at the end.
    ///
    /// A hash does not change when the table does: a reader that continues later finds every entry that has been there all the time, once.
    pub(crate) fn slice(&self, from: u64, most: usize, rows: &mut Vec<u32>) -> Option<u64> {
        const END: u64 = 1 << HASH_BITS;
        if self.len == 0 {
            return None;
        }
        let (mut from, mut looked_at, before) = (from, 0, rows.len());
        while from < END {
            let to = (from + ROUND * (END / self.new.count as u64)).min(END);
            self.new.with_hashes(&self.layout, from..to, 0, rows);
            self.old.with_hashes(&self.layout, from..to, self.new.count as u32, rows);
            (from, looked_at) = (to, looked_at + ROUND as usize);
            if rows.len() - before >= most || looked_at >= LOOKED_AT {
                break;
            }
        }
        (from < END).then_some(from)
    }

    /// Takes the memory that the table has outgrown. Freeing much of it takes milliseconds, so that is left to another thread.
    pub(crate) fn take_retired(&mut self, retired: &mut Vec<Vec<u64>>) {
        retired.append(&mut self.retired);
    }

    /// An entry's key as [`find`](Self::find) takes it.
    pub(crate) fn key(&self, row: u32) -> Key {
        let (records, row) = self.of(row);
        records.key(&self.layout, row)
    }

    /// A row's words.
    #[inline]
    pub(crate) fn row(&self, row: u32) -> &[u64] {
        let (records, row) = self.of(row);
        let at = records.at(&self.layout, row) + self.layout.key_words;
        &records.cells[at..at + self.layout.row_words]
    }

    /// A row's words, to change them.
    #[inline]
    pub(crate) fn row_mut(&mut self, row: u32) -> &mut [u64] {
        let (records, row) = match row.checked_sub(self.new.count as u32) {
            None => (&mut self.new, row),
            Some(row) => (&mut self.old, row),
        };
        let at = records.at(&self.layout, row) + self.layout.key_words;
        &mut records.cells[at..at + self.layout.row_words]
    }

    /// Records that hold a row, and its number there.
    #[inline]
    fn of(&self, row: u32) -> (&Records, u32) {
        match row.checked_sub(self.new.count as u32) {
            None => (&self.new, row),
            Some(row) => (&self.old, row),
        }
    }

    #[inline]
    fn row_number<const WORDS: usize>(&self, key: [u64; WORDS]) -> Option<u32> {
        match self.new.probe(&self.layout, key) {
            Ok(row) => Some(row),
            Err(_) if self.old.count == 0 => None,
            Err(_) => self.old_row_number(key),
        }
    }

    #[cold]
    fn old_row_number<const WORDS: usize>(&self, key: [u64; WORDS]) -> Option<u32> {
        self.old.probe(&self.layout, key).ok().map(|row| row + self.new.count as u32)
    }

    fn grow(&mut self) {
        self.move_some(usize::MAX); // nothing is left there, for every change has moved some
        let bigger = Records::new(&self.layout, (2 * self.new.count).max(FEW));
        self.old = std::mem::replace(&mut self.new, bigger);
    }

    /// Makes up to `steps` steps of the move.
    fn move_some(&mut self, steps: usize) {
        let Self { layout, new, old, moved, .. } = self;
        for _ in 0..steps {
            if *moved == old.count {
                break;
            }
            let row = *moved as u32;
            if old.is_free(layout, row) {
                *moved += 1;
                continue;
            }
            let (Ok(place) | Err(place)) = new.place(layout, &old.key(layout, row));
            let (from, to) = (old.at(layout, row), new.at(layout, place));
            new.cells[to..to + layout.stride].copy_from_slice(&old.cells[from..from + layout.stride]);
            // Another that was kept from this place may move up into it: the next step looks again.
            old.remove(layout, row);
        }
        if *moved == old.count && old.count > 0 {
            self.retired.push(std::mem::take(old).cells);
            self.moved = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::code::Slots;
    use crate::table::row::Shape;
    use crate::table::{pack, pack_parts};

    #[derive(Debug, Clone)]
    enum Change {
        Put { key: u16, value: u64 },
        Remove { key: u16 },
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            20 => (0..60u16, 1..100u64).prop_map(|(key, value)| Change::Put { key, value }),
            12 => (0..60u16).prop_map(|key| Change::Remove { key }),
        ]
    }

    fn key_of(word: u64) -> Key {
        [word, 0, 0, 0]
    }

    /// All rows, slice by slice.
    fn rows(table: &Exact) -> Vec<u32> {
        let (mut rows, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            from = table.slice(at, 1, &mut rows);
        }
        rows
    }

    /// Compares a table with a map; `spread` makes field values of a small key.
    fn check(widths: &[(u16, u16)], params: usize, spread: impl Fn(u16) -> Vec<u64>, changes: &[Change]) {
        let parts = pack_parts(widths).unwrap();
        let shape = Shape { entry: 1 + params, counted: true };
        let mut table = Exact::new(&parts, shape.words());
        let mut model: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
        let mut slots = Slots::default();
        let key_of = |key: u16| pack(&parts, spread(key).into_iter());
        for change in changes {
            match *change {
                Change::Put { key, value } => {
                    let words = [&[value][..], &vec![value; params]].concat();
                    match table.find(key_of(key)) {
                        NONE => {
                            assert_eq!(model.insert(key, (value, 0)), None);
                            table.insert(key_of(key), &words);
                        }
                        row => {
                            model.get_mut(&key).unwrap().0 = value;
                            table.row_mut(row)[..words.len()].copy_from_slice(&words);
                        }
                    }
                }
                Change::Remove { key } => {
                    let row = table.find(key_of(key));
                    assert_eq!(row != NONE, model.remove(&key).is_some());
                    if row != NONE {
                        table.remove(row);
                    }
                }
            }
            assert_eq!(table.len(), model.len());
            for key in 0..60 {
                for (part, value) in parts.iter().zip(spread(key)) {
                    slots.set(part.slot, value);
                }
                let row = table.look_up(slots.words());
                assert_eq!(row, table.find(key_of(key)));
                let Some((value, hits)) = model.get_mut(&key) else {
                    assert_eq!(row, NONE);
                    continue;
                };
                assert_eq!(table.key(row), key_of(key));
                // A counter moves with its entry.
                *hits += 1;
                let words = shape.hit(table.row_mut(row), 10);
                assert!(words.iter().all(|word| *word == *value));
                assert_eq!(shape.counter(table.row(row)).packets, *hits);
            }
        }
        let mut keys: Vec<Key> = rows(&table).into_iter().map(|row| table.key(row)).collect();
        keys.sort_unstable();
        let mut expected: Vec<Key> = model.keys().map(|&k| key_of(k)).collect();
        expected.sort_unstable();
        assert_eq!(keys, expected);
    }

    proptest! {
        #[test]
        fn a_table_is_a_map(changes in prop::collection::vec(change(), 0..120)) {
            check(&[(3, 8), (4, 16)], 0, |k| vec![u64::from(k) & 3, u64::from(k) >> 2], &changes);
            check(&[(3, 64), (4, 48)], 3, |k| vec![u64::MAX - u64::from(k & 3), u64::from(k) << 40], &changes);
            check(&[(3, 64)], 20, |k| vec![u64::from(k) << 58 | u64::from(k)], &changes);
            let spread = |k: u16| vec![u64::from(k & 1), u64::MAX - u64::from(k), u64::from(k) << 30];
            check(&[(3, 9), (4, 64), (5, 60)], 2, spread, &changes);
            let spread = |k: u16| vec![u64::from(k), u64::MAX, u64::from(k & 3) << 62, u64::from(k & 3)];
            check(&[(3, 64), (4, 64), (5, 64), (6, 64)], 1, spread, &changes);
        }
    }

    /// Keys as tables have them end their lookups soon: consecutive ids, addresses that differ in a few bits.
    #[test]
    fn keys_in_patterns_do_not_pile_up() {
        let patterns: [fn(u64) -> u64; 5] = [
            |i| i,
            |i| i << 4,
            |i| i << 40,
            |i| (i / 256) << 32 | (i % 256),
            |i| (i % 8) << 61 | (i / 8) << 16,
        ];
        for (number, pattern) in patterns.iter().enumerate() {
            let parts = pack_parts(&[(0, 64)]).unwrap();
            let mut table = Exact::new(&parts, 1);
            for i in 0..60_000 {
                table.insert(key_of(pattern(i)), &[1]);
            }
            table.move_some(usize::MAX);
            let last = table.new.count as u32 - 1;
            let home = |row: u32| table.new.home(table.new.hash(&table.layout, row));
            let steps = |row: u32| u64::from(row.wrapping_sub(home(row)) & last);
            let mean = rows(&table).into_iter().map(steps).sum::<u64>() as f64 / 60_000.0;
            assert!(mean < 1.0, "pattern {number}: {mean} records too far");
        }
    }

    proptest! {
        /// A reader of slices sees every entry that stays exactly once, whatever comes and goes in between: growing, moving
        /// and closing holes included.
        #[test]
        fn slices_hold_what_stays_once(
            few in 0..40u64,
            between in prop::collection::vec((any::<bool>(), 0..400u64), 0..300),
            every in 1..20usize,
        ) {
            let parts = pack_parts(&[(0, 64)]).unwrap();
            let mut table = Exact::new(&parts, 1);
            let stays = |key: u64| key.is_multiple_of(3);
            for key in (0..few).chain(400..600).filter(|&key| stays(key)) {
                table.insert(key_of(key), &[1]);
            }
            let mut between = between.iter();
            let (mut seen, mut from, mut rows) = (Vec::new(), Some(0), Vec::new());
            while let Some(at) = from {
                rows.clear();
                from = table.slice(at, 1, &mut rows);
                seen.extend(rows.iter().map(|&row| table.key(row)[0]).filter(|&key| stays(key)));
                for &(insert, key) in between.by_ref().take(every).filter(|(_, key)| !stays(*key)) {
                    match (insert, table.find(key_of(key))) {
                        (true, NONE) => table.insert(key_of(key), &[1]),
                        (false, row) if row != NONE => table.remove(row),
                        _ => {}
                    }
                }
            }
            seen.sort_unstable();
            let expected: Vec<u64> = (0..few).chain(400..600).filter(|&key| stays(key)).collect();
            prop_assert_eq!(seen, expected);
        }
    }

    /// A copy of a table is made in the order in which it is read.
    #[test]
    fn keys_in_the_order_of_their_hashes_do_not_pile_up() {
        let parts = pack_parts(&[(0, 64)]).unwrap();
        let mut keys: Vec<u64> = (0..65_536).collect();
        for generation in 0..4 {
            let mut table = Exact::new(&parts, 1);
            let (mut steps, mut count) = (0, 0);
            for &key in &keys {
                table.insert(key_of(key), &[1]);
                let row = table.find(key_of(key));
                let home = table.new.home(table.layout.hash(&key_of(key)));
                steps += u64::from(row.wrapping_sub(home) & (table.new.count as u32 - 1));
                count += 1;
            }
            let mean = steps as f64 / f64::from(count);
            assert!(mean < 2.0, "generation {generation}: {mean} records too far");
            keys = rows(&table).into_iter().map(|row| table.key(row)[0]).collect();
        }
    }

    /// No insertion does more than its share of a move.
    #[test]
    fn a_move_ends_before_the_next_begins() {
        let parts = pack_parts(&[(0, 64)]).unwrap();
        let mut table = Exact::new(&parts, 1);
        let mut moves = 0;
        for key in 0..100_000u64 {
            let before = table.new.count;
            let left = table.old.count;
            table.insert(key_of(key), &[key + 1]);
            if table.new.count != before {
                assert_eq!(left, 0, "entry {key}: the last move has not ended");
                moves += 1;
            }
            // In the middle of a move, everything is found.
            for probe in [0, key / 2, key] {
                assert_eq!(table.row(table.find(key_of(probe))), [probe + 1]);
            }
        }
        assert_eq!(moves, 16);
    }
}
