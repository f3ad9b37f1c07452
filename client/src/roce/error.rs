//! What the owner did wrong, or the NIC could not do.

use fatbtree_index::ConfigError;
use fatbtree_nic::QpError;
use thiserror::Error;

use super::connection::ConnectionId;

/// Why a lookup was not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SubmitError {
    /// As many as allowed are under way.
    #[error(
        "{depth} lookups are under way, the most this client runs at once; submit again after one is done"
    )]
    Full {
        /// The client's depth.
        depth: u32,
    },
}

/// Why a connection could not be changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConnectError {
    /// No such connection.
    #[error(
        "no connection to partition {} lane {}: the super-root has no such partition, or there are only {lanes} lanes", .id.partition, .id.lane
    )]
    Unknown {
        /// What was asked for.
        id: ConnectionId,
        /// Lanes per partition.
        lanes: u8,
    },
    /// It works.
    #[error("the connection to partition {} lane {} is up: abandon it before reconnecting it", .id.partition, .id.lane)]
    Up {
        /// Which.
        id: ConnectionId,
    },
    /// The steps came in the wrong order.
    #[error("the connection to partition {} lane {} has no new queue pair: call reconnect, tell the server, then connected", .id.partition, .id.lane)]
    NotOpening {
        /// Which.
        id: ConnectionId,
    },
    /// A super-root for another cluster.
    #[error(
        "a new super-root must have the partitions {old:?}, found {new:?}; make a new client for another cluster"
    )]
    OtherPartitions {
        /// Partitions in force.
        old: Vec<u16>,
        /// Partitions of the new one.
        new: Vec<u16>,
    },
    /// The single-packet rule (design §5) with the server's path MTU.
    #[error(transparent)]
    Tree(#[from] ConfigError),
    /// The NIC refuses.
    #[error(transparent)]
    Nic(#[from] QpError),
}
