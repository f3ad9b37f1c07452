//! How many bytes an index read asks for, where a lookup needs few of a leaf and more of other things.
//!
//! A client says how many bytes it wants before it knows where the switches lead. Of a leaf of buckets it needs two lines; two lines of an inner node
//! or of a long record are of no use. Where switches lead is a matter of where a key lies: they know the leaves of some ranges and not of others,
//! and they are planned anew seldom. So the client goes by what came last in the key's part of the key space. To ask for too little costs a round
//! trip, for too much some bytes: one answer is enough to ask for more, and it takes many to ask for less.

use fatbtree_remote_memory::KeyRange;

/// Parts of a partition that are told apart.
const PARTS: usize = 64;

/// Answers in a row that needed less than was asked for, before less is asked for.
const PATIENCE: u8 = 32;

/// One part of the key space.
#[derive(Clone, Copy, Debug, Default)]
struct Need {
    /// Bytes asked for; 0 before anything is known.
    bytes: u32,
    /// Answers in a row that needed less.
    less: u8,
    /// The most that these needed.
    most: u32,
}

/// What the last index reads needed.
#[derive(Clone, Debug)]
pub(crate) struct Needs {
    parts: Box<[Need; PARTS]>,
}

impl Needs {
    pub(crate) fn new() -> Self {
        Self { parts: Box::new([Need::default(); PARTS]) }
    }

    /// Bytes to ask for; `first` where nothing is known.
    #[inline]
    pub(crate) fn of(&self, range: &KeyRange, key: u64, first: u32) -> u32 {
        match self.parts[part(range, key)].bytes {
            0 => first,
            bytes => bytes,
        }
    }

    /// Notes how many bytes the answer was worth.
    #[inline]
    pub(crate) fn note(&mut self, range: &KeyRange, key: u64, bytes: u32) {
        let need = &mut self.parts[part(range, key)];
        if bytes >= need.bytes {
            *need = Need { bytes, ..Need::default() };
            return;
        }
        (need.less, need.most) = (need.less + 1, need.most.max(bytes));
        if need.less == PATIENCE {
            *need = Need { bytes: need.most, ..Need::default() };
        }
    }
}

#[inline]
fn part(range: &KeyRange, key: u64) -> usize {
    let end = range.high.map_or(1 << 64, u128::from);
    let width = end.saturating_sub(range.low.into()).max(1);
    let part = u128::from(key.saturating_sub(range.low)) * PARTS as u128 / width;
    (part as usize).min(PARTS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_asked_for_at_once_and_less_after_many() {
        let (range, mut needs) = (KeyRange::of(100..6500), Needs::new());
        assert_eq!(needs.of(&range, 100, 384), 384);
        needs.note(&range, 100, 384);
        for _ in 1..PATIENCE {
            needs.note(&range, 100, 128);
        }
        assert_eq!(needs.of(&range, 100, 1), 384);
        needs.note(&range, 100, 200);
        assert_eq!(needs.of(&range, 199, 1), 200, "the most that the last ones needed");
        assert_eq!(needs.of(&range, 200, 1), 1, "the next part");
        needs.note(&range, 150, 1024);
        assert_eq!(needs.of(&range, 150, 1), 1024);
    }

    #[test]
    fn all_keys_are_in_some_part() {
        let mut needs = Needs::new();
        for range in [KeyRange::ALL, KeyRange::of(7..8), KeyRange::of(u64::MAX..)] {
            for key in [0, 7, 8, u64::MAX] {
                needs.note(&range, key, 1);
                assert_eq!(needs.of(&range, key, 2), 1);
            }
        }
    }
}
