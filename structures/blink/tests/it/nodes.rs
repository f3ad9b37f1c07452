//! Nodes by themselves: golden bytes, and searches against a map.
use std::collections::BTreeMap;

use fatbtree_blink::node::{
    EntryValue, LINE, LeafBuilder, LeafEditor, MAX_LEVEL, NewValue, Node, NodeFault, NodeSpec, mark_free,
    next_version, offsets, read_bucket, write_internal,
};
use fatbtree_blink::record::RecordPointer;
use fatbtree_blink::{
    GlobalAddress, Integrity, KeyRange, LeafKind, MAX_VALUE, TreeConfig, ValueLayout, value,
};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

fn leaves() -> impl Strategy<Value = LeafKind> {
    prop_oneof![Just(LeafKind::Plain), Just(LeafKind::Buckets)]
}

fn spec(level: u8, low: u64) -> NodeSpec {
    let range = KeyRange { low, high: None };
    NodeSpec {
        address: GlobalAddress::new(1, 64),
        level,
        range,
        sibling: GlobalAddress::NULL,
        version: 0x0102,
    }
}

#[test]
fn golden_bytes_of_an_internal_node() {
    let config = TreeConfig::new(5, 1024, ValueLayout::OutOfLine).unwrap();
    let mut bytes = vec![0xee; config.internal_bytes() as usize];
    let children: Vec<_> = (0..5).map(|i| (i * 0x10, GlobalAddress::new(1, 0x100 + i))).collect();
    write_internal(&mut bytes, &spec(1, 0), &children, Integrity::LineVersions);
    assert_eq!(bytes.len(), 192);
    assert_eq!(bytes[offsets::FIRST_CHILD..][..8], [0, 1, 0, 0, 0, 0, 1, 0]);
    let mut line = [0; 64];
    line[0] = 2;
    for (at, i) in [(16, 1_u8), (32, 2), (48, 3)] {
        line[at] = 0x10 * i;
        line[at + 8..at + 16].copy_from_slice(&[i, 1, 0, 0, 0, 0, 1, 0]);
    }
    assert_eq!(bytes[64..128], line);
    let mut line = [0; 64];
    line[0] = 2;
    line[16] = 0x40;
    line[24..32].copy_from_slice(&[4, 1, 0, 0, 0, 0, 1, 0]);
    assert_eq!(bytes[128..], line);
}

#[test]
fn golden_bytes_of_leaf_entries() {
    let config = TreeConfig::new(16, 192, ValueLayout::OutOfLine).unwrap();
    let mut bytes = vec![0xee; 192];
    let mut leaf = LeafBuilder::new(&mut bytes, config.leaf_shape(), spec(0, 0));
    for key in 1..=4 {
        let address = GlobalAddress::new(1, 0x30 + key);
        leaf.push_record(key, RecordPointer { address, length: 0x0506, version: 9 });
    }
    assert_eq!(leaf.finish(), 4);
    let entry = |i: u8| [0x81, i, 0, 0, 0, 0, 0, 0, 0, 0x30 + i, 0, 0, 0, 0, 0, 1, 0, 6, 5, 0x20, 1];
    assert_eq!(bytes[64..128], [&[2][..], &entry(1), &entry(2), &entry(3)].concat());
    assert_eq!(bytes[128..150], [&[2][..], &entry(4)].concat());
    assert_eq!(bytes[150..], [0; 42]);

    let config = TreeConfig::new(16, 384, ValueLayout::Inline(55)).unwrap();
    assert_eq!(config.leaf_capacity(), 2, "two lines each, one line left over");
    let mut bytes = vec![0xee; 384];
    let mut leaf = LeafBuilder::new(&mut bytes, config.leaf_shape(), spec(0, 0));
    leaf.push_inline(7).fill(0xaa);
    leaf.finish();
    let wide = [&[2, 0x81, 7, 0, 0, 0, 0, 0, 0, 0][..], &[0xaa; 55], &[0; 61], &[0x81, 2]].concat();
    assert_eq!(bytes[64..192], wide);
    assert_eq!((bytes[192], bytes[319], bytes[320]), (2, 2, 2));
}

#[test]
fn what_is_not_a_node_of_this_tree_is_refused() {
    let config = TreeConfig::default();
    let mut bytes = vec![0; 1024];
    LeafBuilder::new(&mut bytes, config.leaf_shape(), spec(0, 0)).finish();
    let fault = |bytes: &[u8]| Node::read(&config, bytes).map(drop).unwrap_err();
    assert!(Node::read(&config, &bytes).is_ok());
    assert_eq!(fault(&bytes[..63]), NodeFault::Short { found: 63, expected: 64 });
    assert_eq!(fault(&[0; 1024]), NodeFault::Magic { found: 0 });
    let other = TreeConfig::new(16, 1024, ValueLayout::Inline(8)).unwrap();
    assert_eq!(Node::read(&other, &bytes).map(drop), Err(NodeFault::Format { found: 255, level: 0 }));
    for line in 1..16 {
        bytes[line * 64] ^= 0x80;
        assert_eq!(fault(&bytes), NodeFault::Torn { line });
        bytes[line * 64] ^= 0x80;
    }
    mark_free(bytes.first_chunk_mut().unwrap());
    assert_eq!(fault(&bytes), NodeFault::Free);

    write_internal(&mut bytes[..384], &spec(1, 0), &[(0, GlobalAddress(64))], Integrity::LineVersions);
    for count in [0, 17] {
        bytes[offsets::COUNT] = count;
        assert_eq!(fault(&bytes), NodeFault::Count { found: count.into(), capacity: 16 });
    }
}

/// Damage of an internal node is found before the node is used, also by operations that only pass by.
#[test]
fn an_internal_node_is_checked_whole() {
    let config = TreeConfig::new(5, 1024, ValueLayout::OutOfLine).unwrap();
    let range = KeyRange { low: 0x10, high: Some(0x60) };
    let children: Vec<_> = (1..6).map(|i| (i * 0x10, GlobalAddress::new(1, i * 0x400))).collect();
    let mut whole = vec![0; config.internal_bytes() as usize];
    write_internal(&mut whole, &NodeSpec { range, ..spec(1, 0x10) }, &children, Integrity::LineVersions);
    assert!(Node::read(&config, &whole).is_ok());
    let fault = |at: usize, word: u64| {
        let mut bytes = whole.clone();
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        Node::read(&config, &bytes).map(drop)
    };
    // Of children 1 to 3 in the second line, and of child 4 in the third.
    let pivots = [LINE + 16, LINE + 32, LINE + 48, 2 * LINE + 16];
    for (slot, at) in (1..).zip(pivots) {
        let before = 0x10 * slot as u64;
        assert_eq!(fault(at, before + 1), Ok(()), "above the one before");
        assert_eq!(fault(at, before), Err(NodeFault::Pivot { slot, pivot: before }));
        assert_eq!(fault(at, 0), Err(NodeFault::Pivot { slot, pivot: 0 }));
        assert!(matches!(fault(at, 0x60), Err(NodeFault::Pivot { .. })), "after the node's end");
        assert_eq!(fault(at + 8, 0), Err(NodeFault::NullPointer { slot }));
    }
    assert_eq!(fault(2 * LINE + 16, 0x5f), Ok(()), "the last key of the node");
    assert_eq!(fault(offsets::FIRST_CHILD, 0), Err(NodeFault::NullPointer { slot: 0 }));
    assert_eq!(fault(offsets::LOW, 0x20), Err(NodeFault::Pivot { slot: 1, pivot: 0x20 }));
    assert_eq!(fault(offsets::HIGH, 0x50), Err(NodeFault::Pivot { slot: 4, pivot: 0x50 }));
    assert_eq!(fault(offsets::HIGH, 0x10), Err(NodeFault::Fences { low: 0x10, high: 0x10 }));
    let mut high = whole.clone();
    high[offsets::LEVEL] = MAX_LEVEL;
    assert!(Node::read(&config, &high).is_ok());
    high[offsets::LEVEL] = MAX_LEVEL + 1;
    assert_eq!(Node::read(&config, &high).map(drop), Err(NodeFault::Height { found: MAX_LEVEL + 1 }));
    // A leaf has fences, too.
    let mut leaf = vec![0; 1024];
    LeafBuilder::new(&mut leaf, config.leaf_shape(), NodeSpec { range, ..spec(0, 0x10) }).finish();
    leaf[offsets::HIGH] = 0x0f;
    assert_eq!(Node::read(&config, &leaf).map(drop), Err(NodeFault::Fences { low: 0x10, high: 0x0f }));
}

/// Where a device may tear lines, no mixture of two states of a node passes, wherever the one ends and the other begins.
#[test]
fn with_checksums_half_a_line_is_noticed() {
    for values in [
        ValueLayout::OutOfLine,
        ValueLayout::SHORT,
        ValueLayout::ByLength(60),
        ValueLayout::Inline(8),
        ValueLayout::Inline(64),
    ] {
        let config = TreeConfig::with_integrity(16, 512, values, Integrity::Checksums).unwrap();
        let leaf = |version, byte| {
            let mut bytes = vec![0; 512];
            let mut leaf =
                LeafBuilder::new(&mut bytes, config.leaf_shape(), NodeSpec { version, ..spec(0, 0) });
            for key in 0..config.leaf_capacity() as u64 {
                match values {
                    ValueLayout::Inline(_) => leaf.push_inline(key).fill(byte),
                    ValueLayout::ByLength(60) => leaf.push_short(key, 60).fill(byte),
                    ValueLayout::OutOfLine | ValueLayout::ByLength(_) => {
                        let address = GlobalAddress(byte.into());
                        leaf.push_record(key, RecordPointer { address, length: 9, version: 1 });
                    }
                }
            }
            leaf.finish();
            bytes
        };
        // An update of entries leaves the versions of the lines as they are: only the checksums tell.
        let (old, new) = (leaf(7, 0x11), leaf(7, 0x22));
        let mut torn_lines = 0;
        for at in (8..512).step_by(8).filter(|at| at % LINE != 0) {
            let line = at / LINE;
            let torn = [&old[..at], &new[at..]].concat();
            let of = |bytes: &[u8]| bytes[line * LINE..][..LINE].to_vec();
            if of(&torn) == of(&old) || of(&torn) == of(&new) {
                continue; // nothing differs on one side: that line is whole
            }
            torn_lines += 1;
            let fault = Node::read(&config, &torn).map(drop).unwrap_err();
            assert!(fault.is_torn(), "{values:?}, torn at {at}: {fault}");
        }
        assert!(torn_lines > 20, "{values:?}: {torn_lines}");
    }
}

#[test]
fn versions_go_on_from_what_is_found() {
    let config = TreeConfig::default();
    let mut bytes = vec![0; 1024];
    assert_eq!(next_version(&bytes), 1, "memory that was never written");
    // Bytes that are not used are zero, and could be taken for versions.
    for (version, next) in [(u32::MAX, 1), (0, 1), (1, 2), (0x2ff, 0x301)] {
        LeafBuilder::new(&mut bytes, config.leaf_shape(), NodeSpec { version, ..spec(0, 0) }).finish();
        assert_eq!(next_version(&bytes), next);
    }
    mark_free(bytes.first_chunk_mut().unwrap());
    assert_eq!(next_version(&bytes), 0x301, "a freed node");
}

/// The remains of a WRITE that was cut short must not complete the next one.
#[test]
fn a_version_is_one_that_no_line_has() {
    let config = TreeConfig::default();
    let leaf = |version, key| {
        let mut bytes = vec![0; 1024];
        let mut leaf = LeafBuilder::new(&mut bytes, config.leaf_shape(), NodeSpec { version, ..spec(0, 0) });
        leaf.push_record(key, RecordPointer { address: GlobalAddress::new(0, 4096), length: 8, version: 1 });
        leaf.finish();
        bytes
    };
    let (mut memory, cut_short) = (leaf(4, 1), leaf(5, 2));
    memory[LINE..2 * LINE].copy_from_slice(&cut_short[LINE..2 * LINE]);
    let version = next_version(&memory);
    assert_eq!(version, 6);
    // A reader gets the header of the next node and the line that was left behind.
    let mut mixture = leaf(version, 3);
    mixture[LINE..2 * LINE].copy_from_slice(&memory[LINE..2 * LINE]);
    assert!(Node::read(&config, &mixture).is_err());
}

/// The same for an entry of two lines.
#[test]
fn the_version_of_a_wide_entry_is_one_that_neither_end_has() {
    let config = TreeConfig::new(16, 320, ValueLayout::Inline(60)).unwrap();
    let shape = config.leaf_shape();
    let mut memory = vec![0; 320];
    let mut leaf = LeafBuilder::new(&mut memory, shape, spec(0, 0));
    leaf.push_inline(9).fill(1);
    leaf.finish();
    let put = |memory: &mut [u8], value| {
        LeafEditor::new(memory, shape).put(0, 9, NewValue::Inline(&[value; 60]));
    };
    let mut cut_short = memory.clone();
    put(&mut cut_short, 2);
    // Only the second of the entry's lines was written.
    memory[2 * LINE..3 * LINE].copy_from_slice(&cut_short[2 * LINE..3 * LINE]);
    let mut next = memory.clone();
    put(&mut next, 3);
    next[2 * LINE..3 * LINE].copy_from_slice(&memory[2 * LINE..3 * LINE]);
    let Ok(Node::Leaf(mixture)) = Node::read(&config, &next) else { panic!("the lines have one version") };
    assert!(mixture.find(9).is_err(), "{:?}", mixture.find(9));
}

fn integrity() -> impl Strategy<Value = Integrity> {
    prop_oneof![Just(Integrity::LineVersions), Just(Integrity::Checksums)]
}

/// What a hostile writer has left in place of a value: a length beyond the entry is none.
#[test]
fn no_length_leads_out_of_an_entry() {
    for values in [ValueLayout::SHORT, ValueLayout::ByLength(20), ValueLayout::ByLength(64)] {
        let config = TreeConfig::new(16, 1024, values).unwrap();
        let shape = config.leaf_shape();
        let ValueLayout::ByLength(longest) = values else { panic!("{values}") };
        for first in 0..=u8::MAX {
            let mut bytes = vec![0; 1024];
            let mut leaf = LeafBuilder::new(&mut bytes, shape, spec(0, 0));
            leaf.push_short(7, 3).fill(9);
            leaf.finish();
            bytes[shape.entry_offset(0) + 9] = first;
            let Ok(Node::Leaf(leaf)) = Node::read(&config, &bytes) else { panic!("a leaf") };
            match leaf.find(7) {
                Ok(Some(EntryValue::Inline(value))) => {
                    assert!(value.len() <= longest.into(), "{values}: {first}")
                }
                // A pointer that leads to no record of this key.
                Ok(Some(EntryValue::Record(_))) => {
                    assert!(first % 32 < 17 || first > 17 + longest, "{values}: {first}")
                }
                Ok(None) => panic!("the entry is there"),
                Ok(Some(EntryValue::Layer(_))) => assert_eq!(first, 255),
                Err(fault) => assert!(matches!(fault, NodeFault::NullPointer { .. }), "{fault}"),
            }
        }
    }
}

fn layouts() -> impl Strategy<Value = ValueLayout> {
    prop_oneof![
        Just(ValueLayout::OutOfLine),
        (1..=64_u8).prop_map(ValueLayout::Inline),
        (11..=64_u8).prop_map(ValueLayout::ByLength),
    ]
}

proptest! {
    #[test]
    fn internal_node_finds_the_last_pivot_not_above_the_key(
        pivots in btree_set(prop_oneof![0..50_u64, any::<u64>()], 1..=40),
        spare in 0..9_u16,
        keys in vec(any::<u64>(), 10),
        integrity in integrity(),
    ) {
        let pivots: Vec<u64> = pivots.into_iter().collect();
        let config = TreeConfig::with_integrity((pivots.len() as u16 + spare).max(2), 1024, ValueLayout::OutOfLine, integrity).unwrap();
        let children: Vec<_> = pivots.iter().zip(1..).map(|(&p, i)| (p, GlobalAddress::new(3, i * 64))).collect();
        let mut bytes = vec![0xee; config.internal_bytes() as usize];
        write_internal(&mut bytes, &spec(4, pivots[0]), &children, integrity);
        let Ok(Node::Internal(node)) = Node::read(&config, &bytes) else { panic!("an internal node") };
        prop_assert_eq!(node.children().collect::<Vec<_>>(), children.clone());
        let near = pivots.iter().flat_map(|&p| [p, p.saturating_add(1), p.saturating_sub(1)]);
        for key in near.chain(keys).filter(|&key| key >= pivots[0]) {
            let expected = children.iter().rev().find(|(p, _)| *p <= key).unwrap().1;
            prop_assert_eq!(node.find(key), expected, "key {:#x}", key);
        }
    }

    #[test]
    fn leaf_finds_what_a_map_finds(
        keys in vec(prop_oneof![0..50_u64, any::<u64>()], 0..60).prop_shuffle(),
        values in layouts(),
        lines in 5..=32_u32,
        integrity in integrity(),
        leaves in leaves(),
    ) {
        let plain = TreeConfig::with_integrity(16, lines * 64, values, integrity).unwrap();
        let config = plain.with_leaves(leaves).unwrap_or(plain);
        let mut map = BTreeMap::new();
        let mut bytes = vec![0xee; config.leaf_bytes() as usize];
        let mut leaf = LeafBuilder::new(&mut bytes, config.leaf_shape(), spec(0, 0));
        for key in keys.iter().copied() {
            let known = || map.keys().copied().chain([key]);
            if map.contains_key(&key) || config.leaf_shape().fitting(known()) <= map.len() {
                continue;
            }
            let length = match values {
                ValueLayout::Inline(bytes) => bytes.into(),
                ValueLayout::ByLength(longest) if key % 4 > 0 => key as usize % (1 + usize::from(longest)),
                _ => 12,
            };
            let mut value = vec![0; length];
            value::fill(key, 1, &mut value);
            match values {
                ValueLayout::Inline(_) => leaf.push_inline(key).copy_from_slice(&value),
                ValueLayout::ByLength(_) if key % 4 > 0 => leaf.push_short(key, length).copy_from_slice(&value),
                _ => {
                    value[0] |= 1; // never a null pointer
                    let record = RecordPointer::from_bytes(value.first_chunk().unwrap());
                    let record = RecordPointer { length: record.length % MAX_VALUE, ..record };
                    value = record.to_bytes().to_vec();
                    leaf.push_record(key, record);
                }
            }
            map.insert(key, value);
        }
        leaf.finish();
        let Ok(Node::Leaf(leaf)) = Node::read(&config, &bytes) else { panic!("a leaf") };
        let flat = |value: EntryValue<'_>| match value {
            EntryValue::Inline(value) => value.to_vec(),
            EntryValue::Record(record) => record.to_bytes().to_vec(),
            EntryValue::Layer(layer) => layer.raw().to_le_bytes().to_vec(),
        };
        for key in keys.iter().flat_map(|&key| [key, key ^ 1]).chain([0, u64::MAX]) {
            prop_assert_eq!(leaf.find(key).unwrap().map(flat), map.get(&key).cloned(), "key {:#x}", key);
            if let Some(at) = config.leaf_shape().bucket_offset(key) {
                let found = read_bucket(&config, 1, key, &bytes[at as usize..]).unwrap();
                prop_assert_eq!(found.map(|(_, value)| flat(value)), map.get(&key).cloned(), "key {:#x}", key);
            }
        }
        let all: BTreeMap<_, _> = leaf.entries().map(|entry| entry.map(|(key, value)| (key, flat(value))).unwrap()).collect();
        prop_assert_eq!(all, map);
    }

    /// Edits leave the content that a map would hold. A copy of the old leaf with the bytes written back has
    /// the same content.
    #[test]
    fn edits_are_what_a_map_does_and_what_is_written_back_is_all_that_changed(
        edits in vec((0..40_u64, proptest::option::weighted(0.7, any::<u8>())), 0..120),
        values in layouts(),
        lines in 5..=32_u32,
        integrity in integrity(),
        leaves in leaves(),
    ) {
        let plain = TreeConfig::with_integrity(16, lines * 64, values, integrity).unwrap();
        let config = plain.with_leaves(leaves).unwrap_or(plain);
        let shape = config.leaf_shape();
        let mut bytes = vec![0xee; config.leaf_bytes() as usize];
        LeafBuilder::new(&mut bytes, shape, spec(0, 0)).finish();
        let mut copy = bytes.clone();
        let mut map = BTreeMap::new();
        for (key, byte) in edits {
            let before = bytes.clone();
            // Changes of one key go back and forth between entry and record.
            let (is_inline, length) = match values {
                ValueLayout::Inline(bytes) => (true, bytes.into()),
                ValueLayout::OutOfLine => (false, 1),
                ValueLayout::ByLength(longest) => {
                    let byte = usize::from(byte.unwrap_or(0));
                    (byte % 3 > 0, 1 + byte % usize::from(longest))
                }
            };
            let value = vec![byte.unwrap_or(0); length];
            let mut leaf = LeafEditor::new(&mut bytes, shape);
            let slot = leaf.slot_of(key).unwrap();
            prop_assert_eq!(slot.is_some(), map.contains_key(&key));
            let written = match (slot, byte) {
                (None, None) => continue,
                (Some(slot), None) => {
                    map.remove(&key);
                    leaf.remove(slot)
                }
                (slot, Some(byte)) => {
                    let Some(slot) = slot.or_else(|| leaf.free_slot(key)) else {
                        prop_assert_eq!(shape.fitting(map.keys().copied().chain([key])), map.len());
                        prop_assert!(map.len() == config.leaf_capacity() || shape.has_buckets());
                        continue;
                    };
                    map.insert(key, byte);
                    let record = RecordPointer { address: GlobalAddress::new(1, 64 + u64::from(byte)), length: 5, version: 2 };
                    let record = NewValue::Record(record);
                    leaf.put(slot, key, if is_inline { NewValue::Inline(&value) } else { record })
                }
            };
            let is_rearranged = shape.has_buckets() && written == (0..bytes.len());
            prop_assert!(
                integrity == Integrity::Checksums || written.len() <= 17.max(shape.entry_bytes()) || shape.is_wide() || is_rearranged
            );
            prop_assert_eq!(is_rearranged, bytes[0] != before[0], "entries that move have a new version");
            copy[written.clone()].copy_from_slice(&bytes[written.clone()]);
            prop_assert_eq!(&copy, &bytes);
            prop_assert_ne!(&before[written.clone()], &bytes[written]);
            let Ok(Node::Leaf(leaf)) = Node::read(&config, &bytes) else { panic!("a whole leaf") };
            let all: BTreeMap<_, _> = leaf.entries().map(|entry| match entry.unwrap() {
                (key, EntryValue::Inline(value)) => (key, value[0]),
                (key, EntryValue::Record(record)) => (key, (record.address.offset() - 64) as u8),
                (key, EntryValue::Layer(layer)) => panic!("no entry of {key} led to {layer}"),
            }).collect();
            prop_assert_eq!(&all, &map);
        }
    }
}
