//! The queue pairs to the memory servers, and what becomes of them.

use std::collections::VecDeque;
use std::fmt;
use std::task::Waker;

use fatbtree_verbs::{Endpoint, Failure, QueuePair, QueuePairNumber};

use crate::allocator::SizeClass;

/// Names a connection: memory server and lane, the number of the queue pair to it from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    /// The memory server.
    pub server: u16,
    /// Below the lanes that the client was [made](crate::RemoteMemory::new) with.
    pub lane: u8,
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection to memory server {}, lane {}", self.server, self.lane)
    }
}

/// The server's side of a connection: endpoint, rkey, registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteSide {
    /// Its end of the queue pair.
    pub endpoint: Endpoint,
    /// Key of its memory.
    pub rkey: u32,
    /// Whether the client's first-hop switch already admits index reads on this queue pair. Each queue pair is registered
    /// for itself, so after a reconnection this is `false` until the controller has acted.
    pub registered: bool,
}

/// Reasons for which a queue pair failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakReason {
    /// The server refused an index read (NAK: remote access error): no switch rewrote it, so the connection is not
    /// registered. Operations walk ordinarily until [`set_registered`](crate::RemoteMemory::set_registered) says otherwise.
    Unregistered,
    /// An operation failed otherwise.
    Failed(Failure),
}

impl fmt::Display for BreakReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BreakReason::Unregistered => f.write_str(
                "an index read on a connection that no switch has registered (NAK: remote access error)",
            ),
            BreakReason::Failed(failure) => write!(f, "{failure}"),
        }
    }
}

/// Something the owner of a [`RemoteMemory`](crate::RemoteMemory) must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A queue pair failed. Its operations wait: the owner calls [`open`](crate::RemoteMemory::open), exchanges endpoints with the
    /// server, and calls [`connected`](crate::RemoteMemory::connected); or [`abandon`](crate::RemoteMemory::abandon), and they fail.
    ConnectionBroken {
        /// Which.
        id: ConnectionId,
        /// Why.
        reason: BreakReason,
    },
    /// Operations wait for memory on a server: the owner allocates a chunk of this class there, and calls
    /// [`grant`](crate::RemoteMemory::grant); or it gets places that others have freed, and calls
    /// [`grant_blocks`](crate::RemoteMemory::grant_blocks); or there is none, and it calls
    /// [`refuse_memory`](crate::RemoteMemory::refuse_memory).
    MemoryWanted {
        /// Where.
        server: u16,
        /// For what.
        class: SizeClass,
        /// Bytes of the node, or of the record's place.
        bytes: u32,
    },
    /// Operations wait until a server has brought what it has to its disk: the owner calls
    /// [`sync_begins`](crate::RemoteMemory::sync_begins), asks the server, and calls [`sync_ends`](crate::RemoteMemory::sync_ends).
    SyncWanted {
        /// Which.
        server: u16,
    },
    /// A change was dropped, or gave up, while it had a lock or something like it. The owner runs [`finish`](crate::RemoteMemory::finish),
    /// which gives locks back, or [`Spread::finish`](crate::Spread::finish).
    Unfinished {
        /// Where.
        server: u16,
    },
}

/// Errors from changing a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No queue pair to any server.
    #[error("expected at least 1 queue pair per memory server, found 0 lanes")]
    Lanes,
    /// No such connection.
    #[error("no {id}: there is no such memory server, or there are only {lanes} lanes")]
    Unknown {
        /// The requested value.
        id: ConnectionId,
        /// Lanes per server.
        lanes: u8,
    },
    /// The connection works.
    #[error("the {id} is up: abandon it before opening it again")]
    Up {
        /// Which.
        id: ConnectionId,
    },
    /// The steps came in the wrong order.
    #[error("the {id} has no new queue pair: call open, tell the server, then connected")]
    NotOpening {
        /// Which.
        id: ConnectionId,
    },
    /// The device refuses.
    #[error(transparent)]
    Device(#[from] fatbtree_verbs::ConnectError),
}

/// Counters of a client's connections and locks since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemoteStats {
    /// Reads posted, index reads included.
    pub reads: u64,
    /// Bytes that these reads asked for.
    pub read_bytes: u64,
    /// Queue pairs that failed.
    pub broken_connections: u64,
    /// Queue pairs among them that failed because an index read was not admitted.
    pub refused_index_reads: u64,
    /// Locks taken from owners whose sessions had ended.
    pub inherited_locks: u64,
    /// Attempts to take a lock that found it taken.
    pub lock_retries: u64,
    /// Locks handed over to another operation of this client.
    pub hand_overs: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// State of a connection.
///
/// ```text
///            open                connected            an operation failed
///   Down ────────────► Opening ───────────► Up ───────────────────► Down
///     │ abandon                                                       │ abandon
///     └───────────────► Abandoned ◄───────────────────────────────────┘   open leads out again
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Down,
    Opening {
        queue_pair: QueuePair,
    },
    Up {
        queue_pair: QueuePair,
        rkey: u32,
    },
    Abandoned,
    /// Given up, because its server has lost what its memory held.
    Lost,
}

#[derive(Debug)]
pub(crate) struct Connection {
    id: ConnectionId,
    pub(crate) link: Link,
    /// Index reads are admitted.
    pub(crate) registered: bool,
    /// The server's end of the last queue pair that was connected.
    pub(crate) server_end: Option<QueuePairNumber>,
    /// Operations that wait for the connection.
    pub(crate) waiting: Vec<Waker>,
    /// Reason for which the last queue pair failed.
    pub(crate) reason: BreakReason,
}

impl Connection {
    pub(crate) fn is_registered(&self) -> bool {
        self.registered && matches!(self.link, Link::Up { .. })
    }

    pub(crate) fn queue_pair(&self) -> Option<QueuePair> {
        match self.link {
            Link::Opening { queue_pair } | Link::Up { queue_pair, .. } => Some(queue_pair),
            Link::Down | Link::Abandoned | Link::Lost => None,
        }
    }
}

/// All connections of a client.
#[derive(Debug)]
pub(crate) struct Connections {
    lanes: u8,
    /// Connections by server, then by lane.
    all: Vec<Connection>,
    /// Events not yet taken by the owner; at most one per queue pair.
    events: VecDeque<Event>,
}

impl Connections {
    pub(crate) fn new(servers: impl Iterator<Item = u16>, lanes: u8) -> Self {
        let mut servers: Vec<u16> = servers.collect();
        servers.sort_unstable();
        let id = |server| (0..lanes).map(move |lane| ConnectionId { server, lane });
        let all: Vec<_> = servers.into_iter().flat_map(id).map(Connection::new).collect();
        Self { lanes, events: VecDeque::with_capacity(all.len()), all }
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = ConnectionId> {
        self.all.iter().map(|connection| connection.id)
    }

    /// Queue pairs to a server that are up.
    pub(crate) fn up(&self, server: u16) -> impl Iterator<Item = QueuePair> {
        self.all.iter().filter(move |connection| connection.id.server == server).filter_map(|connection| {
            match connection.link {
                Link::Up { queue_pair, .. } => Some(queue_pair),
                _ => None,
            }
        })
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: ConnectionId) -> Result<&mut Connection, ConnectError> {
        // Servers are mostly numbered from 0 without gaps: the first guess is right.
        let guess = usize::from(id.server) * usize::from(self.lanes) + usize::from(id.lane);
        let at = match self.all.get(guess) {
            Some(connection) if connection.id == id => Some(guess),
            _ => self.all.binary_search_by_key(&id, |connection| connection.id).ok(),
        };
        let lanes = self.lanes;
        at.map(|at| &mut self.all[at]).ok_or(ConnectError::Unknown { id, lanes })
    }

    /// Prepares a connection to be opened; returns a queue pair that is not wanted any more.
    pub(crate) fn close(&mut self, id: ConnectionId) -> Result<Option<QueuePair>, ConnectError> {
        let connection = self.get_mut(id)?;
        if let Link::Up { .. } = connection.link {
            return Err(ConnectError::Up { id });
        }
        let old = connection.queue_pair();
        connection.link = Link::Down;
        connection.registered = false;
        Ok(old)
    }

    /// Notes that a queue pair failed, and says whether that is news.
    pub(crate) fn broke(&mut self, queue_pair: QueuePair, reason: BreakReason) -> bool {
        let uses = |connection: &&mut Connection| matches!(connection.link, Link::Up { queue_pair: up, .. } if up == queue_pair);
        let Some(connection) = self.all.iter_mut().find(uses) else { return false };
        connection.link = Link::Down;
        connection.registered = false;
        connection.reason = reason;
        self.events.push_back(Event::ConnectionBroken { id: connection.id, reason });
        true
    }

    pub(crate) fn push_event(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

impl Connection {
    fn new(id: ConnectionId) -> Self {
        let reason = BreakReason::Failed(Failure::Flushed);
        Connection { id, link: Link::Down, registered: false, server_end: None, waiting: Vec::new(), reason }
    }
}
