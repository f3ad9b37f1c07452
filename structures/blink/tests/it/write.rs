//! Changes of trees: against a model, and by many writers at once over plain memory.
use crate::common;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use common::interleaved::Interleaved;
use common::{Client, Lab, configs, value_of};
use fatbtree_blink::{
    Allocation, Change, CommonError, OperationError, Pool, PoolConfig, RemoteSide, Start, TreeConfig,
};
use fatbtree_verbs::Device;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Get,
    Upsert,
    Insert,
    Update,
    Delete,
}

fn mutation(kind: Kind, value: &[u8]) -> Change<'_> {
    match kind {
        Kind::Upsert => Change::Upsert(value),
        Kind::Insert => Change::Insert(value),
        Kind::Update => Change::Update(value),
        Kind::Get | Kind::Delete => Change::Delete,
    }
}

/// Applies a change to a map.
fn apply(model: &mut BTreeMap<u64, Vec<u8>>, kind: Kind, key: u64, value: &[u8]) -> bool {
    let there = model.contains_key(&key);
    let applies = match kind {
        Kind::Upsert => true,
        Kind::Insert => !there,
        Kind::Update | Kind::Delete => there,
        Kind::Get => false,
    };
    match kind {
        _ if !applies => {}
        Kind::Delete => drop(model.remove(&key)),
        _ => drop(model.insert(key, value.to_vec())),
    }
    applies
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        2 => Just(Kind::Get), 4 => Just(Kind::Upsert), 3 => Just(Kind::Insert), 2 => Just(Kind::Update), 2 => Just(Kind::Delete)
    ]
}

fn key() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..300u64, 1 => any::<u64>(), 1 => Just(u64::MAX), 1 => u64::MAX - 50..=u64::MAX]
}

/// One server; or two, and the nodes of each partition lie on both.
fn lab(config: TreeConfig, round_robin: bool) -> Lab {
    let mut lab = Lab::with_partitions(config, if round_robin { &[60] } else { &[] });
    lab.allocation = if round_robin { Allocation::RoundRobin } else { Allocation::Partitioned };
    lab
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_writer_does_what_a_map_does(
        shape in 0..14usize, masked: bool, round_robin: bool, steps in prop::collection::vec((kind(), key()), 1..400)
    ) {
        let config = configs()[shape];
        let mut lab = lab(config, round_robin);
        let client = lab.client(7, masked);
        let mut model = BTreeMap::new();
        for (number, (kind, key)) in (1u64..).zip(steps) {
            let value = value_of(&config, number);
            if let Kind::Get = kind {
                let found = lab.run(&client, client.lookup(key, Start::Root)).result.unwrap();
                prop_assert_eq!(found.map(|value| value.to_vec()), model.get(&key).cloned());
                continue;
            }
            let change = lab.run(&client, client.mutate(key, mutation(kind, &value), Start::Root));
            prop_assert_eq!(change.result.unwrap(), apply(&mut model, kind, key, &value));
        }
        prop_assert_eq!(lab.contents(), model);
        lab.assert_unlocked(&client);
    }

    /// Several clients, many operations of each at a time, in an order that the seed decides; each key has one writer.
    #[test]
    fn many_writers_lose_nothing(shape in 0..14usize, round_robin: bool, seed: u64) {
        let config = configs()[shape];
        let mut lab = lab(config, round_robin);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let clients: Vec<Client> = (1..=4).map(|owner| lab.client(owner, owner % 2 == 0)).collect();
        let mut running = Interleaved::new();
        let (mut model, mut busy) = (BTreeMap::new(), std::collections::BTreeSet::new());
        let mut begun = 0u64;
        while begun < 600 || running.len() > 0 {
            if begun < 600 && running.len() < 24 {
                let key = random.random_range(0..120u64);
                if busy.insert(key) {
                    begun += 1;
                    let kinds = [Kind::Upsert, Kind::Insert, Kind::Update, Kind::Delete];
                    let kind = kinds[random.random_range(0..4usize)];
                    let value = value_of(&config, begun);
                    let client = &clients[random.random_range(0..clients.len())];
                    let (its, copy) = (Rc::clone(client), value.clone());
                    let change = async move { its.mutate(key, mutation(kind, &copy), Start::Root).await };
                    running.begin(client, (kind, value), change);
                }
            }
            if let Some(((kind, value), change)) = running.step(&lab, &mut random) {
                busy.remove(&change.key);
                prop_assert_eq!(change.result.unwrap(), apply(&mut model, kind, change.key, &value), "{:?}", kind);
            }
        }
        prop_assert_eq!(lab.contents(), model);
        lab.assert_unlocked(&clients[0]);
        prop_assert_eq!(lab.is_spread(), round_robin);
    }
}

/// Index reads of writers land on any node that there is or was: at worst it costs round trips.
#[test]
fn writers_find_their_leaf_wherever_the_switches_send_them() {
    for config in configs() {
        let mut lab = Lab::new(config);
        let landing = Rc::new(Cell::new(lab.servers[0].partition.root));
        let seen = Rc::clone(&landing);
        let client = lab.client_behind(3, true, move |_, _| Some(seen.get()));
        let mut model = BTreeMap::new();
        let mut nodes = vec![lab.servers[0].partition.root];
        for number in 1..600u64 {
            let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
            landing.set(nodes[number as usize % nodes.len()]);
            let (kind, value) =
                (if number % 7 == 0 { Kind::Delete } else { Kind::Upsert }, value_of(&config, number));
            let change = lab.run(&client, client.mutate(key, mutation(kind, &value), Start::IndexRead));
            assert_eq!(change.result.unwrap(), apply(&mut model, kind, key, &value));
            if number % 50 == 0 {
                nodes = lab.nodes();
            }
        }
        assert!(client.stats().index_reads > 500 && nodes.len() > 10);
        assert_eq!(lab.contents(), model);
    }
}

#[test]
fn an_update_takes_three_round_trips_where_the_leaf_is_a_child_of_the_root() {
    let config = configs()[0];
    let mut lab = Lab::new(config);
    let client = lab.client(1, true);
    let value = value_of(&config, 1);
    for key in 0..10 {
        lab.run(&client, client.mutate(key, Change::Insert(&value), Start::Root)).result.unwrap();
    }
    let change = lab.run(&client, client.mutate(5, Change::Update(&value), Start::Root));
    assert!(change.result.unwrap());
    assert_eq!(change.trips.round_trips, 3, "the root; lock and leaf; entry and unlock");
}

#[test]
fn who_was_given_no_locks_does_not_write() {
    let config = configs()[0];
    let mut lab = Lab::new(config);
    let pool = {
        let roots = lab.roots();
        let config = PoolConfig { tree: config, ..PoolConfig::default() };
        let pool = Pool::new(lab.network.device(), config, roots, 1).unwrap();
        let id = pool.connections()[0];
        let local = pool.open(id).unwrap();
        let server = &mut lab.servers[0];
        let queue_pair = server.device.create().unwrap();
        server.device.connect(queue_pair, &local).unwrap();
        let endpoint = server.device.endpoint(queue_pair).unwrap();
        pool.connected(id, RemoteSide { endpoint, rkey: server.tree.rkey, registered: false }).unwrap();
        Rc::new(pool)
    };
    let value = value_of(&config, 1);
    let change = lab.run(&pool, pool.mutate(5, Change::Upsert(&value), Start::Root));
    assert_eq!(change.result, Err(OperationError::Common { key: 5, error: CommonError::NotWriter(0) }));
    let change = lab.run(&pool, pool.mutate(5, Change::Upsert(&value[1..]), Start::Root));
    let text = change.result.unwrap_err().to_string();
    assert!(text.contains("a value of 7 bytes was given, this tree takes exactly 8"), "{text}");
}

#[test]
fn a_comparison_sets_only_what_it_expects() {
    for config in configs() {
        let mut lab = Lab::new(config);
        let (client, other) = (lab.client(1, true), lab.client(2, true));
        let [old, new, longer] = [8, 16, 31].map(|number| value_of(&config, number));
        let set = |key, expected: &[u8], value: &[u8]| {
            let mutation = Change::CompareAndSwap { expected, value };
            lab.run(&client, client.mutate(key, mutation, Start::Root)).result.unwrap()
        };
        let get = |key| {
            let found = lab.run(&other, other.lookup(key, Start::Root)).result.unwrap();
            found.map(|value| value.to_vec())
        };
        assert!(!set(5, &old, &new), "no such key");
        assert_eq!(get(5), None);
        for key in 0..40 {
            lab.run(&client, client.mutate(key, Change::Insert(&old), Start::Root)).result.unwrap();
        }
        assert!(!set(5, &new, &longer) && !set(5, &longer, &new) && !set(5, &[], &new));
        assert_eq!(get(5), Some(old.clone()));
        assert!(set(5, &old, &longer) && !set(5, &old, &new) && set(5, &longer, &new));
        assert_eq!((get(5), get(6)), (Some(new), Some(old)));
        lab.assert_unlocked(&client);
    }
}

/// Counters that clients raise by comparing: no raise is lost.
#[test]
fn of_comparisons_at_once_one_wins() {
    for config in configs() {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let mut lab = Lab::new(config);
        let clients: Vec<Client> = (1..=3).map(|owner| lab.client(owner, owner % 2 == 0)).collect();
        let bytes = move |count: u64| value_of(&config, 8 + count * 50);
        for key in 0..3 {
            let zero = bytes(0);
            lab.run(&clients[0], clients[0].mutate(key, Change::Insert(&zero), Start::Root)).result.unwrap();
        }
        let mut running = Interleaved::new();
        let raises = 90;
        for number in 0..raises {
            let (key, at) = (number % 3, &clients[number as usize / 3 % 3]);
            let client = Rc::clone(at);
            let raise = async move {
                loop {
                    let found = client.lookup(key, Start::Root).await.result.unwrap().unwrap().to_vec();
                    let count = (0..=raises).find(|count| bytes(*count) == found).unwrap();
                    let value = bytes(count + 1);
                    let mutation = Change::CompareAndSwap { expected: &found, value: &value };
                    if client.mutate(key, mutation, Start::Root).await.result.unwrap() {
                        return;
                    }
                }
            };
            running.begin(at, (), raise);
        }
        while running.len() > 0 {
            running.step(&lab, &mut random);
        }
        assert!(lab.contents().into_values().all(|value| value == bytes(raises / 3)));
    }
}

/// Each waiting operation ends with an error, the client and the tree go on, and what is deleted makes room again.
#[test]
fn where_there_is_no_memory_operations_say_so() {
    for config in configs() {
        let mut lab = Lab::new(config);
        let client = lab.client(7, true);
        let upsert = |key: u64| {
            let value = value_of(&config, key);
            let change = client.mutate(key * 5, Change::Upsert(&value), Start::Root);
            lab.run(&client, change).result
        };
        let full = (0..).find_map(|key| upsert(key).err().map(|error| (key, error)));
        let (full, error) = full.unwrap();
        assert!(matches!(error, OperationError::NoMemory { server: 0, .. }), "{error}");
        assert!(full > 1_000 && error.to_string().contains("memory server 0 gives no more memory"));
        assert!(upsert(full).is_err(), "it is asked for again, and refused again");
        let keys = lab.contents();
        assert!(keys.keys().copied().eq((0..full).map(|key| key * 5)));

        for key in 0..full / 2 {
            let change = client.mutate(key * 5, Change::Delete, Start::Root);
            assert_eq!(lab.run(&client, change).result, Ok(true));
        }
        (0..full / 4).for_each(|key| assert_eq!(upsert(key), Ok(true)));
        assert_eq!(lab.run(&client, client.verify()).unwrap().keys, full / 4 + full - full / 2);
    }
}
