//! Errors that operations of all structures have in common.

use fatbtree_verbs::PostError;

use crate::address::GlobalAddress;
use crate::allocator::Shortage;
use crate::connection::{BreakReason, ConnectionId};
use crate::memory::Trouble;

/// Errors that an operation of any structure may end with. After all but [`Unknown`](Self::Unknown) it has changed nothing, and never will.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommonError {
    /// The connection broke while the operation wrote, and it cannot be found out what became of that.
    #[error(
        "the change may have been made or not: the connection broke under it ({0}); read the key to find out"
    )]
    Unknown(BreakReason),
    /// No attempt succeeded within [`patience`](crate::RemoteConfig::patience).
    #[error(
        "gave up after {attempts} attempts, because others change the same keys, or a memory server that the operation needs is away; try again"
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
    /// The value is longer than the structure's bound.
    #[error("a value of {found} bytes: this structure takes up to {most}")]
    TooLong {
        /// Bytes of the value.
        found: usize,
        /// The bound.
        most: u32,
    },
    /// A part of the structure cannot be: it was damaged.
    #[error(
        "the structure is damaged at {at}: expected {expected}; trying again is of no use: restore the folders of all memory servers from copies \
         of one moment, or load the structure again"
    )]
    Damaged {
        /// Where.
        at: GlobalAddress,
        /// What should be there.
        expected: &'static str,
    },
    /// What belongs to a key is damaged: several readings found the same, and it cannot be.
    #[error(
        "key {key:#x}: the structure is damaged at {at}: expected {expected}; trying again is of no use: restore the folders of all memory servers \
         from copies of one moment, or load the structure again"
    )]
    DamagedKey {
        /// The key.
        key: u64,
        /// Where.
        at: GlobalAddress,
        /// What should be there.
        expected: &'static str,
    },
    /// The servers hold parts of different structures.
    #[error(
        "the memory servers do not hold parts of one structure: one has begun anew without what it held; load all of them anew (`fatbtree load \
         --replace`)"
    )]
    Parted,
    /// The owner gave the connection up.
    #[error("the {0} was given up; open it again")]
    Abandoned(ConnectionId),
    /// The server has lost what its memory held.
    #[error("memory server {0} has lost what it held; load it again and open the structure anew")]
    Lost(u16),
    /// The client has no connection to the server.
    #[error("the structure lies on memory server {0} too, with which this client is not connected")]
    UnknownServer(u16),
    /// The client may not write there.
    #[error("this client may only read memory server {0}")]
    NotWriter(u16),
    /// The device refuses a request, for good or for as long as the operation had [`patience`](crate::RemoteConfig::patience).
    #[error(transparent)]
    Refused(#[from] PostError),
    /// The structure has no such operation.
    #[error("a {structure} has no {operation}")]
    Lacks {
        /// Its name for people.
        structure: &'static str,
        /// The operation, by its name in the library.
        operation: &'static str,
    },
}

impl CommonError {
    /// The error that a trouble ends an operation with. `None` if the connection broke or the session has ended: another attempt may succeed.
    #[must_use]
    pub const fn of(trouble: Trouble) -> Option<Self> {
        Some(match trouble {
            Trouble::Broke(_) | Trouble::Lapsed => return None,
            Trouble::Refused(error) => Self::Refused(error),
            Trouble::Abandoned(id) => Self::Abandoned(id),
            Trouble::Lost(server) => Self::Lost(server),
            Trouble::UnknownServer(server) => Self::UnknownServer(server),
            Trouble::NotWriter(server) => Self::NotWriter(server),
        })
    }
}
