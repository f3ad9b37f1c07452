//! Results and costs of operations, by RDMA or by queries.

use fatbtree_blink::OperationError;
use fatbtree_verbs::time::Duration;

/// Result and cost of an operation.
#[derive(Debug)]
pub struct Answered<T> {
    /// Its result.
    pub result: Result<T, NoAnswer>,
    /// Round trips, one after another.
    pub round_trips: u32,
    /// Time from its first step to its end.
    pub latency: Duration,
}

/// Reasons for which an operation has no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoAnswer {
    /// Error in a tree.
    #[error(transparent)]
    Tree(#[from] OperationError),
    /// Error from a server: no answer to a read, or an operation that the server does not have.
    #[error("{0}")]
    Server(&'static str),
    /// A write by a server, without an answer: it may have been carried out or not.
    #[error("no answer came, or the server was started anew: it may have been carried out or not")]
    Unknown,
}

impl NoAnswer {
    /// Whether a write may have been carried out all the same.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown | Self::Tree(OperationError::Unknown { .. }))
    }
}
