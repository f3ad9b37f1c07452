//! Longest prefix match: one hash table per prefix length in use, longest first. Routing tables use few
//! lengths, an insertion touches one of them, and exact fields beside the prefix are simply part of the key.

use super::exact::Exact;
use super::store::Pair;
use super::{Key, KeyPart, NONE, pack, pack_slots};
use crate::code::Words;

#[derive(Debug)]
struct Length {
    /// Mask over the packed key: all exact bits, and the prefix's.
    mask: Key,
    /// Rows + 1 by the bits under the mask.
    rows: Exact,
}

/// Finds the entry with the longest prefix. Masks of one table differ only in the prefix, so the number of
/// their bits orders them.
#[derive(Debug, Default)]
pub(crate) struct Lpm {
    /// Prefix lengths in use, longest first.
    lengths: Vec<Length>,
}

impl Lpm {
    #[inline]
    pub(crate) fn look_up(&self, parts: &[KeyPart], slots: &Words) -> u32 {
        let key: Key = pack_slots(parts, slots);
        for length in &self.lengths {
            match length.rows.find(std::array::from_fn(|word| key[word] & length.mask[word])) {
                NONE => {}
                at => return length.rows.row(at)[0] as u32 - 1,
            }
        }
        NONE
    }

    /// See [`Exact::take_retired`].
    pub(crate) fn take_retired(&mut self, retired: &mut Vec<Vec<u64>>) {
        self.lengths.iter_mut().for_each(|length| length.rows.take_retired(retired));
    }

    pub(crate) fn insert(&mut self, parts: &[KeyPart], pairs: &[Pair], row: u32) {
        let (key, mask) = packed(parts, pairs);
        let at = self.lengths.partition_point(|l| bits(&l.mask) > bits(&mask));
        if self.lengths.get(at).is_none_or(|l| l.mask != mask) {
            self.lengths.insert(at, Length { mask, rows: Exact::new(parts, 1) });
        }
        self.lengths[at].rows.insert(key, &[u64::from(row) + 1]);
    }

    pub(crate) fn remove(&mut self, parts: &[KeyPart], pairs: &[Pair]) {
        let (key, mask) = packed(parts, pairs);
        if let Some(at) = self.lengths.iter().position(|l| l.mask == mask) {
            let rows = &mut self.lengths[at].rows;
            rows.remove(rows.find(key));
            if rows.len() == 0 {
                self.lengths.remove(at);
            }
        }
    }
}

fn packed(parts: &[KeyPart], pairs: &[Pair]) -> (Key, Key) {
    (pack(parts, pairs.iter().map(|p| p.0)), pack(parts, pairs.iter().map(|p| p.1)))
}

fn bits(mask: &Key) -> u32 {
    mask.iter().map(|word| word.count_ones()).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::code::Slots;
    use crate::table::{ones, pack_parts};

    fn prefix_mask(len: u16) -> u64 {
        ones(16) & !ones(16 - len)
    }

    proptest! {
        /// Compares with the definition: of all entries that match, the one with the longest prefix.
        #[test]
        fn finds_the_longest_prefix(
            entries in prop::collection::vec((0..2u64, any::<u16>(), 0..=16u16, any::<bool>()), 0..60),
            probes in prop::collection::vec((0..2u64, any::<u16>()), 0..60),
        ) {
            let parts = pack_parts(&[(0, 1), (1, 16)]).unwrap();
            let mut lpm = Lpm::default();
            let mut model: Vec<(u64, u64, u16, u32)> = Vec::new();
            for (row, &(vrf, value, len, removed)) in entries.iter().enumerate() {
                let value = u64::from(value) & prefix_mask(len);
                if model.iter().any(|e| (e.0, e.1, e.2) == (vrf, value, len)) {
                    continue;
                }
                let pairs = [(vrf, 1), (value, prefix_mask(len))];
                lpm.insert(&parts, &pairs, row as u32);
                if removed {
                    lpm.remove(&parts, &pairs);
                } else {
                    model.push((vrf, value, len, row as u32));
                }
            }
            let mut slots = Slots::default();
            let near = entries.iter().map(|e| (e.0, e.1 ^ 1));
            for (vrf, value) in probes.into_iter().chain(near) {
                slots.set(0, vrf);
                slots.set(1, u64::from(value));
                let matching = model.iter().filter(|e| e.0 == vrf && u64::from(value) & prefix_mask(e.2) == e.1);
                let expected = matching.max_by_key(|e| e.2).map_or(NONE, |e| e.3);
                prop_assert_eq!(lpm.look_up(&parts, slots.words()), expected);
            }
        }
    }
}
