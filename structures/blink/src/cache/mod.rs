//! The index cache of a client (Sherman §4.2.3): copies of inner nodes, so that most operations begin at the leaf.
//!
//! ```text
//!        skip list: (level, low fence) ─► children, high fence
//!
//!        ┌ level 1 ───────────────┐        ┌ the top two levels ────┐
//!  key ─►│ greatest low below key │ miss ─►│ greatest low below key │ miss ─► the root
//!        └──────────┬─────────────┘        └──────────┬─────────────┘
//!                   ▼ hit                             ▼ hit
//!           the leaf's address           a node two levels below the root
//! ```
//!
//! **Nothing is checked when it is used.** What a copy says leads to a node, and that is checked as every node is: it says its own
//! address, level and fences. Where the check fails the copy goes; where the node has been split since, its header names the new
//! sibling and where that begins, and the copy learns it. So a stale cache costs round trips, never a wrong answer.
//!
//! **Reading takes no lock and allocates nothing.** Filling does both, after a round trip: one thread at a time evicts and inserts,
//! which takes a few microseconds.
//!
//! **Eviction.** Of two level-1 nodes chosen at random, the less recently used one is evicted (power of two
//! choices). Time is counted in fills, so that a hit writes nothing that other threads write. The top two
//! levels stay. They count towards the limit, and where it is too small for them, the cache holds what fits.
//!
//! **Admission.** A remote client saves a round trip by each node that it knows, and takes in all that it reads. Next to the tree's memory a
//! read costs less than filling does: there one node [in several](IndexCache::one_in) that are read is
//! inserted, so that the cache holds the nodes that are read often.

mod node;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam_epoch::{self as epoch, Guard};
use crossbeam_skiplist::SkipList;
use crossbeam_skiplist::base::Entry;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use fatbtree_remote_memory::GlobalAddress;

use crate::node::InternalNode;
use crate::super_root::Partition;

use node::CachedNode;

/// Level and low fence.
type Place = (u8, u64);

type Found<'a, 'g> = Entry<'a, 'g, Place, CachedNode>;

/// Copies of a tree's inner nodes, for all threads of a client: share it by `Arc`, and give it to each thread's
/// [`Pool`](crate::Pool::set_cache).
///
/// The limit is in bytes of memory as they are [counted](Self::entry_bytes), and is never exceeded. What has been removed is freed
/// when no thread reads it any more, a moment later; that is not counted.
pub struct IndexCache {
    limit: u64,
    /// Sampling interval of admission: one node in this many offered nodes is inserted.
    one_in: u32,
    /// Nodes that have come, where not all are taken.
    offered: AtomicU32,
    nodes: SkipList<Place, CachedNode>,
    /// Fills so far.
    clock: AtomicU32,
    filling: Mutex<Filling>,
}

/// State that only inserting and evicting threads need.
struct Filling {
    bytes: u64,
    /// Bytes of these in nodes above level 1.
    top_bytes: u64,
    evicted: u64,
    /// Low fences of the level-1 nodes, in no order; each node knows its slot here.
    slots: Vec<u64>,
    /// Last reported level of each partition's root. A higher level is accepted from any source.
    root_levels: BTreeMap<u16, u8>,
    random: ChaCha8Rng,
}

/// Content of a cache, and counters of its use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Attempts of this pool's operations that began at a leaf because the cache knew it.
    pub hits: u64,
    /// Attempts of this pool's operations that found nothing in the cache.
    pub misses: u64,
    /// Starts that the cache has given this pool and that led to a wrong node, or to one that had been split.
    pub stale: u64,
    /// Nodes that had to go for others, from the whole cache.
    pub evicted: u64,
    /// Bytes that the whole cache occupies.
    pub bytes: u64,
    /// Nodes in the whole cache.
    pub entries: u64,
}

impl std::fmt::Debug for IndexCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IndexCache").field("limit", &self.limit).field("stats", &self.stats()).finish()
    }
}

impl IndexCache {
    /// An empty cache that never occupies more than `limit` bytes. 0 switches it off.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        let filling = Filling {
            bytes: 0,
            top_bytes: 0,
            evicted: 0,
            slots: Vec::new(),
            root_levels: BTreeMap::new(),
            random: ChaCha8Rng::seed_from_u64(limit),
        };
        let nodes = SkipList::new(epoch::default_collector().clone());
        let (clock, offered) = (AtomicU32::new(0), AtomicU32::new(0));
        Self { limit, one_in: 1, offered, nodes, clock, filling: Mutex::new(filling) }
    }

    /// The same for a cache that inserts one in `one_in` of the nodes that it is [offered](Self::put), at
    /// least 1.
    #[must_use]
    pub fn one_in(self, count: u32) -> Self {
        Self { one_in: count.max(1), ..self }
    }

    /// Bytes that a node with this many children counts. These are two allocations (the skip list's entry,
    /// the children), each with the allocator's own 8 bytes and rounded up to 16, and its slot in the
    /// eviction table. A node of 16 children counts 384.
    #[must_use]
    pub const fn entry_bytes(children: usize) -> u64 {
        node::entry_bytes(children)
    }

    /// Bytes that it may occupy.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Content of the cache. Counters of operations belong to pools: see
    /// [`Pool::cache_stats`](crate::Pool::cache_stats).
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let filling = self.fill();
        let (evicted, bytes, entries) = (filling.evicted, filling.bytes, self.nodes.len() as u64);
        CacheStats { evicted, bytes, entries, ..CacheStats::default() }
    }

    // ---- reading ----

    /// Last known address of the leaf for `key`.
    #[inline]
    #[must_use]
    pub fn leaf_of(&self, key: u64) -> Option<GlobalAddress> {
        let guard = &epoch::pin();
        let found = self.covering(1, key, guard)?;
        let child = found.value().child_of(key)?;
        found.value().touch(self.clock.load(Ordering::Relaxed));
        Some(child)
    }

    /// The lowest node for `key` that the top two levels of a tree with this root level lead to, and its level.
    #[must_use]
    pub fn below_top(&self, key: u64, root_level: u8) -> Option<(GlobalAddress, u8)> {
        let guard = &epoch::pin();
        let below = |level: u8| Some((self.covering(level, key, guard)?.value().child_of(key)?, level - 1));
        [root_level.saturating_sub(1), root_level].into_iter().filter(|level| *level > 1).find_map(below)
    }

    /// The last copy of a level that does not begin above `key`. It may end below.
    #[inline]
    fn covering<'a: 'g, 'g>(&'a self, level: u8, key: u64, guard: &'g Guard) -> Option<Found<'a, 'g>> {
        self.nodes.upper_bound(Bound::Included(&(level, key)), guard).filter(|found| found.key().0 == level)
    }

    // ---- filling ----

    /// Takes a copy of a node that was read and checked, if it is one that the cache keeps: of level 1, or of the top two levels.
    pub fn put(&self, node: &InternalNode<'_>, partition: &Partition) {
        let header = node.header();
        let (level, low) = (header.level, header.low);
        if level == 0 || (level > 1 && !is_top(level, partition.root_level)) || self.limit == 0 {
            return;
        }
        if self.one_in > 1 && !self.offered.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.one_in) {
            return;
        }
        let guard = &epoch::pin();
        if let Some(old) = self.nodes.get(&(level, low), guard)
            && old.value().version() == header.version
        {
            return old.value().touch(self.clock.load(Ordering::Relaxed));
        }
        let filling = &mut *self.fill();
        let now = self.clock.load(Ordering::Relaxed).wrapping_add(1);
        self.clock.store(now, Ordering::Relaxed);
        let root_level = filling.root_levels.entry(partition.id).or_default();
        if *root_level < partition.root_level {
            *root_level = partition.root_level;
            self.trim(filling, partition, guard);
        }
        if level == 1 || filling.root_levels.get(&partition.id).is_none_or(|root| is_top(level, *root)) {
            self.insert(filling, (level, low), CachedNode::new(node, now), guard);
        }
        // Removed nodes are freed soon.
        guard.flush();
    }

    /// Learns that a node at `level - 1` begins at `separator`, if there is a copy of its parent. A copy that would get more than
    /// `most` children goes: the node that it was made of has been split.
    pub fn learn(&self, level: u8, separator: u64, child: GlobalAddress, most: usize) {
        let guard = &epoch::pin();
        let Some(old) = self.covering(level, separator, guard) else { return };
        let copy = old.value();
        if copy.child_of(separator).is_none() || copy.has_child(separator, child) {
            return;
        }
        let filling = &mut *self.fill();
        if old.is_removed() {
            return;
        }
        let new = copy.with_child(separator, child, self.clock.load(Ordering::Relaxed));
        if new.children() <= most {
            self.insert(filling, *old.key(), new, guard);
        } else {
            self.remove(filling, &old, guard);
        }
        guard.flush();
    }

    /// Removes the copy at `level` that has led from `key` to `child`, if it still does; and those that would do so in its place: a
    /// copy can be older than the split of its node, and another lie over it.
    pub fn forget(&self, level: u8, key: u64, child: GlobalAddress) {
        let guard = &epoch::pin();
        let filling = &mut *self.fill();
        while let Some(old) = self.covering(level, key, guard)
            && old.value().child_of(key) == Some(child)
        {
            self.remove(filling, &old, guard);
        }
        guard.flush();
    }

    /// Hears from a superblock where a partition's tree begins: it may have grown, or shrunk.
    pub fn root_moved(&self, partition: &Partition) {
        let guard = &epoch::pin();
        let filling = &mut *self.fill();
        filling.root_levels.insert(partition.id, partition.root_level);
        self.trim(filling, partition, guard);
        guard.flush();
    }

    /// Removes everything, as when another tree lies there.
    pub fn clear(&self) {
        let guard = &epoch::pin();
        let filling = &mut *self.fill();
        while let Some(first) = self.nodes.front(guard) {
            self.remove(filling, &first, guard);
        }
        filling.root_levels.clear();
        guard.flush();
    }

    fn fill(&self) -> MutexGuard<'_, Filling> {
        // A panicked thread leaves a cache that is wrong at most about its size.
        self.filling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the copies between level 1 and the top two levels of a partition, and those above its root.
    fn trim(&self, filling: &mut Filling, partition: &Partition, guard: &Guard) {
        for entry in self.nodes.range((2, 0).., guard) {
            let (level, low) = *entry.key();
            let stays = is_top(level, partition.root_level) && level <= partition.root_level;
            if !stays && partition.range.contains(low) {
                self.remove(filling, &entry, guard);
            }
        }
    }

    /// Puts a copy in the place of whatever was there, if there is room for it.
    fn insert(&self, filling: &mut Filling, place: Place, node: CachedNode, guard: &Guard) {
        if let Some(old) = self.nodes.get(&place, guard) {
            self.remove(filling, &old, guard);
        }
        let bytes = node.bytes();
        if !self.make_room(filling, bytes, guard) {
            return;
        }
        filling.bytes += bytes;
        if place.0 == 1 {
            node.set_slot(filling.slots.len());
            filling.slots.push(place.1);
        } else {
            filling.top_bytes += bytes;
        }
        self.nodes.insert(place, node, guard).release(guard);
    }

    /// Removes a copy that is there.
    fn remove(&self, filling: &mut Filling, old: &Found<'_, '_>, guard: &Guard) {
        if !old.remove() {
            return;
        }
        let bytes = old.value().bytes();
        filling.bytes -= bytes;
        if old.key().0 != 1 {
            filling.top_bytes -= bytes;
            return;
        }
        let slot = old.value().slot();
        filling.slots.swap_remove(slot);
        if let Some(moved) = filling.slots.get(slot).and_then(|low| self.nodes.get(&(1, *low), guard)) {
            moved.value().set_slot(slot);
        }
    }

    /// Evicts level-1 nodes until there is room. Says whether there is: the top levels do not go.
    fn make_room(&self, filling: &mut Filling, bytes: u64, guard: &Guard) -> bool {
        if filling.top_bytes + bytes > self.limit {
            return false;
        }
        let now = self.clock.load(Ordering::Relaxed);
        while filling.bytes + bytes > self.limit {
            let two = filling.two_slots().map(|slot| self.nodes.get(&(1, filling.slots[slot]), guard));
            let older = two.into_iter().flatten().max_by_key(|node| node.value().age(now));
            let Some(older) = older else { return false };
            self.remove(filling, &older, guard);
            filling.evicted += 1;
        }
        true
    }
}

impl Filling {
    /// Two slots at random, not the same if there are two.
    fn two_slots(&mut self) -> [usize; 2] {
        let slots = self.slots.len().max(1);
        let first = self.random.random_range(0..slots);
        let step = if slots > 1 { self.random.random_range(1..slots) } else { 0 };
        [first, (first + step) % slots]
    }
}

/// Whether a level is one of the top two.
fn is_top(level: u8, root_level: u8) -> bool {
    u16::from(level) + 1 >= u16::from(root_level)
}
