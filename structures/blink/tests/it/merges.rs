//! Conditions under which two neighbours are merged, or left as they are.
use crate::common;

use common::{Client, Lab, MANY_LOCKS, configs, value_of};
use fatbtree_blink::node::{LINE, NodeHeader, offsets};
use fatbtree_blink::{
    Allocation, Change, GlobalAddress, Integrity, Partition, Start, TreeConfig, ValueLayout,
};

/// Nine keys a leaf.
fn config() -> TreeConfig {
    TreeConfig::with_integrity(4, 256, ValueLayout::Inline(8), Integrity::LineVersions).unwrap()
}

fn mutate(lab: &Lab, client: &Client, key: u64, mutation: Change<'_>) {
    lab.run(client, client.mutate(key, mutation, Start::Root)).result.unwrap();
}

fn header(lab: &Lab, node: GlobalAddress) -> NodeHeader {
    let mut line = [0; LINE];
    lab.servers[0].memory.read(node.offset(), &mut line).unwrap();
    NodeHeader::parse(&line)
}

fn put(lab: &Lab, node: GlobalAddress, field: usize, word: u64) {
    lab.servers[0].memory.write(node.offset() + field as u64, &word.to_le_bytes()).unwrap();
}

/// Two leaves below a root, with few keys each.
struct Two {
    lab: Lab,
    client: Client,
    root: GlobalAddress,
    left: NodeHeader,
    right: NodeHeader,
}

impl Two {
    fn new() -> Self {
        let mut lab = Lab::with_many_locks(config());
        let client = lab.client(1, true);
        for key in 0..=config().leaf_capacity() as u64 {
            mutate(&lab, &client, key * 10, Change::Upsert(&[1; 8]));
        }
        let leaves = lab.leaves();
        let [(_, left), (_, right)] = leaves[..] else { panic!("two leaves: {leaves:?}") };
        let (left, right) = (header(&lab, left), header(&lab, right));
        let root = lab.servers[0].partition().root;
        Self { lab, client, root, left, right }
    }

    /// Deletes keys of one leaf until none are left; says whether the two were merged.
    fn are_merged(&self, from: &NodeHeader) -> bool {
        for key in (0..=config().leaf_capacity() as u64).map(|key| key * 10) {
            if from.range().contains(key) {
                // An operation on a damaged node may give up.
                let _ =
                    self.lab.run(&self.client, self.client.mutate(key, Change::Delete, Start::Root)).result;
            }
        }
        let merged = self.client.stats().merges > 0;
        let freed = header(&self.lab, self.right.address).is_free();
        assert_eq!(merged, freed, "the right one is free, and only then");
        merged
    }

    fn put(&self, node: &NodeHeader, field: usize, word: u64) {
        put(&self.lab, node.address, field, word);
    }
}

#[test]
fn neighbours_are_merged_from_either_side() {
    let two = Two::new();
    assert!(two.are_merged(&two.left.clone()));
    let two = Two::new();
    assert!(two.are_merged(&two.right.clone()));
}

/// A READ that was under way meanwhile must not take lines of both for one node.
#[test]
fn a_node_in_the_memory_of_one_that_was_merged_away_has_the_next_version() {
    let two = Two::new();
    assert!(two.are_merged(&two.right.clone()));
    let freed = header(&two.lab, two.right.address);
    for key in 1000..1020 {
        mutate(&two.lab, &two.client, key, Change::Upsert(&[1; 8]));
    }
    let again = header(&two.lab, freed.address);
    assert!(!again.is_free() && again.low != two.right.low, "it is another node: {again:?}");
    assert!(again.version > freed.version, "{again:?} after {freed:?}");
}

/// What their parent says of two nodes was true once. It has changed meanwhile, or somebody is at work there: then they are no pair.
/// A client may die between the WRITE of a new node on one server and the WRITE on another server that leads there. A stale pointer to
/// a node that had this memory before would lead to the new node, which would answer as if it were in the tree.
#[test]
fn a_split_onto_another_server_takes_memory_that_was_no_node() {
    let mut lab = Lab::with_partitions(config(), &[1000]);
    (lab.locks, lab.allocation) = (MANY_LOCKS as u32, Allocation::RoundRobin);
    let client = lab.client(1, true);
    // Downwards, so that the first leaf of partition 1 is split again and again, onto one server after the other.
    let mut keys = Vec::new();
    while client.stats().splits < 2 {
        keys.push(3000 - 10 * keys.len() as u64);
        mutate(&lab, &client, keys[keys.len() - 1], Change::Upsert(&[1; 8]));
    }
    let leaves = lab.leaves();
    let beside = leaves.windows(2).find(|two| two.iter().all(|(_, leaf)| leaf.server() == 1));
    let (low, freed) = beside.expect("the second half lies where the first does")[1];
    let high = leaves.iter().map(|(low, _)| *low).find(|other| *other > low).unwrap_or(u64::MAX);
    for &key in keys.iter().filter(|key| (low..high).contains(key)) {
        mutate(&lab, &client, key, Change::Delete);
    }
    let is_free = || {
        let mut line = [0; LINE];
        lab.servers[1].memory.read(freed.offset(), &mut line).unwrap();
        NodeHeader::parse(&line).is_free()
    };
    assert!(is_free() && client.stats().merges == 1, "{leaves:?}");

    let elsewhere = client.stats().splits_elsewhere;
    for key in 0.. {
        mutate(&lab, &client, key, Change::Upsert(&[1; 8]));
        if client.stats().splits_elsewhere > elsewhere {
            break;
        }
    }
    assert!(is_free(), "the upper half lies in the memory of a node that was merged away");
}

/// A parent's statement about two nodes may be outdated, or another client may be changing them: then they are no pair.
#[test]
fn those_that_are_not_the_neighbours_that_their_parent_says_are_left_alone() {
    type Forge = fn(&Two);
    let pivot = LINE + 16;
    let cases: [(&str, bool, Forge); 8] = [
        ("the right one lies elsewhere", true, |two| two.put(&two.right, offsets::ADDRESS, 64)),
        ("the right one begins further on", true, |two| two.put(&two.right, offsets::LOW, two.right.low + 1)),
        ("the right one is half done", true, |two| two.put(&two.right, offsets::PARTNER, 1 << 20)),
        ("there is another one after the left one", true, |two| {
            two.put(&two.left, offsets::SIBLING, 1 << 20)
        }),
        ("the left one lies elsewhere", false, |two| two.put(&two.left, offsets::ADDRESS, 1 << 20)),
        ("the left one begins further on", false, |two| {
            // What is in it is within its fences still.
            mutate(&two.lab, &two.client, 0, Change::Delete);
            two.put(&two.left, offsets::LOW, 1);
        }),
        ("the left one ends earlier", false, |two| two.put(&two.left, offsets::HIGH, two.left.high - 1)),
        ("the left one is half done", false, |two| two.put(&two.left, offsets::PARTNER, 1 << 20)),
    ];
    for (what, of_left, forge) in cases {
        let two = Two::new();
        forge(&two);
        let from = if of_left { two.left } else { two.right };
        assert!(!two.are_merged(&from), "{what}");
    }
    // The two are neighbours, but the parent knows the right one by another key.
    let two = Two::new();
    put(&two.lab, two.root, pivot, two.right.low + 1);
    assert!(!two.are_merged(&two.left.clone()), "another pivot");
}

/// More than three quarters of a node together: they would be split again soon.
#[test]
fn those_that_do_not_fit_are_left_alone() {
    let capacity = config().leaf_capacity() as u64;
    let two = Two::new();
    // The right one is full but for one entry.
    let mut key = two.right.low + 1;
    while lab_count(&two, &two.right) < capacity as usize - 1 {
        if !key.is_multiple_of(10) {
            mutate(&two.lab, &two.client, key, Change::Upsert(&[1; 8]));
        }
        key += 1;
    }
    let keys: Vec<u64> =
        (0..=capacity).map(|key| key * 10).filter(|key| two.left.range().contains(*key)).collect();
    let (last, others) = keys.split_last().unwrap();
    for key in others {
        mutate(&two.lab, &two.client, *key, Change::Delete);
    }
    assert_eq!(two.client.stats().merges, 0);
    // One that is empty fits to any.
    mutate(&two.lab, &two.client, *last, Change::Delete);
    assert_eq!(two.client.stats().merges, 1);
}

fn lab_count(two: &Two, leaf: &NodeHeader) -> usize {
    let mut count = 0;
    two.lab.each_tree(|_, tree| {
        tree.for_each_leaf(|found| {
            if found.header().address == leaf.address {
                count = found.entries().count();
            }
        })
        .unwrap();
    });
    count
}

/// A root with one child goes. Its memory is a freed node then: a switch or a sleeping client that still
/// begins there sees that, and asks for the root.
#[test]
fn a_root_that_was_dropped_is_a_freed_node() {
    for config in configs() {
        let mut lab = Lab::with_many_locks(config);
        let (client, sleeper) = (lab.client(1, true), lab.client(2, true));
        let mut roots = vec![lab.servers[0].partition()];
        let note = |lab: &Lab, roots: &mut Vec<Partition>| {
            let root = lab.servers[0].partition();
            if roots.last().unwrap().root != root.root {
                roots.push(root);
            }
        };
        let value = value_of(&config, 8);
        for key in 0..200 {
            mutate(&lab, &client, key, Change::Upsert(&value));
            note(&lab, &mut roots);
        }
        // It has walked from the highest root, and will again.
        assert!(lab.run(&sleeper, sleeper.lookup(7, Start::Root)).result.unwrap().is_some());
        let highest = lab.servers[0].partition();
        assert!(highest.root_level > 2);
        for key in (0..200).filter(|key| *key != 7) {
            mutate(&lab, &client, key, Change::Delete);
            note(&lab, &mut roots);
            let last = *roots.last().unwrap();
            for former in roots.iter().filter(|root| root.root_level > last.root_level) {
                assert!(header(&lab, former.root).is_free(), "{former:?} is a node still");
            }
        }
        assert!(lab.servers[0].partition().root_level < highest.root_level);
        let found = lab.run(&sleeper, sleeper.lookup(7, Start::Root)).result.unwrap();
        assert_eq!(found.as_deref(), Some(&value[..]));
        assert_eq!(lab.contents().len(), 1);
    }
}
