//! Ends of loaded nodes: at short separators, and at places that are good for them.
use crate::common;

use common::{load, memory, values, walk};
use fatbtree_blink::{KeyRange, TreeConfig, ValueLayout, separator};
use fatbtree_blink_host::{LoadError, LoadOptions, LoadedTree, load_cluster};
use proptest::collection::btree_set;
use proptest::prelude::*;

/// Range and size of each node, level by level from the leaves up, each from left to right.
fn levels(tree: &LoadedTree) -> Vec<Vec<(KeyRange, usize)>> {
    let memory = memory(tree);
    let walk = walk(tree, &memory);
    let mut levels = vec![vec![]; usize::from(tree.partition.root_level) + 1];
    walk.for_each_leaf(|leaf| levels[0].push((leaf.header().range(), leaf.entries().count()))).unwrap();
    walk.for_each_internal(|node| {
        levels[usize::from(node.header().level)].push((node.header().range(), node.count()));
    })
    .unwrap();
    levels
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nodes_end_at_the_best_place_in_reach_and_hold_about_the_same(
        keys in btree_set(prop_oneof![0..4000_u64, any::<u64>()], 1..2000),
        fan_out in 2..40_u16, lines in 8..=32_u32, fill in 0.05..=1.0_f64,
    ) {
        let keys: Vec<u64> = keys.into_iter().collect();
        let config = TreeConfig::new(fan_out, lines * 64, ValueLayout::Inline(8)).unwrap();
        let tree = load(&LoadOptions { fill, ..LoadOptions::new(config, 0) }, &keys);
        let mut things = keys.len();
        // Separators of the cuts before each thing of the level below: of keys first.
        let mut shortest: Vec<u64> = keys.windows(2).map(|pair| separator(pair[0], pair[1])).collect();
        for (level, nodes) in levels(&tree).into_iter().enumerate() {
            let capacity = if level == 0 { config.leaf_capacity() } else { usize::from(fan_out) };
            let reach = things.div_ceil(nodes.len()) / 6;
            let mut from = 0_usize;
            for (index, (range, size)) in nodes.iter().enumerate() {
                prop_assert!((1..=capacity).contains(size), "{} of {}", size, capacity);
                let even = |index: usize| things * index / nodes.len();
                prop_assert!(from.abs_diff(even(index)) <= reach, "node {} begins at {}", index, from);
                let to = from + size;
                prop_assert_eq!(range.high, shortest.get(to - 1).copied());
                if let Some(high) = range.high {
                    // What a node and those after it can hold bounds the choice; see that it did not here.
                    let after = nodes.len() - index - 1;
                    let least = (from + 1).max(things.saturating_sub(after * capacity));
                    let most = (from + capacity).min(things - after);
                    let wanted = even(index + 1);
                    for at in least.max(wanted.saturating_sub(reach))..=most.min(wanted + reach) {
                        let zeros = (shortest[at - 1].trailing_zeros(), high.trailing_zeros());
                        prop_assert!(zeros.0 <= zeros.1, "a cut at {at} of level {level} is better than at {to}");
                        if zeros.0 == zeros.1 {
                            prop_assert!(at.abs_diff(wanted) >= to.abs_diff(wanted), "a nearer cut at {at} than {to}");
                        }
                    }
                }
                from = to;
            }
            prop_assert_eq!(from, things);
            things = nodes.len();
            shortest = nodes.iter().skip(1).map(|(range, _)| range.low).collect();
        }
    }
}

#[test]
fn fences_of_dense_keys_are_round_and_leaves_as_full_as_before() {
    let keys: Vec<u64> = (0..100_000).collect();
    let config = TreeConfig::new(16, 1024, ValueLayout::Inline(12)).unwrap();
    let tree = load(&LoadOptions::new(config, 0), &keys);
    let levels = levels(&tree);
    assert_eq!((config.leaf_capacity(), levels[0].len()), (45, 100_000_usize.div_ceil(33)));
    let zeros = |level: usize| levels[level][1..].iter().map(|(range, _)| range.low.trailing_zeros());
    assert!(zeros(0).all(|zeros| zeros >= 3), "of eleven keys one is a multiple of 8");
    // Where a cut has no choice, a fence has one zero on average.
    let mean = |level: usize| f64::from(zeros(level).sum::<u32>()) / zeros(level).count() as f64;
    assert!(mean(0) > 4.0 && mean(1) > mean(0) + 1.0, "{} zeros, one level up {}", mean(0), mean(1));
    let sizes: Vec<usize> = levels[0].iter().map(|(_, size)| *size).collect();
    assert!(sizes.iter().all(|size| (22..=44).contains(size)), "{sizes:?}");
}

#[test]
fn partitions_of_a_cluster_begin_at_separators() {
    let config = TreeConfig::default();
    let options = LoadOptions::new(config, 0);
    let keys = [3, 0x11, 0x12, 0x2f, 0x31, 0x42];
    let cluster = load_cluster(&options, 3, &keys, &mut values(config)).unwrap();
    let lows: Vec<u64> = cluster.roots.partitions().iter().map(|partition| partition.range.low).collect();
    assert_eq!(lows, [0, 0x12, 0x30]);
    let error = |keys: &[u64]| load_cluster(&options, 2, keys, &mut values(config)).unwrap_err();
    assert_eq!(error(&[1, 2, 2, 3]), LoadError::DuplicateKey { key: 2 });
    assert_eq!(error(&[1, 5, 4, 6]), LoadError::Unsorted { key: 4, position: 2 });
}
