//! The reason for which a chunk's kind is permanent: a record can look like a node, and a node like a record. Keys
//! and values are a user's, so readers with stale pointers cannot tell. Clients and servers keep the kinds apart by
//! construction: a client's allocator and a server's chunks and places have
//! one kind each.

use fatbtree_blink::node::{EntryValue, LINE, LeafBuilder, Node, NodeSpec, write_internal};
use fatbtree_blink::record::{RECORD_HEAD, RecordPointer, UNPUBLISHED, published, read_record, write_record};
use fatbtree_blink::{GlobalAddress, KeyRange, TreeConfig, ValueLayout};

/// Bytes of a record whose value looks like a node. Read as a node, the value from its byte `before` on
/// passes for the leaf of `key`, with an entry that points to `record`. The record itself is no node: its
/// magic is another.
fn node_like_record(
    config: &TreeConfig,
    at: GlobalAddress,
    before: usize,
    key: u64,
    record: RecordPointer,
) -> Vec<u8> {
    let size = config.leaf_bytes() as usize;
    let mut bytes = vec![0; before + size];
    let mut leaf = vec![0; size];
    let range = KeyRange { low: 0, high: None };
    let spec = NodeSpec { address: at, level: 0, range, sibling: GlobalAddress::NULL, version: 7 };
    let mut builder = LeafBuilder::new(&mut leaf, config.leaf_shape(), spec);
    builder.push_record(key, record);
    builder.finish();
    write_record(&mut bytes, key, 1, UNPUBLISHED, |value| {
        value[before - RECORD_HEAD..].copy_from_slice(&leaf)
    });
    bytes
}

/// Offset at which a record begins in the line of an internal node whose third pivot is the record's key.
const CHILD: u64 = 24;

/// An internal node around the place of a record of `key`, whose value is a pivot. A reader that still comes for the
/// record finds one. Its second child lies where the record's version is, and its third where length and checksum
/// are.
fn record_like_node(
    config: &TreeConfig,
    pointer: RecordPointer,
    key: u64,
) -> Option<(GlobalAddress, Vec<u8>)> {
    let record = pointer.address;
    let before = LINE as u64 + CHILD;
    let at = GlobalAddress::new(record.server(), record.offset().checked_sub(before)?);
    let (low, second) = (key.checked_sub(2)?, key.checked_sub(1)?);
    let next = (key >> 32).checked_add(1).filter(|high| *high < 1 << 32)? << 32;
    let spec = NodeSpec {
        address: at,
        level: 1,
        range: KeyRange { low, high: None },
        sibling: GlobalAddress::NULL,
        version: 7,
    };
    let mut like = [0; RECORD_HEAD + 8];
    write_record(&mut like, key, pointer.version, published(pointer.version), |value| {
        value.copy_from_slice(&next.to_le_bytes());
    });
    let (words, _) = like.as_chunks::<8>();
    let child = |at: usize| GlobalAddress(u64::from_le_bytes(words[at]));
    let mut bytes = vec![0; config.internal_bytes() as usize];
    let children = [(low, record), (second, child(0)), (key, child(2)), (next, record)];
    write_internal(&mut bytes, &spec, &children, config.integrity());
    Some((at, bytes))
}

fn config() -> TreeConfig {
    TreeConfig::new(4, 128, ValueLayout::OutOfLine).expect("there is room for two entries")
}

#[test]
fn a_record_where_a_node_was_can_be_taken_for_a_leaf() {
    let (before, key) = (256, 77);
    let at = GlobalAddress::new(1, 4096);
    let forged = RecordPointer { address: GlobalAddress::new(1, 8192), length: 8, version: 1 };
    let bytes = node_like_record(&config(), at, before, key, forged);
    let pointer = RecordPointer { address: at, length: (bytes.len() - RECORD_HEAD) as u32, version: 1 };
    assert!(read_record(&bytes, key, pointer).is_ok(), "it is a record");
    let config = config();
    let Ok(Node::Leaf(leaf)) = Node::read(&config, &bytes[before..]) else { panic!("it is a leaf as well") };
    assert_eq!((leaf.header().address, leaf.find(key)), (at, Ok(Some(EntryValue::Record(forged)))));
}

#[test]
fn a_node_where_a_record_was_can_be_taken_for_the_record() {
    let (config, key) = (config(), 7 << 32 | 5);
    let address = GlobalAddress::new(1, 4096 + LINE as u64 + CHILD);
    let pointer = RecordPointer { address, length: 8, version: 3 };
    let (at, bytes) = record_like_node(&config, pointer, key).expect("there is room before it");
    let Ok(Node::Internal(node)) = Node::read(&config, &bytes) else { panic!("it is a node") };
    assert_eq!((node.header().address, node.children().count()), (at, 4));
    let value = read_record(&bytes[LINE + CHILD as usize..], key, pointer);
    assert_eq!(value, Ok(&(8u64 << 32).to_le_bytes()[..]));
}
