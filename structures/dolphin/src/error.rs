//! Errors of operations on an index.

use fatbtree_remote_memory::{BreakReason, ConnectionId, GlobalAddress, LockError, Shortage, Trouble};
use fatbtree_verbs::PostError;

/// Errors of an operation. After all but [`Unknown`](Self::Unknown) it has changed nothing, and
/// never will.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// The first line of the server's region is no index's.
    #[error(
        "memory server {server} holds no Dolphin index of this version: expected the structure \"dolphin\", format 3; load the server \
         with one"
    )]
    NoIndex {
        /// The server that was asked.
        server: u16,
    },
    /// The servers hold parts of different indexes.
    #[error(
        "the memory servers do not hold parts of one index: one has begun anew without what it held; load all of them anew (`fatbtree load \
         --structure dolphin --replace`)"
    )]
    Parted,
    /// The connection broke while the change was being made.
    #[error(
        "the change may have been made or not: the connection broke under it ({0}); read the key to find out"
    )]
    Unknown(BreakReason),
    /// No attempt succeeded within
    /// [`RemoteConfig::patience`](fatbtree_remote_memory::RemoteConfig::patience).
    #[error(
        "gave up after {attempts} attempts, because others change the same keys, or a memory server that the change needs is away; try again"
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
    /// The value has a length that the index does not take.
    #[error("a value of {found} bytes: this index takes {expected}")]
    Length {
        /// Bytes of the value.
        found: usize,
        /// Lengths that it takes, in words.
        expected: &'static str,
    },
    /// The value is longer than the index's bound.
    #[error("a value of {found} bytes: this index takes up to {most}")]
    TooLong {
        /// Bytes of the value.
        found: usize,
        /// The bound.
        most: u32,
    },
    /// The one word that stands for "no value" in an index of fixed values.
    #[error(
        "the value {word:#018x} stands for \"no value\" in an index of eight-byte values; store another one, or make the index with a \
         larger `max_value`"
    )]
    Reserved {
        /// The word.
        word: u64,
    },
    /// A part of the index cannot be: it was damaged.
    #[error(
        "the index is damaged at {at}: expected {expected}; trying again is of no use: restore the folders of all memory servers from copies \
         of one moment, or load the index again"
    )]
    Damaged {
        /// Where.
        at: GlobalAddress,
        /// What should be there.
        expected: &'static str,
    },
    /// What belongs to a key is damaged: several readings found the same, and it cannot be.
    #[error(
        "key {key:#x}: the index is damaged at {at}: expected {expected}; trying again is of no use: restore the folders of all memory servers \
         from copies of one moment, or load the index again"
    )]
    DamagedKey {
        /// The key.
        key: u64,
        /// Where.
        at: GlobalAddress,
        /// What should be there.
        expected: &'static str,
    },
    /// A server has given memory that entries of the index do not reach.
    #[error(
        "memory at {at} is out of reach: nodes may lie in the first 4 TiB of a region, records in 64 GiB"
    )]
    OutOfReach {
        /// The address that the server gave.
        at: GlobalAddress,
    },
    /// The owner gave the connection up.
    #[error("the {0} was given up")]
    Abandoned(ConnectionId),
    /// The server has lost what its memory held.
    #[error("memory server {0} has lost what it held; load it again and open the index anew")]
    Lost(u16),
    /// The client has no connection to the server.
    #[error("the index lies on memory server {0} too, with which this client is not connected")]
    UnknownServer(u16),
    /// The client may not write there.
    #[error("this client may only read memory server {0}")]
    NotWriter(u16),
    /// The structure has no such operation.
    #[error("a Dolphin index has no {0}")]
    Lacks(&'static str),
    /// The device refuses the request.
    #[error(transparent)]
    Refused(#[from] PostError),
}

/// Reasons for which an attempt does not end with an answer.
#[derive(Debug)]
pub(crate) enum Stop {
    /// To be begun anew at once: more is known of where to look.
    Anew,
    /// To be begun anew after a pause: another client was quicker, or a connection broke.
    Later,
    /// To be begun anew when the client is connected with a server: under a lock nothing waits for that.
    Absent(u16),
    /// The operation has failed.
    Failed(IndexError),
}

impl From<IndexError> for Stop {
    fn from(error: IndexError) -> Self {
        Self::Failed(error)
    }
}

impl From<Trouble> for Stop {
    fn from(trouble: Trouble) -> Self {
        Self::Failed(match trouble {
            Trouble::Broke(_) | Trouble::Lapsed => return Self::Later,
            // Other operations hold the buffers, or have filled the queue.
            Trouble::Refused(error) if error.is_temporary() => return Self::Later,
            Trouble::Abandoned(id) => IndexError::Abandoned(id),
            Trouble::Lost(server) => IndexError::Lost(server),
            Trouble::UnknownServer(server) => IndexError::UnknownServer(server),
            Trouble::NotWriter(server) => IndexError::NotWriter(server),
            Trouble::Refused(error) => IndexError::Refused(error),
        })
    }
}

impl From<LockError> for Stop {
    /// What was written under a lock can be completed whatever part of it was done, so also the
    /// unknown is to be tried again.
    fn from(error: LockError) -> Self {
        match error {
            LockError::Trouble(trouble) => trouble.into(),
            LockError::Locked | LockError::Unknown(_) => Self::Later,
        }
    }
}
