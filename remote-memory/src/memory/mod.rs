//! The memory of all servers as one client reaches it: queue pairs to each of them, reads by address, and chains under locks.

mod atomics;
mod connect;
mod contention;
mod long;
mod ongoing;
mod operate;
mod reserve;
mod resting;
mod scatter;
mod sessions;
mod shared;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

pub use contention::Turn;
use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{Broken, Failure, PostError, QueuePair, Reactor, Verbs};
pub use long::{PIECE, ReadBytes};
pub use ongoing::{Era, Ongoing};
use operate::no_answer;
pub use operate::{bytes_of, word_at, word_of};
pub use reserve::NotReserved;
pub use resting::RESTING;
pub(crate) use resting::Resting;
pub use scatter::{MAX_SHARES, Share};

use crate::config::RemoteConfig;
use crate::conflict::Conflicts;
use crate::connection::{BreakReason, ConnectError, ConnectionId, Connections, Event, RemoteStats};
use crate::operation::{Attempts, Pauses};
use crate::session::Session;

/// The memory of all servers as one client reaches it, for the operations of an index. It belongs to one thread.
///
/// **Driving contract.** The memory has no clock, thread or executor.
/// * Operations are futures: poll them in any executor of its thread.
/// * Call [`turn`](Self::turn) when completions may have come, and at [`poll_timeout`](Self::poll_timeout). Time never goes back.
/// * After each turn the client's [`SessionKeeper`] takes all [events](Self::poll_event): it opens sessions, connects, and brings memory.
///   Nothing else takes events. Code without a keeper, such as a test of verbs, does what each [`Event`] says.
/// * On [`Notice::Unfinished`] of the keeper run [`finish`](Self::finish), or [`Spread::finish`] of the structure.
///
/// [`SessionKeeper`]: crate::session_keeper::SessionKeeper
/// [`Notice::Unfinished`]: crate::session_keeper::Notice::Unfinished
/// [`Spread::finish`]: crate::Spread::finish
pub struct RemoteMemory<V> {
    reactor: Reactor<V>,
    config: RemoteConfig,
    state: RefCell<State>,
    /// Operations under way of structures whose servers look for lost blocks.
    eras: Rc<ongoing::Eras>,
    /// State of structures, which all their handles share.
    shared: shared::Shared,
}

struct State {
    connections: Connections,
    next_lane: u8,
    pauses: Pauses,
    conflicts: Conflicts,
    attempts: Attempts,
    stats: RemoteStats,
    /// Present sessions, by server.
    sessions: BTreeMap<u16, Session>,
}

impl<V> std::fmt::Debug for RemoteMemory<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.borrow();
        f.debug_struct("RemoteMemory")
            .field("connections", &state.connections)
            .field("stats", &state.stats)
            .finish_non_exhaustive()
    }
}

/// Reasons for which an operation cannot go on as it was.
#[derive(Debug)]
pub enum Trouble {
    /// Its connection broke: it may begin again on the next one.
    Broke(BreakReason),
    /// The owner gave the connection up.
    Abandoned(ConnectionId),
    /// The server has lost what its memory held.
    Lost(u16),
    /// The client has no connection to the server.
    UnknownServer(u16),
    /// The client may not write there.
    NotWriter(u16),
    /// The session in which the client was to write there has ended.
    Lapsed,
    /// The request cannot be posted, now or later.
    Refused(PostError),
}

impl<V: Verbs> RemoteMemory<V> {
    /// A client of these servers, none of which is connected. `seed` decides how long it pauses
    /// before it reads something again.
    ///
    /// # Errors
    /// When there are no lanes.
    pub fn new(
        verbs: V,
        servers: impl Iterator<Item = u16>,
        config: RemoteConfig,
        seed: u64,
    ) -> Result<Self, ConnectError> {
        if config.lanes == 0 {
            return Err(ConnectError::Lanes);
        }
        let state = RefCell::new(State {
            connections: Connections::new(servers, config.lanes),
            next_lane: 0,
            pauses: Pauses::new(seed),
            conflicts: Conflicts::new(config.contention.bounds_tasks),
            attempts: Attempts::default(),
            stats: RemoteStats::default(),
            sessions: BTreeMap::new(),
        });
        let reactor = Reactor::throttled(verbs, config.contention.throttling);
        Ok(Self { reactor, config, state, eras: Rc::default(), shared: shared::Shared::default() })
    }

    /// Takes what has come by `now`, and wakes the operations that wait for it. Says whether there was anything.
    pub fn turn(&self, now: Instant) -> bool {
        let any = self.reactor.turn(now);
        while let Some(broken) = self.reactor.poll_broken() {
            self.broke(broken);
        }
        self.state.borrow_mut().conflicts.handle_timeout(self.reactor.now());
        self.call_competitors();
        any
    }

    /// Time at which [`turn`](Self::turn) is due for an operation that pauses.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.reactor.poll_timeout()
    }

    /// The next event, for the session keeper.
    pub fn poll_event(&self) -> Option<Event> {
        self.state.borrow_mut().connections.poll_event()
    }

    /// The reactor: its device, to hand frames to, and its time.
    pub fn reactor(&self) -> &Reactor<V> {
        &self.reactor
    }

    /// Configuration as given.
    pub fn config(&self) -> &RemoteConfig {
        &self.config
    }

    /// Counters since the beginning.
    pub fn counters(&self) -> RemoteStats {
        self.state.borrow().stats
    }

    /// Tells the owner something.
    pub(crate) fn push_event(&self, event: Event) {
        self.state.borrow_mut().connections.push_event(event);
    }

    /// Tells the owner that a dropped operation has left something on a server that its structure takes back: see
    /// [`Event::Unfinished`].
    pub fn tell_unfinished(&self, server: u16) {
        self.push_event(Event::Unfinished { server });
    }

    pub(crate) fn count(&self, work: impl FnOnce(&mut RemoteStats)) {
        work(&mut self.state.borrow_mut().stats);
    }

    /// Notes that a queue pair failed, unless it is known.
    fn broke(&self, broken: Broken) {
        let Broken { queue_pair, failure, index_read } = broken;
        let reason = match failure {
            Failure::RemoteAccess if index_read => BreakReason::Unregistered,
            failure => BreakReason::Failed(failure),
        };
        let news = {
            let mut state = self.state.borrow_mut();
            let news = state.connections.broke(queue_pair, reason);
            if news {
                state.stats.broken_connections += 1;
                state.stats.refused_index_reads += u64::from(reason == BreakReason::Unregistered);
            }
            news
        };
        if news {
            self.destroy(Some(queue_pair));
        }
    }

    fn destroy(&self, queue_pair: Option<QueuePair>) {
        if let Some(queue_pair) = queue_pair {
            self.reactor.with(|verbs| verbs.destroy(queue_pair));
        }
    }
}
