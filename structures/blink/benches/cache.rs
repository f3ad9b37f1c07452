//! The index cache: a hit and a miss, by how many nodes there are; and a fill that evicts. A node has 12 children.
#![allow(missing_docs, reason = "criterion's macros")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use fatbtree_blink::node::{Node, NodeSpec, write_internal};
use fatbtree_blink::{GlobalAddress, IndexCache, Integrity, KeyRange, Partition, TreeConfig};

const CHILDREN: u64 = 12;
const SPAN: u64 = CHILDREN * 1_000;

/// The level-1 nodes of a tree, one after the other.
struct Nodes {
    config: TreeConfig,
    bytes: Vec<u8>,
}

impl Nodes {
    fn put(&mut self, cache: &IndexCache, number: u64) {
        let address = GlobalAddress::new(0, 64);
        let partition = Partition { id: 0, range: KeyRange::ALL, root: address, root_level: 1 };
        let low = number * SPAN;
        let range = KeyRange { low, high: Some(low + SPAN) };
        let spec = NodeSpec { address, level: 1, range, sibling: GlobalAddress::NULL, version: 1 };
        let children: [_; CHILDREN as usize] =
            std::array::from_fn(|at| (low + at as u64 * 1_000, GlobalAddress::new(0, 64 + at as u64)));
        write_internal(&mut self.bytes, &spec, &children, Integrity::LineVersions);
        match Node::read(&self.config, &self.bytes) {
            Ok(Node::Internal(node)) => cache.put(&node, &partition),
            _ => unreachable!("it was written just now"),
        }
    }
}

fn cache(c: &mut Criterion) {
    let config = TreeConfig::default();
    let mut nodes = Nodes { config, bytes: vec![0; config.internal_bytes() as usize] };
    let mut group = c.benchmark_group("index cache");
    for entries in [100, 10_000, 100_000, 1_000_000_u64] {
        let cache = IndexCache::new(entries * IndexCache::entry_bytes(CHILDREN as usize));
        // Even numbers are there; in an order that memory does not follow.
        for at in 0..entries {
            nodes.put(&cache, at * 7_919 % entries * 2);
        }
        let mut draw = 0_u64;
        let mut key = |odd: u64| {
            draw = draw.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let node = (draw >> 32) % entries * 2 + odd;
            node * SPAN + (draw & 0xffff) % SPAN
        };
        group.bench_function(BenchmarkId::new("hit", entries), |b| {
            b.iter(|| cache.leaf_of(black_box(key(0))).expect("it is there"));
        });
        group.bench_function(BenchmarkId::new("hit of one node", entries), |b| {
            b.iter(|| cache.leaf_of(black_box(SPAN * entries + 5)).expect("it is there"));
        });
        group.bench_function(BenchmarkId::new("miss", entries), |b| {
            b.iter(|| cache.leaf_of(black_box(key(1))).is_none());
        });
        let mut next = entries * 2;
        group.bench_function(BenchmarkId::new("fill and evict", entries), |b| {
            b.iter(|| {
                next += 2;
                nodes.put(&cache, next);
            });
        });
    }
}

criterion_group!(benches, cache);
criterion_main!(benches);
