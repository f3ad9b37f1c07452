//! How large a fat root fits, with the TCAM rows that real trees take:
//! `cargo run --release -p fatbtree-controller --example fat_root_room`.
//!
//! For trees of 2,000,000 keys, spread at random over 64 bits or one after the other, as our own bulk load makes them or as half a
//! load and half inserts in random order do, and every target: the most ranges whose tables fit, and what they take.

#[path = "../tests/it/grown/mod.rs"]
mod grown;

use fatbtree_controller::{Budget, Frequencies, Placement, Plan, SETS, Target, Tree};
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
    let random: Vec<u64> = (0..KEYS).map(spread).collect();
    // 7,919 is no divisor of their count.
    let dense: Vec<u64> = (0..KEYS).map(|n| n * 7_919 % KEYS).map(|n| ((n % 4) << 62) | (n / 4)).collect();
    println!(
        "{:8} {:7} {:8} {:6} {:>6}  entries a stage, TCAM rows a stage",
        "target", "keys", "inserted", "epochs", "ranges"
    );
    for (name, keys, inserts) in [
        ("random", &random, 0),
        ("random", &random, KEYS / 2),
        ("dense", &dense, 0),
        ("dense", &dense, KEYS / 2),
    ] {
        let (loaded, inserted) = keys.split_at((KEYS - inserts) as usize);
        let mut loaded = loaded.to_vec();
        loaded.sort_unstable();
        let tree = Tree::new(&grown::grow(&lows, &loaded, inserted)?.tops()?)?;
        let frequencies = Frequencies::none(&tree);
        for target in Target::ALL {
            for live_epochs in [2, 1] {
                let compiled = Budget::compiled(target);
                let budget = Budget { live_epochs, set_nodes: [0; SETS], ..compiled };
                let placement = Placement::of(&cluster);
                let plan = Plan::new(cluster.tree(), &placement, &tree, &frequencies, &budget, 1)?;
                let summary = plan.summary();
                println!(
                    "{:8} {name:7} {inserts:8} {live_epochs:6} {:6}  {:?}, {:?}",
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
