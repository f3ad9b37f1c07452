//! Chunks: the spare memory of a region, given out in pieces of one size and taken back.
//!
//! ```text
//!              allocate(class)                 publish                     its session ends
//!   fresh ────────────────────► held ───────────────────► published ───────────┬─────────────► the structure's: up to the last block
//!                                │ ▲                                           │
//!             free, lease ends   ▼ │ allocate(same class)                       │ what is behind it was never written to
//!                          free, of its class ◄─────────────────────────────────┘
//! ```
//!
//! **Classes.** A chunk keeps its first class for ever: blocks of another class never lie in it. Blocks of one size lie at multiples of it
//! from the chunk's start. So a stale pointer, in a switch or a client, that led to such a block leads for ever to a block of the same
//! size, or to a freed one. The pointer never leads to a block of another class or into the middle of another block.
//!
//! **Publishing.** A client publishes a chunk *before* it links the first of its blocks into the structure. From then on the chunk's
//! content is the structure's, whatever becomes of the client. A chunk that was not published holds nothing that a client can reach.
//! When its holder gives it back, or its lease ends, it goes to the free list of its class.
//!
//! **Tails.** Clients use a chunk from its start. When a session has ended, its queue pairs are destroyed and nothing is written into
//! its chunks any more but where blocks are that others know. The [tenant](crate::Tenant::used) finds out where the used part ends; what
//! lies behind it is given out again as a smaller chunk of the same class.
//! A client whose session has ended must not use what it has left of its chunks.
//!
//! **Restarts.** Where the region outlives its server, a word for each chunk says its class, written before
//! the chunk is given out. On restart all such chunks belong to the structure and are charged to no client; their
//! unused tails are recovered.
//!
//! **Room.** Where the region lies in a file, a chunk has its room on the disk before it is given out.
//!
//! A client divides its chunk into blocks as it likes. Single blocks that clients have freed are the subject of `free_blocks`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use fatbtree_remote::record::RECORD_ALIGN;
use fatbtree_remote::{GlobalAddress, SizeClass};
use fatbtree_verbs::{Memory, ReserveError};

use crate::chunk_classes::{ChunkClasses, DamagedClasses, MAX_CLASSES};
use crate::layout::{Class, Layout};
use crate::limits::ClientId;
use crate::session::SessionKey;
use crate::tenant::{Shape, Tenant, Used};

/// A chunk as its holder is told of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Its address, on a line border.
    pub address: GlobalAddress,
    /// Its size: the same of all chunks of a server, less of one that was used in part.
    pub bytes: u64,
    /// Class of content.
    pub class: SizeClass,
}

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

/// The least rest of a chunk for blocks of several sizes that is worth an answer.
const LEAST_OF_SEVERAL: u64 = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Held(SessionKey),
    /// The structure's, and its session goes on.
    Published(SessionKey),
    /// The structure's: this client pays for it.
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
    pub(crate) free: u32,
    pub(crate) held: u32,
    pub(crate) published: u32,
    /// Bytes of the region up to the first chunk, and of the chunks that are held or published.
    pub(crate) used_bytes: u64,
}

/// Reasons for which a chunk is not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChunkRefusal {
    /// Not a chunk of this session.
    NotHeld,
    /// The chunk belongs to the structure.
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
    /// Free pieces, by class.
    free: Vec<BTreeSet<u64>>,
    ended: VecDeque<Ended>,
    /// The class of each chunk that was given out, where that outlives the server.
    given_out: Option<ChunkClasses>,
    /// Rests of published chunks that came back.
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
            self.ended.push_back(Ended { offset, to: self.bytes });
            self.used += 1;
        }
        self.given_out = Some(classes);
        Ok(self)
    }

    /// Gives a free chunk to `holder`, with its room in `memory`.
    pub(crate) fn allocate(
        &mut self,
        memory: &Memory,
        class: SizeClass,
        holder: SessionKey,
    ) -> Result<Chunk, NoGrant> {
        let state = State::Held(holder);
        let number = usize::from(class.0);
        let Some(&Class { name, .. }) = self.classes.get(number) else {
            return Err(NoGrant::Class(NoClass { class, classes: self.classes.len() }));
        };
        if let Some(offset) = self.free[number].pop_first()
            && let Some(piece) = self.pieces.get_mut(&offset)
        {
            piece.state = state;
            let bytes = piece.bytes;
            return Ok(Chunk { address: GlobalAddress::new(self.server, offset), bytes, class });
        }
        if self.used == self.chunks {
            return Err(NoGrant::Chunk(NoChunk { class: name, chunks: self.chunks, used: self.used }));
        }
        let (offset, bytes) = (self.from + u64::from(self.used) * self.bytes, self.bytes);
        // Chunks are given out in order, so that what lies before it has its room already. An index read may run over its end.
        memory.reserve(offset + bytes + self.reach).map_err(NoGrant::Room)?;
        if let Some(classes) = &self.given_out {
            classes.note(self.used, class);
        }
        self.used += 1;
        self.pieces.insert(offset, Piece { bytes, class, state });
        Ok(Chunk { address: GlobalAddress::new(self.server, offset), bytes, class })
    }

    /// Makes a chunk the structure's; once more does no harm.
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
                let class = piece.class;
                self.free[usize::from(class.0)].insert(offset);
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

    /// Has the tenant look at up to `budget` blocks of chunks whose sessions have ended. Returns the clients that pay for one chunk less
    /// from now on, and whether there is more to look at.
    pub(crate) fn look<T: Tenant>(&mut self, tenant: &T, mut budget: usize) -> (Vec<ClientId>, bool) {
        let mut relieved = vec![];
        while let Some(&Ended { offset, to }) = self.ended.front() {
            let Some(&piece) = self.pieces.get(&offset) else {
                self.ended.pop_front();
                continue;
            };
            match tenant.used(piece.class, offset..offset + to, &mut budget) {
                Used::Below(end) => {
                    self.ended[0].to = end.saturating_sub(offset).min(to);
                    return (relieved, true);
                }
                Used::To(end) => {
                    self.ended.pop_front();
                    relieved.extend(self.cut(offset, piece, end.saturating_sub(offset)));
                }
            }
        }
        (relieved, false)
    }

    /// Divides a chunk where its used part ends. Returns the client that is charged for one chunk less.
    fn cut(&mut self, offset: u64, piece: Piece, used: u64) -> Option<ClientId> {
        let client = match piece.state {
            State::Tree(client) => Some(client),
            State::Former => None,
            _ => return None,
        };
        let least = match self.size(piece.class) {
            0 if used == 0 => 0,
            0 => LEAST_OF_SEVERAL,
            bytes => u64::from(bytes),
        };
        let rest = piece.bytes.saturating_sub(used);
        if rest > 0 && rest >= least {
            self.tails += 1;
            self.pieces.insert(offset + used, Piece { bytes: rest, state: State::Free, ..piece });
            self.free[usize::from(piece.class.0)].insert(offset + used);
            if used == 0 {
                return client;
            }
            self.pieces.insert(offset, Piece { bytes: used, ..piece });
        }
        // A client is charged once for the parts of one chunk that it has used.
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

    /// The first chunk of a class behind an offset, or around it, that is the structure's.
    pub(crate) fn published_behind(&self, class: SizeClass, offset: u64) -> Option<Range<u64>> {
        let around = self.pieces.range(..=offset).next_back().map_or(offset, |(&at, _)| at);
        let mut chunks = self.pieces.range(around..).map(|(&at, piece)| (at..at + piece.bytes, piece));
        let is_tree = |state| matches!(state, State::Published(_) | State::Tree(_) | State::Former);
        let found =
            chunks.find(|(chunk, piece)| chunk.end > offset && piece.class == class && is_tree(piece.state));
        found.map(|(chunk, _)| chunk)
    }

    /// Begin of the chunk of that class that holds all of these bytes, if the chunk is the structure's.
    fn published(&self, offset: u64, bytes: u64, class: SizeClass) -> Option<u64> {
        let (&from, piece) = self.pieces.range(..=offset).next_back()?;
        let fits = offset.checked_add(bytes)? <= from + piece.bytes;
        let is_tree = matches!(piece.state, State::Published(_) | State::Tree(_) | State::Former);
        (piece.class == class && is_tree && fits).then_some(from)
    }

    /// Whether a block of this class, `bytes` long, may begin at `offset`: among those that were loaded, or
    /// in a chunk that was published.
    pub(crate) fn may_lie(&self, class: SizeClass, offset: u64, bytes: u64) -> bool {
        let Some(Class { bytes: size, loaded, .. }) = self.classes.get(usize::from(class.0)) else {
            return false;
        };
        let is_loaded = loaded.contains(&offset) && bytes <= loaded.end - offset;
        let area = if is_loaded { Some(loaded.start) } else { self.published(offset, bytes, class) };
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
