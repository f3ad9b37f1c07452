//! A table's contents, whichever structure finds them.

use super::exact::Exact;
use super::lpm::Lpm;
use super::range::Ranges;
use super::row::Shape;
use super::scan::Scan;
use super::store::{Pair, Store};
use super::{NONE, ones, pack, unpack};
use crate::code::Words;
use crate::entry::CounterData;
use crate::program::{TableCode, TableKind};

/// Default action and entries.
#[derive(Debug)]
pub(crate) struct Contents {
    /// Action + 1 (0: none) and parameters.
    pub(crate) default: Vec<u64>,
    pub(crate) body: Body,
    /// Number of entries.
    pub(crate) len: usize,
    shape: Shape,
}

/// Entries of a table.
#[derive(Debug)]
pub(crate) enum Body {
    Keyless,
    Exact(Exact),
    Lpm(Store, Lpm),
    Range(Store, Ranges),
    Scan(Store, Scan),
}

impl Contents {
    /// Bytes that a table's entries need at most, when it holds as many as its declaration says.
    pub(crate) fn bytes(code: &TableCode, fields: usize, entries: u64) -> u64 {
        let words = code.shape.words();
        let stored = Store::bytes_per_entry(words, fields).saturating_mul(entries);
        match &code.kind {
            TableKind::Keyless => 0,
            TableKind::Exact { parts } => Exact::bytes(parts, words, entries),
            TableKind::Lpm { parts } => stored.saturating_add(Exact::bytes(parts, 1, entries)),
            // Beside the store, some words an entry for intervals and the like.
            TableKind::Range { .. } | TableKind::Scan { .. } => {
                stored.saturating_add((64 * fields as u64).saturating_mul(entries))
            }
        }
    }

    /// Contents without entries, with room for as many as the table declares.
    pub(crate) fn new(code: &TableCode, entries: usize, default: Vec<u64>) -> Self {
        let shape = code.shape;
        let store = || Store::new(shape.words(), entries);
        let body = match &code.kind {
            TableKind::Keyless => Body::Keyless,
            TableKind::Exact { parts } => Body::Exact(Exact::new(parts, shape.words())),
            TableKind::Lpm { .. } => Body::Lpm(store(), Lpm::default()),
            TableKind::Range { exact, range, .. } => Body::Range(store(), Ranges::new(exact.clone(), *range)),
            TableKind::Scan { .. } => Body::Scan(store(), Scan::default()),
        };
        Contents { default, body, len: 0, shape }
    }

    /// The entry or default action for a packet of this many bytes, which is counted; and whether it is an entry.
    #[inline]
    pub(crate) fn apply(&mut self, kind: &TableKind, slots: &Words, bytes: usize) -> (bool, &[u64]) {
        match self.body.look_up(kind, slots) {
            Some(row) => (true, self.shape.hit(row, bytes)),
            None => (false, &self.default),
        }
    }

    /// Adds an entry that is not there. Its direct counter starts at zero.
    pub(crate) fn insert(&mut self, kind: &TableKind, pairs: &[Pair], priority: i32, words: &[u64]) {
        self.len += 1;
        match (kind, &mut self.body) {
            (TableKind::Exact { parts }, Body::Exact(exact)) => {
                exact.insert(pack(parts, pairs.iter().map(|p| p.0)), words);
            }
            (TableKind::Lpm { parts }, Body::Lpm(store, lpm)) => {
                let row = store.insert(pairs.into(), priority, words);
                lpm.insert(parts, pairs, row);
            }
            (TableKind::Range { parts, .. }, Body::Range(store, ranges)) => {
                let row = store.insert(pairs.into(), priority, words);
                ranges.insert(parts, row, store);
            }
            (_, Body::Scan(store, scan)) => {
                scan.touch();
                store.insert(pairs.into(), priority, words);
            }
            _ => {} // a keyless table has no entries
        }
    }

    /// Replaces an entry's action and parameters; its direct counter goes on counting.
    pub(crate) fn write(&mut self, row: u32, words: &[u64]) {
        if let Some(row) = self.row_mut(row) {
            row[..words.len()].copy_from_slice(words);
        }
    }

    /// The row of the entry with this key and priority. It holds until the next insertion or removal.
    pub(crate) fn find(&self, kind: &TableKind, pairs: &[Pair], priority: i32) -> Option<u32> {
        match (kind, &self.body) {
            (TableKind::Exact { parts }, Body::Exact(exact)) => {
                let row = exact.find(pack(parts, pairs.iter().map(|p| p.0)));
                (row != NONE).then_some(row)
            }
            (_, Body::Lpm(store, _) | Body::Range(store, _) | Body::Scan(store, _)) => {
                store.find(pairs, priority)
            }
            _ => None,
        }
    }

    pub(crate) fn remove(&mut self, kind: &TableKind, row: u32) {
        self.len -= 1;
        match (kind, &mut self.body) {
            (_, Body::Exact(exact)) => exact.remove(row),
            (TableKind::Lpm { parts }, Body::Lpm(store, lpm)) => {
                lpm.remove(parts, store.key(row));
                store.remove(row);
            }
            (TableKind::Range { parts, .. }, Body::Range(store, ranges)) => {
                ranges.remove(parts, row, store);
                store.remove(row);
            }
            (_, Body::Scan(store, scan)) => {
                scan.touch();
                store.remove(row);
            }
            _ => {}
        }
    }

    /// Appends the rows of the next entries, in an order that changes of others do not change, until these are about `most` or many places
    /// were looked at; `from` is 0 at first. Returns from where to go on; `None` at the end.
    pub(crate) fn slice(&self, from: u64, most: usize, rows: &mut Vec<u32>) -> Option<u64> {
        match &self.body {
            Body::Keyless => None,
            Body::Exact(exact) => exact.slice(from, most, rows),
            Body::Lpm(store, _) | Body::Range(store, _) | Body::Scan(store, _) => {
                store.slice(from, most, rows)
            }
        }
    }

    /// Takes the memory that the table has outgrown.
    pub(crate) fn take_retired(&mut self, retired: &mut Vec<Vec<u64>>) {
        match &mut self.body {
            Body::Exact(exact) => exact.take_retired(retired),
            Body::Lpm(_, lpm) => lpm.take_retired(retired),
            Body::Keyless | Body::Range(..) | Body::Scan(..) => {}
        }
    }

    /// The rows of all entries.
    pub(crate) fn rows(&self) -> Vec<u32> {
        let (mut rows, mut from) = (Vec::with_capacity(self.len), Some(0));
        while let Some(at) = from {
            from = self.slice(at, usize::MAX, &mut rows);
        }
        rows
    }

    /// An entry's key and priority.
    pub(crate) fn key(&self, kind: &TableKind, row: u32) -> (Vec<Pair>, i32) {
        match (kind, &self.body) {
            (TableKind::Exact { parts }, Body::Exact(exact)) => {
                let key = exact.key(row);
                (parts.iter().map(|part| (unpack(part, &key), ones(part.width))).collect(), 0)
            }
            (_, Body::Lpm(store, _) | Body::Range(store, _) | Body::Scan(store, _)) => {
                (store.key(row).to_vec(), store.priority(row))
            }
            _ => (Vec::new(), 0),
        }
    }

    /// An entry's words: action + 1, then parameters.
    pub(crate) fn entry(&self, row: u32) -> &[u64] {
        &self.row(row)[..self.shape.entry]
    }

    /// An entry's direct counter; zero where the table has none.
    pub(crate) fn counter(&self, row: u32) -> CounterData {
        self.shape.counter(self.row(row))
    }

    /// Sets an entry's direct counter, if the table has any.
    pub(crate) fn set_counter(&mut self, row: u32, data: CounterData) {
        let shape = self.shape;
        if let Some(row) = self.row_mut(row) {
            shape.set_counter(row, data);
        }
    }

    fn row(&self, row: u32) -> &[u64] {
        match &self.body {
            Body::Keyless => &[],
            Body::Exact(exact) => exact.row(row),
            Body::Lpm(store, _) | Body::Range(store, _) | Body::Scan(store, _) => store.row(row),
        }
    }

    fn row_mut(&mut self, row: u32) -> Option<&mut [u64]> {
        match &mut self.body {
            Body::Keyless => None,
            Body::Exact(exact) => Some(exact.row_mut(row)),
            Body::Lpm(store, _) | Body::Range(store, _) | Body::Scan(store, _) => Some(store.row_mut(row)),
        }
    }
}

impl Body {
    /// The words of the packet's row.
    #[inline]
    pub(crate) fn look_up(&mut self, kind: &TableKind, slots: &Words) -> Option<&mut [u64]> {
        let (store, row) = match (kind, self) {
            (_, Body::Exact(exact)) => {
                let row = exact.look_up(slots);
                return (row != NONE).then(|| exact.row_mut(row));
            }
            (TableKind::Lpm { parts }, Body::Lpm(store, lpm)) => {
                let row = lpm.look_up(parts, slots);
                (store, row)
            }
            (TableKind::Range { parts, slot, .. }, Body::Range(store, ranges)) => {
                let row = ranges.look_up(parts, *slot, slots, store);
                (store, row)
            }
            (TableKind::Scan { key }, Body::Scan(store, scan)) => {
                let row = scan.look_up(key, slots, store);
                (store, row)
            }
            _ => return None,
        };
        (row != NONE).then(|| store.row_mut(row))
    }
}
