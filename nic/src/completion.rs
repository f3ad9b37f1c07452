//! What became of posted requests.

use crate::QueuePairNumber;
use std::fmt;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
}

/// How a request ended. Anything but [`Success`](Self::Success) means that its queue pair is in the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompletionStatus {
    /// Done.
    Success,
    /// The responder refused rkey, range or right.
    RemoteAccessError,
    /// The responder found the request malformed or unsupported.
    RemoteInvalidRequest,
    /// The responder could not carry it out.
    RemoteOperationalError,
    /// No answer, however often it was sent.
    RetryExceeded,
    /// The queue pair failed before this request was done; whether it was carried out is unknown.
    WorkRequestFlushed,
}

impl fmt::Display for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CompletionStatus::Success => "success",
            CompletionStatus::RemoteAccessError => {
                "remote access error: check rkey, address and rights, then reconnect"
            }
            CompletionStatus::RemoteInvalidRequest => {
                "remote invalid request: check length and alignment, then reconnect"
            }
            CompletionStatus::RemoteOperationalError => {
                "remote operational error: the responder failed, reconnect"
            }
            CompletionStatus::RetryExceeded => {
                "retry count exceeded: the responder does not answer, check the path and reconnect"
            }
            CompletionStatus::WorkRequestFlushed => {
                "flushed: the queue pair failed before, reconnect and post again"
            }
        })
    }
}

/// A request that ended. Per queue pair they come in the order of posting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Where it was posted.
    pub qpn: QueuePairNumber,
    /// The identifier it was posted with.
    pub wr_id: u64,
    /// What it was.
    pub operation: Operation,
    /// How it ended.
    pub status: CompletionStatus,
    /// The bytes of a successful READ, otherwise empty. Give it back with [`Nic::recycle`](crate::Nic::recycle).
    pub data: Vec<u8>,
    /// What a successful atomic found in memory, otherwise 0.
    pub original: u64,
}

/// Buffers that are used again and again.
#[derive(Default)]
pub(crate) struct BufferPool {
    free: Vec<Vec<u8>>,
}

impl BufferPool {
    /// More than this many idle buffers are given back to the allocator.
    const LIMIT: usize = 1024;

    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.free.pop().unwrap_or_default()
    }

    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() > 0 && self.free.len() < BufferPool::LIMIT {
            buffer.clear();
            self.free.push(buffer);
        }
    }
}
