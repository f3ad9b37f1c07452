//! Blocks for what is written: from the allocator of the session, and back to it.

use fatbtree_remote_memory::record::next_record_version;
use fatbtree_remote_memory::{Block, ConnectionId, GlobalAddress, SizeClass, Want, Writer};
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
    /// Takes memory of a class, in the present session with a server. Waits for the server if it has to give more.
    pub(super) async fn take(
        &self,
        server: u16,
        class: SizeClass,
        bytes: u32,
        lane: u8,
    ) -> Result<(Writer, Block), Stop> {
        let want = Want { server, class, bytes, is_fresh: false };
        loop {
            let writer = self.writer(server, lane).await?;
            let taken = self.memory.with_allocator(server, &writer, |allocator| allocator.take(want));
            if let Some(Some(block)) = taken {
                return Ok((writer, block));
            }
            self.memory
                .until_memory(want)
                .await
                .map_err(|shortage| TableError::NoMemory { server, shortage })?;
        }
    }

    /// Takes a block for a value and fills it in this client's memory. A block that was taken before, for the same operation, is kept as
    /// long as its session lasts.
    pub(super) async fn prepare(
        &self,
        fresh: &mut Option<Fresh>,
        value: &[u8],
        server: u16,
        op: &mut Op,
    ) -> Result<(), Stop> {
        if let Some(kept) = fresh {
            let present = self.memory.writer(kept.at.server());
            let is_kept = present.is_ok_and(|present| present.owner == kept.writer.owner);
            if is_kept || !Check::KeptSession.on() {
                return Ok(());
            }
            // Nothing more is known of this block: the next session may have another region.
            self.recycle(fresh.take());
        }
        let too_long = || TableError::TooLong { found: value.len(), most: self.shape.max_value };
        let length = u32::try_from(value.len()).map_err(|_| too_long())?;
        if length > self.shape.max_value {
            return Err(too_long().into());
        }
        let bytes = block_bytes(length);
        let (writer, Block { address: at, version }) = self.take(server, BLOCKS, bytes, op.lane).await?;
        let version = match version {
            Some(version) => version,
            // Another client has freed it.
            None => {
                op.trips += 1;
                next_record_version(&self.memory.read(op.lane, at, 8).await?)
            }
        };
        let version = if Check::VersionGoesOn.on() { version } else { 1 };
        let place = Place::of(at).ok_or(TableError::OutOfReach { at })?;
        let units = block::slot_units(length);
        let slot = Slot::new(BlockPointer { fingerprint: op.hash.fingerprint(), units, version, place });
        let mut data = self.scratch.borrow_mut().pop().unwrap_or_default();
        block::write(&mut data, op.key, version, value);
        *fresh = Some(Fresh { writer, at, slot, version, bytes, data, is_written: false });
        Ok(())
    }

    /// Writes the block, if that was not done: a round trip.
    pub(super) async fn write_block(&self, fresh: &mut Fresh, op: &mut Op) -> Result<(), Stop> {
        if !fresh.is_written {
            let id = ConnectionId { server: fresh.at.server(), lane: op.lane };
            self.memory.chain(id, &fresh.writer, |rkey| [fresh.write(rkey)]).await?;
            op.trips += 1;
            fresh.is_written = true;
        }
        Ok(())
    }

    /// Gives back the block of an operation that did not link it.
    pub(super) fn discard(&self, fresh: Option<Fresh>) {
        if let Some(Fresh { writer, at, version, bytes, .. }) = &fresh {
            let next = if Check::DiscardedVersion.on() { version.wrapping_add(1) } else { *version };
            self.memory.put_back(writer, BLOCKS, *bytes, Block { address: *at, version: Some(next) });
        }
        self.recycle(fresh);
    }

    /// Frees a block that this operation has unlinked from a subtable on the server `led`.
    pub(super) fn free(&self, led: u16, writer: &Writer, pointer: BlockPointer, length: u32, version: u32) {
        let next = if Check::FreedVersion.on() { version.wrapping_add(1) } else { version };
        let block = Block { address: pointer.place.address(), version: Some(next) };
        if Check::Freed.on() {
            self.memory.put_back_after(led, writer, BLOCKS, block_bytes(length), block);
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
