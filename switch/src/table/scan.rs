//! Any mix of match kinds: entries in order of priority, the first that matches wins.
//!
//! Fields compared under a mask are packed into as few 64-bit words as possible. The small const tables of
//! the node sets (one word, four entries) so become a handful of masked compares on one register.

use super::store::{Pair, Store};
use super::{KeyPart, NONE, pack64};
use crate::code::Words;
use crate::entry::MatchKind;

/// Distribution of the key's fields over words, and the range fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ScanKey {
    /// The parts of each word.
    words: Box<[Box<[KeyPart]>]>,
    /// For each word the key field of each part.
    fields: Box<[Box<[usize]>]>,
    /// Slot and key field of each range.
    ranges: Box<[(u16, usize)]>,
}

impl ScanKey {
    /// Creates the key. `fields` has kind, slot and width of each key field.
    pub(crate) fn new(fields: &[(MatchKind, u16, u16)]) -> Self {
        let mut words: Vec<Vec<KeyPart>> = Vec::new();
        let mut members: Vec<Vec<usize>> = Vec::new();
        let mut ranges = Vec::new();
        let mut used = 64;
        for (at, &(kind, slot, width)) in fields.iter().enumerate() {
            if kind == MatchKind::Range {
                ranges.push((slot, at));
                continue;
            }
            if used + width > 64 {
                words.push(Vec::new());
                members.push(Vec::new());
                used = 0;
            }
            // A word exists: `used` starts full.
            if let (Some(word), Some(member)) = (words.last_mut(), members.last_mut()) {
                word.push(KeyPart { slot, width, shift: used as u8 });
                member.push(at);
            }
            used += width;
        }
        let boxed = |v: Vec<Vec<KeyPart>>| v.into_iter().map(Vec::into_boxed_slice).collect();
        ScanKey {
            words: boxed(words),
            fields: members.into_iter().map(Vec::into_boxed_slice).collect(),
            ranges: ranges.into(),
        }
    }

    /// The parts of the only word, if there is just one and no range.
    pub(crate) fn one_word(&self) -> Option<&[KeyPart]> {
        match (&*self.words, &*self.ranges) {
            ([parts], []) => Some(parts),
            _ => None,
        }
    }

    /// All slots that the key is made of.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u16> + '_ {
        let words = self.words.iter().flatten().map(|part| part.slot);
        words.chain(self.ranges.iter().map(|&(slot, _)| slot))
    }

    /// Appends an entry's words: `pairs` holds value and mask of each key field.
    pub(crate) fn pack_entry(&self, pairs: &[Pair], words: &mut Vec<Pair>) {
        for (parts, fields) in self.words.iter().zip(&self.fields) {
            let mut word = (0, 0);
            for (part, &field) in parts.iter().zip(fields) {
                let (value, mask) = pairs[field];
                word.0 |= (value & mask) << part.shift;
                word.1 |= mask << part.shift;
            }
            words.push(word);
        }
    }

    /// Position of the first entry that matches the packet. `words` and `bounds` hold the entries one after
    /// the other.
    #[inline]
    pub(crate) fn first_match(&self, words: &[Pair], bounds: &[Pair], slots: &Words) -> Option<usize> {
        if let ([parts], []) = (&*self.words, &*self.ranges) {
            let word = pack64(parts, slots);
            return first_masked(word, words);
        }
        let in_bounds = |bounds: &[Pair]| {
            self.ranges.iter().zip(bounds).all(|(&(slot, _), &(low, high))| {
                let value = slots[usize::from(slot)];
                low <= value && value <= high
            })
        };
        if self.words.is_empty() {
            return bounds.chunks_exact(self.ranges.len().max(1)).position(in_bounds);
        }
        let ranges = self.ranges.len();
        words.chunks_exact(self.words.len()).enumerate().position(|(at, words)| {
            let mut masked = self.words.iter().zip(words);
            masked.all(|(parts, &(value, mask))| pack64(parts, slots) & mask == value)
                && in_bounds(&bounds[at * ranges..(at + 1) * ranges])
        })
    }
}

/// Number of entries that are compared without a branch between them: a processor cannot predict which one matches.
const TOGETHER: usize = 8;

/// Position of the first value that a word has under its mask.
#[inline]
pub(crate) fn first_masked(word: u64, words: &[Pair]) -> Option<usize> {
    words.chunks(TOGETHER).enumerate().find_map(|(group, words)| {
        let matching = |(at, &(value, mask)): (usize, &Pair)| u32::from(word & mask == value) << at;
        let found = words.iter().enumerate().map(matching).fold(0, |all, one| all | one);
        (found != 0).then(|| TOGETHER * group + found.trailing_zeros() as usize)
    })
}

#[derive(Debug, Default)]
pub(crate) struct Scan {
    stale: bool,
    /// Row of each entry, best first.
    rows: Vec<u32>,
    /// Value and mask of each word of each entry, in the same order.
    words: Vec<Pair>,
    /// Bounds of each range of each entry, in the same order.
    bounds: Vec<Pair>,
}

impl Scan {
    /// Takes note that something in the store has changed.
    pub(crate) fn touch(&mut self) {
        self.stale = true;
    }

    #[inline]
    pub(crate) fn look_up(&mut self, key: &ScanKey, slots: &Words, store: &Store) -> u32 {
        if self.stale {
            self.rebuild(key, store);
        }
        let hit = key.first_match(&self.words, &self.bounds, slots);
        hit.map_or(NONE, |at| self.rows[at])
    }

    fn rebuild(&mut self, key: &ScanKey, store: &Store) {
        self.rows = store.rows().collect();
        self.rows.sort_unstable_by_key(|&row| store.rank(row));
        self.words.clear();
        self.bounds.clear();
        for &row in &self.rows {
            let pairs = store.key(row);
            key.pack_entry(pairs, &mut self.words);
            self.bounds.extend(key.ranges.iter().map(|&(_, field)| pairs[field]));
        }
        self.stale = false;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::code::Slots;

    #[derive(Debug, Clone)]
    struct Change {
        pairs: Vec<(u64, u64)>,
        priority: i32,
        remove_oldest: bool,
    }

    fn changes(kinds: &[(MatchKind, u16, u16)]) -> impl Strategy<Value = Vec<Change>> + use<> {
        let pairs: Vec<_> = kinds
            .iter()
            .map(|&(kind, _, width)| {
                let top = width - 4; // few distinct values, so that entries overlap
                (0..16u64, 0..16u64).prop_map(move |(a, b)| match kind {
                    MatchKind::Range => (a.min(b) << top, a.max(b) << top),
                    _ => ((a & b) << top, b << top),
                })
            })
            .collect();
        let change = (pairs, 1..4i32, prop::bool::weighted(0.3))
            .prop_map(|(pairs, priority, remove_oldest)| Change { pairs, priority, remove_oldest });
        prop::collection::vec(change, 0..30)
    }

    fn check(kinds: &[(MatchKind, u16, u16)], changes: Vec<Change>) {
        let key = ScanKey::new(kinds);
        let mut scan = Scan::default();
        let mut store = Store::new(1, 60);
        let mut model: Vec<(Change, u32)> = Vec::new();
        let mut slots = Slots::default();
        for change in changes {
            let known = store.find(&change.pairs, change.priority).is_some();
            if known || (change.remove_oldest && !model.is_empty()) {
                let (_, row) = model.remove(0);
                store.remove(row);
            } else {
                let row = store.insert(change.pairs.clone().into(), change.priority, &[1]);
                model.push((change.clone(), row));
            }
            scan.touch();
            // Probe with every combination of the first and last value that some entry's field matches.
            for (probe, _) in &model {
                for variant in 0..(1 << kinds.len()) {
                    let values: Vec<u64> = kinds
                        .iter()
                        .zip(&probe.pairs)
                        .enumerate()
                        .map(|(at, (&(kind, _, width), &(a, b)))| match (kind, (variant >> at) & 1) {
                            (_, 0) => a,
                            (MatchKind::Range, _) => b,
                            _ => a | (crate::table::ones(width) & !b),
                        })
                        .collect();
                    for (&(_, slot, _), &value) in kinds.iter().zip(&values) {
                        slots.set(slot, value);
                    }
                    let matches = |c: &Change| {
                        kinds.iter().zip(&c.pairs).zip(&values).all(|((&(kind, ..), &(a, b)), &v)| match kind
                        {
                            MatchKind::Range => a <= v && v <= b,
                            _ => v & b == a,
                        })
                    };
                    let best = model.iter().filter(|(c, _)| matches(c)).map(|(c, _)| c.priority).max();
                    let expected = model.iter().find(|(c, _)| matches(c) && Some(c.priority) == best);
                    let found = scan.look_up(&key, slots.words(), &store);
                    assert_eq!(found, expected.map_or(NONE, |(_, row)| *row));
                }
            }
        }
    }

    const RANGES_ONLY: [(MatchKind, u16, u16); 2] = [(MatchKind::Range, 0, 16), (MatchKind::Range, 1, 8)];
    const ONE_WORD: [(MatchKind, u16, u16); 2] = [(MatchKind::Ternary, 0, 32), (MatchKind::Ternary, 1, 4)];
    const MIXED: [(MatchKind, u16, u16); 4] = [
        (MatchKind::Ternary, 0, 64),
        (MatchKind::Range, 1, 16),
        (MatchKind::Lpm, 2, 48),
        (MatchKind::Range, 3, 64),
    ];

    proptest! {
        #[test]
        fn one_word_of_ternary_fields(changes in changes(&ONE_WORD)) {
            check(&ONE_WORD, changes);
        }

        #[test]
        fn ranges_only(changes in changes(&RANGES_ONLY)) {
            check(&RANGES_ONLY, changes);
        }

        #[test]
        fn every_kind_at_once(changes in changes(&MIXED)) {
            check(&MIXED, changes);
        }
    }
}
