//! Messages to types and back. What a peer sends is checked here, field by field.

use std::fmt::Display;
use std::net::Ipv4Addr;

use fatbtree_remote_memory::session_keeper::{Chunk, FreeBlocks, Grant};
use fatbtree_remote_memory::{GlobalAddress, LockTable, Origin, Owner, ServerInfo, SessionId, SizeClass};
use fatbtree_verbs::{Endpoint, EndpointError, Mtu, QueuePairNumber, RKEY_NODE, RKEY_NODE_OR_RECORD, Region};

use super::{Describe, proto};

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
    /// A structure of another kind.
    #[error(
        "the memory server holds a structure of kind {found:?}, expected {expected:?}: ask it by a client of that structure (--structure, or a \
         line in the cluster file)"
    )]
    OtherStructure {
        /// The expected name.
        expected: &'static str,
        /// The found name.
        found: String,
    },
    /// A structure that cannot be.
    #[error("{0}")]
    Structure(String),
}

impl MessageError {
    /// Error of a field that is not there.
    #[must_use]
    pub fn missing(field: &'static str) -> Self {
        Self::Missing { field }
    }

    /// Error of a field with an impossible value.
    #[must_use]
    pub fn field(field: &'static str, expected: &'static str, found: u64) -> Self {
        Self::Field { field, expected, found }
    }

    /// Error of a structure's own part of a message.
    #[must_use]
    pub fn structure(reason: impl Display) -> Self {
        Self::Structure(reason.to_string())
    }

    /// Number of 8 bits in a field.
    ///
    /// # Errors
    /// When the number is larger.
    pub fn bits_8(name: &'static str, found: u32) -> Result<u8, Self> {
        u8::try_from(found).map_err(|_| Self::field(name, "at most 255", found.into()))
    }

    /// Number of 16 bits in a field.
    ///
    /// # Errors
    /// When the number is larger.
    pub fn bits_16(name: &'static str, found: u32) -> Result<u16, Self> {
        u16::try_from(found).map_err(|_| Self::field(name, "at most 65,535", found.into()))
    }
}

pub(super) fn missing(field: &'static str) -> MessageError {
    MessageError::missing(field)
}

fn field(field: &'static str, expected: &'static str, found: u64) -> MessageError {
    MessageError::field(field, expected, found)
}

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
            responder_reads: MessageError::bits_8("responder_reads", end.responder_reads)?,
            initiator_reads: MessageError::bits_8("initiator_reads", end.initiator_reads)?,
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
        Ok(Self { id: session, lease: duration, owner: owner.transpose()?, wait: lease.wait })
    }
}

// ---- chunks ----

/// The size class that a peer names by number.
pub(super) fn size_class(number: Option<u32>) -> Result<SizeClass, MessageError> {
    let number = number.ok_or_else(|| missing("size_class"))?;
    u8::try_from(number).map(SizeClass).map_err(|_| field("size_class", "0 to 254", number.into()))
}

impl From<Grant> for proto::AllocateChunkReply {
    fn from(grant: Grant) -> Self {
        match grant {
            Grant::Chunk(Chunk { address, bytes, class: _ }) => {
                Self { address: address.raw(), bytes, ..Self::default() }
            }
            Grant::Blocks(FreeBlocks { class: _, bytes, addresses }) => {
                let places = addresses.iter().map(|address| address.raw()).collect();
                Self { places, place_bytes: bytes, ..Self::default() }
            }
        }
    }
}

/// Memory in the answer to a request for this class.
pub(super) fn grant(class: SizeClass, reply: proto::AllocateChunkReply) -> Grant {
    if reply.places.is_empty() {
        return Grant::Chunk(Chunk { address: GlobalAddress(reply.address), bytes: reply.bytes, class });
    }
    let addresses = reply.places.into_iter().map(GlobalAddress).collect();
    Grant::Blocks(FreeBlocks { class, bytes: reply.place_bytes, addresses })
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

impl<S: Describe> From<ServerInfo<S>> for proto::ServerInfo {
    fn from(info: ServerInfo<S>) -> Self {
        Self {
            server: info.server.into(),
            generation: info.generation,
            structure: S::STRUCTURE.to_owned(),
            description: info.structure.encode(),
            region: Some(info.region.into()),
            locks: info.locks.map(|locks| locks.region.into()),
            owners: info.locks.map(|locks| locks.owners.into()),
            locks_on_device: info.locks.is_some_and(|locks| locks.on_device),
            path_mtu: info.path_mtu.bytes() as u32,
            masked_atomics: info.masked_atomics,
            syncs: info.syncs,
            line_atomicity: info.line_atomicity,
            chunk_bytes: info.chunk_bytes,
            origin: match info.origin {
                Origin::Meant => proto::Origin::Meant,
                Origin::Begun => proto::Origin::Begun,
                Origin::Lost => proto::Origin::Lost,
            }
            .into(),
        }
    }
}

impl<S: Describe> TryFrom<proto::ServerInfo> for ServerInfo<S> {
    type Error = MessageError;

    fn try_from(info: proto::ServerInfo) -> Result<Self, MessageError> {
        let server = MessageError::bits_16("server", info.server)?;
        if info.structure != S::STRUCTURE {
            return Err(MessageError::OtherStructure { expected: S::STRUCTURE, found: info.structure });
        }
        let locks = match info.locks.map(Region::try_from).transpose()? {
            None => None,
            Some(region) => {
                let owners = info.owners.ok_or_else(|| missing("owners"))?.try_into()?;
                Some(LockTable { region, on_device: info.locks_on_device, owners })
            }
        };
        Ok(Self {
            server,
            structure: S::decode(server, &info.description)?,
            generation: info.generation,
            region: info.region.ok_or_else(|| missing("region"))?.try_into()?,
            locks,
            syncs: info.syncs,
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
