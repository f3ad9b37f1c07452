//! A region that is filled anew over a former tree.
use crate::common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{client, get, load, map_of, memory, probes, values, walk};
use fatbtree_blink::node::{LINE, MAGIC, Node, NodeHeader, next_version, offsets};
use fatbtree_blink::{Integrity, Start, Superblock, TreeConfig, ValueLayout};
use fatbtree_blink_host::{Load, LoadError, LoadOptions, LoadedTree, bulk_load_over, fixed};
use proptest::collection::btree_set;
use proptest::prelude::*;

fn again(mut tree: LoadedTree, options: &LoadOptions, keys: &[u64]) -> Result<LoadedTree, LoadError> {
    let mut region = Arc::clone(&tree.region);
    tree.region = fatbtree_verbs::Memory::shared(0).unwrap();
    bulk_load_over(&mut region, options, Load::Numbers(keys, &mut values(options.config)))
}

/// Offset and version of every node, and the low bytes of the versions that its lines had.
fn nodes(tree: &LoadedTree) -> BTreeMap<u64, u32> {
    let memory = memory(tree);
    let mut nodes = BTreeMap::new();
    let mut add = |header: &NodeHeader| {
        nodes.insert(header.address.offset(), header.version);
    };
    walk(tree, &memory).for_each_internal(|node| add(node.header())).unwrap();
    walk(tree, &memory).for_each_leaf(|leaf| add(leaf.header())).unwrap();
    nodes
}

fn bytes(tree: &LoadedTree) -> Vec<u8> {
    let mut bytes = vec![0; tree.region.len() as usize];
    tree.region.read(0, &mut bytes).unwrap();
    bytes
}

fn layouts() -> impl Strategy<Value = ValueLayout> {
    prop_oneof![
        Just(ValueLayout::OutOfLine),
        Just(ValueLayout::SHORT),
        (12..=64_u8).prop_map(ValueLayout::ByLength),
        (1..=64_u8).prop_map(ValueLayout::Inline)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No line of the new tree can be taken for one of the old tree's, and no node of the old tree is left.
    #[test]
    fn nothing_of_the_former_tree_is_left(
        before in btree_set(0..100_000_u64, 0..400),
        after in btree_set(0..100_000_u64, 0..400),
        layouts in (layouts(), layouts()),
        lines in (8..=16_u32, 8..=16_u32),
        fan_outs in (2..30_u16, 2..30_u16),
        checksums in any::<bool>(),
    ) {
        let integrity = Integrity::for_device(!checksums);
        let config = |fan_out, lines: u32, layout| {
            TreeConfig::with_integrity(fan_out, lines * 64, layout, integrity).unwrap()
        };
        let first = LoadOptions {
            spare_bytes: 2 << 20,
            ..LoadOptions::new(config(fan_outs.0, lines.0, layouts.0), 3)
        };
        let second = LoadOptions::new(config(fan_outs.1, lines.1, layouts.1), 3);
        let (before, after): (Vec<u64>, Vec<u64>) = (before.into_iter().collect(), after.into_iter().collect());
        let old = load(&first, &before);
        let (old_bytes, old_nodes) = (bytes(&old), nodes(&old));
        let new = again(old, &second, &after).unwrap();
        let (new_bytes, new_nodes) = (bytes(&new), nodes(&new));

        prop_assert_eq!(new.generation, 2);
        let superblock = Superblock::parse(&new_bytes).unwrap();
        prop_assert_eq!((superblock.generation, superblock.partition), (2, new.partition));
        prop_assert_eq!(superblock.region_bytes, new_bytes.len() as u64);
        let former = Superblock::parse(&old_bytes).unwrap();
        prop_assert_ne!(superblock.version, former.version);

        // Each node is one of the new tree.
        for (at, line) in new_bytes.chunks_exact(LINE).enumerate().skip(1) {
            let offset = (at * LINE) as u64;
            let header = NodeHeader::parse(line.first_chunk().unwrap());
            if header.magic == MAGIC && header.address.offset() == offset && old_nodes.contains_key(&offset) {
                let whole = Node::read(&first.config, &new_bytes[at * LINE..]).is_ok();
                prop_assert!(!whole || new_nodes.contains_key(&offset), "old node at {offset:#x}");
            }
        }
        // Versions differ from all that the lines had, and follow what was found.
        for (&offset, &version) in &new_nodes {
            let at = offset as usize;
            let level = new_bytes[at + offsets::LEVEL];
            let old = &old_bytes[at..at + second.config.node_bytes(level) as usize];
            prop_assert!(old.chunks_exact(LINE).all(|line| line[0] != version as u8));
            prop_assert_eq!(version, next_version(old));
        }
        let map = map_of(&second.config, &after);
        let client = client(&new);
        for key in probes(&after).into_iter().chain(before) {
            prop_assert_eq!(get(&client, key, Start::Root).0, Ok(map.get(&key).cloned()));
        }
        prop_assert_eq!(new.spare.end + u64::from(second.config.max_node_bytes()), new.region.len());
    }
}

#[test]
fn versions_in_spare_memory_go_on() {
    let config = TreeConfig::new(16, 1024, ValueLayout::Inline(8)).unwrap();
    let keys: Vec<u64> = (0..5000).collect();
    let mut tree = load(&LoadOptions::new(config, 0), &keys);
    for generation in 2..6 {
        tree = again(tree, &LoadOptions::new(config, 0), &keys).unwrap();
        assert_eq!(tree.generation, generation);
        assert!(nodes(&tree).values().all(|&version| u64::from(version) == generation));
    }
    let last = *nodes(&tree).last_key_value().unwrap().0 as usize;
    let small = again(tree, &LoadOptions::new(config, 0), &[1]).unwrap();
    assert!(small.spare.contains(&(last as u64)));
    let bytes = bytes(&small);
    assert_eq!(next_version(&bytes[last..last + 384]), 6, "who writes a node there goes on from version 5");
    assert_eq!(bytes[last], 5, "so do its lines");
}

#[test]
fn versions_of_records_go_on() {
    let options = LoadOptions::new(TreeConfig::default(), 0);
    let mut tree = load(&options, &[12]);
    for version in 1..4 {
        let mut found = [0; 4];
        tree.region.read(64 + 1024 + 4, &mut found).unwrap();
        assert_eq!(u32::from_le_bytes(found), version);
        tree = again(tree, &options, &[12]).unwrap();
    }
}

/// A load that ends in the middle leaves a region that is not taken for a tree, but that can be filled again.
#[test]
fn a_load_that_is_broken_off_leaves_no_root() {
    let options = LoadOptions::new(TreeConfig::default(), 0);
    let keys: Vec<u64> = (0..1000).collect();
    let mut region = load(&options, &keys).region;
    let mut breaks_off = fixed(8, |key, _: &mut [u8]| assert!(key < 500, "no more"));
    let load = || bulk_load_over(&mut region, &options, Load::Numbers(&keys[..900], &mut breaks_off));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(load)).is_err());
    let mut line = [0; LINE];
    region.read(0, &mut line).unwrap();
    let found = Superblock::parse(&line).unwrap();
    assert!(found.partition.root.is_null() && found.generation == 2, "{found:?}");
    let tree =
        bulk_load_over(&mut region, &options, Load::Numbers(&keys, &mut values(options.config))).unwrap();
    assert_eq!((tree.generation, tree.counts.keys), (3, 1000));
    assert_eq!(common::keys_in_leaves(&tree), keys);
}

#[test]
fn what_cannot_be_filled_anew_is_left_alone() {
    let options = LoadOptions::new(TreeConfig::default(), 0);
    let tree = load(&options, &[1, 2, 3]);
    let whole = bytes(&tree);
    let mut region = Arc::clone(&tree.region);
    let over = |region: &mut _, options: &_, keys: &[u64]| {
        bulk_load_over(region, options, Load::Numbers(keys, &mut values(options.config))).unwrap_err()
    };
    assert_eq!(over(&mut region, &options, &[1]), LoadError::Shared);
    drop(tree.region);
    let error = over(&mut region, &options, &(0..10_000).collect::<Vec<_>>());
    assert!(
        matches!(error, LoadError::RegionTooSmall { found, .. } if found == whole.len() as u64),
        "{error}"
    );
    let error = over(&mut region, &LoadOptions { spare_bytes: 1, ..options }, &[1, 2, 3]);
    assert!(matches!(error, LoadError::RegionTooSmall { .. }), "{error}");
    let mut found = vec![0; whole.len()];
    region.read(0, &mut found).unwrap();
    assert_eq!(found, whole);

    region.write(3, b"?").unwrap();
    assert!(matches!(over(&mut region, &options, &[1]), LoadError::Foreign { .. }));
    region.write(0, &[0; 64]).unwrap();
    let tree =
        bulk_load_over(&mut region, &options, Load::Numbers(&[1], &mut values(options.config))).unwrap();
    assert_eq!(tree.generation, 1, "memory that was never filled");
}
