//! Exact fields and one range field, the shape of the fat root's stages: entries are grouped by their exact
//! fields; in each group the overlapping ranges are cut into elementary intervals, each of which knows its
//! winner, and a lookup is one hash and one binary search.
//!
//! Intervals are rebuilt by the first lookup after a change, only in the groups that changed: a controller
//! that writes a thousand ranges pays for one rebuild.

use std::collections::BinaryHeap;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::store::Store;
use super::{Key, KeyPart, NONE, pack, pack_slots};
use crate::code::Words;

#[derive(Debug, Default)]
struct Group {
    rows: Vec<u32>,
    stale: bool,
    /// First value of each interval, ascending; the first is 0.
    starts: Vec<u64>,
    /// The winner in each interval, or [`NONE`].
    winners: Vec<u32>,
}

#[derive(Debug)]
pub(crate) struct Ranges {
    /// Positions of the exact fields among the table's key fields.
    exact: Box<[usize]>,
    /// Position of the range field.
    range: usize,
    groups: HashMap<Key, Group, FxBuildHasher>,
}

impl Ranges {
    pub(crate) fn new(exact: Box<[usize]>, range: usize) -> Self {
        Ranges { exact, range, groups: HashMap::with_hasher(FxBuildHasher) }
    }

    /// Row of the packet's entry, or [`NONE`]. `parts` are those of the exact fields; `slot` is the range field's.
    #[inline]
    pub(crate) fn look_up(&mut self, parts: &[KeyPart], slot: u16, slots: &Words, store: &Store) -> u32 {
        let Some(group) = self.groups.get_mut(&pack_slots(parts, slots)) else {
            return NONE;
        };
        if group.stale {
            group.rebuild(self.range, store);
        }
        let interval = group.starts.partition_point(|&start| start <= slots[usize::from(slot)]);
        // The first interval starts at 0, so at least one start is not above any value.
        group.winners[interval - 1]
    }

    pub(crate) fn insert(&mut self, parts: &[KeyPart], row: u32, store: &Store) {
        let group = self.groups.entry(self.key(parts, row, store)).or_default();
        group.rows.push(row);
        group.stale = true;
    }

    /// Removes an entry. Must be called before the row leaves the store.
    pub(crate) fn remove(&mut self, parts: &[KeyPart], row: u32, store: &Store) {
        let key = self.key(parts, row, store);
        if let Some(group) = self.groups.get_mut(&key) {
            group.rows.retain(|&r| r != row);
            group.stale = true;
            if group.rows.is_empty() {
                self.groups.remove(&key);
            }
        }
    }

    fn key(&self, parts: &[KeyPart], row: u32, store: &Store) -> Key {
        let pairs = store.key(row);
        pack(parts, self.exact.iter().map(|&at| pairs[at].0))
    }
}

impl Group {
    /// Sweeps from low to high with the open ranges in a heap, best on top: O(n log n).
    fn rebuild(&mut self, range: usize, store: &Store) {
        let bounds = |row: u32| store.key(row)[range];
        self.rows.sort_unstable_by_key(|&row| bounds(row).0);
        // Winners can change only where a range begins or the value after one ends.
        let mut cuts: Vec<u64> = vec![0];
        for &row in &self.rows {
            let (low, high) = bounds(row);
            cuts.push(low);
            cuts.extend(high.checked_add(1));
        }
        cuts.sort_unstable();
        cuts.dedup();
        self.starts.clear();
        self.winners.clear();
        let mut open = BinaryHeap::new();
        let mut next = 0;
        for cut in cuts {
            while let Some(&row) = self.rows.get(next).filter(|&&row| bounds(row).0 <= cut) {
                open.push((std::cmp::Reverse(store.rank(row)), row));
                next += 1;
            }
            while open.peek().is_some_and(|&(_, row)| bounds(row).1 < cut) {
                open.pop();
            }
            let winner = open.peek().map_or(NONE, |&(_, row)| row);
            if self.winners.last() != Some(&winner) {
                self.starts.push(cut);
                self.winners.push(winner);
            }
        }
        self.stale = false;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::code::Slots;
    use crate::table::pack_parts;

    proptest! {
        /// Compares with the definition: of all entries that match, the best priority, then the oldest.
        #[test]
        fn finds_the_best_range(
            changes in prop::collection::vec(
                (0..3u64, any::<u8>(), any::<u8>(), 1..5i32, 0..4u8), 0..60),
            wide in any::<bool>(),
        ) {
            // Wide: the range field has 64 bits and bounds reach its last value.
            let widen = |v: u8| if wide { u64::from(v) | (u64::from(v) << 56) | 0x00ff_ffff_ffff_ff00 } else { u64::from(v) };
            let parts = pack_parts(&[(0, 16)]).unwrap();
            let mut ranges = Ranges::new(Box::new([0]), 1);
            let mut store = Store::new(1, 60);
            let mut model: Vec<(u64, u64, u64, i32, u32)> = Vec::new();
            let mut slots = Slots::default();
            for (id, a, b, priority, what) in changes {
                let (low, high) = (widen(a.min(b)), widen(a.max(b)));
                let known = model.iter().position(|e| (e.0, e.1, e.2, e.3) == (id, low, high, priority));
                if let Some(at) = known.or(if what == 0 && !model.is_empty() { Some(0) } else { None }) {
                    let (.., row) = model.remove(at);
                    ranges.remove(&parts, row, &store);
                    store.remove(row);
                } else {
                    let row = store.insert(Box::new([(id, 0xffff), (low, high)]), priority, &[1]);
                    ranges.insert(&parts, row, &store);
                    model.push((id, low, high, priority, row));
                }
                for probe in [low, high, low.wrapping_sub(1), high.wrapping_add(1), 0, u64::MAX] {
                    slots.set(0, id);
                    slots.set(1, probe);
                    let matching = model.iter().filter(|e| e.0 == id && e.1 <= probe && probe <= e.2);
                    // `model` is in order of age: the first of the best is the oldest.
                    let best = matching.clone().map(|e| e.3).max();
                    let expected = matching.clone().find(|e| Some(e.3) == best).map_or(NONE, |e| e.4);
                    prop_assert_eq!(ranges.look_up(&parts, 1, slots.words(), &store), expected);
                }
            }
        }
    }
}
