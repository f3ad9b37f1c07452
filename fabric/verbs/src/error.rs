//! Errors of calls; failures on the wire are [`Failure`]s.

use crate::completion::Failure;
use crate::connector::Connection;
use crate::device::{QueuePair, QueuePairState};
use crate::endpoint::EndpointError;
use crate::memory::OutOfBounds;

/// Reasons for which a chain was not accepted. Nothing of it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue pair does not exist, or takes no requests.
    #[error(
        "post: expected a connected queue pair, found {queue_pair} in {state}; connect it, or after an error a new one"
    )]
    NotConnected {
        /// The queue pair.
        queue_pair: QueuePair,
        /// State of the queue pair; RESET also if it was destroyed.
        state: QueuePairState,
    },
    /// The send queue is full.
    #[error(
        "post: expected room in the send queue of {queue_pair}, found {found} of {limit} {what}; post again after a completion"
    )]
    Full {
        /// The queue pair.
        queue_pair: QueuePair,
        /// Kind of the things of which there are too many.
        what: &'static str,
        /// Their number.
        found: usize,
        /// Maximum number.
        limit: usize,
    },
    /// All registered buffers are in use.
    #[error(
        "post: expected a free registered buffer of {len} bytes, found none; drop values that are read, or make a larger pool"
    )]
    NoBuffer {
        /// Bytes wanted.
        len: u64,
    },
    /// The operation is longer than a message, or a registered buffer, may be.
    #[error(
        "post: expected at most {limit} bytes, found {found}; split the request, or make a pool of larger buffers"
    )]
    TooLong {
        /// Bytes given.
        found: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The index read violates the single-packet rule.
    #[error(
        "post: index read of {found} bytes exceeds path MTU {limit}: a READ with an rkey below 256 must be answered in one packet, because \
         one that is resumed would ask for another key; use smaller nodes or a larger path MTU"
    )]
    IndexReadTooLong {
        /// Bytes asked for.
        found: u32,
        /// The path MTU.
        limit: u32,
    },
    /// The address of an atomic is not a multiple of 8.
    #[error("post: expected an address that is a multiple of 8 for an atomic, found {address:#x}; align it")]
    Misaligned {
        /// The address given.
        address: u64,
    },
    /// The chain is empty, or has too many requests.
    #[error("post: expected a chain of 1 to {limit} requests, found {found}; post it in parts")]
    ChainLength {
        /// Requests given.
        found: usize,
        /// Requests allowed.
        limit: usize,
    },
    /// The device does not support the operation.
    #[error("post: this device has no {what}; ask for its capabilities first")]
    Unsupported {
        /// The missing capability.
        what: &'static str,
    },
    /// The driver refused; the error number is the system's.
    #[error(
        "post: the driver refused with error number {errno}; the queue pair is broken, connect a new one"
    )]
    Driver {
        /// The system's error number.
        errno: i32,
    },
}

impl PostError {
    /// Whether the queue pair takes further requests.
    #[must_use]
    pub const fn queue_pair_survived(&self) -> bool {
        !matches!(self, PostError::NotConnected { .. } | PostError::Driver { .. })
    }

    /// Whether the same chain may be accepted after a completion, or when a buffer has gone back.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        matches!(self, PostError::Full { .. } | PostError::NoBuffer { .. })
    }
}

/// Reason for which an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The chain was not posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A request was posted and failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

impl Error {
    /// Whether the queue pair takes further requests.
    #[must_use]
    pub const fn queue_pair_survived(&self) -> bool {
        match self {
            Error::Post(error) => error.queue_pair_survived(),
            Error::Failed(_) => false,
        }
    }
}

/// Reasons for which a queue pair could not be made or connected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The queue pair does not exist.
    #[error("expected a queue pair of this device, found no {queue_pair}; it may have been destroyed")]
    Unknown {
        /// The queue pair.
        queue_pair: QueuePair,
    },
    /// The queue pair is not new: only a new one can be connected.
    #[error("expected {queue_pair} in RESET, found it in {state}; destroy it and create a new one")]
    State {
        /// The queue pair.
        queue_pair: QueuePair,
        /// State of the queue pair.
        state: QueuePairState,
    },
    /// The other side's endpoint is impossible.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The device has no queue pair left.
    #[error("the device has {limit} queue pairs, as many as it can have; destroy those that are not used")]
    NoQueuePair {
        /// Number of queue pairs that the device can have.
        limit: usize,
    },
    /// The device has no room for another connection of its Communication Manager.
    #[error(
        "the device has {limit} connections or requests for some, as many as it can have; disconnect those that are not used"
    )]
    NoConnection {
        /// Number of connections that the device can have.
        limit: usize,
    },
    /// The connection waits for no answer.
    #[error("expected a {connection} that waits to be accepted or rejected; it has ended, or was answered")]
    NotWaiting {
        /// The connection.
        connection: Connection,
    },
    /// There are too many private data.
    #[error(
        "expected at most {limit} bytes of private data, found {found}; send the rest over the connection"
    )]
    PrivateData {
        /// Bytes given.
        found: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The driver refused.
    #[error("the driver refused to {what}: {reason}")]
    Driver {
        /// The requested step.
        what: &'static str,
        /// Message of the driver.
        reason: String,
    },
}

/// Reasons for which memory on the device was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceMemoryError {
    /// The region does not exist.
    #[error("no region {rkey:#x} is on this device: it was taken back, or it is in ordinary memory")]
    Unknown {
        /// The key given.
        rkey: u32,
    },
    /// The bytes are not all inside of the region.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// The driver refused.
    #[error("the driver refused to read {len} bytes of device memory: {reason}")]
    Driver {
        /// Bytes.
        len: u64,
        /// Message of the driver.
        reason: String,
    },
}

/// Reasons for which memory could not be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The device has less memory of its own than wanted.
    #[error(
        "{wanted} bytes of device memory wanted, {available} are there; register ordinary memory instead"
    )]
    DeviceMemory {
        /// Bytes wanted.
        wanted: u64,
        /// Bytes the device has left.
        available: u64,
    },
    /// The addresses would exceed the end of the address space.
    #[error("{len} bytes at address {iova:#x} run over the end of the address space; choose a lower address")]
    Range {
        /// First address.
        iova: u64,
        /// Bytes.
        len: u64,
    },
    /// The driver refused.
    #[error("the driver refused to register {len} bytes: {reason}")]
    Driver {
        /// Bytes.
        len: u64,
        /// Message of the driver.
        reason: String,
    },
}
