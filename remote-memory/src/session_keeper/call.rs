//! Calls of a client to keep its session with a memory server, and the answers, as values: any carrier takes them there and back.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Endpoint, Memory, QueuePairNumber};

use super::grant::Grant;
use crate::allocator::{ReturnedBlocks, Shortage, SizeClass};
use crate::info::ServerInfo;
use crate::locks::{Owner, SessionId};

/// A call's name until it is answered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallId {
    pub(super) server: u16,
    /// The call is a renewal beside another call.
    pub(super) is_beside: bool,
}

impl CallId {
    /// The server that carries the call out.
    #[must_use]
    pub fn server(self) -> u16 {
        self.server
    }
}

/// A call of a [`SessionKeeper`](super::SessionKeeper), carried out by `MemoryServer::carry_out` of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    /// Opens a session.
    Open {
        /// Generation that the client has known in a former session.
        known: Option<u64>,
    },
    /// Makes a session last as long as a new one.
    Renew {
        /// The session.
        session: SessionId,
        /// Highest wait of a sweep for which the client has settled.
        settled: u64,
        /// Bytes of freed blocks that the client keeps.
        keeps: u64,
    },
    /// Brings everything that the server has carried out before to its disk.
    Sync {
        /// The session.
        session: SessionId,
    },
    /// Connects a queue pair, or makes a link in the server's process.
    Connect {
        /// The session.
        session: SessionId,
        /// The client's end.
        local: Endpoint,
        /// The server's end that the client had before: it ends first.
        replaces: Option<QueuePairNumber>,
    },
    /// Allocates memory, which is the structure's from then on.
    Allocate {
        /// The session.
        session: SessionId,
        /// Class of memory.
        class: SizeClass,
        /// Bytes of a block.
        bytes: u32,
    },
    /// Gives back blocks, at most [`BLOCKS_AT_ONCE`](super::BLOCKS_AT_ONCE).
    GiveBack {
        /// The blocks.
        places: ReturnedBlocks,
        /// Highest wait of a sweep for which the client has settled.
        settled: u64,
    },
    /// Closes a session.
    Close {
        /// The session.
        session: SessionId,
    },
}

/// A session that was opened, and the server's description at that time.
#[derive(Clone, Debug)]
pub struct Opened<S> {
    /// Its name.
    pub session: SessionId,
    /// Time for which it lasts without renewal.
    pub lease: Duration,
    /// The owner of its locks; `None` if the server has no locks.
    pub owner: Option<Owner>,
    /// Content of the server, and how to reach it.
    pub info: ServerInfo<S>,
}

/// A link of a client in the server's process, and the memory to which it leads.
#[derive(Clone, Debug)]
pub struct Attached {
    /// The server's end.
    pub endpoint: Endpoint,
    /// The region.
    pub memory: Arc<Memory>,
    /// Places where blocks may lie in it.
    pub places: Arc<dyn Places>,
}

/// Places where blocks may lie in a server's region.
pub trait Places: fmt::Debug + Send + Sync {
    /// Whether a block of a class with one size may begin at `offset`.
    fn may_begin(&self, class: SizeClass, offset: u64) -> bool;
}

/// The answer to a call that was carried out.
#[derive(Clone, Debug)]
pub enum Granted<S> {
    /// Answer to [`Call::Open`].
    Opened(Box<Opened<S>>),
    /// Answer to [`Call::Connect`]: the server's end.
    Connected(Endpoint),
    /// Answer to [`Call::Connect`] of a client in the server's process.
    Attached(Box<Attached>),
    /// Answer to [`Call::Allocate`].
    Supplied(Grant),
    /// Answer to [`Call::Renew`].
    Renewed {
        /// Wait of a sweep that the session holds up; 0: none.
        wait: u64,
    },
    /// Answer to all other calls.
    Done,
}

/// Meaning of a refusal for the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// The session has ended: open another one.
    Ended,
    /// The server has lost its structure.
    Lost,
    /// There was no answer, or the server asks to be asked again.
    Later,
    /// The server refuses.
    No,
}

/// A call that was not carried out, as far as is known.
#[derive(Clone, Debug)]
pub struct Denied {
    /// Its meaning.
    pub meaning: Meaning,
    /// Reason for which a request for memory got none.
    pub shortage: Shortage,
    /// The error in full.
    pub error: Arc<dyn Error + Send + Sync>,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// No answer from a memory server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the memory server has not answered; the call is made again after a pause")]
pub struct NoAnswer;

impl Denied {
    /// A denial for this error.
    pub fn new(meaning: Meaning, error: impl Error + Send + Sync + 'static) -> Self {
        Self { meaning, shortage: Shortage::Unknown, error: Arc::new(error) }
    }
}

impl From<NoAnswer> for Denied {
    fn from(error: NoAnswer) -> Self {
        Self::new(Meaning::Later, error)
    }
}
