//! Memory for what is new: from the allocator of the session, and back to it.

use fatbtree_remote::record::next_record_version;
use fatbtree_remote::{Block, GlobalAddress, SizeClass, Want, Writer};
use fatbtree_verbs::{Operation, Remote, Verbs};

use super::{Index, Op};
use crate::checks::Check;
use crate::entry::NodeSize;
use crate::error::{IndexError, Stop};
use crate::layout::{LEAVES, NODES, RECORDS};
use crate::leaf::LEAF_BYTES;
use crate::word::{self, Pointer, Word, place_bytes};

/// A record that no leaf leads to yet.
pub(super) struct Fresh {
    writer: Writer,
    at: GlobalAddress,
    version: u32,
    /// Bytes of its place.
    bytes: u32,
    data: Vec<u8>,
    pub(super) word: Word,
}

impl Fresh {
    /// The WRITE of the record.
    pub(super) fn write(&self, rkey: u32) -> Operation<'_> {
        Operation::Write { to: Remote { address: self.at.raw(), rkey }, data: &self.data }
    }

    /// Whether it lies on a server, in a session.
    pub(super) fn is_of(&self, server: u16, writer: &Writer) -> bool {
        self.at.server() == server && self.writer.owner == writer.owner
    }
}

impl<V: Verbs> Index<V> {
    /// Takes memory of a class, in the present session with a server. Waits for the server if it has to
    /// give more.
    async fn take(
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
                .map_err(|shortage| IndexError::NoMemory { server, shortage })?;
        }
    }

    pub(super) async fn take_leaf(&self, server: u16, op: &Op) -> Result<(Writer, GlobalAddress), Stop> {
        let (writer, block) = self.take(server, LEAVES, LEAF_BYTES as u32, op.lane).await?;
        Ok((writer, block.address))
    }

    pub(super) async fn take_node(
        &self,
        server: u16,
        size: NodeSize,
        op: &Op,
    ) -> Result<(Writer, GlobalAddress), Stop> {
        let (writer, block) = self.take(server, NODES, size.place_bytes(), op.lane).await?;
        Ok((writer, block.address))
    }

    /// Gives memory back that the client has taken, or that nothing leads to any more, in the session
    /// of `writer`. What is of a session that has ended is left alone.
    fn put_back(&self, writer: &Writer, class: SizeClass, bytes: u32, block: Block) {
        let server = block.address.server();
        let _ended =
            self.memory.with_allocator(server, writer, |allocator| allocator.put_back(class, bytes, block));
    }

    pub(super) fn free_leaf(&self, writer: &Writer, at: GlobalAddress) {
        self.put_back(writer, LEAVES, LEAF_BYTES as u32, Block { address: at, version: None });
    }

    pub(super) fn free_node(&self, writer: &Writer, size: NodeSize, at: GlobalAddress) {
        self.put_back(writer, NODES, size.place_bytes(), Block { address: at, version: None });
    }

    /// The word of a value, if it needs no record.
    pub(super) fn word_of(&self, value: &[u8]) -> Result<Option<Word>, IndexError> {
        Word::of_value(value, self.shape())
    }

    /// Takes a place for the record of a value on a server, if the client has one at hand. `None`:
    /// [`until_room`](Self::until_room).
    pub(super) async fn new_record(
        &self,
        server: u16,
        writer: &Writer,
        value: &[u8],
        op: &mut Op,
    ) -> Result<Option<Fresh>, Stop> {
        let bytes = place_bytes(value.len() as u32);
        let want = Want { server, class: RECORDS, bytes, is_fresh: false };
        let taken = self.memory.with_allocator(server, writer, |allocator| allocator.take(want));
        let Some(Some(Block { address: at, version })) = taken else { return Ok(None) };
        let version = match version {
            Some(version) => version,
            // Another client has freed it.
            None => next_record_version(&self.read(at, 8, op).await?),
        };
        let version = if Check::VersionGoesOn.on() { version } else { 1 };
        let word = Word::of_record(Pointer { at, bytes, version }).ok_or(IndexError::OutOfReach { at })?;
        let mut data = Vec::new();
        word::write(&mut data, op.key, version, value);
        Ok(Some(Fresh { writer: *writer, at, version, bytes, data, word }))
    }

    /// Waits until there is room for the record of a value.
    pub(super) async fn until_room(&self, server: u16, value: &[u8]) -> Result<(), Stop> {
        let bytes = place_bytes(value.len() as u32);
        let want = Want { server, class: RECORDS, bytes, is_fresh: false };
        let waited = self.memory.until_memory(want).await;
        waited.map_err(|shortage| IndexError::NoMemory { server, shortage }.into())
    }

    /// Gives back a record that was not linked.
    pub(super) fn discard(&self, fresh: Option<Fresh>) {
        if let Some(Fresh { writer, at, version, bytes, .. }) = fresh {
            let block = Block { address: at, version: Some(version.wrapping_add(1)) };
            self.put_back(&writer, RECORDS, bytes, block);
        }
    }

    /// Frees the record of a word that this operation has replaced. The next version follows from what
    /// lies there.
    pub(super) fn free_record(&self, writer: &Writer, word: Word) {
        if let Some(Pointer { at, bytes, .. }) = self.pointer(word) {
            self.put_back(writer, RECORDS, bytes, Block { address: at, version: None });
        }
    }
}
