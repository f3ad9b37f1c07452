//! How many ranges a fat root has room for, on trees as our own bulk load makes them.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

use fatbtree_controller::{Budget, Frequencies, Placement, Plan, Target, Tree};
use fatbtree_index::{TreeConfig, ValueLayout};
use fatbtree_memserver::{LoadOptions, fixed, load_ranges};
use fatbtree_topology::Cluster;

const KEYS: u64 = 2_000_000;

/// Ranges that fit Tofino 1, two epochs side by side, for uniform visits.
fn room(mut keys: Vec<u64>) -> usize {
    keys.sort_unstable();
    let cluster = Cluster::example();
    let lows: Vec<u64> = cluster.servers().iter().map(|server| server.low).collect();
    // As many keys in a leaf as with the default shape, and no records.
    let config = TreeConfig::new(16, 1024, ValueLayout::Inline(12)).unwrap();
    assert_eq!(config.leaf_capacity(), TreeConfig::default().leaf_capacity());
    let options = LoadOptions::new(config, 0);
    let loaded = load_ranges(&options, &lows, &keys, &mut fixed(12, |_, _| {})).unwrap();
    let tree = Tree::new(&loaded.tops().unwrap()).unwrap();
    let compiled = Budget::compiled(Target::Tofino1);
    assert_eq!(compiled.live_epochs, 2);
    let budget = Budget { fat_root_ranges: 10_000, set_nodes: [0; 5], ..compiled };
    let (placement, none) = (Placement::of(&cluster), Frequencies::none(&tree));
    let plan = Plan::new(cluster.tree(), &placement, &tree, &none, &budget, 1).unwrap();
    plan.fat_root().len()
}

#[test]
fn random_keys() {
    let mut x = 1_u64;
    let keys = (0..KEYS).map(|_| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        x
    });
    let room = room(keys.collect());
    assert!(room >= 1_000, "{room} ranges");
}

#[test]
fn dense_keys() {
    let room = room((0..KEYS).map(|n| ((n % 4) << 62) | (n / 4)).collect());
    assert!(room >= 1_200, "{room} ranges");
}
