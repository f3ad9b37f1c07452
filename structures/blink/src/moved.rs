//! Keys whose records are not where the switches think they are, as far as a client has noticed.
//!
//! The switches are not told when a record is rewritten elsewhere, and an index read to the old place costs a
//! round trip. A client that has met such a record, or has made it, asks the switches for a node instead.
//! Only now and then it asks for the record, since the switches may have learned of the new place.

/// Table size (power of two). Direct-mapped: a newer key replaces an older one in the same slot.
const SLOTS: usize = 4096;

/// Lookups of a key that bypass its record hint before the hint is tried once more.
const PATIENCE: u8 = 16;

/// A table that forgets.
pub(crate) struct MovedKeys {
    /// Key and remaining lookups that bypass the record hint; 0 = empty slot.
    slots: Box<[(u64, u8)]>,
}

impl MovedKeys {
    pub(crate) fn new() -> Self {
        Self { slots: vec![(0, 0); SLOTS].into() }
    }

    /// Whether the record of this key is better not asked for. Counts the question.
    #[inline]
    pub(crate) fn avoids(&mut self, key: u64) -> bool {
        let (held, left) = &mut self.slots[slot(key)];
        let avoids = *held == key && *left > 0;
        *left -= u8::from(avoids);
        avoids
    }

    /// The record of this key is not where the switches think.
    pub(crate) fn note(&mut self, key: u64) {
        self.slots[slot(key)] = (key, PATIENCE);
    }
}

/// Keys that follow one another are in different slots; the multiplier is 2^64 divided by the golden ratio (Knuth, volume 3, section 6.4).
#[inline]
fn slot(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SLOTS.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_has_moved_is_tried_again_now_and_then() {
        let mut moved = MovedKeys::new();
        assert!(!moved.avoids(0) && !moved.avoids(7));
        moved.note(7);
        let avoided = (0..100).take_while(|_| moved.avoids(7)).count();
        assert_eq!(avoided, usize::from(PATIENCE));
        moved.note(0);
        assert!(moved.avoids(0) && !moved.avoids(1));
    }

    #[test]
    fn it_has_a_bound_and_the_newest_stay() {
        let mut moved = MovedKeys::new();
        (0..100_000).for_each(|key| moved.note(key));
        assert!((99_990..100_000).all(|key| moved.avoids(key)));
        assert!((0..100_000).filter(|key| moved.avoids(*key)).count() <= SLOTS);
    }
}
