//! Exact tables: one hash, and what belongs to a key lies beside it.
//!
//! ```text
//! record   key, 1 or 2 words | row: action + 1 (0: free), params ..., packets, bytes | padding
//! ```
//!
//! Node sets are large and are asked for any node: what a lookup costs is the cache lines that it fetches. So records do
//! not lie behind an index, they *are* the index (open addressing, linear probing), spaced so that a record of up to eight
//! words lies in one line. At most half of them are in use: most lookups end at the first.

use super::{KeyPart, NONE, pack64, pack128, packed_width};
use crate::code::Words;

/// Words of a cache line.
const LINE: usize = 8;

/// Records of a table that has got its first entry.
const FEW: usize = 8;

/// 2^64 divided by the golden ratio: its multiples spread evenly, those of consecutive numbers best.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The entries of one table. A row's number is its record's position: it holds until the next insertion or removal.
#[derive(Debug)]
pub(crate) struct Exact {
    parts: Box<[KeyPart]>,
    /// Words of a key, 1 or 2.
    key_words: usize,
    /// Words of a row.
    row_words: usize,
    /// Words from one record to the next.
    stride: usize,
    cells: Vec<u64>,
    /// Where the first record lies in `cells`: at the beginning of a line.
    base: usize,
    /// A power of two; 0 before the first entry.
    records: usize,
    len: usize,
}

impl Exact {
    /// A table without entries.
    pub(crate) fn new(parts: &[KeyPart], row_words: usize) -> Self {
        let key_words = if packed_width(parts) <= 64 { 1 } else { 2 };
        let used = key_words + row_words;
        let stride = if used <= LINE { used.next_power_of_two() } else { used.next_multiple_of(LINE) };
        Exact {
            parts: parts.into(),
            key_words,
            row_words,
            stride,
            cells: Vec::new(),
            base: 0,
            records: 0,
            len: 0,
        }
    }

    /// The row of the packet's entry, or [`NONE`].
    #[inline]
    pub(crate) fn look_up(&self, slots: &Words) -> u32 {
        if self.len == 0 {
            return NONE;
        }
        let found = match self.key_words {
            1 => self.probe([pack64(&self.parts, slots)]),
            _ => self.probe(split(pack128(&self.parts, slots))),
        };
        found.unwrap_or(NONE)
    }

    /// The words of the row of a key of this many words.
    #[inline]
    pub(crate) fn row_of<const WORDS: usize>(&mut self, key: [u64; WORDS]) -> Option<&mut [u64]> {
        if self.len == 0 {
            return None;
        }
        self.probe(key).ok().map(|row| self.row_mut(row))
    }

    /// The row of the entry for this key, or [`NONE`].
    pub(crate) fn find(&self, key: u128) -> u32 {
        if self.len == 0 { NONE } else { self.place(key).unwrap_or(NONE) }
    }

    /// Adds an entry for a key that has none.
    pub(crate) fn insert(&mut self, key: u128, words: &[u64]) {
        if 2 * (self.len + 1) > self.records {
            self.grow();
        }
        let (Ok(row) | Err(row)) = self.place(key);
        let at = self.at(row);
        self.cells[at..at + self.key_words].copy_from_slice(&split(key)[..self.key_words]);
        self.row_mut(row)[..words.len()].copy_from_slice(words);
        self.len += 1;
    }

    /// Removes an entry. Entries behind it that it kept from their places move up.
    pub(crate) fn remove(&mut self, row: u32) {
        let last = self.records as u32 - 1;
        let steps = |from: u32, to: u32| to.wrapping_sub(from) & last;
        let (mut hole, mut next) = (row, row);
        loop {
            next = (next + 1) & last;
            if self.is_free(next) {
                break;
            }
            // It may lie in the hole unless that is before its home.
            if steps(self.home(self.key(next)), next) >= steps(hole, next) {
                let (from, to) = (self.at(next), self.at(hole));
                self.cells.copy_within(from..from + self.stride, to);
                hole = next;
            }
        }
        let at = self.at(hole);
        self.cells[at..at + self.stride].fill(0);
        self.len -= 1;
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The rows that hold an entry, in ascending order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.records as u32).filter(|&row| !self.is_free(row))
    }

    /// An entry's key as [`find`](Self::find) takes it.
    pub(crate) fn key(&self, row: u32) -> u128 {
        let at = self.at(row);
        join(&self.cells[at..at + self.key_words])
    }

    /// A row's words.
    #[inline]
    pub(crate) fn row(&self, row: u32) -> &[u64] {
        let at = self.at(row) + self.key_words;
        &self.cells[at..at + self.row_words]
    }

    /// A row's words, to change them.
    #[inline]
    pub(crate) fn row_mut(&mut self, row: u32) -> &mut [u64] {
        let at = self.at(row) + self.key_words;
        &mut self.cells[at..at + self.row_words]
    }

    #[inline]
    fn at(&self, row: u32) -> usize {
        self.base + row as usize * self.stride
    }

    fn is_free(&self, row: u32) -> bool {
        self.cells[self.at(row) + self.key_words] == 0
    }

    fn place(&self, key: u128) -> Result<u32, u32> {
        match self.key_words {
            1 => self.probe([key as u64]),
            _ => self.probe(split(key)),
        }
    }

    /// The row of a key, or the free one where it would be.
    #[inline]
    fn probe<const WORDS: usize>(&self, key: [u64; WORDS]) -> Result<u32, u32> {
        let mut row = self.home_of(key);
        loop {
            // At least half of the records are free: there is an end.
            let Some((&found, &[head, ..])) =
                self.cells.get(self.at(row)..).and_then(<[u64]>::split_first_chunk::<WORDS>)
            else {
                return Err(row);
            };
            if head == 0 {
                return Err(row);
            }
            if found == key {
                return Ok(row);
            }
            row = (row + 1) & (self.records as u32 - 1);
        }
    }

    fn home(&self, key: u128) -> u32 {
        match self.key_words {
            1 => self.home_of([key as u64]),
            _ => self.home_of(split(key)),
        }
    }

    /// The row that a key has if nothing is in its way.
    #[inline]
    fn home_of<const WORDS: usize>(&self, key: [u64; WORDS]) -> u32 {
        // Multiplication carries bits up only: the upper half is brought down first.
        let hash = key.iter().fold(0, |hash: u64, &word| {
            let word = word ^ hash;
            (word ^ word >> 32).wrapping_mul(GOLDEN)
        });
        (hash >> 32) as u32 >> (32 - self.records.trailing_zeros())
    }

    fn grow(&mut self) {
        let (records, bigger) = (self.records, (2 * self.records).max(FEW));
        let cells = vec![0; bigger * self.stride + LINE];
        let base = cells.as_ptr().align_offset(LINE * size_of::<u64>()).min(LINE);
        let old = std::mem::replace(&mut self.cells, cells);
        let old_base = std::mem::replace(&mut self.base, base);
        self.records = bigger;
        for record in old[old_base..].chunks_exact(self.stride).take(records) {
            if record[self.key_words] != 0 {
                let (Ok(row) | Err(row)) = self.place(join(&record[..self.key_words]));
                let at = self.at(row);
                self.cells[at..at + self.stride].copy_from_slice(record);
            }
        }
    }
}

fn split(key: u128) -> [u64; 2] {
    [key as u64, (key >> 64) as u64]
}

fn join(words: &[u64]) -> u128 {
    words.iter().rev().fold(0, |key, &word| key << 64 | u128::from(word))
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

    /// Against a map; `spread` makes field values of a small key.
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
        let mut keys: Vec<u128> = table.rows().map(|row| table.key(row)).collect();
        keys.sort_unstable();
        let mut expected: Vec<u128> = model.keys().map(|&k| key_of(k)).collect();
        expected.sort_unstable();
        assert_eq!(keys, expected);
    }

    proptest! {
        #[test]
        fn a_table_is_a_map(changes in prop::collection::vec(change(), 0..120)) {
            check(&[(3, 8), (4, 16)], 0, |k| vec![u64::from(k) & 3, u64::from(k) >> 2], &changes);
            check(&[(3, 64), (4, 48)], 3, |k| vec![u64::MAX - u64::from(k & 3), u64::from(k) << 40], &changes);
            check(&[(3, 64)], 20, |k| vec![u64::from(k) << 58 | u64::from(k)], &changes);
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
                table.insert(u128::from(pattern(i)), &[1]);
            }
            let last = table.records as u32 - 1;
            let steps = |row: u32| u64::from(row.wrapping_sub(table.home(table.key(row))) & last);
            let mean = table.rows().map(steps).sum::<u64>() as f64 / 60_000.0;
            assert!(mean < 1.0, "pattern {number}: {mean} records too far");
        }
    }
}
