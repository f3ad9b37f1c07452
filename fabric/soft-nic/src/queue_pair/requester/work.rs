//! Requests in the send queue.

use crate::{Psn, atomic};
use fatbtree_verbs::{
    Buffer, BufferPool, IndexTarget, Message, Operation, Output, PostError, Remote, WorkRequest,
};
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
    /// A WRITE or a SEND. The data is kept, because it may have to be sent again.
    Push(Push),
    /// Atomic in its wire format.
    Atomic { opcode: Opcode, extension: Extension },
}

/// What is brought to the other side.
pub(super) struct Push {
    /// Place in its memory; none: it is a SEND.
    pub(super) to: Option<Remote>,
    pub(super) length: u32,
    pub(super) data: Data,
    pub(super) immediate: Option<u32>,
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
            Operation::Write { to, data } => Ok(Task::Push(Push::new(Some(to), data, None, pool, longest)?)),
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
            Task::Read { reth, .. } => reth.length,
            Task::Push(push) => push.length,
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
            Task::Push(_) => Output::Written,
            Task::Atomic { .. } => Output::Atomic(original),
        }
    }
}

impl Push {
    #[inline]
    fn new(
        to: Option<Remote>,
        data: &[u8],
        immediate: Option<u32>,
        pool: &BufferPool,
        longest: u64,
    ) -> Result<Push, PostError> {
        let length = data.len() as u32;
        let data = if data.len() <= INLINE_BYTES {
            let mut bytes = [0; INLINE_BYTES];
            bytes[..data.len()].copy_from_slice(data);
            Data::Inline(bytes)
        } else {
            let mut buffer = buffer(pool, data.len() as u64, longest)?;
            buffer.extend(data);
            Data::Pooled(buffer)
        };
        Ok(Push { to, length, data, immediate })
    }

    pub(super) fn of_message(
        message: &Message<'_>,
        pool: &BufferPool,
        longest: u64,
    ) -> Result<Push, PostError> {
        match *message {
            Message::Send { data, immediate } => Push::new(None, data, immediate, pool, longest),
            Message::Write { to, data, immediate } => {
                Push::new(Some(to), data, Some(immediate), pool, longest)
            }
        }
    }

    /// Opcode and extended headers of a packet.
    #[inline]
    pub(super) fn header(&self, is_first: bool, is_last: bool) -> (Opcode, Extension) {
        let Push { to, length, immediate, .. } = self;
        let reth = to.map(|to| Reth { va: to.address, rkey: to.rkey, length: *length });
        match (reth, is_first, is_last, immediate) {
            (Some(reth), true, true, None) => (Opcode::RC_RDMA_WRITE_ONLY, Extension::Reth(reth)),
            (Some(reth), true, true, Some(word)) => {
                (Opcode::RC_RDMA_WRITE_ONLY_IMMEDIATE, Extension::RethImmediate(reth, *word))
            }
            (Some(reth), true, false, _) => (Opcode::RC_RDMA_WRITE_FIRST, Extension::Reth(reth)),
            (Some(_), false, false, _) => (Opcode::RC_RDMA_WRITE_MIDDLE, Extension::None),
            (Some(_), false, true, None) => (Opcode::RC_RDMA_WRITE_LAST, Extension::None),
            (Some(_), false, true, Some(word)) => {
                (Opcode::RC_RDMA_WRITE_LAST_IMMEDIATE, Extension::Immediate(*word))
            }
            (None, true, true, None) => (Opcode::RC_SEND_ONLY, Extension::None),
            (None, true, true, Some(word)) => (Opcode::RC_SEND_ONLY_IMMEDIATE, Extension::Immediate(*word)),
            (None, true, false, _) => (Opcode::RC_SEND_FIRST, Extension::None),
            (None, false, false, _) => (Opcode::RC_SEND_MIDDLE, Extension::None),
            (None, false, true, None) => (Opcode::RC_SEND_LAST, Extension::None),
            (None, false, true, Some(word)) => (Opcode::RC_SEND_LAST_IMMEDIATE, Extension::Immediate(*word)),
        }
    }
}

#[inline]
pub(crate) fn buffer(pool: &BufferPool, len: u64, longest: u64) -> Result<Buffer, PostError> {
    if len > longest {
        return Err(PostError::TooLong { found: len, limit: longest });
    }
    pool.take(len).ok_or(PostError::NoBuffer { len })
}

impl Work {
    /// Whether the request takes one of the responder's resources while it is outstanding.
    #[inline]
    pub(super) fn takes_resource(&self) -> bool {
        !matches!(self.task, Task::Push(_))
    }

    /// Whether it takes a place for a message at the other side.
    pub(super) fn takes_place(&self) -> bool {
        matches!(&self.task, Task::Push(push) if push.to.is_none() || push.immediate.is_some())
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
