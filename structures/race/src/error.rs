//! Errors of operations on a table.

use fatbtree_remote_memory::{BreakReason, ConnectionId, GlobalAddress, LockError, Shortage, Trouble};
use fatbtree_verbs::PostError;

use crate::slot::MAX_SERVERS;

/// Errors of an operation. After all but [`Unknown`](Self::Unknown) it has changed nothing, and never will.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The first line of the server's region is no table's.
    #[error(
        "memory server {server} holds no hash table of this version: expected the structure \"racehash\", format 2; load the server with one"
    )]
    NoTable {
        /// The server that was asked.
        server: u16,
    },
    /// The servers hold parts of different tables.
    #[error(
        "the memory servers do not hold parts of one table: one has begun anew without what it held; load all of them anew (`fatbtree load \
         --structure hash --replace`)"
    )]
    Parted,
    /// The connection broke while a slot was being changed, and another client has changed it since.
    #[error(
        "the change may have been made or not: the connection broke under it ({0}); read the key to find out"
    )]
    Unknown(BreakReason),
    /// No attempt succeeded within [`RemoteConfig::patience`](fatbtree_remote_memory::RemoteConfig::patience).
    #[error(
        "gave up after {attempts} attempts, because others change the same keys or connections break; try again"
    )]
    GaveUp {
        /// Attempts that were made.
        attempts: u32,
    },
    /// A server gives no memory.
    #[error("no memory on memory server {server}: {shortage}")]
    NoMemory {
        /// The server.
        server: u16,
        /// Its reason.
        shortage: Shortage,
    },
    /// Both buckets of the key are full, and the directory cannot grow.
    #[error(
        "the table is full: the key's buckets have no room, and their subtable has all {bits} bits of the directory; load a table with \
         more directory bits or more groups"
    )]
    Full {
        /// Bits of the directory.
        bits: u8,
    },
    /// The value is longer than the table's bound.
    #[error("a value of {found} bytes: this table takes up to {most}")]
    TooLong {
        /// Bytes of the value.
        found: usize,
        /// The bound.
        most: u32,
    },
    /// A part of the table cannot be: it was damaged.
    #[error(
        "the table is damaged at {at}: expected {expected}; trying again is of no use: restore the folders of all memory servers from copies \
         of one moment, or load the table again"
    )]
    Damaged {
        /// Where.
        at: GlobalAddress,
        /// What should be there.
        expected: &'static str,
    },
    /// What belongs to a key is damaged: several readings found the same, and it cannot be.
    #[error(
        "key {key:#x}: the table is damaged at {at}: expected {expected}; trying again is of no use: restore the folders of all memory servers \
         from copies of one moment, or load the table again"
    )]
    DamagedKey {
        /// The key.
        key: u64,
        /// Where.
        at: GlobalAddress,
        /// What should be there.
        expected: &'static str,
    },
    /// A server has given memory that pointers of the table do not reach.
    #[error(
        "memory at {at} is out of reach: a table's servers are numbered below {MAX_SERVERS}, with regions of 64 GiB at most"
    )]
    OutOfReach {
        /// The address that the server gave.
        at: GlobalAddress,
    },
    /// The owner gave the connection up.
    #[error("the {0} was given up")]
    Abandoned(ConnectionId),
    /// An export began on a table that the client has opened anew since: a server may have begun anew.
    #[error(
        "the table was opened anew during the export, because a memory server may have begun anew; begin the export again"
    )]
    OpenedAnew,
    /// The server has lost what its memory held.
    #[error("memory server {0} has lost what it held; load it again and open the table anew")]
    Lost(u16),
    /// The client has no connection to the server.
    #[error("the table lies on memory server {0} too, with which this client is not connected")]
    UnknownServer(u16),
    /// The client may not write there.
    #[error("this client may only read memory server {0}")]
    NotWriter(u16),
    /// The structure has no such operation.
    #[error("a hash table has no {0}")]
    Lacks(&'static str),
    /// The device refuses the request.
    #[error(transparent)]
    Refused(#[from] PostError),
}

impl TableError {
    /// The error of an operation that is about no certain key.
    pub(crate) fn of_no_key(self) -> Self {
        match self {
            Self::DamagedKey { at, expected, .. } => Self::Damaged { at, expected },
            error => error,
        }
    }
}

/// Reasons for which an attempt does not end with an answer.
#[derive(Debug)]
pub(crate) enum Stop {
    /// To be begun anew at once: more is known of where to look.
    Anew,
    /// To be begun anew after a pause: another client was quicker, or a connection broke.
    Later,
    /// The operation has failed.
    Failed(TableError),
}

impl From<TableError> for Stop {
    fn from(error: TableError) -> Self {
        Self::Failed(error)
    }
}

impl From<Trouble> for Stop {
    fn from(trouble: Trouble) -> Self {
        Self::Failed(match trouble {
            Trouble::Broke(_) | Trouble::Lapsed => return Self::Later,
            // Other operations hold the buffers, or have filled the queue.
            Trouble::Refused(error) if error.is_temporary() => return Self::Later,
            Trouble::Abandoned(id) => TableError::Abandoned(id),
            Trouble::Lost(server) => TableError::Lost(server),
            Trouble::UnknownServer(server) => TableError::UnknownServer(server),
            Trouble::NotWriter(server) => TableError::NotWriter(server),
            Trouble::Refused(error) => TableError::Refused(error),
        })
    }
}

impl From<LockError> for Stop {
    /// What is done under a lock can be done again whatever part of it was done.
    fn from(error: LockError) -> Self {
        match error {
            LockError::Trouble(trouble) => trouble.into(),
            LockError::Locked | LockError::Unknown(_) => Self::Later,
        }
    }
}
