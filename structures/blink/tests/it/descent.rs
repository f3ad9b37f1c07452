//! Each kind of stale hint on the way down: the answer of a lookup and its round trips.
use std::sync::Arc;

use fatbtree_blink::node::{LeafBuilder, NodeFault, NodeSpec, write_internal};
use fatbtree_blink::plain::PlainClient;
use fatbtree_blink::record::RecordFault;
use fatbtree_blink::record::{RecordPointer, UNPUBLISHED, write_record};
use fatbtree_blink::{
    GlobalAddress, Integrity, KeyRange, Limits, Lookup, OperationError, Partition, Regions, Start, SuperRoot,
    Superblock, TreeConfig, ValueLayout,
};
use fatbtree_verbs::Memory;
use fatbtree_verbs::time::Duration;

const LEFT: KeyRange = KeyRange { low: 0, high: Some(50) };
const RIGHT: KeyRange = KeyRange { low: 50, high: None };

fn config() -> TreeConfig {
    TreeConfig::new(4, 256, ValueLayout::Inline(8)).unwrap()
}

fn place(slot: u64) -> GlobalAddress {
    GlobalAddress::new(0, 256 * (1 + slot))
}

fn spec(address: GlobalAddress, level: u8, range: KeyRange, sibling: Option<u64>) -> NodeSpec {
    NodeSpec { address, level, range, sibling: sibling.map_or(GlobalAddress::NULL, place), version: 1 }
}

/// Writes a leaf into a slot. It says that it is `spec`, and each of its keys has `value`.
fn leaf(memory: &Memory, slot: u64, spec: NodeSpec, keys: &[u64], value: u64) {
    let mut bytes = [0; 256];
    let config = config();
    let mut leaf = LeafBuilder::new(&mut bytes, config.leaf_shape(), spec);
    for &key in keys {
        leaf.push_inline(key).copy_from_slice(&value.to_le_bytes());
    }
    leaf.finish();
    memory.write(place(slot).offset(), &bytes).unwrap();
}

fn internal(memory: &Memory, slot: u64, level: u8, children: &[(u64, u64)]) {
    let mut bytes = [0; 128];
    let children: Vec<_> = children.iter().map(|&(pivot, child)| (pivot, place(child))).collect();
    let spec = spec(place(slot), level, KeyRange::ALL, None);
    write_internal(&mut bytes, &spec, &children, Integrity::LineVersions);
    memory.write(place(slot).offset(), &bytes).unwrap();
}

fn partition(root: u64, root_level: u8) -> Partition {
    Partition { id: 0, range: KeyRange::ALL, root: place(root), root_level }
}

/// A root in slot 0 over leaves in slots 1 and 2 with keys 10, and 50 and 60; the value of each is 1. Slot 3 is for
/// stale hints.
fn tree() -> Arc<Memory> {
    let memory = Memory::shared(8192).unwrap();
    internal(&memory, 0, 1, &[(0, 1), (50, 2)]);
    leaf(&memory, 1, spec(place(1), 0, LEFT, Some(2)), &[10], 1);
    leaf(&memory, 2, spec(place(2), 0, RIGHT, None), &[50, 60], 1);
    memory
}

fn client(memory: &Arc<Memory>, partition: Partition, limits: Limits) -> PlainClient {
    let regions = Regions::new([(0, Arc::clone(memory)), (1, Memory::shared(8192).unwrap())]);
    PlainClient::with_limits(&regions, &config(), &SuperRoot::new(vec![partition]).unwrap(), limits)
}

fn at(slot: u64, level: u8) -> Start {
    Start::Node { address: place(slot), level }
}

fn value(lookup: &Lookup) -> Option<u64> {
    let value = lookup.result.as_ref().unwrap().as_deref()?;
    Some(u64::from_le_bytes(*value.first_chunk().unwrap()))
}

/// Looks up key 60 from `start`; says what was read of it, how often it began again, and after how many reads it ended.
fn stale_hint(memory: &Arc<Memory>, start: Start) -> (Option<u64>, u32, u32) {
    let client = client(memory, partition(0, 1), Limits::default());
    let lookup = client.lookup(60, start);
    (value(&lookup), lookup.trips.restarts, lookup.trips.round_trips)
}

#[test]
fn the_way_that_is_right() {
    let memory = tree();
    assert_eq!(stale_hint(&memory, Start::Root), (Some(1), 0, 2));
    assert_eq!(stale_hint(&memory, at(2, 0)), (Some(1), 0, 1));
    assert_eq!(stale_hint(&memory, at(1, 0)), (Some(1), 0, 2), "the key has moved to the sibling");
    let client = client(&memory, partition(0, 1), Limits::default());
    let lowest = client.lookup(50, at(2, 0));
    assert_eq!((value(&lowest), lowest.trips.restarts), (Some(1), 0));
    assert_eq!((lowest.trips.landed, lowest.trips.levels), (None, 1));
}

#[test]
fn a_node_left_behind_is_not_taken() {
    let memory = tree();
    // Another node was there once, and this is a copy of it.
    leaf(&memory, 3, spec(place(2), 0, RIGHT, None), &[60], 9);
    assert_eq!(stale_hint(&memory, at(3, 0)), (Some(1), 1, 3));
    // A node of another level.
    assert_eq!(stale_hint(&memory, at(0, 0)), (Some(1), 1, 3));
    // The key is left of it.
    leaf(&memory, 3, spec(place(3), 0, KeyRange { low: 61, high: None }, None), &[60], 9);
    assert_eq!(stale_hint(&memory, at(3, 0)), (Some(1), 1, 3));
    // The key is right of it, and nothing is there.
    leaf(&memory, 3, spec(place(3), 0, LEFT, None), &[60], 9);
    assert_eq!(stale_hint(&memory, at(3, 0)), (Some(1), 1, 3), "the null pointer is not followed");
}

#[test]
fn an_index_read_lands_on_a_node_of_its_server() {
    let memory = tree();
    let other = Memory::shared(8192).unwrap();
    let there = GlobalAddress::new(1, place(3).offset());
    leaf(&other, 3, spec(there, 0, KeyRange::ALL, None), &[60], 9);
    // A leaf that says it lies nowhere.
    leaf(&memory, 3, spec(GlobalAddress::NULL, 0, KeyRange::ALL, None), &[60], 9);
    let regions = Regions::new([(0, memory), (1, other)]);
    let roots = SuperRoot::new(vec![partition(0, 1)]).unwrap();
    for (landing, restarts, landed) in
        [(there, 1, None), (place(3), 1, None), (place(2), 0, Some(0)), (place(0), 0, Some(1))]
    {
        let mut client = PlainClient::new(&regions, &config(), &roots);
        client.set_landing(move |_, _| landing);
        let lookup = client.lookup(60, Start::IndexRead);
        assert_eq!(value(&lookup), Some(1), "{landing}");
        assert_eq!((lookup.trips.restarts, lookup.trips.landed), (restarts, landed), "{landing}");
    }
}

#[test]
fn siblings_are_followed_as_far_as_the_limit_from_each_start() {
    let memory = tree();
    // A leaf that is its own sibling; and a root that has not heard of the second leaf.
    leaf(&memory, 3, spec(place(3), 0, LEFT, Some(3)), &[], 9);
    internal(&memory, 0, 1, &[(0, 1)]);
    for siblings in 1..4 {
        let client = client(&memory, partition(0, 1), Limits { siblings, ..Limits::default() });
        let lookup = client.lookup(60, at(3, 0));
        assert_eq!(value(&lookup), Some(1));
        assert_eq!((lookup.trips.restarts, lookup.trips.siblings_followed), (1, siblings + 1));
        assert_eq!(lookup.trips.round_trips, 1 + siblings + 3);
    }
}

/// A node that stays torn is read again after pauses; anything else that is wrong with it is not.
#[test]
fn only_what_is_torn_is_read_again() {
    let limits = Limits { torn: 3, patience: Duration::ZERO, ..Limits::default() };
    let memory = tree();
    let version = place(2).offset() + 64;
    memory.write(version, &[77]).unwrap();
    let lookup = client(&memory, partition(0, 1), limits).lookup(60, Start::Root);
    // Patience begins with the first walk that leads nowhere, so there is a second.
    let Err(OperationError::GaveUp { restarts: 1, fault: NodeFault::Torn { .. }, .. }) = lookup.result else {
        panic!("{lookup:?}")
    };
    assert_eq!((lookup.trips.round_trips, lookup.trips.retries), (2 * (1 + 4), 2 * 3));
    assert!(lookup.latency >= Duration::from_nanos(2 * (500 + 1_000 + 2_000)), "{}", lookup.latency);

    // Pauses grow to a millisecond: in a second there are many tries, and not too many.
    let patient = Limits { patience: Duration::from_secs(1), ..limits };
    let lookup = client(&memory, partition(0, 1), patient).lookup(60, Start::Root);
    assert!((900..2_100).contains(&lookup.trips.restarts), "{}", lookup.trips.restarts);

    // There is no node at all.
    memory.write(place(2).offset(), &[0; 64]).unwrap();
    let lookup = client(&memory, partition(0, 1), patient).lookup(60, Start::Root);
    assert!(matches!(lookup.result, Err(OperationError::GaveUp { fault: NodeFault::Magic { .. }, .. })));
    assert_eq!(lookup.trips.retries, 0);
}

/// The root that the client was told of is none any more: the superblock says where it is now, if it is this tree's.
#[test]
fn a_root_that_moved_is_found_by_the_superblock() {
    let grown = Superblock {
        partition: partition(0, 1),
        config: config(),
        generation: 1,
        region_bytes: 8192,
        version: 1,
    };
    let memory = tree();
    memory.write(0, &grown.to_bytes()).unwrap();
    let old = client(&memory, partition(5, 0), Limits::default());
    let lookup = old.lookup(60, Start::Root);
    assert_eq!((value(&lookup), old.pool().stats().new_roots), (Some(1), 1));
    // It is known from now on.
    let lookup = old.lookup(60, Start::Root);
    assert_eq!((value(&lookup), lookup.trips.restarts), (Some(1), 0));

    // A client that is not registered walks, and reads the superblock at once: it did begin at the root.
    let old = client(&memory, partition(5, 0), Limits::default());
    let id = old.pool().connections()[0];
    old.pool().set_registered(id, false).unwrap();
    let lookup = old.lookup(60, Start::IndexRead);
    assert_eq!((value(&lookup), lookup.trips.restarts), (Some(1), 1));

    // The same root is no news, and the superblock of another tree says nothing of this one.
    let config = TreeConfig::new(4, 512, ValueLayout::Inline(8)).unwrap();
    let limits = Limits { patience: Duration::from_micros(100), ..Limits::default() };
    for other in [Superblock { partition: partition(5, 0), ..grown }, Superblock { config, ..grown }] {
        memory.write(0, &other.to_bytes()).unwrap();
        let old = client(&memory, partition(5, 0), limits);
        assert!(matches!(old.lookup(60, Start::Root).result, Err(OperationError::GaveUp { .. })));
        assert_eq!(old.pool().stats().new_roots, 0);
    }
}

/// A walk that began at a stale hint goes on at once; only one that began at the root pauses.
#[test]
fn a_lookup_with_a_stale_hint_does_not_wait() {
    let memory = tree();
    let client = client(&memory, partition(0, 1), Limits::default());
    let lookup = client.lookup(60, at(5, 0));
    assert_eq!((value(&lookup), lookup.trips.restarts, lookup.latency), (Some(1), 1, Duration::ZERO));
}

#[test]
fn a_record_of_another_key_is_not_taken() {
    let config = TreeConfig::new(4, 256, ValueLayout::OutOfLine).unwrap();
    let memory = Memory::shared(8192).unwrap();
    let mut bytes = [0; 256];
    let mut leaf = LeafBuilder::new(&mut bytes, config.leaf_shape(), spec(place(0), 0, KeyRange::ALL, None));
    for key in [1, 2] {
        leaf.push_record(key, RecordPointer { address: place(key), length: 8, version: 1 });
        let mut record = [0; 32];
        write_record(&mut record, 1, 1, UNPUBLISHED, |value| value.fill(7));
        memory.write(place(key).offset(), &record).unwrap();
    }
    leaf.finish();
    memory.write(place(0).offset(), &bytes).unwrap();
    let regions = Regions::new([(0, memory)]);
    let roots = SuperRoot::new(vec![partition(0, 0)]).unwrap();
    let limits = Limits { patience: Duration::ZERO, ..Limits::default() };
    let client = PlainClient::with_limits(&regions, &config, &roots, limits);
    assert_eq!(client.lookup(1, Start::Root).result.unwrap().as_deref(), Some(&[7; 8][..]));
    let Err(OperationError::Damaged { at, fault, .. }) = client.lookup(2, Start::Root).result else {
        panic!("the record is that of key 1, whenever it is read")
    };
    assert_eq!((at, fault), (place(2), NodeFault::Record(RecordFault::Key { found: 1, expected: 2 })));
}

/// An index read asks for the largest node, be it a leaf or not.
#[test]
fn an_index_read_may_land_on_a_node_that_is_larger_than_a_leaf() {
    let config = TreeConfig::new(16, 256, ValueLayout::Inline(8)).unwrap();
    let memory = tree();
    let mut bytes = [0; 384];
    let children = [(0, place(1)), (50, place(2))];
    write_internal(&mut bytes, &spec(place(5), 1, KeyRange::ALL, None), &children, Integrity::LineVersions);
    memory.write(place(5).offset(), &bytes).unwrap();
    let roots = SuperRoot::new(vec![partition(5, 1)]).unwrap();
    let mut client = PlainClient::new(&Regions::new([(0, memory)]), &config, &roots);
    client.set_landing(|_, _| place(5));
    let lookup = client.lookup(60, Start::IndexRead);
    assert_eq!((value(&lookup), lookup.trips.restarts, lookup.trips.landed), (Some(1), 0, Some(1)));
}

/// A client counts the index reads that led to a node which is not the key's any more, each once; and no other starts.
#[test]
fn stale_hints_are_counted() {
    let memory = tree();
    leaf(&memory, 3, spec(place(3), 0, KeyRange { low: 61, high: None }, None), &[61], 9);
    let regions = Regions::new([(0, Arc::clone(&memory)), (1, Memory::shared(8192).unwrap())]);
    let roots = SuperRoot::new(vec![partition(0, 1)]).unwrap();
    let counted = |landing: u64| {
        let mut client = PlainClient::new(&regions, &config(), &roots);
        client.set_landing(move |_, _| place(landing));
        assert_eq!(value(&client.lookup(60, Start::IndexRead)), Some(1), "landing {landing}");
        client.lookup(60, Start::Root);
        client.lookup(60, at(1, 0));
        (client.pool().stats().index_reads, client.pool().stats().stale_hints)
    };
    assert_eq!(counted(2), (1, 0), "the leaf");
    assert_eq!(counted(0), (1, 0), "a node above it");
    assert_eq!(counted(1), (1, 1), "the leaf's left neighbour, which was split");
    assert_eq!(counted(3), (1, 1), "a leaf to the right of the key");
    assert_eq!(counted(7), (1, 1), "nothing");
    // The chain of siblings is longer than the limit: the lookup begins again, and is counted once.
    leaf(&memory, 3, spec(place(3), 0, LEFT, Some(3)), &[], 9);
    assert_eq!(counted(3), (1, 1), "a circle");
    // An inner node below which the tree is right, but which was split itself.
    let half = NodeSpec { range: LEFT, ..spec(place(3), 1, LEFT, Some(4)) };
    let mut bytes = [0; 128];
    write_internal(&mut bytes, &half, &[(0, place(1))], Integrity::LineVersions);
    memory.write(place(3).offset(), &bytes).unwrap();
    let half = NodeSpec { range: RIGHT, ..spec(place(4), 1, RIGHT, None) };
    write_internal(&mut bytes, &half, &[(50, place(2))], Integrity::LineVersions);
    memory.write(place(4).offset(), &bytes).unwrap();
    assert_eq!(counted(3), (1, 1), "an inner node");
    assert_eq!(counted(4), (1, 0), "its other half");
}
