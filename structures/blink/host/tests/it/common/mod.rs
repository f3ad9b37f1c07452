//! Helpers of several test files: trees from key sets, values of every layout, clients without a network.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

pub mod lab;
pub mod service;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fatbtree_blink::plain::PlainClient;
use fatbtree_blink::{
    OperationError, Regions, Start, SuperRoot, Tree, TreeConfig, Trips, ValueLayout, value,
};
use fatbtree_blink_host::{LoadOptions, LoadedTree, ValueSource, bulk_load, varying};

pub const SEED: u64 = 7;

/// Lengths from 0 to 2,999 bytes where there are records.
pub fn length(config: &TreeConfig, key: u64) -> u32 {
    match config.values() {
        ValueLayout::Inline(bytes) => bytes.into(),
        ValueLayout::OutOfLine | ValueLayout::ByLength(_) => match key % 5 {
            0 => 0,
            1 => (key % 3000) as u32,
            _ => (key % 40) as u32,
        },
    }
}

pub fn value_of(config: &TreeConfig, key: u64) -> Vec<u8> {
    let mut bytes = vec![0; length(config, key) as usize];
    value::fill(key, SEED, &mut bytes);
    bytes
}

/// The values of a tree of this shape.
pub fn values(config: TreeConfig) -> impl ValueSource {
    varying(move |key| length(&config, key), |key, out: &mut [u8]| value::fill(key, SEED, out))
}

pub fn load(options: &LoadOptions, keys: &[u64]) -> LoadedTree {
    bulk_load(options, keys, &mut values(options.config)).expect("the keys are fit to be loaded")
}

pub fn roots(tree: &LoadedTree) -> SuperRoot {
    SuperRoot::new(vec![tree.partition]).expect("one partition has all keys")
}

pub fn memory(tree: &LoadedTree) -> Regions {
    Regions::new([(tree.partition.id, Arc::clone(&tree.region))])
}

/// The tree where it lies.
pub fn walk<'m>(tree: &LoadedTree, memory: &'m Regions) -> Tree<'m> {
    Tree::new(memory, &tree.config, &tree.partition)
}

/// A client of one tree; no switch rewrites its index reads.
pub fn client(tree: &LoadedTree) -> PlainClient {
    PlainClient::new(&memory(tree), &tree.config, &roots(tree))
}

pub type Answer = Result<Option<Vec<u8>>, OperationError>;

pub fn get(client: &PlainClient, key: u64, start: Start) -> (Answer, Trips) {
    let lookup = client.lookup(key, start);
    (lookup.result.map(|value| value.map(|value| value.to_vec())), lookup.trips)
}

pub fn map_of(config: &TreeConfig, keys: &[u64]) -> BTreeMap<u64, Vec<u8>> {
    keys.iter().map(|&key| (key, value_of(config, key))).collect()
}

/// The keys, their neighbours, and both ends of the key space.
pub fn probes(keys: &[u64]) -> BTreeSet<u64> {
    keys.iter()
        .flat_map(|&key| [key.wrapping_sub(1), key, key.wrapping_add(1)])
        .chain([0, 1, u64::MAX - 1, u64::MAX])
        .collect()
}

/// Every key in the leaves, from left to right.
pub fn keys_in_leaves(tree: &LoadedTree) -> Vec<u64> {
    let memory = memory(tree);
    let mut keys = vec![];
    walk(tree, &memory)
        .for_each_leaf(|leaf| keys.extend(leaf.entries().map(|entry| entry.expect("whole").0)))
        .expect("whole");
    keys
}
