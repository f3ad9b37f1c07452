//! The bridge from [`Verbs`] to the NIC.
//!
//! A lookup takes its step while the bytes it read are still borrowed from the NIC's buffer, so it cannot
//! post to the NIC in the same breath. It posts into this one-read memo; the client carries it over once the
//! bytes are let go.

use fatbtree_index::{GlobalAddress, OpId, PostError, Verbs};

/// A read to be posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Address(GlobalAddress),
    Key { partition: u16, key: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) target: Target,
    pub(super) len: u32,
}

/// Takes the one read that a lookup posts per step.
#[derive(Debug, Default)]
pub(super) struct Memo(Option<Request>);

impl Memo {
    pub(super) fn take(&mut self) -> Option<Request> {
        self.0.take()
    }

    fn note(&mut self, target: Target, len: u32) -> Result<(), PostError> {
        debug_assert!(self.0.is_none(), "a lookup posts one read per step");
        self.0 = Some(Request { target, len });
        Ok(())
    }
}

impl Verbs for Memo {
    fn read(&mut self, _op: OpId, addr: GlobalAddress, len: u32) -> Result<(), PostError> {
        self.note(Target::Address(addr), len)
    }

    fn index_read(&mut self, _op: OpId, partition: u16, key: u64, len: u32) -> Result<(), PostError> {
        self.note(Target::Key { partition, key }, len)
    }
}
