//! A client's copies of inner nodes: their entries and no more.
//!
//! ```text
//!   key ─► prefix of 7 bytes? 6? … 0?      table: hash of prefix ─► number
//!                  │ the deepest that is known
//!                  ▼
//!          prefix, entry of the node, last use, entries of its children by byte: 8 bytes each
//! ```
//!
//! **Nothing is checked when it is used.** What a copy says leads to a leaf, and that is checked: it
//! has its range, its state and its parent. A stale copy costs round trips, never a wrong answer.
//!
//! **Every byte counts.** The account has the table as it is allocated, the pages of nodes, and for
//! each node's entries what the allocator takes: 8 bytes more, rounded up to 16. Over the limit, of
//! two nodes chosen at random the less recently used one is evicted.

use std::cell::RefCell;
use std::mem::size_of;

use fatbtree_remote_memory::mix;
use hashbrown::HashTable;

use crate::entry::Entry;
use crate::inner::{Choice, Node, choose};
use crate::key::{DEPTHS, Prefix};

/// Nodes of a page.
const PAGE: usize = 64;

/// Copies of inner nodes, for all indexes of one thread: share it by `Rc`.
#[derive(Debug)]
pub struct NodeCache {
    limit: u64,
    state: RefCell<State>,
}

/// Content of a cache, and counters of its use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Operations that began at a leaf because the cache knew it.
    pub hits: u64,
    /// Operations that had to read a node.
    pub misses: u64,
    /// Copies that led to a wrong place.
    pub stale: u64,
    /// Nodes that had to go for others.
    pub evicted: u64,
    /// Nodes.
    pub nodes: u64,
    /// Entries of all nodes.
    pub entries: u64,
    /// Bytes of memory.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    table: HashTable<u32>,
    pages: Vec<Vec<Copy>>,
    free: Vec<u32>,
    /// Nodes of each depth, so that no depth without any is looked up.
    depths: [u32; DEPTHS as usize],
    entry_bytes: u64,
    clock: u32,
    draws: u64,
    stats: CacheStats,
}

#[derive(Debug)]
struct Copy {
    prefix: Prefix,
    node: Entry,
    used: u32,
    /// By byte. Empty: this place is free.
    entries: Box<[Entry]>,
}

/// What a cache knows for a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) prefix: Prefix,
    pub(crate) node: Entry,
    pub(crate) choice: Choice,
}

impl NodeCache {
    /// An empty cache that never occupies more than `limit` bytes. 0 switches it off.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self { limit, state: RefCell::default() }
    }

    /// Bytes that it may occupy.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Content and counters.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let state = self.state.borrow();
        CacheStats { nodes: state.table.len() as u64, bytes: state.bytes(), ..state.stats }
    }

    /// What the deepest known node says of a key.
    pub(crate) fn lookup(&self, key: u64) -> Option<Known> {
        let state = &mut *self.state.borrow_mut();
        let depths = (0..DEPTHS).rev().filter(|&depth| state.depths[usize::from(depth)] > 0);
        let found = depths.map(|depth| Prefix::of(key, depth)).find_map(|prefix| state.find(prefix));
        let known = found.map(|number| {
            let clock = state.clock;
            let copy = state.at(number);
            copy.used = clock;
            let choice = choose(copy.entries.iter().copied(), copy.prefix.byte_of(key));
            Known { prefix: copy.prefix, node: copy.node, choice }
        });
        let hit = matches!(known, Some(Known { choice: Choice::Leaf(_), .. }));
        state.stats.hits += u64::from(hit);
        state.stats.misses += u64::from(!hit);
        known
    }

    /// Leaves after the one for a key in the same node, as far as the node is known: the next ones.
    pub(crate) fn leaves_behind(&self, prefix: Prefix, key: u64, most: usize, found: &mut Vec<Entry>) {
        let state = &mut *self.state.borrow_mut();
        let Some(number) = state.find(prefix) else { return };
        let byte = prefix.byte_of(key);
        let entries = state.at(number).entries.iter().filter(|entry| entry.byte() > byte);
        found.extend(entries.take_while(|entry| !entry.is_inner()).take(most));
    }

    /// Takes up a node that was read, or is known. Says whether there is room for it.
    pub(crate) fn put(&self, node: &Node, entry: Entry) -> bool {
        let state = &mut *self.state.borrow_mut();
        state.remove(node.prefix);
        if node.entries.is_empty() {
            return false;
        }
        let bytes = entries_bytes(node.entries.len());
        if bytes + size_of::<Copy>() as u64 > self.limit {
            return false;
        }
        while state.bytes_with(bytes) > self.limit {
            if !state.evict() {
                return false;
            }
        }
        state.clock = state.clock.wrapping_add(1);
        let entries = node.entries.iter().map(|(_, entry)| *entry).collect();
        let copy = Copy { prefix: node.prefix, node: entry, used: state.clock, entries };
        state.insert(copy);
        true
    }

    /// Notes that a copy led to a wrong place, and drops it.
    pub(crate) fn forget(&self, prefix: Prefix) {
        let state = &mut *self.state.borrow_mut();
        state.stats.stale += 1;
        state.remove(prefix);
    }
}

/// Bytes of an allocation of so many entries.
const fn entries_bytes(count: usize) -> u64 {
    (8 * count as u64 + 8).next_multiple_of(16)
}

impl State {
    fn at(&mut self, number: u32) -> &mut Copy {
        &mut self.pages[number as usize / PAGE][number as usize % PAGE]
    }

    fn find(&self, prefix: Prefix) -> Option<u32> {
        let is = |number: &u32| self.pages[*number as usize / PAGE][*number as usize % PAGE].prefix == prefix;
        self.table.find(mix(prefix.word()), is).copied()
    }

    fn bytes(&self) -> u64 {
        let pages = self.pages.len() * (PAGE * size_of::<Copy>() + size_of::<Vec<Copy>>());
        self.table.allocation_size() as u64
            + pages as u64
            + (self.free.capacity() * size_of::<u32>()) as u64
            + self.entry_bytes
    }

    /// Bytes if one node more is inserted.
    fn bytes_with(&self, entries: u64) -> u64 {
        let page = if self.free.is_empty() { PAGE * size_of::<Copy>() + size_of::<Vec<Copy>>() } else { 0 };
        // A full table is doubled.
        let is_full = self.table.len() == self.table.capacity();
        let table = if is_full { self.table.allocation_size().max(64) + 64 } else { 0 };
        self.bytes() + entries + (page + table) as u64
    }

    fn insert(&mut self, copy: Copy) {
        let number = self.free.pop().unwrap_or_else(|| {
            let first = (self.pages.len() * PAGE) as u32;
            let nothing =
                || Copy { prefix: Prefix::ROOT, node: Entry::EMPTY, used: 0, entries: Box::default() };
            self.pages.push(std::iter::repeat_with(nothing).take(PAGE).collect());
            self.free.reserve_exact(PAGE);
            self.free.extend((first + 1..first + PAGE as u32).rev());
            first
        });
        self.entry_bytes += entries_bytes(copy.entries.len());
        self.stats.entries += copy.entries.len() as u64;
        self.depths[usize::from(copy.prefix.depth())] += 1;
        let hash = mix(copy.prefix.word());
        *self.at(number) = copy;
        let pages = &self.pages;
        let hash_of =
            |number: &u32| mix(pages[*number as usize / PAGE][*number as usize % PAGE].prefix.word());
        self.table.insert_unique(hash, number, hash_of);
    }

    fn remove(&mut self, prefix: Prefix) {
        let pages = &self.pages;
        let is = |number: &u32| pages[*number as usize / PAGE][*number as usize % PAGE].prefix == prefix;
        let Ok(entry) = self.table.find_entry(mix(prefix.word()), is) else { return };
        let (number, _) = entry.remove();
        let entries = std::mem::take(&mut self.at(number).entries);
        self.entry_bytes -= entries_bytes(entries.len());
        self.stats.entries -= entries.len() as u64;
        self.depths[usize::from(prefix.depth())] -= 1;
        self.free.push(number);
    }

    /// Removes the less recently used of two nodes. Says whether there was one.
    fn evict(&mut self) -> bool {
        if self.table.is_empty() {
            return false;
        }
        let places = (self.pages.len() * PAGE) as u64;
        let mut victim: Option<(u32, u32)> = None;
        let (mut seen, count) = (0, self.table.len());
        while seen < 2 {
            self.draws = self.draws.wrapping_add(1);
            let number = (mix(self.draws) % places) as u32;
            let clock = self.clock;
            let copy = self.at(number);
            if copy.entries.is_empty() || victim.is_some_and(|(other, _)| other == number && count > 1) {
                continue;
            }
            seen += 1;
            let age = clock.wrapping_sub(copy.used);
            if victim.is_none_or(|(_, oldest)| age > oldest) {
                victim = Some((number, age));
            }
        }
        let Some((number, _)) = victim else { return false };
        let prefix = self.at(number).prefix;
        self.remove(prefix);
        self.stats.evicted += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use fatbtree_remote_memory::GlobalAddress;

    use super::*;
    use crate::entry::NodeSize;
    use crate::inner::{NodeState, build};

    fn node(key: u64, depth: u8, children: u8) -> Node {
        let entry = |byte| Entry::leaf(byte, GlobalAddress::new(0, 64 * (1 + u64::from(byte)))).unwrap();
        let entries = (0..children).map(|number| entry(number * 10));
        let bytes = build(Prefix::of(key, depth), NodeSize::NEW, 8, NodeState::Live, entries);
        Node::parse(&bytes, GlobalAddress::new(0, 6400), NodeSize::NEW).unwrap()
    }

    fn own() -> Entry {
        Entry::inner(0, NodeSize::NEW, GlobalAddress::new(0, 6400)).unwrap()
    }

    #[test]
    fn the_deepest_node_answers() {
        let cache = NodeCache::new(1 << 20);
        let key = 0x0102_0304_0506_0708;
        assert!(cache.lookup(key).is_none());
        for depth in [1, 6] {
            cache.put(&node(key, depth, 3), own());
        }
        assert_eq!(cache.lookup(key).unwrap().prefix, Prefix::of(key, 6));
        assert_eq!(cache.lookup(0x01ff << 48).unwrap().prefix, Prefix::of(key, 1));
        cache.forget(Prefix::of(key, 6));
        assert_eq!(cache.lookup(key).unwrap().prefix, Prefix::of(key, 1));
        let CacheStats { hits, misses, stale, nodes, entries, .. } = cache.stats();
        assert_eq!((hits, misses, stale, nodes, entries), (3, 1, 1, 1, 3));
    }

    #[test]
    fn the_limit_is_kept_and_what_is_used_stays() {
        let cache = NodeCache::new(20_000);
        let hot = 0xff_u64 << 56;
        let mut lost = 0;
        cache.put(&node(hot, 7, 7), own());
        for number in 0..10_000_u64 {
            cache.put(&node(number << 8, 7, 7), own());
            assert!(cache.stats().bytes <= 20_000, "{:?}", cache.stats());
            if cache.lookup(hot).is_none() {
                lost += 1;
                cache.put(&node(hot, 7, 7), own());
            }
        }
        // It is evicted where the other one was just inserted.
        assert!(lost < 10, "{lost} times");
        let stats = cache.stats();
        assert!(stats.evicted > 9_000 && stats.nodes > 100, "{stats:?}");
        let none = NodeCache::new(0);
        none.put(&node(hot, 7, 7), own());
        assert!(none.lookup(hot).is_none());
    }
}
