//! How large a fat root fits, with the TCAM rows that real trees take:
//! `cargo run --release -p fatbtree-controller --example fat_root_room`.
//!
//! For trees of 2,000,000 keys as our own bulk load makes them, spread at random over 64 bits or one behind the other, and every
//! target: the most ranges whose tables fit, and what they take.

use fatbtree_controller::{Budget, Frequencies, Placement, Plan, Target, Tree};
use fatbtree_index::{TreeConfig, ValueLayout};
use fatbtree_memserver::{LoadOptions, fixed, load_ranges};
use fatbtree_topology::Cluster;

const KEYS: u64 = 2_000_000;

fn spread(n: u64) -> u64 {
    let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 31
}

#[allow(clippy::print_stdout, reason = "an example reports on the terminal")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::example();
    let lows: Vec<u64> = cluster.servers().iter().map(|server| server.low).collect();
    let mut random: Vec<u64> = (0..KEYS).map(spread).collect();
    let mut dense: Vec<u64> = (0..KEYS).map(|n| ((n % 4) << 62) | (n / 4)).collect();
    random.sort_unstable();
    dense.sort_unstable();
    // As many keys in a leaf as with the default shape, and no records.
    let config = TreeConfig::new(16, 1024, ValueLayout::Inline(12))?;
    assert_eq!(config.leaf_capacity(), TreeConfig::default().leaf_capacity());
    println!(
        "{:8} {:7} {:6} {:>6}  entries a stage, TCAM rows a stage",
        "target", "keys", "epochs", "ranges"
    );
    for (name, keys) in [("random", &random), ("dense", &dense)] {
        let loaded = load_ranges(&LoadOptions::new(config, 0), &lows, keys, &mut fixed(12, |_, _| {}))?;
        let tree = Tree::new(&loaded.tops()?)?;
        let frequencies = Frequencies::none(&tree);
        for target in Target::ALL {
            for live_epochs in [2, 1] {
                let compiled = Budget::compiled(target);
                let budget = Budget { fat_root_ranges: 10_000, live_epochs, set_nodes: [0; 5], ..compiled };
                let placement = Placement::of(&cluster);
                let plan = Plan::new(cluster.tree(), &placement, &tree, &frequencies, &budget, 1)?;
                let summary = plan.summary();
                println!(
                    "{:8} {name:7} {live_epochs:6} {:6}  {:?}, {:?}",
                    target.name(),
                    summary.ranges,
                    summary.stage_entries,
                    summary.stage_rows
                );
            }
        }
    }
    Ok(())
}
