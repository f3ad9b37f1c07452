//! Trees damaged by arbitrary writes: each operation comes to an end, in a bounded number of reads, and none
//! panics.
use crate::common;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use common::{Lab, SESSION, configs, value_of};
use fatbtree_blink::node::{LINE, LeafBuilder, NodeFault, NodeHeader, NodeSpec, offsets};
use fatbtree_blink::{
    BytesRange, Change, Event, GlobalAddress, Integrity, KeyRange, LeafKind, Limits, OperationError, Order,
    Owner, Pool, PoolConfig, Regions, ScanOptions, Start, TopReader, Tree, TreeConfig, ValueLayout,
    WalkError,
};
use fatbtree_verbs::plain::PlainDevice;
use fatbtree_verbs::time::Duration;
use proptest::prelude::*;

type Client = Pool<PlainDevice>;

/// A client that gives up soon.
fn hasty(lab: &mut Lab) -> Client {
    let limits = Limits { patience: Duration::from_millis(5), torn: 3, ..Limits::default() };
    let config = PoolConfig { tree: lab.config, limits, ..PoolConfig::default() };
    let pool = Pool::new(lab.network.device(), config, lab.roots(), 1).unwrap();
    for id in pool.connections() {
        lab.connect(&pool, id, Owner { session: SESSION, number: 1 }, true);
    }
    pool
}

/// Turns that an operation of a small tree takes at most, however the tree is damaged.
const MOST: u32 = 200_000;

/// Runs one operation to its end. A connection that breaks, as when a pointer leads out of the memory, is made anew.
fn run<T>(lab: &mut Lab, client: &Client, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..MOST {
        if let Poll::Ready(value) = work.as_mut().poll(&mut context) {
            return value;
        }
        while let Some(event) = client.poll_event() {
            match event {
                Event::MemoryWanted { server, class, .. } => {
                    let next = &lab.servers[usize::from(server)].next_chunk;
                    let at = next.replace(next.get() + 4096);
                    client.grant(SESSION, GlobalAddress::new(server, at), 4096, class);
                }
                Event::ConnectionBroken { id, .. } => {
                    lab.connect(client, id, Owner { session: SESSION, number: 1 }, true);
                }
                Event::SyncWanted { .. } | Event::Unfinished { .. } => {}
            }
        }
        let now = client.reactor().now();
        if !client.turn(now) {
            client.turn(client.poll_timeout().unwrap_or(now));
        }
    }
    panic!("it never ends");
}

/// Every kind of operation, each to its end. What they find is of no interest: it is a damaged tree.
fn everything(lab: &mut Lab, client: &Client, keys: &[u64]) {
    for &key in keys {
        let value = value_of(&lab.config, key + 1);
        let _ = run(lab, client, client.lookup(key, Start::Root));
        for mutation in [Change::Upsert(&value), Change::Delete, Change::Insert(&value)] {
            let _ = run(lab, client, client.mutate(key, mutation, Start::Root));
        }
    }
    for order in [Order::Forward, Order::Backward] {
        let options = ScanOptions { order, ..ScanOptions::default() };
        let mut scan = client.scan(KeyRange::ALL, options);
        let mut last = None;
        run(lab, client, async {
            while let Some(Ok((key, _))) = scan.next().await {
                let ascends =
                    last.is_none_or(|last| if order == Order::Forward { last < key } else { key < last });
                assert!(ascends, "a scan gives {key} after {last:?}");
                last = Some(key);
            }
        });
    }
    let _ = run(lab, client, client.len(KeyRange::ALL));
    let _ = run(lab, client, client.verify());
    walks(lab, keys);
}

/// The walks of servers, over memory at hand.
fn walks(lab: &Lab, keys: &[u64]) {
    let regions = Regions::new([(0, Arc::clone(&lab.servers[0].memory))]);
    let partition = lab.servers[0].partition();
    let tree = Tree::new(&regions, &lab.config, &partition);
    let room = (common::REGION / 64) as usize;
    let (mut internal, mut leaves) = (0, 0);
    let _ = tree.for_each_internal(|_| internal += 1);
    let _ = tree.for_each_leaf(|_| leaves += 1);
    assert!(internal < room && leaves < room, "{internal} {leaves}");
    for &key in keys {
        let mut nodes = 0;
        let _ = tree.place_of(key, &mut nodes);
        assert!(nodes <= 1000, "{nodes} nodes for one key");
        let _ = (tree.get(key), tree.record_of(key));
    }
    let mut reader = TopReader::new(&lab.config, &partition, room);
    let end = (0..2 * room).find(|_| !matches!(reader.read(&regions, 4), Ok(None)));
    assert!(end.is_some(), "a snapshot never ends");
}

fn full(config: TreeConfig, keys: u64) -> (Lab, Client) {
    let mut lab = Lab::new(config);
    let client = hasty(&mut lab);
    // In an order in which nodes become as full as they do.
    for key in (0..keys).map(|key| key * 7 % keys) {
        let value = value_of(&config, key);
        run(&mut lab, &client, client.mutate(key * 10, Change::Upsert(&value), Start::Root)).result.unwrap();
    }
    (lab, client)
}

fn get(lab: &Lab, at: u64) -> u64 {
    let mut word = [0; 8];
    lab.servers[0].memory.read(at, &mut word).unwrap();
    u64::from_le_bytes(word)
}

fn put(lab: &Lab, at: u64, word: u64) {
    lab.servers[0].memory.write(at, &word.to_le_bytes()).unwrap();
}

fn header(lab: &Lab, node: GlobalAddress) -> NodeHeader {
    let mut line = [0; LINE];
    lab.servers[0].memory.read(node.offset(), &mut line).unwrap();
    NodeHeader::parse(&line)
}

/// Nodes of a tree with line versions, so that a word of a node can be changed and the node is whole still: leaves, then the others.
fn nodes(lab: &Lab) -> (Vec<GlobalAddress>, Vec<GlobalAddress>) {
    let all = lab.nodes();
    let leaves = lab.leaves().len();
    (all[..leaves].to_vec(), all[leaves..].to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// Some words of nodes are others: a pointer to any node, a key of the tree, a header, anything.
    #[test]
    fn every_operation_on_a_damaged_tree_ends(
        shape in 0..3usize,
        writes in prop::collection::vec((any::<prop::sample::Index>(), 0..40u64, 0..6u8, any::<u64>()), 1..12),
        keys in prop::collection::vec(0..700u64, 3),
    ) {
        let config = configs()[shape];
        let (mut lab, client) = full(config, 60);
        let (leaves, others) = nodes(&lab);
        let all = [leaves, others].concat();
        for (node, word, kind, number) in writes {
            let at = node.get(&all).offset() + word * 8;
            let found = get(&lab, at);
            put(&lab, at, match kind {
                0 => number,
                1 => all[number as usize % all.len()].raw(),
                2 => number % 700,
                3 => found ^ 1 << (number % 64),
                // The first words of a line, whose version stays what it is.
                4 => found & !0xffff_ff00 | (number % 3) << 8 | 0xfb7e << 16,
                _ => 0,
            });
        }
        everything(&mut lab, &client, &keys);
    }
}

/// Two clients have written nodes to one place: the sibling of a node leads back to the left.
#[test]
fn a_circle_of_siblings_ends_every_walk() {
    let config = TreeConfig::with_integrity(4, 256, ValueLayout::Inline(8), Integrity::LineVersions).unwrap();
    for of_leaves in [true, false] {
        let (mut lab, client) = full(config, 300);
        let (leaves, others) = nodes(&lab);
        let lowest = others.into_iter().filter(|node| header(&lab, *node).level == 1);
        let level = if of_leaves { leaves } else { lowest.collect() };
        let (from, to) = (level[3], level[1]);
        put(&lab, from.offset() + offsets::SIBLING as u64, to.raw());
        let regions = Regions::new([(0, Arc::clone(&lab.servers[0].memory))]);
        let partition = lab.servers[0].partition();
        let tree = Tree::new(&regions, &config, &partition);
        let walked = if of_leaves { tree.for_each_leaf(|_| ()) } else { tree.for_each_internal(|_| ()) };
        let expected = get(&lab, from.offset() + offsets::HIGH as u64);
        let found = get(&lab, to.offset() + offsets::LOW as u64);
        let fault = NodeFault::Neighbour { found, expected };
        assert_eq!(walked, Err(WalkError::Damaged { address: to, fault }));
        assert!(run(&mut lab, &client, client.verify()).is_err());
        everything(&mut lab, &client, &[5, 1500, 2995]);
    }
}

/// The leaf of the last keys ends too early, and from there siblings lead round and round: a lookup of a key
/// after it gives up.
#[test]
fn a_key_behind_a_circle_is_given_up() {
    let config = TreeConfig::with_integrity(4, 256, ValueLayout::Inline(8), Integrity::LineVersions).unwrap();
    let (mut lab, client) = full(config, 300);
    let last = lab.leaves().last().unwrap().1;
    let flags = last.offset() + offsets::FLAGS as u64;
    lab.servers[0].memory.write(flags, &[0]).unwrap();
    put(&lab, last.offset() + offsets::HIGH as u64, 2980);
    put(&lab, last.offset() + offsets::SIBLING as u64, last.raw());
    let before = client.stats().remote.reads;
    let error = run(&mut lab, &client, client.lookup(2990, Start::Root)).result.unwrap_err();
    let is_circle =
        matches!(error, OperationError::GaveUp { fault: NodeFault::SiblingChain { followed: 32 }, .. });
    assert!(is_circle, "{error}");
    assert!(client.stats().remote.reads - before < 2_000, "{}", client.stats().remote.reads - before);
    walks(&lab, &[2990]);
    everything(&mut lab, &client, &[2990]);
}

/// A chain of partners, each of which begins a little further on, is no way without end either.
#[test]
fn a_chain_of_partners_is_given_up() {
    let config = TreeConfig::with_integrity(4, 256, ValueLayout::Inline(8), Integrity::LineVersions).unwrap();
    let mut lab = Lab::new(config);
    let client = hasty(&mut lab);
    let place = |number: u64| GlobalAddress::new(0, if number == 0 { 64 } else { 8192 + number * 256 });
    let memory = Arc::clone(&lab.servers[0].memory);
    for number in 0..1000u64 {
        let range = KeyRange { low: number, high: None };
        let spec =
            NodeSpec { address: place(number), level: 0, range, sibling: GlobalAddress::NULL, version: 1 };
        let mut bytes = [0; 256];
        LeafBuilder::new(&mut bytes, config.leaf_shape(), spec).finish();
        bytes[offsets::PARTNER..][..8].copy_from_slice(&place(number + 1).raw().to_le_bytes());
        memory.write(place(number).offset(), &bytes).unwrap();
    }
    let error = run(&mut lab, &client, client.lookup(5_000, Start::Root)).result.unwrap_err();
    let is_chain =
        matches!(error, OperationError::GaveUp { fault: NodeFault::SiblingChain { followed: 32 }, .. });
    assert!(is_chain, "{error}");
}

/// A forged node is refused before anything is made of it: a writer that splits or merges would write it again, and cannot.
#[test]
fn an_internal_node_whose_pivots_do_not_ascend_is_refused() {
    let config = TreeConfig::with_integrity(4, 256, ValueLayout::Inline(8), Integrity::LineVersions).unwrap();
    let (pivot, child) = (64 + 16, 64 + 24);
    for number in 0..6 {
        let (mut lab, client) = full(config, 300);
        // A node right above some leaves, and not the last one, which has no end.
        let (_, others) = nodes(&lab);
        let fits = |node: &&GlobalAddress| {
            let header = header(&lab, **node);
            header.level == 1 && header.count > 2 && !header.is_last()
        };
        let node = *others.iter().find(fits).unwrap();
        let (low, at) = (get(&lab, node.offset() + offsets::LOW as u64), node.offset());
        let second = get(&lab, at + pivot);
        match number {
            0 => put(&lab, at + pivot, low),
            1 => put(&lab, at + pivot, u64::MAX),
            2 => put(&lab, at + pivot + 16, second),
            3 => put(&lab, at + offsets::LOW as u64, second + 1),
            4 => put(&lab, at + offsets::HIGH as u64, second),
            _ => put(&lab, at + child, 0),
        }
        let bytes = |lab: &Lab| (0..16).map(|word| get(lab, at + word * 8)).collect::<Vec<_>>();
        let before = bytes(&lab);
        // Leaves below it are split until the node is to be, and emptied until they are to be merged.
        let keys: Vec<u64> = (low..low + 200).collect();
        for key in &keys {
            let _ = run(&mut lab, &client, client.mutate(*key, Change::Upsert(&[1; 8]), Start::Root));
        }
        for key in &keys {
            let _ = run(&mut lab, &client, client.mutate(*key, Change::Delete, Start::Root));
        }
        assert_eq!(bytes(&lab), before, "damage {number}: nobody writes it again");
        everything(&mut lab, &client, &[low, low + 100]);
    }
}

/// Keys outside of a leaf's fences, or twice in it: the leaf is not split, nor merged.
#[test]
fn a_leaf_with_keys_of_others_or_one_key_twice_is_not_divided() {
    let config = TreeConfig::with_integrity(4, 256, ValueLayout::Inline(8), Integrity::LineVersions).unwrap();
    let entry = |slot: usize| config.leaf_shape().entry_offset(slot) as u64 + 1;
    for forged in [0, u64::MAX, 7] {
        let (mut lab, client) = full(config, 300);
        let (low, leaf) = lab.leaves()[5];
        let unaligned = |slot| leaf.offset() + entry(slot);
        let mut key = [0; 8];
        lab.servers[0].memory.read(unaligned(0), &mut key).unwrap();
        let word = if forged == 7 { u64::from_le_bytes(key) } else { forged };
        lab.servers[0].memory.write(unaligned(1), &word.to_le_bytes()).unwrap();
        let splits = client.stats().splits;
        let results: Vec<_> = (low..low + 20)
            .map(|key| {
                run(&mut lab, &client, client.mutate(key, Change::Upsert(&[1; 8]), Start::Root)).result
            })
            .collect();
        assert!(results.iter().any(Result::is_err), "there is no room for twenty more");
        assert_eq!(client.stats().splits, splits);
        everything(&mut lab, &client, &[low, low + 10]);
    }
}

/// A READ takes its time: meanwhile a key is deleted, another one put into its place, and the key inserted again, in another line. The
/// reader has it in both, and the versions of lines are as they were.
#[test]
fn a_scan_that_reads_a_key_twice_in_a_leaf_reads_the_leaf_again() {
    // In a leaf of buckets the key that comes back may find its former slot, or entries that have moved.
    for config in configs().into_iter().filter(|config| config.leaves() == LeafKind::Plain) {
        let mut lab = Lab::new(config);
        let client = hasty(&mut lab);
        let capacity = config.leaf_capacity() as u64;
        for key in 0..capacity - 1 {
            let value = value_of(&config, 1);
            run(&mut lab, &client, client.mutate(key, Change::Upsert(&value), Start::Root)).result.unwrap();
        }
        let memory = Arc::clone(&lab.servers[0].memory);
        let leaf = || {
            let mut bytes = vec![0; config.leaf_bytes() as usize];
            memory.read(64, &mut bytes).unwrap();
            bytes
        };
        let before = leaf();
        let (first, again, other) = (value_of(&config, 1), value_of(&config, 2), value_of(&config, 3));
        run(&mut lab, &client, client.mutate(0, Change::Delete, Start::Root)).result.unwrap();
        run(&mut lab, &client, client.mutate(1000, Change::Upsert(&other), Start::Root)).result.unwrap();
        run(&mut lab, &client, client.mutate(0, Change::Upsert(&again), Start::Root)).result.unwrap();
        let after = leaf();
        // The first line of entries was read before all that, the others after it. A wide entry takes two lines.
        let cut = if config.leaf_shape().is_wide() { 192 } else { 128 };
        let mixture = [&before[..cut], &after[cut..]].concat();
        let mut expected = vec![(0, again)];
        expected.extend((1..capacity - 1).map(|key| (key, first.clone())));
        expected.push((1000, other));
        for order in [Order::Forward, Order::Backward] {
            memory.write(64, &mixture).unwrap();
            let mut scan = client.scan(KeyRange::ALL, ScanOptions { order, ..ScanOptions::default() });
            let mut found = Vec::new();
            let mut turns = 0;
            let restores = poll_fn(|_| {
                turns += 1;
                if turns == 2 {
                    memory.write(64, &after).unwrap();
                }
                Poll::<()>::Pending
            });
            let mut restores = pin!(restores);
            run(
                &mut lab,
                &client,
                poll_fn(|context| {
                    let _ = restores.as_mut().poll(context);
                    loop {
                        match pin!(scan.next()).poll(context) {
                            Poll::Ready(Some(pair)) => {
                                let (key, value) = pair.unwrap();
                                found.push((key, value.to_vec()));
                            }
                            Poll::Ready(None) => return Poll::Ready(()),
                            Poll::Pending => return Poll::Pending,
                        }
                    }
                }),
            );
            found.sort();
            assert_eq!(found, expected, "{config:?} {order:?}");
            assert!(scan.trips().retries > 0, "the first time it was torn");
        }
        // A node that stays so is damaged, and neither counted nor verified.
        memory.write(64, &mixture).unwrap();
        let counted = run(&mut lab, &client, client.len(KeyRange::ALL)).unwrap_err();
        let is_twice =
            matches!(counted, OperationError::GaveUp { fault: NodeFault::KeyTwice { key: 0 }, .. });
        assert!(is_twice, "{counted}");
        assert!(run(&mut lab, &client, client.verify()).is_err());
        let deleted = run(&mut lab, &client, client.mutate(0, Change::Delete, Start::Root)).result;
        assert!(deleted.is_err(), "to delete one of two would bring back the other");
    }
}

/// Without its keys a layer is not one that has gone.
#[test]
fn a_scan_tells_that_a_layer_is_not_there() {
    let config = common::byte_keys::configs()[0];
    let mut lab = Lab::new(config);
    let client = hasty(&mut lab);
    let keys: [&[u8]; 5] = [b"aaaaaaaa1", b"aaaaaaaa2", b"bbbbbbbb1", b"bbbbbbbb2", b"c"];
    for key in keys {
        let put = client.mutate_bytes(key, Change::Upsert(b"value"), Start::Root);
        run(&mut lab, &client, put).result.unwrap();
    }
    // Heads of layers, by their magic number. One is copied over the other.
    let heads: Vec<u64> =
        (0..common::REGION).step_by(LINE).filter(|&at| get(&lab, at) >> 32 == 0x0001_fb7a).collect();
    let &[first, second] = &heads[..] else { panic!("two layers, and {heads:?}") };
    for at in (0..LINE as u64).step_by(8) {
        put(&lab, second + at, get(&lab, first + at));
    }
    for (order, before) in [(Order::Forward, &keys[..2]), (Order::Backward, &keys[4..])] {
        let options = ScanOptions { order, ..ScanOptions::default() };
        let mut scan = client.scan_bytes(BytesRange::all(), options);
        let mut found = Vec::new();
        let error = run(&mut lab, &client, async {
            loop {
                match scan.next().await.expect("not all keys are there") {
                    Ok((key, _)) => found.push(key.to_vec()),
                    Err(error) => break error,
                }
            }
        });
        assert_eq!(found, before, "{order:?}");
        let is_told = matches!(error, OperationError::GaveUp { fault: NodeFault::NoLayer { .. }, .. });
        assert!(is_told, "{order:?}: {error}");
    }
}
