//! Errors of operations by queries.

/// Reasons for which an operation has no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoAnswer {
    /// Error from a server: no answer to a read, or an operation that the server does not have.
    #[error("{0}")]
    Server(&'static str),
    /// A write by a server, without an answer: it may have been carried out or not.
    #[error("no answer came, or the server was started anew: it may have been carried out or not")]
    Unknown,
}
