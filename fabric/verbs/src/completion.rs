//! Results of posted requests.

use crate::buffer::Buffer;
use crate::device::QueuePair;

/// Report on a request that ended. Completions of a queue pair come in the order of posting.
#[derive(Debug)]
pub struct Completion {
    /// Queue pair on which the request was posted.
    pub queue_pair: QueuePair,
    /// Tag with which the request was posted.
    pub tag: u64,
    /// Result of the request.
    pub result: Result<Output, Failure>,
}

/// Result of a successful operation.
#[derive(Debug)]
pub enum Output {
    /// The bytes of a READ or an index read, in a registered buffer.
    Read(Buffer),
    /// A WRITE was carried out, or a message was received.
    Written,
    /// Value that an atomic found in memory.
    Atomic(u64),
}

/// Reason for which a posted operation failed. On a reliable connection each of these puts the queue pair into the
/// error state (IBTA volume 1, section 10.3.1). Everything posted after the operation is flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error)]
pub enum Failure {
    /// The responder refused rkey, range or right: NAK "remote access error" (IBTA volume 1, section 9.7.5.2.4).
    #[error("the memory server refused the access (NAK: remote access error)")]
    RemoteAccess,
    /// The responder found the request malformed or unsupported.
    #[error("the memory server found the request invalid (NAK: remote invalid request)")]
    RemoteInvalidRequest,
    /// The responder could not carry the request out.
    #[error("the memory server failed to carry it out (NAK: remote operational error)")]
    RemoteOperational,
    /// The other side had no place for a message, for longer than it was sent again.
    #[error("the receiver was not ready within the allowed retries (RNR NAK); it posts too few receives")]
    ReceiverNotReady,
    /// A message came that is longer than its place.
    #[error("a message came that is longer than its receive; post longer ones")]
    MessageLength,
    /// No answer came.
    #[error("no answer within the allowed retries")]
    RetryExceeded,
    /// The queue pair failed because of another operation, or was destroyed. Whether this operation was carried out
    /// is unknown.
    #[error("flushed: the queue pair failed before this operation was done")]
    Flushed,
    /// The network card reports another error.
    #[error("the operation failed at the network card")]
    Other,
}
