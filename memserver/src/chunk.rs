//! Chunks: the spare memory of a region, given out in pieces of one size and taken back.
//!
//! ```text
//!              allocate(kind)                 publish
//!   fresh ────────────────────► held ───────────────────► published
//!                                │ ▲                       stays the tree's
//!             free, lease ends   ▼ │ allocate(same kind)
//!                          free, of its kind
//! ```
//!
//! **Kinds.** What a chunk is first used for it is used for always: leaves, internal nodes or records. Nodes of a chunk lie
//! at multiples of their size from its start. So a stale pointer, in a switch or a client, that led to a node leads to a node
//! of the same size for ever, or to a freed one: never into a record, never into the middle of another node.
//!
//! **Publishing.** A client publishes a chunk *before* it links the first of its nodes (or records) into the tree. From then
//! on the chunk is the tree's: it is not given out again, whatever becomes of the client. A chunk that was not published
//! holds nothing that anybody can reach; when its holder gives it back, or its lease ends, it goes to the free list of its
//! kind. A client that dies between publishing and linking loses the tree the rest of one chunk.
//!
//! How nodes within a chunk are given out is the client's affair.

use std::collections::BTreeSet;

use fatbtree_index::node::LINE;
use fatbtree_index::{ChunkKind, GlobalAddress, TreeConfig};

use crate::session::SessionKey;

/// A chunk as its holder is told of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Where it begins: a whole line.
    pub address: GlobalAddress,
    /// Its size; all chunks of a server have the same.
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Held(SessionKey),
    /// The tree's. Only to the session that has published it is this told.
    Published(SessionKey),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
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
}

/// Why a chunk stays what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChunkRefusal {
    /// Not a chunk of this session.
    NotHeld,
    /// It is the tree's.
    Published,
}

/// All chunks of a region. It knows offsets, no memory.
#[derive(Debug)]
pub(crate) struct ChunkTable {
    server: u16,
    /// Offset of the first chunk.
    from: u64,
    bytes: u64,
    chunks: u32,
    /// Chunks that were given out at least once; fresh ones follow.
    entries: Vec<Entry>,
    /// Free chunks, by kind.
    free: [BTreeSet<u32>; ChunkKind::ALL.len()],
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
        let chunks = u32::try_from(chunks).unwrap_or(u32::MAX);
        Ok(Self { server, from: spare.start, bytes, chunks, entries: Vec::new(), free: Default::default() })
    }

    /// A chunk that nobody has, for `holder`.
    pub(crate) fn allocate(&mut self, kind: ChunkKind, holder: SessionKey) -> Result<Chunk, NoChunk> {
        let used = self.entries.len() as u32;
        let index = match self.free[kind as usize].pop_first() {
            Some(index) => index,
            None if used < self.chunks => {
                self.entries.push(Entry { kind, state: State::Free });
                used
            }
            None => return Err(NoChunk { kind, chunks: self.chunks, used }),
        };
        self.entries[index as usize].state = State::Held(holder);
        Ok(Chunk { address: self.address(index), bytes: self.bytes, kind })
    }

    /// Makes a chunk the tree's; once more does no harm.
    pub(crate) fn publish(&mut self, address: GlobalAddress, holder: SessionKey) -> Result<(), ChunkRefusal> {
        let index = self.index(address).ok_or(ChunkRefusal::NotHeld)?;
        let state = &mut self.entries[index as usize].state;
        match *state {
            State::Held(found) | State::Published(found) if found == holder => {
                *state = State::Published(holder);
                Ok(())
            }
            _ => Err(ChunkRefusal::NotHeld),
        }
    }

    /// Takes a chunk back that was not published: from its holder, or because its session has ended.
    pub(crate) fn free(&mut self, address: GlobalAddress, holder: SessionKey) -> Result<(), ChunkRefusal> {
        let index = self.index(address).ok_or(ChunkRefusal::NotHeld)?;
        let Entry { kind, state } = &mut self.entries[index as usize];
        match *state {
            State::Held(found) if found == holder => {
                *state = State::Free;
                self.free[*kind as usize].insert(index);
                Ok(())
            }
            State::Published(found) if found == holder => Err(ChunkRefusal::Published),
            _ => Err(ChunkRefusal::NotHeld),
        }
    }

    pub(crate) fn counts(&self) -> ChunkCounts {
        let mut counts = ChunkCounts { all: self.chunks, ..ChunkCounts::default() };
        for entry in &self.entries {
            match entry.state {
                State::Free => counts.free += 1,
                State::Held(_) => counts.held += 1,
                State::Published(_) => counts.published += 1,
            }
        }
        counts
    }

    fn address(&self, index: u32) -> GlobalAddress {
        GlobalAddress::new(self.server, self.from + u64::from(index) * self.bytes)
    }

    fn index(&self, address: GlobalAddress) -> Option<u32> {
        let behind = address.offset().checked_sub(self.from)?;
        let index = u32::try_from(behind / self.bytes).ok()?;
        let known = (index as usize) < self.entries.len() && self.address(index) == address;
        known.then_some(index)
    }
}
