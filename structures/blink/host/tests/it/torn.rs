//! Torn nodes are read again; stale nodes are left behind.
use crate::common;

use common::{Answer, get, load, memory, value_of, walk};
use fatbtree_blink::plain::PlainClient;
use fatbtree_blink::{Integrity, OperationError, Start, TreeConfig, Trips, ValueLayout};
use fatbtree_blink_host::{LoadOptions, LoadedTree};
use fatbtree_verbs::time::Instant;

/// Looks up a key while the memory changes: `before` is called before each read, with the number of reads made.
fn get_while(client: &PlainClient, key: u64, start: Start, mut before: impl FnMut(u64)) -> (Answer, Trips) {
    let pool = client.pool();
    let mut turns = 0;
    before(0);
    // A read is carried out when it is posted; then the clock goes on, once for each read and each pause.
    let clock = |_: &mut _| {
        turns += 1;
        before(pool.stats().remote.reads);
        Instant::from_nanos(turns * 10_000_000)
    };
    let lookup = pool.reactor().run(pool.lookup(key, start), clock);
    (lookup.result.map(|value| value.map(|value| value.to_vec())), lookup.trips)
}

fn flip(tree: &LoadedTree, offset: u64) {
    let mut byte = [0];
    tree.region.read(offset, &mut byte).unwrap();
    tree.region.write(offset, &[byte[0] ^ 1]).unwrap();
}

/// Another version in any line of any node on the way, as a write in progress leaves behind.
#[test]
fn torn_lines_are_read_again() {
    let layouts =
        [0, 8, 54, 64].map(|n| if n == 0 { ValueLayout::OutOfLine } else { ValueLayout::Inline(n) });
    for (layout, integrity) in layouts
        .into_iter()
        .flat_map(|layout| [(layout, Integrity::LineVersions), (layout, Integrity::Checksums)])
    {
        let config = TreeConfig::with_integrity(7, 512, layout, integrity).unwrap();
        let keys: Vec<u64> = (0..200).collect();
        let tree = load(&LoadOptions { fill: 1.0, ..LoadOptions::new(config, 0) }, &keys);
        let memory = memory(&tree);
        let key = 100;
        let path = walk(&tree, &memory).find_node_path(key).unwrap();
        let root = tree.partition.root;
        for start in [Start::Root, Start::IndexRead] {
            for (depth, step) in (0..).zip(&path) {
                for line in 0..u64::from(config.node_bytes(step.level)) / 64 {
                    let wide = step.level == 0 && config.leaf_shape().is_wide() && line > 0;
                    let version = if wide && line % 2 == 0 { 63 } else { 0 };
                    let offset = step.address.offset() + line * 64 + version;
                    let mut torn = false;
                    let mut client = common::client(&tree);
                    client.set_landing(move |_, _| root);
                    let (found, trips) = get_while(&client, key, start, |reads| {
                        if (reads == depth) != torn {
                            flip(&tree, offset);
                            torn = !torn;
                        }
                    });
                    assert_eq!(found, Ok(Some(value_of(&config, key))));
                    let level = step.level;
                    assert_eq!((trips.retries, trips.restarts), (1, 0), "line {line} at level {level}");
                }
            }
        }
    }
}

/// A node that stays torn is given up after a while, and is found again when it is whole.
#[test]
fn wide_entries_and_records_are_compared_too() {
    let wide = TreeConfig::new(16, 1024, ValueLayout::Inline(64)).unwrap();
    let pointers = TreeConfig::default();
    for config in [wide, pointers] {
        let tree = load(&LoadOptions::new(config, 0), &[7]);
        let rear = match config.values() {
            // The second copy of an entry's state, in its second line.
            ValueLayout::Inline(_) => 64 + 64 + 126,
            // The last byte of a record of 7 bytes.
            ValueLayout::OutOfLine | ValueLayout::ByLength(_) => 64 + 1024 + 24 + 6,
        };
        flip(&tree, rear);
        let client = common::client(&tree);
        let (found, trips) = get(&client, 7, Start::Root);
        let Err(OperationError::GaveUp { fault, .. } | OperationError::Damaged { fault, .. }) = found else {
            panic!("{found:?}")
        };
        assert!(fault.is_torn(), "{fault}");
        // A record that stays the same is told at once, a node after the patience of the operation.
        let is_record = config.values() == ValueLayout::OutOfLine;
        assert_eq!(matches!(found, Err(OperationError::Damaged { .. })), is_record, "{found:?}");
        assert!(!is_record || trips.restarts == 2, "{trips:?}");
        assert!(trips.retries >= client.pool().config().limits.torn);
        flip(&tree, rear);
        assert_eq!(get(&client, 7, Start::Root).0, Ok(Some(value_of(&config, 7))));
        // Whole again after a few reads, it costs no more than those.
        flip(&tree, rear);
        let client = common::client(&tree);
        let mut torn = true;
        let (found, trips) = get_while(&client, 7, Start::Root, |reads| {
            if torn && reads == 4 {
                flip(&tree, rear);
                torn = false;
            }
        });
        let retries = if config == wide { 4 } else { 3 };
        assert_eq!((found, trips.retries), (Ok(Some(value_of(&config, 7))), retries));
        assert_eq!(trips.restarts, 0);
    }
}

/// The entry leads to a record whose place was given to another client just now; the next walk sees the new
/// entry.
#[test]
fn record_that_now_belongs_to_another_key_is_not_believed() {
    let config = TreeConfig::default();
    let tree = load(&LoadOptions::new(config, 0), &[12, 17]);
    // The key in the first record of all.
    let record_key = 64 + 1024 + 8;
    let mut key = [0];
    tree.region.read(record_key, &mut key).unwrap();
    assert_eq!(key, [12]);
    let client = common::client(&tree);
    let mut stale = false;
    let (found, trips) = get_while(&client, 12, Start::Root, |reads| {
        // The second read is that of the record; then comes the walk from the root.
        if (reads == 1) != stale {
            tree.region.write(record_key, &[if reads == 1 { 13 } else { 12 }]).unwrap();
            stale = reads == 1;
        }
    });
    assert_eq!(found, Ok(Some(value_of(&config, 12))));
    assert_eq!((trips.restarts, trips.retries), (1, 0));
}
