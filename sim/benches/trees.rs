//! Speed of campaign `trees` on one processor: `cargo bench -p fatbtree-sim --bench trees`.
//!
//! The figure counts lookups; writers, mishaps, the final phase and the check of the history come with them.
#![allow(missing_docs)] // criterion's macros make undocumented functions

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fatbtree_sim::writers::Scenario;

const SEEDS: u64 = 50;

fn run() -> u64 {
    (0..SEEDS).map(|seed| Scenario::reading(seed).run().expect("every answer is explained").lookups).sum()
}

fn trees(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("trees");
    group.sample_size(10).throughput(Throughput::Elements(run()));
    group.bench_function("50_seeds", |bencher| bencher.iter(run));
    group.finish();
}

criterion_group!(benches, trees);
criterion_main!(benches);
