//! Entries of tables that are not plain exact: their keys, priorities, actions and counters. The structures
//! that find them ([`lpm`](super::lpm), [`range`](super::range), [`scan`](super::scan)) hold row numbers.

use std::hash::BuildHasher as _;

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

/// One key field in canonical form: `(value, mask)` of exact, LPM and ternary fields, `(low, high)` of ranges.
pub(crate) type Pair = (u64, u64);

#[derive(Debug)]
struct Row {
    key: Box<[Pair]>,
    priority: i32,
    /// Order of insertion: among equal priorities the older entry wins.
    age: u64,
    live: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Store {
    rows: Vec<Row>,
    free: Vec<u32>,
    /// Words of a row.
    row_words: usize,
    /// The rows' words, one after the other.
    data: Vec<u64>,
    /// Rows by key and priority.
    by_key: HashTable<u32>,
    next_age: u64,
}

fn hash(key: &[Pair], priority: i32) -> u64 {
    FxBuildHasher.hash_one((key, priority))
}

impl Store {
    /// An empty store. Its index has room for all entries, so that it never grows while packets wait; what is not used costs a byte an
    /// entry.
    pub(crate) fn new(row_words: usize, entries: usize) -> Self {
        Store { row_words, by_key: HashTable::with_capacity(entries), ..Store::default() }
    }

    /// Bytes that a store needs for an entry, at most.
    pub(crate) fn bytes_per_entry(row_words: usize, fields: usize) -> u64 {
        // An index has at most 16/7 places an entry, each of a row number and a byte.
        const INDEX: usize = 12;
        let words = row_words * size_of::<u64>() + fields * size_of::<Pair>();
        (size_of::<Row>() + words + INDEX) as u64
    }

    pub(crate) fn find(&self, key: &[Pair], priority: i32) -> Option<u32> {
        let rows = &self.rows;
        let is_it = |&row: &u32| {
            let known = &rows[row as usize];
            *known.key == *key && known.priority == priority
        };
        self.by_key.find(hash(key, priority), is_it).copied()
    }

    /// Adds an entry that is not there yet; returns its row.
    pub(crate) fn insert(&mut self, key: Box<[Pair]>, priority: i32, words: &[u64]) -> u32 {
        let age = self.next_age;
        self.next_age += 1;
        let hashed = hash(&key, priority);
        let new = Row { key, priority, age, live: true };
        let row = match self.free.pop() {
            Some(row) => {
                self.rows[row as usize] = new;
                row
            }
            None => {
                self.rows.push(new);
                self.data.resize(self.rows.len() * self.row_words, 0);
                (self.rows.len() - 1) as u32
            }
        };
        let place = self.row_mut(row);
        place.fill(0);
        place[..words.len()].copy_from_slice(words);
        let rows = &self.rows;
        let rehash = |&row: &u32| hash(&rows[row as usize].key, rows[row as usize].priority);
        self.by_key.insert_unique(hashed, row, rehash);
        row
    }

    pub(crate) fn remove(&mut self, row: u32) {
        let entry = &mut self.rows[row as usize];
        let hashed = hash(&entry.key, entry.priority);
        (entry.live, entry.key) = (false, Box::default());
        if let Ok(known) = self.by_key.find_entry(hashed, |&known| known == row) {
            known.remove();
        }
        self.free.push(row);
    }

    /// A row's words.
    #[inline]
    pub(crate) fn row(&self, row: u32) -> &[u64] {
        let at = row as usize * self.row_words;
        &self.data[at..at + self.row_words]
    }

    /// A row's words, to change them.
    #[inline]
    pub(crate) fn row_mut(&mut self, row: u32) -> &mut [u64] {
        let at = row as usize * self.row_words;
        &mut self.data[at..at + self.row_words]
    }

    pub(crate) fn key(&self, row: u32) -> &[Pair] {
        &self.rows[row as usize].key
    }

    pub(crate) fn priority(&self, row: u32) -> i32 {
        self.rows[row as usize].priority
    }

    /// Rank of an entry, of which the smaller wins: by priority downwards, then by age.
    pub(crate) fn rank(&self, row: u32) -> (std::cmp::Reverse<i32>, u64) {
        let row = &self.rows[row as usize];
        (std::cmp::Reverse(row.priority), row.age)
    }

    /// All entries in row order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = u32> + '_ {
        self.rows.iter().enumerate().filter(|(_, r)| r.live).map(|(row, _)| row as u32)
    }

    /// Appends the rows of the entries from place `from` on, in their order, until these are `most` or many places were looked at.
    /// Returns from where to go on; `None` at the end. A row's place does not change: a reader that continues later finds every entry that has been
    /// there all the time, once.
    pub(crate) fn slice(&self, from: u64, most: usize, rows: &mut Vec<u32>) -> Option<u64> {
        const LOOKED_AT: usize = 8192;
        let mut places = self.rows.iter().enumerate().skip(from as usize).take(LOOKED_AT);
        let before = rows.len();
        while rows.len() - before < most {
            match places.next() {
                Some((place, row)) if row.live => rows.push(place as u32),
                Some(_) => {}
                None => break,
            }
        }
        let next = places.next().map_or(from as usize + LOOKED_AT, |(place, _)| place);
        (next < self.rows.len()).then_some(next as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_key_and_priority_until_removed() {
        let mut store = Store::new(2, 4);
        let key: Box<[Pair]> = Box::new([(5, 0xff), (1, 9)]);
        let row = store.insert(key.clone(), 7, &[1, 42]);
        assert_eq!(store.find(&key, 7), Some(row));
        assert_eq!(store.find(&key, 8), None);
        assert_eq!(store.row(row), [1, 42]);
        store.remove(row);
        assert_eq!(store.find(&key, 7), None);
        assert_eq!(store.rows().count(), 0);
        assert_eq!(store.insert(key.clone(), 8, &[2, 43]), row);
        assert_eq!(store.find(&key, 8), Some(row));
    }
}
