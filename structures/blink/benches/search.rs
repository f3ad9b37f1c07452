//! Searching one node, checks of all line versions included; filling and checking values.
#![allow(missing_docs, reason = "criterion's macros")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fatbtree_blink::node::{LeafBuilder, Node, NodeSpec, write_internal};
use fatbtree_blink::record::RecordPointer;
use fatbtree_blink::{GlobalAddress, Integrity, KeyRange, TreeConfig, ValueLayout, value};

fn spec(level: u8) -> NodeSpec {
    NodeSpec {
        address: GlobalAddress::new(0, 64),
        level,
        range: KeyRange::ALL,
        sibling: GlobalAddress::NULL,
        version: 1,
    }
}

fn leaf(c: &mut Criterion, name: &str, values: ValueLayout, per_cent: usize) {
    let config = TreeConfig::new(16, 1024, values).expect("valid");
    let mut bytes = vec![0; 1024];
    let mut leaf = LeafBuilder::new(&mut bytes, config.leaf_shape(), spec(0));
    let count = config.leaf_capacity() as u64 * per_cent as u64 / 100;
    for key in 0..count {
        match values {
            ValueLayout::OutOfLine | ValueLayout::ByLength(_) => {
                let record = RecordPointer { address: GlobalAddress(4096), length: 1000, version: 1 };
                leaf.push_record(key * 7, record);
            }
            ValueLayout::Inline(_) => drop(leaf.push_inline(key * 7)),
        }
    }
    leaf.finish();
    let mut key = 0;
    c.bench_function(name, |b| {
        b.iter(|| {
            key = (key + 5) % count;
            match Node::read(&config, black_box(&bytes)) {
                Ok(Node::Leaf(leaf)) => leaf.find(black_box(key * 7)).expect("whole").is_some(),
                _ => false,
            }
        });
    });
}

fn nodes(c: &mut Criterion) {
    leaf(c, "leaf 1 KB, pointers, 75 % full", ValueLayout::OutOfLine, 75);
    leaf(c, "leaf 1 KB, 8-byte values, 75 % full", ValueLayout::Inline(8), 75);
    leaf(c, "leaf 1 KB, values by length, 75 % full", ValueLayout::SHORT, 75);
    leaf(c, "leaf 1 KB, 32-byte values, 75 % full", ValueLayout::Inline(32), 75);
    leaf(c, "leaf 1 KB, 64-byte values, full", ValueLayout::Inline(64), 100);
    let config = TreeConfig::default();
    let mut bytes = vec![0; config.internal_bytes() as usize];
    let children: Vec<_> = (0..16).map(|i| (i * 1000, GlobalAddress(4096 + i * 1024))).collect();
    write_internal(&mut bytes, &spec(1), &children, Integrity::LineVersions);
    let mut key = 0;
    c.bench_function("internal node, 16 children", |b| {
        b.iter(|| {
            key = (key + 4777) % 16_000;
            match Node::read(&config, black_box(&bytes)) {
                Ok(Node::Internal(node)) => node.find(black_box(key)).raw(),
                _ => 0,
            }
        });
    });
}

fn values(c: &mut Criterion) {
    let mut group = c.benchmark_group("value");
    let mut bytes = [0; 1000];
    group.throughput(Throughput::Bytes(1000));
    let mut key = 0;
    group.bench_function("fill", |b| {
        b.iter(|| {
            key += 1;
            value::fill(key, 1, black_box(&mut bytes));
        });
    });
    value::fill(1, 1, &mut bytes);
    group.bench_function("check", |b| b.iter(|| value::check(black_box(1), 1, black_box(&bytes))));
}

criterion_group!(benches, nodes, values);
criterion_main!(benches);
