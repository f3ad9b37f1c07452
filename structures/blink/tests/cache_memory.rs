//! Allocations of the index cache and of the entry cache. Alone in its process: what other tests free would be counted too.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

use fatbtree_blink::node::{Node, NodeSpec, write_internal};
use fatbtree_blink::{
    EntryCache, EntryPart, EntryPlace, GlobalAddress, IndexCache, Integrity, KeyRange, Partition, TreeConfig,
    ValueLayout,
};

/// Puts a level-1 node of the keys 160·n to 160·(n + 1) with children that begin 160 / `children` apart.
fn put_number(cache: &IndexCache, number: u64, children: u64) {
    let config = TreeConfig::new(16, 256, ValueLayout::Inline(8)).unwrap();
    let address = GlobalAddress::new(0, 64);
    let partition = Partition { id: 0, range: KeyRange::ALL, root: address, root_level: 1 };
    let low = number * 160;
    let range = KeyRange { low, high: Some(low + 160) };
    let spec = NodeSpec { address, level: 1, range, sibling: GlobalAddress::NULL, version: 1 };
    let children: Vec<_> = (0..children).map(|at| (low + at * 160 / children, address)).collect();
    let mut bytes = vec![0; config.internal_bytes() as usize];
    write_internal(&mut bytes, &spec, &children, Integrity::LineVersions);
    let Node::Internal(node) = Node::read(&config, &bytes).unwrap() else { panic!("it has level 1") };
    cache.put(&node, &partition);
}

#[test]
fn what_is_counted_is_allocated_and_a_hit_allocates_nothing() {
    counted_as_allocated();
    a_hit_allocates_nothing();
    what_was_evicted_is_freed();
    an_entry_cache_takes_its_memory_at_once();
}

/// Exactly what is counted, and nothing more for fills and hits.
fn an_entry_cache_takes_its_memory_at_once() {
    let mut cache = None;
    let taken = allocation_counter::measure(|| cache = Some(EntryCache::new(1 << 20)));
    let cache = cache.unwrap();
    assert_eq!((taken.bytes_current, taken.count_current), (cache.bytes() as i64, 1));
    assert!(cache.bytes() <= 1 << 20 && cache.bytes() > (1 << 20) - 96);
    let used = allocation_counter::measure(|| {
        for key in 0..200_000 {
            cache.put(
                key,
                EntryPlace { address: GlobalAddress::new(0, 64), part: EntryPart::Slot(1) },
                cache.tree(),
            );
            assert!(cache.get(key).is_some());
            cache.clear();
        }
    });
    assert_eq!(used.count_total, 0);
}

/// The count covers the allocations: never less, and not much more.
fn counted_as_allocated() {
    for children in [1, 5, 12, 16] {
        let cache = IndexCache::new(1 << 30);
        let filled = allocation_counter::measure(|| {
            for number in 0..5_000 {
                put_number(&cache, number, children);
            }
        });
        let (counted, real) = (cache.stats().bytes, filled.bytes_current as u64);
        eprintln!("{children} children: {} bytes counted, {} allocated", counted / 5_000, real / 5_000);
        assert_eq!(cache.stats().entries, 5_000);
        // The allocator's own bytes are in the count and not in the measurement.
        assert!(
            real <= counted && counted <= real * 13 / 10,
            "{children}: {real} allocated, {counted} counted"
        );
    }
}

fn a_hit_allocates_nothing() {
    let cache = IndexCache::new(1 << 20);
    for number in 0..1_000 {
        put_number(&cache, number, 16);
    }
    let used = allocation_counter::measure(|| {
        for key in 0..100_000 {
            assert!(cache.leaf_of(key).is_some());
        }
    });
    assert_eq!(used.count_total, 0);
}

/// Evicted nodes are freed soon, not at once: those that wait for readers are far fewer than those that have
/// passed.
fn what_was_evicted_is_freed() {
    let cache = IndexCache::new(100 * IndexCache::entry_bytes(16));
    let filled = allocation_counter::measure(|| {
        for number in 0..100_000 {
            put_number(&cache, number, 16);
        }
    });
    let waiting = filled.bytes_current - cache.stats().bytes as i64;
    eprintln!("{} bytes counted, {waiting} more allocated", cache.stats().bytes);
    assert!(waiting < 64 << 10, "{waiting}");
}
