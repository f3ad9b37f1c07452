//! The index cache: its size, its eviction, its threads; and what operations make of one that is warm, stale or wrong.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use fatbtree_index::node::{InternalNode, LeafBuilder, Node, NodeSpec, mark_free, write_internal};
use fatbtree_index::{
    CacheStats, Event, GlobalAddress, IndexCache, Integrity, KeyRange, Lookup, Partition, Pool, PoolConfig,
    RemoteSide, Start, SuperRoot, Superblock, TreeConfig, ValueLayout, Wish, Writer,
};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::{Access, Device, Memory, Region, Remote};
use proptest::prelude::*;

const FAN_OUT: u16 = 16;

// ---- the map itself ----

fn partition(root_level: u8) -> Partition {
    Partition { id: 0, range: KeyRange::ALL, root: GlobalAddress::new(0, 64), root_level }
}

/// Puts a node with these children into a cache.
fn put(cache: &IndexCache, root_level: u8, spec: NodeSpec, children: &[(u64, GlobalAddress)]) {
    let config = TreeConfig::new(FAN_OUT, 256, ValueLayout::Inline(8)).unwrap();
    let mut bytes = vec![0; config.internal_bytes() as usize];
    write_internal(&mut bytes, &spec, children, Integrity::LineVersions);
    let Node::Internal(node) = Node::read(&config, &bytes).unwrap() else { panic!("level {}", spec.level) };
    let node: InternalNode<'_> = node;
    cache.put(&node, &partition(root_level));
}

fn spec(level: u8, low: u64, high: u64, version: u32) -> NodeSpec {
    let address = GlobalAddress::new(0, 64 * (1 + low));
    let range = KeyRange { low, high: Some(high) };
    NodeSpec { address, level, range, sibling: GlobalAddress::NULL, version }
}

/// Where the child that begins at a key is, in the tests of the map.
fn place(pivot: u64) -> GlobalAddress {
    GlobalAddress::new(0, 64 * (pivot + 1))
}

/// The level-1 node of the keys 160·n to 160·(n + 1) with children that begin 160 / `children` apart.
fn put_number(cache: &IndexCache, number: u64, children: u64, version: u32) {
    let low = number * 160;
    let children: Vec<_> = (0..children).map(|at| low + at * 160 / children).map(|p| (p, place(p))).collect();
    put(cache, 1, spec(1, low, low + 160, version), &children);
}

#[test]
fn a_copy_answers_for_its_range_and_no_further() {
    let cache = IndexCache::new(1 << 20);
    assert_eq!(cache.leaf_of(0), None);
    put_number(&cache, 1, 16, 1);
    let leaf = |key| cache.leaf_of(key);
    assert_eq!((leaf(159), leaf(160), leaf(169)), (None, Some(place(160)), Some(place(160))));
    assert_eq!((leaf(170), leaf(319), leaf(320)), (Some(place(170)), Some(place(310)), None));
    assert_eq!(cache.stats().entries, 1);
    assert_eq!(cache.stats().bytes, IndexCache::entry_bytes(16));
    // A newer version takes its place, with what it has.
    put_number(&cache, 1, 2, 2);
    assert_eq!((leaf(170), leaf(240)), (Some(place(160)), Some(place(240))));
    assert_eq!(cache.stats().bytes, IndexCache::entry_bytes(2));
    // The last node of the level has no end.
    let last = NodeSpec { range: KeyRange { low: 320, high: None }, ..spec(1, 320, 321, 1) };
    put(&cache, 9, last, &[(320, place(320))]);
    assert_eq!(leaf(u64::MAX), Some(place(320)));
}

#[test]
fn a_copy_learns_a_split_and_goes_when_it_has_too_many_children() {
    let cache = IndexCache::new(1 << 20);
    put_number(&cache, 0, 2, 1);
    cache.learn(1, 20, place(20), 4);
    assert_eq!((cache.leaf_of(19), cache.leaf_of(20)), (Some(place(0)), Some(place(20))));
    assert_eq!(cache.stats().bytes, IndexCache::entry_bytes(3));
    // The same once more is no news, and the node as it was read before is none either.
    cache.learn(1, 20, place(20), 4);
    put_number(&cache, 0, 2, 1);
    assert_eq!(cache.leaf_of(20), Some(place(20)));
    // Another child in the same place.
    cache.learn(1, 20, place(1000), 4);
    assert_eq!((cache.leaf_of(79), cache.leaf_of(80)), (Some(place(1000)), Some(place(80))));
    // Nobody has a copy that covers these.
    cache.learn(1, 160, place(160), 4);
    cache.learn(2, 20, place(20), 4);
    assert_eq!((cache.leaf_of(160), cache.stats().entries), (None, 1));
    cache.learn(1, 40, place(40), 4);
    cache.learn(1, 60, place(60), 4);
    assert_eq!(cache.stats(), CacheStats::default(), "five children where four fit");
}

#[test]
fn only_a_copy_that_still_leads_there_is_forgotten() {
    let cache = IndexCache::new(1 << 20);
    put_number(&cache, 0, 2, 1);
    cache.forget(1, 5, place(80));
    cache.forget(2, 5, place(0));
    assert_eq!(cache.leaf_of(5), Some(place(0)));
    cache.forget(1, 5, place(0));
    assert_eq!(cache.stats(), CacheStats::default());
}

/// Nodes that are used all the time stay, though far more pass by than there is room for.
#[test]
fn what_was_used_longer_ago_goes_first() {
    let cache = IndexCache::new(100 * IndexCache::entry_bytes(16));
    let (mut hits, mut asked) = (0, 0);
    for number in 10..5_000 {
        put_number(&cache, number, 16, 1);
        for hot in 0..10 {
            asked += 1;
            match cache.leaf_of(hot * 160) {
                Some(_) => hits += 1,
                None => put_number(&cache, hot, 16, 1),
            }
        }
    }
    assert_eq!((cache.stats().entries, cache.stats().bytes), (100, cache.limit()));
    assert!(cache.stats().evicted >= 4_900);
    // Chosen blindly, each would have to go once in a hundred fills.
    assert!(hits * 1_000 > asked * 998, "{hits} of {asked}");
}

/// The top two levels stay whatever passes by; when the tree grows, what is not top any more goes.
#[test]
fn the_top_two_levels_stay_until_the_tree_grows() {
    let room = 10 * IndexCache::entry_bytes(2);
    let cache = IndexCache::new(room);
    let two = |low: u64| [(low, place(low)), (low + 40, place(low + 40))];
    put(&cache, 3, spec(3, 0, 160, 1), &[(0, place(0)), (80, place(80))]);
    put(&cache, 3, spec(2, 0, 80, 1), &two(0));
    for number in 0..500 {
        put_number(&cache, number, 2, 1);
    }
    assert_eq!((cache.stats().entries, cache.stats().bytes), (10, room));
    assert_eq!(cache.below_top(45, 3), Some((place(40), 1)));
    assert_eq!(cache.below_top(100, 3), Some((place(80), 2)), "the root's child is not there");
    assert_eq!(cache.below_top(160, 3), None);
    // A level between is not kept.
    put(&cache, 9, spec(4, 0, 80, 1), &two(0));
    assert_eq!(cache.stats().entries, 10);
    // A new root: what was the top of the old tree is the second level, and what was the second goes.
    put(&cache, 4, spec(4, 0, 320, 1), &[(0, place(0)), (100, place(100))]);
    assert_eq!(
        (cache.below_top(45, 3), cache.below_top(200, 4)),
        (Some((place(0), 2)), Some((place(100), 3)))
    );
    assert_eq!(cache.below_top(90, 4), Some((place(80), 2)));
    // Somebody who has not heard of it brings the second level once more.
    put(&cache, 3, spec(2, 80, 160, 1), &two(80));
    assert_eq!(cache.below_top(125, 3), Some((place(80), 2)));
    // The root has gone, and its second child's level is the top again: what is above is of no use.
    let entries = cache.stats().entries;
    cache.root_moved(&partition(3));
    assert_eq!((cache.below_top(200, 4), cache.stats().entries), (None, entries - 1));
    put(&cache, 3, spec(2, 80, 160, 1), &two(80));
    assert_eq!(cache.below_top(125, 3), Some((place(120), 1)));
    // The limit holds for the top as well.
    for low in 1..100 {
        put(&cache, 4, spec(3, low * 160, low * 160 + 80, 1), &two(low * 160));
    }
    assert_eq!((cache.stats().entries, cache.stats().bytes), (10, room));
}

#[test]
fn the_limit_holds_whatever_is_done() {
    let one = IndexCache::entry_bytes(1);
    for limit in [0, 1, one - 1, one, 400, 1_000, 5_000] {
        let cache = IndexCache::new(limit);
        for step in 0..3_000u64 {
            let draw = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let number = draw % 40;
            match draw % 7 {
                0..4 => put_number(&cache, number, 1 + draw / 64 % 16, draw as u32),
                4 => cache.learn(1, draw % 6_400, place(draw % 6_400), 16),
                5 => put(
                    &cache,
                    3,
                    spec(2, number * 160, number * 160 + 160, draw as u32),
                    &[(number * 160, place(0))],
                ),
                _ => cache.forget(1, draw % 6_400, cache.leaf_of(draw % 6_400).unwrap_or_default()),
            }
            assert!(cache.stats().bytes <= limit, "{:?} of {limit}", cache.stats());
        }
        assert_eq!(cache.stats().entries > 0, limit >= one, "{:?} of {limit}", cache.stats());
        cache.clear();
        assert_eq!((cache.stats().entries, cache.stats().bytes), (0, 0));
    }
}

/// Threads read, fill, mend and forget at a time: whatever is found is what somebody has put there, and the count is right in the end.
#[test]
fn threads_share_a_cache() {
    let cache = IndexCache::new(16 * IndexCache::entry_bytes(16));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let fillers: Vec<_> = (0..3u64)
            .map(|thread| {
                let cache = &cache;
                scope.spawn(move || {
                    for step in 0..20_000u64 {
                        let draw = (step * 3 + thread).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                        let (number, key) = (draw % 64, draw / 64 % (64 * 160));
                        match draw % 8 {
                            0..4 => {
                                put_number(cache, number, [2, 4, 8, 16][draw as usize / 8 % 4], draw as u32)
                            }
                            4..6 => cache.learn(1, key / 10 * 10, place(key / 10 * 10), 16),
                            6 => cache.forget(1, key, cache.leaf_of(key).unwrap_or_default()),
                            _ => assert!(cache.stats().bytes <= cache.limit()),
                        }
                    }
                })
            })
            .collect();
        for thread in 0..2u64 {
            let (cache, done) = (&cache, &done);
            scope.spawn(move || {
                let (mut key, mut found) = (thread, 0u64);
                while !done.load(Ordering::Relaxed) || found == 0 {
                    key = (key + 7_919) % (64 * 160);
                    if let Some(leaf) = cache.leaf_of(key) {
                        let pivot = leaf.offset() / 64 - 1;
                        assert!(
                            pivot <= key && pivot % 10 == 0 && pivot / 160 == key / 160,
                            "{key}: {pivot}"
                        );
                        found += 1;
                    }
                }
            });
        }
        let ended: Vec<_> = fillers.into_iter().map(|filler| filler.join()).collect();
        done.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|end| end.unwrap());
    });
    let stats = cache.stats();
    assert!(stats.entries > 10 && stats.evicted > 1_000, "{stats:?}");
    cache.clear();
    assert_eq!((cache.stats().bytes, cache.stats().entries), (0, 0));
}

// ---- operations ----

const REGION: u64 = 4 << 20;
const CHUNK: u64 = 4 << 10;
const LOCKS: u32 = 16;

/// A memory server with an empty tree, and clients of it.
struct Lab {
    config: TreeConfig,
    network: PlainNetwork,
    server: PlainDevice,
    memory: Arc<Memory>,
    tree: Region,
    locks: Region,
    owners: Region,
    next_chunk: Rc<Cell<u64>>,
    partition: Partition,
    /// Where index reads land.
    landing: Rc<Cell<GlobalAddress>>,
    clients: u16,
}

type Client = Rc<Pool<PlainDevice>>;

impl Lab {
    fn new(config: TreeConfig) -> Self {
        let network = PlainNetwork::new();
        let mut server = network.device();
        let mut memory = Memory::anonymous(REGION).unwrap();
        let partition = partition(0);
        let superblock = Superblock { partition, config, generation: 1, region_bytes: REGION, version: 1 };
        memory.as_mut_slice()[..64].copy_from_slice(&superblock.to_bytes());
        let spec = NodeSpec {
            address: partition.root,
            level: 0,
            range: KeyRange::ALL,
            sibling: GlobalAddress::NULL,
            version: 1,
        };
        let leaf = &mut memory.as_mut_slice()[64..64 + config.leaf_bytes() as usize];
        LeafBuilder::new(leaf, config.leaf_shape(), spec).finish();
        let memory: Arc<Memory> = memory.into();
        let tree = server.register(&memory, 0, Access::ALL).unwrap();
        let table = Memory::shared(u64::from(LOCKS) * 2).unwrap();
        let locks = server.register(&table, 0, Access::ALL).unwrap();
        let alive = Memory::shared(8192).unwrap();
        (0..1024).for_each(|word| alive.write(word * 8, &[0xff; 8]).unwrap());
        let owners = server.register(&alive, 0, Access::READ).unwrap();
        let (next_chunk, landing) = (Rc::new(Cell::new(8192)), Rc::new(Cell::new(partition.root)));
        Self {
            config,
            network,
            server,
            memory,
            tree,
            locks,
            owners,
            next_chunk,
            partition,
            landing,
            clients: 0,
        }
    }

    fn client(&mut self, cache: Option<&Arc<IndexCache>>) -> Client {
        self.clients += 1;
        let config = PoolConfig { tree: self.config, ..PoolConfig::default() };
        let roots = SuperRoot::new(vec![self.root()]).unwrap();
        let mut device = self.network.device();
        let (landing, rkey) = (Rc::clone(&self.landing), self.tree.rkey);
        device.set_landing(move |_| Some(Remote { address: landing.get().raw(), rkey }));
        let pool = Pool::new(device, config, roots, u64::from(self.clients)).unwrap();
        let id = pool.connections()[0];
        let local = pool.open(id).unwrap();
        let queue_pair = self.server.create().unwrap();
        self.server.connect(queue_pair, &local).unwrap();
        let endpoint = self.server.endpoint(queue_pair).unwrap();
        pool.connected(id, RemoteSide { endpoint, rkey, registered: true }).unwrap();
        let locks = Remote { address: self.locks.iova, rkey: self.locks.rkey };
        let owners = Remote { address: self.owners.iova, rkey: self.owners.rkey };
        let writer = Writer { locks, owners, count: LOCKS, owner: self.clients, masked_atomics: true };
        pool.set_writer(0, writer).unwrap();
        pool.set_cache(cache.cloned());
        Rc::new(pool)
    }

    fn run<T>(&self, client: &Client, work: impl Future<Output = T>) -> T {
        let mut work = Box::pin(work);
        let mut context = Context::from_waker(Waker::noop());
        let mut now = client.reactor().now();
        loop {
            if let Poll::Ready(value) = work.as_mut().poll(&mut context) {
                return value;
            }
            while let Some(event) = client.poll_event() {
                let Event::MemoryWanted { server: 0, kind, .. } = event else { panic!("{event:?}") };
                let at = self.next_chunk.get();
                self.next_chunk.set(at + CHUNK);
                assert!(at + 2 * CHUNK <= REGION, "the region is full");
                client.supply(GlobalAddress::new(0, at), CHUNK, kind);
            }
            if !client.turn(now) {
                now = client.next_deadline().unwrap_or(now);
            }
        }
    }

    fn get(&self, client: &Client, key: u64, start: Start) -> Lookup {
        self.run(client, client.lookup(key, start))
    }

    /// Puts a value; says how many round trips it took.
    fn put(&self, client: &Client, key: u64, start: Start) -> u32 {
        let value = value_of(&self.config, key, 0);
        let change = self.run(client, client.change(key, Wish::Upsert(&value), start));
        assert!(change.result.unwrap());
        change.trips.round_trips
    }

    /// Puts keys 0, 10, 20 and so on by a client that goes.
    fn fill(&mut self, keys: u64) {
        let writer = self.client(None);
        for key in 0..keys {
            self.put(&writer, key * 10, Start::Root);
        }
    }

    fn root(&self) -> Partition {
        let mut line = [0; 64];
        self.memory.read(0, &mut line).unwrap();
        Superblock::parse(&line).unwrap().partition
    }
}

fn inline() -> TreeConfig {
    TreeConfig::new(4, 64 * 3, ValueLayout::Inline(8)).unwrap()
}

fn value_of(config: &TreeConfig, key: u64, number: u64) -> Vec<u8> {
    let len = match config.values() {
        ValueLayout::Inline(len) => usize::from(len),
        ValueLayout::OutOfLine => 20,
    };
    (key ^ number << 32).to_le_bytes().into_iter().cycle().take(len).collect()
}

fn found(lookup: &Lookup) -> Option<&[u8]> {
    lookup.result.as_ref().unwrap().as_deref()
}

#[test]
fn a_warm_cache_leaves_one_round_trip_and_one_for_the_record() {
    for (values, trips) in [(ValueLayout::Inline(8), 1), (ValueLayout::OutOfLine, 2)] {
        let mut lab = Lab::new(TreeConfig::new(4, 64 * 3, values).unwrap());
        lab.fill(300);
        let levels = u32::from(lab.root().root_level);
        assert!(levels >= 3);
        let cache = Arc::new(IndexCache::new(1 << 20));
        let client = lab.client(Some(&cache));
        for key in 0..300 {
            let lookup = lab.get(&client, key * 10, Start::Cached);
            assert_eq!(found(&lookup), Some(&value_of(&lab.config, key * 10, 0)[..]));
            assert!(lookup.trips.round_trips <= 2 * levels + trips, "{:?}", lookup.trips);
        }
        let stale = client.cache_stats().stale;
        for key in 0..300 {
            for start in [Start::Cached, Start::CachedOrIndexRead] {
                let lookup = lab.get(&client, key * 10, start);
                assert_eq!(found(&lookup), Some(&value_of(&lab.config, key * 10, 0)[..]));
                assert_eq!(lookup.trips.round_trips, trips);
            }
            // The leaf is locked as it is read, and unlocked as it is written; once in a while memory for a record comes between.
            let put = lab.put(&client, key * 10, Start::Cached);
            assert!(put == 2 || trips == 2 && put == 4, "{put}");
            assert_eq!(lab.get(&client, key * 10 + 1, Start::Cached).trips.round_trips, 1, "none is there");
        }
        let stats = client.cache_stats();
        assert_eq!((stats.stale, stats.hits >= 1_200, stats.evicted), (stale, true, 0));
        // Another thread's client finds it warm.
        let other = lab.client(Some(&cache));
        assert_eq!(lab.get(&other, 50, Start::Cached).trips.round_trips, trips);
        assert_eq!((other.cache_stats().hits, other.cache_stats().entries), (1, stats.entries));
        // Without a cache, or with one of no bytes, the same start begins at the root.
        let newest = lab.client(None);
        assert_eq!(lab.get(&newest, 50, Start::Cached).trips.round_trips, levels + trips);
        newest.set_cache(Some(Arc::new(IndexCache::new(0))));
        assert_eq!(lab.get(&newest, 50, Start::Cached).trips.round_trips, levels + trips);
        assert_eq!(newest.cache_stats(), CacheStats { misses: 2, ..CacheStats::default() });
    }
}

/// A cache too small for any level-1 node: the top two levels spare two round trips.
#[test]
fn the_top_two_levels_spare_their_round_trips() {
    let mut lab = Lab::new(inline());
    lab.fill(300);
    let root = lab.root();
    let levels = u32::from(root.root_level);
    let client = lab.client(Some(&Arc::new(IndexCache::new(2 * IndexCache::entry_bytes(4)))));
    assert_eq!(lab.get(&client, 0, Start::Cached).trips.round_trips, levels + 1);
    assert_eq!(lab.get(&client, 0, Start::Cached).trips.round_trips, levels - 1);
}

#[test]
fn a_split_by_another_client_costs_one_step_once() {
    let mut lab = Lab::new(inline());
    let writer = lab.client(None);
    for key in 0..20 {
        lab.put(&writer, key * 100, Start::Root);
    }
    let client = lab.client(Some(&Arc::new(IndexCache::new(1 << 20))));
    for key in 0..20 {
        lab.get(&client, key * 100, Start::Cached);
    }
    let before = client.cache_stats();
    for key in 0..12 {
        lab.put(&writer, 501 + key, Start::Root);
    }
    let first: Vec<_> = (0..12).map(|key| lab.get(&client, 501 + key, Start::Cached)).collect();
    assert!(first.iter().all(|lookup| found(lookup).is_some() && lookup.trips.restarts == 0));
    let steps: u32 = first.iter().map(|lookup| lookup.trips.siblings_followed).sum();
    assert!(steps > 0);
    let stale = client.cache_stats().stale - before.stale;
    assert!((1..=u64::from(steps)).contains(&stale), "{stale} of {steps}");
    // A copy that has become too large has gone, and is read once more.
    for key in 0..12 {
        lab.get(&client, 501 + key, Start::Cached);
    }
    for key in 0..12 {
        let lookup = lab.get(&client, 501 + key, Start::Cached);
        assert_eq!((lookup.trips.round_trips, lookup.trips.siblings_followed), (1, 0));
    }
}

/// Who splits knows it: a writer alone follows no sibling.
#[test]
fn a_client_learns_from_its_own_splits() {
    let mut lab = Lab::new(inline());
    let client = lab.client(Some(&Arc::new(IndexCache::new(1 << 20))));
    for key in 0..400u64 {
        lab.put(&client, key * 7_919 % 4_001, Start::Cached);
    }
    let before = client.cache_stats();
    let mut steps = 0;
    for key in 0..400u64 {
        let lookup = lab.get(&client, key * 7_919 % 4_001, Start::Cached);
        assert!(found(&lookup).is_some());
        steps += lookup.trips.siblings_followed;
    }
    let stats = client.cache_stats();
    assert_eq!((steps, stats.stale), (0, before.stale));
    assert!(stats.hits - before.hits > 360, "{stats:?}, before {before:?}");
    // Whoever merges knows it too.
    for key in (0..400u64).filter(|key| key % 8 != 0) {
        let change = lab.run(&client, client.change(key * 7_919 % 4_001, Wish::Delete, Start::Cached));
        assert_eq!(change.result, Ok(true));
    }
    assert!(client.stats().merges > 50);
    for key in 0..400u64 {
        let lookup = lab.get(&client, key * 7_919 % 4_001, Start::Cached);
        assert_eq!((found(&lookup).is_some(), lookup.trips.restarts), (key % 8 == 0, 0));
    }
    assert_eq!(client.cache_stats().stale, before.stale);
}

/// A leaf that has gone: the copy that leads there goes too, and the next lookup is right again at once.
#[test]
fn a_copy_that_leads_astray_goes() {
    let mut lab = Lab::new(inline());
    lab.fill(12);
    let root = lab.root();
    assert_eq!(root.root_level, 1);
    let client = lab.client(Some(&Arc::new(IndexCache::new(1 << 20))));
    lab.get(&client, 0, Start::Cached);
    assert_eq!(lab.get(&client, 0, Start::Cached).trips.round_trips, 1);
    let mut bytes = vec![0; lab.config.internal_bytes() as usize];
    lab.memory.read(root.root.offset(), &mut bytes).unwrap();
    let Node::Internal(node) = Node::read(&lab.config, &bytes).unwrap() else { panic!() };
    // The first leaf moves to another place.
    let mut children: Vec<_> = node.children().collect();
    let (old, header) = (children[0].1, *node.header());
    let new = GlobalAddress::new(0, REGION - 1024);
    children[0].1 = new;
    let spec = NodeSpec {
        address: root.root,
        level: 1,
        range: header.range(),
        sibling: header.sibling,
        version: header.version + 1,
    };
    write_internal(&mut bytes, &spec, &children, Integrity::LineVersions);
    lab.memory.write(root.root.offset(), &bytes).unwrap();
    let mut leaf = vec![0; lab.config.leaf_bytes() as usize];
    lab.memory.read(old.offset(), &mut leaf).unwrap();
    let mut freed: [u8; 64] = *leaf.first_chunk().unwrap();
    leaf[16..24].copy_from_slice(&new.raw().to_le_bytes());
    lab.memory.write(new.offset(), &leaf).unwrap();
    mark_free(&mut freed);
    lab.memory.write(old.offset(), &freed).unwrap();
    let lookup = lab.get(&client, 0, Start::Cached);
    assert!(found(&lookup).is_some());
    assert_eq!(
        (lookup.trips.round_trips, lookup.trips.restarts),
        (3, 1),
        "the freed leaf, the root, the leaf"
    );
    assert_eq!(client.cache_stats().stale, 1);
    assert_eq!(lab.get(&client, 0, Start::Cached).trips.round_trips, 1);
}

/// What the cache holds is not asked of the switches; what it does not hold is, and an index read that ends at a level-1 node fills it.
#[test]
fn the_cache_comes_before_the_switches_and_holds_what_they_do_not() {
    let mut lab = Lab::new(inline());
    lab.fill(12);
    let root = lab.root();
    let client = lab.client(Some(&Arc::new(IndexCache::new(1 << 20))));
    // The switches know the leaf: nothing is learnt.
    lab.landing.set(lab.partition.root);
    for _ in 0..2 {
        let lookup = lab.get(&client, 0, Start::CachedOrIndexRead);
        assert_eq!((lookup.trips.landed, lookup.trips.round_trips), (Some(0), 1));
    }
    assert_eq!((client.cache_stats().entries, client.cache_stats().misses), (0, 2));
    // They know its parent only.
    lab.landing.set(root.root);
    let lookup = lab.get(&client, 0, Start::CachedOrIndexRead);
    assert_eq!((lookup.trips.landed, lookup.trips.round_trips), (Some(1), 2));
    let asked = client.stats().index_reads;
    let lookup = lab.get(&client, 110, Start::CachedOrIndexRead);
    assert_eq!((lookup.trips.landed, lookup.trips.round_trips), (None, 1));
    assert_eq!((client.stats().index_reads, client.cache_stats().hits), (asked, 1));
    // Where the switches are not asked, a miss begins as high as the cache knows.
    client.set_registered(client.connections()[0], false).unwrap();
    client.set_cache(Some(Arc::new(IndexCache::new(1 << 20))));
    assert_eq!(lab.get(&client, 0, Start::CachedOrIndexRead).trips.round_trips, 2);
    assert_eq!(lab.get(&client, 0, Start::CachedOrIndexRead).trips.round_trips, 1);
    assert_eq!((client.stats().index_reads, client.stats().unregistered), (asked, 1));
}

fn start() -> impl Strategy<Value = Start> {
    prop_oneof![4 => Just(Start::Cached), 2 => Just(Start::CachedOrIndexRead), 1 => Just(Start::Root)]
}

/// What a step does: 0 to 4 look up, 5 to 7 put, 8 delete, 9 tell the cache something wrong.
type Doing = (usize, u8, u64, Start, u64);

fn doing() -> impl Strategy<Value = Doing> {
    (0..4usize, 0..10u8, 0..200u64, start(), any::<u64>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Clients that know the first root, with caches of any size, two of them with one cache, and one without change one tree in turn. Now and then a cache
    /// is told something wrong: a child that is elsewhere, a node that was another's, nothing.
    #[test]
    fn a_cache_is_never_a_wrong_answer(
        values in 0..2usize, limits in prop::array::uniform2(prop_oneof![Just(0), 100..3_000u64, Just(1 << 20)]),
        steps in prop::collection::vec(doing(), 1..500)
    ) {
        let layout = [ValueLayout::Inline(8), ValueLayout::OutOfLine][values];
        let mut lab = Lab::new(TreeConfig::new(4, 64 * 3, layout).unwrap());
        let caches = limits.map(|limit| Arc::new(IndexCache::new(limit)));
        let clients = [
            lab.client(Some(&caches[0])), lab.client(Some(&caches[0])), lab.client(Some(&caches[1])), lab.client(None)
        ];
        let mut model = BTreeMap::new();
        for (number, (who, what, key, start, draw)) in (1..).zip(steps) {
            let client = &clients[who];
            let value = value_of(&lab.config, key, number);
            match what {
                0..5 => {
                    let lookup = lab.get(client, key, start);
                    prop_assert_eq!(found(&lookup).map(<[u8]>::to_vec), model.get(&key).cloned());
                }
                5..8 => {
                    lab.run(client, client.change(key, Wish::Upsert(&value), start)).result.unwrap();
                    model.insert(key, value);
                }
                8 => {
                    let change = lab.run(client, client.change(key, Wish::Delete, start));
                    prop_assert_eq!(change.result.unwrap(), model.remove(&key).is_some());
                }
                _ => {
                    let anywhere = GlobalAddress::new(0, draw / 64 % (64 << 10) / 64 * 64);
                    let leaf = caches[0].leaf_of(draw % 200).unwrap_or(anywhere);
                    let child = if draw % 3 == 0 { anywhere } else { leaf };
                    let level = 1 + (draw % 5 == 0) as u8;
                    caches[1].learn(1, key, child, 4);
                    put(&caches[who % 2], 1 + level, spec(level, key, key + draw % 100 + 1, draw as u32), &[(key, child)]);
                }
            }
            for cache in &caches {
                prop_assert!(cache.stats().bytes <= cache.limit());
            }
        }
        for (key, value) in &model {
            for client in &clients {
                let lookup = lab.get(client, *key, Start::Cached);
                prop_assert_eq!(found(&lookup), Some(&value[..]));
            }
        }
    }
}
