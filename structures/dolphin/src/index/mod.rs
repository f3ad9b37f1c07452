//! The index as one client uses it.

mod announce;
mod change;
mod descend;
mod drain;
mod get;
mod led;
mod restructure;
mod scan;
mod space;
mod structure;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use fatbtree_remote_memory::{
    CommonError, GlobalAddress, HEADER_BYTES, Lane, Members, Owner, RemoteMemory, Trouble, Writer, members,
    mix,
};
use fatbtree_verbs::{Buffer, Verbs};

pub use fatbtree_remote_memory::Change;
pub use get::Value;

use announce::Lines;
use space::Doubtful;

use crate::cache::NodeCache;
use crate::checks::Check;
use crate::entry::Entry;
use crate::error::{IndexError, Stop};
use crate::inner::Node;
use crate::key::DEPTHS;
use crate::layout::{STRUCTURE, Shape, members_offset};

/// Result of an operation, and what it took.
pub type Answer<T> = fatbtree_remote_memory::Answer<T, IndexError>;

/// A Dolphin index in the memory of one or several servers, as one thread uses it. Any number of its
/// operations run at once. One index may be open on a memory: its operations share the client's line.
///
/// An index is opened on a [`RemoteMemory`] whose sessions a keeper keeps. Operations wait for
/// connections that are being made. After a server has lost its memory and was loaded anew, open the
/// index anew.
///
/// An operation that is dropped before its end may leave its announcement on a leaf.
/// [`finish`](Self::finish) takes it back, or the next operation of this client; until then other clients
/// cannot split that leaf.
pub struct Index<V: Verbs> {
    memory: Rc<RemoteMemory<V>>,
    shape: Shape,
    cache: Rc<NodeCache>,
    lines: RefCell<Lines>,
    /// Owners that lived when this client looked last, by server.
    lives: RefCell<Vec<(u16, u16, u16)>>,
    /// Stamps that this client has drawn.
    stamps: Cell<u64>,
    /// A server that has begun anew since the index was opened.
    left: Cell<Option<u16>>,
    /// Low bits that index reads leave out of a key. `None`: none is sent.
    led: Cell<Option<u8>>,
    /// Depth of the node above the leaf that a walk found last: the next key's leaf lies below one like it.
    depth: Cell<u8>,
    /// Blocks that are neither the index's nor free yet.
    doubtful: RefCell<Vec<Doubtful>>,
}

impl<V: Verbs> std::fmt::Debug for Index<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { shape, cache, .. } = self;
        f.debug_struct("Index").field("shape", shape).field("cache", &cache.stats()).finish_non_exhaustive()
    }
}

/// One operation on its way.
type Op = fatbtree_remote_memory::Op<Way>;

/// What an operation knows of the way to its leaf.
#[derive(Default)]
struct Way {
    /// Times that a structure change was in the way.
    busy: u32,
    /// Whether to begin at the root: what the cache knows has led astray.
    anew: bool,
    /// Whether the switches were asked.
    was_led: bool,
}

impl<V: Verbs> Index<V> {
    /// Opens the index whose root lies on a server: reads the regions' headers.
    ///
    /// # Errors
    /// [`IndexError::NoIndex`], [`CommonError::Parted`]; and when the connection is given up, or breaks too
    /// often.
    pub async fn open(
        memory: Rc<RemoteMemory<V>>,
        server: u16,
        cache: Rc<NodeCache>,
    ) -> Result<Self, IndexError> {
        let mut op = memory.waiting_op(memory.take_lane());
        let shape = memory.attempt(&mut op, async |op| shape_on(&memory, server, &op.lane).await).await?;
        Ok(Self {
            memory,
            shape,
            cache,
            lines: RefCell::default(),
            lives: RefCell::default(),
            stamps: Cell::default(),
            left: Cell::default(),
            led: Cell::default(),
            depth: Cell::new(DEPTHS - 1),
            doubtful: RefCell::default(),
        })
    }

    /// Ends the index: a server has begun anew with an empty part of it. All operations end with
    /// [`CommonError::Lost`] from now on.
    pub fn leave(&self, server: u16) {
        self.left.set(Some(server));
    }

    /// The index's shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The memory that the index lies in.
    pub fn memory(&self) -> &Rc<RemoteMemory<V>> {
        &self.memory
    }

    /// The client's copies of inner nodes.
    pub fn cache(&self) -> &Rc<NodeCache> {
        &self.cache
    }

    fn op(&self, key: u64) -> Op {
        self.memory.op(self.memory.take_lane(), key, Way::default())
    }

    /// A stamp that no other line in any server's memory has: sessions have names of their own.
    fn draw_stamp(&self, owner: Owner) -> u64 {
        self.stamps.set(self.stamps.get() + 1);
        mix(owner.session.0 ^ mix(self.stamps.get())) & !7
    }

    /// Identity under which the client writes to a server, when a session is there.
    async fn writer(&self, server: u16, lane: &Lane) -> Result<Writer, Stop> {
        // A session begins before its first connection.
        self.memory.until_up(lane.to(server).id).await?;
        Ok(self.memory.writer(server)?)
    }

    /// Identity under which the client writes to a server with which it is connected at this moment. Under a lock nothing waits
    /// for a connection: what is locked may lie on another server, whose keys can be changed all the same.
    fn at_hand(&self, server: u16, op: &Op) -> Result<Writer, Stop> {
        match self.memory.link(op.lane.to(server).id) {
            Ok(_) => Ok(self.memory.writer(server)?),
            Err(Trouble::Broke(_)) => Err(Stop::Absent(server)),
            Err(trouble) => Err(trouble.into()),
        }
    }

    /// Waits for something as long as the operation has patience.
    async fn patiently<T>(&self, op: &Op, something: impl Future<Output = T>) -> Result<T, Stop> {
        self.memory.patiently(op, something).await.ok_or(Stop::Later)
    }

    /// Reads bytes on a server with which the client is connected at this moment: a round trip.
    async fn read_at_hand(&self, at: GlobalAddress, bytes: u32, op: &mut Op) -> Result<Buffer, Stop> {
        self.at_hand(at.server(), op)?;
        self.read(at, bytes, op).await
    }

    /// Reads bytes: a round trip.
    async fn read(&self, at: GlobalAddress, bytes: u32, op: &mut Op) -> Result<Buffer, Stop> {
        Ok(self.memory.read(&op.lane, at, bytes).await?)
    }

    /// Reads the node that an entry leads to. `None`: none of this size lies there.
    async fn read_node(&self, entry: Entry, op: &mut Op) -> Result<Option<Node>, Stop> {
        let bytes = self.read(entry.at(), entry.size().bytes(), op).await?;
        let node = Node::parse(&bytes, entry.at(), entry.size());
        match node.as_ref().and_then(Node::damage).filter(|_| Check::SoundNodes.on()) {
            Some(expected) => Err(op.doubt(entry.at(), entry.0, &bytes, expected)),
            None => Ok(node),
        }
    }

    /// Does an operation again and again until it has an answer.
    async fn answer<T>(
        &self,
        mut op: Op,
        mut attempt: impl AsyncFnMut(&mut Op) -> Result<T, Stop>,
    ) -> Answer<T> {
        let attempt = async |op: &mut Op| {
            if let Some(server) = self.left.get() {
                return Err(CommonError::Lost(server).into());
            }
            match attempt(op).await {
                Err(Stop::Later) if !Check::Pauses.on() => Err(Stop::Anew),
                ended => ended,
            }
        };
        let result = self.memory.attempt(&mut op, attempt).await;
        Answer { result, round_trips: op.lane.round_trips() }
    }
}

/// Shape of the index whose root lies on a server, if all of its servers have parts of it.
async fn shape_on<V: Verbs>(memory: &RemoteMemory<V>, server: u16, lane: &Lane) -> Result<Shape, Stop> {
    let header = memory.read(lane, GlobalAddress::new(server, 0), HEADER_BYTES as u32).await?;
    let shape = header.first_chunk().and_then(Shape::of_header).ok_or(IndexError::NoIndex { server })?;
    let is_part = |line: &_| Shape::of_header(line) == Some(shape);
    match members(memory, (STRUCTURE, shape.servers), members_offset(), lane, is_part).await? {
        Members::Whole => Ok(shape),
        Members::Parted => Err(CommonError::Parted.into()),
        Members::Missing(server) => Err(IndexError::NoIndex { server }.into()),
    }
}

/// Reads of a walk over the whole index.
impl<V: Verbs> Index<V> {
    /// Reads bytes, again and again until they come.
    pub(crate) async fn bytes_at(&self, at: GlobalAddress, bytes: u32) -> Result<Buffer, IndexError> {
        self.answer(self.op(0), async |op| self.read(at, bytes, op).await).await.result
    }
}
