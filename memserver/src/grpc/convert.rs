//! Messages to types and back. What a peer sends is checked here, field by field.

use std::net::Ipv4Addr;

use fatbtree_blink::{
    ConfigError, GlobalAddress, Integrity, KeyRange, Partition, TopNode, TreeConfig, ValueLayout,
};
use fatbtree_verbs::{Endpoint, EndpointError, Mtu, QueuePairNumber, RKEY_NODE, RKEY_NODE_OR_RECORD, Region};

use super::proto;
use crate::blink::TreeInfo;
use crate::blink::load::LoadCounts;
use crate::chunk::Chunk;
use crate::free_blocks::{FreeBlocks, Grant};
use crate::info::{LockTable, Origin, ServerInfo};
use fatbtree_blink::{ChunkKind, Owner, SessionId};

/// A message that cannot be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageError {
    /// A field is not there.
    #[error("{field}: missing")]
    Missing {
        /// Its name.
        field: &'static str,
    },
    /// A field with an impossible value.
    #[error("{field}: expected {expected}, found {found}")]
    Field {
        /// Its name.
        field: &'static str,
        /// The expected value.
        expected: &'static str,
        /// The found value.
        found: u64,
    },
    /// An endpoint that cannot be.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A tree that cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

pub(super) fn missing(field: &'static str) -> MessageError {
    MessageError::Missing { field }
}

fn field(field: &'static str, expected: &'static str, found: u64) -> MessageError {
    MessageError::Field { field, expected, found }
}

fn narrow<T: TryFrom<u32>>(
    name: &'static str,
    expected: &'static str,
    found: u32,
) -> Result<T, MessageError> {
    T::try_from(found).map_err(|_| field(name, expected, found.into()))
}

const BITS_16: &str = "at most 65,535";
const BITS_8: &str = "at most 255";

fn mtu(bytes: u32) -> Result<Mtu, MessageError> {
    Mtu::from_bytes(bytes as usize)
        .ok_or_else(|| field("path_mtu", "256, 512, 1024, 2048 or 4096", bytes.into()))
}

// ---- endpoints ----

impl From<Endpoint> for proto::Endpoint {
    fn from(end: Endpoint) -> Self {
        Self {
            mac: end.mac.to_vec(),
            ip: end.ip.to_bits(),
            queue_pair: end.queue_pair.0,
            first_psn: end.psn,
            path_mtu: end.mtu.bytes() as u32,
            responder_reads: end.responder_reads.into(),
            initiator_reads: end.initiator_reads.into(),
        }
    }
}

impl TryFrom<proto::Endpoint> for Endpoint {
    type Error = MessageError;

    fn try_from(end: proto::Endpoint) -> Result<Self, MessageError> {
        let endpoint = Self {
            mac: end.mac[..].try_into().map_err(|_| field("mac", "6 bytes", end.mac.len() as u64))?,
            ip: Ipv4Addr::from_bits(end.ip),
            queue_pair: QueuePairNumber(end.queue_pair),
            psn: end.first_psn,
            mtu: mtu(end.path_mtu)?,
            responder_reads: narrow("responder_reads", BITS_8, end.responder_reads)?,
            initiator_reads: narrow("initiator_reads", BITS_8, end.initiator_reads)?,
        };
        endpoint.check()?;
        Ok(endpoint)
    }
}

// ---- sessions ----

impl TryFrom<proto::Lease> for super::Session {
    type Error = MessageError;

    fn try_from(lease: proto::Lease) -> Result<Self, MessageError> {
        let session = SessionId(lease.session);
        let owner = lease.owner.map(|owner| match u16::try_from(owner) {
            Ok(number) if number != 0 => Ok(Owner { session, number }),
            _ => Err(field("owner", "1 to 65,535", owner.into())),
        });
        let duration = std::time::Duration::from_nanos(lease.nanoseconds);
        Ok(Self { id: session, lease: duration, owner: owner.transpose()? })
    }
}

// ---- chunks ----

impl From<ChunkKind> for proto::ChunkKind {
    fn from(kind: ChunkKind) -> Self {
        match kind {
            ChunkKind::Leaves => Self::Leaves,
            ChunkKind::InternalNodes => Self::InternalNodes,
            ChunkKind::Records => Self::Records,
        }
    }
}

/// The kind of chunk a peer names by number.
pub(super) fn chunk_kind(number: i32) -> Result<ChunkKind, MessageError> {
    match proto::ChunkKind::try_from(number) {
        Ok(proto::ChunkKind::Leaves) => Ok(ChunkKind::Leaves),
        Ok(proto::ChunkKind::InternalNodes) => Ok(ChunkKind::InternalNodes),
        Ok(proto::ChunkKind::Records) => Ok(ChunkKind::Records),
        Ok(proto::ChunkKind::Unspecified) | Err(_) => {
            Err(field("kind", "1 leaves, 2 internal nodes or 3 records", u64::from(number.cast_unsigned())))
        }
    }
}

impl From<Grant> for proto::AllocateChunkReply {
    fn from(grant: Grant) -> Self {
        match grant {
            Grant::Chunk(Chunk { address, bytes, kind: _ }) => {
                Self { address: address.raw(), bytes, ..Self::default() }
            }
            Grant::Blocks(FreeBlocks { kind: _, bytes, addresses }) => {
                let places = addresses.iter().map(|address| address.raw()).collect();
                Self { places, place_bytes: bytes, ..Self::default() }
            }
        }
    }
}

/// Memory in the answer to a request for this kind.
pub(super) fn grant(kind: ChunkKind, reply: proto::AllocateChunkReply) -> Grant {
    if reply.places.is_empty() {
        return Grant::Chunk(Chunk { address: GlobalAddress(reply.address), bytes: reply.bytes, kind });
    }
    let addresses = reply.places.into_iter().map(GlobalAddress).collect();
    Grant::Blocks(FreeBlocks { kind, bytes: reply.place_bytes, addresses })
}

// ---- info ----

impl From<Region> for proto::Region {
    fn from(region: Region) -> Self {
        Self { rkey: region.rkey, iova: region.iova, bytes: region.len }
    }
}

impl TryFrom<proto::Region> for Region {
    type Error = MessageError;

    fn try_from(region: proto::Region) -> Result<Self, MessageError> {
        if matches!(region.rkey, RKEY_NODE_OR_RECORD | RKEY_NODE) {
            return Err(field("rkey", "neither 0 nor 1, which mark index reads", region.rkey.into()));
        }
        Ok(Self { rkey: region.rkey, iova: region.iova, len: region.bytes })
    }
}

impl From<ServerInfo> for proto::ServerInfo {
    fn from(info: ServerInfo) -> Self {
        let TreeInfo { partition, config, counts } = info.structure;
        Self {
            partition: partition.id.into(),
            low_key: partition.range.low,
            high_key: partition.range.high,
            root_address: partition.root.raw(),
            root_level: partition.root_level.into(),
            generation: info.generation,
            tree: Some(info.tree.into()),
            locks: info.locks.map(|locks| locks.region.into()),
            locks_on_device: info.locks.is_some_and(|locks| locks.on_device),
            fan_out: config.fan_out().into(),
            internal_node_bytes: config.internal_bytes(),
            leaf_node_bytes: config.leaf_bytes(),
            inline_value_bytes: match config.values() {
                ValueLayout::Inline(bytes) => bytes.into(),
                ValueLayout::OutOfLine => 0,
            },
            checksums: config.integrity() == Integrity::Checksums,
            keys: counts.keys,
            leaf_nodes: counts.leaf_nodes,
            internal_nodes: counts.internal_nodes,
            record_bytes: counts.record_bytes,
            path_mtu: info.path_mtu.bytes() as u32,
            masked_atomics: info.masked_atomics,
            line_atomicity: info.line_atomicity,
            chunk_bytes: info.chunk_bytes,
            owners: info.locks.map(|locks| locks.owners.into()),
            origin: match info.origin {
                Origin::Meant => proto::Origin::Meant,
                Origin::Begun => proto::Origin::Begun,
                Origin::Lost => proto::Origin::Lost,
            }
            .into(),
        }
    }
}

impl TryFrom<proto::ServerInfo> for ServerInfo {
    type Error = MessageError;

    fn try_from(info: proto::ServerInfo) -> Result<Self, MessageError> {
        let values = match info.inline_value_bytes {
            0 => ValueLayout::OutOfLine,
            bytes => ValueLayout::Inline(narrow("inline_value_bytes", BITS_8, bytes)?),
        };
        let integrity = if info.checksums { Integrity::Checksums } else { Integrity::LineVersions };
        let fan_out = narrow("fan_out", BITS_16, info.fan_out)?;
        let config = TreeConfig::with_integrity(fan_out, info.leaf_node_bytes, values, integrity)?;
        if config.internal_bytes() != info.internal_node_bytes {
            let expected = "as many as a node of this fan-out has here: do both ends run the same version?";
            return Err(field("internal_node_bytes", expected, info.internal_node_bytes.into()));
        }
        let locks = match info.locks.map(Region::try_from).transpose()? {
            None => None,
            Some(region) => {
                let owners = info.owners.ok_or_else(|| missing("owners"))?.try_into()?;
                Some(LockTable { region, on_device: info.locks_on_device, owners })
            }
        };
        let structure = TreeInfo {
            partition: partition(
                info.partition,
                info.low_key,
                info.high_key,
                info.root_address,
                info.root_level,
            )?,
            config,
            counts: LoadCounts {
                keys: info.keys,
                leaf_nodes: info.leaf_nodes,
                internal_nodes: info.internal_nodes,
                record_bytes: info.record_bytes,
            },
        };
        Ok(Self {
            server: structure.partition.id,
            structure,
            generation: info.generation,
            tree: info.tree.ok_or_else(|| missing("tree"))?.try_into()?,
            locks,
            masked_atomics: info.masked_atomics,
            line_atomicity: info.line_atomicity,
            origin: match proto::Origin::try_from(info.origin) {
                Ok(proto::Origin::Meant) => Origin::Meant,
                Ok(proto::Origin::Begun) => Origin::Begun,
                Ok(proto::Origin::Lost) => Origin::Lost,
                Err(_) => {
                    let found = u64::from(info.origin.unsigned_abs());
                    return Err(field("origin", "meant, begun or lost", found));
                }
            },
            path_mtu: mtu(info.path_mtu)?,
            chunk_bytes: info.chunk_bytes,
        })
    }
}

fn partition(
    id: u32,
    low: u64,
    high: Option<u64>,
    root: u64,
    root_level: u32,
) -> Result<Partition, MessageError> {
    Ok(Partition {
        id: narrow("partition", BITS_16, id)?,
        range: KeyRange { low, high },
        root: GlobalAddress(root),
        root_level: narrow("root_level", BITS_8, root_level)?,
    })
}

// ---- snapshots ----

/// Header of a snapshot with this many nodes.
pub(super) fn header(partition: &Partition, nodes: u64) -> proto::SnapshotHeader {
    proto::SnapshotHeader {
        partition: partition.id.into(),
        low_key: partition.range.low,
        high_key: partition.range.high,
        root_address: partition.root.raw(),
        root_level: partition.root_level.into(),
        nodes,
    }
}

impl TryFrom<proto::SnapshotHeader> for Partition {
    type Error = MessageError;

    fn try_from(header: proto::SnapshotHeader) -> Result<Self, MessageError> {
        let proto::SnapshotHeader { partition: id, low_key, high_key, root_address, root_level, .. } = header;
        partition(id, low_key, high_key, root_address, root_level)
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
            return Err(field("children", "at least 1, and as many as pivots", children as u64));
        }
        if !node.pivots.is_sorted_by(|a, b| a < b) {
            return Err(field("pivots", "strictly ascending, but that is not so in node", node.address));
        }
        Ok(Self {
            address: node.address,
            level: narrow("level", BITS_8, node.level)?,
            children: node.pivots.into_iter().zip(node.children).collect(),
        })
    }
}
