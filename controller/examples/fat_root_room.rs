//! How large a fat root fits, with the TCAM rows that real trees take:
//! `cargo run --release -p fatbtree-controller --example fat_root_room`.
//!
//! For trees of 2,000,000 keys, spread at random over 64 bits or one behind the other, and every target: the most ranges
//! whose tables fit, and what they take.

use fatbtree_controller::{Budget, Frequencies, Placement, Plan, Target, Tree};
use fatbtree_index::{GlobalAddress, KeyRange, Partition, TopNode, TreeTop};
use fatbtree_topology::Cluster;

const KEYS: u64 = 2_000_000;
const KEYS_PER_LEAF: usize = 30;
const FANOUT: usize = 13;

fn spread(n: u64) -> u64 {
    let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 31
}

fn top(id: u16, low: u64, keys: &[u64]) -> TreeTop {
    let mut address = u64::from(id) << 48;
    let mut fresh = || {
        address += 512;
        address
    };
    let firsts = keys.chunks(KEYS_PER_LEAF).map(|keys| keys[0]);
    let mut level: Vec<(u64, u64)> = firsts.map(|first| (first, fresh())).collect();
    level[0].0 = low;
    let (mut nodes, mut height) = (Vec::new(), 0);
    while level.len() > 1 {
        height += 1;
        let mut above = Vec::new();
        for children in level.chunks(FANOUT) {
            let node = TopNode { address: fresh(), level: height, children: children.to_vec() };
            above.push((node.low(), node.address));
            nodes.push(node);
        }
        level = above;
    }
    let range = KeyRange { low, high: None };
    let partition = Partition { id, range, root: GlobalAddress(level[0].1), root_level: height };
    TreeTop { partition, nodes }
}

#[allow(clippy::print_stdout, reason = "an example reports on the terminal")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::example();
    let mut random: Vec<u64> = (0..KEYS).map(spread).collect();
    let mut dense: Vec<u64> = (0..KEYS).map(|n| ((n % 4) << 62) | (n / 4)).collect();
    random.sort_unstable();
    dense.sort_unstable();
    println!(
        "{:8} {:7} {:6} {:>6}  entries a stage, TCAM rows a stage",
        "target", "keys", "epochs", "ranges"
    );
    for (name, keys) in [("random", &random), ("dense", &dense)] {
        let tops = cluster.servers().iter().map(|server| {
            let from = keys.partition_point(|key| *key < server.low);
            let to = keys.partition_point(|key| *key <= server.high);
            top(server.partition, server.low, &keys[from..to])
        });
        let tree = Tree::new(&tops.collect::<Vec<_>>())?;
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
