//! Queries to a server that has lost its tree, or has been loaded with a tree of another layout: their clients are told so, or served, and never that
//! data is damaged.

use fatbtree_blink::{Integrity, LeafKind, TreeConfig, ValueLayout};
use fatbtree_blink_host::{Layout, LoadOptions, bulk_load, seeded};
use fatbtree_query::{Answer, Ask, Requester, RequesterOptions};
use fatbtree_verbs::time::Duration;
use fatbtree_wire::query::Status;

use crate::lab::{Lab, RANGE, SEED, Worker, ask, config, value_of};

#[test]
fn a_query_for_a_lost_tree_is_refused_by_that_name_until_it_is_loaded() {
    let mut lab = Lab::new(&[]);
    let mut worker = lab.worker(1);
    let mut client = Requester::new(RequesterOptions::default(), 1);
    let mut say = |lab: &mut Lab, worker: &mut Worker, what| ask(lab, worker, &mut client, 1, what, |_| ());
    assert_eq!(say(&mut lab, &mut worker, Ask::get(1000)), Answer::NotFound);
    let generation = lab.server.info().generation;
    lab.server.known_before(generation + 1);
    let asks = [
        Ask::get(1000),
        Ask::scan(1000, 2000, 10),
        Ask::put(1000, value_of(1000, 1)),
        Ask::update(1000, value_of(1000, 1)),
        Ask::delete(1000),
    ];
    for what in asks {
        assert_eq!(say(&mut lab, &mut worker, what.clone()), Answer::Refused(Status::TreeLost), "{what:?}");
    }
    let load = LoadOptions {
        spare_bytes: 4 << 20,
        range: RANGE,
        generation: generation + 2,
        ..LoadOptions::new(config(Integrity::Checksums), 1)
    };
    // The longest pause before a session is asked for again.
    lab.now += Duration::from_secs(1);
    let now = lab.now;
    lab.server.install(now, bulk_load(&load, &[1000], &mut seeded(SEED, 20)).unwrap()).unwrap();
    worker.settle(&mut lab);
    assert_eq!(say(&mut lab, &mut worker, Ask::get(1000)), Answer::Value(value_of(1000, SEED)));
    assert_eq!(worker.worker.stats().damaged, 0);
}

/// The workers are made anew for it: a worker of the former layout would take each leaf for a damaged one.
#[test]
fn queries_go_on_after_a_load_with_another_layout() {
    let mut lab = Lab::new(&[1000]);
    let mut worker = lab.worker(1);
    let mut client = Requester::new(RequesterOptions::default(), 1);
    let (mut config, mut replaced) = (config(Integrity::Checksums), 0);
    for (values, leaves) in [
        (ValueLayout::OutOfLine, LeafKind::Plain),
        (ValueLayout::SHORT, LeafKind::Plain),
        (ValueLayout::ByLength(20), LeafKind::Plain),
        (ValueLayout::ByLength(20), LeafKind::Buckets),
        (ValueLayout::ByLength(20), LeafKind::Buckets),
        (ValueLayout::OutOfLine, LeafKind::Plain),
    ] {
        let next = Layout { values: Some(values), leaves: Some(leaves), ..Layout::default() }
            .after(&config)
            .unwrap();
        replaced += u32::from(next != config);
        config = next;
        let generation = lab.server.info().generation + 1;
        let load =
            LoadOptions { spare_bytes: 4 << 20, range: RANGE, generation, ..LoadOptions::new(config, 1) };
        let keys = [1000 + generation, 5000];
        let tree = bulk_load(&load, &keys, &mut seeded(SEED, 20)).unwrap();
        let now = lab.now;
        lab.server.install(now, tree).unwrap();
        worker.settle(&mut lab);
        for key in keys {
            let found = ask(&mut lab, &mut worker, &mut client, 1, Ask::get(key), |_| ());
            assert_eq!(found, Answer::Value(value_of(key, SEED)), "{values}, {leaves:?}");
        }
        let put = Ask::put(7000, value_of(7000, 1));
        assert_eq!(ask(&mut lab, &mut worker, &mut client, 1, put, |_| ()), Answer::Written);
        assert_eq!((worker.replaced, worker.worker.stats().damaged), (replaced, 0));
    }
}

/// Clients know nodes of these sizes, and another partition is not this server's.
#[test]
fn a_tree_of_other_nodes_does_not_follow() {
    let mut lab = Lab::new(&[1000]);
    let own = config(Integrity::Checksums);
    let with = |fan_out, leaf_bytes| {
        TreeConfig::with_integrity(fan_out, leaf_bytes, own.values(), own.integrity()).unwrap()
    };
    for (config, server, follows) in
        [(with(6, 256), 1, false), (with(5, 320), 1, false), (own, 2, false), (own, 1, true)]
    {
        let generation = lab.server.info().generation + 1;
        let load = LoadOptions {
            spare_bytes: 4 << 20,
            range: RANGE,
            generation,
            ..LoadOptions::new(config, server)
        };
        let tree = bulk_load(&load, &[1000], &mut seeded(SEED, 20)).unwrap();
        let (now, before) = (lab.now, *lab.server.info());
        let installed = lab.server.install(now, tree);
        assert_eq!(installed.is_ok(), follows, "{config:?}, {installed:?}");
        assert_eq!(*lab.server.info() == before, !follows);
    }
}
