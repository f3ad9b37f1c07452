//! A client's sessions with its memory servers, kept without I/O.
//!
//! ```text
//!   RemoteMemory ──events──► SessionKeeper ──Call──► carrier ──► MemoryServer::carry_out
//!        ▲                     │   ▲  │                              │
//!        └──writer, queue pair─┘   │  └─Notice──► owner              │
//!           memory, loss           └──────────Granted or Denied──────┘
//! ```
//!
//! A carrier is a direct call, a mailbox, or gRPC.

mod call;
mod checks;
mod grant;
mod server;

use std::collections::{BTreeMap, VecDeque};

use fatbtree_verbs::time::{Duration, Instant};

use crate::allocator::{ReturnedBlocks, Shortage};
use crate::connection::{BreakReason, ConnectionId, Event};
use crate::info::ServerInfo;
use crate::kept::Kept;
use crate::locks::SessionId;

pub use call::{Attached, Call, CallId, Denied, Granted, Meaning, NoAnswer, Opened, Places};
pub use checks::Check;
pub use grant::{BLOCKS_AT_ONCE, Chunk, FreeBlocks, Grant};
use server::{GivenUp, Server};

/// Options of a keeper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeeperOptions {
    /// The first pause after a refusal, or after a call without an answer. The next ones are twice as long each.
    pub first_pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
    /// Time for which operations wait for a server that does not answer. `None`: without end.
    pub patience: Option<Duration>,
    /// Interval in which places that the client has in excess are given back.
    pub surplus: Duration,
}

impl Default for KeeperOptions {
    /// Pauses from 10 ms to 500 ms, as over a network for calls; surplus once a second.
    fn default() -> Self {
        Self {
            first_pause: Duration::from_millis(10),
            longest_pause: Duration::from_millis(500),
            patience: None,
            surplus: Duration::from_secs(1),
        }
    }
}

/// Something that a keeper has done or met; its owner may act on it.
#[derive(Clone, Debug)]
pub enum Notice {
    /// A new session has begun, perhaps with another structure: see [`SessionKeeper::info`].
    Opened {
        /// The server.
        server: u16,
    },
    /// A connection is up.
    Connected {
        /// The connection.
        id: ConnectionId,
    },
    /// A connection broke. It is being made again.
    Broken {
        /// The connection.
        id: ConnectionId,
        /// The cause.
        reason: BreakReason,
    },
    /// A server has lost its structure: operations on it fail until it has another one.
    Lost {
        /// The server.
        server: u16,
    },
    /// A server refuses, or has not answered for as long as operations wait: they fail until it answers.
    OutOfReach {
        /// The server.
        server: u16,
    },
    /// A lock was left: the owner runs [`RemoteMemory::finish`](crate::RemoteMemory::finish).
    Unfinished {
        /// The server.
        server: u16,
    },
    /// A call was refused, or not answered, or its answer cannot be used.
    Denied {
        /// The server.
        server: u16,
        /// The failure.
        denied: Denied,
    },
}

/// Notices that wait for the owner; older ones are dropped.
const NOTICES: usize = 1024;

/// Keeps one client's sessions with all its memory servers: opens and renews them, connects queue pairs, brings memory, gives blocks back,
/// and notices lost structures. It has no clock, socket or thread.
///
/// **Driving contract.** Time never goes back. After each [turn](crate::RemoteMemory::turn) of the memory, each answer, and when
/// [`poll_timeout`](Self::poll_timeout) has come:
/// * carry all calls of [`poll_call`](Self::poll_call) to their servers;
/// * take all [notices](Self::poll_notice).
///
/// Each call is answered once by [`handle_answer`](Self::handle_answer), with [`NoAnswer`] if need be; [`pump`](Self::pump) does both where
/// servers answer at once. A server has at most one call under
/// way, and a renewal beside it where the call takes a part of the lease: so the session does not end after a slow call. The keeper takes
/// the memory's events; nothing else does.
///
/// ```
/// use fatbtree_remote_memory::RemoteMemory;
/// use fatbtree_memserver::{ClientId, MemoryServer, Tenant};
/// use fatbtree_remote_memory::session_keeper::{Denied, NoAnswer, SessionKeeper};
/// use fatbtree_verbs::time::Instant;
/// use fatbtree_verbs::{Device, Verbs};
///
/// /// Lets a server that is at hand answer everything.
/// fn keep<V: Verbs, D: Device, T: Tenant>(
///     keeper: &mut SessionKeeper<T::Description>,
///     memory: &RemoteMemory<V>,
///     now: Instant,
///     (client, mut process): (ClientId, Option<&mut MemoryServer<D, T>>),
/// ) {
///     keeper.pump(now, memory, |_, call| match &mut process {
///         Some(process) => process.carry_out(now, client, call).map_err(Denied::from),
///         None => Err(NoAnswer.into()),
///     });
///     while let Some(notice) = keeper.poll_notice() {
///         println!("{notice:?}");
///     }
/// }
/// ```
#[derive(Debug)]
pub struct SessionKeeper<S> {
    options: KeeperOptions,
    servers: BTreeMap<u16, Server<S>>,
    notices: Notices,
    surplus_due: Instant,
    is_closing: bool,
    /// Blocks rest that are given back before the sessions are closed.
    has_resting: bool,
}

/// Notices that the owner has not taken yet.
#[derive(Debug, Default)]
struct Notices(VecDeque<Notice>);

impl Notices {
    fn push(&mut self, notice: Notice) {
        if self.0.len() >= NOTICES {
            self.0.pop_front();
        }
        self.0.push_back(notice);
    }
}

impl<S> SessionKeeper<S> {
    /// A keeper of these connections, none of which is up.
    pub fn new(connections: impl IntoIterator<Item = ConnectionId>, options: KeeperOptions) -> Self {
        let mut servers: BTreeMap<u16, Server<S>> = BTreeMap::new();
        for id in connections {
            servers.entry(id.server).or_default().add(id);
        }
        Self {
            options,
            servers,
            notices: Notices::default(),
            surplus_due: Instant::ZERO + options.surplus,
            is_closing: false,
            has_resting: false,
        }
    }

    // ---- getters ----

    /// A server's description of itself when its last session was opened.
    pub fn info(&self, server: u16) -> Option<&ServerInfo<S>> {
        self.servers.get(&server)?.info()
    }

    /// The present session with a server.
    pub fn session(&self, server: u16) -> Option<SessionId> {
        self.servers.get(&server)?.session()
    }

    /// Whether all connections are up.
    pub fn is_connected(&self) -> bool {
        self.servers.values().all(Server::is_connected)
    }

    /// Servers with a connection that is not up.
    pub fn not_connected(&self) -> impl Iterator<Item = u16> {
        self.servers.iter().filter(|(_, kept)| !kept.is_connected()).map(|(server, _)| *server)
    }

    /// Whether all sessions are closed.
    pub fn is_closed(&self) -> bool {
        self.is_closing && self.servers.values().all(Server::is_closed)
    }

    // ---- driving ----

    /// The next call: for a server that has none under way, or a renewal that is due beside one.
    pub fn poll_call(&mut self, now: Instant, memory: &impl Kept) -> Option<(CallId, Call)> {
        self.take_events(memory);
        if now >= self.surplus_due && !self.is_closing {
            self.surplus_due = now + self.options.surplus;
            for places in memory.remote().surplus() {
                self.give_back(places);
            }
        }
        if self.has_resting && !memory.remote().has_resting() {
            self.return_all(memory);
        }
        let Self { options, servers, notices, is_closing, has_resting, .. } = self;
        let call = servers.iter_mut().find_map(|(&server, kept)| {
            let call = match is_closing {
                true if *has_resting => kept.next_last_sync(now, memory.remote()),
                true => kept.next_last_call(now),
                false => kept.next_call(now, memory.remote(), options, notices),
            };
            Some((CallId { server, is_beside: false }, call?))
        });
        call.or_else(|| {
            let mut renewals =
                servers.iter_mut().map(|(&server, kept)| (server, kept.next_renewal(now, memory.remote())));
            renewals.find_map(|(server, call)| Some((CallId { server, is_beside: true }, call?)))
        })
    }

    /// Carries all calls that are due, by a carrier that answers at once.
    pub fn pump<E: Into<Denied>>(
        &mut self,
        now: Instant,
        memory: &impl Kept,
        mut carry: impl FnMut(u16, Call) -> Result<Granted<S>, E>,
    ) {
        while let Some((id, call)) = self.poll_call(now, memory) {
            let answer = carry(id.server, call);
            self.handle_answer(now, memory, id, answer);
        }
    }

    /// Takes the answer to a call under way. An answer to no call changes nothing.
    pub fn handle_answer(
        &mut self,
        now: Instant,
        memory: &impl Kept,
        call: CallId,
        answer: Result<Granted<S>, impl Into<Denied>>,
    ) {
        let Self { options, servers, notices, .. } = self;
        let Some(kept) = servers.get_mut(&call.server) else { return };
        let answer = answer.map_err(Into::into);
        match call.is_beside {
            true => {
                let told = answer.map(|granted| match granted {
                    Granted::Renewed { wait } => wait,
                    _ => 0,
                });
                kept.handle_renewal(now, memory.remote(), options, notices, told);
            }
            false => kept.handle_answer(now, memory, options, notices, answer),
        }
    }

    /// Takes all calls under way for unanswered: their carrier is gone.
    pub fn abandon_calls(&mut self, now: Instant, memory: &impl Kept) {
        let Self { options, servers, notices, .. } = self;
        for kept in servers.values_mut() {
            kept.handle_renewal(now, memory.remote(), options, notices, Err(NoAnswer.into()));
            kept.handle_answer(now, memory, options, notices, Err(NoAnswer.into()));
        }
    }

    /// Time at which [`poll_call`](Self::poll_call) is due, if nothing else happens before.
    pub fn poll_timeout(&self) -> Instant {
        let has_ended = |server: &&Server<S>| self.is_closing && server.is_closed();
        let dues = self.servers.values().filter(|server| !has_ended(server)).filter_map(Server::poll_timeout);
        let surplus = if self.is_closing { Instant::from_nanos(u64::MAX) } else { self.surplus_due };
        dues.fold(surplus, Instant::min)
    }

    /// The next notice.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.0.pop_front()
    }

    // ---- mutations of the owner ----

    /// Gives a server up that has not answered by this time, before [`KeeperOptions::patience`] ends: it was waited for already.
    pub fn expect_by(&mut self, server: u16, by: Instant) {
        if let Some(server) = self.servers.get_mut(&server) {
            server.expect_by(by);
        }
    }

    /// Makes the next call to a server a renewal: its session may have ended.
    pub fn doubt(&mut self, server: u16) {
        if let Some(server) = self.servers.get_mut(&server) {
            server.doubt();
        }
    }

    /// Gives places back that the owner has taken out of the memory, in the session that they name, or never.
    pub fn give_back(&mut self, places: ReturnedBlocks) {
        if let Some(server) = self.servers.get_mut(&places.server) {
            server.give_back(places);
        }
    }

    /// Closes all sessions, after the client's free places were given back: those that rest until a server has synced, after that. Nothing
    /// else is asked for any more.
    pub fn close(&mut self, memory: &impl Kept) {
        self.is_closing = true;
        self.has_resting = memory.remote().sync_for_resting();
        if !self.has_resting {
            self.return_all(memory);
        }
    }

    fn return_all(&mut self, memory: &impl Kept) {
        self.has_resting = false;
        for places in memory.remote().take_returned() {
            self.give_back(places);
        }
    }

    fn take_events(&mut self, memory: &impl Kept) {
        let remote = memory.remote();
        while let Some(event) = remote.poll_event() {
            match event {
                Event::ConnectionBroken { id, reason } => {
                    self.notices.push(Notice::Broken { id, reason });
                    if let Some(server) = self.servers.get_mut(&id.server) {
                        server.broke(id, remote);
                    }
                }
                Event::MemoryWanted { server, class, bytes } => {
                    let kept = self.servers.get_mut(&server);
                    let why = match kept.as_ref().map(|kept| kept.given_up()) {
                        Some(None) if !self.is_closing => None,
                        Some(Some(GivenUp::Lost)) => Some(Shortage::Lost),
                        _ => Some(Shortage::Unknown),
                    };
                    match (why, kept) {
                        (None, Some(kept)) => kept.want(class, bytes),
                        (why, _) => remote.refuse_memory(server, class, why.unwrap_or_default()),
                    }
                }
                Event::SyncWanted { server } => match self.servers.get_mut(&server) {
                    Some(kept) if kept.given_up().is_none() => kept.want_sync(),
                    _ => remote.sync_ends(server, false),
                },
                Event::Unfinished { server } => self.notices.push(Notice::Unfinished { server }),
            }
        }
    }
}
