//! Reasons for which a request is refused.

use std::net::Ipv4Addr;

use fatbtree_remote_memory::Shortage;
use fatbtree_remote_memory::session_keeper::{Denied, Meaning};
use fatbtree_verbs::{ConnectError, EndpointError, Mtu, QueuePairNumber, ReserveError};

use crate::chunk::{NoChunk, NoClass, NoGrant};
use crate::free_blocks::TooManyBlocks;
use crate::limits::OverBound;
use crate::moments::OlderCopy;
use crate::owners::NoOwner;
use crate::session::SessionKey;

/// Reasons for which a request is refused. Nothing has changed then, except that a queue pair which was to be
/// replaced is gone.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// No such session.
    #[error(
        "there is no {0}: its lease has ended, it was closed, or the server was started anew; open another"
    )]
    UnknownSession(SessionKey),
    /// The server is the successor of one that had another structure.
    #[error(
        "memory server of partition {partition} has lost what it held: it was started again, empty, and does not serve that; load it \
         again (fatbtree load --replace), or, if it held a tree, say that an empty one is meant (fatbtree load --empty)"
    )]
    Lost {
        /// Its partition.
        partition: u16,
    },
    /// The server's folder is an older copy.
    #[error(transparent)]
    Older(#[from] OlderCopy),
    /// The server has begun with an empty structure and does not know yet whether there was another one.
    #[error(
        "memory server of partition {partition} has begun empty and serves that when a controller has said whether there was something before, \
          or after some seconds without a controller; ask again"
    )]
    Undecided {
        /// Its partition.
        partition: u16,
    },
    /// A bound was met.
    #[error(transparent)]
    OverBound(#[from] OverBound),
    /// An endpoint that cannot be.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A queue pair of another client.
    #[error(
        "the queue pair is at {found}, expected {expected}, for which the session was opened; open a session for each address"
    )]
    OtherAddress {
        /// The session's address.
        expected: Ipv4Addr,
        /// The endpoint's.
        found: Ipv4Addr,
    },
    /// An index read does not fit in a packet.
    #[error(transparent)]
    PathMtu(#[from] PathMtu),
    /// The server's device refuses.
    #[error(transparent)]
    Device(#[from] ConnectError),
    /// More places than may be given back at once.
    #[error(transparent)]
    TooManyBlocks(#[from] TooManyBlocks),
    /// No owner of locks is free.
    #[error(transparent)]
    NoOwner(#[from] NoOwner),
    /// No such queue pair.
    #[error("the {session} has no queue pair {queue_pair}: it was disconnected, or it broke")]
    UnknownQueuePair {
        /// The session.
        session: SessionKey,
        /// The server's queue pair.
        queue_pair: QueuePairNumber,
    },
    /// The region is full.
    #[error(transparent)]
    NoChunk(#[from] NoChunk),
    /// The structure has no such size class.
    #[error(transparent)]
    NoClass(#[from] NoClass),
    /// A chunk does not get its room: the disk is full, or fails.
    #[error("no chunk can be given out: {0}")]
    Reserve(#[from] ReserveError),
}

/// Packets of this path are too small (single-packet rule).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "index reads of {bytes} bytes exceed path MTU {path_mtu}: they must be answered in one packet, because a resumed READ would ask for \
     another key; load with smaller nodes or use a path MTU of at least {bytes}"
)]
pub struct PathMtu {
    /// Bytes of an index read.
    pub bytes: u32,
    /// Bytes of the largest packet.
    pub path_mtu: u32,
}

impl PathMtu {
    /// Checks that one packet holds this many bytes.
    pub(crate) fn check(bytes: u32, path_mtu: Mtu) -> Result<(), Self> {
        let path_mtu = path_mtu.bytes() as u32;
        if bytes > path_mtu { Err(Self { bytes, path_mtu }) } else { Ok(()) }
    }
}

impl Refusal {
    /// Reason for which a request for memory got none.
    #[must_use]
    pub const fn shortage(&self) -> Shortage {
        match self {
            Self::NoChunk(_) => Shortage::Region,
            Self::Reserve(ReserveError::NoRoom(_)) => Shortage::Disk,
            Self::OverBound(_) | Self::NoOwner(NoOwner::InUse) => Shortage::Bound,
            Self::Lost { .. } | Self::Older(_) => Shortage::Lost,
            _ => Shortage::Unknown,
        }
    }
}

impl From<NoGrant> for Refusal {
    fn from(none: NoGrant) -> Self {
        match none {
            NoGrant::Chunk(none) => none.into(),
            NoGrant::Room(none) => none.into(),
            NoGrant::Class(none) => none.into(),
        }
    }
}

impl From<Refusal> for Denied {
    fn from(refusal: Refusal) -> Self {
        let meaning = match &refusal {
            Refusal::UnknownSession(_) => Meaning::Ended,
            Refusal::Lost { .. } | Refusal::Older(_) => Meaning::Lost,
            Refusal::Undecided { .. } => Meaning::Later,
            _ => Meaning::No,
        };
        Self { shortage: refusal.shortage(), ..Self::new(meaning, refusal) }
    }
}
