use std::sync::Arc;

use fatbtree_blink::node::{LeafBuilder, NodeSpec};
use fatbtree_blink::{GlobalAddress, KeyRange, Partition, RemoteSide, TreeConfig, ValueLayout, value};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::{Access, Device, Memory};

use super::*;

/// A server with one leaf of 20 keys, and a client that is connected to it. The server is only kept alive.
fn lab() -> (Client<PlainDevice>, PlainDevice) {
    let tree = TreeConfig::new(16, 1024, ValueLayout::Inline(8)).unwrap();
    let root = GlobalAddress::new(0, 64);
    let range = KeyRange::ALL;
    let mut memory = Memory::anonymous(64 + 1024).unwrap();
    let spec = NodeSpec { address: root, level: 0, range, sibling: GlobalAddress::NULL, version: 1 };
    let mut leaf = LeafBuilder::new(&mut memory.as_mut_slice()[64..], tree.leaf_shape(), spec);
    for key in 0..20 {
        value::fill(key, 1, leaf.push_inline(key));
    }
    leaf.finish();

    let network = PlainNetwork::new();
    let (mut server, device) = (network.device(), network.device());
    let region = server.register(&Arc::new(memory), 0, Access::READ).unwrap();
    let roots = SuperRoot::new(vec![Partition { id: 0, range, root, root_level: 0 }]).unwrap();
    let config = PoolConfig { tree, ..PoolConfig::default() };
    let client = Client::new(device, config, roots, 1).unwrap();
    let id = client.pool().connections()[0];
    let local = client.pool().open(id).unwrap();
    let queue_pair = server.create().unwrap();
    server.connect(queue_pair, &local).unwrap();
    let endpoint = server.endpoint(queue_pair).unwrap();
    client.pool().connected(id, RemoteSide { endpoint, rkey: region.rkey, registered: false }).unwrap();
    (client, server)
}

#[test]
fn one_many_and_batches() {
    let (client, _server) = lab();
    client.pool().reactor().block_on(async {
        let value = client.get(7).await.unwrap().unwrap();
        assert!(value::check(7, 1, &value));
        assert!(client.get(20).await.unwrap().is_none());

        // More keys than the device has buffers: each goes back before the next is needed.
        let mut many = std::pin::pin!(client.get_many((0..1000).map(|i| i % 25), 16));
        let mut found = 0;
        while let Some(lookup) = poll_fn(|context| many.as_mut().poll_next(context)).await {
            let value = lookup.result.unwrap();
            assert_eq!(value.is_some(), lookup.key < 20);
            found += u32::from(value.is_some_and(|value| value::check(lookup.key, 1, &value)));
        }
        assert_eq!(found, 800);

        let keys: Vec<u64> = (0..100).rev().collect();
        let values = client.get_batch(&keys).await.unwrap();
        for (key, value) in keys.iter().zip(values) {
            assert_eq!(value.is_some_and(|value| value::check(*key, 1, &value)), *key < 20, "{key}");
        }
    });
}

#[test]
fn values_that_are_kept_use_the_buffers_up_and_the_error_says_so() {
    let (client, _server) = lab();
    client.pool().reactor().block_on(async {
        let mut kept = Vec::new();
        let error = loop {
            match client.get(3).await {
                Ok(value) => kept.extend(value),
                Err(error) => break error,
            }
        };
        assert!(kept.len() > 16);
        let text = error.to_string();
        assert!(text.contains("drop values that are read, or make a larger pool"), "{text}");
        kept.pop();
        assert!(client.get(3).await.unwrap().is_some());
    });
}

#[test]
fn a_known_place_needs_no_more_buffers_than_there_are() {
    let (client, _server) = lab();
    client.set_entry_cache(Some(Arc::new(EntryCache::new(1 << 12))));
    client.pool().reactor().block_on(async {
        assert!(client.get(3).await.is_ok());
        let lookup = client.lookup(3, Start::CachedOrIndexRead).await;
        assert!(lookup.trips.speculated && value::check(3, 1, &lookup.result.unwrap().unwrap()));
        let mut kept = Vec::new();
        while let Ok(value) = client.get(4).await {
            kept.extend(value);
        }
        kept.pop();
        // Header and line would take two.
        assert!(value::check(3, 1, &client.get(3).await.unwrap().unwrap()));
        let stats = client.entry_cache_stats();
        assert_eq!((stats.stale > 0, stats.hits > 1, stats.entries), (true, true, 1));
    });
}

#[test]
fn as_many_as_asked_for_are_under_way() {
    let (client, _server) = lab();
    let mut many = std::pin::pin!(client.get_many(0..20, 16));
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(many.as_mut().poll_next(&mut context).is_pending());
    assert_eq!(client.pool().stats().lookups, 16);
}

/// Every key that a client is asked for is sampled once, however it is asked for and by whichever clone.
#[test]
fn what_was_asked_for_is_told_once() {
    let (client, _server) = lab();
    let other = client.clone();
    client.pool().reactor().block_on(async {
        assert!(client.get(1).await.is_ok());
        assert!(client.report().keys.is_empty(), "nobody wants a sample");
        client.set_sample(Some(KeySample::new(100, 1)));
        assert!(other.get(2).await.is_ok());
        client.lookup(3, Start::Root).await;
        assert!(client.update(4, &[0; 8]).await.is_err(), "it may not write");
        let mut scan = std::pin::pin!(client.scan(5..7));
        while poll_fn(|context| scan.as_mut().poll_next(context)).await.is_some() {}
        let mut scan = std::pin::pin!(client.scan_backward(6..=8));
        while poll_fn(|context| scan.as_mut().poll_next(context)).await.is_some() {}
        let report = other.report();
        assert_eq!(report.keys, [2, 3, 4, 5, 8]);
        assert_eq!((report.index_reads, report.stale_hints), (0, 0), "the connection is not registered");
        assert_eq!(client.report(), Report::default(), "all was told");
    });
}

#[test]
fn sampling_allocates_nothing() {
    let mut sample = KeySample::new(64, 1);
    let used = allocation_counter::measure(|| (0..10_000).for_each(|key| sample.see(key)));
    assert_eq!(used.count_total, 0);
    assert_eq!((sample.take().len(), sample.keys().len(), sample.seen()), (64, 0, 0));
}
