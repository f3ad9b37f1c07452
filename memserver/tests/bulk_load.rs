//! What is loaded is what is found: against a `BTreeMap`, on every kind of tree.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

mod common;

use common::{load, map_of, no_switch, probes, roots};
use fatbtree_index::plain::{self, Memory, Regions};
use fatbtree_index::{GlobalAddress, KeyRange, Outcome, Start, Tree, TreeConfig, ValueLayout, value};
use fatbtree_memserver::{
    LoadError, LoadOptions, LoadedTree, bulk_load, bulk_load_unsorted, fixed, load_cluster,
};
use proptest::collection::btree_set;
use proptest::prelude::*;

/// Loads and looks up every key, every neighbour, by the walk and by a lookup.
fn agrees_with_map(options: &LoadOptions, keys: &[u64]) {
    let tree = load(options, keys);
    let map = map_of(&options.config, keys);
    let memory = Regions::new([(options.server, &tree.region[..])]);
    let walk = Tree::new(&memory, &options.config, &tree.partition);
    let roots = roots(&tree);
    for key in probes(keys) {
        let expected = map.get(&key).map(Vec::as_slice);
        assert_eq!(walk.get(key).unwrap(), expected, "key {key:#x}");
        let (outcome, trips) = plain::lookup(&memory, &options.config, &roots, key, Start::Root, no_switch);
        assert_eq!(outcome, expected.map_or(Outcome::NotFound, Outcome::Found), "key {key:#x}");
        let record = expected.is_some() && options.config.values() == ValueLayout::OutOfLine;
        let height = u32::from(tree.partition.root_level) + 1;
        assert_eq!((trips.round_trips, trips.levels), (height + u32::from(record), height));
        assert_eq!((trips.retries, trips.restarts, trips.siblings_followed), (0, 0, 0));
    }
    assert_eq!(keys_in_leaves(&tree), keys);
    every_node_can_be_read_whole(&tree);
}

fn keys_in_leaves(tree: &LoadedTree) -> Vec<u64> {
    let memory = Regions::new([(tree.partition.id, &tree.region[..])]);
    let mut keys = vec![];
    Tree::new(&memory, &tree.config, &tree.partition)
        .for_each_leaf(|leaf| keys.extend(leaf.entries().map(|entry| entry.unwrap().0)))
        .unwrap();
    keys
}

/// An index read asks for the largest node wherever it lands.
fn every_node_can_be_read_whole(tree: &LoadedTree) {
    let memory = Regions::new([(tree.partition.id, &tree.region[..])]);
    let len = tree.config.max_node_bytes();
    let walk = Tree::new(&memory, &tree.config, &tree.partition);
    let check = |at: GlobalAddress| assert!(memory.bytes(at, len).is_some(), "{at}");
    walk.for_each_internal(|node| check(node.header().address)).unwrap();
    walk.for_each_leaf(|leaf| check(leaf.header().address)).unwrap();
}

fn layouts() -> impl Strategy<Value = ValueLayout> {
    prop_oneof![Just(ValueLayout::OutOfLine), (1..=64_u8).prop_map(ValueLayout::Inline)]
}

fn keys() -> impl Strategy<Value = Vec<u64>> {
    let key = prop_oneof![0..400_u64, any::<u64>(), u64::MAX - 400..=u64::MAX];
    btree_set(key, 0..600).prop_map(|keys| keys.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_tree_agrees_with_a_map(
        keys in keys(),
        layout in layouts(),
        fan_out in 2..40_u16,
        lines in 8..=32_u32,
        fill in 0.01..=1.0_f64,
        server in any::<u16>(),
    ) {
        let config = TreeConfig::new(fan_out, lines * 64, layout).unwrap();
        agrees_with_map(&LoadOptions { fill, ..LoadOptions::new(config, server) }, &keys);
    }

    #[test]
    fn any_cluster_agrees_with_a_map(keys in keys(), servers in 1..9_u16, layout in layouts()) {
        let config = TreeConfig::new(4, 512, layout).unwrap();
        let options = LoadOptions::new(config, 0);
        let mut values = fatbtree_memserver::varying(
            |key| common::length(&config, key),
            |key, out: &mut [u8]| value::fill(key, common::SEED, out),
        );
        let cluster = match load_cluster(&options, servers, &keys, &mut values) {
            Err(error) => {
                prop_assert_eq!(error, LoadError::TooFewKeys { keys: keys.len(), servers });
                prop_assert!(keys.len() < usize::from(servers));
                return Ok(());
            }
            Ok(cluster) => cluster,
        };
        let sizes: Vec<_> = cluster.trees.iter().map(|tree| tree.counts.keys).collect();
        prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{:?}", sizes);
        let memory = cluster.memory();
        let map = map_of(&config, &keys);
        for key in probes(&keys) {
            let expected = map.get(&key).map_or(Outcome::NotFound, |value| Outcome::Found(value));
            let found = plain::lookup(&memory, &config, &cluster.roots, key, Start::Root, no_switch).0;
            prop_assert_eq!(found, expected);
        }
    }
}

#[test]
fn every_inline_size() {
    let keys: Vec<u64> = (0..100).map(|i| i * i * i).chain([u64::MAX]).collect();
    for size in 1..=64 {
        let config = TreeConfig::new(16, 1024, ValueLayout::Inline(size)).unwrap();
        agrees_with_map(&LoadOptions { fill: 1.0, ..LoadOptions::new(config, 3) }, &keys);
    }
}

#[test]
fn empty_tree_and_single_key() {
    for layout in [ValueLayout::OutOfLine, ValueLayout::Inline(8), ValueLayout::Inline(64)] {
        let config = TreeConfig::new(16, 1024, layout).unwrap();
        for keys in [&[][..], &[0], &[u64::MAX], &[77], &[0, u64::MAX]] {
            agrees_with_map(&LoadOptions::new(config, 0), keys);
        }
    }
}

#[test]
fn sizes_are_as_documented() {
    let keys: Vec<u64> = (0..10_000).collect();
    let options = LoadOptions { spare_bytes: 1 << 20, ..LoadOptions::new(TreeConfig::default(), 0) };
    let mut tree = bulk_load(&options, &keys, &mut fixed(1000, |_, _| {})).unwrap();
    // 45 entries per leaf, 33 of them used; 12 children per internal node.
    let leaves = 10_000_u64.div_ceil(33);
    let internal = [leaves.div_ceil(12), leaves.div_ceil(12).div_ceil(12), 1];
    assert_eq!((tree.counts.leaf_nodes, tree.counts.internal_nodes), (leaves, internal.iter().sum()));
    assert_eq!((tree.counts.record_bytes, tree.partition.root_level), (10_000 * 1024, 3));
    let used = 64 + leaves * 1024 + tree.counts.internal_nodes * 384 + (1024 - 384) + 10_000 * 1024;
    assert_eq!(tree.region.len() as u64, used + (1 << 20));
    let chunk = tree.chunks.allocate(1 << 19).unwrap();
    assert!(chunk >= used && chunk < used + 64);
}

#[test]
fn bad_input_is_refused_by_name() {
    let options = LoadOptions::new(TreeConfig::default(), 0);
    let load =
        |options: &LoadOptions, keys: &[u64]| bulk_load(options, keys, &mut fixed(8, |_, _| {})).unwrap_err();
    assert_eq!(load(&options, &[1, 3, 2]), LoadError::Unsorted { key: 2, position: 2 });
    assert_eq!(load(&options, &[1, 3, 3]), LoadError::DuplicateKey { key: 3 });
    for fill in [0.0, -1.0, 1.01, f64::NAN] {
        assert!(matches!(load(&LoadOptions { fill, ..options }, &[]), LoadError::Fill { .. }));
    }
    let range = KeyRange { low: 10, high: Some(20) };
    for key in [9, 20] {
        assert_eq!(load(&LoadOptions { range, ..options }, &[key]), LoadError::OutOfRange { key, range });
    }
    let range = KeyRange { low: 10, high: Some(10) };
    assert_eq!(load(&LoadOptions { range, ..options }, &[]), LoadError::EmptyRange { range });
    let config = TreeConfig::new(16, 1024, ValueLayout::Inline(9)).unwrap();
    let error = load(&LoadOptions::new(config, 0), &[5]);
    assert_eq!(error, LoadError::InlineLength { key: 5, found: 8, expected: 9 });
    let huge = LoadOptions { spare_bytes: 1 << 48, ..options };
    assert!(matches!(load(&huge, &[]), LoadError::TooLarge { .. }));
}

#[test]
fn unsorted_keys_are_sorted_and_repetitions_named() {
    let options = LoadOptions::new(TreeConfig::default(), 0);
    let mut keys: Vec<u64> = (0..1000).map(|i| i * 389 % 1000).collect();
    let tree = bulk_load_unsorted(&options, &mut keys, &mut fixed(8, |_, _| {})).unwrap();
    assert_eq!(keys_in_leaves(&tree), (0..1000).collect::<Vec<_>>());
    let error = bulk_load_unsorted(&options, &mut [5, 9, 5], &mut fixed(8, |_, _| {})).unwrap_err();
    assert_eq!(error, LoadError::DuplicateKey { key: 5 });
}
