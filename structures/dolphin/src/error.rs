//! Errors of operations on an index.

use fatbtree_remote_memory::{CommonError, GlobalAddress};

/// Errors of an operation. After all but [`CommonError::Unknown`] it has changed nothing, and never will.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// What any structure's operation may end with.
    #[error(transparent)]
    Common(#[from] CommonError),
    /// The first line of the server's region is no index's.
    #[error(
        "memory server {server} holds no Dolphin index of this version: expected the structure \"dolphin\", format 3; load the server \
         with one"
    )]
    NoIndex {
        /// The server that was asked.
        server: u16,
    },
    /// The value has a length that the index does not take.
    #[error("a value of {found} bytes: this index takes {expected}")]
    Length {
        /// Bytes of the value.
        found: usize,
        /// Lengths that it takes, in words.
        expected: &'static str,
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
    /// A server has given memory that entries of the index do not reach.
    #[error(
        "memory at {at} is out of reach: nodes may lie in the first 4 TiB of a region, records in 64 GiB"
    )]
    OutOfReach {
        /// The address that the server gave.
        at: GlobalAddress,
    },
}

/// Reasons for which an attempt does not end with an answer.
pub(crate) type Stop = fatbtree_remote_memory::Stop<IndexError>;

impl From<IndexError> for Stop {
    fn from(error: IndexError) -> Self {
        Self::Failed(error)
    }
}
