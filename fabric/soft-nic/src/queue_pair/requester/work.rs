//! Requests in the send queue.

use crate::{Psn, atomic};
use fatbtree_verbs::{Buffer, BufferPool, IndexTarget, Operation, Output, PostError, Remote, WorkRequest};
use fatbtree_wire::{Extension, Opcode, Reth};

/// Longest message in bytes. Any path MTU can number its packets; it is half of what the specification allows (IBTA
/// volume 1, section 9.7.1).
pub(crate) const LONGEST_MESSAGE: u64 = 1 << 30;

/// Longest WRITE in bytes whose data lies in the send queue itself; a longer one's lies in a buffer of the pool.
pub(crate) const INLINE_BYTES: usize = 64;

/// A request that was posted.
pub(super) struct Work {
    pub(super) tag: u64,
    pub(super) signalled: bool,
    pub(super) first_psn: Psn,
    /// Number of PSNs of the request: packets of the request (WRITE) or of the response (READ), at least 1.
    pub(super) packets: u32,
    /// Number of packets acknowledged (WRITE) or received (READ).
    pub(super) done: u32,
    pub(super) task: Task,
}

pub(super) enum Task {
    /// A READ. The buffer holds the bytes received so far; it is there until the READ is complete.
    Read { reth: Reth, buffer: Option<Buffer> },
    /// A WRITE. The data is kept, because it may have to be sent again.
    Write { reth: Reth, data: Data },
    /// Atomic in its wire format.
    Atomic { opcode: Opcode, extension: Extension },
}

pub(super) enum Data {
    Inline([u8; INLINE_BYTES]),
    Pooled(Buffer),
}

impl Task {
    /// Checks a request and takes the buffer that it needs.
    #[inline]
    pub(super) fn new(
        request: &WorkRequest<'_>,
        pool: &BufferPool,
        mtu: usize,
        longest: u64,
    ) -> Result<Task, PostError> {
        match request.operation {
            Operation::Read { from, len } => Task::read(from, len, pool, mtu, longest),
            Operation::IndexRead { key, len, target } => {
                Task::read(Remote { address: key, rkey: target.rkey() }, len, pool, mtu, longest)
            }
            Operation::Write { to, data } => {
                let reth = Reth { va: to.address, rkey: to.rkey, length: data.len() as u32 };
                if data.len() <= INLINE_BYTES {
                    let mut bytes = [0; INLINE_BYTES];
                    bytes[..data.len()].copy_from_slice(data);
                    return Ok(Task::Write { reth, data: Data::Inline(bytes) });
                }
                let mut buffer = buffer(pool, data.len() as u64, longest)?;
                buffer.extend(data);
                Ok(Task::Write { reth, data: Data::Pooled(buffer) })
            }
            ref other => {
                if let Some(address) = other.atomic_address()
                    && !address.is_multiple_of(8)
                {
                    return Err(PostError::Misaligned { address });
                }
                let (opcode, extension) = atomic::to_wire(other).expect(
                    "what is neither a READ nor a WRITE is an atomic, and each has a form on the wire",
                );
                Ok(Task::Atomic { opcode, extension })
            }
        }
    }

    #[inline]
    fn read(from: Remote, len: u32, pool: &BufferPool, mtu: usize, longest: u64) -> Result<Task, PostError> {
        // For all operations: these rkeys make the address a key, and a READ that is resumed has another address.
        if IndexTarget::of_rkey(from.rkey).is_some() && len as usize > mtu {
            return Err(PostError::IndexReadTooLong { found: len, limit: mtu as u32 });
        }
        let buffer = buffer(pool, u64::from(len), longest)?;
        let reth = Reth { va: from.address, rkey: from.rkey, length: len };
        Ok(Task::Read { reth, buffer: Some(buffer) })
    }

    /// Bytes of the message that PSNs are counted by.
    pub(super) fn length(&self) -> u32 {
        match self {
            Task::Read { reth, .. } | Task::Write { reth, .. } => reth.length,
            Task::Atomic { .. } => 8,
        }
    }

    /// Output of a successful request, taken once; `original` is the value that an atomic found.
    #[inline]
    pub(super) fn output(&mut self, original: u64) -> Output {
        match self {
            Task::Read { buffer, .. } => {
                Output::Read(buffer.take().expect("a READ has its buffer until it is complete, once"))
            }
            Task::Write { .. } => Output::Written,
            Task::Atomic { .. } => Output::Atomic(original),
        }
    }
}

#[inline]
fn buffer(pool: &BufferPool, len: u64, longest: u64) -> Result<Buffer, PostError> {
    if len > longest {
        return Err(PostError::TooLong { found: len, limit: longest });
    }
    pool.take(len).ok_or(PostError::NoBuffer { len })
}

impl Work {
    /// Whether the request takes one of the responder's resources while it is outstanding.
    #[inline]
    pub(super) fn takes_resource(&self) -> bool {
        !matches!(self.task, Task::Write { .. })
    }

    /// PSN after the last one of the request.
    #[inline]
    pub(super) fn end(&self) -> Psn {
        self.first_psn.plus(self.packets)
    }
}

impl Data {
    /// Bytes `from..to`, which must be there.
    #[inline]
    pub(super) fn part(&self, from: usize, to: usize) -> &[u8] {
        match self {
            Data::Inline(bytes) => &bytes[from..to],
            Data::Pooled(buffer) => &buffer[from..to],
        }
    }
}
