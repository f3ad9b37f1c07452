//! Exact tables. Tables of one control that match the same fields form a *group* with one hash index.
//!
//! Programs for chips split what belongs to one key over several tables, one for each thing that is done with it: here a packet
//! looks its key up once, and then reads entries that lie side by side. Two things make this so:
//!
//! - a *row* holds the entries of all the group's tables for one key, `[tables' entries: action + 1, params…]`;
//! - the group remembers the last key looked up and its row, so that the next table of the group finds the
//!   same key at the price of a comparison. No knowledge of the control flow is needed, and a key field
//!   that changes between two tables simply makes a different key.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::{KeyPart, NONE, pack64, pack128, packed_width};
use crate::code::Words;

#[derive(Debug)]
enum Index {
    Narrow(HashMap<u64, u32, FxBuildHasher>),
    Wide(HashMap<u128, u32, FxBuildHasher>),
}

impl Index {
    fn get(&self, key: u128) -> Option<u32> {
        match self {
            Index::Narrow(map) => map.get(&(key as u64)).copied(),
            Index::Wide(map) => map.get(&key).copied(),
        }
    }

    fn insert(&mut self, key: u128, row: u32) {
        match self {
            Index::Narrow(map) => map.insert(key as u64, row),
            Index::Wide(map) => map.insert(key, row),
        };
    }

    fn remove(&mut self, key: u128) {
        match self {
            Index::Narrow(map) => map.remove(&(key as u64)),
            Index::Wide(map) => map.remove(&key),
        };
    }
}

/// A group of exact tables with one key.
#[derive(Debug)]
pub(crate) struct Group {
    index: Index,
    /// Words per row.
    stride: usize,
    rows: Vec<u64>,
    /// Key and number of entries of each row; rows without entries are in `free`.
    keys: Vec<(u128, u32)>,
    free: Vec<u32>,
    memo_key: u128,
    /// Row of `memo_key`, valid while `memo_set`.
    memo_row: u32,
    memo_set: bool,
}

impl Group {
    /// An empty group; `stride` is the sum over its tables of 1 + parameters.
    pub(crate) fn new(parts: &[KeyPart], stride: usize) -> Self {
        let index = if packed_width(parts) <= 64 {
            Index::Narrow(HashMap::with_hasher(FxBuildHasher))
        } else {
            Index::Wide(HashMap::with_hasher(FxBuildHasher))
        };
        Group {
            index,
            stride,
            rows: Vec::new(),
            keys: Vec::new(),
            free: Vec::new(),
            memo_key: 0,
            memo_row: NONE,
            memo_set: false,
        }
    }

    /// The row for the packet's key, or [`NONE`].
    #[inline]
    pub(crate) fn look_up(&mut self, parts: &[KeyPart], slots: &Words) -> u32 {
        match &self.index {
            Index::Narrow(map) => {
                let key = pack64(parts, slots);
                if self.memo_set && self.memo_key as u64 == key {
                    return self.memo_row;
                }
                self.memo_row = map.get(&key).copied().unwrap_or(NONE);
                self.memo_key = u128::from(key);
            }
            Index::Wide(map) => {
                let key = pack128(parts, slots);
                if self.memo_set && self.memo_key == key {
                    return self.memo_row;
                }
                self.memo_row = map.get(&key).copied().unwrap_or(NONE);
                self.memo_key = key;
            }
        }
        self.memo_set = true;
        self.memo_row
    }

    /// The words of a table's entry in a row: action + 1 (0: no entry), then parameters.
    #[inline]
    pub(crate) fn entry(&self, row: u32, offset: usize, words: usize) -> &[u64] {
        let at = row as usize * self.stride + offset;
        self.rows.get(at..at + words).unwrap_or(&[0])
    }

    /// The row that holds this table's entry for `key`.
    pub(crate) fn find(&self, key: u128, offset: usize) -> Option<u32> {
        let row = self.index.get(key)?;
        (self.entry(row, offset, 1)[0] != 0).then_some(row)
    }

    /// Writes an entry; returns its row. The caller knows whether it is new.
    pub(crate) fn put(&mut self, key: u128, offset: usize, words: &[u64]) -> u32 {
        let row = match self.index.get(key) {
            Some(row) => row,
            None => {
                self.memo_set = false;
                let row = self.free.pop().unwrap_or_else(|| {
                    let row = self.keys.len() as u32;
                    self.keys.push((key, 0));
                    self.rows.resize(self.rows.len() + self.stride, 0);
                    row
                });
                self.keys[row as usize] = (key, 0);
                self.index.insert(key, row);
                row
            }
        };
        let at = row as usize * self.stride + offset;
        if self.rows[at] == 0 {
            self.keys[row as usize].1 += 1;
        }
        self.rows[at..at + words.len()].copy_from_slice(words);
        row
    }

    /// Removes a table's entry from a row, and the row with its last entry.
    pub(crate) fn remove(&mut self, row: u32, offset: usize) {
        let at = row as usize * self.stride + offset;
        if std::mem::take(&mut self.rows[at]) == 0 {
            return;
        }
        let (key, entries) = &mut self.keys[row as usize];
        *entries -= 1;
        if *entries == 0 {
            self.index.remove(*key);
            self.free.push(row);
            self.memo_set = false;
        }
    }

    /// The packed key of a row.
    pub(crate) fn key(&self, row: u32) -> u128 {
        self.keys[row as usize].0
    }

    /// Rows that hold an entry of the table at `offset`, with their keys, in row order.
    pub(crate) fn rows(&self, offset: usize) -> impl Iterator<Item = (u32, u128)> + '_ {
        self.keys.iter().enumerate().filter_map(move |(row, &(key, entries))| {
            let row = row as u32;
            (entries > 0 && self.entry(row, offset, 1)[0] != 0).then_some((row, key))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::code::Slots;
    use crate::table::pack_parts;

    #[derive(Debug, Clone)]
    enum Change {
        Put { table: usize, key: u8, value: u64 },
        Remove { table: usize, key: u8 },
        LookUp { key: u8 },
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            (0..3usize, 0..12u8, 1..100u64).prop_map(|(table, key, value)| Change::Put { table, key, value }),
            (0..3usize, 0..12u8).prop_map(|(table, key)| Change::Remove { table, key }),
            (0..12u8).prop_map(|key| Change::LookUp { key }),
        ]
    }

    fn check(widths: &[(u16, u16)], spread: impl Fn(u8) -> Vec<u64>, changes: &[Change]) {
        let parts = pack_parts(widths).unwrap();
        let mut group = Group::new(&parts, 6);
        let mut model: [BTreeMap<u8, u64>; 3] = Default::default();
        let mut slots = Slots::default();
        let key_of = |key: u8| super::super::pack(&parts, spread(key).into_iter());
        for change in changes {
            match *change {
                Change::Put { table, key, value } => {
                    group.put(key_of(key), 2 * table, &[1, value]);
                    model[table].insert(key, value);
                }
                Change::Remove { table, key } => {
                    let row = group.find(key_of(key), 2 * table);
                    assert_eq!(row.is_some(), model[table].remove(&key).is_some());
                    if let Some(row) = row {
                        group.remove(row, 2 * table);
                    }
                }
                Change::LookUp { key } => {
                    for (part, value) in parts.iter().zip(spread(key)) {
                        slots.set(part.slot, value);
                    }
                    for (table, entries) in model.iter().enumerate() {
                        let row = group.look_up(&parts, slots.words());
                        let found = if row == NONE { 0 } else { group.entry(row, 2 * table, 2)[0] };
                        assert_eq!(found != 0, entries.contains_key(&key));
                        if found != 0 {
                            assert_eq!(group.entry(row, 2 * table, 2)[1], entries[&key]);
                        }
                    }
                }
            }
        }
        for (table, entries) in model.iter().enumerate() {
            let mut keys: Vec<u128> = group.rows(2 * table).map(|(_, key)| key).collect();
            keys.sort_unstable();
            let mut expected: Vec<u128> = entries.keys().map(|&k| key_of(k)).collect();
            expected.sort_unstable();
            assert_eq!(keys, expected);
        }
    }

    proptest! {
        #[test]
        fn a_group_is_as_many_maps(changes in prop::collection::vec(change(), 0..200)) {
            check(&[(3, 8), (4, 16)], |k| vec![u64::from(k) & 3, u64::from(k) >> 2], &changes);
            check(&[(3, 64), (4, 48)], |k| vec![u64::MAX - u64::from(k & 3), u64::from(k) << 40], &changes);
        }
    }
}
