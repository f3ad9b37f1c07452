//! A record that looks like a node. Keys and values are a user's: nothing keeps him from this.

use fatbtree_index::node::{LINE, LeafBuilder, NodeSpec};
use fatbtree_index::record::{RECORD_HEAD, write_record};
use fatbtree_index::{GlobalAddress, KeyRange, TreeConfig};

/// The bytes of a record at `at` that a reader who takes them for a node takes for the leaf of `key`, with an entry that points
/// to `record`. Only where lines have no checksums.
pub(super) fn node_like_record(
    config: &TreeConfig,
    at: GlobalAddress,
    key: u64,
    record: GlobalAddress,
    length: u32,
) -> Vec<u8> {
    let size = config.leaf_bytes() as usize;
    let mut leaf = vec![0; size];
    let range = KeyRange { low: 0, high: None };
    let spec = NodeSpec { address: at, level: 0, range, sibling: GlobalAddress::NULL, version: 7 };
    let mut builder = LeafBuilder::new(&mut leaf, config.leaf_shape(), spec);
    builder.push_record(key, record, length);
    builder.finish();
    // The record's key is what begins a node; its head hides node version and half of the address, which nobody compares.
    let record_key = leaf.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let mut bytes = vec![0; size.max(LINE)];
    write_record(&mut bytes, record_key, 1, |value| value.copy_from_slice(&leaf[RECORD_HEAD..]));
    bytes
}
