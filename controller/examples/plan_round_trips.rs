//! Round trips of lookups under plans, with plans executed in software:
//! `cargo run --release -p fatbtree-controller --example plan_round_trips -- 10000000 records`.
//!
//! Loads keys that are spread over 64 bits into the memory servers of the example cluster, plans for Tofino 1 without knowledge, and then from 200,000
//! sampled keys with hot keys, as `fatbtree demo` does. Counts the round trips of other lookups of the same distribution.

#[path = "../tests/it/grown/mod.rs"]
mod grown;

use std::time::{Duration, Instant};

use fatbtree_controller::{Budget, Frequencies, HotKeys, Located, Placement, Plan, Target, Tree, in_leaves};
use fatbtree_topology::Cluster;

const SAMPLES: u64 = 200_000;
const LOOKUPS: u64 = 100_000;
const THETA: f64 = 0.99;

fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

fn key(record: u64) -> u64 {
    mix(record.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Draws ranks from 0 on: the head by its sums, the rest by the integral.
struct Zipf {
    head: Vec<f64>,
    items: f64,
}

impl Zipf {
    const HEAD: usize = 1000;

    fn new(items: f64) -> Self {
        let mut sum = 0.0;
        let up_to = |rank: usize| {
            sum += (rank as f64).powf(-THETA);
            sum
        };
        Self { head: (1..=Self::HEAD).map(up_to).collect(), items }
    }

    fn draw(&self, uniform: f64) -> u64 {
        let (one, from, head) = (1.0 - THETA, Self::HEAD as f64 + 0.5, self.head[Self::HEAD - 1]);
        let tail = ((self.items + 0.5).powf(one) - from.powf(one)) / one;
        let at = uniform * (head + tail);
        if at < head {
            return self.head.partition_point(|sum| *sum <= at) as u64;
        }
        let rank = (from.powf(one) + (at - head) * one).powf(1.0 / one) - 0.5;
        (rank as u64).min(self.items as u64 - 1)
    }
}

/// The n-th record that a distribution asks for.
fn draw(distribution: &str, zipf: &[Zipf; 2], keys: u64, n: u64) -> u64 {
    let random = mix(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed);
    let uniform = random as f64 / u64::MAX as f64;
    match distribution {
        "uniform" => random % keys,
        "zipfian-ranked" => zipf[0].draw(uniform),
        // YCSB's: of 10^10 ranks, scattered over the records.
        _ => mix(zipf[1].draw(uniform) ^ 0x5ca7) % keys,
    }
}

/// Where the records of keys would lie, or their leaves where there are no records.
fn locate(plan: &Plan, tree: &Tree, keys: &[u64], records: bool) -> Vec<Located> {
    let on_the_way = |key: u64| Located { key, address: plan.resolve(key).address };
    let record = |key: u64| {
        let partition = u64::from(plan.resolve(key).partition);
        Located { key, address: partition << 48 | 1 << 47 | mix(key) >> 17 }
    };
    match keys {
        [first, ..] if !records => in_leaves(tree, &[on_the_way(*first)], keys).unwrap_or_default(),
        _ => keys.iter().map(|key| record(*key)).collect(),
    }
}

#[allow(clippy::print_stdout, reason = "an example reports on the terminal")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let keys: u64 = arguments.next().as_deref().unwrap_or("10000000").parse()?;
    let records = arguments.next().as_deref() != Some("leaves");
    let cluster = Cluster::example();
    let lows: Vec<u64> = cluster.servers().iter().map(|server| server.low).collect();
    let mut loaded: Vec<u64> = (0..keys).map(key).collect();
    loaded.sort_unstable();
    loaded.dedup();
    let tree = Tree::new(&grown::grow(&lows, &loaded, &[])?.tops()?)?;
    drop(loaded);
    let (placement, budget) = (Placement::of(&cluster), Budget::compiled(Target::Tofino1));
    println!("{keys} keys, {} inner nodes, {} leaves", tree.node_count(), tree.leaf_count());
    let plan = |frequencies: &Frequencies, epoch| {
        let begun = Instant::now();
        let plan = Plan::new(cluster.tree(), &placement, &tree, frequencies, &budget, epoch);
        plan.map(|plan| (plan, begun.elapsed()))
    };
    let (blind, seconds) = plan(&Frequencies::none(&tree), 1)?;
    let report = |name: &str, plan: &Plan, lookups: &[(u64, u64)], seconds: Duration| {
        let trips = plan.cost(&tree, lookups).round_trips + f64::from(u8::from(records));
        let summary = plan.summary();
        let nodes: Vec<usize> = summary.layers.iter().map(|layer| layer.nodes).collect();
        println!(
            "{name}: {trips:.3} round trips, {} ranges, {nodes:?} nodes, {} with the fat root's, at most {:.4} from the best, {seconds:.2?}",
            summary.ranges,
            plan.held_nodes(&tree),
            summary.short_of_best
        );
    };
    let zipf = &[Zipf::new(keys as f64), Zipf::new(1e10)];
    for distribution in ["uniform", "zipfian-ranked", "zipfian"] {
        let keys_of = |from: u64, count: u64| {
            (from..from + count).map(move |n| key(draw(distribution, zipf, keys, n))).collect::<Vec<u64>>()
        };
        // Twice each: a hot key that is visited once does not count as one.
        let lookups = keys_of(1 << 40, LOOKUPS).into_iter().flat_map(|key| [(key, 1), (key, 1)]);
        let lookups: Vec<(u64, u64)> = lookups.collect();
        report(&format!("{distribution}, without knowledge"), &blind, &lookups, seconds);
        let sampled = keys_of(0, SAMPLES);
        let visits = blind.visits([], &sampled);
        let (first, _) = plan(&Frequencies::from_weighted(&tree, &visits), 2)?;
        let candidates = first.hot_candidates(&tree, &visits);
        let located = locate(&first, &tree, &candidates, records);
        let (hot, rest) = HotKeys::choose(&tree, &visits, &located, budget.hot_keys, None);
        let (second, seconds) = plan(&Frequencies::from_weighted(&tree, &rest), 2)?;
        report(&format!("{distribution}, planned, no hot keys"), &second, &lookups, seconds);
        report(&format!("{distribution}, planned"), &second.clone().with_hot_keys(hot), &lookups, seconds);
    }
    Ok(())
}
