//! Messages to types and back. What a peer sends is checked here, field by field.

use std::fmt::Display;
use std::net::Ipv4Addr;

use fatbtree_remote_memory::session_keeper::{Call, Chunk, FreeBlocks, Grant, Granted, Opened};
use fatbtree_remote_memory::{
    GlobalAddress, LockTable, Origin, Owner, ReturnedBlocks, ServerInfo, SessionId, SizeClass,
};
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Endpoint, EndpointError, IndexTarget, Mtu, QueuePairNumber, Region};

use super::proto::call::Asked;
use super::proto::granted::Granted as Answer;
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

// ---- calls ----

impl From<Call> for Asked {
    fn from(call: Call) -> Self {
        let in_session = |session: SessionId| proto::InSession { session: session.0 };
        match call {
            Call::Open { known } => Self::Open(proto::Open { known_generation: known }),
            Call::Renew { session, settled, keeps } => {
                Self::Renew(proto::Renew { session: session.0, settled, keeps })
            }
            Call::Sync { session } => Self::Sync(in_session(session)),
            Call::Connect { session, local, replaces } => Self::Connect(proto::Connect {
                session: session.0,
                client: Some(local.into()),
                replaces: replaces.map(|queue_pair| queue_pair.0),
            }),
            Call::Allocate { session, class, bytes } => Self::Allocate(proto::Allocate {
                session: session.0,
                size_class: Some(class.0.into()),
                block_bytes: bytes,
            }),
            Call::GiveBack { places, settled } => Self::GiveBack(proto::GiveBack {
                session: places.session.0,
                size_class: Some(places.class.0.into()),
                block_bytes: places.bytes,
                blocks: places.addresses.iter().map(|address| address.raw()).collect(),
                settled,
            }),
            Call::Close { session } => Self::Close(in_session(session)),
        }
    }
}

impl TryFrom<Asked> for Call {
    type Error = MessageError;

    fn try_from(asked: Asked) -> Result<Self, MessageError> {
        Ok(match asked {
            Asked::Open(proto::Open { known_generation }) => Self::Open { known: known_generation },
            Asked::Renew(proto::Renew { session, settled, keeps }) => {
                Self::Renew { session: SessionId(session), settled, keeps }
            }
            Asked::Sync(proto::InSession { session }) => Self::Sync { session: SessionId(session) },
            Asked::Connect(proto::Connect { session, client, replaces }) => Self::Connect {
                session: SessionId(session),
                local: client.ok_or_else(|| missing("client"))?.try_into()?,
                replaces: replaces.map(QueuePairNumber),
            },
            Asked::Allocate(proto::Allocate { session, size_class: class, block_bytes }) => {
                Self::Allocate { session: SessionId(session), class: size_class(class)?, bytes: block_bytes }
            }
            Asked::GiveBack(give_back) => {
                let proto::GiveBack { session, size_class: class, block_bytes: bytes, blocks, settled } =
                    give_back;
                let addresses: Vec<GlobalAddress> = blocks.into_iter().map(GlobalAddress).collect();
                let (server, session) =
                    (addresses.first().map_or(0, |first| first.server()), SessionId(session));
                let places = ReturnedBlocks { server, session, class: size_class(class)?, bytes, addresses };
                Self::GiveBack { places, settled }
            }
            Asked::Close(proto::InSession { session }) => Self::Close { session: SessionId(session) },
        })
    }
}

impl<S: Describe> From<Granted<S>> for proto::Granted {
    fn from(granted: Granted<S>) -> Self {
        let granted = match granted {
            Granted::Opened(opened) => {
                let Opened { session, lease, owner, info } = *opened;
                Answer::Opened(proto::Opened {
                    session: session.0,
                    nanoseconds: lease.as_nanos(),
                    owner: owner.map(|owner| owner.number.into()),
                    info: Some(info.into()),
                })
            }
            Granted::Renewed { wait } => Answer::Renewed(proto::Renewed { wait }),
            Granted::Connected(end) => Answer::Connected(end.into()),
            Granted::Attached(attached) => Answer::Connected(attached.endpoint.into()),
            Granted::Supplied(grant) => Answer::Supplied(grant.into()),
            Granted::Done => Answer::Done(proto::Done {}),
        };
        Self { granted: Some(granted) }
    }
}

impl<S: Describe> TryFrom<proto::Granted> for Granted<S> {
    type Error = MessageError;

    fn try_from(granted: proto::Granted) -> Result<Self, MessageError> {
        Ok(match granted.granted.ok_or_else(|| missing("granted"))? {
            Answer::Opened(proto::Opened { session, nanoseconds, owner, info }) => {
                let session = SessionId(session);
                let owner = owner.map(|owner| match u16::try_from(owner) {
                    Ok(number) if number != 0 => Ok(Owner { session, number }),
                    _ => Err(field("owner", "1 to 65,535", owner.into())),
                });
                let (lease, owner) = (Duration::from_nanos(nanoseconds), owner.transpose()?);
                let info = info.ok_or_else(|| missing("info"))?.try_into()?;
                Self::Opened(Box::new(Opened { session, lease, owner, info }))
            }
            Answer::Renewed(proto::Renewed { wait }) => Self::Renewed { wait },
            Answer::Connected(end) => Self::Connected(end.try_into()?),
            Answer::Supplied(memory) => Self::Supplied(memory.try_into()?),
            Answer::Done(proto::Done {}) => Self::Done,
        })
    }
}

/// The size class that a peer names by number.
fn size_class(number: Option<u32>) -> Result<SizeClass, MessageError> {
    let number = number.ok_or_else(|| missing("size_class"))?;
    u8::try_from(number).map(SizeClass).map_err(|_| field("size_class", "0 to 254", number.into()))
}

impl From<Grant> for proto::Memory {
    fn from(grant: Grant) -> Self {
        match grant {
            Grant::Chunk(Chunk { address, bytes, class }) => {
                Self { size_class: Some(class.0.into()), address: address.raw(), bytes, ..Self::default() }
            }
            Grant::Blocks(FreeBlocks { class, bytes, addresses }) => {
                let blocks = addresses.iter().map(|address| address.raw()).collect();
                let size_class = Some(class.0.into());
                Self { size_class, blocks, block_bytes: bytes, ..Self::default() }
            }
        }
    }
}

impl TryFrom<proto::Memory> for Grant {
    type Error = MessageError;

    fn try_from(memory: proto::Memory) -> Result<Self, MessageError> {
        let proto::Memory { size_class: class, address, bytes, blocks, block_bytes } = memory;
        let class = size_class(class)?;
        if blocks.is_empty() {
            return Ok(Self::Chunk(Chunk { address: GlobalAddress(address), bytes, class }));
        }
        let addresses = blocks.into_iter().map(GlobalAddress).collect();
        Ok(Self::Blocks(FreeBlocks { class, bytes: block_bytes, addresses }))
    }
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
        if IndexTarget::of_rkey(region.rkey).is_some() {
            return Err(field("rkey", "256 or more: those below mark index reads", region.rkey.into()));
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
