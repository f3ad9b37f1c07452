//! Planning time on a synthetic tree of 10,000,000 keys in 4 partitions: about 330,000 leaves under 28,000 inner nodes,
//! with 1,000,000 sampled keys of Zipf-like skew.
//!
//! `cargo bench -p fatbtree-controller --bench plan`

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use fatbtree_blink::{GlobalAddress, KeyRange, Partition, TopNode, TreeTop};
use fatbtree_controller::Target;
use fatbtree_controller::{Budget, Frequencies, Placement, Plan, SETS, Tree};
use fatbtree_topology::Cluster;

const KEYS: u64 = 10_000_000;
const KEYS_PER_LEAF: u64 = 30;
const FANOUT: usize = 13;

/// A cheap fixed scramble: the bench needs variety, not randomness.
fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

fn tops(cluster: &Cluster) -> Vec<TreeTop> {
    let count = cluster.servers().len() as u64;
    let leaves = KEYS / KEYS_PER_LEAF / count;
    let tops = cluster.servers().iter().map(|server| {
        let step = (server.high - server.low) / leaves;
        let mut address = u64::from(server.partition) << 48;
        let mut fresh = || {
            address += 512;
            address
        };
        let low = |n: u64| if n == 0 { server.low } else { server.low + n * step + mix(n) % step };
        let mut level: Vec<(u64, u64)> = (0..leaves).map(|n| (low(n), fresh())).collect();
        let (mut nodes, mut height) = (Vec::new(), 0);
        while level.len() > 1 {
            height += 1;
            let above = level.chunks(FANOUT).map(|children| {
                let node = TopNode { address: fresh(), level: height, children: children.to_vec() };
                let top = (node.low(), node.address);
                nodes.push(node);
                top
            });
            level = above.collect();
        }
        let range = KeyRange { low: server.low, high: None };
        let root = GlobalAddress(level[0].1);
        let partition = Partition { id: server.partition, range, root, root_level: height };
        TreeTop { partition, nodes, reads: Default::default() }
    });
    tops.collect()
}

/// Ranks r with probability about 1/r, spread over the key space.
fn samples(count: u64) -> Vec<u64> {
    (0..count)
        .map(|n| {
            let uniform = mix(n ^ 0x5eed) as f64 / u64::MAX as f64;
            let rank = (KEYS as f64).powf(uniform) as u64;
            mix(rank)
        })
        .collect()
}

fn planning(c: &mut Criterion) {
    let cluster = Cluster::example();
    let placement = Placement::of(&cluster);
    let tops = tops(&cluster);
    let samples = samples(1_000_000);
    let mut group = c.benchmark_group("plan_10M_keys");
    group.sample_size(10);
    for (name, budget) in [
        ("paper", Budget::paper()),
        ("v1model", Budget::bmv2()),
        ("tofino1", Budget::compiled(Target::Tofino1)),
    ] {
        group.bench_function(format!("whole/{name}"), |b| {
            b.iter(|| {
                let tree = Tree::new(black_box(&tops)).expect("a good snapshot");
                let frequencies = Frequencies::from_keys(&tree, &samples);
                Plan::new(cluster.tree(), &placement, &tree, &frequencies, &budget, 1).expect("it fits")
            });
        });
    }
    group.bench_function("tree", |b| b.iter(|| Tree::new(black_box(&tops))));
    let tree = Tree::new(&tops).expect("a good snapshot");
    group.bench_function("frequencies", |b| b.iter(|| Frequencies::from_keys(&tree, black_box(&samples))));
    let frequencies = Frequencies::from_keys(&tree, &samples);
    let make = |budget: &Budget, epoch| {
        Plan::new(cluster.tree(), &placement, &tree, &frequencies, budget, epoch).expect("it fits")
    };
    // No node sets: what is left is the fat root and its range tables.
    let ranges = Budget { set_nodes: [0; SETS], ..Budget::bmv2() };
    group.bench_function("fat_root_1024_ranges", |b| b.iter(|| make(black_box(&ranges), 1)));
    let new = make(&Budget::paper(), 2);
    group.bench_function("entries", |b| b.iter(|| black_box(&new).entries()));
    group.bench_function("resolve", |b| {
        let mut keys = samples.iter().cycle();
        b.iter(|| new.resolve(*keys.next().expect("cycles")));
    });
    group.finish();
}

criterion_group!(benches, planning);
criterion_main!(benches);
