//! Lookups over plain memory: by the root, at a leaf that the index cache knows, and at a place that the entry cache knows. What is
//! measured is the client's processor time; distance costs nothing here.
#![allow(missing_docs, reason = "criterion's macros")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use fatbtree_blink::node::{LeafBuilder, NodeSpec, write_internal};
use fatbtree_blink::plain::PlainClient;
use fatbtree_blink::record::{RecordPointer, published, record_bytes, write_record};
use fatbtree_blink::{
    EntryCache, EntryPart, EntryPlace, GlobalAddress, IndexCache, Integrity, KeyRange, Partition, Regions,
    Start, SuperRoot, TreeConfig, ValueLayout,
};
use fatbtree_verbs::Memory;

const LEAVES: u64 = 16;
const LEAF: u64 = 1024;
const ROOT: u64 = 64;
const FIRST_LEAF: u64 = 1024;
const FIRST_RECORD: u64 = FIRST_LEAF + LEAVES * LEAF;
const VALUE: u32 = 8;

/// A root and its leaves, three quarters full; even keys.
fn client(config: &TreeConfig) -> (PlainClient, u64) {
    let per_leaf = config.leaf_capacity() as u64 * 3 / 4;
    let record_room = u64::from(record_bytes(VALUE));
    let end = FIRST_RECORD + LEAVES * per_leaf * record_room;
    let mut memory = Memory::anonymous(end.next_multiple_of(4096)).expect("a little memory");
    let bytes = memory.as_mut_slice();
    let low = |leaf: u64| leaf * per_leaf * 2;
    let place = |leaf: u64| GlobalAddress::new(0, FIRST_LEAF + leaf * LEAF);
    for leaf in 0..LEAVES {
        let is_last = leaf + 1 == LEAVES;
        let range = KeyRange { low: low(leaf), high: (!is_last).then(|| low(leaf + 1)) };
        let sibling = if is_last { GlobalAddress::NULL } else { place(leaf + 1) };
        let spec = NodeSpec { address: place(leaf), level: 0, range, sibling, version: 1 };
        let (nodes, records) = bytes.split_at_mut(FIRST_RECORD as usize);
        let room = &mut nodes[place(leaf).offset() as usize..][..LEAF as usize];
        let mut builder = LeafBuilder::new(room, config.leaf_shape(), spec);
        for number in leaf * per_leaf..(leaf + 1) * per_leaf {
            let key = number * 2;
            if config.leaf_shape().has_values() {
                builder.push_inline(key).fill(key as u8);
                continue;
            }
            let at = number * record_room;
            let record = &mut records[at as usize..][..record_room as usize];
            write_record(record, key, 1, published(1), |value| value.fill(key as u8));
            let address = GlobalAddress::new(0, FIRST_RECORD + at);
            builder.push_record(key, RecordPointer { address, length: VALUE, version: 1 });
        }
        builder.finish();
    }
    let root = GlobalAddress::new(0, ROOT);
    let spec =
        NodeSpec { address: root, level: 1, range: KeyRange::ALL, sibling: GlobalAddress::NULL, version: 1 };
    let children: Vec<_> = (0..LEAVES).map(|leaf| (low(leaf), place(leaf))).collect();
    let room = &mut bytes[ROOT as usize..][..config.internal_bytes() as usize];
    write_internal(room, &spec, &children, Integrity::LineVersions);
    let partition = Partition { id: 0, range: KeyRange::ALL, root, root_level: 1 };
    let roots = SuperRoot::new(vec![partition]).expect("one partition with all keys");
    (PlainClient::new(&Regions::new([(0, memory.into())]), config, &roots), LEAVES * per_leaf)
}

fn lookups(c: &mut Criterion) {
    for (name, values) in
        [("8 bytes in line", ValueLayout::Inline(8)), ("8 bytes out of line", ValueLayout::OutOfLine)]
    {
        let config = TreeConfig::new(16, LEAF as u32, values).expect("the default shape");
        let mut group = c.benchmark_group(format!("lookup, {name}"));
        let ways = [
            ("root", Start::Root, false),
            ("cached leaf", Start::Cached, false),
            ("place", Start::Cached, true),
        ];
        for (way, start, speculates) in ways {
            let (client, keys) = client(&config);
            client.pool().set_cache(Some(Arc::new(IndexCache::new(1 << 20))));
            if speculates {
                client.pool().set_entry_cache(Some(Arc::new(EntryCache::new(1 << 20))));
            }
            (0..keys).for_each(|number| assert!(client.lookup(number * 2, start).result.is_ok()));
            let mut number = 0;
            group.bench_function(BenchmarkId::from_parameter(way), |b| {
                b.iter(|| {
                    number = (number + 7_919) % keys;
                    let found = client.lookup(black_box(number * 2), start);
                    assert!(matches!(found.result, Ok(Some(_))));
                });
            });
        }
        group.finish();
    }
}

fn table(c: &mut Criterion) {
    let mut group = c.benchmark_group("entry cache");
    for keys in [1_000, 100_000, 1_000_000_u64] {
        let cache = EntryCache::new(keys * 2 * 24);
        let place =
            |key: u64| EntryPlace { address: GlobalAddress::new(0, 64 + key * 64), part: EntryPart::Slot(1) };
        (0..keys).for_each(|key| cache.put(key, place(key), cache.tree()));
        let mut draw = 0_u64;
        let mut key = || {
            draw = draw.wrapping_add(0x9e37_79b9_7f4a_7c15);
            (draw >> 32) % keys
        };
        group.bench_function(BenchmarkId::new("get", keys), |b| b.iter(|| cache.get(black_box(key()))));
        group.bench_function(BenchmarkId::new("put", keys), |b| {
            b.iter(|| {
                let key = key() + keys;
                cache.put(black_box(key), place(key), cache.tree());
            });
        });
    }
}

criterion_group!(benches, lookups, table);
criterion_main!(benches);
