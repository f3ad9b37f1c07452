//! The table against a map, in a world without faults: every answer, the structure, and the round trips.

use std::collections::BTreeMap;
use std::rc::Rc;

use fatbtree_race::{Answer, Shape, Table, TableError, Value, Verified};
use fatbtree_remote_memory::{CommonError, Contention, Keys};
use fatbtree_sim::hash::lab::{begin, serve};
use fatbtree_sim::world::{MachineOptions, Options, SimDevice, World, random};
use fatbtree_verbs::time::Duration;
use proptest::prelude::*;

/// Small subtables, so that there are many.
pub(crate) const SMALL: Shape =
    Shape { groups: 2, directory_bits: 8, servers: 1, max_value: 4_000, keys: Keys::Numbers };

/// Runs something with a table, alone in its world.
pub(crate) fn with_table<T: 'static>(
    shape: Shape,
    spare: u64,
    work: impl AsyncFnOnce(Table<SimDevice>) -> T + 'static,
) -> T {
    let world = World::new(1, Options::default());
    let servers = serve(&world, shape, spare, Duration::from_secs(1));
    let machine = world.machine(MachineOptions::named("client"));
    let memory = begin(&machine, &servers, Contention::SMART, &mut random(1, 1));
    let task = machine.spawn(async move {
        let table = Table::open(memory, shape.server(0)).await.expect("the server lives");
        work(table).await
    });
    world.run_until(|| task.has_ended(), Duration::from_secs(10)).expect("nothing is in the way");
    task.take().expect("the machine lives")
}

pub(crate) fn value(key: u64, number: u64, length: usize) -> Vec<u8> {
    let seed = (key << 32 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    seed.to_le_bytes().iter().copied().cycle().take(length).collect()
}

fn got(answer: Answer<Option<Value>>) -> Option<Vec<u8>> {
    answer.result.expect("nothing is in the way").map(|value| value.to_vec())
}

pub(crate) fn done(answer: Answer<bool>) -> bool {
    answer.result.expect("nothing is in the way")
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Insert(u64, usize),
    Update(u64, usize),
    Upsert(u64, usize),
    Delete(u64),
    Search(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let key = 0..300_u64;
    let length = prop_oneof![4 => 0..100_usize, 1 => 100..4_000_usize];
    prop_oneof![
        4 => (key.clone(), length.clone()).prop_map(|(key, length)| Act::Insert(key, length)),
        2 => (key.clone(), length.clone()).prop_map(|(key, length)| Act::Update(key, length)),
        2 => (key.clone(), length).prop_map(|(key, length)| Act::Upsert(key, length)),
        2 => key.clone().prop_map(Act::Delete),
        2 => key.prop_map(Act::Search),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_table_is_a_map(acts in prop::collection::vec(act(), 1..800)) {
        let (found, expected) = with_table(SMALL, 4 << 20, async move |table| {
            let mut map = BTreeMap::new();
            for (number, act) in (0..).zip(acts) {
                match act {
                    Act::Insert(key, length) => {
                        let value = value(key, number, length);
                        let is_new = !map.contains_key(&key);
                        assert_eq!(done(table.insert(key, &value).await), is_new, "insert {key}");
                        map.entry(key).or_insert(value);
                    }
                    Act::Update(key, length) => {
                        let value = value(key, number, length);
                        let is_there = map.contains_key(&key);
                        assert_eq!(done(table.update(key, &value).await), is_there, "update {key}");
                        map.entry(key).and_modify(|old| *old = value);
                    }
                    Act::Upsert(key, length) => {
                        let value = value(key, number, length);
                        assert!(done(table.upsert(key, &value).await), "upsert {key}");
                        map.insert(key, value);
                    }
                    Act::Delete(key) => {
                        assert_eq!(done(table.delete(key).await), map.remove(&key).is_some(), "delete {key}");
                    }
                    Act::Search(key) => assert_eq!(got(table.search(key).await), map.get(&key).cloned(), "search {key}"),
                }
            }
            for key in 0..300 {
                assert_eq!(got(table.search(key).await), map.get(&key).cloned(), "search {key}");
            }
            (table.verify().await.expect("the structure is right"), map.len() as u64)
        });
        prop_assert_eq!((found.keys, found.unfinished, found.tentative, found.stale_entries), (expected, 0, 0, 0));
    }
}

/// Splits go on until the directory cannot grow; then the table says that it is full, and all that it took is there.
#[test]
fn a_table_grows_until_its_directory_is_full() {
    let shape = Shape { directory_bits: 5, ..SMALL };
    let (verified, keys) = with_table(shape, 8 << 20, async move |table| {
        let mut keys = 0;
        let error = loop {
            match table.insert(keys, &keys.to_le_bytes()).await.result {
                Ok(is_new) => assert!(is_new),
                Err(error) => break error,
            }
            keys += 1;
        };
        assert_eq!(error, TableError::Full { bits: 5 });
        for key in 0..keys {
            assert_eq!(got(table.search(key).await), Some(key.to_le_bytes().to_vec()), "{key}");
        }
        (table.verify().await.expect("the structure is right"), keys)
    });
    println!("{keys} keys: {verified:?}");
    let Verified { keys: found, subtables, former, depth, .. } = verified;
    assert_eq!((found, former, depth), (keys, subtables - 1, 5));
    let slots = subtables * shape.slots() as u64;
    assert!(keys * 2 > slots, "{keys} keys in {slots} slots");
}

/// What the paper counts: search 2, all else 3, where no other key has the same fingerprint.
#[test]
fn round_trips() {
    let shape = Shape { groups: 64, ..SMALL };
    with_table(shape, 4 << 20, async move |table| {
        let (most, value) = (400_u64, [7; 8]);
        let mut trips = [0; 6];
        for key in 0..most {
            // Slots are filled in part, and fingerprints of 8 bits meet: few operations have a trip more.
            let insert = table.insert(key, &value).await;
            let again = table.insert(key, &value).await;
            let search = table.search(key).await;
            let absent = table.search(key + most).await;
            let update = table.update(key, &value).await;
            assert!(
                update.result.is_ok_and(|applied| applied) && again.result.is_ok_and(|applied| !applied),
                "{key}"
            );
            let upsert = table.upsert(key, &value).await;
            let of = [
                insert.round_trips,
                search.round_trips,
                absent.round_trips,
                update.round_trips,
                upsert.round_trips,
            ];
            trips.iter_mut().zip(of).for_each(|(sum, trips)| *sum += trips);
        }
        for key in 0..most {
            trips[5] += table.delete(key).await.round_trips;
        }
        let expected = [3, 2, 1, 3, 3, 3];
        for (found, expected) in trips.into_iter().zip(expected) {
            let mean = f64::from(found) / most as f64;
            println!("{mean:.3} round trips, {expected} expected");
            assert!(
                (f64::from(expected)..f64::from(expected) + 0.06).contains(&mean),
                "{mean} for {expected}"
            );
        }
        assert_eq!(table.verify().await.expect("the structure is right").keys, 0);
        // Conflict avoidance counts attempts: two of an insertion, one of every other change.
        assert!(table.memory().attempts().wins() >= 5 * most);
    });
}

/// A value of any length up to the bound, also where a slot cannot tell it.
#[test]
fn long_values() {
    let shape = Shape { max_value: 40_000, ..SMALL };
    with_table(shape, 8 << 20, async move |table| {
        for length in [0, 1, 39, 40, 41, 1_000, 4_096, 16_232, 16_296, 16_297, 39_999, 40_000] {
            let value = value(1, length as u64, length);
            assert!(done(table.upsert(1, &value).await));
            let found = table.search(1).await;
            // A slot tells up to 16,320 bytes.
            assert!(length > 16_296 || found.round_trips == 2, "{length}: {} round trips", found.round_trips);
            assert_eq!(got(found), Some(value));
        }
        let long = table.upsert(1, &[0; 40_001]).await.result.unwrap_err();
        assert_eq!(long, TableError::Common(CommonError::TooLong { found: 40_001, most: 40_000 }));
    });
}

/// Subtables and blocks are spread over three servers.
#[test]
fn a_table_on_several_servers() {
    let shape = Shape { servers: 0b1_0101, ..SMALL };
    with_table(shape, 4 << 20, async move |table| {
        for key in 0..600 {
            assert!(done(table.insert(key, &value(key, 0, 30)).await));
        }
        for key in 0..600 {
            let expected = (key % 3 != 0).then(|| value(key, 0, 30));
            if expected.is_none() {
                assert!(done(table.delete(key).await));
            }
            assert_eq!(got(table.search(key).await), expected, "{key}");
        }
        let verified = table.verify().await.expect("the structure is right");
        assert_eq!((verified.keys, verified.servers, verified.unfinished), (400, 0b1_0101, 0));
    });
}

/// Several operations of one client at once.
#[test]
fn operations_of_one_client_overlap() {
    with_table(SMALL, 4 << 20, async move |table| {
        let table = Rc::new(table);
        let machine_tasks = (0..8_u64).map(|task| {
            let table = Rc::clone(&table);
            async move {
                for key in 0..100 {
                    assert!(done(table.insert(key * 8 + task, &key.to_le_bytes()).await));
                }
            }
        });
        join(machine_tasks.collect()).await;
        assert_eq!(table.verify().await.expect("the structure is right").keys, 800);
    });
}

/// Waits for all futures.
async fn join<F: Future<Output = ()>>(futures: Vec<F>) {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|context| {
        futures.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if futures.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
