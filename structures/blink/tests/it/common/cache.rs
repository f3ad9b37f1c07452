//! Nodes that are put into an index cache.

use fatbtree_blink::node::{Node, NodeSpec, write_internal};
use fatbtree_blink::{GlobalAddress, IndexCache, Integrity, KeyRange, Partition, TreeConfig, ValueLayout};

const FAN_OUT: u16 = 16;

pub(crate) fn partition(root_level: u8) -> Partition {
    Partition { id: 0, range: KeyRange::ALL, root: GlobalAddress::new(0, 64), root_level }
}

/// Puts a node with these children into a cache.
pub(crate) fn put(cache: &IndexCache, root_level: u8, spec: NodeSpec, children: &[(u64, GlobalAddress)]) {
    let config = TreeConfig::new(FAN_OUT, 256, ValueLayout::Inline(8)).unwrap();
    let mut bytes = vec![0; config.internal_bytes() as usize];
    write_internal(&mut bytes, &spec, children, Integrity::LineVersions);
    let Node::Internal(node) = Node::read(&config, &bytes).unwrap() else { panic!("level {}", spec.level) };
    cache.put(&node, &partition(root_level));
}

pub(crate) fn spec(level: u8, low: u64, high: u64, version: u32) -> NodeSpec {
    let address = GlobalAddress::new(0, 64 * (1 + low));
    let range = KeyRange { low, high: Some(high) };
    NodeSpec { address, level, range, sibling: GlobalAddress::NULL, version }
}
