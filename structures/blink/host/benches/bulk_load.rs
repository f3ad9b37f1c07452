//! Bulk load, values generated on the way. Pages of the region are touched for the first time, as in real use.
#![allow(missing_docs, reason = "criterion's macros")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use fatbtree_blink::{LeafKind, TreeConfig, ValueLayout, value};
use fatbtree_blink_host::{LoadOptions, bulk_load, bulk_load_unsorted, fixed};

fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("bulk load");
    group.sample_size(10).measurement_time(Duration::from_secs(5));
    let count = 500_000_u64;
    group.throughput(Throughput::Elements(count));
    let keys: Vec<u64> = (0..count).map(|i| i * 37).collect();
    let shuffled: Vec<u64> = (0..count).map(|i| (i * 7_919 + 13) % count * 37).collect();
    let fill = |key, out: &mut [u8]| value::fill(key, 1, out);

    let options = LoadOptions::new(TreeConfig::default(), 0);
    group.bench_function("500,000 keys, 1000-byte values", |b| {
        b.iter_with_large_drop(|| {
            bulk_load(&options, black_box(&keys), &mut fixed(1000, fill)).expect("loads")
        });
    });
    group.bench_function("500,000 keys shuffled, 1000-byte values", |b| {
        b.iter_batched(
            || shuffled.clone(),
            |mut keys| bulk_load_unsorted(&options, &mut keys, &mut fixed(1000, fill)).expect("loads"),
            BatchSize::PerIteration,
        );
    });
    let inline = TreeConfig::new(16, 1024, ValueLayout::Inline(8)).expect("valid");
    let options = LoadOptions::new(inline, 0);
    group.bench_function("500,000 keys, 8-byte values in leaves", |b| {
        b.iter_with_large_drop(|| bulk_load(&options, black_box(&keys), &mut fixed(8, fill)).expect("loads"));
    });
    let buckets = LoadOptions::new(inline.with_leaves(LeafKind::Buckets).expect("valid"), 0);
    group.bench_function("500,000 keys, 8-byte values in leaves of buckets", |b| {
        b.iter_with_large_drop(|| bulk_load(&buckets, black_box(&keys), &mut fixed(8, fill)).expect("loads"));
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
