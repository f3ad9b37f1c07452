//! Entries of tables that are not plain exact: their keys, priorities, actions and counters. The structures
//! that find them ([`lpm`](super::lpm), [`range`](super::range), [`scan`](super::scan)) hold row numbers.

use hashbrown::HashMap;
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
    /// The rows' words, one behind the other.
    data: Vec<u64>,
    by_key: HashMap<(Box<[Pair]>, i32), u32, FxBuildHasher>,
    next_age: u64,
}

impl Store {
    /// An empty store.
    pub(crate) fn new(row_words: usize) -> Self {
        Store { row_words, ..Store::default() }
    }

    pub(crate) fn find(&self, key: &[Pair], priority: i32) -> Option<u32> {
        // The map owns boxed keys; probing by a borrowed key needs the raw entry interface.
        use std::hash::BuildHasher;
        let hash = self.by_key.hasher().hash_one(KeyRef(key, priority));
        let found = self.by_key.raw_entry().from_hash(hash, |(k, p)| **k == *key && *p == priority);
        found.map(|(_, &row)| row)
    }

    /// Adds an entry that is not there yet; returns its row.
    pub(crate) fn insert(&mut self, key: Box<[Pair]>, priority: i32, words: &[u64]) -> u32 {
        let age = self.next_age;
        self.next_age += 1;
        let new = Row { key: key.clone(), priority, age, live: true };
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
        self.by_key.insert((key, priority), row);
        row
    }

    pub(crate) fn remove(&mut self, row: u32) {
        let entry = &mut self.rows[row as usize];
        entry.live = false;
        let key = std::mem::take(&mut entry.key);
        self.by_key.remove(&(key, entry.priority));
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

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn key(&self, row: u32) -> &[Pair] {
        &self.rows[row as usize].key
    }

    pub(crate) fn priority(&self, row: u32) -> i32 {
        self.rows[row as usize].priority
    }

    /// Smaller wins: by priority downwards, then by age.
    pub(crate) fn rank(&self, row: u32) -> (std::cmp::Reverse<i32>, u64) {
        let row = &self.rows[row as usize];
        (std::cmp::Reverse(row.priority), row.age)
    }

    /// All entries in row order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = u32> + '_ {
        self.rows.iter().enumerate().filter(|(_, r)| r.live).map(|(row, _)| row as u32)
    }
}

/// Hashes as `(Box<[Pair]>, i32)` does, without owning.
#[derive(Hash)]
struct KeyRef<'a>(&'a [Pair], i32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_key_and_priority_until_removed() {
        let mut store = Store::new(2);
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
