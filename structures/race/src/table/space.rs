//! Blocks for what is written: from the allocator of the session, and back to it.

use fatbtree_remote_memory::record::{MAX_VALUE, next_record_version};
use fatbtree_remote_memory::{Block, CommonError, GlobalAddress, Taken, Want, Writer};
use fatbtree_verbs::{Operation, Remote, Verbs};

use super::{Op, Table};
use crate::block::{self, block_bytes};
use crate::checks::Check;
use crate::error::{Stop, TableError};
use crate::layout::BLOCKS;
use crate::slot::{BlockPointer, Place, Slot};

/// A block that a mutation has filled, and that no committed slot leads to.
pub(super) struct Fresh {
    /// Identity under which it was taken: it is written in this session or not at all.
    pub(super) writer: Writer,
    pub(super) at: GlobalAddress,
    /// Its slot, when it counts.
    pub(super) slot: Slot,
    version: u32,
    /// Bytes of the block.
    bytes: u32,
    /// The record.
    pub(super) data: Vec<u8>,
    /// Whether the record lies in memory.
    pub(super) is_written: bool,
}

impl Fresh {
    /// The WRITE of the record.
    pub(super) fn write(&self, rkey: u32) -> Operation<'_> {
        Operation::Write { to: Remote { address: self.at.raw(), rkey }, data: &self.data }
    }
}

impl<V: Verbs> Table<V> {
    /// Takes a block for a value and fills it in this client's memory. A block that was taken before, for the same operation, is kept as
    /// long as its session lasts, and a slot of its server is to lead to it.
    ///
    /// A block is linked on its own server, in the session in which it was taken. So nothing links a block whose sessions have ended, also
    /// where other servers have sessions: a sweep over several servers relies on that. Only splits let slots lead to other servers.
    pub(super) async fn prepare(
        &self,
        fresh: &mut Option<Fresh>,
        value: &[u8],
        server: u16,
        op: &mut Op<'_>,
    ) -> Result<(), Stop> {
        if let Some(kept) = fresh {
            let present = self.memory.writer(kept.at.server());
            let is_kept = present.is_ok_and(|present| present.owner == kept.writer.owner);
            match is_kept || !Check::KeptSession.on() {
                true if kept.at.server() == server => return Ok(()),
                true if kept.is_written => self.discard(fresh.take()),
                // Nothing more is known of this block: a WRITE may be under way still, or the next session may have another region.
                _ => self.recycle(fresh.take()),
            }
        }
        let key = op.state.key;
        let longest = MAX_VALUE.saturating_sub(key.room() as u32).min(self.shape.max_value);
        if value.len() > longest as usize {
            return Err(CommonError::TooLong { found: value.len(), most: longest }.into());
        }
        let length = (key.room() + value.len()) as u32;
        let want = Want { server, class: BLOCKS, bytes: block_bytes(length), is_fresh: false };
        let spare: Result<_, Stop> = self.memory.take(op, want).await;
        let spare = spare?;
        let Block { address: at, version } = spare.taken.block;
        let version = match version {
            Some(version) => version,
            // Another client has freed it.
            None => next_record_version(&self.memory.read(&op.lane, at, 8).await?),
        };
        let version = if Check::VersionGoesOn.on() { version } else { 1 };
        let place = Place::of(at).ok_or(TableError::OutOfReach { at })?;
        let units = block::slot_units(length);
        let slot =
            Slot::new(BlockPointer { fingerprint: op.state.hash.fingerprint(), units, version, place });
        let mut data = self.scratch.borrow_mut().pop().unwrap_or_default();
        block::write(&mut data, key, version, value);
        let Taken { writer, bytes, .. } = spare.keep();
        *fresh = Some(Fresh { writer, at, slot, version, bytes, data, is_written: false });
        Ok(())
    }

    /// Gives back the block of an operation that did not link it.
    pub(super) fn discard(&self, fresh: Option<Fresh>) {
        if let Some(&Fresh { writer, at, version, bytes, .. }) = fresh.as_ref() {
            let next = if Check::DiscardedVersion.on() { version.wrapping_add(1) } else { version };
            let block = Block { address: at, version: Some(next) };
            self.memory.put_back(&Taken { writer, class: BLOCKS, bytes, block });
        }
        self.recycle(fresh);
    }

    /// Frees a block that this operation has unlinked from a subtable on the server `led`.
    pub(super) fn free(&self, led: u16, writer: &Writer, pointer: BlockPointer, length: u32, version: u32) {
        let next = if Check::FreedVersion.on() { version.wrapping_add(1) } else { version };
        let block = Block { address: pointer.place.address(), version: Some(next) };
        if Check::Freed.on() {
            let bytes = block_bytes(length);
            self.memory.put_back_after(led, &Taken { writer: *writer, class: BLOCKS, bytes, block });
        }
    }

    /// Keeps the bytes of a block for the next one.
    pub(super) fn recycle(&self, fresh: Option<Fresh>) {
        const KEPT: usize = 16;
        let mut scratch = self.scratch.borrow_mut();
        if let Some(fresh) = fresh
            && scratch.len() < KEPT
        {
            scratch.push(fresh.data);
        }
    }
}
