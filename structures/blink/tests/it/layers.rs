//! Keys of bytes: against a sorted map of byte strings, and by many writers at once.
use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use common::byte_keys::{codes, configs, key, pieces};
use common::interleaved::Interleaved;
use common::{Client, Lab};
use fatbtree_blink::BytesRange;
use fatbtree_blink::layers::{Division, MAX_KEY_BYTES};
use fatbtree_blink::{
    Allocation, Change, EntryCache, OperationError, Order, ScanOptions, Start, TreeConfig, ValueLayout,
};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn value(number: u64) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take((number % 50) as usize).collect()
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Upsert,
    Insert,
    Update,
    Delete,
    Swap,
    Get,
    Scan,
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        4 => Just(Kind::Upsert), 3 => Just(Kind::Insert), 2 => Just(Kind::Update), 4 => Just(Kind::Delete), 2 => Just(Kind::Swap),
        2 => Just(Kind::Get), 1 => Just(Kind::Scan)
    ]
}

/// Changes a map. Says whether the change applies.
fn apply(model: &mut Model, key: &[u8], change: Change<'_>) -> bool {
    let found = model.get(key);
    let is_expected = change.expected().is_none_or(|expected| found.is_some_and(|found| found == expected));
    let applies = is_expected && change.applies(found.is_some());
    match change.value() {
        _ if !applies => {}
        Some(value) => drop(model.insert(key.to_vec(), value.to_vec())),
        None => drop(model.remove(key)),
    }
    applies
}

fn scan(lab: &Lab, client: &Client, range: BytesRange, options: ScanOptions) -> Vec<(Vec<u8>, Vec<u8>)> {
    lab.run(client, async {
        let mut scan = client.scan_bytes(range, options);
        let mut pairs = Vec::new();
        while let Some(pair) = scan.next().await {
            let (key, value) = pair.unwrap();
            pairs.push((key.to_vec(), value.to_vec()));
        }
        pairs
    })
}

fn check_scan(lab: &Lab, client: &Client, model: &Model, range: &BytesRange, order: Order) {
    let found = scan(lab, client, range.clone(), ScanOptions { order, ..ScanOptions::default() });
    let mut expected: Vec<_> = model
        .iter()
        .filter(|(key, _)| range.contains(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if order == Order::Backward {
        expected.reverse();
    }
    assert_eq!(found, expected, "{range:?} {order:?}");
}

fn check_tree(lab: &Lab, clients: &[&Client], model: &Model) {
    let found = lab.run(clients[0], clients[0].verify()).unwrap();
    let layers: i64 = clients
        .iter()
        .map(|client| client.stats())
        .map(|stats| stats.layers_created as i64 - stats.layers_removed as i64)
        .sum();
    assert_eq!((found.keys, found.unsettled, found.layers as i64), (model.len() as u64, 0, layers));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_writer_does_what_a_map_does(
        shape in 0..8usize, code in 0..3usize, masked: bool, remembers: bool, few in 1..40_usize, keys in prop::collection::vec(key(), 40),
        steps in prop::collection::vec((kind(), 0..40_usize, 0..40_usize), 1..400)
    ) {
        let config = configs()[shape].with_code(codes()[code]);
        let mut lab = Lab::with_many_locks(config);
        let client = lab.client(7, masked);
        client.set_entry_cache(remembers.then(|| Arc::new(EntryCache::new(1 << 12))));
        let start = if remembers { Start::Cached } else { Start::Root };
        let mut model = Model::new();
        for (number, (kind, at, other)) in (1u64..).zip(steps) {
            let (key, other, value) = (&keys[at % few], &keys[other % few], value(number));
            let former = model.get(key).cloned().unwrap_or_default();
            let change = match kind {
                Kind::Get => {
                    let found = lab.run(&client, client.lookup_bytes(key, start)).result.unwrap();
                    prop_assert_eq!(found.map(|value| value.to_vec()), model.get(key).cloned());
                    continue;
                }
                Kind::Scan => {
                    let order = if number % 2 == 0 { Order::Forward } else { Order::Backward };
                    let (low, high) = if key <= other { (key, other) } else { (other, key) };
                    let high = (number % 3 != 0).then(|| high.clone());
                    check_scan(&lab, &client, &model, &BytesRange { low: low.clone(), high }, order);
                    check_scan(&lab, &client, &model, &BytesRange::prefix(&key[..key.len() / 2]), order);
                    continue;
                }
                Kind::Upsert => Change::Upsert(&value),
                Kind::Insert => Change::Insert(&value),
                Kind::Update => Change::Update(&value),
                Kind::Delete => Change::Delete,
                Kind::Swap => Change::CompareAndSwap { expected: &former, value: &value },
            };
            let result = lab.run(&client, client.mutate_bytes(key, change, start)).result.unwrap();
            prop_assert_eq!(result, apply(&mut model, key, change), "{:?} {:?}", kind, key);
        }
        check_scan(&lab, &client, &model, &BytesRange::all(), Order::Forward);
        check_scan(&lab, &client, &model, &BytesRange::all(), Order::Backward);
        for key in &keys {
            let found = lab.run(&client, client.lookup_bytes(key, start)).result.unwrap();
            prop_assert_eq!(found.map(|value| value.to_vec()), model.get(key).cloned());
        }
        lab.assert_unlocked(&client);
        check_tree(&lab, &[&client], &model);
        // Without keys there are no layers.
        for key in model.keys() {
            prop_assert!(lab.run(&client, client.mutate_bytes(key, Change::Delete, start)).result.unwrap());
        }
        let stats = client.stats();
        prop_assert_eq!(stats.layers_created, stats.layers_removed);
    }

    /// Several clients, many operations of each at a time, in an order that the seed decides; each key has one writer.
    #[test]
    fn many_writers_lose_nothing(shape in 0..8usize, code in 0..3usize, round_robin: bool, seed: u64) {
        let config = configs()[shape].with_code(codes()[code]);
        let mut lab = Lab::with_partitions(config, if round_robin { &[0x6161_6161_6161_6161] } else { &[] });
        lab.allocation = if round_robin { Allocation::RoundRobin } else { Allocation::Partitioned };
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let clients: Vec<Client> = (1..=4).map(|owner| lab.client(owner, owner % 2 == 0)).collect();
        // Few keys that begin alike, so that layers come and go.
        let pieces = pieces();
        let mut piece = || pieces[random.random_range(0..pieces.len())].clone();
        let beginnings: Vec<Vec<u8>> = (0..8).map(|_| [&b"12345678"[..], &piece(), &piece()].concat()).collect();
        let keys: BTreeSet<Vec<u8>> =
            beginnings.iter().flat_map(|begin| [begin.clone(), [begin, &piece()[..]].concat(), [begin, &piece()[..]].concat()]).collect();
        let keys: Vec<_> = keys.into_iter().collect();
        let mut running = Interleaved::new();
        let (mut model, mut busy) = (Model::new(), BTreeSet::new());
        let mut begun = 0u64;
        while begun < 900 || running.len() > 0 {
            if begun < 900 && running.len() < 16 {
                let key = &keys[random.random_range(0..keys.len())];
                if busy.insert(key) {
                    begun += 1;
                    let new = random.random_bool(0.4).then(|| value(begun));
                    let client = &clients[random.random_range(0..clients.len())];
                    let (its, copy, own) = (Rc::clone(client), key.clone(), new.clone());
                    let change = async move {
                        let change = own.as_deref().map_or(Change::Delete, Change::Upsert);
                        its.mutate_bytes(&copy, change, Start::Root).await
                    };
                    // Without a new value it is a deletion.
                    running.begin(client, (key, new), change);
                }
            }
            if let Some(((key, new), done)) = running.step(&lab, &mut random) {
                let change = new.as_deref().map_or(Change::Delete, Change::Upsert);
                prop_assert_eq!(done.result.unwrap(), apply(&mut model, key, change));
                busy.remove(key);
            }
        }
        for order in [Order::Forward, Order::Backward] {
            check_scan(&lab, &clients[0], &model, &BytesRange::all(), order);
        }
        for client in &clients {
            lab.assert_unlocked(client);
        }
        check_tree(&lab, &clients.iter().collect::<Vec<_>>(), &model);
        let created: u64 = clients.iter().map(|client| client.stats().layers_created).sum();
        prop_assert!(created > 5, "{created} layers have come");
    }
}

/// The cache knows places by words, which several keys may share.
#[test]
fn what_is_remembered_is_the_key_that_was_asked_for() {
    for shape in [0, 2] {
        let mut lab = Lab::with_many_locks(configs()[shape]);
        let client = lab.client(7, true);
        client.set_entry_cache(Some(Arc::new(EntryCache::new(1 << 12))));
        let get = |key: &[u8]| {
            let found = lab.run(&client, client.lookup_bytes(key, Start::Cached));
            (found.result.unwrap().map(|value| value.to_vec()), found.trips.speculated)
        };
        let put = |key: &[u8], value: &[u8]| {
            lab.run(&client, client.mutate_bytes(key, Change::Upsert(value), Start::Cached)).result.unwrap()
        };
        let long = [b'v'; 100];
        for (key, value) in [(&b"12345678"[..], &b"short"[..]), (b"abcdefghij", &long), (b"q", &long)] {
            assert!(put(key, value));
            assert_eq!(get(key), (Some(value.to_vec()), true), "{shape}");
        }
        // Also what a lookup has found.
        client.set_entry_cache(Some(Arc::new(EntryCache::new(1 << 12))));
        for (key, value) in [(&b"12345678"[..], &b"short"[..]), (b"abcdefghij", &long), (b"q", &long)] {
            assert_eq!(get(key), (Some(value.to_vec()), false), "{shape}");
            assert_eq!(get(key), (Some(value.to_vec()), true), "{shape}");
        }
        // Others with their words.
        for key in [&b"123456789"[..], b"abcdefgh", b"abcdefghijk", b"q\0"] {
            assert_eq!(get(key), (None, false), "{shape}");
        }
        assert!(put(b"abcdefghijk", b"other") && put(b"123456789", b"other"));
        assert_eq!(get(b"abcdefghijk").0, Some(b"other".to_vec()));
        assert_eq!(get(b"abcdefghij").0, Some(long.to_vec()));
        assert_eq!(get(b"12345678").0, Some(b"short".to_vec()));
        assert_eq!(get(b"123456789").0, Some(b"other".to_vec()));
        assert!(client.entry_cache_stats().hits >= 3 && client.entry_cache_stats().stale >= 2);
    }
}

/// Each two keys end a byte sooner than those before, so that they lie at an end of the layer that these have.
#[test]
fn keys_that_are_less_by_a_byte_each_time_do_not_lie_deeper_each_time() {
    let config = configs()[0];
    let mut lab = Lab::with_many_locks(config);
    let client = lab.client(7, true);
    let keys: Vec<Vec<u8>> = (0..180)
        .rev()
        .flat_map(|at| [b'a', b'b'].map(|end| [&vec![b'm'; at][..], &[end]].concat()))
        .collect();
    let mut sorted = BTreeSet::new();
    for key in &keys {
        assert!(
            lab.run(&client, client.mutate_bytes(key, Change::Insert(b"x"), Start::Root)).result.unwrap()
        );
        sorted.insert(key.clone());
    }
    let layers = |key: &Vec<u8>| lab.run(&client, client.lookup_bytes(key, Start::Root)).trips.layers;
    let most = keys.iter().map(layers).max().unwrap();
    assert!(most <= 2 * 180 / 8 + 2, "{most} layers for 180 bytes");
    let sorted: Vec<_> = sorted.into_iter().collect();
    let division = Division::new(&config, sorted.len(), |at| &sorted[at]);
    assert!(division.layers() <= 2 * 180 / 8 + 2, "{} layers are loaded", division.layers());
}

#[test]
fn limits_and_trees_of_the_other_kind_are_told() {
    let mut lab = Lab::new(configs()[0]);
    let client = lab.client(7, true);
    let longest = vec![7; MAX_KEY_BYTES];
    let put =
        |key: &[u8]| lab.run(&client, client.mutate_bytes(key, Change::Upsert(b"v"), Start::Root)).result;
    assert_eq!(put(&longest), Ok(true));
    let mut other = longest.clone();
    other[MAX_KEY_BYTES - 1] = 8;
    assert_eq!(put(&other), Ok(true));
    let get = |key: &[u8]| {
        lab.run(&client, client.lookup_bytes(key, Start::Root)).result.map(|found| found.is_some())
    };
    assert_eq!((get(&longest), get(&other), get(&longest[1..])), (Ok(true), Ok(true), Ok(false)));
    let error = put(&[7; MAX_KEY_BYTES + 1]).unwrap_err();
    assert_eq!(error.to_string(), "a key of 4097 bytes was given, the longest has 4096");
    let mut numbers = Lab::new(TreeConfig::new(4, 192, ValueLayout::SHORT).unwrap());
    let client = numbers.client(7, true);
    let found = numbers.run(&client, client.lookup_bytes(b"a", Start::Root)).result.unwrap_err();
    assert!(matches!(found, OperationError::Keys { .. }), "{found}");
}
