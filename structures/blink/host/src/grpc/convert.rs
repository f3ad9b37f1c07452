//! Messages to types of the tree and back. What a peer sends is checked here, field by field.

use fatbtree_blink::layers::KeyCode;
use fatbtree_blink::{
    GlobalAddress, Integrity, KeyRange, Keys, LeafKind, LookupBytes, POINTER_ROOM, Partition, TopNode,
    TreeConfig, ValueLayout,
};
use fatbtree_memserver::grpc::{Describe, MessageError};
use prost::Message as _;

use super::proto;
use crate::load::{LayerCounts, LoadCounts};
use crate::tenant::TreeInfo;

/// Stands for [`ValueLayout::SHORT`] where a number of bytes is expected, which releases without it refuse.
const BY_LENGTH: u32 = 255;

/// Added to it for each byte that an entry has room for beyond that: likewise.
const LONGER: u32 = 1 << 8;

/// Added to it where leaves have buckets: likewise.
const BUCKETS: u32 = 1 << 16;

/// Added to it where keys are bytes: likewise.
const BYTE_KEYS: u32 = 1 << 17;

/// The number that stands for the layout of a tree.
fn layout_of(config: &TreeConfig) -> u32 {
    let keys = match config.keys() {
        Keys::Numbers => 0,
        Keys::Bytes => BYTE_KEYS,
    };
    layout_code(config.values(), config.leaves()) | keys
}

/// The number that stands for the place of values and the kind of leaves.
pub(super) fn layout_code(values: ValueLayout, leaves: LeafKind) -> u32 {
    let values = match values {
        ValueLayout::Inline(bytes) => bytes.into(),
        ValueLayout::OutOfLine => 0,
        ValueLayout::ByLength(bytes) => BY_LENGTH + u32::from(bytes.saturating_sub(POINTER_ROOM)) * LONGER,
    };
    let leaves = match leaves {
        LeafKind::Plain => 0,
        LeafKind::Buckets => BUCKETS,
    };
    values | leaves
}

/// What the number stands for.
pub(super) fn layout(code: u32) -> Result<(ValueLayout, LeafKind), MessageError> {
    let leaves = if code & BUCKETS == 0 { LeafKind::Plain } else { LeafKind::Buckets };
    let code = code & !BUCKETS;
    let values = match code {
        0 => ValueLayout::OutOfLine,
        _ if code % LONGER == BY_LENGTH => {
            let more = MessageError::bits_8("inline_value_bytes", code / LONGER)?;
            ValueLayout::ByLength(more.saturating_add(POINTER_ROOM))
        }
        bytes => ValueLayout::Inline(MessageError::bits_8("inline_value_bytes", bytes)?),
    };
    Ok((values, leaves))
}

impl Describe for TreeInfo {
    const STRUCTURE: &'static str = "blink";

    fn encode(&self) -> Vec<u8> {
        let Self { partition, config, counts } = self;
        let description = proto::TreeDescription {
            low_key: partition.range.low,
            high_key: partition.range.high,
            root_address: partition.root.raw(),
            root_level: partition.root_level.into(),
            fan_out: config.fan_out().into(),
            internal_node_bytes: config.internal_bytes(),
            leaf_node_bytes: config.leaf_bytes(),
            inline_value_bytes: layout_of(config),
            checksums: config.integrity() == Integrity::Checksums,
            keys: counts.keys,
            leaf_nodes: counts.leaf_nodes,
            internal_nodes: counts.internal_nodes,
            record_bytes: counts.record_bytes,
            key_code: config.code().description().to_vec(),
            layers: counts.below.layers,
            layer_leaf_nodes: counts.below.leaf_nodes,
            layer_internal_nodes: counts.below.internal_nodes,
        };
        description.encode_to_vec()
    }

    fn decode(server: u16, description: &[u8]) -> Result<Self, MessageError> {
        let tree = proto::TreeDescription::decode(description).map_err(MessageError::structure)?;
        let code = tree.inline_value_bytes;
        let keys = if code & BYTE_KEYS == 0 { Keys::Numbers } else { Keys::Bytes };
        let (values, leaves) = layout(code & !BYTE_KEYS)?;
        let integrity = if tree.checksums { Integrity::Checksums } else { Integrity::LineVersions };
        let fan_out = MessageError::bits_16("fan_out", tree.fan_out)?;
        let config = TreeConfig::with_integrity(fan_out, tree.leaf_node_bytes, values, integrity)
            .and_then(|config| config.with_leaves(leaves)?.with_keys(keys))
            .map_err(MessageError::structure)?;
        if config.internal_bytes() != tree.internal_node_bytes {
            let expected = "as many as a node of this fan-out has here: do both ends run the same version?";
            return Err(MessageError::field(
                "internal_node_bytes",
                expected,
                tree.internal_node_bytes.into(),
            ));
        }
        let partition = Partition {
            id: server,
            range: KeyRange { low: tree.low_key, high: tree.high_key },
            root: GlobalAddress(tree.root_address),
            root_level: MessageError::bits_8("root_level", tree.root_level)?,
        };
        let key_code = KeyCode::new(&tree.key_code).map_err(MessageError::structure)?;
        let below = LayerCounts {
            layers: tree.layers,
            leaf_nodes: tree.layer_leaf_nodes,
            internal_nodes: tree.layer_internal_nodes,
        };
        let proto::TreeDescription { keys, leaf_nodes, internal_nodes, record_bytes, .. } = tree;
        let counts = LoadCounts { keys, leaf_nodes, internal_nodes, record_bytes, below };
        Ok(Self { partition, config: config.with_code(key_code), counts })
    }
}

/// Header of a snapshot with this many nodes.
pub(super) fn header(partition: &Partition, nodes: u64, reads: LookupBytes) -> proto::SnapshotHeader {
    proto::SnapshotHeader {
        partition: partition.id.into(),
        low_key: partition.range.low,
        high_key: partition.range.high,
        root_address: partition.root.raw(),
        root_level: partition.root_level.into(),
        nodes,
        lookup_inner_bytes: reads.inner,
        lookup_leaf_bytes: reads.leaf,
    }
}

impl TryFrom<proto::SnapshotHeader> for Partition {
    type Error = MessageError;

    fn try_from(header: proto::SnapshotHeader) -> Result<Self, MessageError> {
        Ok(Self {
            id: MessageError::bits_16("partition", header.partition)?,
            range: KeyRange { low: header.low_key, high: header.high_key },
            root: GlobalAddress(header.root_address),
            root_level: MessageError::bits_8("root_level", header.root_level)?,
        })
    }
}

impl From<&TopNode> for proto::InternalNode {
    fn from(node: &TopNode) -> Self {
        let (pivots, children) = node.children.iter().copied().unzip();
        Self { address: node.address, level: node.level.into(), pivots, children }
    }
}

impl TryFrom<proto::InternalNode> for TopNode {
    type Error = MessageError;

    fn try_from(node: proto::InternalNode) -> Result<Self, MessageError> {
        let (pivots, children) = (node.pivots.len(), node.children.len());
        if pivots == 0 || pivots != children {
            return Err(MessageError::field(
                "children",
                "at least 1, and as many as pivots",
                children as u64,
            ));
        }
        if !node.pivots.is_sorted_by(|a, b| a < b) {
            return Err(MessageError::field(
                "pivots",
                "strictly ascending, but that is not so in node",
                node.address,
            ));
        }
        Ok(Self {
            address: node.address,
            level: MessageError::bits_8("level", node.level)?,
            children: node.pivots.into_iter().zip(node.children).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each layout has a number of its own; those of former releases have the ones that they had.
    #[test]
    fn a_layout_is_read_as_it_was_told() {
        let inline = (1..=64).map(ValueLayout::Inline);
        let by_length = (POINTER_ROOM..=64).map(ValueLayout::ByLength);
        let mut codes = std::collections::BTreeSet::new();
        for values in inline.chain(by_length).chain([ValueLayout::OutOfLine]) {
            for leaves in [LeafKind::Plain, LeafKind::Buckets] {
                let code = layout_code(values, leaves);
                assert!(codes.insert(code), "{values}, {leaves:?}");
                assert_eq!(layout(code).unwrap(), (values, leaves));
            }
        }
        let plain = |values| layout_code(values, LeafKind::Plain);
        assert_eq!(
            [plain(ValueLayout::OutOfLine), plain(ValueLayout::Inline(8)), plain(ValueLayout::SHORT)],
            [0, 8, 255]
        );
        assert_eq!(layout_code(ValueLayout::SHORT, LeafKind::Buckets), 65_536 + 255);
        assert!(plain(ValueLayout::ByLength(12)) > 255, "releases without it expect a byte");
        assert!(layout(256).is_err() && layout(1 << 17).is_err());
    }
}
