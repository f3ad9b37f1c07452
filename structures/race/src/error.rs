//! Errors of operations on a table.

use fatbtree_remote_memory::byte_keys::MAX_KEY_BYTES;
use fatbtree_remote_memory::{CommonError, GlobalAddress, Keys};

use crate::slot::MAX_SERVERS;

/// Errors of an operation. After all but [`CommonError::Unknown`] it has changed nothing, and never will.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// What any structure's operation may end with.
    #[error(transparent)]
    Common(#[from] CommonError),
    /// The first line of the server's region is no table's.
    #[error(
        "memory server {server} holds no hash table of this version: expected the structure \"racehash\", format 2 or 3; load the server with one"
    )]
    NoTable {
        /// The server that was asked.
        server: u16,
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
    /// The table has keys of the other kind.
    #[error(
        "keys of this hash table are {table}, and this operation is for others: a table of bytes takes byte strings (`.bytes()` in the library), \
         one of numbers 64-bit integers; `fatbtree load --key-type` loads one of the other kind"
    )]
    Keys {
        /// The table's keys.
        table: Keys,
    },
    /// A key of bytes is too long.
    #[error("a key of {found} bytes was given, the longest has {MAX_KEY_BYTES}")]
    KeyBytes {
        /// Bytes given.
        found: usize,
    },
    /// A server has given memory that pointers of the table do not reach.
    #[error(
        "memory at {at} is out of reach: a table's servers are numbered below {MAX_SERVERS}, with regions of 64 GiB at most"
    )]
    OutOfReach {
        /// The address that the server gave.
        at: GlobalAddress,
    },
    /// An export began on a table that the client has opened anew since: a server may have begun anew.
    #[error(
        "the table was opened anew during the export, because a memory server may have begun anew; begin the export again"
    )]
    OpenedAnew,
}

impl TableError {
    /// The error of an operation that is about no certain key.
    pub(crate) fn of_no_key(self) -> Self {
        match self {
            Self::Common(CommonError::DamagedKey { at, expected, .. }) => {
                CommonError::Damaged { at, expected }.into()
            }
            error => error,
        }
    }
}

/// Reasons for which an attempt does not end with an answer.
pub(crate) type Stop = fatbtree_remote_memory::Stop<TableError>;

impl From<TableError> for Stop {
    fn from(error: TableError) -> Self {
        Self::Failed(error)
    }
}
