//! Loaded keys are found: against a `BTreeMap`, on every kind of tree.
use crate::common;

use common::{client, get, keys_in_leaves, load, map_of, memory, probes, values, walk};
use fatbtree_blink::plain::PlainClient;
use fatbtree_blink::{
    GlobalAddress, Integrity, KeyRange, LeafKind, Start, Superblock, Tree, TreeConfig, ValueLayout,
};
use fatbtree_blink_host::{
    LoadError, LoadOptions, LoadedTree, bulk_load, bulk_load_unsorted, fixed, load_cluster, load_ranges,
    seeded,
};
use proptest::collection::btree_set;
use proptest::prelude::*;

/// Loads and looks up every key, every neighbour, by the walk and by a lookup.
fn agrees_with_map(options: &LoadOptions, keys: &[u64]) {
    let tree = load(options, keys);
    let map = map_of(&options.config, keys);
    let memory = memory(&tree);
    let walk = walk(&tree, &memory);
    let client = client(&tree);
    for key in probes(keys) {
        let expected = map.get(&key).cloned();
        assert_eq!(walk.get(key).unwrap(), expected, "key {key:#x}");
        let is_record = |value: &Vec<u8>| !options.config.leaf_shape().holds(value.len());
        let record = expected.as_ref().is_some_and(is_record);
        let (found, trips) = get(&client, key, Start::Root);
        assert_eq!(found, Ok(expected), "key {key:#x}");
        let height = u32::from(tree.partition.root_level) + 1;
        assert_eq!((trips.round_trips, trips.levels), (height + u32::from(record), height));
        assert_eq!((trips.retries, trips.restarts, trips.siblings_followed), (0, 0, 0));
    }
    let mut loaded = keys_in_leaves(&tree);
    if options.config.leaves() == LeafKind::Buckets {
        // A leaf has them in the order of their buckets.
        loaded.sort_unstable();
    }
    assert_eq!(loaded, keys);
    every_node_can_be_read_whole(&tree);
    superblock_tells(&tree);
}

/// An index read asks for the largest node wherever it lands, and nodes may come to lie anywhere in the spare bytes.
fn every_node_can_be_read_whole(tree: &LoadedTree) {
    let memory = memory(tree);
    let largest = tree.config.max_node_bytes();
    let mut bytes = vec![0; largest as usize];
    let mut check = |at: GlobalAddress| {
        assert!(memory.read(at, &mut bytes).is_ok(), "{at}");
        assert!(at.offset() < tree.spare.start, "{at} lies in spare memory");
    };
    let walk = walk(tree, &memory);
    walk.for_each_internal(|node| check(node.header().address)).unwrap();
    walk.for_each_leaf(|leaf| check(leaf.header().address)).unwrap();
    assert!(tree.spare.end + u64::from(largest) <= tree.region.len(), "padding after all that may be a node");
    assert_eq!(tree.spare.start % 64, 0);
}

fn superblock_tells(tree: &LoadedTree) {
    let mut line = [0; 64];
    tree.region.read(0, &mut line).unwrap();
    let found = Superblock::parse(&line).unwrap();
    assert_eq!((found.partition, found.config), (tree.partition, tree.config));
    assert_eq!((found.generation, found.region_bytes), (tree.generation, tree.region.len()));
}

fn layouts() -> impl Strategy<Value = ValueLayout> {
    prop_oneof![
        Just(ValueLayout::OutOfLine),
        Just(ValueLayout::SHORT),
        (12..=64_u8).prop_map(ValueLayout::ByLength),
        (1..=64_u8).prop_map(ValueLayout::Inline)
    ]
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
        spare_bytes in 0..5000_u64,
        checksums in any::<bool>(),
        buckets in any::<bool>(),
    ) {
        let integrity = Integrity::for_device(!checksums);
        let plain = TreeConfig::with_integrity(fan_out, lines * 64, layout, integrity).unwrap();
        // Wide entries have no buckets.
        let config = plain.with_leaves(if buckets { LeafKind::Buckets } else { LeafKind::Plain }).unwrap_or(plain);
        agrees_with_map(&LoadOptions { fill, spare_bytes, ..LoadOptions::new(config, server) }, &keys);
    }

    #[test]
    fn any_cluster_agrees_with_a_map(
        keys in keys(),
        servers in 1..9_u16,
        layout in layouts(),
        borders in btree_set(any::<u64>(), 0..6),
    ) {
        let config = TreeConfig::new(4, 512, layout).unwrap();
        let options = LoadOptions::new(config, 0);
        let lows: Vec<u64> = borders.into_iter().filter(|low| *low > 0).collect();
        let by_ranges = load_ranges(&options, &[&[0], &lows[..]].concat(), &keys, &mut values(config)).unwrap();
        let by_count = match load_cluster(&options, servers, &keys, &mut values(config)) {
            Err(error) => {
                prop_assert_eq!(error, LoadError::TooFewKeys { keys: keys.len(), servers });
                prop_assert!(keys.len() < usize::from(servers));
                return Ok(());
            }
            Ok(cluster) => cluster,
        };
        let sizes: Vec<_> = by_count.trees.iter().map(|tree| tree.counts.keys).collect();
        prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{:?}", sizes);
        let ranges: Vec<_> = by_ranges.roots.partitions().iter().map(|p| (p.id, p.range)).collect();
        for (at, (id, range)) in ranges.into_iter().enumerate() {
            let low = if at == 0 { 0 } else { lows[at - 1] };
            prop_assert_eq!((usize::from(id), range), (at, KeyRange { low, high: lows.get(at).copied() }));
        }
        let map = map_of(&config, &keys);
        for cluster in [by_count, by_ranges] {
            let client = PlainClient::new(&cluster.memory(), &config, &cluster.roots);
            for key in probes(&keys) {
                prop_assert_eq!(get(&client, key, Start::Root).0, Ok(map.get(&key).cloned()));
            }
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
    let layouts =
        [ValueLayout::OutOfLine, ValueLayout::SHORT, ValueLayout::Inline(8), ValueLayout::Inline(64)];
    for layout in layouts {
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
    let tree = bulk_load(&options, &keys, &mut fixed(1000, |_, _| {})).unwrap();
    // 45 entries per leaf, 33 of them used; 12 children per internal node.
    let leaves = 10_000_u64.div_ceil(33);
    let internal = [leaves.div_ceil(12), leaves.div_ceil(12).div_ceil(12), 1];
    assert_eq!((tree.counts.leaf_nodes, tree.counts.internal_nodes), (leaves, internal.iter().sum()));
    assert_eq!((tree.counts.record_bytes, tree.partition.root_level), (10_000 * 1024, 3));
    let used = 64 + leaves * 1024 + tree.counts.internal_nodes * 384 + 10_000 * 1024;
    assert_eq!(tree.spare, used..used + (1 << 20));
    assert_eq!(tree.region.len(), used + (1 << 20) + 1024, "padding of the largest node");
    assert_eq!(tree.generation, 1);
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
    for spare_bytes in [1 << 48, u64::MAX] {
        assert!(matches!(load(&LoadOptions { spare_bytes, ..options }, &[]), LoadError::TooLarge { .. }));
    }
    for lows in [&[][..], &[1], &[0, 5, 5], &[0, 6, 5]] {
        let error = load_ranges(&options, lows, &[], &mut fixed(8, |_, _| {})).unwrap_err();
        assert_eq!(error, LoadError::Borders { servers: lows.len() });
    }
    // Keys out of order are noticed wherever the borders are.
    for border in [1, 4, 8, 9] {
        let error = load_ranges(&options, &[0, border], &[3, 9, 8], &mut fixed(8, |_, _| {})).unwrap_err();
        assert!(matches!(error, LoadError::Unsorted { .. } | LoadError::OutOfRange { .. }), "{error}");
    }
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

#[test]
fn the_outermost_fences_are_the_partitions() {
    let config = TreeConfig::new(3, 320, ValueLayout::Inline(8)).unwrap();
    let range = KeyRange { low: 50, high: Some(5000) };
    let tree = load(&LoadOptions { range, ..LoadOptions::new(config, 2) }, &(60..400).collect::<Vec<_>>());
    let memory = memory(&tree);
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

/// The parts of a long value are read at once, in as many buffers as the device has: four of 64 KiB and more here. Of 1 MiB the first doorbell
/// is refused for want of buffers, and the answer to the second one is a round trip, too.
#[test]
fn long_values_take_few_round_trips() {
    let config = TreeConfig::new(16, 1024, ValueLayout::OutOfLine).unwrap();
    for (length, most) in [(60_000, 1), (65_512, 1), (65_513, 1), (200_000, 1), (1 << 20, 6)] {
        let tree = bulk_load(&LoadOptions::new(config, 0), &[7, 9], &mut seeded(3, length)).unwrap();
        let client = client(&tree);
        for key in [7, 9] {
            let (found, trips) = get(&client, key, Start::Root);
            let value = found.unwrap().expect("it was loaded");
            assert!(
                value.len() == length as usize && fatbtree_blink::value::check(key, 3, &value),
                "{length}"
            );
            println!("a value of {length} bytes: {} round trips", trips.round_trips);
            assert!(trips.round_trips <= 1 + most, "{length}: {} round trips", trips.round_trips);
        }
    }
}
