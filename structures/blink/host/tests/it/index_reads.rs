//! Wherever an index read lands, the answer is right: on any node of the path, on a stale one, on a wrong one, on
//! something that is no node at all.
use crate::common;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use common::{client, get, load, map_of, memory, probes, roots, value_of, values, walk};
use fatbtree_blink::node::{LINE, NodeFault, mark_free};
use fatbtree_blink::plain::PlainClient;
use fatbtree_blink::record::record_bytes;
use fatbtree_blink::{
    GlobalAddress, KeyRange, Limits, OperationError, Partition, Regions, Start, SuperRoot, TreeConfig,
    ValueLayout,
};
use fatbtree_blink_host::{LoadOptions, LoadedTree, load_cluster};
use fatbtree_verbs::Memory;
use fatbtree_verbs::time::Duration;
use proptest::collection::btree_set;
use proptest::prelude::*;

fn nodes(tree: &LoadedTree) -> Vec<GlobalAddress> {
    let memory = memory(tree);
    let walk = walk(tree, &memory);
    let mut nodes = vec![];
    walk.for_each_internal(|node| nodes.push(node.header().address)).unwrap();
    walk.for_each_leaf(|leaf| nodes.push(leaf.header().address)).unwrap();
    nodes
}

fn config(layout: ValueLayout) -> TreeConfig {
    TreeConfig::new(3, 320, layout).unwrap()
}

/// Switches that let every index read land at one place, which can be moved.
fn landing(client: &mut PlainClient) -> Rc<Cell<GlobalAddress>> {
    let at = Rc::new(Cell::new(GlobalAddress::NULL));
    client.set_landing({
        let at = Rc::clone(&at);
        move |_, _| at.get()
    });
    at
}

/// Changes a line of the region, as its owner sees it.
fn change_line(tree: &LoadedTree, offset: u64, change: impl FnOnce(&mut [u8; LINE])) {
    let mut line = [0; LINE];
    tree.region.read(offset, &mut line).unwrap();
    change(&mut line);
    tree.region.write(offset, &line).unwrap();
}

/// Copies a node's bytes.
fn copy(tree: &LoadedTree, from: u64, to: u64, len: u32) {
    let mut bytes = vec![0; len as usize];
    tree.region.read(from, &mut bytes).unwrap();
    tree.region.write(to, &bytes).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn landing_on_any_node_of_the_path_saves_the_trips_above(
        keys in btree_set(prop_oneof![0..200_u64, any::<u64>()], 1..150),
        inline in any::<bool>(),
    ) {
        let keys: Vec<u64> = keys.into_iter().collect();
        let config = config(if inline { ValueLayout::Inline(8) } else { ValueLayout::OutOfLine });
        let tree = load(&LoadOptions::new(config, 5), &keys);
        let map = map_of(&config, &keys);
        let memory = memory(&tree);
        let walk = walk(&tree, &memory);
        let mut client = client(&tree);
        let lands = landing(&mut client);
        for key in probes(&keys) {
            let expected = Ok(map.get(&key).cloned());
            let record = u32::from(map.contains_key(&key) && !inline);
            for step in walk.find_node_path(key).unwrap() {
                lands.set(step.address);
                let (found, trips) = get(&client, key, Start::IndexRead);
                prop_assert_eq!(&found, &expected);
                prop_assert_eq!(trips.landed, Some(step.level));
                prop_assert_eq!(trips.round_trips, u32::from(step.level) + 1 + record);
                // The same from a client's own cache.
                let start = Start::Node { address: step.address, level: step.level };
                prop_assert_eq!(&get(&client, key, start).0, &expected);
            }
            // Loaded records are marked as the ones that count.
            let place = walk.record_of(key).unwrap();
            prop_assert_eq!(u32::from(place.is_some()), record);
            if let Some(place) = place {
                lands.set(place.address);
                let (found, trips) = get(&client, key, Start::IndexRead);
                prop_assert_eq!(&found, &expected);
                let fits = record_bytes(place.length) <= config.max_node_bytes();
                prop_assert_eq!((trips.landed_on_record, trips.round_trips == 1), (fits, fits));
            }
        }
    }

    #[test]
    fn landing_anywhere_else_is_harmless(
        keys in btree_set(0..300_u64, 4..80),
        layout in prop_oneof![
            Just(ValueLayout::OutOfLine),
            Just(ValueLayout::SHORT),
            Just(ValueLayout::ByLength(30)),
            Just(ValueLayout::Inline(8)),
            Just(ValueLayout::Inline(60)),
        ],
        offset in any::<prop::sample::Index>(),
    ) {
        let keys: Vec<u64> = keys.into_iter().collect();
        let config = config(layout);
        let cluster = load_cluster(&LoadOptions::new(config, 0), 2, &keys, &mut values(config)).unwrap();
        let map = map_of(&config, &keys);
        let mut client = PlainClient::new(&cluster.memory(), &config, &cluster.roots);
        let lands = landing(&mut client);
        let everywhere: Vec<_> = cluster.trees.iter().flat_map(nodes).collect();
        let probes: Vec<u64> = (0..302).step_by(7).chain([u64::MAX]).collect();
        for key in probes {
            let expected = Ok(map.get(&key).cloned());
            let home = cluster.roots.partition_of(key).root.server();
            for &at in &everywhere {
                lands.set(at);
                let (found, trips) = get(&client, key, Start::IndexRead);
                prop_assert_eq!(&found, &expected, "landed at {}", at);
                prop_assert!(at.server() == home || trips.restarts == 1);
            }
            // Inside a record, between nodes, in the padding, anywhere.
            let size = cluster.trees[usize::from(home)].region.len();
            let at = 1 + offset.index((size - u64::from(config.max_node_bytes())) as usize) as u64;
            lands.set(GlobalAddress::new(home, at));
            prop_assert_eq!(&get(&client, key, Start::IndexRead).0, &expected, "landed at {:#x}", at);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic_nor_loop(
        bytes in prop::collection::vec(any::<u8>(), 0..1100),
        level in 0..3_u8,
        format in prop_oneof![Just(0_u8), Just(8), Just(254), Just(255), any::<u8>()],
        count in any::<u16>(),
    ) {
        let mut bytes = bytes;
        // Make some of it look like a node.
        if bytes.len() >= 64 {
            bytes[1..6].copy_from_slice(&[level, 0x7e, 0xfb, 0, format]);
            bytes[6..8].copy_from_slice(&count.to_le_bytes());
            let version = bytes[0];
            bytes.chunks_mut(64).for_each(|line| line[0] = version);
        }
        let layouts =
            [ValueLayout::OutOfLine, ValueLayout::SHORT, ValueLayout::Inline(8), ValueLayout::Inline(64)];
        for layout in layouts {
            let config = TreeConfig::new(16, 1024, layout).unwrap();
            let padding = u64::from(config.max_node_bytes());
            let region = Memory::shared(64 + bytes.len() as u64 + padding).unwrap();
            region.write(64, &bytes).unwrap();
            let root = GlobalAddress::new(0, 64);
            let partition = Partition { id: 0, range: KeyRange::ALL, root, root_level: level };
            let roots = SuperRoot::new(vec![partition]).unwrap();
            let limits = Limits { patience: Duration::from_millis(10), ..Limits::default() };
            let memory = Regions::new([(0, region)]);
            for start in [Start::Root, Start::IndexRead] {
                let mut client = PlainClient::with_limits(&memory, &config, &roots, limits);
                landing(&mut client).set(root);
                let pool = client.pool();
                let mut turns = 0;
                let lookup = pool.reactor().run(
                    async {
                        let lookup = std::pin::pin!(pool.lookup(5, start));
                        // A pointer that leads out of the region breaks the connection, which this test does
                        // not repair.
                        let ends = std::pin::pin!(pool.reactor().sleep(Duration::from_secs(1)));
                        either(lookup, ends).await
                    },
                    |_| {
                        turns += 1;
                        fatbtree_verbs::time::Instant::from_nanos(turns * 100_000)
                    },
                );
                if let Some(lookup) = lookup {
                    prop_assert!(lookup.trips.round_trips < 1000, "{:?}", lookup.trips);
                }
            }
        }
    }
}

/// The first one's output, unless the second one ends before.
async fn either<T>(
    first: impl Future<Output = T> + Unpin,
    second: impl Future<Output = ()> + Unpin,
) -> Option<T> {
    let (mut first, mut second) = (first, second);
    std::future::poll_fn(move |context| {
        use std::pin::Pin;
        use std::task::Poll;
        match Pin::new(&mut first).poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => Pin::new(&mut second).poll(context).map(|()| None),
        }
    })
    .await
}

#[test]
fn freed_root_is_an_error_not_a_loop() {
    let config = TreeConfig::default();
    let tree = load(&LoadOptions::new(config, 0), &[1, 2, 3]);
    change_line(&tree, tree.partition.root.offset(), mark_free);
    let (found, trips) = get(&client(&tree), 2, Start::Root);
    let Err(error @ OperationError::GaveUp { key: 2, fault: NodeFault::Free, .. }) = found else {
        panic!("{found:?}")
    };
    assert!(error.to_string().contains("the last node was refused: node was freed. Unless"), "{error}");
    // It pauses between attempts, longer and longer, up to a millisecond.
    assert!((1000..4000).contains(&trips.restarts), "{trips:?}");
    // Each attempt after the second asks the superblock first: perhaps the root is another one.
    assert_eq!(trips.round_trips, 2 * trips.restarts);
}

#[test]
fn freed_node_under_an_index_read_costs_one_trip() {
    let config = config(ValueLayout::Inline(8));
    let keys: Vec<u64> = (0..100).collect();
    let tree = load(&LoadOptions { spare_bytes: 320, ..LoadOptions::new(config, 0) }, &keys);
    // A leaf was freed after the switch had learned of it.
    let stale = GlobalAddress::new(0, tree.spare.start);
    copy(&tree, 64, stale.offset(), 320);
    change_line(&tree, stale.offset(), |line| {
        line[16..24].copy_from_slice(&stale.raw().to_le_bytes());
        mark_free(line);
    });
    let mut client = client(&tree);
    landing(&mut client).set(stale);
    let (found, trips) = get(&client, 0, Start::IndexRead);
    assert_eq!(found, Ok(Some(value_of(&config, 0))));
    assert_eq!((trips.restarts, trips.landed), (1, None));
    assert_eq!(trips.round_trips, 1 + u32::from(tree.partition.root_level) + 1);
}

#[test]
fn key_that_moved_right_is_followed() {
    let config = config(ValueLayout::Inline(8));
    let keys: Vec<u64> = (0..40).map(|i| i * 10).collect();
    let tree = load(&LoadOptions::new(config, 0), &keys);
    let memory = memory(&tree);
    let mut leaves = vec![];
    walk(&tree, &memory).for_each_leaf(|leaf| leaves.push(leaf.header().address)).unwrap();
    let key = *keys.last().unwrap();
    let mut client = client(&tree);
    let lands = landing(&mut client);
    for (index, &leaf) in leaves.iter().enumerate() {
        lands.set(leaf);
        let (found, trips) = get(&client, key, Start::IndexRead);
        assert_eq!(found, Ok(Some(value_of(&config, key))));
        let steps = (leaves.len() - 1 - index) as u32;
        assert_eq!((trips.siblings_followed, trips.round_trips), (steps, steps + 1));
    }
    // With a bound, the walk begins again at the root instead.
    let limits = Limits { siblings: 2, ..Limits::default() };
    let mut client = PlainClient::with_limits(&memory, &config, &roots(&tree), limits);
    landing(&mut client).set(leaves[0]);
    let (found, trips) = get(&client, key, Start::IndexRead);
    assert_eq!(found, Ok(Some(value_of(&config, key))));
    assert_eq!((trips.siblings_followed, trips.restarts), (2, 1));
}

#[test]
fn node_of_another_server_is_refused_even_if_its_fences_fit() {
    let config = config(ValueLayout::Inline(8));
    let ours = load(&LoadOptions::new(config, 0), &[1, 2, 3]);
    let foreign = load(&LoadOptions::new(config, 1), &[5]);
    let memory = Regions::new([(0, Arc::clone(&ours.region)), (1, Arc::clone(&foreign.region))]);
    let mut client = PlainClient::new(&memory, &config, &roots(&ours));
    landing(&mut client).set(foreign.partition.root);
    let (found, trips) = get(&client, 2, Start::IndexRead);
    assert_eq!(found, Ok(Some(value_of(&config, 2))));
    assert_eq!((trips.restarts, trips.landed), (1, None));
}

#[test]
fn pointer_to_a_node_that_moved_or_changed_its_level_is_stale() {
    let config = config(ValueLayout::Inline(8));
    let keys: Vec<u64> = (0..100).map(|i| i * 2).collect();
    let tree = load(&LoadOptions { spare_bytes: 320, ..LoadOptions::new(config, 0) }, &keys);
    let key = 42;
    let memory = memory(&tree);
    let path = walk(&tree, &memory).find_node_path(key).unwrap();
    let leaf = path.last().unwrap().address.offset();

    // The bytes of the leaf, without the key, at an address that is not the leaf's own.
    let moved = GlobalAddress::new(0, tree.spare.start);
    copy(&tree, leaf, moved.offset(), 320);
    for slot in 0..config.leaf_capacity() {
        let state = moved.offset() + config.leaf_shape().entry_offset(slot) as u64;
        tree.region.write(state, &[0]).unwrap();
    }
    let starts = [
        Start::Node { address: moved, level: 0 },
        // Internal nodes have one size, so only the level tells.
        Start::Node { address: path[0].address, level: path[0].level - 1 },
        Start::Node { address: path[1].address, level: path[1].level + 1 },
    ];
    let client = client(&tree);
    for start in starts {
        let (found, trips) = get(&client, key, start);
        assert_eq!(found, Ok(Some(value_of(&config, key))), "{start:?}");
        let expected = (1, 1 + u32::from(tree.partition.root_level) + 1);
        assert_eq!((trips.restarts, trips.round_trips), expected, "{start:?}");
    }
}

#[test]
fn an_index_read_never_runs_over_the_end_of_the_region() {
    for layout in [ValueLayout::OutOfLine, ValueLayout::Inline(8)] {
        let config = TreeConfig::new(16, 1024, layout).unwrap();
        // Chunks may be used to the last byte of the spare memory.
        let tree = load(&LoadOptions { spare_bytes: 384, ..LoadOptions::new(config, 0) }, &[7]);
        let last = GlobalAddress::new(0, tree.spare.end - u64::from(config.internal_bytes()));
        let mut client = client(&tree);
        landing(&mut client).set(last);
        let (found, trips) = get(&client, 7, Start::IndexRead);
        assert_eq!(found, Ok(Some(value_of(&config, 7))));
        assert_eq!((trips.breaks, trips.restarts), (0, 1), "no node there, but bytes");
    }
}
