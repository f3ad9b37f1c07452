//! Addresses that clients remember: the slot of a key in its node.

use std::cell::Cell;

use fatbtree_remote_memory::mix;

/// Slots by table and key, direct-mapped: a newer key replaces an older one in the same place. What is remembered may be wrong: the item's
/// key decides. Several [`Tables`](crate::Tables) of one thread may share them.
#[derive(Debug)]
pub struct Addresses {
    /// Each 0, or 56 bits of the mixed key and the slot plus one.
    words: Vec<Cell<u64>>,
}

impl Addresses {
    /// Room for so many addresses, of 8 bytes each: a power of two is taken.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let words = vec![0; count.next_power_of_two()];
        Self { words: words.into_iter().map(Cell::new).collect() }
    }

    fn find(&self, table: u8, key: u64) -> (usize, u64) {
        let mixed = mix(key ^ u64::from(table + 1) << 56 ^ 0x5bd1_e995);
        (mixed as usize & (self.words.len() - 1), mixed & !0xff)
    }

    /// The slot of a key, as far as is known.
    pub(super) fn get(&self, table: u8, key: u64) -> Option<u8> {
        let (at, tag) = self.find(table, key);
        let word = self.words[at].get();
        (word & !0xff == tag && word & 0xff != 0).then(|| word as u8 - 1)
    }

    /// Remembers the slot of a key.
    pub fn note(&self, table: u8, key: u64, slot: u8) {
        let (at, tag) = self.find(table, key);
        self.words[at].set(tag | u64::from(slot + 1));
    }

    /// Forgets a key.
    pub(super) fn forget(&self, table: u8, key: u64) {
        if self.get(table, key).is_some() {
            let (at, _) = self.find(table, key);
            self.words[at].set(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_key_replaces_an_older_one() {
        let places = Addresses::new(2);
        assert_eq!(places.get(0, 0), None);
        (0..20).for_each(|key| places.note(0, key, key as u8));
        let known: Vec<_> = (0..20).filter(|&key| places.get(0, key).is_some()).collect();
        assert_eq!(known.len(), 2);
        for key in known {
            assert_eq!((places.get(0, key), places.get(1, key)), (Some(key as u8), None));
            places.forget(0, key);
            assert_eq!(places.get(0, key), None);
        }
    }
}
