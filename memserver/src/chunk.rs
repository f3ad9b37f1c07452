//! Chunks: the spare memory of a region, divided into pieces of one size. Clients get parts of them, and give them back.
//!
//! ```text
//!            allocate(class)            its session ends
//!   fresh ──────────────────► held ───────────┬───────────► the structure's: what blocks lie in
//!                              ▲              │
//!         allocate(same class) │              │ what was never written to
//!                          free, of its class ◄┘
//! ```
//!
//! **Classes.** A chunk keeps its first class for ever: blocks of another class never lie in it. Blocks of one size lie at multiples of it
//! from the chunk's start. So a stale pointer, in a switch or a client, that led to such a block leads for ever to a block of the same
//! size, or to a freed one. The pointer never leads to a block of another class or into the middle of another block.
//!
//! **Parts.** The first part of a chunk that a session gets for a class is small ([`FIRST_PART`]). Each further one is as large as all before it
//! together, up to a chunk. So a session that writes little holds little, and one that writes much asks seldom. Parts of
//! different sessions lie in one chunk; free memory between them is one piece again when both sides are free.
//!
//! A part is the structure's from the beginning, whatever becomes of the client. One of which the client could not be told is free again.
//!
//! **Rests.** Clients use a part from its start. When a session has ended, its queue pairs are destroyed and nothing is written into
//! its parts any more but where blocks are that others know. The [tenant](crate::Tenant::find) tells block by block what was written;
//! everything else is free again. A client whose session has ended must not use what it has left of its parts.
//!
//! **Restarts.** Where the region outlives its server, a word for each chunk says its class, written before
//! the chunk is given out. On restart all such chunks belong to the structure and are charged to no client; what was never written in
//! them is found, as above, before the first session.
//!
//! **Room.** Where the region lies in a file, a chunk has its room on the disk before it is given out.
//!
//! A client divides its parts into blocks as it likes. Single blocks that clients have freed are the subject of `free_blocks`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use fatbtree_remote_memory::record::RECORD_ALIGN;
use fatbtree_remote_memory::session_keeper::Chunk;
use fatbtree_remote_memory::{GlobalAddress, SizeClass};
use fatbtree_verbs::{Memory, ReserveError};

use crate::chunk_classes::{ChunkClasses, DamagedClasses, MAX_CLASSES};
use crate::layout::{Class, Layout};
use crate::limits::ClientId;
use crate::session::SessionKey;
use crate::tenant::{Found, Shape, Tenant};

/// No chunk is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "no chunk is free for {class}: of {chunks} chunks {used} were given out, and none of them for {class} is free; load the server with \
     more spare bytes"
)]
pub struct NoChunk {
    /// Name of the size class that was wanted.
    pub class: &'static str,
    /// Chunks of the region.
    pub chunks: u32,
    /// Chunks that have a class.
    pub used: u32,
}

/// No such size class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the server's structure has no {class}: expected a number below {classes}")]
pub struct NoClass {
    /// The requested class.
    pub class: SizeClass,
    /// Number of classes.
    pub classes: usize,
}

/// Chunks that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "chunks of {found} bytes: expected a multiple of {LINE}, at least {least}, the largest block of this structure"
)]
pub struct ChunkSize {
    /// The requested value.
    pub found: u64,
    /// The least.
    pub least: u32,
}

/// No chunk can be given out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NoGrant {
    /// None is left.
    Chunk(NoChunk),
    /// There is a chunk, but no room for it.
    Room(ReserveError),
    /// The structure has no such size class.
    Class(NoClass),
}

/// Bytes of the table of chunk classes ([`Loaded::chunk_classes`](crate::Loaded::chunk_classes)) of a region with this much spare memory.
#[must_use]
pub const fn chunk_classes_bytes(spare_bytes: u64, chunk_bytes: u64) -> u64 {
    match spare_bytes.checked_div(chunk_bytes) {
        Some(chunks) => ChunkClasses::bytes(chunks),
        None => 0,
    }
}

/// Chunks begin at multiples of this many bytes.
const LINE: u64 = 64;

/// Bytes of the first part of a session: 64 leaves, or 512 records of 100 bytes. A thousand sessions that use three classes hold 188 MiB.
pub(crate) const FIRST_PART: u64 = 64 << 10;

/// Bytes of a free piece for which no fresh chunk is begun, or a quarter of what is wished: smaller ones serve when no chunk is left.
const WORTH: u64 = 16 << 10;

/// The least free piece for blocks of several sizes, beside which nothing is free.
const LEAST_OF_SEVERAL: u64 = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    /// The structure's, and this session writes to it.
    Held(SessionKey),
    /// The structure's, and its session has ended: this client pays for it.
    Tree(ClientId),
    /// The structure's, from before the server was started.
    Former,
}

/// A chunk, or a part of one.
#[derive(Clone, Copy, Debug)]
struct Piece {
    bytes: u64,
    class: SizeClass,
    state: State,
}

/// Use of chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ChunkCounts {
    pub(crate) all: u32,
    /// Free pieces.
    pub(crate) free: u32,
    /// Parts that were given out.
    pub(crate) given: u32,
    /// Those of them whose sessions live.
    pub(crate) held: u32,
    /// Bytes of the region up to the first chunk, and of the parts that were given out.
    pub(crate) used_bytes: u64,
    /// Bytes of free pieces, and of chunks that were never given out.
    pub(crate) free_bytes: u64,
    /// Bytes of parts whose sessions live.
    pub(crate) held_bytes: u64,
}

/// A part whose session has ended, or a chunk from before the server was started: up to `at` it was looked at.
#[derive(Clone, Debug)]
struct Ended {
    part: Range<u64>,
    at: u64,
    /// Where the unwritten memory begins in which `at` lies.
    gap: Option<u64>,
}

impl Ended {
    fn new(offset: u64, bytes: u64) -> Self {
        Self { part: offset..offset + bytes, at: offset, gap: None }
    }
}

/// The part that an [allocation](ChunkTable::allocate) is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PartWanted {
    pub(crate) class: SizeClass,
    /// Bytes of one block, if the client has told.
    pub(crate) least: u64,
    /// Bytes that are worth having.
    pub(crate) wished: u64,
}

/// All chunks of a region.
#[derive(Debug)]
pub(crate) struct ChunkTable {
    server: u16,
    classes: Arc<[Class]>,
    /// Bytes of an index read.
    reach: u64,
    /// Offset of the first chunk.
    from: u64,
    bytes: u64,
    chunks: u32,
    /// Chunks that were given out at least once; fresh ones follow.
    used: u32,
    /// Pieces by offset, side by side.
    pieces: BTreeMap<u64, Piece>,
    /// Bytes and offsets of free pieces, by class.
    free: Vec<BTreeSet<(u64, u64)>>,
    ended: VecDeque<Ended>,
    /// The class of each chunk that was given out, where that outlives the server.
    given_out: Option<ChunkClasses>,
    /// Unwritten memory of parts that came back, in pieces.
    pub(crate) tails: u64,
}

impl ChunkTable {
    pub(crate) fn new(
        server: u16,
        spare: &std::ops::Range<u64>,
        bytes: u64,
        shape: &Shape,
    ) -> Result<Self, ChunkSize> {
        let largest = shape.classes.iter().map(|class| class.bytes).max().unwrap_or(0);
        let least = largest.max(shape.reach);
        if bytes < u64::from(least).max(LINE) || !bytes.is_multiple_of(LINE) {
            return Err(ChunkSize { found: bytes, least });
        }
        assert!(shape.classes.len() <= MAX_CLASSES, "a structure has up to {MAX_CLASSES} size classes");
        let chunks = spare.end.saturating_sub(spare.start) / bytes;
        Ok(Self {
            server,
            classes: shape.classes.as_slice().into(),
            reach: shape.reach.into(),
            from: spare.start,
            bytes,
            chunks: u32::try_from(chunks).unwrap_or(u32::MAX),
            used: 0,
            pieces: BTreeMap::new(),
            free: vec![BTreeSet::new(); shape.classes.len()],
            ended: VecDeque::new(),
            given_out: None,
            tails: 0,
        })
    }

    /// With the classes of chunks that were given out before the server was started, and from now on.
    pub(crate) fn restored(mut self, classes: Arc<Memory>, generation: u64) -> Result<Self, DamagedClasses> {
        let classes = ChunkClasses::new(classes, generation);
        for class in classes.given_out(self.chunks, self.classes.len())? {
            let offset = self.from + u64::from(self.used) * self.bytes;
            self.pieces.insert(offset, Piece { bytes: self.bytes, class, state: State::Former });
            self.ended.push_back(Ended::new(offset, self.bytes));
            self.used += 1;
        }
        self.given_out = Some(classes);
        Ok(self)
    }

    /// Gives a part of a chunk to `holder`, with its room in `memory`.
    pub(crate) fn allocate(
        &mut self,
        memory: &Memory,
        want: PartWanted,
        holder: SessionKey,
    ) -> Result<Chunk, NoGrant> {
        let class = want.class;
        let number = usize::from(class.0);
        let Some(&Class { name, bytes: size, .. }) = self.classes.get(number) else {
            return Err(NoGrant::Class(NoClass { class, classes: self.classes.len() }));
        };
        let least = want.least.max(size.into()).max(1);
        // Parts end where blocks and lines do.
        let step = if size == 0 { LINE } else { size.into() };
        let wished = want.wished.max(least).next_multiple_of(step).min(self.bytes);
        let none = NoGrant::Chunk(NoChunk { class: name, chunks: self.chunks, used: self.used });
        let free = &self.free[number];
        let worth = least.max((wished / 4).min(WORTH));
        let found = match free.range((worth, 0)..).next().copied() {
            Some(found) => found,
            None => match self.begin_chunk(memory, class, least).map_err(|why| why.unwrap_or(none)) {
                Ok(found) => found,
                Err(none) => {
                    let largest = self.free[number].last().copied();
                    largest.filter(|(bytes, _)| *bytes >= least).ok_or(none)?
                }
            },
        };
        let (bytes, offset) = found;
        self.free[number].remove(&found);
        let taken = if bytes - wished.min(bytes) < self.least_free(class) { bytes } else { wished };
        self.pieces.insert(offset, Piece { bytes: taken, class, state: State::Held(holder) });
        if taken < bytes {
            self.insert_free(offset + taken, bytes - taken, class);
        }
        Ok(Chunk { address: GlobalAddress::new(self.server, offset), bytes: taken, class })
    }

    /// Begins a chunk of a class: a free piece, of so many bytes and there. Errors: `None` if there is none, or a block does not fit.
    fn begin_chunk(
        &mut self,
        memory: &Memory,
        class: SizeClass,
        least: u64,
    ) -> Result<(u64, u64), Option<NoGrant>> {
        if self.used == self.chunks || least > self.bytes {
            return Err(None);
        }
        let (offset, bytes) = (self.from + u64::from(self.used) * self.bytes, self.bytes);
        // Chunks are given out in order, so that what lies before it has its room already. An index read may run over its end.
        memory.reserve(offset + bytes + self.reach).map_err(|why| Some(NoGrant::Room(why)))?;
        if let Some(classes) = &self.given_out {
            classes.note(self.used, class);
        }
        self.used += 1;
        self.insert_free(offset, bytes, class);
        Ok((bytes, offset))
    }

    /// Takes back a part of which its holder was not told. Returns its bytes.
    pub(crate) fn take_back(&mut self, address: GlobalAddress) -> u64 {
        let Some((offset, &mut Piece { bytes, class, .. })) = self.piece(address) else { return 0 };
        self.insert_free(offset, bytes, class);
        bytes
    }

    /// The session of a part has ended, and its queue pairs are gone: what it has not used comes back, when it was
    /// [looked at](Self::look).
    pub(crate) fn end(&mut self, address: GlobalAddress, client: ClientId) {
        if let Some((offset, piece)) = self.piece(address) {
            piece.state = State::Tree(client);
            let bytes = piece.bytes;
            self.ended.push_back(Ended::new(offset, bytes));
            self.join_used(offset);
        }
    }

    /// Has the tenant look at up to `budget` blocks of parts whose sessions have ended. Returns the clients that pay for less
    /// from now on, by how many bytes, and whether there is more to look at.
    pub(crate) fn look<T: Tenant>(&mut self, tenant: &T, budget: usize) -> (Vec<(ClientId, u64)>, bool) {
        let mut relieved = vec![];
        for _ in 0..budget {
            let Some(ended) = self.ended.front_mut() else { break };
            let class = self.pieces.range(..=ended.at).next_back().map(|(_, piece)| piece.class);
            let Some(class) = class.filter(|_| ended.at < ended.part.end) else {
                let gap = ended.gap.map(|from| from..ended.part.end);
                self.ended.pop_front();
                relieved.extend(gap.and_then(|gap| self.come_back(gap)));
                continue;
            };
            let (at, end) = (ended.at, ended.part.end);
            let (next, is_written) = match tenant.find(class, at..end) {
                Found::Nothing(next) => (next, false),
                Found::Block { end, .. } | Found::Unclear(end) => (end, true),
            };
            // Whatever a tenant says, a look comes to its end.
            ended.at = next.clamp(at + 1, end);
            if is_written {
                let gap = ended.gap.take().map(|from| from..at);
                relieved.extend(gap.and_then(|gap| self.come_back(gap)));
            } else {
                ended.gap.get_or_insert(at);
            }
        }
        (relieved, !self.ended.is_empty())
    }

    /// Takes unwritten memory of a part back. Returns the client that pays for it no more, and its bytes.
    fn come_back(&mut self, gap: Range<u64>) -> Option<(ClientId, u64)> {
        let (&offset, &piece) = self.pieces.range(..=gap.start).next_back()?;
        let (class, end) = (piece.class, offset + piece.bytes);
        let client = match piece.state {
            State::Tree(client) => Some(client),
            State::Former => None,
            _ => return None,
        };
        // Pieces begin at line borders, as chunks do. Where blocks have one size, this is a border of theirs.
        let from = if self.size(class) == 0 { gap.start.next_multiple_of(LINE) } else { gap.start };
        let bytes = gap.end.min(end).checked_sub(from).filter(|bytes| *bytes > 0)?;
        let is_free = |piece: &Piece| matches!(piece.state, State::Free);
        let beside = |at: u64| self.in_one_chunk(from, at) && self.pieces.get(&at).is_some_and(is_free);
        let least = if from + bytes == end && beside(end) { LINE } else { self.least_free(class) };
        if bytes < least {
            return None;
        }
        self.tails += 1;
        if from + bytes < end {
            let rest = end - (from + bytes);
            self.pieces.insert(from + bytes, Piece { bytes: rest, ..piece });
        }
        if from > offset {
            self.pieces.insert(offset, Piece { bytes: from - offset, ..piece });
        }
        self.insert_free(from, bytes, class);
        client.map(|client| (client, bytes))
    }

    /// Makes memory a free piece, with the free pieces beside it in the same chunk.
    fn insert_free(&mut self, offset: u64, bytes: u64, class: SizeClass) {
        let (mut from, mut to) = (offset, offset + bytes);
        let is_free = |piece: &Piece| matches!(piece.state, State::Free);
        let left = self.pieces.range(..offset).next_back().map(|(&at, &piece)| (at, piece));
        if let Some((at, piece)) = left.filter(|(at, piece)| {
            at + piece.bytes == offset && is_free(piece) && self.in_one_chunk(*at, offset)
        }) {
            self.drop_free(at, piece);
            from = at;
        }
        if let Some(piece) =
            self.pieces.get(&to).copied().filter(|piece| is_free(piece) && self.in_one_chunk(from, to))
        {
            self.drop_free(to, piece);
            to += piece.bytes;
        }
        self.pieces.remove(&offset);
        self.pieces.insert(from, Piece { bytes: to - from, class, state: State::Free });
        self.free[usize::from(class.0)].insert((to - from, from));
    }

    fn drop_free(&mut self, offset: u64, piece: Piece) {
        self.pieces.remove(&offset);
        self.free[usize::from(piece.class.0)].remove(&(piece.bytes, offset));
    }

    /// Joins a part that is the structure's with the one before it, if the same client pays for both.
    fn join_used(&mut self, offset: u64) {
        let Some(&piece) = self.pieces.get(&offset) else { return };
        let Some((&before, left)) = self.pieces.range_mut(..offset).next_back() else { return };
        if before + left.bytes == offset
            && left.state == piece.state
            && (before - self.from) / self.bytes == (offset - self.from) / self.bytes
        {
            left.bytes += piece.bytes;
            self.pieces.remove(&offset);
        }
    }

    fn in_one_chunk(&self, one: u64, other: u64) -> bool {
        (one - self.from) / self.bytes == (other - self.from) / self.bytes
    }

    /// Bytes of the least free piece of a class, beside which nothing is free.
    fn least_free(&self, class: SizeClass) -> u64 {
        match self.size(class) {
            0 => LEAST_OF_SEVERAL,
            bytes => bytes.into(),
        }
    }

    /// Ranges of all parts of chunks that are not free.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = Range<u64>> {
        let used = self.pieces.iter().filter(|(_, piece)| !matches!(piece.state, State::Free));
        used.map(|(&at, piece)| at..at + piece.bytes)
    }

    /// Whether the region may have been served before.
    pub(crate) fn outlives(&self) -> bool {
        self.given_out.is_some()
    }

    /// Whether chunks were given out before the server was started.
    pub(crate) fn has_former(&self) -> bool {
        self.pieces.values().any(|piece| matches!(piece.state, State::Former))
    }

    /// Places where blocks may lie.
    pub(crate) fn layout(&self) -> Layout {
        Layout {
            classes: Arc::clone(&self.classes),
            chunks_from: self.from,
            chunk_bytes: self.bytes,
            given_out: self.given_out.clone(),
        }
    }

    /// Brings the classes of chunks to the disk, where they outlive the server.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.given_out.as_ref().map_or(Ok(()), ChunkClasses::sync)
    }

    pub(crate) fn counts(&self) -> ChunkCounts {
        let fresh = u64::from(self.chunks - self.used) * self.bytes;
        let mut counts = ChunkCounts {
            all: self.chunks,
            used_bytes: self.from,
            free_bytes: fresh,
            ..ChunkCounts::default()
        };
        for piece in self.pieces.values() {
            match piece.state {
                State::Free => {
                    counts.free_bytes += piece.bytes;
                    counts.free += 1;
                    continue;
                }
                State::Held(_) => {
                    counts.held += 1;
                    counts.held_bytes += piece.bytes;
                }
                State::Tree(_) | State::Former => {}
            }
            counts.given += 1;
            counts.used_bytes += piece.bytes;
        }
        counts
    }

    /// The first memory of a class after an offset, or around it, that is the structure's: loaded blocks, or a part of a chunk.
    pub(crate) fn blocks_after(&self, class: SizeClass, offset: u64) -> Option<Range<u64>> {
        let loaded = self.classes.get(usize::from(class.0)).map(|class| class.loaded.clone());
        if let Some(loaded) = loaded.filter(|loaded| loaded.end > offset && !loaded.is_empty()) {
            return Some(loaded);
        }
        let around = self.pieces.range(..=offset).next_back().map_or(offset, |(&at, _)| at);
        let mut parts = self.pieces.range(around..).map(|(&at, piece)| (at..at + piece.bytes, piece));
        let found = parts.find(|(part, piece)| {
            part.end > offset && piece.class == class && !matches!(piece.state, State::Free)
        });
        found.map(|(part, _)| part)
    }

    /// All memory of a class that is the structure's, in the order of offsets.
    pub(crate) fn parts(&self, class: SizeClass) -> Vec<Range<u64>> {
        let next = |from: u64| self.blocks_after(class, from);
        std::iter::successors(next(0), |part| next(part.end)).collect()
    }

    /// Begin of the part of a chunk of that class that holds all of these bytes, if it was given out.
    fn given_out_around(&self, offset: u64, bytes: u64, class: SizeClass) -> Option<u64> {
        let (&from, piece) = self.pieces.range(..=offset).next_back()?;
        let fits = offset.checked_add(bytes)? <= from + piece.bytes;
        (piece.class == class && !matches!(piece.state, State::Free) && fits).then_some(from)
    }

    /// Whether a block of this class, `bytes` long, may begin at `offset`: among those that were loaded, or
    /// in a part of a chunk that was given out.
    pub(crate) fn may_lie(&self, class: SizeClass, offset: u64, bytes: u64) -> bool {
        let Some(Class { bytes: size, loaded, .. }) = self.classes.get(usize::from(class.0)) else {
            return false;
        };
        let is_loaded = loaded.contains(&offset) && bytes <= loaded.end - offset;
        let area = if is_loaded { Some(loaded.start) } else { self.given_out_around(offset, bytes, class) };
        area.is_some_and(|from| match size {
            0 => offset.is_multiple_of(RECORD_ALIGN),
            &size => bytes == u64::from(size) && (offset - from).is_multiple_of(size.into()),
        })
    }

    /// Bytes of a block of this class; 0 if there are several sizes.
    pub(crate) fn size(&self, class: SizeClass) -> u32 {
        self.classes.get(usize::from(class.0)).map_or(0, |class| class.bytes)
    }

    fn piece(&mut self, address: GlobalAddress) -> Option<(u64, &mut Piece)> {
        let offset = address.offset();
        let is_here = GlobalAddress::new(self.server, offset) == address;
        self.pieces.get_mut(&offset).filter(|_| is_here).map(|piece| (offset, piece))
    }
}
