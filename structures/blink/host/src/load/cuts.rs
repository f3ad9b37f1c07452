//! Borders between the nodes of a level.

use std::ops::RangeInclusive;

use fatbtree_blink::cut_keys;
use fatbtree_blink::node::LeafShape;

/// Greatest distance that a cut may move towards a shorter separator, as a part of a node's average content:
/// a sixth.
///
/// Both cuts of a node may move, so a node holds from two thirds to four thirds of the average (rounded up). Where nodes are made three
/// quarters full, as by default, the fullest are just full. How full nodes are on average does not change.
const REACH: usize = 6;

/// The cuts of one level: things (keys, or nodes of the level below) shared out to nodes.
pub(super) struct Cuts {
    things: usize,
    nodes: u64,
    /// Most things in a node.
    capacity: usize,
    reach: usize,
}

impl Cuts {
    /// `things` for `nodes`, each of which holds up to `capacity` of them. There are at least as many things as nodes, unless
    /// there is one node, and at most as many as all nodes hold.
    pub(super) fn new(things: usize, nodes: u64, capacity: usize) -> Self {
        Self { things, nodes, capacity, reach: (things as u64).div_ceil(nodes) as usize / REACH }
    }

    /// Permitted ends of node `index`, which begins at `from`, and its end if all held the same. `None` for
    /// the last node, which takes the rest.
    pub(super) fn end_of(&self, index: u64, from: usize) -> Option<(RangeInclusive<usize>, usize)> {
        let behind = (self.nodes - index - 1) as usize;
        if behind == 0 {
            return None;
        }
        // One thing at least is left for each node behind, and no more than they hold.
        let least = (from + 1).max(self.things.saturating_sub(behind.saturating_mul(self.capacity)));
        let most = (from + self.capacity).min(self.things - behind);
        let even = (self.things as u128 * u128::from(index + 1) / u128::from(self.nodes)) as usize;
        Some((least.max(even.saturating_sub(self.reach))..=most.min(even + self.reach), even))
    }
}

/// The ends of leaves of buckets, one after the other: the first key behind each, and the separator there.
///
/// How many keys have places in one leaf depends on the keys. So each leaf takes as many as it would in a plain leaf, or as have places.
pub(super) struct BucketCuts<'k> {
    keys: &'k [u64],
    shape: LeafShape,
    per_leaf: usize,
    from: usize,
}

impl<'k> BucketCuts<'k> {
    pub(super) fn new(keys: &'k [u64], shape: &LeafShape, per_leaf: u64) -> Self {
        Self { keys, shape: *shape, per_leaf: per_leaf as usize, from: 0 }
    }
}

impl Iterator for BucketCuts<'_> {
    type Item = (usize, u64);

    /// `None` where the rest is one leaf.
    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.keys[self.from..];
        let reach = self.per_leaf.div_ceil(REACH);
        let wanted = self.per_leaf + reach;
        let fitting = self.shape.fitting(rest.iter().copied().take(wanted));
        if fitting == rest.len() {
            return None;
        }
        let most = fitting.min(rest.len() - 1);
        // As far below the average as above it, and at least an eighth of the leaf, for a short separator.
        let least = (2 * self.per_leaf).saturating_sub(most).min(most - most / 8).max(1);
        let (to, separator) = cut_keys(rest, least..=most);
        self.from += to;
        Some((self.from, separator))
    }
}
