//! What several test files need: trees from key sets, and values of every layout.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::collections::{BTreeMap, BTreeSet};

use fatbtree_index::{GlobalAddress, SuperRoot, TreeConfig, ValueLayout, value};
use fatbtree_memserver::{LoadOptions, LoadedTree, bulk_load, varying};

pub const SEED: u64 = 7;

/// Lengths from 0 to 2,999 bytes out of line.
pub fn length(config: &TreeConfig, key: u64) -> u32 {
    match config.values() {
        ValueLayout::Inline(bytes) => bytes.into(),
        ValueLayout::OutOfLine => match key % 5 {
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

pub fn load(options: &LoadOptions, keys: &[u64]) -> LoadedTree {
    let config = options.config;
    let mut values = varying(|key| length(&config, key), |key, out: &mut [u8]| value::fill(key, SEED, out));
    bulk_load(options, keys, &mut values).expect("the keys are fit to be loaded")
}

pub fn roots(tree: &LoadedTree) -> SuperRoot {
    SuperRoot::new(vec![tree.partition]).expect("one partition has all keys")
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

/// No switch: the server refuses index reads.
pub fn no_switch(_partition: u16, _key: u64) -> GlobalAddress {
    GlobalAddress::NULL
}
