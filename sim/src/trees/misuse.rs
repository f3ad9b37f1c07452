//! A record that looks like a node, and a node that looks like a record. Keys and values are a user's: nothing keeps him from
//! this, if memory is used for both.

use fatbtree_blink::node::{LINE, LeafBuilder, NodeSpec, write_internal};
use fatbtree_blink::record::{RECORD_HEAD, RecordPointer, UNPUBLISHED, published, write_record};
use fatbtree_blink::{GlobalAddress, KeyRange, TreeConfig};

/// The bytes of a record of which a part of the value, from `before` bytes behind its beginning on, is what a reader who takes it for
/// a node takes for the leaf of `key`, with an entry that points to `record`. A record itself is none: its magic is another.
pub(super) fn node_like_record(
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

/// Where a record begins in the line of an internal node whose third pivot is the record's key.
pub(super) const CHILD: u64 = 24;

/// An internal node around the place of a record of `key`, whose value is a pivot: whoever still comes for the record finds one. Its
/// second child lies where the record's version is, and its third where length and checksum are.
pub(super) fn record_like_node(
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
