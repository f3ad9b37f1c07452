//! Addresses that a client remembers: the slot of a key in its node.

use fatbtree_remote::mix;

/// Slots by table and key, direct-mapped: a newer key replaces an older one in the same place. What is remembered may be wrong: the item's
/// key decides.
#[derive(Debug)]
pub(super) struct Places {
    /// Each 0, or 56 bits of the mixed key and the slot plus one.
    words: Vec<u64>,
}

impl Places {
    pub(super) fn new(count: usize) -> Self {
        Self { words: vec![0; count.next_power_of_two()] }
    }

    fn find(&self, table: u8, key: u64) -> (usize, u64) {
        let mixed = mix(key ^ u64::from(table + 1) << 56 ^ 0x5bd1_e995);
        (mixed as usize & (self.words.len() - 1), mixed & !0xff)
    }

    /// The slot of a key, as far as is known.
    pub(super) fn get(&self, table: u8, key: u64) -> Option<u8> {
        let (at, tag) = self.find(table, key);
        let word = self.words[at];
        (word & !0xff == tag && word & 0xff != 0).then(|| word as u8 - 1)
    }

    /// Remembers the slot of a key.
    pub(super) fn put(&mut self, table: u8, key: u64, slot: u8) {
        let (at, tag) = self.find(table, key);
        self.words[at] = tag | u64::from(slot + 1);
    }

    /// Forgets a key.
    pub(super) fn forget(&mut self, table: u8, key: u64) {
        if self.get(table, key).is_some() {
            let (at, _) = self.find(table, key);
            self.words[at] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_key_replaces_an_older_one() {
        let mut places = Places::new(2);
        assert_eq!(places.get(0, 0), None);
        (0..20).for_each(|key| places.put(0, key, key as u8));
        let known: Vec<_> = (0..20).filter(|&key| places.get(0, key).is_some()).collect();
        assert_eq!(known.len(), 2);
        for key in known {
            assert_eq!((places.get(0, key), places.get(1, key)), (Some(key as u8), None));
            places.forget(0, key);
            assert_eq!(places.get(0, key), None);
        }
    }
}
