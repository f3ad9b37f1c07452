//! Addresses that clients remember: the slot of a key in its node.

use std::cell::Cell;

use fatbtree_remote_memory::mix;

/// Slots by table and key, direct-mapped: a newer key replaces an older one in the same place. What is remembered may be wrong: the item's
/// key decides. Several [`Tables`](crate::Tables) of one thread may share them.
#[derive(Debug)]
pub struct Addresses {
    /// Each 0, or 56 bits of the mixed key and the slot plus one.
    words: Vec<Cell<u64>>,
    stats: Cell<AddressStats>,
}

/// Use of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AddressStats {
    /// Items that an address led to.
    pub hits: u64,
    /// Keys without an address.
    pub misses: u64,
    /// Addresses at which another key was found.
    pub stale: u64,
    /// Bytes of all addresses.
    pub bytes: u64,
    /// Addresses that are known.
    pub known: u64,
}

impl Addresses {
    /// Room for so many addresses, of 8 bytes each: a power of two is taken.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let words = vec![0; count.next_power_of_two()];
        Self { words: words.into_iter().map(Cell::new).collect(), stats: Cell::default() }
    }

    /// Use so far.
    #[must_use]
    pub fn stats(&self) -> AddressStats {
        let known = self.words.iter().filter(|word| word.get() != 0).count() as u64;
        AddressStats { bytes: self.words.len() as u64 * 8, known, ..self.stats.get() }
    }

    fn count(&self, one: impl FnOnce(&mut AddressStats)) {
        let mut stats = self.stats.get();
        one(&mut stats);
        self.stats.set(stats);
    }

    /// The slot of a key that is looked for, as far as is known.
    pub(super) fn look_up(&self, table: u8, key: u64) -> Option<u8> {
        let slot = self.get(table, key);
        self.count(|stats| match slot {
            Some(_) => stats.hits += 1,
            None => stats.misses += 1,
        });
        slot
    }

    /// Forgets a key that was not found at its address.
    pub(super) fn was_stale(&self, table: u8, key: u64) {
        self.count(|stats| (stats.hits, stats.stale) = (stats.hits.saturating_sub(1), stats.stale + 1));
        self.forget(table, key);
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
