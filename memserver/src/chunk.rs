//! Chunks: the spare memory of a region, given out in pieces of one size and taken back.
//!
//! ```text
//!              allocate(kind)                 publish                     its session ends
//!   fresh ────────────────────► held ───────────────────► published ───────────┬─────────────► the tree's: up to the last node
//!                                │ ▲                                           │
//!             free, lease ends   ▼ │ allocate(same kind)                       │ what is behind it was never written to
//!                          free, of its kind ◄─────────────────────────────────┘
//! ```
//!
//! **Kinds.** What a chunk is first used for it is used for always: leaves, internal nodes or records. Nodes of a chunk lie
//! at multiples of their size from its start. So a stale pointer, in a switch or a client, that led to a node leads to a node
//! of the same size for ever, or to a freed one: never into a record, never into the middle of another node.
//!
//! **Publishing.** A client publishes a chunk *before* it links the first of its nodes (or records) into the tree. From then
//! on what is written there is the tree's, whatever becomes of the client. A chunk that was not published
//! holds nothing that anybody can reach; when its holder gives it back, or its lease ends, it goes to the free list of its
//! kind.
//!
//! **Tails.** Clients use a chunk from its start. When a session has ended, its queue pairs are destroyed and nothing is written into
//! its chunks any more but where nodes are: what lies behind the last slot that holds a node, alive or freed, was never used, and is
//! given out again as a smaller chunk of the same kind. Of records it cannot be seen where the last one ends, for a value may end in
//! zeros: what is left of a chunk of records begins as far behind the last byte that is not zero as the largest record reaches.
//! A client whose session has ended must not use what it has left of its chunks.
//!
//! **Restarts.** Where the region outlives its server, a word for each chunk says its kind, written before the chunk is given out. A server
//! that is started again takes every such chunk for the tree's, and looks for its tail; nobody pays for it any more.
//!
//! **Room.** Where the region lies in a file, a chunk has its room on the disk before it is given out.
//!
//! How nodes within a chunk are given out is the client's affair; what becomes of single ones is told in `places`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;

use fatbtree_index::node::{LINE, MAGIC, NodeHeader};
use fatbtree_index::record::place_bytes;
use fatbtree_index::{ChunkKind, GlobalAddress, MAX_VALUE, TreeConfig};
use fatbtree_verbs::{Memory, ReserveError};

use crate::kinds::{ChunkKinds, DamagedKinds};
use crate::layout::{Layout, Loaded};
use crate::limits::ClientId;
use crate::session::SessionKey;

/// A chunk as its holder is told of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Where it begins: a whole line.
    pub address: GlobalAddress,
    /// Its size: the same of all chunks of a server, less of one that was used in part.
    pub bytes: u64,
    /// What may lie in it.
    pub kind: ChunkKind,
}

/// No chunk is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "no chunk is free for {kind}: of {chunks} chunks {used} were given out, and none of them for {kind} is free; load the server with \
     more spare bytes"
)]
pub struct NoChunk {
    /// For what it was wanted.
    pub kind: ChunkKind,
    /// Chunks of the region.
    pub chunks: u32,
    /// Chunks that have a kind.
    pub used: u32,
}

/// Chunks that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "chunks of {found} bytes: expected a multiple of {LINE}, at least {least}, the largest node of this tree"
)]
pub struct ChunkSize {
    /// What was asked for.
    pub found: u64,
    /// The least.
    pub least: u32,
}

/// No chunk can be given out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NoSupply {
    /// None is left.
    Chunk(NoChunk),
    /// There is one, but no room for it.
    Room(ReserveError),
}

/// Bytes of the table of chunk kinds ([`LoadedTree::chunk_kinds`](crate::LoadedTree::chunk_kinds)) of a tree with so many spare bytes.
#[must_use]
pub const fn chunk_kinds_bytes(spare_bytes: u64, chunk_bytes: u64) -> u64 {
    match spare_bytes.checked_div(chunk_bytes) {
        Some(chunks) => ChunkKinds::bytes(chunks),
        None => 0,
    }
}

/// Bytes from the last byte of a record that is not zero to the end of its place, at most.
const RECORD_REACH: u64 = place_bytes(MAX_VALUE) as u64;

/// The least rest of a chunk of records that is worth an answer.
const LEAST_RECORDS: u64 = 4096;

/// Bytes of memory that are looked at in one step.
const BLOCK: u64 = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Held(SessionKey),
    /// The tree's, and its session goes on.
    Published(SessionKey),
    /// The tree's: this client pays for it.
    Tree(ClientId),
    /// The tree's, from before the server was started.
    Former,
}

/// A chunk, or a part of one.
#[derive(Clone, Copy, Debug)]
struct Piece {
    bytes: u64,
    kind: ChunkKind,
    state: State,
}

/// How chunks are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ChunkCounts {
    pub(crate) all: u32,
    pub(crate) free: u32,
    pub(crate) held: u32,
    pub(crate) published: u32,
    /// Bytes of the region up to the first chunk, and of the chunks that are held or published.
    pub(crate) used_bytes: u64,
}

/// Why a chunk stays what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChunkRefusal {
    /// Not a chunk of this session.
    NotHeld,
    /// It is the tree's.
    Published,
}

/// A published chunk whose session has ended: everything from `to` on was looked at, and nothing was there.
#[derive(Clone, Copy, Debug)]
struct Ended {
    offset: u64,
    to: u64,
}

/// All chunks of a region.
#[derive(Debug)]
pub(crate) struct ChunkTable {
    server: u16,
    config: TreeConfig,
    /// Offset of the first chunk.
    from: u64,
    bytes: u64,
    chunks: u32,
    /// Chunks that were given out at least once; fresh ones follow.
    used: u32,
    /// By offset, side by side.
    pieces: BTreeMap<u64, Piece>,
    /// Free pieces, by kind.
    free: [BTreeSet<u64>; ChunkKind::ALL.len()],
    ended: VecDeque<Ended>,
    /// The kind of each chunk that was given out, where that outlives the server.
    kinds: Option<ChunkKinds>,
    /// Rests of published chunks that came back.
    pub(crate) tails: u64,
}

impl ChunkTable {
    pub(crate) fn new(
        server: u16,
        spare: &std::ops::Range<u64>,
        bytes: u64,
        config: &TreeConfig,
    ) -> Result<Self, ChunkSize> {
        let least = config.max_node_bytes();
        if bytes < u64::from(least) || !bytes.is_multiple_of(LINE as u64) {
            return Err(ChunkSize { found: bytes, least });
        }
        let chunks = spare.end.saturating_sub(spare.start) / bytes;
        Ok(Self {
            server,
            config: *config,
            from: spare.start,
            bytes,
            chunks: u32::try_from(chunks).unwrap_or(u32::MAX),
            used: 0,
            pieces: BTreeMap::new(),
            free: Default::default(),
            ended: VecDeque::new(),
            kinds: None,
            tails: 0,
        })
    }

    /// With the kinds of chunks that were given out before the server was started, and from now on.
    pub(crate) fn restored(mut self, kinds: Arc<Memory>, generation: u64) -> Result<Self, DamagedKinds> {
        let kinds = ChunkKinds::new(kinds, generation);
        for kind in kinds.given_out(self.chunks)? {
            let offset = self.from + u64::from(self.used) * self.bytes;
            self.pieces.insert(offset, Piece { bytes: self.bytes, kind, state: State::Former });
            self.ended.push_back(Ended { offset, to: self.bytes });
            self.used += 1;
        }
        self.kinds = Some(kinds);
        Ok(self)
    }

    /// A chunk that nobody has, for `holder`, with its room in `memory`.
    pub(crate) fn allocate(
        &mut self,
        memory: &Memory,
        kind: ChunkKind,
        holder: SessionKey,
    ) -> Result<Chunk, NoSupply> {
        let state = State::Held(holder);
        if let Some(offset) = self.free[kind as usize].pop_first()
            && let Some(piece) = self.pieces.get_mut(&offset)
        {
            piece.state = state;
            let bytes = piece.bytes;
            return Ok(Chunk { address: GlobalAddress::new(self.server, offset), bytes, kind });
        }
        if self.used == self.chunks {
            return Err(NoSupply::Chunk(NoChunk { kind, chunks: self.chunks, used: self.used }));
        }
        let (offset, bytes) = (self.from + u64::from(self.used) * self.bytes, self.bytes);
        // Chunks are given out in order, so that what lies before it has its room already. An index read may run over its end.
        let reach = u64::from(self.config.max_node_bytes());
        memory.reserve(offset + bytes + reach).map_err(NoSupply::Room)?;
        if let Some(kinds) = &self.kinds {
            kinds.note(self.used, kind);
        }
        self.used += 1;
        self.pieces.insert(offset, Piece { bytes, kind, state });
        Ok(Chunk { address: GlobalAddress::new(self.server, offset), bytes, kind })
    }

    /// Makes a chunk the tree's; once more does no harm.
    pub(crate) fn publish(&mut self, address: GlobalAddress, holder: SessionKey) -> Result<(), ChunkRefusal> {
        let (_, piece) = self.piece(address).ok_or(ChunkRefusal::NotHeld)?;
        match piece.state {
            State::Held(found) | State::Published(found) if found == holder => {
                piece.state = State::Published(holder);
                Ok(())
            }
            _ => Err(ChunkRefusal::NotHeld),
        }
    }

    /// Takes a chunk back that was not published: from its holder, or because its session has ended.
    pub(crate) fn free(&mut self, address: GlobalAddress, holder: SessionKey) -> Result<(), ChunkRefusal> {
        let (offset, piece) = self.piece(address).ok_or(ChunkRefusal::NotHeld)?;
        match piece.state {
            State::Held(found) if found == holder => {
                piece.state = State::Free;
                let kind = piece.kind;
                self.free[kind as usize].insert(offset);
                Ok(())
            }
            State::Published(found) if found == holder => Err(ChunkRefusal::Published),
            _ => Err(ChunkRefusal::NotHeld),
        }
    }

    /// The session of a published chunk has ended, and its queue pairs are gone: what it has not used comes back, when it was
    /// [looked at](Self::look).
    pub(crate) fn end(&mut self, address: GlobalAddress, client: ClientId) {
        if let Some((offset, piece)) = self.piece(address) {
            piece.state = State::Tree(client);
            let to = piece.bytes;
            self.ended.push_back(Ended { offset, to });
        }
    }

    /// Looks at up to `budget` slots, or blocks of records, of chunks whose sessions have ended. Returns the clients that pay for one
    /// chunk less from now on, and whether there is more to look at.
    pub(crate) fn look(&mut self, memory: &Memory, mut budget: usize) -> (Vec<ClientId>, bool) {
        let mut relieved = vec![];
        while let Some(&Ended { offset, to }) = self.ended.front() {
            let Some(&piece) = self.pieces.get(&offset) else {
                self.ended.pop_front();
                continue;
            };
            let (to, is_over) = match piece.kind {
                ChunkKind::Records => last_records(memory, offset, to, &mut budget),
                kind => {
                    let size = node_bytes(&self.config, kind);
                    last_node(memory, offset, to / size * size, size, &mut budget)
                }
            };
            if !is_over {
                self.ended[0].to = to;
                return (relieved, true);
            }
            self.ended.pop_front();
            relieved.extend(self.cut(offset, piece, to));
        }
        (relieved, false)
    }

    /// Divides a chunk where its used part ends. Returns who pays for one chunk less.
    fn cut(&mut self, offset: u64, piece: Piece, used: u64) -> Option<ClientId> {
        let client = match piece.state {
            State::Tree(client) => Some(client),
            State::Former => None,
            _ => return None,
        };
        let (used, least) = match piece.kind {
            ChunkKind::Records if used > 0 => (used + RECORD_REACH, LEAST_RECORDS),
            ChunkKind::Records => (0, 0),
            kind => (used, node_bytes(&self.config, kind)),
        };
        let rest = piece.bytes.saturating_sub(used);
        if rest > 0 && rest >= least {
            self.tails += 1;
            self.pieces.insert(offset + used, Piece { bytes: rest, state: State::Free, ..piece });
            self.free[piece.kind as usize].insert(offset + used);
            if used == 0 {
                return client;
            }
            self.pieces.insert(offset, Piece { bytes: used, ..piece });
        }
        // What one client has used of one chunk it pays for once.
        let (&before, left) = self.pieces.range(..offset).next_back()?;
        let begins_chunk = (offset - self.from).is_multiple_of(self.bytes);
        if begins_chunk || left.state != piece.state || self.ended.iter().any(|ended| ended.offset == before)
        {
            return None;
        }
        let bytes = self.pieces.remove(&offset)?.bytes;
        self.pieces.get_mut(&before)?.bytes += bytes;
        client
    }

    /// Where nodes and records may lie, beside those that were loaded.
    pub(crate) fn layout(&self, loaded: Loaded) -> Layout {
        Layout {
            config: self.config,
            loaded,
            chunks_from: self.from,
            chunk_bytes: self.bytes,
            kinds: self.kinds.clone(),
        }
    }

    /// Brings the kinds of chunks to the disk, where they outlive the server.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.kinds.as_ref().map_or(Ok(()), ChunkKinds::sync)
    }

    pub(crate) fn counts(&self) -> ChunkCounts {
        let mut counts = ChunkCounts { all: self.chunks, used_bytes: self.from, ..ChunkCounts::default() };
        for piece in self.pieces.values() {
            if !matches!(piece.state, State::Free) {
                counts.used_bytes += piece.bytes;
            }
            match piece.state {
                State::Free => counts.free += 1,
                State::Held(_) => counts.held += 1,
                State::Published(_) | State::Tree(_) | State::Former => counts.published += 1,
            }
        }
        counts
    }

    /// Whether all of these bytes are the tree's, and of one chunk of that kind; where that begins.
    pub(crate) fn published(&self, offset: u64, bytes: u64, kind: ChunkKind) -> Option<u64> {
        let (&from, piece) = self.pieces.range(..=offset).next_back()?;
        let fits = offset.checked_add(bytes)? <= from + piece.bytes;
        let is_tree = matches!(piece.state, State::Published(_) | State::Tree(_) | State::Former);
        (piece.kind == kind && is_tree && fits).then_some(from)
    }

    fn piece(&mut self, address: GlobalAddress) -> Option<(u64, &mut Piece)> {
        let offset = address.offset();
        let is_here = GlobalAddress::new(self.server, offset) == address;
        self.pieces.get_mut(&offset).filter(|_| is_here).map(|piece| (offset, piece))
    }
}

/// Bytes of a node of this kind.
pub(crate) fn node_bytes(config: &TreeConfig, kind: ChunkKind) -> u64 {
    match kind {
        ChunkKind::Leaves => config.leaf_bytes().into(),
        _ => config.internal_bytes().into(),
    }
}

/// The header of the node at an offset, if one lies there, alive or freed.
pub(crate) fn node_at(memory: &Memory, offset: u64) -> Option<NodeHeader> {
    let mut line = [0; LINE];
    memory.read(offset, &mut line).ok()?;
    let header = NodeHeader::parse(&line);
    (header.magic == MAGIC).then_some(header)
}

/// The end of the last node of a chunk below `to`, or how far it was looked at, and whether that is the answer.
fn last_node(memory: &Memory, chunk: u64, mut to: u64, size: u64, budget: &mut usize) -> (u64, bool) {
    while to >= size {
        if *budget == 0 {
            return (to, false);
        }
        *budget -= 1;
        if node_at(memory, chunk + to - size).is_some() {
            return (to, true);
        }
        to -= size;
    }
    (0, true)
}

/// The end of the last line of a chunk below `to` that is not zero, or how far it was looked at, and whether that is the answer.
fn last_records(memory: &Memory, chunk: u64, mut to: u64, budget: &mut usize) -> (u64, bool) {
    while to > 0 {
        if *budget == 0 {
            return (to, false);
        }
        *budget -= 1;
        let from = to.saturating_sub(BLOCK);
        let mut block = [0; BLOCK as usize];
        let block = &mut block[..(to - from) as usize];
        let read = memory.read(chunk + from, block).is_ok();
        if read && let Some(last) = block.iter().rposition(|&byte| byte != 0) {
            return (from + (last as u64 + 1).next_multiple_of(LINE as u64), true);
        }
        to = from;
    }
    (0, true)
}
