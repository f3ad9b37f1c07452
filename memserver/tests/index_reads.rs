//! Wherever an index read lands, the answer is right: on any node of the path, on a stale one, on a wrong one, on
//! something that is no node at all.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

mod common;

use common::{load, map_of, no_switch, probes, roots};
use fatbtree_index::node::NodeHeader;
use fatbtree_index::plain::{self, PlainVerbs, Regions};
use fatbtree_index::{
    GlobalAddress, KeyRange, Limits, Lookup, LookupError, OpId, Outcome, Progress, ReadFailure, Start, Tree,
    TreeConfig, ValueLayout,
};
use fatbtree_memserver::{Cluster, LoadOptions, LoadedTree, load_cluster, varying};
use proptest::collection::btree_set;
use proptest::prelude::*;

fn nodes(tree: &LoadedTree) -> Vec<GlobalAddress> {
    let memory = Regions::new([(tree.partition.id, &tree.region[..])]);
    let walk = Tree::new(&memory, &tree.config, &tree.partition);
    let mut nodes = vec![];
    walk.for_each_internal(|node| nodes.push(node.header().address)).unwrap();
    walk.for_each_leaf(|leaf| nodes.push(leaf.header().address)).unwrap();
    nodes
}

fn config(layout: ValueLayout) -> TreeConfig {
    TreeConfig::new(3, 320, layout).unwrap()
}

fn cluster(config: &TreeConfig, servers: u16, keys: &[u64]) -> Cluster {
    let mut values = varying(
        |key| common::length(config, key),
        |key, out: &mut [u8]| fatbtree_index::value::fill(key, common::SEED, out),
    );
    load_cluster(&LoadOptions::new(*config, 0), servers, keys, &mut values).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn landing_on_any_node_of_the_path_saves_the_trips_above(
        keys in btree_set(prop_oneof![0..200_u64, any::<u64>()], 1..150),
        inline in any::<bool>(),
    ) {
        let keys: Vec<u64> = keys.into_iter().collect();
        let config = config(if inline { ValueLayout::Inline(8) } else { ValueLayout::OutOfLine });
        let tree = load(&LoadOptions::new(config, 5), &keys);
        let map = map_of(&config, &keys);
        let memory = Regions::new([(5, &tree.region[..])]);
        let roots = roots(&tree);
        let walk = Tree::new(&memory, &config, &tree.partition);
        for key in probes(&keys) {
            let expected = map.get(&key).map_or(Outcome::NotFound, |value| Outcome::Found(value));
            let record = u32::from(map.contains_key(&key) && !inline);
            for step in walk.find_node_path(key).unwrap() {
                let (outcome, trips) = plain::lookup(&memory, &config, &roots, key, Start::IndexRead, |partition, k| {
                    assert_eq!((partition, k), (5, key));
                    step.address
                });
                prop_assert_eq!(outcome, expected);
                prop_assert_eq!(trips.landed, Some(step.level));
                prop_assert_eq!(trips.round_trips, u32::from(step.level) + 1 + record);
                // The same from a client's own cache.
                let start = Start::Node { address: step.address, level: step.level };
                prop_assert_eq!(plain::lookup(&memory, &config, &roots, key, start, no_switch).0, expected);
            }
        }
    }

    #[test]
    fn landing_anywhere_else_is_harmless(
        keys in btree_set(0..300_u64, 4..80),
        layout in prop_oneof![Just(ValueLayout::OutOfLine), Just(ValueLayout::Inline(8)), Just(ValueLayout::Inline(60))],
        offset in any::<prop::sample::Index>(),
    ) {
        let keys: Vec<u64> = keys.into_iter().collect();
        let config = config(layout);
        let cluster = cluster(&config, 2, &keys);
        let memory = cluster.memory();
        let map = map_of(&config, &keys);
        let everywhere: Vec<_> = cluster.trees.iter().flat_map(nodes).collect();
        let probes: Vec<u64> = (0..302).step_by(7).chain([u64::MAX]).collect();
        for key in probes {
            let expected = map.get(&key).map_or(Outcome::NotFound, |value| Outcome::Found(value));
            for &at in &everywhere {
                let (outcome, trips) = plain::lookup(&memory, &config, &cluster.roots, key, Start::IndexRead, |_, _| at);
                prop_assert_eq!(outcome, expected, "landed at {}", at);
                let wrong_server = at.server() != cluster.roots.partition_of(key).root.server();
                prop_assert!(!wrong_server || trips.restarts == 1);
            }
            // Inside a record, between nodes, anywhere.
            let region = cluster.roots.partition_of(key).root.server();
            let size = cluster.trees[usize::from(region)].region.len();
            let at = GlobalAddress::new(region, 1 + offset.index(size - config.max_node_bytes() as usize) as u64);
            let found = plain::lookup(&memory, &config, &cluster.roots, key, Start::IndexRead, |_, _| at).0;
            prop_assert_eq!(found, expected, "landed at {}", at);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic_nor_loop(
        bytes in prop::collection::vec(any::<u8>(), 0..1100),
        level in 0..3_u8,
        format in prop_oneof![Just(0_u8), Just(8), Just(255), any::<u8>()],
        count in any::<u16>(),
    ) {
        let mut bytes = bytes;
        // Make some of it look like a node.
        if bytes.len() >= 64 {
            bytes[1..6].copy_from_slice(&[level, 0x7e, 0xfb, 0, format]);
            bytes[6..8].copy_from_slice(&count.to_le_bytes());
            let version = bytes[0];
            bytes.chunks_mut(64).for_each(|line| line[0] = version);
        }
        for layout in [ValueLayout::OutOfLine, ValueLayout::Inline(8), ValueLayout::Inline(64)] {
            let config = TreeConfig::new(16, 1024, layout).unwrap();
            let mut region = vec![0; 64];
            region.extend(&bytes);
            let root = GlobalAddress::new(0, 64);
            let roots = fatbtree_index::SuperRoot::new(vec![fatbtree_index::Partition {
                id: 0, range: KeyRange::ALL, root, root_level: level,
            }]).unwrap();
            let memory = Regions::new([(0, &region[..])]);
            for start in [Start::Root, Start::IndexRead] {
                let (_, trips) = plain::lookup(&memory, &config, &roots, 5, start, |_, _| root);
                prop_assert!(trips.round_trips < 1000);
            }
        }
    }
}

#[test]
fn unregistered_index_read_is_reported_and_the_lookup_can_go_on() {
    let config = TreeConfig::default();
    let tree = load(&LoadOptions::new(config, 0), &[1, 2, 3]);
    let memory = Regions::new([(0, &tree.region[..])]);
    let roots = roots(&tree);
    let mut verbs = PlainVerbs::new(&memory, no_switch);
    let mut lookup = Lookup::new(OpId(9), &config);
    lookup.reset(2);
    lookup.start(&roots, Start::IndexRead, &mut verbs).unwrap();
    let (op, failure) = verbs.complete().unwrap();
    assert_eq!(op, OpId(9));
    let outcome = lookup.on_failure(failure.unwrap_err());
    let failure = ReadFailure::RemoteAccess;
    assert_eq!(outcome, Outcome::Failed(LookupError::IndexRead { key: 2, partition: 0, failure }));
    // Reconnected: walk ordinarily.
    lookup.restart(&mut verbs).unwrap();
    let value = common::value_of(&config, 2);
    let leaf = verbs.complete().unwrap().1.unwrap();
    assert_eq!(lookup.on_read(leaf, &mut verbs), Ok(Progress::Posted));
    assert_eq!(lookup.accepted(), Some((tree.partition.root, 0)));
    let record = verbs.complete().unwrap().1.unwrap();
    assert_eq!(lookup.on_read(record, &mut verbs), Ok(Progress::Done(Outcome::Found(&value))));
    assert_eq!((lookup.trips().round_trips, lookup.trips().restarts), (3, 1));
}

#[test]
fn freed_root_is_an_error_not_a_loop() {
    let config = TreeConfig::default();
    let mut tree = load(&LoadOptions::new(config, 0), &[1, 2, 3]);
    NodeHeader::set_free(&mut tree.region[tree.partition.root.offset() as usize..]);
    let memory = Regions::new([(0, &tree.region[..])]);
    let (outcome, trips) = plain::lookup(&memory, &config, &roots(&tree), 2, Start::Root, no_switch);
    let Outcome::Failed(error @ LookupError::GaveUp { key: 2, restarts: 8, .. }) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(error.to_string().ends_with("the last node was refused: node was freed"), "{error}");
    assert_eq!(trips.round_trips, 1 + Limits::default().restarts);
}

#[test]
fn freed_node_under_an_index_read_costs_one_trip() {
    let config = config(ValueLayout::Inline(8));
    let keys: Vec<u64> = (0..100).collect();
    let tree = load(&LoadOptions::new(config, 0), &keys);
    let mut region = tree.region.clone();
    // A leaf was freed after the switch had learned of it.
    let stale = GlobalAddress::new(0, region.len() as u64);
    region.extend_from_slice(&tree.region[64..64 + 320]);
    let at = stale.offset() as usize;
    region[at + 16..at + 24].copy_from_slice(&stale.raw().to_le_bytes());
    NodeHeader::set_free(&mut region[at..]);
    let memory = Regions::new([(0, &region[..])]);
    let (outcome, trips) = plain::lookup(&memory, &config, &roots(&tree), 0, Start::IndexRead, |_, _| stale);
    assert_eq!(outcome, Outcome::Found(&common::value_of(&config, 0)));
    assert_eq!((trips.restarts, trips.landed), (1, None));
    assert_eq!(trips.round_trips, 1 + u32::from(tree.partition.root_level) + 1);
}

#[test]
fn key_that_moved_right_is_followed() {
    let config = config(ValueLayout::Inline(8));
    let keys: Vec<u64> = (0..40).map(|i| i * 10).collect();
    let tree = load(&LoadOptions::new(config, 0), &keys);
    let memory = Regions::new([(0, &tree.region[..])]);
    let mut leaves = vec![];
    let walk = Tree::new(&memory, &config, &tree.partition);
    walk.for_each_leaf(|leaf| leaves.push(leaf.header().address)).unwrap();
    let key = *keys.last().unwrap();
    for (index, &leaf) in leaves.iter().enumerate() {
        let (outcome, trips) =
            plain::lookup(&memory, &config, &roots(&tree), key, Start::IndexRead, |_, _| leaf);
        assert_eq!(outcome, Outcome::Found(&common::value_of(&config, key)));
        let steps = (leaves.len() - 1 - index) as u32;
        assert_eq!((trips.siblings_followed, trips.round_trips), (steps, steps + 1));
    }
    // With a bound, the walk begins again at the root instead.
    let mut lookup = Lookup::new(OpId(0), &config).with_limits(Limits { siblings: 2, ..Limits::default() });
    lookup.reset(key);
    let mut verbs = PlainVerbs::new(&memory, |_, _| leaves[0]);
    lookup.start(&roots(&tree), Start::IndexRead, &mut verbs).unwrap();
    while lookup.on_read(verbs.complete().unwrap().1.unwrap(), &mut verbs).unwrap() == Progress::Posted {}
    assert_eq!((lookup.trips().siblings_followed, lookup.trips().restarts), (2, 1));
}

#[test]
fn torn_lines_are_read_again() {
    for layout in
        [ValueLayout::OutOfLine, ValueLayout::Inline(8), ValueLayout::Inline(54), ValueLayout::Inline(64)]
    {
        let config = TreeConfig::new(7, 512, layout).unwrap();
        let keys: Vec<u64> = (0..200).collect();
        let tree = load(&LoadOptions { fill: 1.0, ..LoadOptions::new(config, 0) }, &keys);
        let memory = Regions::new([(0, &tree.region[..])]);
        let key = 100;
        let value = common::value_of(&config, key);
        let path = Tree::new(&memory, &config, &tree.partition).find_node_path(key).unwrap();
        for start in [Start::Root, Start::IndexRead] {
            for (depth, step) in path.iter().enumerate() {
                let lines = config.node_bytes(step.level) as usize / 64;
                for line in 0..lines {
                    let mut verbs = PlainVerbs::new(&memory, |_, _| tree.partition.root);
                    let mut lookup = Lookup::new(OpId(0), &config);
                    lookup.reset(key);
                    lookup.start(&roots(&tree), start, &mut verbs).unwrap();
                    let mut reads = 0;
                    let found = loop {
                        let bytes = verbs.complete().unwrap().1.unwrap();
                        let mut torn = bytes.to_vec();
                        if reads == depth {
                            // Another version, as a write in progress leaves behind.
                            let wide = step.level == 0 && config.leaf_shape().is_wide();
                            torn[line * 64 + fatbtree_index::node::version_offset(line, wide)] ^= 1;
                        }
                        let bytes = if reads == depth { &torn } else { bytes };
                        reads += 1;
                        match lookup.on_read(bytes, &mut verbs).unwrap() {
                            Progress::Posted => {}
                            Progress::Done(outcome) => break outcome == Outcome::Found(&value),
                        }
                    };
                    assert!(found);
                    let trips = lookup.trips();
                    assert_eq!(
                        (trips.retries, trips.restarts),
                        (1, 0),
                        "line {line} at level {}",
                        step.level
                    );
                }
            }
        }
    }
}

#[test]
fn two_versions_of_a_wide_entry_and_of_a_record_are_compared() {
    let wide = TreeConfig::new(16, 1024, ValueLayout::Inline(64)).unwrap();
    let pointers = TreeConfig::default();
    for config in [wide, pointers] {
        let mut tree = load(&LoadOptions::new(config, 0), &[7]);
        let whole = tree.region.clone();
        let len = tree.region.len();
        // The rear copy: in the second line of the entry, at the end of the record.
        let rear = if config == wide { 64 + 64 + 126 } else { len - 8 };
        let rear = if config == pointers {
            // 7 % 5 = 2: a value of 7 bytes; the record is padded from 27 to 32 bytes.
            len - 32 + 23
        } else {
            rear
        };
        tree.region[rear] ^= 1;
        let torn = Regions::new([(0, &tree.region[..])]);
        let (outcome, trips) = plain::lookup(&torn, &config, &roots(&tree), 7, Start::Root, no_switch);
        let Outcome::Failed(LookupError::GaveUp { fault, .. }) = outcome else { panic!("{outcome:?}") };
        assert!(fault.is_torn(), "{fault}");
        assert!(trips.retries >= Limits::default().torn);
        let memory = Regions::new([(0, &whole[..])]);
        let (outcome, _) = plain::lookup(&memory, &config, &roots(&tree), 7, Start::Root, no_switch);
        assert_eq!(outcome, Outcome::Found(&common::value_of(&config, 7)));
    }
}

#[test]
fn the_outermost_fences_are_the_partitions() {
    let config = config(ValueLayout::Inline(8));
    let range = KeyRange { low: 50, high: Some(5000) };
    let tree = load(&LoadOptions { range, ..LoadOptions::new(config, 2) }, &(60..400).collect::<Vec<_>>());
    let memory = Regions::new([(2, &tree.region[..])]);
    let walk = Tree::new(&memory, &config, &tree.partition);
    let mut levels = std::collections::BTreeMap::<u8, Vec<KeyRange>>::new();
    walk.for_each_internal(|node| levels.entry(node.header().level).or_default().push(node.header().range()))
        .unwrap();
    walk.for_each_leaf(|leaf| levels.entry(0).or_default().push(leaf.header().range())).unwrap();
    assert_eq!(levels.len(), usize::from(tree.partition.root_level) + 1);
    for (level, ranges) in levels {
        // Each node begins where the one to its left ends.
        let (lows, highs): (Vec<_>, Vec<_>) =
            ranges.iter().map(|range| (Some(range.low), range.high)).unzip();
        assert_eq!([&lows[..], &[Some(5000)]].concat(), [&[Some(50)], &highs[..]].concat(), "level {level}");
    }
}

#[test]
fn node_of_another_server_is_refused_even_if_its_fences_fit() {
    let config = config(ValueLayout::Inline(8));
    let ours = load(&LoadOptions::new(config, 0), &[1, 2, 3]);
    let foreign = load(&LoadOptions::new(config, 1), &[5]);
    let memory = Regions::new([(0, &ours.region[..]), (1, &foreign.region[..])]);
    let landing = |_, _| foreign.partition.root;
    let (outcome, trips) = plain::lookup(&memory, &config, &roots(&ours), 2, Start::IndexRead, landing);
    assert_eq!(outcome, Outcome::Found(&common::value_of(&config, 2)));
    assert_eq!((trips.restarts, trips.landed), (1, None));
}

#[test]
fn pointer_to_a_node_that_moved_or_changed_its_level_is_stale() {
    let config = config(ValueLayout::Inline(8));
    let keys: Vec<u64> = (0..100).map(|i| i * 2).collect();
    let tree = load(&LoadOptions::new(config, 0), &keys);
    let roots = roots(&tree);
    let key = 42;
    let memory = Regions::new([(0, &tree.region[..])]);
    let path = Tree::new(&memory, &config, &tree.partition).find_node_path(key).unwrap();
    let leaf = path.last().unwrap().address.offset() as usize;

    // The bytes of the leaf, without the key, at an address that is not the leaf's own.
    let mut region = tree.region.clone();
    let copy = GlobalAddress::new(0, region.len() as u64);
    let mut bytes = tree.region[leaf..leaf + 320].to_vec();
    for slot in 0..config.leaf_capacity() {
        bytes[config.leaf_shape().entry_offset(slot)] = 0;
    }
    region.extend(bytes);
    let memory = Regions::new([(0, &region[..])]);
    let value = common::value_of(&config, key);
    let starts = [
        Start::Node { address: copy, level: 0 },
        // Internal nodes have one size, so only the level tells.
        Start::Node { address: path[0].address, level: path[0].level - 1 },
        Start::Node { address: path[1].address, level: path[1].level + 1 },
    ];
    for start in starts {
        let (outcome, trips) = plain::lookup(&memory, &config, &roots, key, start, no_switch);
        assert_eq!(outcome, Outcome::Found(&value), "{start:?}");
        assert_eq!(
            (trips.restarts, trips.round_trips),
            (1, 1 + u32::from(tree.partition.root_level) + 1),
            "{start:?}"
        );
    }
}

#[test]
fn record_that_now_belongs_to_another_key_is_not_believed() {
    let config = TreeConfig::default();
    let mut tree = load(&LoadOptions::new(config, 0), &[12, 17]);
    let whole = tree.region.clone();
    // 12 % 5 = 17 % 5 = 2: values of 12 and 17 bytes, records of 32 and 37 bytes, the first at this offset.
    let record = tree.region.len() - 32 - 40;
    assert_eq!(tree.region[record], 12);
    tree.region[record] = 13;
    let stale = Regions::new([(0, &tree.region[..])]);
    let memory = Regions::new([(0, &whole[..])]);
    let roots = roots(&tree);
    // The entry leads to a record that was given to somebody else just now; the next walk sees the new entry.
    let (mut before, mut after) = (PlainVerbs::new(&stale, no_switch), PlainVerbs::new(&memory, no_switch));
    let mut lookup = Lookup::new(OpId(0), &config);
    lookup.reset(12);
    lookup.start(&roots, Start::Root, &mut before).unwrap();
    assert_eq!(lookup.on_read(before.complete().unwrap().1.unwrap(), &mut before), Ok(Progress::Posted));
    assert_eq!(lookup.on_read(before.complete().unwrap().1.unwrap(), &mut after), Ok(Progress::Posted));
    assert_eq!(lookup.trips().restarts, 1);
    assert_eq!(lookup.on_read(after.complete().unwrap().1.unwrap(), &mut after), Ok(Progress::Posted));
    let value = common::value_of(&config, 12);
    let last = lookup.on_read(after.complete().unwrap().1.unwrap(), &mut after);
    assert_eq!(last, Ok(Progress::Done(Outcome::Found(&value))));
}
