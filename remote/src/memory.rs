//! The memory of all servers as one client reaches it: queue pairs to each of them, reads by address, and chains under locks.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{
    Agreed, Broken, Buffer, Endpoint, Error, Failure, Operation, Output, PostError, QueuePair,
    QueuePairNumber, Reactor, Remote, Verbs,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::address::GlobalAddress;
use crate::checks::Check;
use crate::config::RemoteConfig;
use crate::connection::{
    BreakReason, ConnectError, ConnectionId, Connections, Event, Link, RemoteSide, RemoteStats,
};
use crate::locks::{LockId, SessionId, Writer};
use crate::session::Session;
use crate::space::{ChunkKind, ReturnedPlaces, SURPLUS, Shortage, Space, Want};

/// The memory of all servers as one client reaches it, for the operations of an index. It belongs to one thread.
///
/// **Driving contract.**
/// * Connections first: [`open`](Self::open) every one of [`connections`](Self::connections), exchange endpoints with the
///   server by whatever means, then [`connected`](Self::connected).
/// * Operations are futures: run them in any executor.
/// * Call [`turn`](Self::turn) whenever completions may have come or [`next_deadline`](Self::next_deadline) is reached; then take
///   all that [`poll_event`](Self::poll_event) has, and connect anew what broke, or [`abandon`](Self::abandon) it.
pub struct RemoteMemory<V> {
    reactor: Reactor<V>,
    config: RemoteConfig,
    state: RefCell<State>,
}

struct State {
    connections: Connections,
    next_lane: u8,
    random: ChaCha8Rng,
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

/// Why an operation cannot go on as it was.
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
            random: ChaCha8Rng::seed_from_u64(seed),
            stats: RemoteStats::default(),
            sessions: BTreeMap::new(),
        });
        Ok(Self { reactor: Reactor::new(verbs), config, state })
    }

    // ---- connections ----

    /// All connections there should be.
    pub fn connections(&self) -> Vec<ConnectionId> {
        self.state.borrow().connections.ids().collect()
    }

    /// Makes a new queue pair for a connection that is not up, and says which endpoint to tell the server.
    ///
    /// # Errors
    /// When there is no such connection, it is up, or the device refuses.
    pub fn open(&self, id: ConnectionId) -> Result<Endpoint, ConnectError> {
        let old = self.state.borrow_mut().connections.close(id)?;
        let (queue_pair, endpoint) = self.reactor.with(|verbs| {
            if let Some(old) = old {
                verbs.destroy(old);
            }
            let queue_pair = verbs.create()?;
            Ok::<_, ConnectError>((queue_pair, verbs.endpoint(queue_pair)?))
        })?;
        self.state.borrow_mut().connections.get_mut(id)?.link = Link::Opening { queue_pair };
        Ok(endpoint)
    }

    /// Completes a connection: the server has been told our endpoint and this is its side. Operations that waited for it go
    /// on.
    ///
    /// # Errors
    /// When [`open`](Self::open) was not called before, or the device refuses the endpoint.
    pub fn connected(&self, id: ConnectionId, remote: RemoteSide) -> Result<Agreed, ConnectError> {
        let Link::Opening { queue_pair } = self.state.borrow_mut().connections.get_mut(id)?.link else {
            return Err(ConnectError::NotOpening { id });
        };
        let agreed = self.reactor.with(|verbs| verbs.connect(queue_pair, &remote.endpoint))?;
        let waiting = {
            let mut state = self.state.borrow_mut();
            let connection = state.connections.get_mut(id)?;
            connection.link = Link::Up { queue_pair, rkey: remote.rkey };
            connection.registered = remote.registered;
            connection.server_end = Some(remote.endpoint.queue_pair);
            std::mem::take(&mut connection.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
        Ok(agreed)
    }

    /// Tells whether the first-hop switch admits index reads on this connection.
    ///
    /// # Errors
    /// When there is no such connection.
    pub fn set_registered(&self, id: ConnectionId, registered: bool) -> Result<(), ConnectError> {
        self.state.borrow_mut().connections.get_mut(id)?.registered = registered;
        Ok(())
    }

    /// Whether index reads are sent on this connection: it is up and registered.
    pub fn is_registered(&self, id: ConnectionId) -> bool {
        self.state.borrow_mut().connections.get_mut(id).is_ok_and(|connection| connection.is_registered())
    }

    /// Lets operations write to the memory of a server, under the locks that the server has given the client.
    ///
    /// A client whose session has ended has lost everything that it had of the server, and the next session has another
    /// [name](SessionId). It is told here before the first queue pair of the new session is [`connected`](Self::connected). Then all
    /// is forgotten that hangs on the former one: locks, rests of chunks, places that were freed. Operations that
    /// were writing meanwhile cannot tell what became of that, and say so.
    ///
    /// # Errors
    /// When there is no such server.
    pub fn set_writer(&self, server: u16, writer: Writer) -> Result<(), ConnectError> {
        let mut state = self.state.borrow_mut();
        state.connections.get_mut(ConnectionId { server, lane: 0 })?;
        let waiting = match state.sessions.entry(server) {
            Entry::Vacant(entry) => {
                entry.insert(Session::new(server, writer));
                Vec::new()
            }
            Entry::Occupied(mut entry) => entry.get_mut().renew(server, writer),
        };
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Brings a chunk of memory for what is new, as [`Event::MemoryWanted`] asks for. It must be published as the index's already: it is
    /// not given back. What was given in another session than the present one is not the client's any more, and is left alone.
    pub fn supply(&self, session: SessionId, address: GlobalAddress, bytes: u64, kind: ChunkKind) {
        self.supplied(session, address.server(), |space| space.supply(address, bytes, kind));
    }

    /// Brings places that others have freed, as [`supply`](Self::supply) brings a chunk. `bytes` is the size of a record's place; other
    /// kinds have their own.
    pub fn supply_places(
        &self,
        session: SessionId,
        server: u16,
        kind: ChunkKind,
        bytes: u32,
        addresses: &[GlobalAddress],
    ) {
        self.supplied(session, server, |space| space.supply_places(kind, bytes, addresses));
    }

    fn supplied(&self, session: SessionId, server: u16, supply: impl FnOnce(&mut Space) -> Vec<Waker>) {
        let mut state = self.state.borrow_mut();
        let present = state.sessions.get_mut(&server);
        let is_given =
            |present: &&mut Session| present.writer.owner.session == session || !Check::SessionIdentity.on();
        let waiting = present.filter(is_given).map(|present| supply(&mut present.space)).unwrap_or_default();
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Says that there is no memory, as [`Event::MemoryWanted`] asks for. The operations that wait for it end;
    /// later ones ask again.
    pub fn refuse_memory(&self, server: u16, kind: ChunkKind, why: Shortage) {
        let mut state = self.state.borrow_mut();
        let waiting = state.sessions.get_mut(&server).map(|session| session.space.refuse(kind, why));
        drop(state);
        waiting.into_iter().flatten().for_each(Waker::wake);
    }

    /// Places that the client has freed and not used again, above [`SURPLUS`](crate::SURPLUS) of each kind and size on each server.
    /// They are not the client's any more: their server takes them, in the session that they name, and is asked once.
    pub fn surplus(&self) -> Vec<ReturnedPlaces> {
        self.returned(SURPLUS)
    }

    /// All of them, when the client is closed.
    pub fn take_returned(&self) -> Vec<ReturnedPlaces> {
        self.returned(0)
    }

    fn returned(&self, keep: usize) -> Vec<ReturnedPlaces> {
        let mut state = self.state.borrow_mut();
        let of_one = |session: &mut Session| session.space.take_returned(session.writer.owner.session, keep);
        state.sessions.values_mut().flat_map(of_one).collect()
    }

    /// The queue pair of a connection, known from [`open`](Self::open) on.
    pub fn queue_pair(&self, id: ConnectionId) -> Option<QueuePair> {
        self.state.borrow_mut().connections.get_mut(id).ok()?.queue_pair()
    }

    /// The server's end of the queue pair that a connection had last. A request to connect anew names it, and the server destroys it
    /// first: otherwise what was posted on it might be carried out late.
    pub fn replaces(&self, id: ConnectionId) -> Option<QueuePairNumber> {
        self.state.borrow_mut().connections.get_mut(id).ok()?.server_end
    }

    /// Gives a connection up: operations that use it or wait for it, and all to come, fail until it is opened again.
    ///
    /// # Errors
    /// When there is no such connection.
    pub fn abandon(&self, id: ConnectionId) -> Result<(), ConnectError> {
        self.give_up(id, Link::Abandoned)
    }

    /// The same for a connection whose server has lost what its memory held: operations fail with
    /// [`Trouble::Lost`].
    ///
    /// # Errors
    /// When there is no such connection.
    pub fn lose(&self, id: ConnectionId) -> Result<(), ConnectError> {
        self.give_up(id, Link::Lost)
    }

    /// Whether a connection was given up because its server has [lost](Self::lose) what its memory held.
    pub fn is_lost(&self, id: ConnectionId) -> bool {
        let mut state = self.state.borrow_mut();
        state.connections.get_mut(id).is_ok_and(|connection| matches!(connection.link, Link::Lost))
    }

    fn give_up(&self, id: ConnectionId, link: Link) -> Result<(), ConnectError> {
        let (old, waiting) = {
            let mut state = self.state.borrow_mut();
            let connection = state.connections.get_mut(id)?;
            let old = connection.queue_pair();
            connection.link = link;
            connection.registered = false;
            (old, std::mem::take(&mut connection.waiting))
        };
        self.destroy(old);
        waiting.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Breaks the connections to a server that are up, because their session has ended: nothing that is posted on them is carried out any
    /// more. Operations wait for the next ones.
    pub fn sever(&self, server: u16) {
        let up: Vec<QueuePair> = self.state.borrow().connections.up(server).collect();
        for queue_pair in up {
            self.broke(Broken { queue_pair, failure: Failure::Flushed, index_read: false });
        }
    }

    // ---- driving ----

    /// Takes what has come by `now`, and wakes the operations that wait for it. Says whether there was anything.
    pub fn turn(&self, now: Instant) -> bool {
        let any = self.reactor.turn(now);
        while let Some(broken) = self.reactor.poll_broken() {
            self.broke(broken);
        }
        any
    }

    /// When [`turn`](Self::turn) is due for an operation that pauses.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.reactor.next_deadline()
    }

    /// The next connection that broke.
    pub fn poll_event(&self) -> Option<Event> {
        self.state.borrow_mut().connections.poll_event()
    }

    /// The reactor: its device, to hand frames to, and its time.
    pub fn reactor(&self) -> &Reactor<V> {
        &self.reactor
    }

    /// As given.
    pub fn config(&self) -> &RemoteConfig {
        &self.config
    }

    /// Counters since the beginning.
    pub fn counters(&self) -> RemoteStats {
        self.state.borrow().stats
    }

    // ---- for operations ----

    /// The lane of the next operation.
    pub fn take_lane(&self) -> u8 {
        let mut state = self.state.borrow_mut();
        let lane = state.next_lane;
        state.next_lane = (lane + 1) % self.config.lanes;
        lane
    }

    /// Waits until a connection is up. Says whether it is registered.
    ///
    /// # Errors
    /// When it was given up, or there is none.
    pub async fn until_up(&self, id: ConnectionId) -> Result<bool, Trouble> {
        poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            let Ok(connection) = state.connections.get_mut(id) else {
                return Poll::Ready(Err(Trouble::UnknownServer(id.server)));
            };
            match connection.link {
                Link::Up { .. } => Poll::Ready(Ok(connection.registered)),
                Link::Abandoned => Poll::Ready(Err(Trouble::Abandoned(id))),
                Link::Lost => Poll::Ready(Err(Trouble::Lost(id.server))),
                Link::Down | Link::Opening { .. } => {
                    if !connection.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                        connection.waiting.push(context.waker().clone());
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Queue pair and rkey of a connection, if it is up now.
    ///
    /// # Errors
    /// When it is not, and why.
    #[inline]
    pub fn link(&self, id: ConnectionId) -> Result<(QueuePair, u32), Trouble> {
        let mut state = self.state.borrow_mut();
        let Ok(connection) = state.connections.get_mut(id) else {
            return Err(Trouble::UnknownServer(id.server));
        };
        match connection.link {
            Link::Up { queue_pair, rkey } => Ok((queue_pair, rkey)),
            Link::Abandoned => Err(Trouble::Abandoned(id)),
            Link::Lost => Err(Trouble::Lost(id.server)),
            Link::Down | Link::Opening { .. } => Err(Trouble::Broke(connection.reason)),
        }
    }

    /// Reads `len` bytes at an address, when the connection there is up.
    ///
    /// # Errors
    /// When it cannot be posted, or the connection breaks.
    #[inline]
    pub async fn read(&self, lane: u8, from: GlobalAddress, len: u32) -> Result<Buffer, Trouble> {
        let id = ConnectionId { server: from.server(), lane };
        let (queue_pair, rkey) = match self.link(id) {
            Err(Trouble::Broke(_)) => {
                self.until_up(id).await?;
                self.link(id)?
            }
            link => link?,
        };
        let operation = Operation::Read { from: Remote { address: from.raw(), rkey }, len };
        self.fetch(id, queue_pair, operation).await
    }

    /// Posts one operation that brings bytes, on a [`link`](Self::link) that is up.
    ///
    /// # Errors
    /// When it cannot be posted, or the connection breaks.
    #[inline]
    pub async fn fetch(
        &self,
        id: ConnectionId,
        queue_pair: QueuePair,
        operation: Operation<'_>,
    ) -> Result<Buffer, Trouble> {
        self.count(|stats| stats.reads += 1);
        match self.reactor.chain(queue_pair, [operation]).await {
            Ok([Output::Read(bytes)]) => Ok(bytes),
            Err(Error::Post(error)) if error.queue_pair_survived() => Err(Trouble::Refused(error)),
            other => Err(self.failed(id, queue_pair, other.err())),
        }
    }

    /// Posts operations on one server's memory and locks with one doorbell, when the connection there is up. `operations` is told
    /// the rkey of that memory.
    ///
    /// They are posted in the session of `writer` or not at all. What is written under a lock must not be written after the session
    /// has ended, when the lock is another client's; a queue pair of the next session would let it through.
    ///
    /// # Errors
    /// When nothing was posted, or the connection broke under it.
    pub async fn chain<'d, const N: usize>(
        &self,
        id: ConnectionId,
        writer: &Writer,
        operations: impl FnOnce(u32) -> [Operation<'d>; N],
    ) -> Result<[Output; N], Trouble> {
        let (queue_pair, rkey) = match self.link(id) {
            Err(Trouble::Broke(_)) => {
                self.until_up(id).await?;
                self.link(id)?
            }
            link => link?,
        };
        if !self.writer(id.server)?.owner.is(writer.owner) && Check::Session.on() {
            return Err(Trouble::Lapsed);
        }
        match self.reactor.chain(queue_pair, operations(rkey)).await {
            Ok(outputs) => Ok(outputs),
            Err(Error::Post(error)) if error.queue_pair_survived() => Err(Trouble::Refused(error)),
            Err(error) => Err(self.failed(id, queue_pair, Some(error))),
        }
    }

    /// The identity under which the client writes to a server.
    ///
    /// # Errors
    /// When it may not.
    pub fn writer(&self, server: u16) -> Result<Writer, Trouble> {
        let state = self.state.borrow();
        state.sessions.get(&server).map(|session| session.writer).ok_or(Trouble::NotWriter(server))
    }

    /// The next server behind `server` to which the client may write; behind the last one, the first.
    pub fn next_writable(&self, server: u16) -> Option<u16> {
        let state = self.state.borrow();
        let behind = state.sessions.range(server.saturating_add(1)..).next();
        behind.or_else(|| state.sessions.first_key_value()).map(|(next, _)| *next)
    }

    /// Tells the owner something.
    pub(crate) fn push_event(&self, event: Event) {
        self.state.borrow_mut().connections.push_event(event);
    }

    /// Does something with the space that the client has on `server`, in the session of `writer`. `None`: that has ended.
    pub fn in_space<T>(&self, server: u16, writer: &Writer, work: impl FnOnce(&mut Space) -> T) -> Option<T> {
        self.in_session(server, writer, |session| work(&mut session.space))
    }

    /// Does something with the locks, or with what else the client has of `server`, in the session of `writer`. `None`: that has ended.
    pub(crate) fn in_session<T>(
        &self,
        server: u16,
        writer: &Writer,
        work: impl FnOnce(&mut Session) -> T,
    ) -> Option<T> {
        let mut state = self.state.borrow_mut();
        let session = state.sessions.get_mut(&server)?;
        session.writer.owner.is(writer.owner).then(|| work(session))
    }

    /// A lock that was left unfinished while no operation waited for it, and the session that it is of.
    pub(crate) fn take_left(&self) -> Option<(LockId, Writer)> {
        let mut state = self.state.borrow_mut();
        let mut sessions = state.sessions.values_mut();
        sessions.find_map(|session| Some((session.locks.take_left()?, session.writer)))
    }

    /// Waits until there is memory for a node or record, or another session: then it is worth another attempt.
    ///
    /// # Errors
    /// When the owner says that there is none.
    pub async fn until_memory(&self, want: Want) -> Result<(), Shortage> {
        let Want { server, kind, bytes, .. } = want;
        let Ok(writer) = self.writer(server) else { return Ok(()) };
        let mut before = None;
        poll_fn(|context| {
            let wait = |session: &mut Session| {
                let (refusals, shortage) = session.space.refusals(kind);
                if session.space.has(want) {
                    return Ok(Ok(()));
                }
                if *before.get_or_insert(refusals) != refusals {
                    return Ok(Err(shortage));
                }
                Err(session.space.wait(kind, context.waker()))
            };
            match self.in_session(server, &writer, wait) {
                // The next attempt asks in the next session.
                None => Poll::Ready(Ok(())),
                Some(Ok(has)) => Poll::Ready(has),
                Some(Err(asks)) => {
                    if asks {
                        self.push_event(Event::MemoryWanted { server, kind, bytes });
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Pauses before the `attempt`th time that the same is read again: twice as long each time, with a random part, so that
    /// operations that met do not meet again.
    pub async fn pause(&self, attempt: u32) {
        const SHORTEST: u64 = 1_000;
        const LONGEST: u64 = 1_000_000;
        let span = (SHORTEST << attempt.min(20)).min(LONGEST);
        let span = self.state.borrow_mut().random.random_range(span / 2..=span);
        self.reactor.sleep(Duration::from_nanos(span)).await;
    }

    pub(crate) fn count(&self, work: impl FnOnce(&mut RemoteStats)) {
        work(&mut self.state.borrow_mut().stats);
    }

    /// What broke the connection under an operation: mostly it is known already, and better than an operation that was
    /// only flushed.
    #[cold]
    fn failed(&self, id: ConnectionId, queue_pair: QueuePair, error: Option<Error>) -> Trouble {
        let failure = match error {
            Some(Error::Failed(failure)) => failure,
            Some(Error::Post(_)) => Failure::Flushed,
            // A device that answers a READ with something else than bytes is broken, and so is what it says.
            None => Failure::Other,
        };
        self.broke(Broken { queue_pair, failure, index_read: false });
        let mut state = self.state.borrow_mut();
        let reason = state.connections.get_mut(id).map(|connection| connection.reason);
        Trouble::Broke(reason.unwrap_or(BreakReason::Failed(failure)))
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
