//! Verification: what it counts of a whole tree, and each kind of damage by name.
use crate::common;

use std::task::{Context, Waker};

use common::{Client, Lab, configs, value_of};
use fatbtree_blink::node::offsets;
use fatbtree_blink::{
    Change, GlobalAddress, Integrity, KeyRange, Start, TreeConfig, ValueLayout, Verified, VerifyError,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Twelve keys a leaf, in records or in line.
fn config(values: ValueLayout) -> TreeConfig {
    TreeConfig::with_integrity(4, 256, values, Integrity::LineVersions).unwrap()
}

fn full(config: TreeConfig, cuts: &[u64], keys: u64) -> (Lab, Client) {
    let mut lab = Lab::with_partitions(config, cuts);
    let client = lab.client(1, true);
    for key in 0..keys {
        let value = value_of(&config, key);
        lab.run(&client, client.mutate(key * 10, Change::Upsert(&value), Start::Root)).result.unwrap();
    }
    (lab, client)
}

fn verify(lab: &Lab, client: &Client) -> Result<Verified, VerifyError> {
    lab.run(client, client.verify())
}

#[test]
fn a_whole_tree_is_counted() {
    for config in configs() {
        for cuts in [&[][..], &[700, 1501]] {
            let (lab, client) = full(config, cuts, 300);
            let found = verify(&lab, &client).unwrap();
            let nodes = lab.nodes().len() as u64;
            assert_eq!((found.partitions, found.keys), (1 + cuts.len() as u64, 300));
            assert_eq!(found.leaves + found.internal_nodes, nodes);
            assert_eq!((found.untold, found.unsettled), (0, 0));
            assert_eq!(found.children + found.partitions, nodes, "each is a child of one, but for the roots");
            let is_record = |key: &u64| !config.leaf_shape().holds(value_of(&config, *key).len());
            let records = (0..300).filter(is_record).count() as u64;
            assert_eq!(found.records, records);
            assert!(found.leaf_fill() > 0.3 && found.leaf_fill() <= 1.0 && found.internal_fill() > 0.3);
            let keys = lab.run(&client, client.len(KeyRange::ALL)).unwrap();
            assert_eq!(keys, 300);
        }
    }
}

/// A writer is stopped after any of its steps: what it leaves is whole, and counted.
#[test]
fn what_stopped_writers_leave_is_counted() {
    let config = configs()[0];
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut lab = Lab::new(config);
    let (writer, reader) = (lab.client(1, true), lab.client(2, true));
    let mut untold = 0;
    for key in 0..400u64 {
        let (value, steps) = (value_of(&config, key), random.random_range(3..20));
        let mut work = Box::pin(writer.mutate(key, Change::Upsert(&value), Start::Root));
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..steps {
            if work.as_mut().poll(&mut context).is_ready() {
                break;
            }
            lab.serve(&writer);
            if !writer.turn(writer.reactor().now()) {
                writer.turn(writer.poll_timeout().unwrap_or(writer.reactor().now()));
            }
        }
        drop(work);
        untold += verify(&lab, &reader).unwrap().untold;
    }
    assert!(untold > 10, "{untold} untold");
}

/// As after the second write of a merge or a split, and as after the first one of a split.
#[test]
fn nodes_with_partners_are_counted() {
    let config = config(ValueLayout::Inline(8));
    let (lab, client) = full(config, &[], 300);
    let whole = verify(&lab, &client).unwrap();
    let memory = &lab.servers[0].memory;
    let header = |leaf: GlobalAddress| {
        let mut line = [0; 64];
        memory.read(leaf.offset(), &mut line).unwrap();
        line
    };
    let leaves = lab.leaves();
    let [(_, left), (_, right)] = [leaves[3], leaves[4]];
    let (mut line, behind) = (header(left), header(right));
    put(&mut line, offsets::HIGH, get(&behind, offsets::HIGH));
    put(&mut line, offsets::SIBLING, get(&behind, offsets::SIBLING));
    put(&mut line, offsets::PARTNER, right.raw());
    memory.write(left.offset(), &line).unwrap();
    // Its partner is free memory, so it has all of its keys still.
    let (_, other) = leaves[8];
    let mut line = header(other);
    put(&mut line, offsets::PARTNER, GlobalAddress::new(0, 3 << 20).raw());
    memory.write(other.offset(), &line).unwrap();
    assert_eq!(verify(&lab, &client), Ok(Verified { unsettled: 2, ..whole }));
    assert_eq!(lab.run(&client, client.len(KeyRange::ALL)), Ok(300));
}

/// Changes bytes of a node in memory, all of whose lines have one version; returns what verification says then.
fn damaged(
    values: ValueLayout,
    pick: impl Fn(&Lab) -> GlobalAddress,
    change: impl Fn(&Lab, &mut [u8]),
) -> VerifyError {
    let (lab, client) = full(config(values), &[], 300);
    verify(&lab, &client).unwrap();
    let node = pick(&lab);
    let memory = &lab.servers[0].memory;
    let mut bytes = [0; 256];
    memory.read(node.offset(), &mut bytes).unwrap();
    change(&lab, &mut bytes);
    memory.write(node.offset(), &bytes).unwrap();
    verify(&lab, &client).unwrap_err()
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn get(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().unwrap())
}

#[test]
fn every_kind_of_damage_is_named() {
    let inline = ValueLayout::Inline(8);
    let leaf = |number: usize| move |lab: &Lab| lab.leaves()[number].1;
    let root = |lab: &Lab| lab.servers[0].partition().root;
    // The leftmost node right above the leaves: `nodes` has the leaves first, and then level by level from the root.
    let above = |lab: &Lab| {
        let (_, first) = lab.leaves()[0];
        let all = lab.nodes();
        let is_above = |at: &&GlobalAddress| {
            let mut child = [0; 8];
            lab.servers[0].memory.read(at.offset() + offsets::FIRST_CHILD as u64, &mut child).unwrap();
            u64::from_le_bytes(child) == first.raw()
        };
        *all[lab.leaves().len()..].iter().find(is_above).unwrap()
    };
    let last = |lab: &Lab| lab.leaves().last().unwrap().1;
    let field = |at: usize, value: u64| move |_: &Lab, bytes: &mut [u8]| put(bytes, at, value);
    let check = |error: VerifyError, at: &str, text: &str| {
        let found = error.to_string();
        assert!(found.contains(at) && found.contains(text), "expected {at:?} and {text:?}: {found}");
    };
    let free = |_: &Lab, bytes: &mut [u8]| bytes[offsets::FLAGS] |= 1;
    check(damaged(inline, leaf(5), free), "level 0", "node was freed");
    check(damaged(inline, root, free), "level", "node was freed");
    let torn = |_: &Lab, bytes: &mut [u8]| bytes[64] ^= 1;
    check(damaged(inline, leaf(5), torn), "level 0", "torn read: line 1");
    check(damaged(inline, leaf(5), |_, bytes| bytes.fill(0)), "level 0", "no node here");
    check(damaged(inline, leaf(5), field(offsets::ADDRESS, 64)), "level 0", "says its address is");
    check(damaged(inline, above, |_, bytes| bytes[offsets::LEVEL] = 3), "level 1", "level 3");
    check(damaged(inline, leaf(5), field(offsets::LOW, 1)), "level 0", "its low fence is 0x1,");
    check(damaged(inline, leaf(5), field(offsets::HIGH, 1)), "level 0", "is empty");
    let longer = |_: &Lab, bytes: &mut [u8]| {
        let high = get(bytes, offsets::HIGH);
        put(bytes, offsets::HIGH, high + 1);
    };
    check(damaged(inline, leaf(5), longer), "level 0", "its low fence is");
    let last_flag = |_: &Lab, bytes: &mut [u8]| bytes[offsets::FLAGS] |= 2;
    check(damaged(inline, leaf(5), last_flag), "level 0", "it is the last of its level, but has a sibling");
    let not_last = |_: &Lab, bytes: &mut [u8]| bytes[offsets::FLAGS] &= !2;
    check(damaged(inline, last, not_last), "level 0", "the node has no sibling");
    check(damaged(inline, leaf(5), field(offsets::SIBLING, 0)), "level 0", "the node has no sibling");
    let over = |lab: &Lab, bytes: &mut [u8]| put(bytes, offsets::SIBLING, lab.leaves()[7].1.raw());
    check(damaged(inline, leaf(5), over), "level 0", "its low fence is");
    let (pivot, child) = (64 + 16, 64 + 24);
    check(damaged(inline, above, field(pivot, 0)), "level 1", "pivot 0x0 of child 1");
    check(damaged(inline, above, field(pivot, u64::MAX)), "level 1", "of child 1 is not above");
    let moved = |_: &Lab, bytes: &mut [u8]| {
        let old = get(bytes, pivot);
        put(bytes, pivot, old + 1);
    };
    check(damaged(inline, above, moved), "level 0", "its parent's pivot is");
    check(damaged(inline, above, field(child, 0)), "level 1", "null pointer in slot 1");
    let other = |lab: &Lab, bytes: &mut [u8]| put(bytes, child, lab.leaves()[9].1.raw());
    check(damaged(inline, above, other), "level 0", "siblings do not lead there");
    // Entry 0 of a leaf: its state, its key, its value.
    let entry = |config: &TreeConfig| config.leaf_shape().entry_offset(0);
    let key = |value: u64| move |lab: &Lab, bytes: &mut [u8]| put(bytes, entry(&lab.config) + 1, value);
    check(damaged(inline, leaf(5), key(1)), "level 0", "key 0x1 is not within the fences");
    let twice = |lab: &Lab, bytes: &mut [u8]| {
        let shape = lab.config.leaf_shape();
        let second = get(bytes, shape.entry_offset(1) + 1);
        put(bytes, shape.entry_offset(0) + 1, second);
    };
    check(damaged(inline, leaf(5), twice), "level 0", "has two entries");
    let record = |lab: &Lab, bytes: &mut [u8]| {
        let record = GlobalAddress(get(bytes, entry(&lab.config) + 9));
        lab.servers[0].memory.write(record.offset() + 16, &[0; 4]).unwrap();
    };
    check(
        damaged(ValueLayout::OutOfLine, leaf(5), record),
        "level 0",
        "the record does not match its checksum",
    );
    let swapped = |lab: &Lab, bytes: &mut [u8]| {
        let shape = lab.config.leaf_shape();
        let other = get(bytes, shape.entry_offset(1) + 9);
        put(bytes, shape.entry_offset(0) + 9, other);
    };
    check(damaged(ValueLayout::OutOfLine, leaf(5), swapped), "level 0", "record of key");
    let superblock = |_: &Lab| GlobalAddress::new(0, 0);
    check(
        damaged(inline, superblock, |_, bytes| bytes[20] ^= 1),
        "superblock of partition 0",
        "no whole superblock",
    );
    // An error has an address to look at.
    let error = damaged(inline, leaf(5), free);
    assert!(matches!(error, VerifyError::Node { level: 0, .. }), "{error:?}");
}
