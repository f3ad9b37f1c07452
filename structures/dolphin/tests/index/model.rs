//! The index against a sorted map, in a world without faults: every answer, the structure, and the round
//! trips.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use fatbtree_dolphin::{Answer, Check, Index, IndexError, NodeCache, Shape, Value, Verified};
use fatbtree_remote_memory::{CommonError, Contention, KeyRange, RemoteConfig};
use fatbtree_sim::dolphin::{begin, serve};
use fatbtree_sim::world::{Machine, MachineOptions, Options, SimDevice, World, random};
use fatbtree_verbs::time::Duration;
use proptest::prelude::*;

/// Values of eight bytes.
pub(crate) const FIXED: Shape = Shape { servers: 1, max_value: 8 };
/// Values of several lengths.
const LONG: Shape = Shape { servers: 1, max_value: 4_000 };

/// Runs something with an index, alone in its world.
pub(crate) fn with_index<T: 'static>(
    shape: Shape,
    cache: u64,
    work: impl AsyncFnOnce(Index<SimDevice>, Machine) -> T + 'static,
) -> T {
    let world = World::new(1, Options::default());
    let servers = serve(&world, shape, 64 << 20, Duration::from_secs(10));
    let machine = world.machine(MachineOptions::named("client"));
    let config = RemoteConfig { contention: Contention::SMART, ..RemoteConfig::default() };
    let memory = begin(&machine, &servers, config, &mut random(1, 1));
    let of = machine.clone();
    let task = machine.spawn(async move {
        let cache = Rc::new(NodeCache::new(cache));
        let index = Index::open(memory, shape.home(), cache).await.expect("the server lives");
        work(index, of).await
    });
    world.run_until(|| task.has_ended(), Duration::from_secs(100)).expect("nothing is in the way");
    task.take().expect("the machine lives")
}

fn value(key: u64, number: u64, length: usize) -> Vec<u8> {
    let seed = (key << 32 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    seed.to_le_bytes().iter().copied().cycle().take(length).collect()
}

fn got(answer: Answer<Option<Value>>) -> Option<Vec<u8>> {
    answer.result.expect("nothing is in the way").map(|value| value.to_vec())
}

pub(crate) fn done(answer: Answer<bool>) -> bool {
    answer.result.expect("nothing is in the way")
}

fn found(answer: Answer<Vec<(u64, Value)>>) -> Vec<(u64, Vec<u8>)> {
    let found = answer.result.expect("nothing is in the way");
    found.into_iter().map(|(key, value)| (key, value.to_vec())).collect()
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Insert(u64, usize),
    Update(u64, usize),
    Upsert(u64, usize),
    Delete(u64),
    Get(u64),
    Scan(u64, u64, usize),
    /// Insertions of a run of keys.
    Fill(u64, u64),
    /// Deletions of a run of keys.
    Clear(u64, u64),
}

/// Keys side by side, sparse ones, and the ends of the key space.
fn key() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..600_u64,
        2 => (0..200_u64).prop_map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        1 => (0..200_u64).prop_map(|at| u64::MAX - at),
        1 => (0..200_u64).prop_map(|at| (1 << 63) - 100 + at),
        1 => (0..100_u64).prop_map(|at| 0x0123_4567_89ab_cdef ^ (at << 40)),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let length = prop_oneof![2 => Just(8), 4 => 0..100_usize, 1 => 100..4_000_usize];
    prop_oneof![
        6 => (key(), length.clone()).prop_map(|(key, length)| Act::Insert(key, length)),
        2 => (key(), length.clone()).prop_map(|(key, length)| Act::Update(key, length)),
        2 => (key(), length).prop_map(|(key, length)| Act::Upsert(key, length)),
        4 => key().prop_map(Act::Delete),
        2 => key().prop_map(Act::Get),
        1 => (key(), 0..1_000_u64, 1..200_usize).prop_map(|(low, width, most)| Act::Scan(low, width, most)),
        1 => (key(), 1..80_u64).prop_map(|(low, count)| Act::Fill(low, count)),
        1 => (key(), 1..200_u64).prop_map(|(low, count)| Act::Clear(low, count)),
    ]
}

async fn play(index: Index<SimDevice>, acts: Vec<Act>, fixed: bool) -> (Verified, u64) {
    let mut map: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let value = |key, number, length| value(key, number, if fixed { 8 } else { length });
    for (number, act) in (0..).zip(acts) {
        match act {
            Act::Insert(key, length) => {
                let value = value(key, number, length);
                let is_new = !map.contains_key(&key);
                assert_eq!(done(index.insert(key, &value).await), is_new, "insert {key:#x}");
                map.entry(key).or_insert(value);
            }
            Act::Update(key, length) => {
                let value = value(key, number, length);
                let is_there = map.contains_key(&key);
                assert_eq!(done(index.update(key, &value).await), is_there, "update {key:#x}");
                map.entry(key).and_modify(|old| *old = value);
            }
            Act::Upsert(key, length) => {
                let value = value(key, number, length);
                assert!(done(index.upsert(key, &value).await), "upsert {key:#x}");
                map.insert(key, value);
            }
            Act::Delete(key) => {
                assert_eq!(done(index.delete(key).await), map.remove(&key).is_some(), "delete {key:#x}");
            }
            Act::Get(key) => {
                assert_eq!(got(index.get(key).await), map.get(&key).cloned(), "get {key:#x}");
            }
            Act::Scan(low, width, most) => {
                let range = low..=low.saturating_add(width << (number % 60));
                let expected: Vec<_> =
                    map.range(range.clone()).take(most).map(|(key, value)| (*key, value.clone())).collect();
                assert_eq!(found(index.scan(KeyRange::of(range.clone()), most).await), expected);
                let last = map.range(range.clone()).rev().take(most);
                let last: Vec<_> = last.map(|(key, value)| (*key, value.clone())).collect();
                assert_eq!(found(index.scan_backward(KeyRange::of(range), most).await), last);
            }
            Act::Fill(low, count) => {
                for key in low..low.saturating_add(count) {
                    let value = value(key, number, 8);
                    assert!(done(index.upsert(key, &value).await));
                    map.insert(key, value);
                }
            }
            Act::Clear(low, count) => {
                for key in low..low.saturating_add(count) {
                    assert_eq!(done(index.delete(key).await), map.remove(&key).is_some());
                }
            }
        }
    }
    let verified = index.verify().await.expect("the structure is right");
    let all: Vec<_> = map.iter().map(|(key, value)| (*key, value.clone())).collect();
    assert_eq!(found(index.scan(KeyRange::ALL, usize::MAX).await), all);
    let backward: Vec<_> = all.iter().rev().cloned().collect();
    assert_eq!(found(index.scan_backward(KeyRange::ALL, usize::MAX).await), backward);
    for (key, value) in &map {
        assert_eq!(got(index.get(*key).await).as_ref(), Some(value), "get {key:#x}");
    }
    (verified, map.len() as u64)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn an_index_is_a_sorted_map(
        acts in prop::collection::vec(act(), 1..600),
        fixed: bool,
        cache in prop_oneof![Just(0), Just(3_000), Just(1 << 20)],
    ) {
        let shape = if fixed { FIXED } else { LONG };
        let (found, expected) = with_index(shape, cache, async move |index, _| play(index, acts, fixed).await);
        prop_assert_eq!((found.keys, found.unfinished), (expected, 0));
    }
}

/// Cache warm: get 1, update 2, insert 3, delete 2.
#[test]
fn round_trips() {
    with_index(FIXED, 1 << 20, async |index, _| {
        for at in 0..1_000_u64 {
            // In an order in which leaves are left half full.
            let key = at * 7 % 1_000 * 2;
            assert!(done(index.insert(key, &key.to_le_bytes()).await));
        }
        let mut trips = [0; 5];
        let mut count = 0;
        for key in (0..2_000).step_by(50) {
            let get = index.get(key).await.round_trips;
            let update = index.update(key, &[1; 8]).await.round_trips;
            let insert = index.insert(key + 1, &[2; 8]).await.round_trips;
            let absent = index.get(key + 3).await.round_trips;
            let delete = index.delete(key + 1).await.round_trips;
            trips
                .iter_mut()
                .zip([get, absent, update, insert, delete])
                .for_each(|(sum, trips)| *sum += trips);
            count += 1;
        }
        let [get, absent, update, insert, delete] = trips;
        assert_eq!([get, absent, update, delete], [1, 1, 2, 2].map(|each| each * count));
        // A leaf may be full.
        assert!((3 * count..4 * count).contains(&insert), "{insert} for {count} insertions");
    });
}

/// A scan of a hundred keys takes two round trips or three.
#[test]
fn scans_read_several_leaves_at_once() {
    with_index(FIXED, 1 << 20, async |index, _| {
        for key in 0..3_000_u64 {
            let key = key.wrapping_mul(0x9e37_79b9) % 3_000;
            done(index.upsert(key, &[1; 8]).await);
        }
        let mut trips = 0;
        for low in (0..2_000).step_by(100) {
            let answer = index.scan(KeyRange::of(low..), 100).await;
            trips += answer.round_trips;
            assert_eq!(found(answer).len(), 100);
        }
        let mean = f64::from(trips) / 20.0;
        println!("{mean:.2} round trips for 100 keys");
        assert!(mean < 3.0, "{mean}");
    });
}

/// Inner nodes grow to their largest size and shrink again, and leaves merge, until almost nothing is left.
#[test]
fn nodes_grow_and_shrink() {
    let (full, empty) = with_index(FIXED, 1 << 20, async |index, _| {
        let key = |at: u64| 0x77 << 56 | (at % 256) << 48 | (at / 256) << 20;
        for at in 0..10_000 {
            assert!(done(index.insert(key(at), &at.to_le_bytes()).await));
        }
        let full = index.verify().await.expect("the structure is right");
        for at in 0..10_000 {
            assert!(done(index.delete(key(at)).await), "{at}");
        }
        (full, index.verify().await.expect("the structure is right"))
    });
    println!("{full:?}\n{empty:?}");
    assert_eq!((full.keys, empty.keys), (10_000, 0));
    assert!(full.sizes[4..].iter().sum::<u64>() > 1, "{full:?}");
    assert!(empty.leaves < 8 && empty.nodes < 4, "{empty:?}");
    assert_eq!(empty.sizes[1..6].iter().sum::<u64>(), 0, "{empty:?}");
}

/// Leaves and nodes are spread over three servers.
#[test]
fn an_index_on_several_servers() {
    let shape = Shape { servers: 0b1_0101, ..FIXED };
    with_index(shape, 1 << 20, async move |index, _| {
        for key in 0..3_000_u64 {
            assert!(done(index.insert(key, &key.to_le_bytes()).await));
        }
        for key in 0..3_000_u64 {
            let expected = (key % 3 != 0).then(|| key.to_le_bytes().to_vec());
            if expected.is_none() {
                assert!(done(index.delete(key).await));
            }
            assert_eq!(got(index.get(key).await), expected, "{key}");
        }
        let verified = index.verify().await.expect("the structure is right");
        assert_eq!((verified.keys, verified.servers, verified.unfinished), (2_000, 0b1_0101, 0));
    });
}

/// A value of any length up to the bound; and those that are refused.
#[test]
fn lengths_of_values() {
    with_index(Shape { max_value: 20_000, ..LONG }, 1 << 20, async move |index, _| {
        for length in [0, 1, 8, 9, 40, 1_000, 4_096, 16_232, 20_000] {
            let value = value(1, length as u64, length);
            assert!(done(index.upsert(1, &value).await));
            let answer = index.get(1).await;
            assert_eq!(answer.round_trips, if length == 8 { 1 } else { 2 }, "{length}");
            assert_eq!(got(answer), Some(value));
        }
        // Eight bytes that look like a pointer.
        let tagged = 0xda10_0000_0000_0001_u64.to_le_bytes();
        assert!(done(index.upsert(2, &tagged).await));
        assert_eq!(got(index.get(2).await), Some(tagged.to_vec()));
        let long = index.upsert(1, &[0; 20_001]).await.result.unwrap_err();
        assert_eq!(long, IndexError::Common(CommonError::TooLong { found: 20_001, most: 20_000 }));
    });
    with_index(FIXED, 0, async |index, _| {
        let short = index.upsert(1, &[0; 7]).await.result.unwrap_err();
        assert_eq!(short, IndexError::Length { found: 7, expected: "exactly 8" });
        let word = 0xda10_0000_0000_0000_u64;
        let reserved = index.upsert(1, &word.to_le_bytes()).await.result.unwrap_err();
        assert_eq!(reserved, IndexError::Reserved { word });
    });
}

/// Memory: insertions and deletions without end take no more than what is live, and a share.
#[test]
fn memory_is_used_again() {
    let chunks = |rounds: u64| {
        let world = World::new(1, Options::default());
        let servers = serve(&world, LONG, 16 << 20, Duration::from_secs(10));
        let machine = world.machine(MachineOptions::named("client"));
        let memory = begin(&machine, &servers, RemoteConfig::default(), &mut random(1, 1));
        let task = machine.spawn(async move {
            let index = Index::open(memory, 0, Rc::new(NodeCache::new(1 << 20))).await.expect("it lives");
            for round in 0..rounds {
                for key in 0..300 {
                    assert!(done(index.insert(key << 30, &value(key, round, 50)).await));
                }
                for key in 0..300 {
                    assert!(done(index.update(key << 30, &value(key, round, 60)).await));
                    assert!(done(index.delete(key << 30).await));
                }
            }
        });
        world.run_until(|| task.has_ended(), Duration::from_secs(100)).expect("nothing is in the way");
        task.take().expect("the machine lives");
        servers[0].count("chunks_published")
    };
    assert_eq!(chunks(30), chunks(4));
}

/// READs by which a client waits for a leaf that a frozen client has locked.
fn reads_of_a_locked_leaf() -> u64 {
    let world = World::new(1, Options::default());
    let servers = serve(&world, FIXED, 64 << 20, Duration::from_secs(10));
    let clients = ["one", "other"].map(|name| world.machine(MachineOptions::named(name)));
    let memories = clients
        .each_ref()
        .map(|machine| begin(machine, &servers, RemoteConfig::default(), &mut random(1, 1)));
    let [writer, reader] = memories.each_ref().map(|memory| {
        let memory = Rc::clone(memory);
        async move { Index::open(memory, 0, Rc::new(NodeCache::new(1 << 20))).await.expect("it lives") }
    });
    let next = Rc::new(Cell::new(0_u64));
    let written = Rc::clone(&next);
    drop(clients[0].spawn(async move {
        let index = writer.await;
        loop {
            done(index.insert(written.get(), &[1; 8]).await);
            written.set(written.get() + 1);
        }
    }));
    let opening = clients[1].spawn(async move { Rc::new(reader.await) });
    world.run_until(|| opening.has_ended(), Duration::from_secs(1)).expect("nothing is in the way");
    let index = opening.take().expect("the machine lives");
    for _ in 0..1_000 {
        world.run_for(Duration::from_micros(7));
        clients[0].freeze();
        let (updated, key) = (Rc::clone(&index), next.get().saturating_sub(1));
        let update = clients[1].spawn(async move { updated.update(key, &[2; 8]).await.round_trips });
        world.run_for(Duration::from_micros(400));
        if !update.has_ended() {
            // Each attempt asks the cache for the leaf, and reads it.
            let before = index.cache().stats().hits;
            world.run_for(Duration::from_micros(400));
            return index.cache().stats().hits - before;
        }
        clients[0].thaw();
    }
    panic!("no leaf was locked when its client was frozen");
}

/// Hole 10: as published, a client reads a locked leaf without end.
#[test]
fn a_locked_leaf_is_not_read_without_end() {
    let [pausing, spinning] = [reads_of_a_locked_leaf(), Check::Pauses.without(reads_of_a_locked_leaf)];
    println!("{pausing} READs in 400 µs, {spinning} without pauses");
    assert!(pausing * 10 < spinning, "{pausing} and {spinning}");
}
