//! Scans: against a map, while others split and merge, with few buffers, over partitions; and what they cost.
use crate::common;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use common::{Client, Lab, configs, value_of};
use fatbtree_blink::node::mark_free;
use fatbtree_blink::{
    Change, CommonError, GlobalAddress, KeyRange, OperationError, Order, ScanOptions, ScanTrips, Start,
    SuperRoot, TreeConfig, ValueLayout,
};
use fatbtree_verbs::PostError;
use fatbtree_verbs::time::{Duration, Instant};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

type Pairs = Vec<(u64, Vec<u8>)>;

fn wide(values: ValueLayout) -> TreeConfig {
    TreeConfig::new(16, 1024, values).unwrap()
}

fn put(lab: &Lab, client: &Client, key: u64, value: &[u8]) {
    lab.run(client, client.mutate(key, Change::Upsert(value), Start::Root)).result.unwrap();
}

fn delete(lab: &Lab, client: &Client, key: u64) {
    lab.run(client, client.mutate(key, Change::Delete, Start::Root)).result.unwrap();
}

async fn collect(
    client: &Client,
    range: KeyRange,
    options: ScanOptions,
) -> (Result<Pairs, OperationError>, ScanTrips) {
    let mut scan = client.scan(range, options);
    let mut pairs = Vec::new();
    while let Some(pair) = scan.next().await {
        match pair {
            Ok((key, value)) => pairs.push((key, value.to_vec())),
            Err(error) => return (Err(error), scan.trips()),
        }
    }
    (Ok(pairs), scan.trips())
}

fn scan(lab: &Lab, client: &Client, range: KeyRange, options: ScanOptions) -> (Pairs, ScanTrips) {
    let (pairs, trips) = lab.run(client, collect(client, range, options));
    (pairs.unwrap(), trips)
}

fn expected(model: &BTreeMap<u64, Vec<u8>>, range: KeyRange, order: Order) -> Pairs {
    let mut pairs: Pairs = model
        .iter()
        .filter(|(key, _)| range.contains(**key))
        .map(|(key, value)| (*key, value.clone()))
        .collect();
    if order == Order::Backward {
        pairs.reverse();
    }
    pairs
}

/// Places to which the switches send index reads: leaves and their lowest keys, perhaps as they were long
/// ago.
type Switches = Rc<RefCell<Vec<(u64, GlobalAddress)>>>;

fn client_behind(lab: &mut Lab, owner: u16, switches: &Switches) -> Client {
    let seen = Rc::clone(switches);
    lab.client_behind(owner, true, move |key, _| leaf_of(&seen.borrow(), key))
}

fn leaf_of(leaves: &[(u64, GlobalAddress)], key: u64) -> Option<GlobalAddress> {
    let behind = leaves.partition_point(|(low, _)| *low <= key);
    leaves.get(behind.checked_sub(1)?).map(|(_, leaf)| *leaf)
}

const ORDERS: [Order; 2] = [Order::Forward, Order::Backward];

/// Pairs that a scan is told to be wanted.
fn wanted() -> impl Strategy<Value = usize> {
    prop_oneof![Just(usize::MAX), 0..200usize]
}

fn key() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..300u64, 1 => any::<u64>(), 1 => Just(u64::MAX), 1 => u64::MAX - 50..=u64::MAX]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_scan_gives_what_a_map_has(
        shape in 0..8usize,
        partitions in 0..3usize,
        seen: bool,
        keys in prop::collection::vec(key(), 0..400),
        deleted in prop::collection::vec(0..300u64, 0..200),
        ranges in prop::collection::vec((key(), key(), 1..20usize, wanted()), 1..12),
    ) {
        let config = match shape {
            6 => wide(ValueLayout::Inline(8)),
            7 => wide(ValueLayout::OutOfLine),
            shape => configs()[shape],
        };
        let cuts: &[u64] = [&[][..], &[100, u64::MAX - 20], &[1, 150, 151]][partitions];
        let mut lab = Lab::with_partitions(config, cuts);
        let switches = Switches::default();
        *switches.borrow_mut() = lab.leaves();
        let writer = client_behind(&mut lab, 1, &switches);
        // It has not seen how the trees grew.
        let reader = client_behind(&mut lab, 2, &switches);
        let mut model = BTreeMap::new();
        for (number, key) in (1..).zip(keys) {
            let value = value_of(&config, number);
            put(&lab, &writer, key, &value);
            model.insert(key, value);
        }
        if seen {
            *switches.borrow_mut() = lab.leaves();
        }
        for key in deleted {
            delete(&lab, &writer, key);
            model.remove(&key);
        }
        prop_assert_eq!(lab.contents(), model.clone());
        let all = ranges.into_iter().map(|(low, high, window, wanted)| (KeyRange::of(low..high), window, wanted));
        for (range, window, wanted) in all.chain([(KeyRange::ALL, 16, usize::MAX), (KeyRange::ALL, 16, 1 << 10)]) {
            for (order, start) in ORDERS.into_iter().flat_map(|order| [(order, Start::Root), (order, Start::IndexRead)]) {
                let options = ScanOptions { order, start, window, wanted };
                let client = if window % 2 == 0 { &writer } else { &reader };
                let (found, _) = scan(&lab, client, range, options);
                prop_assert_eq!(&found, &expected(&model, range, order), "{} {:?}", range, options);
            }
            let count = lab.run(&reader, reader.len(range)).unwrap();
            prop_assert_eq!(count as usize, expected(&model, range, Order::Forward).len());
        }
    }

    /// Even keys stay, odd ones come and go, those divisible by 10 were never there. Between any two steps of the scan others split
    /// and merge nodes.
    #[test]
    fn a_scan_returns_every_key_that_was_present_throughout(shape in 0..6usize, seed: u64, backward: bool, index_read: bool) {
        let config = configs()[shape];
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut lab = Lab::new(config);
        let switches = Switches::default();
        let clients = [lab.client(1, true), lab.client(2, false), client_behind(&mut lab, 3, &switches)];
        let span = 160;
        let value = |key: u64| value_of(&config, key);
        let mut stays = BTreeMap::new();
        for key in (0..span).filter(|key| key % 10 != 0) {
            if key % 2 == 0 {
                put(&lab, &clients[0], key, &value(key));
                stays.insert(key, value(key));
            } else if random.random_bool(0.5) {
                put(&lab, &clients[0], key, &value(key));
            }
        }
        *switches.borrow_mut() = lab.leaves();
        let order = ORDERS[usize::from(backward)];
        let start = if index_read { Start::IndexRead } else { Start::Root };
        let mut now = Instant::ZERO;
        for _ in 0..3 {
            let (low, high) = (random.random_range(0..span), random.random_range(0..=span));
            let range = KeyRange::of(low.min(high)..high.max(low));
            let wanted = if random.random_bool(0.5) { random.random_range(0..100) } else { usize::MAX };
            let options = ScanOptions { order, start, window: random.random_range(1..=8), wanted };
            let (found, _) =
                beside_writers(&lab, &clients, &mut random, &mut now, span, &value, collect(&clients[2], range, options));
            let found = found.unwrap();
            let mut keys: Vec<u64> = found.iter().map(|(key, _)| *key).collect();
            if backward {
                keys.reverse();
            }
            prop_assert!(keys.is_sorted_by(|left, right| left < right), "once each, in order: {:?}", keys);
            prop_assert!(keys.iter().all(|key| range.contains(*key) && key % 10 != 0), "{:?}", keys);
            prop_assert!(found.iter().all(|(key, found)| *found == value(*key)));
            let missed: Vec<u64> = expected(&stays, range, Order::Forward)
                .into_iter().map(|(key, _)| key).filter(|key| !keys.contains(key)).collect();
            prop_assert!(missed.is_empty(), "missed {:?} of {}", missed, range);
        }
        let stats = clients.iter().map(|client| client.stats());
        MOVED.with(|moved| stats.for_each(|stats| {
            moved.0.set(moved.0.get() + stats.splits);
            moved.1.set(moved.1.get() + stats.merges);
        }));
    }
}

thread_local!(static MOVED: (Cell<u64>, Cell<u64>) = const { (Cell::new(0), Cell::new(0)) });

/// Polls `work` of the last client and changes of odd keys by the others, in an order that the seed decides.
fn beside_writers<T>(
    lab: &Lab,
    clients: &[Client],
    random: &mut ChaCha8Rng,
    now: &mut Instant,
    span: u64,
    value: &impl Fn(u64) -> Vec<u8>,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    let mut context = Context::from_waker(Waker::noop());
    type Running = Pin<Box<dyn Future<Output = ()>>>;
    let mut running: Vec<(usize, u64, Running)> = Vec::new();
    let mut answer = None;
    while answer.is_none() || !running.is_empty() {
        if answer.is_none() && running.len() < 8 {
            let key = random.random_range(0..span / 2) * 2 + 1;
            if running.iter().all(|(_, other, _)| *other != key) {
                let at = random.random_range(0..clients.len() - 1);
                let client = Rc::clone(&clients[at]);
                let bytes = value(key);
                // In runs, so that leaves fill and become empty.
                let delete = key / 32 % 2 == u64::from(random.random_bool(0.2));
                running.push((
                    at,
                    key,
                    Box::pin(async move {
                        let mutation = if delete { Change::Delete } else { Change::Upsert(&bytes) };
                        client.mutate(key, mutation, Start::Root).await.result.unwrap();
                    }),
                ));
            }
        }
        for _ in 0..random.random_range(0..12) {
            if running.is_empty() {
                break;
            }
            let at = random.random_range(0..running.len());
            let client = &clients[running[at].0];
            if running[at].2.as_mut().poll(&mut context).is_ready() {
                drop(running.swap_remove(at));
            }
            lab.serve(client);
            *now += Duration::from_nanos(300);
            client.turn(*now);
        }
        if answer.is_none() && random.random_bool(0.5) {
            if let Poll::Ready(found) = work.as_mut().poll(&mut context) {
                answer = Some(found);
            }
            *now += Duration::from_nanos(300);
            clients[clients.len() - 1].turn(*now);
        }
    }
    answer.unwrap()
}

/// The published code counts leaves when a scan begins, and misses what a split moves behind them.
#[test]
fn keys_that_a_split_moves_between_two_steps_are_not_missed() {
    let config = configs()[0];
    for order in ORDERS {
        let mut lab = Lab::new(config);
        let (reader, writer) = (lab.client(1, true), lab.client(2, true));
        for key in 0..40 {
            put(&lab, &writer, key * 100, &value_of(&config, key * 100));
        }
        let before = lab.leaves().len();
        let mut scan = reader.scan(KeyRange::ALL, ScanOptions { order, ..ScanOptions::default() });
        let mut found = Vec::new();
        let step = |found: &mut Vec<u64>, scan: &mut fatbtree_blink::Scan<'_, _>| {
            let pair = lab.run(&reader, scan.next());
            pair.map(|pair| found.push(pair.unwrap().0)).is_some()
        };
        assert!(step(&mut found, &mut scan));
        for key in 0..400 {
            put(&lab, &writer, key * 10 + 1, &value_of(&config, 1));
        }
        assert!(lab.leaves().len() > 3 * before);
        while step(&mut found, &mut scan) {}
        let old: Vec<u64> = found.iter().copied().filter(|key| key % 100 == 0).collect();
        let mut all: Vec<u64> = (0..40).map(|key| key * 100).collect();
        if order == Order::Backward {
            all.reverse();
        }
        assert_eq!(old, all);
        assert!(found.len() > 150, "those that were not read ahead are found as well: {}", found.len());
    }
}

/// Both servers of a cluster are given other trees, with the border between them elsewhere, while a scan goes over it. Each key is given
/// once all the same.
#[test]
fn a_border_that_moves_under_a_scan_neither_hides_a_key_nor_gives_one_twice() {
    let config = configs()[0];
    let with_border_at = |border: u64| {
        let mut lab = Lab::with_partitions(config, &[border]);
        let client = lab.client(1, true);
        for key in 0..60 {
            put(&lab, &client, key * 10, &value_of(&config, key));
        }
        (lab, client)
    };
    let model: BTreeMap<u64, Vec<u8>> = (0..60).map(|key| (key * 10, value_of(&config, key))).collect();
    for (before, after) in [(300, 200), (300, 400), (305, 300), (300, 305), (300, 5), (300, 595)] {
        let (other, _) = with_border_at(after);
        for order in ORDERS {
            for taken in 0..60 {
                let (lab, client) = with_border_at(before);
                let options = ScanOptions { order, ..ScanOptions::default() };
                let mut scan = client.scan(KeyRange::ALL, options);
                let mut pairs = Pairs::new();
                let mut step = |lab: &Lab, scan: &mut fatbtree_blink::Scan<'_, _>| {
                    let pair = lab.run(&client, scan.next());
                    pair.map(|pair| pairs.push(pair.map(|(key, value)| (key, value.to_vec())).unwrap()))
                        .is_some()
                };
                (0..taken).for_each(|_| assert!(step(&lab, &mut scan)));
                let mut bytes = vec![0; common::REGION as usize];
                for (old, new) in lab.servers.iter().zip(&other.servers) {
                    new.memory.read(0, &mut bytes).unwrap();
                    old.memory.write(0, &bytes).unwrap();
                }
                let roots = other.servers.iter().map(|server| server.partition()).collect();
                client.set_roots(SuperRoot::new(roots).unwrap()).unwrap();
                while step(&lab, &mut scan) {}
                assert_eq!(
                    pairs,
                    expected(&model, KeyRange::ALL, order),
                    "{before} to {after} after {taken}"
                );
            }
        }
    }
}

/// A tree of nodes of 16 children and 20 entries, keys 0, 10, 20, ...
fn large(lab: &Lab, client: &Client, keys: u64) -> BTreeMap<u64, Vec<u8>> {
    let mut model = BTreeMap::new();
    for key in 0..keys {
        let value = value_of(&lab.config, key);
        put(lab, client, key * 10, &value);
        model.insert(key * 10, value);
    }
    model
}

/// Damages a leaf: it says that it is free.
fn free(lab: &Lab, leaf: GlobalAddress) {
    let (memory, mut line) = (&lab.servers[usize::from(leaf.server())].memory, [0; 64]);
    memory.read(leaf.offset(), &mut line).unwrap();
    mark_free(&mut line);
    memory.write(leaf.offset(), &line).unwrap();
}

#[test]
fn a_scan_reads_leaves_in_parallel() {
    let config = TreeConfig::new(16, 256, ValueLayout::Inline(8)).unwrap();
    let mut lab = Lab::new(config);
    let client = lab.client(1, true);
    let model = large(&lab, &client, 2_000);
    let (leaves, height) = (lab.leaves().len() as u64, u64::from(lab.servers[0].partition().root_level));
    assert!(leaves > 250 && height >= 2, "{leaves} leaves, {height} levels above");
    for order in ORDERS {
        for (window, most) in
            [(1, leaves + leaves / 4), (4, leaves / 4 + 20), (16, leaves / 16 + 12), (64, leaves / 64 + 14)]
        {
            let options = ScanOptions { order, window, ..ScanOptions::default() };
            let (found, trips) = scan(&lab, &client, KeyRange::ALL, options);
            assert_eq!(found, expected(&model, KeyRange::ALL, order));
            eprintln!("{leaves} leaves, {height} levels above, {options:?}: {trips:?}");
            assert_eq!((trips.leaves, trips.unused, trips.restarts), (leaves, 0, 0), "{options:?}");
            assert!(trips.sequential <= height + most, "{options:?}: {trips:?}");
            assert!(trips.reads < leaves + leaves / 5, "{options:?}: {trips:?}");
        }
        // Ten keys: the way down, and hardly more.
        let range = KeyRange::of(5_000..5_100);
        let (found, trips) = scan(&lab, &client, range, ScanOptions { order, ..ScanOptions::default() });
        assert_eq!(found.len(), 10);
        assert!(trips.sequential <= height + 2 && trips.reads <= height + 4, "{trips:?}");
    }
}

/// A lab with small leaves, what the switches of its client have seen, and the client.
fn led() -> (Lab, Switches, Client) {
    let mut lab = Lab::new(TreeConfig::new(16, 256, ValueLayout::Inline(8)).unwrap());
    let switches = Switches::default();
    let client = client_behind(&mut lab, 1, &switches);
    (lab, switches, client)
}

#[test]
fn the_switches_find_the_first_leaf() {
    let (lab, switches, client) = led();
    let model = large(&lab, &client, 2_000);
    *switches.borrow_mut() = lab.leaves();
    let (low, _) = lab.leaves()[77];
    let (one, _) = scan(&lab, &client, KeyRange::of(low..low + 1), ScanOptions::default());
    assert_eq!(one.len(), 0, "separators are no keys here");
    for order in ORDERS {
        let options = ScanOptions { order, start: Start::IndexRead, ..ScanOptions::default() };
        let (_, trips) = scan(&lab, &client, KeyRange::of(low..low + 1), options);
        assert_eq!((trips.sequential, trips.leaves), (1, 1), "one leaf, one round trip");
        let (found, trips) = scan(&lab, &client, KeyRange::ALL, options);
        assert_eq!(found, expected(&model, KeyRange::ALL, order));
        assert!(trips.restarts == 0 && trips.unused <= 1, "{trips:?}");
        // Sub-ranges at the same time: what is waited for is the longest of them.
        let parts: Vec<_> =
            KeyRange::of(0..20_000).split_evenly(8).map(|part| collect(&client, part, options)).collect();
        assert_eq!(parts.len(), 8);
        let (mut longest, mut all) = (0, Vec::new());
        for part in parts {
            let (pairs, trips) = lab.run(&client, part);
            longest = longest.max(trips.sequential);
            all.push(pairs.unwrap());
        }
        if order == Order::Backward {
            all.reverse();
        }
        assert_eq!(all.concat(), expected(&model, KeyRange::ALL, order));
        assert!(longest * 2 < trips.sequential, "{longest} of {}", trips.sequential);
    }
    // The switches are behind the times: every read of theirs lands on some other leaf.
    let mut moved = lab.leaves();
    let lows: Vec<u64> = moved.iter().map(|(low, _)| *low).collect();
    moved.rotate_left(3);
    *switches.borrow_mut() = lows.into_iter().zip(moved).map(|(low, (_, leaf))| (low, leaf)).collect();
    for order in ORDERS {
        for wanted in [usize::MAX, 100] {
            let options = ScanOptions { order, start: Start::IndexRead, wanted, ..ScanOptions::default() };
            let (found, trips) = scan(&lab, &client, KeyRange::of(3_000..9_000), options);
            assert_eq!(found, expected(&model, KeyRange::of(3_000..9_000), order));
            assert!(trips.restarts > 0, "{trips:?}");
        }
    }
}

/// The keys that follow one in an order.
fn onward(from: u64, order: Order) -> KeyRange {
    match order {
        Order::Forward => KeyRange::of(from..),
        Order::Backward => KeyRange::of(..from),
    }
}

/// The first pairs of a range, and what they cost.
fn first(
    lab: &Lab,
    client: &Client,
    (range, order): (KeyRange, Order),
    (start, most): (Start, usize),
) -> (Pairs, ScanTrips) {
    let options = ScanOptions { order, start, wanted: most, ..ScanOptions::default() };
    lab.run(client, async {
        let (mut scan, mut pairs) = (client.scan(range, options), Vec::new());
        while pairs.len() < most
            && let Some(pair) = scan.next().await
        {
            let (key, value) = pair.unwrap();
            pairs.push((key, value.to_vec()));
        }
        (pairs, scan.trips())
    })
}

/// Where switches lead to leaves, a client that has seen a leaf asks for all that it wants at once.
#[test]
fn wanted_pairs_are_asked_for_at_once() {
    let (mut lab, switches, writer) = led();
    let model = large(&lab, &writer, 2_000);
    *switches.borrow_mut() = lab.leaves();
    let (mut sums, mut scans) = ([0, 0, 0], 0);
    let client = client_behind(&mut lab, 2, &switches);
    for order in ORDERS {
        for number in 0..40 {
            let from = 437 * number + 500;
            let range = onward(from, order);
            let (found, trips) = first(&lab, &client, (range, order), (Start::IndexRead, 20));
            let mut all = expected(&model, range, order);
            all.truncate(20);
            assert_eq!(found, all);
            assert_eq!(trips.restarts, 0, "{trips:?}");
            if number == 0 && order == Order::Forward {
                assert!((2..=4).contains(&trips.sequential), "the first one knows no width: {trips:?}");
                continue;
            }
            let (walked, walk) = first(&lab, &client, (range, order), (Start::Root, 20));
            assert_eq!(walked, all);
            sums = [sums[0] + trips.sequential, sums[1] + trips.reads, sums[2] + walk.sequential];
            scans += 1;
        }
    }
    let [led, reads, walked] = sums.map(|sum| sum as f64 / f64::from(scans));
    eprintln!("{led:.2} round trips, {reads:.2} reads; {walked:.2} from the root");
    assert!(led < 2.0 && reads < 8.0 && walked > led + 1.5, "{led} {reads} {walked}");
}

/// Switches that lead no further than to the leaves' parents: these name all leaves, which are read at once.
#[test]
fn a_parent_names_the_leaves() {
    let (mut lab, switches, client) = led();
    let model = large(&lab, &client, 2_000);
    *switches.borrow_mut() = lab.parents();
    let mut sum = 0;
    for (owner, order) in (2..).zip([ORDERS, ORDERS, ORDERS].concat()) {
        // A client that has seen no leaf, and cannot guess.
        let client = client_behind(&mut lab, owner, &switches);
        let from = 2_370 * u64::from(owner) + 500;
        let range = onward(from, order);
        let (found, trips) = first(&lab, &client, (range, order), (Start::IndexRead, 12));
        let mut all = expected(&model, range, order);
        all.truncate(12);
        assert_eq!((found, trips.restarts), (all, 0));
        sum += trips.sequential;
    }
    // One for the parent, one for as many leaves as would do if they were fuller, and one for the rest. Each leaf by its parent: 40.
    assert!((12..=20).contains(&sum), "{sum} round trips in 6 scans");
}

/// First of the keys that lie close together in [`uneven`].
const CLOSE: u64 = 500 << 40;

/// 500 keys that lie far apart, and as many close together.
fn uneven(lab: &Lab, client: &Client) -> BTreeMap<u64, Vec<u8>> {
    let mut model = BTreeMap::new();
    for number in 0..1_000 {
        let key = if number < 500 { number << 40 } else { CLOSE + number - 500 };
        let value = value_of(&lab.config, number);
        put(lab, client, key, &value);
        model.insert(key, value);
    }
    model
}

/// Keys that lie far apart in one part and close together in another: guesses fail, and the walk goes on.
#[test]
fn guesses_that_fail_cost_no_trip_a_leaf() {
    let (lab, switches, client) = led();
    let model = uneven(&lab, &client);
    *switches.borrow_mut() = lab.leaves();
    for order in ORDERS {
        let (found, trips) = first(&lab, &client, (KeyRange::ALL, order), (Start::IndexRead, 1_000));
        assert_eq!(found, expected(&model, KeyRange::ALL, order));
        eprintln!("{order:?}: {trips:?}");
        assert!(trips.sequential < trips.leaves / 2 && trips.reads < 3 * trips.leaves, "{trips:?}");
    }
}

/// A guess that lands beyond the pairs that are wanted, on a leaf that cannot be read: the pairs before it are there all the same.
#[test]
fn the_error_of_a_guess_is_not_that_of_the_pairs_before_it() {
    let (lab, switches, client) = led();
    let model = uneven(&lab, &client);
    *switches.borrow_mut() = lab.leaves();
    let apart = KeyRange::of(1_000..CLOSE / 2);
    assert_eq!(first(&lab, &client, (apart, Order::Forward), (Start::IndexRead, 100)).0.len(), 100);
    let (_, last) = *lab.leaves().last().unwrap();
    free(&lab, last);
    let close = KeyRange::of(CLOSE..);
    let (found, trips) = first(&lab, &client, (close, Order::Forward), (Start::IndexRead, 30));
    assert_eq!(found, expected(&model, close, Order::Forward)[..30]);
    assert!(trips.leaves > 2 && trips.sequential > 2, "{trips:?}");
}

/// A server is not asked for what it may have before the keys of the one before it have ended.
#[test]
fn guesses_stay_with_the_server() {
    let config = TreeConfig::new(16, 256, ValueLayout::Inline(8)).unwrap();
    let mut lab = Lab::with_partitions(config, &[10_000]);
    let (switches, asked) = (Switches::default(), Rc::new(RefCell::new(Vec::new())));
    let (seen, keys) = (Rc::clone(&switches), Rc::clone(&asked));
    let client = lab.client_behind(1, true, move |key, _| {
        keys.borrow_mut().push(key);
        leaf_of(&seen.borrow(), key)
    });
    let model = large(&lab, &client, 2_000);
    *switches.borrow_mut() = lab.leaves();
    let (found, _) = first(&lab, &client, (KeyRange::of(3_000..), Order::Forward), (Start::IndexRead, 100));
    assert_eq!(found.len(), 100);
    asked.borrow_mut().clear();
    // Its last twelve keys, of more that are wanted.
    let range = KeyRange::of(9_880..);
    let options = ScanOptions { start: Start::IndexRead, wanted: 60, ..ScanOptions::default() };
    let mut scan = client.scan(range, options);
    for (key, value) in expected(&model, range, Order::Forward).into_iter().take(12) {
        let (found, bytes) = lab.run(&client, scan.next()).unwrap().unwrap();
        assert_eq!((found, bytes.to_vec()), (key, value));
    }
    let asked = asked.borrow();
    assert!(asked.len() > 3 && asked.iter().all(|key| *key < 10_000), "{asked:?}");
}

#[test]
fn a_scan_goes_on_with_one_buffer() {
    for config in [wide(ValueLayout::Inline(8)), wide(ValueLayout::OutOfLine)] {
        let mut lab = Lab::new(config);
        let client = lab.client(1, true);
        let model = large(&lab, &client, 500);
        let mut guard: Vec<_> =
            std::iter::from_fn(|| client.reactor().with(|device| device.buffers().take(64))).collect();
        guard.pop();
        for order in ORDERS {
            let (found, _) =
                scan(&lab, &client, KeyRange::ALL, ScanOptions { order, ..ScanOptions::default() });
            assert_eq!(found, expected(&model, KeyRange::ALL, order));
        }
        // With none at all it waits as long as it may; a buffer that comes back meanwhile is enough.
        let last = client.reactor().with(|device| device.buffers().take(64)).unwrap();
        let (found, _) = lab.run(&client, collect(&client, KeyRange::ALL, ScanOptions::default()));
        assert!(
            matches!(
                found,
                Err(OperationError::Common { error: CommonError::Refused(PostError::NoBuffer { .. }), .. })
            ),
            "{found:?}"
        );
        let mut last = Some(last);
        let mut polls = 0;
        let both = async {
            let mut work = pin!(collect(&client, KeyRange::ALL, ScanOptions::default()));
            std::future::poll_fn(|context| {
                polls += 1;
                if polls == 50 {
                    last = None;
                }
                work.as_mut().poll(context)
            })
            .await
        };
        let (found, _) = lab.run(&client, both);
        assert_eq!(found.unwrap(), expected(&model, KeyRange::ALL, Order::Forward));
    }
}

/// Nothing is read before the caller asks, and no more than is asked for and read ahead.
#[test]
fn a_scan_is_lazy() {
    let config = TreeConfig::new(16, 256, ValueLayout::Inline(8)).unwrap();
    let mut lab = Lab::new(config);
    let client = lab.client(1, true);
    large(&lab, &client, 2_000);
    let reads = || client.stats().remote.reads;
    let before = reads();
    let mut scan = client.scan(KeyRange::ALL, ScanOptions::default());
    assert_eq!(reads(), before);
    lab.run(&client, scan.next()).unwrap().unwrap();
    let height = u64::from(lab.servers[0].partition().root_level);
    assert!(reads() - before <= height + 3, "{}", reads() - before);
    drop(scan);
    let empty = client.scan(KeyRange::of(5..5), ScanOptions::default());
    let before = reads();
    assert!(lab.run(&client, pin!(empty).next()).is_none());
    assert_eq!(reads(), before);
}

#[test]
fn a_scan_of_a_damaged_tree_says_so() {
    let config = configs()[0];
    let mut lab = Lab::new(config);
    let client = lab.client(1, true);
    large(&lab, &client, 100);
    free(&lab, lab.leaves()[10].1);
    for order in ORDERS {
        let options = ScanOptions { order, ..ScanOptions::default() };
        let mut scan = client.scan(KeyRange::ALL, options);
        let mut good = 0;
        let error = loop {
            match lab.run(&client, scan.next()).unwrap() {
                Ok(_) => good += 1,
                Err(error) => break error,
            }
        };
        assert!(good > 10, "{good} pairs come before");
        assert!(error.to_string().contains("node was freed"), "{error}");
        assert!(lab.run(&client, scan.next()).is_none(), "it has ended");
    }
}
