//! Number of ranges that a fat root has room for, on trees as our own bulk load and inserts in random order
//! make them.
use crate::grown;

use fatbtree_controller::{Budget, Frequencies, Placement, Plan, SETS, Target, Tree};
use fatbtree_topology::Cluster;

const KEYS: u64 = 2_000_000;

/// Ranges that fit Tofino 1, two epochs side by side, for uniform visits. Of the keys the first `loaded` are loaded, the others
/// inserted as they come.
fn room(mut keys: Vec<u64>, loaded: u64) -> usize {
    let (loaded, inserted) = keys.split_at_mut(loaded as usize);
    loaded.sort_unstable();
    let cluster = Cluster::example();
    let lows: Vec<u64> = cluster.servers().iter().map(|server| server.low).collect();
    let loaded = grown::grow(&lows, loaded, inserted).unwrap();
    let tree = Tree::new(&loaded.tops().unwrap()).unwrap();
    let compiled = Budget::compiled(Target::Tofino1);
    assert_eq!(compiled.live_epochs, 2);
    let budget = Budget { set_nodes: [0; SETS], ..compiled };
    let (placement, none) = (Placement::of(&cluster), Frequencies::none(&tree));
    let plan = Plan::new(cluster.tree(), &placement, &tree, &none, &budget, 1).unwrap();
    plan.fat_root().len()
}

/// Keys in an order of no meaning.
fn random_keys() -> Vec<u64> {
    let mut x = 1_u64;
    let next = |_| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        x
    };
    (0..KEYS).map(next).collect()
}

/// One after the other in each partition, mixed like cards.
fn dense_keys() -> Vec<u64> {
    // 7,919 is no divisor of their count.
    (0..KEYS).map(|n| n * 7_919 % KEYS).map(|n| ((n % 4) << 62) | (n / 4)).collect()
}

#[test]
fn random_keys_loaded() {
    let room = room(random_keys(), KEYS);
    assert!(room >= 5_300, "{room} ranges");
}

#[test]
fn dense_keys_loaded() {
    let room = room(dense_keys(), KEYS);
    assert!(room >= 1_600, "{room} ranges");
}

#[test]
fn random_keys_of_which_half_were_inserted() {
    let room = room(random_keys(), KEYS / 2);
    assert!(room >= 8_500, "{room} ranges");
}

#[test]
fn dense_keys_of_which_half_were_inserted() {
    let room = room(dense_keys(), KEYS / 2);
    assert!(room >= 1_850, "{room} ranges");
}
