//! A record that looks like a node, and a node that looks like a record. Keys and values are a user's: nothing keeps him from
//! this, if memory is used for both.

use fatbtree_index::node::{LINE, LeafBuilder, NodeSpec, write_internal};
use fatbtree_index::record::{RECORD_HEAD, RecordPointer, write_record};
use fatbtree_index::{GlobalAddress, KeyRange, TreeConfig};

/// The bytes of a record at `at` that a reader who takes them for a node takes for the leaf of `key`, with an entry that points
/// to `record`. Only where lines have no checksums.
pub(super) fn node_like_record(
    config: &TreeConfig,
    at: GlobalAddress,
    key: u64,
    record: RecordPointer,
) -> Vec<u8> {
    let size = config.leaf_bytes() as usize;
    let mut leaf = vec![0; size];
    let range = KeyRange { low: 0, high: None };
    let spec = NodeSpec { address: at, level: 0, range, sibling: GlobalAddress::NULL, version: 7 };
    let mut builder = LeafBuilder::new(&mut leaf, config.leaf_shape(), spec);
    builder.push_record(key, record);
    builder.finish();
    // The record's key is what begins a node; its head hides node version and half of the address, which nobody compares.
    let record_key = leaf.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let mut bytes = vec![0; size.max(LINE)];
    write_record(&mut bytes, record_key, 1, |value| value.copy_from_slice(&leaf[RECORD_HEAD..]));
    bytes
}

/// Where a record begins in the line of an internal node whose second pivot is the record's key.
pub(super) const PIVOT: u64 = 16;

/// An internal node around the place of a record of `key`: whoever still comes for the record finds one. Its second child lies where
/// the record's version is, and its third pivot is chosen so that the checksum is right.
pub(super) fn record_like_node(
    config: &TreeConfig,
    pointer: RecordPointer,
    key: u64,
) -> Option<(GlobalAddress, Vec<u8>)> {
    let RecordPointer { address: record, length, version } = pointer;
    let second = GlobalAddress(record.raw() | u64::from(version) << 32);
    let before = LINE as u64 + PIVOT;
    let at = GlobalAddress::new(record.server(), record.offset().checked_sub(before)?);
    let low = key.checked_sub(1)?;
    let next = (key >> 32).checked_add(1).filter(|high| *high < 1 << 32)? << 32;
    let spec = NodeSpec {
        address: at,
        level: 1,
        range: KeyRange { low, high: None },
        sibling: GlobalAddress::NULL,
        version: 7,
    };
    let node = |pivot| {
        let mut bytes = vec![0; config.internal_bytes() as usize];
        let children = [(low, record), (key, second), (pivot, record)];
        write_internal(&mut bytes, &spec, &children, config.integrity());
        bytes
    };
    let bytes = node(next);
    let (head, value) = bytes.get(before as usize..)?.split_at_checked(RECORD_HEAD)?;
    let mut sum = crc32fast::Hasher::new();
    sum.update(&head[..RECORD_HEAD - 4]);
    sum.update(value.get(..length as usize)?);
    Some((at, node(next | u64::from(sum.finalize()))))
}
