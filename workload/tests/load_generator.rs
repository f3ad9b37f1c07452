//! A load generator on a tree of one leaf: what it records, and that it notices wrong answers.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

use std::sync::Arc;

use fatbtree_blink::node::{LeafBuilder, NodeSpec};
use fatbtree_blink::{
    GlobalAddress, KeyRange, Partition, PoolConfig, RemoteSide, Start, SuperRoot, TreeConfig, ValueLayout,
    value,
};
use fatbtree_blink_client::Client;
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Access, Device, Memory};
use fatbtree_workload::ycsb::{KeyMap, Workload, WorkloadSpec, builtin};
use fatbtree_workload::{LoadGenerator, LoopOptions, Values};

/// A server with one leaf of 20 keys, and a client that is connected to it. The server is only kept alive.
fn lab() -> (Client<PlainDevice>, PlainDevice) {
    let tree = TreeConfig::new(16, 1024, ValueLayout::Inline(8)).unwrap();
    let root = GlobalAddress::new(0, 64);
    let range = KeyRange::ALL;
    let mut memory = Memory::anonymous(64 + 1024).unwrap();
    let spec = NodeSpec { address: root, level: 0, range, sibling: GlobalAddress::NULL, version: 1 };
    let mut leaf = LeafBuilder::new(&mut memory.as_mut_slice()[64..], tree.leaf_shape(), spec);
    for key in 0..20 {
        value::fill(key, 1, leaf.push_inline(key));
    }
    leaf.finish();

    let network = PlainNetwork::new();
    let (mut server, device) = (network.device(), network.device());
    let region = server.register(&Arc::new(memory), 0, Access::READ).unwrap();
    let roots = SuperRoot::new(vec![Partition { id: 0, range, root, root_level: 0 }]).unwrap();
    let config = PoolConfig { tree, ..PoolConfig::default() };
    let client = Client::new(device, config, roots, 1).unwrap();
    let id = client.pool().connections()[0];
    let local = client.pool().open(id).unwrap();
    let queue_pair = server.create().unwrap();
    server.connect(queue_pair, &local).unwrap();
    let endpoint = server.endpoint(queue_pair).unwrap();
    client.pool().connected(id, RemoteSide { endpoint, rkey: region.rkey, registered: false }).unwrap();
    (client, server)
}

/// The workload of `recordcount` keys 0, 1, ..., one after the other.
fn one_after_the_other(records: u64) -> Workload {
    let mut properties = builtin("c").unwrap();
    properties.set("recordcount", &records.to_string());
    properties.set("requestdistribution", "sequential");
    let spec = WorkloadSpec::from_properties(&properties).unwrap();
    Workload::new(&spec, KeyMap::Ordered, 1).unwrap()
}

/// What goes wrong is told, the first of it in words; a second run adds to the first.
#[test]
fn a_load_generator_records_every_answer() {
    let (client, _server) = lab();
    let options = LoopOptions { start: Start::IndexRead, depth: 1 };
    let mut done = LoadGenerator::new();
    let mut run = |values: Values, records| {
        let mut now = client.pool().reactor().now();
        let mut workload = one_after_the_other(records);
        let work = done.run(&client, &mut workload, records, options, &values);
        let tick = |_: &mut _| {
            now += Duration::from_micros(1);
            now
        };
        client.pool().reactor().run(work, tick).unwrap();
    };
    run(Values::new(1, 8), 22);
    run(Values::new(2, 8), 3);
    run(Values::new(1, 7), 1);
    assert!(done.elapsed() >= Duration::from_micros(26));
    assert_eq!(done.first_wrong(), Some("READ of key 0x14: NotFound"), "the tree has 20 keys");
    let summary = done.summary(&client);
    assert_eq!((summary.operations, summary.found), (26, 20));
    assert_eq!((summary.not_found, summary.wrong_answers), (2, 4), "another seed, and another length");
    assert_eq!(summary.troubles.unregistered, 26, "no switch was told of the client");
}

/// A scan of a tree of one leaf is one round trip; one that is told of a key that the tree does not have is wrong.
#[test]
fn a_load_generator_scans() {
    let (client, _server) = lab();
    let mut properties = builtin("e").unwrap();
    for (name, value) in [("recordcount", "20"), ("scanproportion", "1"), ("insertproportion", "0")] {
        properties.set(name, value);
    }
    let spec = WorkloadSpec::from_properties(&properties).unwrap();
    let options = LoopOptions { start: Start::Root, depth: 2 };
    let run = |keys: std::ops::Range<u64>| {
        let mut workload = Workload::new(&spec, KeyMap::Ordered, 1).unwrap();
        let values = Values::new(1, 8).with_keys(keys.collect());
        let mut done = LoadGenerator::new();
        client.pool().reactor().block_on(done.run(&client, &mut workload, 100, options, &values)).unwrap();
        done.summary(&client)
    };
    let right = run(0..20);
    assert_eq!((right.found, right.round_trips), (100, 1.0));
    assert!(run(0..21).wrong_answers > 0, "scans that reach the end miss the last key");
}
