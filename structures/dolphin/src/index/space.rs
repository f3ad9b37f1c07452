//! Memory for what is new: from the allocator of the session, and back to it.
//!
//! ```text
//!   Room: blocks of one server ──► written ──► linked: they are the index's
//!           │ not linked           │
//!           ▼                      └─► its connection broke: doubtful, until the lane is connected anew
//!   the client's free blocks ◄─────────────────┘
//! ```
//!
//! A structure change has its room before it locks or freezes anything. What it does not link goes back.

use arrayvec::ArrayVec;
use fatbtree_remote_memory::record::next_record_version;
use fatbtree_remote_memory::{
    Block, CommonError, ConnectionId, GlobalAddress, LockError, Part, SizeClass, Spare, Taken, Trouble, Want,
    Writer,
};
use fatbtree_verbs::{Operation, Remote, Verbs};

use super::{Index, Op};
use crate::checks::Check;
use crate::entry::NodeSize;
use crate::error::{IndexError, Stop};
use crate::layout::{LEAVES, NODES, RECORDS};
use crate::leaf::LEAF_BYTES;
use crate::word::{self, Pointer, Word, place_bytes};

/// A block to which nothing leads, and which a WRITE on a broken connection may still change.
pub(super) struct Doubtful {
    id: ConnectionId,
    taken: Taken,
}

/// Blocks on one server that a structure change needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wants {
    pub(super) server: u16,
    /// Leaves, up to two.
    pub(super) leaves: usize,
    /// Size of an inner node.
    pub(super) node: Option<NodeSize>,
}

impl Wants {
    /// One leaf.
    pub(super) const fn leaf(server: u16) -> Self {
        Self { server, leaves: 1, node: None }
    }

    /// One inner node.
    pub(super) const fn node(server: u16, size: NodeSize) -> Self {
        Self { server, leaves: 0, node: Some(size) }
    }
}

/// Blocks on one server that a structure change has, all taken in one session.
pub(super) struct Room<'i, V: Verbs> {
    wants: Wants,
    writer: Writer,
    leaves: ArrayVec<Spare<'i, V>, 2>,
    node: Option<Spare<'i, V>>,
}

impl<'i, V: Verbs> Room<'i, V> {
    pub(super) const fn wants(&self) -> Wants {
        self.wants
    }

    pub(super) const fn writer(&self) -> &Writer {
        &self.writer
    }

    /// Address of a leaf, by its number.
    pub(super) fn leaf(&self, number: usize) -> Option<GlobalAddress> {
        self.leaves.get(number).map(|leaf| leaf.address())
    }

    /// Address of the inner node.
    pub(super) fn node(&self) -> Option<GlobalAddress> {
        self.node.as_ref().map(|node| node.address())
    }

    fn set_held(&mut self, is_held: bool) {
        self.leaves.iter_mut().chain(&mut self.node).for_each(|spare| spare.set_held(is_held));
    }

    /// Precedes the chain that links the blocks, or one under way in which they may be written.
    pub(super) fn hold(&mut self) {
        self.set_held(true);
    }

    /// Takes the outcome of the chain that was to link the blocks: if it was not posted nothing leads to them.
    pub(super) fn linked<T>(&mut self, outcome: Result<T, LockError>) -> Result<T, Stop> {
        use LockError::{Trouble as Because, Unknown};
        let may_be_done = match &outcome {
            Ok(_) => true,
            Err(Unknown(_) | Because(Trouble::Broke(_))) => Check::HoldsDoubtful.on(),
            Err(_) => false,
        };
        self.set_held(may_be_done);
        Ok(outcome?)
    }
}

impl<V: Verbs> Index<V> {
    /// Takes a block, in the present session with a server. Waits for the server if it has to give more, as long as the
    /// operation has patience.
    async fn take(&self, server: u16, class: SizeClass, bytes: u32, op: &Op) -> Result<Spare<'_, V>, Stop> {
        self.settle_doubts();
        self.memory.take(op, Want { server, class, bytes, is_fresh: false }).await
    }

    /// Takes blocks on a server. Nothing may be locked or frozen: the server may be away.
    pub(super) async fn room(&self, wants: Wants, op: &Op) -> Result<Room<'_, V>, Stop> {
        let Wants { server, leaves, node } = wants;
        let node = match node {
            Some(size) => Some(self.take(server, NODES, size.place_bytes(), op).await?),
            None => None,
        };
        let mut taken = ArrayVec::new();
        for _ in 0..leaves {
            taken.push(self.take(server, LEAVES, LEAF_BYTES as u32, op).await?);
        }
        let all = || taken.iter().chain(&node).map(|spare: &Spare<'_, V>| spare.taken.writer);
        let Some(writer) = all().next().filter(|first| all().all(|writer| writer.owner == first.owner))
        else {
            return Err(Stop::Later);
        };
        Ok(Room { wants, writer, leaves: taken, node })
    }

    /// Writes the blocks of a room, unborn, in the session in which they were taken.
    pub(super) async fn write_new(
        &self,
        room: &mut Room<'_, V>,
        parts: &[Part<'_>],
        op: &mut Op,
    ) -> Result<(), Stop> {
        let path = op.lane.to(room.wants.server);
        self.at_hand(path.id.server, op)?;
        // Also where the operation is dropped meanwhile.
        room.set_held(true);
        let written = self.memory.write_chain(path, &room.writer, parts, &[]).await;
        if let Err(Trouble::Broke(_)) = &written {
            let doubts = room
                .leaves
                .iter()
                .chain(&room.node)
                .map(|spare| Doubtful { id: path.id, taken: spare.taken });
            self.doubtful.borrow_mut().extend(doubts);
        } else {
            room.set_held(false);
        }
        Ok(written?)
    }

    /// Gives back blocks on whose connection nothing can come any more: its server has destroyed the former queue pair before
    /// it was connected anew.
    fn settle_doubts(&self) {
        let mut doubtful = self.doubtful.borrow_mut();
        doubtful.retain(|Doubtful { id, taken }| {
            let is_settled = self.memory.link(*id).is_ok();
            if is_settled {
                self.memory.put_back(taken);
            }
            !is_settled
        });
    }

    /// Frees a leaf that this operation has unlinked, in the session in which it was.
    pub(super) fn free_leaf(&self, writer: &Writer, at: GlobalAddress) {
        let block = Block { address: at, version: None };
        self.memory.put_back(&Taken { writer: *writer, class: LEAVES, bytes: LEAF_BYTES as u32, block });
    }

    /// Frees an inner node that this operation has unlinked from a node on the server `led`, in the session in which it was.
    pub(super) fn free_node(&self, led: u16, writer: &Writer, size: NodeSize, at: GlobalAddress) {
        let block = Block { address: at, version: None };
        let bytes = size.place_bytes();
        self.memory.put_back_after(led, &Taken { writer: *writer, class: NODES, bytes, block });
    }

    /// The record of a word that an operation will replace, for [`free_record`](Self::free_record) afterwards: in the
    /// session that the client has now with the record's server. That is another server than the leaf's where a burst has moved
    /// the leaf.
    pub(super) fn record_of(&self, word: Word) -> Option<Taken> {
        let Pointer { at, bytes, .. } = self.pointer(word)?;
        let writer = self.memory.writer(at.server()).ok()?;
        // The next version follows from what lies there.
        Some(Taken { writer, class: RECORDS, bytes, block: Block { address: at, version: None } })
    }

    /// Frees a record that this operation has unlinked from a leaf on the server `led`.
    pub(super) fn free_record(&self, led: u16, record: Option<Taken>) {
        if let Some(record) = record {
            self.memory.put_back_after(led, &record);
        }
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
    ) -> Result<Option<Fresh<'_, V>>, Stop> {
        let bytes = place_bytes(value.len() as u32);
        let want = Want { server, class: RECORDS, bytes, is_fresh: false };
        let Some(mut spare) = self.memory.take_at_hand(writer, want) else { return Ok(None) };
        let at = spare.address();
        let version = match spare.taken.block.version {
            Some(version) => version,
            // Another client has freed it.
            None => next_record_version(&self.read(at, 8, op).await?),
        };
        let version = if Check::VersionGoesOn.on() { version } else { 1 };
        spare.taken.block.version = Some(version.wrapping_add(1));
        let word = Word::of_record(Pointer { at, bytes, version }).ok_or(IndexError::OutOfReach { at })?;
        let mut data = Vec::new();
        word::write(&mut data, op.key, version, value);
        Ok(Some(Fresh { spare, data, word }))
    }

    /// Waits until there is room for the record of a value.
    pub(super) async fn until_room(&self, server: u16, value: &[u8], op: &Op) -> Result<(), Stop> {
        let bytes = place_bytes(value.len() as u32);
        let want = Want { server, class: RECORDS, bytes, is_fresh: false };
        let waited = self.patiently(op, self.memory.until_memory(want)).await?;
        waited.map_err(|shortage| CommonError::NoMemory { server, shortage }.into())
    }
}

/// A record that no leaf leads to yet. Dropped, its place is free again.
pub(super) struct Fresh<'i, V: Verbs> {
    spare: Spare<'i, V>,
    data: Vec<u8>,
    pub(super) word: Word,
}

impl<V: Verbs> Fresh<'_, V> {
    /// The WRITE of the record.
    pub(super) fn write(&self, rkey: u32) -> Operation<'_> {
        Operation::Write { to: Remote { address: self.spare.address().raw(), rkey }, data: &self.data }
    }

    /// Precedes the chain that writes the record and links it.
    pub(super) fn hold(&mut self) {
        self.spare.set_held(true);
    }

    /// Notes that no leaf leads to it, and no WRITE of it is under way.
    pub(super) fn release(&mut self) {
        self.spare.set_held(false);
    }
}
