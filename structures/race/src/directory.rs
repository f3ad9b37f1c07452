//! A client's copy of the directory: which subtable to ask for a hash.
//!
//! Neither this copy nor the directory in memory decides anything. A subtable that was split is never used again, is frozen, and names its
//! successors, so an old entry costs round trips and no more.

use crate::hash::Hash;
use crate::layout::{Leaf, Shape};
use crate::slot::Place;

/// Subtables by suffix, as far as the client knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Directory {
    /// Global depth: there are 2^depth entries.
    depth: u8,
    leaves: Vec<Leaf>,
}

impl Directory {
    /// A copy of 2^depth entries. `None` if there are not as many.
    pub(crate) fn new(depth: u8, leaves: Vec<Leaf>) -> Option<Self> {
        (leaves.len() == 1 << depth).then_some(Self { depth, leaves })
    }

    /// The subtable for a hash.
    pub(crate) fn leaf(&self, hash: Hash) -> Leaf {
        self.leaves[hash.suffix(self.depth) as usize]
    }

    /// Takes what another copy knows more. Entries that know as much or more stay.
    pub(crate) fn merge(&mut self, other: Self) {
        while self.depth < other.depth {
            self.leaves.extend_from_within(..);
            self.depth += 1;
        }
        for (number, leaf) in self.leaves.iter_mut().enumerate() {
            let found = other.leaves[number & ((1 << other.depth) - 1)];
            if found.depth > leaf.depth {
                *leaf = found;
            }
        }
    }

    /// Notes that a subtable, the one for `hash`, has these successors. Entries that know more stay.
    pub(crate) fn split(&mut self, hash: Hash, old: Leaf, pair: Place, shape: &Shape) {
        let Some(halves) = old.halves(pair, shape) else { return };
        while self.depth <= old.depth && self.depth < shape.directory_bits {
            self.leaves.extend_from_within(..);
            self.depth += 1;
        }
        let first = hash.suffix(old.depth) as usize;
        for (number, leaf) in self.leaves.iter_mut().enumerate().skip(first).step_by(1 << old.depth) {
            if leaf.depth <= old.depth {
                *leaf = halves[number >> old.depth & 1];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fatbtree_remote_memory::GlobalAddress;

    use super::*;

    fn place(unit: u64) -> Place {
        Place::of(GlobalAddress::new(0, unit * 64)).unwrap()
    }

    #[test]
    fn splits_are_followed_and_the_copy_grows() {
        let shape = Shape { groups: 1, directory_bits: 4, ..Shape::default() };
        let step = shape.subtable_bytes() / 64;
        let root = Leaf { place: place(1), depth: 0 };
        let mut directory = Directory::new(0, vec![root]).unwrap();
        assert!(Directory::new(1, vec![root]).is_none());
        let of_suffix = |bits: u8, suffix| {
            (0..).map(Hash::of).find(|hash| hash.suffix(bits) == suffix).expect("there are many keys")
        };
        directory.split(of_suffix(1, 0), root, place(100), &shape);
        let upper = directory.leaf(of_suffix(1, 1));
        assert_eq!(upper, Leaf { place: place(100 + step), depth: 1 });
        assert_eq!(directory.leaf(of_suffix(1, 0)), Leaf { place: place(100), depth: 1 });

        directory.split(of_suffix(1, 1), upper, place(200), &shape);
        assert_eq!(directory.leaf(of_suffix(2, 0b01)), Leaf { place: place(200), depth: 2 });
        assert_eq!(directory.leaf(of_suffix(2, 0b11)), Leaf { place: place(200 + step), depth: 2 });
        assert_eq!(directory.leaf(of_suffix(2, 0b10)), Leaf { place: place(100), depth: 1 });
        // One that knows less, and one that knows more.
        let known = directory.clone();
        directory.merge(Directory::new(0, vec![root]).unwrap());
        assert_eq!(directory, known);
        let mut other = Directory::new(0, vec![root]).unwrap();
        other.merge(known.clone());
        assert_eq!(other, known);
        // The same again, from a client that is behind.
        let known = directory.clone();
        directory.split(of_suffix(1, 0), root, place(100), &shape);
        assert_eq!(directory, known);
    }
}
