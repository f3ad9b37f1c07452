//! Leaves of buckets: what a lookup reads, how full leaves become, and keys that all want the same place.
use crate::common;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use common::{Client, Lab, configs, value_of};
use fatbtree_blink::node::{
    BUCKET_BYTES, LeafBuilder, LeafEditor, NewValue, NodeSpec, freed, partnered, read_bucket,
};
use fatbtree_blink::{
    Change, GlobalAddress, Integrity, KeyRange, LeafKind, Start, TreeConfig, Trips, ValueLayout,
};
use fatbtree_verbs::IndexTarget;
use proptest::prelude::*;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

fn config(values: ValueLayout) -> TreeConfig {
    TreeConfig::new(16, 1024, values).unwrap().with_leaves(LeafKind::Buckets).unwrap()
}

/// A value that any of these leaves holds.
fn short(number: u64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

/// Place where the switches lead.
#[derive(Clone, Copy)]
enum Landing {
    /// The root, which is an inner node.
    Root,
    /// This leaf, and slices of it.
    Leaf(GlobalAddress),
    /// This leaf from its beginning: these switches know no slices.
    Whole(GlobalAddress),
}

struct Led {
    lab: Lab,
    client: Client,
    landing: Rc<Cell<Landing>>,
}

impl Led {
    fn new(values: ValueLayout) -> Self {
        let mut lab = Lab::new(config(values));
        let landing = Rc::new(Cell::new(Landing::Root));
        let root = Rc::new(Cell::new(lab.servers[0].partition.root));
        let client = lab.client_behind(1, true, {
            let (landing, root) = (Rc::clone(&landing), Rc::clone(&root));
            move |_, target| match landing.get() {
                Landing::Root => Some(root.get()),
                Landing::Leaf(leaf) => Some(leaf.behind(target.offset_in_leaf())),
                Landing::Whole(leaf) => Some(leaf),
            }
        });
        let led = Self { lab, client, landing };
        for key in 0..200 {
            led.put(key * 10, &short(key));
        }
        root.set(led.lab.servers[0].partition().root);
        led
    }

    fn put(&self, key: u64, value: &[u8]) {
        let change = self.client.mutate(key, Change::Upsert(value), Start::Root);
        assert!(self.lab.run(&self.client, change).result.unwrap());
    }

    /// Value, cost, and bytes that were read.
    fn get(&self, key: u64, start: Start) -> (Option<Vec<u8>>, Trips, u64) {
        let before = self.client.stats().remote.read_bytes;
        let found = self.lab.run(&self.client, self.client.lookup(key, start));
        let bytes = self.client.stats().remote.read_bytes - before;
        (found.result.unwrap().map(|value| value.to_vec()), found.trips, bytes)
    }

    fn leaf_of(&self, key: u64) -> GlobalAddress {
        self.lab.leaves().into_iter().rfind(|(low, _)| *low <= key).unwrap().1
    }
}

#[test]
fn a_lookup_that_switches_lead_to_its_leaf_reads_two_lines() {
    for values in [ValueLayout::Inline(8), ValueLayout::SHORT] {
        let led = Led::new(values);
        for key in (0..2000).step_by(7) {
            led.landing.set(Landing::Leaf(led.leaf_of(key)));
            // It has to learn that leaves are what it gets.
            for _ in 0..40 {
                led.get(key, Start::IndexRead);
            }
            let (found, trips, bytes) = led.get(key, Start::IndexRead);
            let expected = (key % 10 == 0).then(|| short(key / 10));
            assert_eq!(found, expected, "key {key}");
            assert_eq!((trips.round_trips, trips.landed, bytes), (1, Some(0), u64::from(BUCKET_BYTES)));
        }
    }
}

#[test]
fn a_lookup_asks_for_as_much_as_an_inner_node_where_it_was_led_to_one() {
    let led = Led::new(ValueLayout::Inline(8));
    let inner = u64::from(led.lab.config.internal_bytes());
    for _ in 0..2 {
        // From the root, which is the leaves' parent.
        let (_, trips, bytes) = led.get(50, Start::IndexRead);
        assert_eq!((trips.round_trips, trips.landed, bytes), (2, Some(1), inner + u64::from(BUCKET_BYTES)));
    }
    let landing = Landing::Leaf(led.leaf_of(50));
    led.landing.set(landing);
    let read = |led: &Led| led.get(50, Start::IndexRead);
    assert_eq!(read(&led).2, inner, "one leaf is not enough to ask for less");
    while read(&led).2 == inner {}
    assert_eq!(read(&led).2, u64::from(BUCKET_BYTES));
    led.landing.set(Landing::Root);
    let (found, trips, bytes) = read(&led);
    assert_eq!(found, Some(short(5)));
    assert_eq!(
        (trips.round_trips, bytes),
        (3, inner + 2 * u64::from(BUCKET_BYTES)),
        "it asked for too little"
    );
    assert_eq!(read(&led).1.round_trips, 2, "once");
}

#[test]
fn a_walk_reads_two_lines_of_the_leaf() {
    let led = Led::new(ValueLayout::Inline(8));
    let (found, trips, bytes) = led.get(70, Start::Root);
    assert_eq!(found, Some(short(7)));
    let inner = u64::from(led.lab.config.internal_bytes());
    assert_eq!((trips.round_trips, bytes), (2, inner + u64::from(BUCKET_BYTES)));
}

#[test]
fn switches_that_know_no_slices_lead_right_as_well() {
    let led = Led::new(ValueLayout::SHORT);
    led.landing.set(Landing::Whole(led.leaf_of(30)));
    let (found, trips, _) = led.get(30, Start::IndexRead);
    assert_eq!((found, trips.round_trips), (Some(short(3)), 2));
}

/// A leaf that was split since the switches learned of it does not answer for the keys that have gone, and the whole leaf says where they are.
#[test]
fn a_bucket_of_a_leaf_that_was_split_does_not_answer() {
    let led = Led::new(ValueLayout::Inline(8));
    let old = led.leaf_of(100);
    led.landing.set(Landing::Leaf(old));
    for key in 60..140 {
        led.put(key, &short(key));
    }
    for key in 60..140 {
        let (found, trips, _) = led.get(key, Start::IndexRead);
        assert_eq!(found, Some(short(key)));
        let expected = if led.leaf_of(key) == old { 1..=1 } else { 3..=5 };
        assert!(expected.contains(&trips.round_trips), "key {key}: {trips:?}");
    }
}

/// Keys with one bucket, all of them: leaves hold few, and nothing is lost.
#[test]
fn keys_that_all_want_one_bucket_cost_memory_and_no_more() {
    for config in configs().into_iter().filter(|config| config.leaves() == LeafKind::Buckets) {
        let mut lab = Lab::new(config);
        let client = lab.client(1, true);
        let wanted = config.leaf_shape().bucket_offset(0);
        let keys = (0..).filter(|&key| config.leaf_shape().bucket_offset(key) == wanted);
        let keys: Vec<u64> = keys.take(300).collect();
        for &key in &keys {
            let value = value_of(&config, key);
            let change = client.mutate(key, Change::Insert(&value), Start::Root);
            assert!(lab.run(&client, change).result.unwrap());
        }
        let expected: BTreeMap<_, _> = keys.iter().map(|&key| (key, value_of(&config, key))).collect();
        assert_eq!(lab.contents(), expected, "{config:?}");
        for (key, value) in expected {
            let found = lab.run(&client, client.lookup(key, Start::Root)).result.unwrap();
            assert_eq!(found.as_deref(), Some(&value[..]));
        }
        let full = lab.run(&client, client.verify()).unwrap().keys as usize / lab.leaves().len();
        assert!(full >= 1, "{full} keys a leaf");
    }
}

/// Random keys: slots in use when a leaf is split, on average.
fn fill(values: ValueLayout) -> f64 {
    let config = config(values);
    let shape = config.leaf_shape();
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let mut full = 0;
    const LEAVES: usize = 500;
    for _ in 0..LEAVES {
        let keys: Vec<u64> = (0..=shape.capacity()).map(|_| random.random()).collect();
        full += shape.fitting(keys.into_iter());
    }
    full as f64 / (LEAVES * shape.capacity()) as f64
}

#[test]
fn leaves_are_three_quarters_full_when_they_are_split() {
    let (inline, by_length) = (fill(ValueLayout::Inline(8)), fill(ValueLayout::SHORT));
    println!(
        "in use before a split: values of 8 bytes {inline:.3}, short values and pointers {by_length:.3}"
    );
    assert!(inline > 0.75 && by_length > 0.72, "{inline} {by_length}");
}

/// Keys one after the other are spread evenly: a leaf takes nearly all it has slots for.
#[test]
fn keys_one_after_the_other_fill_a_leaf() {
    let config = config(ValueLayout::Inline(8));
    let shape = config.leaf_shape();
    let full: usize = (0..500).map(|leaf| shape.fitting(leaf * 1000..leaf * 1000 + 45)).sum();
    assert!(full as f64 / 500.0 > 0.9 * shape.capacity() as f64, "{full} of 500 leaves");
}

/// What entries of other buckets say: for [`a_bucket_answers_what_its_leaf_does`].
fn leaf(config: &TreeConfig, range: KeyRange, keys: &[u64], version: u32) -> Vec<u8> {
    let spec = NodeSpec {
        address: GlobalAddress::new(1, 64),
        level: 0,
        range,
        sibling: GlobalAddress::new(1, 4096),
        version,
    };
    let mut bytes = vec![0; config.leaf_bytes() as usize];
    let mut leaf = LeafBuilder::new(&mut bytes, config.leaf_shape(), spec);
    let fitting = config.leaf_shape().fitting(keys.iter().copied());
    for &key in &keys[..fitting] {
        leaf.push_value(key, NewValue::Inline(&short(key + u64::from(version))));
    }
    leaf.finish();
    bytes
}

proptest! {
    /// Lines of a leaf before and after a structure change, in any mixture: a bucket answers as one of the two does, or not at all.
    #[test]
    fn a_bucket_answers_as_its_leaf_did_or_does(
        seed: u64,
        checksums: bool,
        change in 0..5_u8,
        taken in prop::collection::vec(any::<bool>(), 16),
    ) {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let integrity = if checksums { Integrity::Checksums } else { Integrity::LineVersions };
        let values = if random.random_bool(0.5) { ValueLayout::Inline(8) } else { ValueLayout::SHORT };
        let config = TreeConfig::with_integrity(16, 1024, values, integrity).unwrap().with_leaves(LeafKind::Buckets).unwrap();
        let mut keys: Vec<u64> = (0..100).filter(|_| random.random_bool(0.25)).collect();
        let before = leaf(&config, KeyRange::of(0..100), &keys, 1);
        let middle = 50;
        let after = match change {
            // Split, merged into another, freed, given a partner, rearranged by an insertion.
            0 => leaf(&config, KeyRange::of(0..middle), &keys[..keys.partition_point(|key| *key < middle)], 2),
            1 => leaf(&config, KeyRange::of(0..200), &keys, 2),
            2 => [&freed(&config, &before)[..], &before].concat()[..1024].to_vec(),
            3 => partnered(&config, &before, GlobalAddress::new(1, 2048)),
            _ => {
                let mut bytes = before.clone();
                for key in (0..100).filter(|key| !keys.contains(key)).collect::<Vec<_>>() {
                    let mut editor = LeafEditor::new(&mut bytes, config.leaf_shape());
                    let Some(slot) = editor.free_slot(key) else { break };
                    let changed = editor.put(slot, key, NewValue::Inline(&short(key + 1)));
                    keys.push(key);
                    if changed == (0..1024) {
                        break;
                    }
                }
                bytes
            }
        };
        let mixture: Vec<u8> = (0..16).flat_map(|line| {
            let from = if taken[line] { &after } else { &before };
            from[line * 64..(line + 1) * 64].to_vec()
        }).collect();
        for key in 0..100 {
            let at = config.leaf_shape().bucket_offset(key).unwrap() as usize;
            let read = |bytes: &[u8]| {
                let found = read_bucket(&config, 1, key, &bytes[at..at + BUCKET_BYTES as usize]);
                found.map(|found| found.map(|(slot, value)| (slot, format!("{value:?}"))))
            };
            let (was, is, found) = (read(&before), read(&after), read(&mixture));
            if let Ok(found) = found {
                // Single entries may be written between the lines: then each line is of its own moment, as in any leaf.
                let is_one = [&was, &is].iter().any(|leaf| leaf.as_ref() == Ok(&found));
                prop_assert!(is_one, "key {}: {:?} of {:?} and {:?}", key, found, was, is);
            }
            prop_assert!(was.is_ok());
            prop_assert_eq!(is.is_ok(), change == 1 || change == 4 || change == 0 && key < middle);
        }
    }

    /// Whatever the bytes are, reading them ends, and an answer is not made up from nothing.
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), key: u64, checksums: bool) {
        let integrity = if checksums { Integrity::Checksums } else { Integrity::LineVersions };
        let config = TreeConfig::with_integrity(16, 1024, ValueLayout::SHORT, integrity).unwrap();
        let config = config.with_leaves(LeafKind::Buckets).unwrap();
        prop_assert!(read_bucket(&config, 0, key, &bytes).is_err());
    }
}

/// Of all rkeys of index reads, those of slices name each line of the largest leaf.
#[test]
fn a_slice_can_begin_at_each_bucket_of_the_largest_leaf() {
    let largest =
        TreeConfig::new(16, 2048, ValueLayout::Inline(8)).unwrap().with_leaves(LeafKind::Buckets).unwrap();
    for key in 0..10_000 {
        let offset = largest.leaf_shape().bucket_offset(key).unwrap();
        let target = IndexTarget::Slice { line: (offset / 64) as u8, or_record: false };
        assert_eq!(IndexTarget::of_rkey(target.rkey()).map(IndexTarget::offset_in_leaf), Some(offset.into()));
    }
    let larger = TreeConfig::new(16, 2112, ValueLayout::Inline(8)).unwrap().with_leaves(LeafKind::Buckets);
    assert!(larger.unwrap_err().to_string().contains("192 to 2048 bytes"));
    let wide = TreeConfig::new(16, 1024, ValueLayout::Inline(44)).unwrap().with_leaves(LeafKind::Buckets);
    assert!(wide.unwrap_err().to_string().contains("up to 42 bytes"));
}
