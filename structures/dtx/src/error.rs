//! Errors of transactions.

use fatbtree_remote_memory::{CommonError, GlobalAddress, LockError, Trouble};

/// Errors of a transaction. Behind all but [`Unknown`](Self::Unknown) it has changed nothing, and never will.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DtxError {
    /// What any structure's operation may end with.
    #[error(transparent)]
    Common(#[from] CommonError),
    /// Another transaction has the lock of an item, or has changed it since it was read.
    #[error("another transaction uses the item at {at}; abort, and begin anew after a pause")]
    Conflict {
        /// The item.
        at: GlobalAddress,
        /// Word of its lock; 0 if it was changed, and is free.
        lock: u64,
    },
    /// A connection broke or a session ended under the transaction, or a server was filled anew.
    #[error("the connection to a memory server broke under the transaction; begin anew")]
    Broke,
    /// A connection broke during the commit, and it could not be found out in time what became of it.
    #[error(
        "the transaction may be committed or not: a connection broke under it; read its items to find out"
    )]
    Unknown,
    /// The first lines of the server's region are no tables'.
    #[error(
        "memory server {server} holds no tables of this version: expected the structure \"dtxtable\", format 2; load the server with them"
    )]
    NoTables {
        /// The server that was asked.
        server: u16,
    },
    /// There is no such table.
    #[error("there is no table {0}: the shape of the tables says how many there are")]
    NoTable(u8),
    /// The value has another length than the table's.
    #[error("a value of {found} bytes: the values of this table have {expected}")]
    Length {
        /// Bytes of the value.
        found: usize,
        /// Bytes of the table's values.
        expected: usize,
    },
    /// The node of a key has no slot left.
    #[error(
        "table {table} has no room for key {key:#x}: its node is full; make tables with more nodes or more slots"
    )]
    Full {
        /// The table.
        table: u8,
        /// The key.
        key: u64,
    },
    /// The transaction writes more items than its log holds.
    #[error(
        "the transaction writes more than {0} items; make tables whose shape allows more writes, or split it"
    )]
    TooMany(u8),
    /// An item is to be changed that was not read for writing.
    #[error("an item is changed that was only read: fetch it for writing")]
    NotLocked,
    /// All seats of a server are taken by living coordinators.
    #[error(
        "memory server {0} has no seat left for a coordinator; make tables with more seats, or run fewer transactions at once"
    )]
    NoSeat(u16),
    /// All servers with replicas of an item have lost their memory.
    #[error(
        "all replicas of an item on memory server {0} are lost: more servers died than items have backups; load the tables again"
    )]
    Lost(u16),
}

impl DtxError {
    /// Whether another attempt may succeed.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        match self {
            Self::Conflict { .. } | Self::Broke => true,
            Self::Common(CommonError::Refused(error)) => error.is_temporary(),
            _ => false,
        }
    }
}

/// Reasons for which an attempt does not end with an answer.
pub(crate) type Stop = fatbtree_remote_memory::Stop<DtxError>;

impl From<DtxError> for Stop {
    fn from(error: DtxError) -> Self {
        match error {
            DtxError::Common(error) => error.into(),
            error if error.is_temporary() => Self::Later,
            error => Self::Failed(error),
        }
    }
}

impl From<Trouble> for DtxError {
    fn from(trouble: Trouble) -> Self {
        match CommonError::of(trouble) {
            None => Self::Broke,
            Some(CommonError::Lost(server)) => Self::Lost(server),
            Some(error) => error.into(),
        }
    }
}

impl From<LockError> for DtxError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Trouble(trouble) => trouble.into(),
            LockError::Locked | LockError::Unknown(_) => Self::Broke,
        }
    }
}
