//! The writers' trees are trees, when nobody disturbs them.

use std::cell::Cell;

use fatbtree_blink::{KeyRange, Regions, Superblock, Tree};
use fatbtree_verbs::Memory;
use rand::RngExt as _;

use crate::trees::Scenario;
use crate::trees::model::{Change, Model};
use crate::trees::setting::{do_now, next_word};
use crate::trees::space::Space;
use crate::trees::values;
use crate::world::{Random, random};

fn any_change(
    model: &mut Model,
    key: u64,
    words: &Cell<u64>,
    length: u32,
    draw: &mut Random,
) -> Option<Change> {
    match draw.random_range(0..10) {
        0..5 if model.has_no_room(key) => model.split_leaf(key, draw),
        0..5 => model.upsert(key, next_word(words), length, draw),
        5 => model.delete(key),
        6 => model.split_any(draw),
        7 => model.merge(draw),
        8 => model.adopt(draw),
        _ => Some(model.rewrite(draw)),
    }
}

/// After each change every key is where a walk from the root that the superblock names finds it.
#[test]
fn what_the_model_says_is_in_memory() {
    let mut highest = 0;
    for seed in 0..100 {
        let scenario = Scenario::from_seed(seed);
        let mut draw = random(seed, 1);
        let space = Space::new(5, &scenario.config, scenario.nodes, scenario.records, None);
        let memory = Memory::shared(space.region_bytes).unwrap();
        let regions = Regions::new([(5, memory.clone())]);
        let keys = scenario.keys(&[KeyRange::ALL], &mut draw).remove(0);
        let (mut model, first) = Model::new(5, KeyRange::ALL, scenario.config, space, None, &mut draw);
        do_now(&mut model, first, &memory, &mut draw);
        let words = Cell::new(0);
        for _ in 0..200 {
            let key = keys[draw.random_range(0..keys.len())];
            if let Some(change) = any_change(&mut model, key, &words, scenario.lengths[0], &mut draw) {
                do_now(&mut model, change, &memory, &mut draw);
            }
            let mut line = [0; 64];
            memory.read(0, &mut line).unwrap();
            let superblock = Superblock::parse(&line).unwrap();
            assert_eq!(superblock.partition, model.partition(), "seed {seed}");
            highest = highest.max(superblock.partition.root_level);
            let tree = Tree::new(&regions, &scenario.config, &superblock.partition);
            for &key in &keys {
                let value = tree.get(key).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                let word = value.map(|value| values::open(key, &value).expect("a whole value"));
                assert_eq!(word, model.get(key).map(|payload| payload.word), "seed {seed}, key {key:#x}");
            }
        }
    }
    assert!(highest >= 4, "trees of {highest} levels above the leaves at most");
}
