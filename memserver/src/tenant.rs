//! The seam between a memory server and the structure in its region, its tenant.
//!
//! ```text
//!   MemoryServer                                         Tenant
//!   sessions, owners, bounds, queue pairs                which bytes mean what
//!   ──────────────────────────────────────────────────────────────────────────────────────────
//!   a session has ended: what of its chunk is used? ───► find(class, part)
//!   a client gives a block back: is it free? ──────────► is_free(class, place)
//!   the region's first line has changed ───────────────► see(header)
//!   between frames, with a budget ─────────────────────► work(budget)
//!   a request that only the structure can answer ──────► handle(request)
//!   ServerInfo, first-hop entries ◄───────────────────── description(), root()
//! ```
//!
//! The server itself keeps the [`Shape`], which never changes while a region is served.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use fatbtree_remote_memory::{GlobalAddress, HEADER_BYTES, Origin, SizeClass};
use fatbtree_verbs::Memory;

use crate::chunk::chunk_classes_bytes;
use crate::chunk_classes::ChunkClasses;
use crate::fellows::Fellows;
use crate::layout::{Class, Layout};
use crate::marked::Marked;
use crate::server::Counter;

/// The structure in a region, as its memory server needs to know it. Nothing here is on the data path.
///
/// A tenant reads the region's memory while clients write it, and must expect any bytes there.
pub trait Tenant: Sized + fmt::Debug {
    /// Description of the structure in [`ServerInfo`](crate::ServerInfo).
    type Description: Copy + Eq + fmt::Debug;
    /// Requests that only the structure can answer, each with its way back. A structure without any names
    /// [`Infallible`](std::convert::Infallible).
    type Request: fmt::Debug;

    /// Present description of the structure.
    fn description(&self) -> Self::Description;

    /// Address at which an index read begins: the root.
    fn root(&self) -> GlobalAddress;

    /// Reads the region's [header](fatbtree_remote_memory::RegionHeader): once at the start, and whenever it has changed.
    fn see(&mut self, header: &[u8; HEADER_BYTES]) -> Seen;

    /// Finds what lies at the begin of a part of a chunk, of memory that was loaded, or of both. Where nothing was ever written, other
    /// clients get memory when the session that had it has ended and has no queue pair any more.
    ///
    /// `within` begins where a block of the class may begin. In a chunk that clients use in the ordinary way each block begins there or
    /// after another one, perhaps after memory that was never written. What cannot be explained so is [`Unclear`](Found::Unclear).
    fn find(&self, class: SizeClass, within: Range<u64>) -> Found;

    /// Whether a block, which lies where one of its class may, is free as far as its memory says. By default no block ever is: clients
    /// cannot give any back. One that was never written is not: it comes back with its part ([`find`](Self::find)), and would be given
    /// out twice.
    fn is_free(&self, _class: SizeClass, _block: Range<u64>) -> bool {
        false
    }

    /// Classes of blocks of which the structure can tell whether anything leads to them. What clients lose of other classes stays lost.
    ///
    /// Then a server sweeps, see [`ServerOptions::reclaim_every`](crate::ServerOptions::reclaim_every). Four things must hold. What leads to
    /// a block lies on this server, or on [others](Self::fellows). A client links a block in the session in which it has taken or unlinked it,
    /// or not at all. Each writing of a block changes its stamp. An operation that links blocks or frees them holds [`RemoteMemory::begin`]
    /// from its begin to its end.
    ///
    /// [`RemoteMemory::begin`]: fatbtree_remote_memory::RemoteMemory::begin
    fn swept(&self) -> &[SizeClass] {
        &[]
    }

    /// Whether the structure can tell only while no session is open. Then a server sweeps at its start, and after its last session has ended.
    /// Of the four things, only the first two must hold.
    fn sweeps_alone(&self) -> bool {
        false
    }

    /// Other servers whose parts of the structure may lead to blocks here. Where there are any, all of them sweep alone, and ask each other.
    ///
    /// Then a client links a block on another server only if it had a session there before the session in which it took the block has ended.
    /// One that links new blocks on their own server, and copies pointers under locks of its sessions, does so.
    fn fellows(&self) -> Fellows {
        Fellows::default()
    }

    /// Begins a walk over everything here that leads to blocks of server `of`, whose region has `bytes` bytes: its own, or a
    /// [fellow](Self::fellows)'s. `parts` tells where blocks of a class may lie here.
    fn begin_marks(&mut self, _of: u16, _bytes: u64, _parts: &dyn Fn(SizeClass) -> Vec<Range<u64>>) {}

    /// Walks on, reading up to `budget` blocks. Returns whether there is more.
    fn mark(&mut self, _budget: usize) -> bool {
        false
    }

    /// What the walk has met.
    fn take_marks(&mut self) -> Marked {
        Marked::default()
    }

    /// Whether walks have met anything that leads into this range, or cannot tell. By default as the marks say.
    fn is_marked(&self, marks: &Marked, _class: SizeClass, block: Range<u64>) -> bool {
        marks.is_marked(block)
    }

    /// Whether the structure holds nothing, as far as can be read now: then it may be in the place of one that was lost. `in_use` are the
    /// parts of chunks that are not free.
    fn is_empty(&self, _in_use: &mut dyn Iterator<Item = Range<u64>>) -> bool {
        false
    }

    /// Whether a load would replace anything. By default clients have got chunks, or still hold them.
    fn is_used(&self, chunks: u64) -> bool {
        chunks > 0
    }

    /// Takes a request, to be answered now or in [`work`](Self::work).
    fn handle(&mut self, request: Self::Request);

    /// Works on requests, reading up to `budget` blocks. Returns whether there is more to do.
    fn work(&mut self, _budget: usize) -> bool {
        false
    }

    /// Counters of the structure, by name.
    fn statistics(&self) -> Vec<Counter> {
        Vec::new()
    }

    /// Whether a server of `former` may serve this one instead, without being started again.
    fn may_follow(&self, _former: &Self) -> bool {
        true
    }

    /// Takes over the requests of the former tenant.
    fn succeed(&mut self, _former: Self) {}
}

/// A tenant's verdict on its region's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// The header says what was known.
    Same,
    /// Description or root have changed.
    Changed,
    /// The header is being written, or is impossible; nothing has changed.
    Refused,
}

/// What lies at the begin of a part of a chunk, as far as its memory says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Nothing: up to this offset nothing was ever written.
    Nothing(u64),
    /// A block, alive or freed.
    Block {
        /// Its end.
        end: u64,
        /// Another number after each writing of the block.
        stamp: u64,
    },
    /// Bytes that no block begins with. Up to this offset nothing can be told.
    Unclear(u64),
}

/// Parts of its server and region that a tenant keeps for its lifetime.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    /// Size classes, by number: up to 255.
    pub classes: Vec<Class>,
    /// Bytes of an index read, wherever switches let it land: one packet holds them, and there are as many after the last block. 0 if no
    /// switch leads reads.
    pub reach: u32,
    /// Whether the device must read and write lines of 64 bytes whole.
    pub whole_lines: bool,
}

/// A region with a structure in it, ready to be registered with `iova = server << 48`.
#[derive(Clone, Debug)]
pub struct Loaded<T> {
    /// Number of the memory server.
    pub server: u16,
    /// The region, from offset 0. It is shared with the device that serves it.
    pub region: Arc<Memory>,
    /// Offsets of the chunks.
    pub spare: Range<u64>,
    /// Number of times that the region has been filled.
    pub generation: u64,
    /// Whether the structure is the one that is meant.
    pub origin: Origin,
    /// The table of chunk classes, if it outlives the server; see [`chunk_classes_bytes`](crate::chunk_classes_bytes).
    pub chunk_classes: Option<Arc<Memory>>,
    /// Size classes and the like.
    pub shape: Shape,
    /// The structure.
    pub tenant: T,
}

impl<T> Loaded<T> {
    /// Places where blocks may lie, with chunks of so many bytes; as if no chunk had been given out, where their classes are not kept.
    #[must_use]
    pub fn layout(&self, chunk_bytes: u64) -> Layout {
        let given_out = |table: &Arc<Memory>| ChunkClasses::new(Arc::clone(table), self.generation);
        Layout {
            classes: self.shape.classes.clone().into(),
            chunks_from: self.spare.start,
            chunk_bytes,
            given_out: self.chunk_classes.as_ref().map(given_out),
        }
    }

    /// The same with a table of chunk classes that outlives its server, for chunks of so many bytes.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn with_chunk_classes(self, chunk_bytes: u64) -> io::Result<Self> {
        let table = Memory::shared(chunk_classes_bytes(self.spare.end - self.spare.start, chunk_bytes))?;
        Ok(Self { chunk_classes: Some(table), ..self })
    }
}
