//! The one-sided operations a tree needs, and nothing about who carries them out.

use crate::address::GlobalAddress;

/// Names an operation: whoever posts a read gives it, the completion carries it back.
///
/// Owners that reuse operations put a generation into it, so that a completion that comes late (after a queue pair
/// failed, say) is not fed to the next one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OpId(pub u64);

/// Posts one-sided operations; completions come back to the owner, who feeds them to the operation named.
///
/// Nothing here waits. Each call that returns `Ok` is answered by exactly one completion: the bytes read, or a
/// [`ReadFailure`].
pub trait Verbs {
    /// Posts an RDMA READ of `len` bytes at `addr`; the server follows from the address.
    ///
    /// # Errors
    /// When it could not be posted; then no completion will come.
    fn read(&mut self, op: OpId, addr: GlobalAddress, len: u32) -> Result<(), PostError>;

    /// Posts an index read: an RDMA READ to the server of `partition` with `rkey = 0` and the key where the address
    /// would be. It is answered with some node on the way to `key`; the node says itself where it lives.
    ///
    /// # Errors
    /// When it could not be posted; then no completion will come.
    fn index_read(&mut self, op: OpId, partition: u16, key: u64, len: u32) -> Result<(), PostError>;
}

/// Why an operation could not be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// As many operations are under way as the queue pair allows: post again after a completion.
    #[error("send queue to memory server {server} is full: post again after a completion")]
    QueueFull {
        /// The memory server.
        server: u16,
    },
    /// No queue pair, or one in the error state.
    #[error("no working connection to memory server {server}: connect, then restart the operation")]
    NotConnected {
        /// The memory server.
        server: u16,
    },
    /// The bytes would not fit in the buffer that the owner has for an answer.
    #[error(
        "read of {len} bytes at {address}, at most {max} bytes can be received: register a larger buffer"
    )]
    TooLong {
        /// Address to read from; for an index read its key.
        address: GlobalAddress,
        /// Bytes asked for.
        len: u32,
        /// Bytes there is room for.
        max: u32,
    },
}

/// How a read that was posted failed. The queue pair is in the error state after each of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadFailure {
    /// The server refused address, length or rkey: NAK "remote access error" (IBTA vol. 1 §9.7.5.2.4).
    #[error("the memory server refused the access (NAK: remote access error)")]
    RemoteAccess,
    /// Nobody answered.
    #[error("no answer within the allowed retries")]
    RetryExceeded,
    /// The queue pair failed for another operation's sake, or was torn down.
    #[error("flushed: the queue pair failed before this operation was done")]
    Flushed,
    /// Anything else.
    #[error("the operation failed at the network card")]
    Other,
}
