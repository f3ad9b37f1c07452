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
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use fatbtree_remote_memory::{
    ConnectionId, GlobalAddress, HEADER_BYTES, Members, Owner, RemoteMemory, Suspicion, Trouble, Writer,
    members, mix,
};
use fatbtree_verbs::time::{Duration, Instant};
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
struct Op {
    key: u64,
    lane: u8,
    began: Instant,
    trips: u32,
    attempts: u32,
    /// Times that a structure change was in the way.
    busy: u32,
    /// Whether to begin at the root: what the cache knows has led astray.
    anew: bool,
    /// Whether the switches were asked.
    was_led: bool,
    /// What was found to be wrong.
    suspicion: Suspicion,
}

impl Op {
    /// Notes that `bytes` to which the word `link` leads are wrong. Others may have changed them meanwhile; what stays so is damaged.
    fn doubt(&mut self, at: GlobalAddress, link: u64, bytes: &[u8], expected: &'static str) -> Stop {
        match self.suspicion.is_sure(at, link, bytes) {
            true => IndexError::DamagedKey { key: self.key, at, expected }.into(),
            false => Stop::Later,
        }
    }
}

impl<V: Verbs> Index<V> {
    /// Opens the index whose root lies on a server: reads the regions' headers.
    ///
    /// # Errors
    /// [`IndexError::NoIndex`], [`IndexError::Parted`]; and when the connection is given up, or breaks too
    /// often.
    pub async fn open(
        memory: Rc<RemoteMemory<V>>,
        server: u16,
        cache: Rc<NodeCache>,
    ) -> Result<Self, IndexError> {
        let (lane, began) = (memory.take_lane(), memory.reactor().now());
        for attempts in 0.. {
            match shape_on(&memory, server, lane).await {
                Ok(shape) => {
                    return Ok(Self {
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
                    });
                }
                Err(Stop::Failed(error)) => return Err(error),
                Err(_) if memory.reactor().now() - began > memory.config().patience => {
                    return Err(IndexError::GaveUp { attempts });
                }
                Err(_) => memory.pause(attempts).await,
            }
        }
        unreachable!("it ends when time has passed")
    }

    /// Ends the index: a server has begun anew with an empty part of it. All operations end with
    /// [`IndexError::Lost`] from now on.
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
        let (lane, began) = (self.memory.take_lane(), self.memory.reactor().now());
        let suspicion = Suspicion::default();
        Op { key, lane, began, trips: 0, attempts: 0, busy: 0, anew: false, was_led: false, suspicion }
    }

    /// A stamp that no other line in any server's memory has: sessions have names of their own.
    fn draw_stamp(&self, owner: Owner) -> u64 {
        self.stamps.set(self.stamps.get() + 1);
        mix(owner.session.0 ^ mix(self.stamps.get())) & !7
    }

    /// Identity under which the client writes to a server, when a session is there.
    async fn writer(&self, server: u16, lane: u8) -> Result<Writer, Stop> {
        // A session begins before its first connection.
        self.memory.until_up(ConnectionId { server, lane }).await?;
        Ok(self.memory.writer(server)?)
    }

    /// Identity under which the client writes to a server with which it is connected at this moment. Under a lock nothing waits
    /// for a connection: what is locked may lie on another server, whose keys can be changed all the same.
    fn at_hand(&self, server: u16, op: &Op) -> Result<Writer, Stop> {
        match self.memory.link(ConnectionId { server, lane: op.lane }) {
            Ok(_) => Ok(self.memory.writer(server)?),
            Err(Trouble::Broke(_)) => Err(Stop::Absent(server)),
            Err(trouble) => Err(trouble.into()),
        }
    }

    /// Time for which an operation still tries.
    fn left_of(&self, op: &Op) -> Duration {
        self.memory.config().patience.saturating_sub(self.memory.reactor().now() - op.began)
    }

    /// Waits for something as long as the operation has patience.
    async fn patiently<T>(&self, op: &Op, something: impl Future<Output = T>) -> Result<T, Stop> {
        let mut something = pin!(something);
        let mut patience = pin!(self.memory.reactor().sleep(self.left_of(op)));
        poll_fn(|context| match something.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Ok(done)),
            Poll::Pending => patience.as_mut().poll(context).map(|()| Err(Stop::Later)),
        })
        .await
    }

    /// Reads bytes on a server with which the client is connected at this moment: a round trip.
    async fn read_at_hand(&self, at: GlobalAddress, bytes: u32, op: &mut Op) -> Result<Buffer, Stop> {
        self.at_hand(at.server(), op)?;
        self.read(at, bytes, op).await
    }

    /// Reads bytes: a round trip.
    async fn read(&self, at: GlobalAddress, bytes: u32, op: &mut Op) -> Result<Buffer, Stop> {
        op.trips += 1;
        Ok(self.memory.read(op.lane, at, bytes).await?)
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
        let result = loop {
            if let Some(server) = self.left.get() {
                break Err(IndexError::Lost(server));
            }
            let stop = match attempt(&mut op).await {
                Ok(value) => break Ok(value),
                Err(stop) => stop,
            };
            let has_patience = self.left_of(&op) > Duration::ZERO;
            let stop = match stop {
                Stop::Absent(server) if has_patience => {
                    let up = self.memory.until_up(ConnectionId { server, lane: op.lane });
                    match self.patiently(&op, up).await {
                        Ok(up) => up.map_or_else(Stop::from, |_| Stop::Anew),
                        Err(stop) => stop,
                    }
                }
                stop => stop,
            };
            match stop {
                Stop::Failed(error) => break Err(error),
                _ if !has_patience => break Err(IndexError::GaveUp { attempts: op.attempts + 1 }),
                Stop::Later if Check::Pauses.on() => {
                    self.memory.pause_after_conflict(op.attempts, Some(self.left_of(&op))).await;
                }
                Stop::Anew | Stop::Later | Stop::Absent(_) => {}
            }
            op.attempts += 1;
        };
        Answer { result, round_trips: op.trips }
    }
}

/// Shape of the index whose root lies on a server, if all of its servers have parts of it.
async fn shape_on<V: Verbs>(memory: &RemoteMemory<V>, server: u16, lane: u8) -> Result<Shape, Stop> {
    let header = memory.read(lane, GlobalAddress::new(server, 0), HEADER_BYTES as u32).await?;
    let shape = header.first_chunk().and_then(Shape::of_header).ok_or(IndexError::NoIndex { server })?;
    let is_part = |line: &_| Shape::of_header(line) == Some(shape);
    match members(memory, (STRUCTURE, shape.servers), members_offset(), lane, is_part).await? {
        Members::Whole => Ok(shape),
        Members::Parted => Err(IndexError::Parted.into()),
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
