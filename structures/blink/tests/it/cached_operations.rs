//! Operations with an index cache that is warm, stale or wrong.
use crate::common;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use common::Client;
use common::cache::{put, spec};
use fatbtree_blink::node::{Node, NodeSpec, mark_free, write_internal};
use fatbtree_blink::{
    CacheStats, Change, GlobalAddress, IndexCache, Integrity, Lookup, Partition, Start, TreeConfig,
    ValueLayout,
};
use proptest::prelude::*;

/// A memory server with an empty tree, and clients of it.
struct Lab {
    servers: common::Lab,
    config: TreeConfig,
    /// The partition as it was in the beginning.
    partition: Partition,
    /// Landing of index reads.
    landing: Rc<Cell<GlobalAddress>>,
    clients: u16,
}

impl Lab {
    fn new(config: TreeConfig) -> Self {
        let servers = common::Lab::new(config);
        let partition = servers.servers[0].partition;
        Self { servers, config, partition, landing: Rc::new(Cell::new(partition.root)), clients: 0 }
    }

    fn client(&mut self, cache: Option<&Arc<IndexCache>>) -> Client {
        self.clients += 1;
        let landing = Rc::clone(&self.landing);
        let client = self.servers.client_behind(self.clients, true, move |_, _| Some(landing.get()));
        client.set_roots(fatbtree_blink::SuperRoot::new(vec![self.root()]).unwrap()).unwrap();
        client.set_cache(cache.cloned());
        client
    }

    fn run<T>(&self, client: &Client, work: impl Future<Output = T>) -> T {
        self.servers.run(client, work)
    }

    fn root(&self) -> Partition {
        self.servers.servers[0].partition()
    }

    fn get(&self, client: &Client, key: u64, start: Start) -> Lookup {
        self.run(client, client.lookup(key, start))
    }

    /// Puts a value; says how many round trips it took.
    fn put(&self, client: &Client, key: u64, start: Start) -> u32 {
        let value = value_of(&self.config, key, 0);
        let change = self.run(client, client.mutate(key, Change::Upsert(&value), start));
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
}

fn inline() -> TreeConfig {
    TreeConfig::new(4, 64 * 3, ValueLayout::Inline(8)).unwrap()
}

fn value_of(config: &TreeConfig, key: u64, number: u64) -> Vec<u8> {
    let len = match config.values() {
        ValueLayout::Inline(len) => usize::from(len),
        ValueLayout::OutOfLine | ValueLayout::ByLength(_) => 20,
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
/// The paper counts 3 (its lock and read are two), and 2 with a lock that is handed over.
#[test]
fn an_update_takes_two_round_trips_and_a_lock_is_handed_over_four_times_in_a_row() {
    let mut lab = Lab::new(inline());
    lab.fill(300);
    let client = lab.client(Some(&Arc::new(IndexCache::new(1 << 20))));
    lab.get(&client, 500, Start::Cached);
    let value = value_of(&lab.config, 500, 1);
    let before = client.stats();
    let updates = (0..10).map(|_| client.mutate(500, Change::Update(&value), Start::Cached));
    let changes = lab.run(&client, futures_buffered::join_all(updates));
    assert!(changes.iter().all(|change| change.result == Ok(true) && change.trips.round_trips == 2));
    let after = client.stats();
    assert_eq!((after.remote.hand_overs - before.remote.hand_overs, after.remote.lock_retries), (8, 0));
}

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

/// A client learns its own splits: a single writer follows no sibling.
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
    // A client learns its own merges too.
    for key in (0..400u64).filter(|key| key % 8 != 0) {
        let change = lab.run(&client, client.mutate(key * 7_919 % 4_001, Change::Delete, Start::Cached));
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
fn a_stale_copy_is_removed() {
    let mut lab = Lab::new(inline());
    lab.fill(12);
    let root = lab.root();
    assert_eq!(root.root_level, 1);
    let client = lab.client(Some(&Arc::new(IndexCache::new(1 << 20))));
    lab.get(&client, 0, Start::Cached);
    assert_eq!(lab.get(&client, 0, Start::Cached).trips.round_trips, 1);
    let mut bytes = vec![0; lab.config.internal_bytes() as usize];
    lab.servers.servers[0].memory.read(root.root.offset(), &mut bytes).unwrap();
    let Node::Internal(node) = Node::read(&lab.config, &bytes).unwrap() else { panic!() };
    // The first leaf moves to another place.
    let mut children: Vec<_> = node.children().collect();
    let (old, header) = (children[0].1, *node.header());
    let new = GlobalAddress::new(0, common::REGION - 1024);
    children[0].1 = new;
    let spec = NodeSpec {
        address: root.root,
        level: 1,
        range: header.range(),
        sibling: header.sibling,
        version: header.version + 1,
    };
    write_internal(&mut bytes, &spec, &children, Integrity::LineVersions);
    lab.servers.servers[0].memory.write(root.root.offset(), &bytes).unwrap();
    let mut leaf = vec![0; lab.config.leaf_bytes() as usize];
    lab.servers.servers[0].memory.read(old.offset(), &mut leaf).unwrap();
    let mut freed: [u8; 64] = *leaf.first_chunk().unwrap();
    leaf[16..24].copy_from_slice(&new.raw().to_le_bytes());
    lab.servers.servers[0].memory.write(new.offset(), &leaf).unwrap();
    mark_free(&mut freed);
    lab.servers.servers[0].memory.write(old.offset(), &freed).unwrap();
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

/// A cache hit sends no index read; a miss does, and an index read that ends at a level-1 node fills the
/// cache.
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

/// A step: 0 to 4 look up, 5 to 7 put, 8 delete, 9 tell the cache something wrong.
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
                    lab.run(client, client.mutate(key, Change::Upsert(&value), start)).result.unwrap();
                    model.insert(key, value);
                }
                8 => {
                    let change = lab.run(client, client.mutate(key, Change::Delete, start));
                    prop_assert_eq!(change.result.unwrap(), model.remove(&key).is_some());
                }
                _ => {
                    let anywhere = GlobalAddress::new(0, draw / 64 % (64 << 10) / 64 * 64);
                    let leaf = caches[0].leaf_of(draw % 200).unwrap_or(anywhere);
                    let child = if draw % 3 == 0 { anywhere } else { leaf };
                    let level = 1 + (draw % 5 == 0) as u8;
                    caches[1].learn(1, key, child, 4);
                    // One that leads nowhere is no node.
                    if !child.is_null() {
                        put(&caches[who % 2], 1 + level, spec(level, key, key + draw % 100 + 1, draw as u32), &[(key, child)]);
                    }
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
