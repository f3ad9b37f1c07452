//! The client itself: lookups in, frames out and in, events out.

use std::collections::VecDeque;

use fatbtree_index::{GlobalAddress, OpId, Outcome, Progress, ReadFailure, Start, SuperRoot};
use fatbtree_nic::time::Instant;
use fatbtree_nic::{CompletionStatus, Endpoint, Nic, PostError, QueuePairNumber};

use super::config::{ClientConfig, ClientConfigError, Mode};
use super::connection::{Connection, ConnectionId, Link, RemoteSide};
use super::error::{ConnectError, SubmitError};
use super::event::{Answer, BreakReason, Done, Event, Failure};
use super::slot::{Phase, Slots};
use super::stats::ClientStats;
use super::verbs::{Memo, Request, Target};

/// Says whether a value is the right one, while it still lies in the NIC's buffer.
///
/// Implemented for closures `FnMut(OpId, u64, &[u8]) -> bool`.
pub trait CheckValue {
    /// Whether `value` is right for `key`.
    fn check(&mut self, op: OpId, key: u64, value: &[u8]) -> bool;
}

impl<F: FnMut(OpId, u64, &[u8]) -> bool> CheckValue for F {
    fn check(&mut self, op: OpId, key: u64, value: &[u8]) -> bool {
        self(op, key, value)
    }
}

/// Values that [`fatbtree_index::value::fill`] made from one seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeededValues {
    /// The seed.
    pub seed: u64,
}

impl CheckValue for SeededValues {
    fn check(&mut self, _op: OpId, key: u64, value: &[u8]) -> bool {
        fatbtree_index::value::check(key, self.seed, value)
    }
}

/// Looks up keys over RDMA READs, up to [`ClientConfig::depth`] at once. Sans-IO: it opens nothing and reads
/// no clock.
///
/// **Driving contract.**
/// * Connections first: [`reconnect`](Self::reconnect) for every one of [`connections`](Self::connections),
///   exchange endpoints with the server by whatever means, then [`connected`](Self::connected).
/// * [`submit`](Self::submit) while there is [`room`](Self::room).
/// * After each call that is given the time, send all that [`poll_transmit`](Self::poll_transmit) has, take
///   all that [`poll_event`](Self::poll_event) has, and call [`handle_timeout`](Self::handle_timeout) when
///   the time that [`poll_timeout`](Self::poll_timeout) names has come.
/// * Time never runs backwards.
///
/// Every submitted lookup ends in exactly one [`Event::Done`], as long as the owner answers each
/// [`Event::ConnectionBroken`] by reconnecting or abandoning.
pub struct RoceClient<C> {
    nic: Nic,
    config: ClientConfig,
    roots: SuperRoot,
    /// Lanes of partition `i` (in the order of the super-root) from `i * lanes` on.
    connections: Vec<Connection>,
    /// `(partition, its first connection)`, ascending.
    first_lane: Vec<(u16, usize)>,
    slots: Slots,
    events: VecDeque<Event>,
    /// Some connection has a break to tell.
    any_untold: bool,
    checker: C,
    stats: ClientStats,
}

impl<C> std::fmt::Debug for RoceClient<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RoceClient")
            .field("connections", &self.connections)
            .field("under_way", &(self.slots.len() - self.slots.free()))
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl<C: CheckValue> RoceClient<C> {
    /// A client without connections.
    ///
    /// # Errors
    /// When the configuration cannot work, such as nodes larger than the path MTU.
    pub fn new(
        nic: Nic,
        config: ClientConfig,
        roots: SuperRoot,
        checker: C,
    ) -> Result<Self, ClientConfigError> {
        config.check()?;
        let mut connections = Vec::new();
        let mut first_lane = Vec::new();
        for partition in roots.partitions() {
            first_lane.push((partition.id, connections.len()));
            for lane in 0..config.lanes {
                let id = ConnectionId { partition: partition.id, lane };
                connections.push(Connection::new(id, config.depth.div_ceil(u32::from(config.lanes))));
            }
        }
        first_lane.sort_unstable();
        Ok(RoceClient {
            nic,
            slots: Slots::new(&config),
            events: VecDeque::with_capacity(config.depth as usize + connections.len()),
            any_untold: false,
            config,
            roots,
            connections,
            first_lane,
            checker,
            stats: ClientStats::default(),
        })
    }

    // ---- connections ----

    /// All connections there should be.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.connections.iter().map(|connection| connection.id)
    }

    /// Makes a new queue pair for a connection that is not up, and says which endpoint to tell the server.
    ///
    /// # Errors
    /// When there is no such connection, it is up, or the NIC refuses.
    pub fn reconnect(&mut self, now: Instant, id: ConnectionId) -> Result<Endpoint, ConnectError> {
        let at = self.index_of(id)?;
        let connection = &mut self.connections[at];
        if matches!(connection.link, Link::Up { .. }) {
            return Err(ConnectError::Up { id });
        }
        connection.retire();
        self.drop_queue_pair(now, at)?;
        let queue_pair = self.nic.create_queue_pair();
        self.connections[at].link = Link::Opening { queue_pair };
        Ok(self.nic.local_endpoint(queue_pair)?)
    }

    /// Completes a connection: the server has been told our endpoint and this is its side. Lookups that
    /// waited for it go on.
    ///
    /// # Errors
    /// When [`reconnect`](Self::reconnect) was not called before, the nodes are larger than the server's path
    /// MTU, or the NIC refuses the endpoint.
    pub fn connected(
        &mut self,
        now: Instant,
        id: ConnectionId,
        remote: RemoteSide,
    ) -> Result<(), ConnectError> {
        let at = self.index_of(id)?;
        let Link::Opening { queue_pair } = self.connections[at].link else {
            return Err(ConnectError::NotOpening { id });
        };
        self.config.tree.check_path_mtu(remote.endpoint.mtu.bytes() as u32)?;
        self.nic.connect(queue_pair, remote.endpoint)?;
        let connection = &mut self.connections[at];
        connection.link = Link::Up { queue_pair, rkey: remote.rkey };
        connection.registered = remote.registered;
        self.wake(now, at);
        self.complete(now);
        Ok(())
    }

    /// Tells whether the first-hop switch admits index reads on this connection.
    ///
    /// # Errors
    /// When there is no such connection.
    pub fn set_registered(&mut self, id: ConnectionId, registered: bool) -> Result<(), ConnectError> {
        let index = self.index_of(id)?;
        self.connections[index].registered = registered;
        Ok(())
    }

    /// Whether index reads are sent on this connection: it is up and registered.
    pub fn is_registered(&self, id: ConnectionId) -> bool {
        self.index_of(id).is_ok_and(|index| {
            let connection = &self.connections[index];
            connection.registered && matches!(connection.link, Link::Up { .. })
        })
    }

    /// The queue pair of a connection, for owners that register it: known from [`reconnect`](Self::reconnect)
    /// on.
    pub fn queue_pair(&self, id: ConnectionId) -> Option<QueuePairNumber> {
        match self.connections[self.index_of(id).ok()?].link {
            Link::Opening { queue_pair } | Link::Up { queue_pair, .. } => Some(queue_pair),
            Link::Down | Link::Abandoned => None,
        }
    }

    /// Gives a connection up: lookups that use it or wait for it, and all to come, fail until it is
    /// reconnected.
    ///
    /// # Errors
    /// When there is no such connection.
    pub fn abandon(&mut self, now: Instant, id: ConnectionId) -> Result<(), ConnectError> {
        let at = self.index_of(id)?;
        let connection = &mut self.connections[at];
        connection.retire();
        connection.reason = BreakReason::Owner;
        connection.link = Link::Abandoned;
        self.drop_queue_pair(now, at)?;
        self.wake(now, at);
        Ok(())
    }

    /// Replaces the super-root, as when a root was split or a server came back with another. Lookups under
    /// way finish on the old one.
    ///
    /// # Errors
    /// When it names other partitions than the one before.
    pub fn set_roots(&mut self, roots: SuperRoot) -> Result<(), ConnectError> {
        let ids = |roots: &SuperRoot| {
            let mut ids: Vec<u16> = roots.partitions().iter().map(|partition| partition.id).collect();
            ids.sort_unstable();
            ids
        };
        let (old, new) = (ids(&self.roots), ids(&roots));
        if old != new {
            return Err(ConnectError::OtherPartitions { old, new });
        }
        self.roots = roots;
        Ok(())
    }

    // ---- lookups ----

    /// How many lookups may be submitted now.
    pub fn room(&self) -> usize {
        self.slots.free()
    }

    /// How many lookups are under way.
    pub fn under_way(&self) -> usize {
        self.slots.len() - self.slots.free()
    }

    /// Begins a lookup.
    ///
    /// # Errors
    /// When `depth` lookups are under way already.
    pub fn submit(&mut self, now: Instant, key: u64, mode: Mode) -> Result<OpId, SubmitError> {
        let (index, op) = self.slots.take().ok_or(SubmitError::Full { depth: self.config.depth })?;
        let slot = self.slots.get_mut(index);
        slot.lookup.reset(key);
        slot.lookup.set_op(op);
        slot.mode = mode;
        slot.submitted = now;
        slot.breaks = 0;
        self.stats.submitted += 1;
        self.begin(now, index);
        self.tell();
        Ok(op)
    }

    /// Takes a frame from the network, from the destination MAC on, without FCS.
    pub fn handle_frame(&mut self, now: Instant, frame: &[u8]) {
        self.nic.handle_frame(now, frame);
        self.complete(now);
    }

    /// A frame to send now, if there is one.
    pub fn poll_transmit(&mut self, now: Instant, frame: &mut Vec<u8>) -> bool {
        self.nic.poll_transmit(now, frame)
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.nic.poll_timeout()
    }

    /// Does what is due by now.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.nic.handle_timeout(now);
        self.complete(now);
    }

    /// Is there an event to poll?
    pub fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    // ---- getters ----

    /// Counters since the beginning.
    pub fn stats(&self) -> &ClientStats {
        &self.stats
    }

    /// The NIC and its counters.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// The checker.
    pub fn checker_mut(&mut self) -> &mut C {
        &mut self.checker
    }

    /// The super-root in force.
    pub fn roots(&self) -> &SuperRoot {
        &self.roots
    }

    /// As given.
    pub fn config(&self) -> &ClientConfig {
        &self.config
    }

    // ---- inside ----

    fn index_of(&self, id: ConnectionId) -> Result<usize, ConnectError> {
        self.lane_of(id.partition, u32::from(id.lane))
            .filter(|_| id.lane < self.config.lanes)
            .ok_or(ConnectError::Unknown { id, lanes: self.config.lanes })
    }

    /// The connection that the lookup in slot `index` uses to a server.
    #[inline]
    fn lane_of(&self, partition: u16, index: u32) -> Option<usize> {
        let at = self.first_lane.binary_search_by_key(&partition, |&(id, _)| id).ok()?;
        Some(self.first_lane[at].1 + (index % u32::from(self.config.lanes)) as usize)
    }

    /// First step of a lookup, or its first after a broken connection.
    fn begin(&mut self, now: Instant, index: u32) {
        let key = self.slots.get(index).lookup.key();
        let partition = *self.roots.partition_of(key);
        let at =
            self.lane_of(partition.id, index).expect("every partition of the super-root has connections");
        let connection = &self.connections[at];
        match connection.link {
            Link::Up { .. } => {}
            Link::Down | Link::Opening { .. } => return self.wait(index, at, Phase::ToBegin),
            Link::Abandoned => {
                let failure = Failure::Abandoned { key, id: connection.id };
                return self.finish(now, index, Answer::Failed(failure));
            }
        }
        let slot = self.slots.get_mut(index);
        let wants_index = slot.mode == Mode::Index && slot.breaks == 0;
        let start = if wants_index && connection.registered { Start::IndexRead } else { Start::Root };
        self.stats.unregistered += u64::from(wants_index && !connection.registered);
        let mut memo = Memo::default();
        slot.lookup.start_in(&partition, start, &mut memo).expect("a memo takes every read");
        self.post(now, index, memo);
    }

    /// Carries a lookup's read over to the NIC.
    #[inline]
    fn post(&mut self, now: Instant, index: u32, mut memo: Memo) {
        let Request { target, len } = memo.take().expect("a lookup that goes on has posted a read");
        let slot = self.slots.get_mut(index);
        let (key, op) = (slot.lookup.key(), slot.lookup.op());
        let server = match target {
            Target::Address(address) => address.server(),
            Target::Key { partition, .. } => partition,
        };
        let Some(at) = self.lane_of(server, index) else {
            return self.finish(now, index, Answer::Failed(Failure::UnknownServer { key, server }));
        };
        let (queue_pair, region_key) = match self.connections[at].link {
            Link::Up { queue_pair, rkey } => (queue_pair, rkey),
            Link::Down | Link::Opening { .. } => return self.wait(index, at, Phase::ToResume),
            Link::Abandoned => {
                let failure = Failure::Abandoned { key, id: self.connections[at].id };
                return self.finish(now, index, Answer::Failed(failure));
            }
        };
        let (va, rkey, is_index) = match target {
            Target::Address(GlobalAddress(va)) => (va, region_key, false),
            // A key where the address would be, and no rkey: what the first-hop switch knows an index read
            // by.
            Target::Key { key, .. } => (key, 0, true),
        };
        match self.nic.post_read(now, queue_pair, op.0, va, rkey, len) {
            Ok(()) => {
                let slot = self.slots.get_mut(index);
                slot.phase = Phase::Reading { index: is_index };
                slot.connection = at;
                self.stats.reads += 1;
                self.stats.index_reads += u64::from(is_index);
            }
            Err(error @ (PostError::Full { .. } | PostError::State { .. } | PostError::Unknown { .. })) => {
                // A full queue has room with the next completion. Otherwise the queue pair failed without a
                // completion to tell us, there being no read of ours on it.
                if !matches!(error, PostError::Full { .. }) {
                    self.break_connection(at, BreakReason::Read(ReadFailure::Flushed));
                }
                // By then an index read may not be admitted any more, so that the lookup has to choose again.
                self.wait(index, at, if is_index { Phase::ToBegin } else { Phase::ToResume });
            }
            Err(PostError::TooLong { .. } | PostError::Misaligned { .. }) => {
                let failure = Failure::TooLong { key, len };
                self.finish(now, index, Answer::Failed(failure));
            }
        }
    }

    fn wait(&mut self, index: u32, at: usize, phase: Phase) {
        self.slots.get_mut(index).phase = phase;
        self.connections[at].waiting.push_back(index);
    }

    /// Lets the lookups that wait for a connection go on.
    fn wake(&mut self, now: Instant, at: usize) {
        for _ in 0..self.connections[at].waiting.len() {
            self.wake_one(now, at);
        }
    }

    fn wake_one(&mut self, now: Instant, at: usize) {
        let Some(index) = self.connections[at].waiting.pop_front() else { return };
        let slot = self.slots.get_mut(index);
        if slot.phase == Phase::ToBegin {
            return self.begin(now, index);
        }
        let mut memo = Memo::default();
        slot.lookup.resume(&mut memo).expect("a memo takes every read");
        self.post(now, index, memo);
    }

    /// Takes all completions, then tells of connections that broke.
    fn complete(&mut self, now: Instant) {
        while let Some(completion) = self.nic.poll_completion() {
            let reading = self.slots.reading(OpId(completion.wr_id));
            // The same lookup may meanwhile read on the next queue pair.
            let Some(index) = reading.filter(|&index| self.connection_of(index).uses(completion.qpn)) else {
                self.stats.late_completions += 1;
                self.nic.recycle(completion.data);
                continue;
            };
            match completion.status {
                CompletionStatus::Success => self.step(now, index, &completion.data),
                CompletionStatus::RemoteAccessError => {
                    self.read_failed(now, index, ReadFailure::RemoteAccess)
                }
                CompletionStatus::RetryExceeded => self.read_failed(now, index, ReadFailure::RetryExceeded),
                CompletionStatus::WorkRequestFlushed => self.read_failed(now, index, ReadFailure::Flushed),
                CompletionStatus::RemoteInvalidRequest | CompletionStatus::RemoteOperationalError => {
                    self.read_failed(now, index, ReadFailure::Other);
                }
            }
            self.nic.recycle(completion.data);
        }
        self.tell();
    }

    /// Reports connections that broke, once each.
    fn tell(&mut self) {
        if !std::mem::take(&mut self.any_untold) {
            return;
        }
        for connection in &mut self.connections {
            if let Some(affected) = connection.untold.take() {
                let (id, reason) = (connection.id, connection.reason);
                self.events.push_back(Event::ConnectionBroken { id, reason, affected });
            }
        }
    }

    fn connection_of(&self, index: u32) -> &Connection {
        &self.connections[self.slots.get(index).connection]
    }

    /// Feeds a lookup the bytes it waited for.
    #[inline]
    fn step(&mut self, now: Instant, index: u32, bytes: &[u8]) {
        let slot = self.slots.get_mut(index);
        let at = slot.connection;
        let mut memo = Memo::default();
        match slot.lookup.on_read(bytes, &mut memo).expect("a memo takes every read") {
            Progress::Posted => self.post(now, index, memo),
            Progress::Done(outcome) => {
                let answer = match outcome {
                    Outcome::Found(value) => {
                        let right = self.checker.check(slot.lookup.op(), slot.lookup.key(), value);
                        if right { Answer::Found } else { Answer::Wrong }
                    }
                    Outcome::NotFound => Answer::NotFound,
                    Outcome::Failed(error) => Answer::Failed(error.into()),
                };
                self.finish(now, index, answer);
            }
        }
        // The send queue has room again for a lookup that found it full.
        if !self.connections[at].waiting.is_empty() {
            self.wake_one(now, at);
        }
    }

    /// A read came to nothing, and with it its queue pair.
    #[cold]
    fn read_failed(&mut self, now: Instant, index: u32, failure: ReadFailure) {
        let slot = self.slots.get_mut(index);
        let is_index = slot.phase == Phase::Reading { index: true };
        let refused = is_index && failure == ReadFailure::RemoteAccess;
        let reason = if refused { BreakReason::Unregistered } else { BreakReason::Read(failure) };
        let at = slot.connection;
        let _ = slot.lookup.on_failure(failure);
        self.break_connection(at, reason);
        let connection = &mut self.connections[at];
        if let Some(affected) = &mut connection.untold {
            *affected += 1;
        }
        let slot = self.slots.get_mut(index);
        slot.breaks += 1;
        let (key, breaks, last) = (slot.lookup.key(), slot.breaks, connection.reason);
        if breaks > self.config.max_restarts {
            let failure = Failure::ConnectionBroke { key, breaks, last };
            self.finish(now, index, Answer::Failed(failure));
        } else {
            self.stats.restarts += 1;
            self.begin(now, index);
        }
    }

    fn break_connection(&mut self, at: usize, reason: BreakReason) {
        if self.connections[at].broke(reason) {
            self.any_untold = true;
            self.stats.broken_connections += 1;
            self.stats.refused_index_reads += u64::from(reason == BreakReason::Unregistered);
        }
    }

    /// Destroys the queue pair that a connection used last; reads still under way on it count as flushed.
    fn drop_queue_pair(&mut self, now: Instant, at: usize) -> Result<(), ConnectError> {
        // Completions that are already there go first: some may be successes.
        self.complete(now);
        let Some(queue_pair) = self.connections[at].old.take() else { return Ok(()) };
        self.nic.destroy_queue_pair(queue_pair)?;
        for index in 0..self.slots.len() as u32 {
            let slot = self.slots.get_mut(index);
            if slot.connection == at && matches!(slot.phase, Phase::Reading { .. }) {
                self.read_failed(now, index, ReadFailure::Flushed);
            }
        }
        Ok(())
    }

    fn finish(&mut self, now: Instant, index: u32, answer: Answer) {
        let slot = self.slots.get_mut(index);
        let trips = slot.lookup.trips();
        let done = Done {
            op: slot.lookup.op(),
            key: slot.lookup.key(),
            mode: slot.mode,
            answer,
            trips,
            restarts: slot.breaks,
            latency: now - slot.submitted,
        };
        self.stats.count(&done);
        self.slots.release(index);
        self.events.push_back(Event::Done(done));
    }
}
