//! What the client tells its owner.

use fatbtree_index::{LookupError, OpId, ReadFailure, Trips};
use fatbtree_nic::time::Duration;

use super::config::Mode;
use super::connection::ConnectionId;

/// How a lookup ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// A value that the checker accepted.
    Found,
    /// A value that the checker refused. A benchmark that sees one has failed.
    Wrong,
    /// The tree has no such key.
    NotFound,
    /// No answer.
    Failed(Failure),
}

/// Why a lookup has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// What was read made no sense, time after time.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// Its connections broke too often.
    #[error(
        "key {key:#x}: the connection broke {breaks} times under this lookup, last for {last}; raise max_restarts or see why \
         connections to the server fail"
    )]
    ConnectionBroke {
        /// The key.
        key: u64,
        /// Times it broke.
        breaks: u32,
        /// The last reason.
        last: BreakReason,
    },
    /// The owner gave the connection up.
    #[error("key {key:#x}: the connection to partition {} (lane {}) was given up; reconnect it", .id.partition, .id.lane)]
    Abandoned {
        /// The key.
        key: u64,
        /// The connection.
        id: ConnectionId,
    },
    /// More bytes than a READ can ask for.
    #[error(
        "key {key:#x}: the tree asks for a READ of {len} bytes, more than the NIC can; use shorter values"
    )]
    TooLong {
        /// The key.
        key: u64,
        /// Bytes.
        len: u32,
    },
    /// A pointer in the tree names a memory server that the super-root does not have.
    #[error(
        "key {key:#x}: the tree points to memory server {server}, which has no partition; is the super-root current?"
    )]
    UnknownServer {
        /// The key.
        key: u64,
        /// The server in the pointer.
        server: u16,
    },
}

/// Why a queue pair failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakReason {
    /// The server refused an index read (NAK: remote access error): no switch rewrote it, so the connection
    /// is not registered. Lookups walk ordinarily until [`super::RoceClient::set_registered`] says otherwise.
    Unregistered,
    /// A read failed otherwise.
    Read(ReadFailure),
    /// The owner said so.
    Owner,
}

impl std::fmt::Display for BreakReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BreakReason::Unregistered => f.write_str(
                "an index read on a connection that no switch has registered (NAK: remote access error)",
            ),
            BreakReason::Read(failure) => write!(f, "{failure}"),
            BreakReason::Owner => f.write_str("its owner's request"),
        }
    }
}

/// A finished lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// The number that [`super::RoceClient::submit`] gave.
    pub op: OpId,
    /// The key.
    pub key: u64,
    /// As submitted.
    pub mode: Mode,
    /// How it ended.
    pub answer: Answer,
    /// What it cost.
    pub trips: Trips,
    /// Times its connection broke.
    pub restarts: u32,
    /// From submission to answer, waiting for reconnections included.
    pub latency: Duration,
}

/// Something the owner must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A lookup is done.
    Done(Done),
    /// A queue pair failed. Its lookups wait: the owner calls [`super::RoceClient::reconnect`], exchanges
    /// endpoints with the server, and calls [`super::RoceClient::connected`]; or
    /// [`super::RoceClient::abandon`], and they fail.
    ConnectionBroken {
        /// Which.
        id: ConnectionId,
        /// Why.
        reason: BreakReason,
        /// Lookups that begin again for it.
        affected: u32,
    },
}
