//! A node as a cache holds it: its range and its children, nothing else.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use fatbtree_remote_memory::{GlobalAddress, KeyRange};

use super::Place;
use crate::node::InternalNode;

/// Low key and address of a child.
type Child = (u64, GlobalAddress);

/// The copy of an inner node.
pub(super) struct CachedNode {
    children: Box<[Child]>,
    /// End of the range; meaningless when `last` is set.
    high: u64,
    /// The version of the node that was copied.
    version: u32,
    /// Last use, by the cache's clock.
    used: AtomicU32,
    /// Slot of the node in the eviction table.
    slot: AtomicUsize,
    last: bool,
}

impl CachedNode {
    pub(super) fn new(node: &InternalNode<'_>, now: u32) -> Self {
        let header = node.header();
        Self::of(node.children().collect(), header.range(), header.version, now)
    }

    fn of(children: Box<[Child]>, range: KeyRange, version: u32, now: u32) -> Self {
        let (high, last) = (range.high.unwrap_or(u64::MAX), range.high.is_none());
        let (used, slot) = (AtomicU32::new(now), AtomicUsize::new(0));
        Self { children, high, version, used, slot, last }
    }

    /// The same with one more child, which takes over the keys from `pivot` to the next pivot.
    pub(super) fn with_child(&self, pivot: u64, child: GlobalAddress, now: u32) -> Self {
        let at = self.children.partition_point(|(other, _)| *other < pivot);
        let behind = at + usize::from(self.children.get(at).is_some_and(|(other, _)| *other == pivot));
        let (left, right) = (&self.children[..at], &self.children[behind..]);
        let children = left.iter().copied().chain([(pivot, child)]).chain(right.iter().copied());
        let high = if self.last { None } else { Some(self.high) };
        Self::of(children.collect(), KeyRange { low: 0, high }, self.version, now)
    }

    /// The child for a key that is not below the first pivot, unless the key lies right of the node.
    #[inline]
    pub(super) fn child_of(&self, key: u64) -> Option<GlobalAddress> {
        if key >= self.high && !self.last {
            return None;
        }
        let behind = self.children.partition_point(|(pivot, _)| *pivot <= key);
        let (_, child) = *self.children.get(behind.checked_sub(1)?)?;
        (!child.is_null()).then_some(child)
    }

    pub(super) fn has_child(&self, pivot: u64, child: GlobalAddress) -> bool {
        self.children.binary_search(&(pivot, child)).is_ok()
    }

    pub(super) fn children(&self) -> usize {
        self.children.len()
    }

    pub(super) fn version(&self) -> u32 {
        self.version
    }

    /// Notes a use. Writes only if that is news, so that threads that use one node do not take its line from each other.
    #[inline]
    pub(super) fn touch(&self, now: u32) {
        if self.used.load(Ordering::Relaxed) != now {
            self.used.store(now, Ordering::Relaxed);
        }
    }

    /// Time since the last use, in ticks of the cache's clock.
    pub(super) fn age(&self, now: u32) -> u32 {
        now.wrapping_sub(self.used.load(Ordering::Relaxed))
    }

    pub(super) fn slot(&self) -> usize {
        self.slot.load(Ordering::Relaxed)
    }

    pub(super) fn set_slot(&self, slot: usize) {
        self.slot.store(slot, Ordering::Relaxed);
    }

    /// Bytes that the node occupies in the map.
    pub(super) fn bytes(&self) -> u64 {
        entry_bytes(self.children.len())
    }
}

/// Bytes that a cached node with this many children occupies:
///
/// * the entry of the skip list: this copy (48 bytes), the key (16), the references and the height (8), and 2 pointers,
///   which is what towers have on average;
/// * 16 bytes a child, in an allocation of their own;
/// * for both allocations the allocator's header of 8 bytes, rounded up to 16, as glibc does;
/// * 16 bytes for its slot in the table from which is evicted: 8, and as many again where the table has just grown.
pub(super) const fn entry_bytes(children: usize) -> u64 {
    const ENTRY: usize = size_of::<CachedNode>() + size_of::<Place>() + 8 + 2 * 8;
    allocated(ENTRY) + allocated(children * size_of::<Child>()) + 2 * 8
}

const fn allocated(bytes: usize) -> u64 {
    (bytes as u64 + 8).next_multiple_of(16)
}
