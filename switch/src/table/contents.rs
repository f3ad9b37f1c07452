//! A table's contents, whichever structure finds them.

use super::exact::Exact;
use super::lpm::Lpm;
use super::range::Ranges;
use super::row::Shape;
use super::scan::Scan;
use super::store::{Pair, Store};
use super::{NONE, ones, pack};
use crate::code::Words;
use crate::entry::CounterData;
use crate::program::{TableCode, TableKind};

/// Default action and entries.
#[derive(Debug)]
pub(crate) struct Contents {
    /// Action + 1 (0: none) and parameters.
    pub(crate) default: Vec<u64>,
    pub(crate) body: Body,
    shape: Shape,
}

/// Where the entries are.
#[derive(Debug)]
pub(crate) enum Body {
    Keyless,
    Exact(Exact),
    Lpm(Store, Lpm),
    Range(Store, Ranges),
    Scan(Store, Scan),
}

impl Contents {
    /// No entries.
    pub(crate) fn new(code: &TableCode, default: Vec<u64>) -> Self {
        let shape = code.shape;
        let body = match &code.kind {
            TableKind::Keyless => Body::Keyless,
            TableKind::Exact { parts } => Body::Exact(Exact::new(parts, shape.words())),
            TableKind::Lpm { .. } => Body::Lpm(Store::new(shape.words()), Lpm::default()),
            TableKind::Range { exact, range, .. } => {
                Body::Range(Store::new(shape.words()), Ranges::new(exact.clone(), *range))
            }
            TableKind::Scan { .. } => Body::Scan(Store::new(shape.words()), Scan::default()),
        };
        Contents { default, body, shape }
    }

    /// The entry or default action for a packet of this many bytes, which is counted; and whether it is an entry.
    #[inline]
    pub(crate) fn apply(&mut self, kind: &TableKind, slots: &Words, bytes: usize) -> (bool, &[u64]) {
        let (store, row) = match (kind, &mut self.body) {
            (_, Body::Exact(exact)) => {
                return match exact.look_up(slots) {
                    NONE => (false, &self.default),
                    row => (true, self.shape.hit(exact.row_mut(row), bytes)),
                };
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
            _ => return (false, &self.default),
        };
        match row {
            NONE => (false, &self.default),
            row => (true, self.shape.hit(store.row_mut(row), bytes)),
        }
    }

    /// Adds an entry that is not there. Its direct counter starts at zero.
    pub(crate) fn insert(&mut self, kind: &TableKind, pairs: &[Pair], priority: i32, words: &[u64]) {
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

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        match &self.body {
            Body::Keyless => 0,
            Body::Exact(exact) => exact.len(),
            Body::Lpm(store, _) | Body::Range(store, _) | Body::Scan(store, _) => store.len(),
        }
    }

    /// The rows of all entries.
    pub(crate) fn rows(&self) -> Vec<u32> {
        match &self.body {
            Body::Keyless => Vec::new(),
            Body::Exact(exact) => exact.rows().collect(),
            Body::Lpm(store, _) | Body::Range(store, _) | Body::Scan(store, _) => store.rows().collect(),
        }
    }

    /// An entry's key and priority.
    pub(crate) fn key(&self, kind: &TableKind, row: u32) -> (Vec<Pair>, i32) {
        match (kind, &self.body) {
            (TableKind::Exact { parts }, Body::Exact(exact)) => {
                let key = exact.key(row);
                let pair = |part: &super::KeyPart| {
                    let all = ones(part.width);
                    ((key >> part.shift) as u64 & all, all)
                };
                (parts.iter().map(pair).collect(), 0)
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
