//! A client as a process: a software NIC behind a port or an RDMA device, sessions with memory servers kept over gRPC.

mod desk;
mod reporter;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::time::Duration;

use fatbtree_blink::{ConnectionId, Event, Limits, PoolConfig, RemoteSide, SessionId, Shortage};
use fatbtree_client::{Client, KeySample, Report};
use fatbtree_controller::grpc::{ClientReport, Controllers};
use fatbtree_memserver::{ServerInfo, grpc};
use fatbtree_port::{Counters, Waiter, Waker};
use fatbtree_topology::{Host, MemoryServer};
use fatbtree_trust::{CONTROLLER, Trust};
use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{Alarm, Device as _};
use tokio::runtime::Runtime;
use tokio::sync::mpsc as orders;

use crate::NodeError;
use crate::adapter::{Adapter, NicSpec, SILENCE, Side, Watch};
use crate::metrics::{Metrics, Questions, serve_client};
use crate::stop::{Stopper, control_runtime, stopper_of};
use desk::{Answer, Desk, Order, Out};

/// What a client is told.
#[derive(Clone, PartialEq, Debug)]
pub struct ClientOptions {
    /// Its host's addresses.
    pub host: Host,
    /// Its device.
    pub nic: NicSpec,
    /// All memory servers of the cluster.
    pub servers: Vec<MemoryServer>,
    /// Queue pairs to each, at least 1. A queue pair has 16 READs under way at most.
    pub lanes: u8,
    /// Where controllers are. The primary is told which keys are asked for, and tells which connections are registered. Without one,
    /// operations begin at the root.
    pub controllers: Vec<String>,
    /// Its certificate.
    pub trust: Trust,
    /// Where it tells its metrics.
    pub metrics: Option<String>,
    /// How long operations are tried while a server, or the way to it, does not answer.
    pub patience: Duration,
}

/// A client with sessions, whose futures it runs.
///
/// A connection that breaks is made anew, in a new session where the old one has ended; a server that comes back with another tree is
/// believed.
pub struct ClientProcess {
    client: Client<Adapter>,
    watch: Watch,
    /// What each server has said last, by partition.
    infos: BTreeMap<u16, ServerInfo>,
    /// In which session.
    sessions: BTreeMap<u16, SessionId>,
    orders: BTreeMap<u16, orders::Sender<Order>>,
    answers: mpsc::Receiver<Answer>,
    /// Connections that the controller has told of: partition, and the server's queue pair.
    registered: BTreeSet<(u16, u32)>,
    reports: Option<Reports>,
    /// What the servers say does not fit together: some have been loaded anew, and not all were heard of.
    unsettled: bool,
    /// Connections that are being made.
    pending: usize,
    /// Locks that dropped changes have left are given back by these.
    chores: Vec<Pin<Box<dyn Future<Output = ()>>>>,
    stopper: Stopper,
    questions: Questions,
    control: Runtime,
}

impl fmt::Debug for ClientProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientProcess").field("client", &self.client).finish_non_exhaustive()
    }
}

impl Drop for ClientProcess {
    /// Its port is free again, even where somebody has the client still.
    fn drop(&mut self) {
        self.client.pool().reactor().with(Adapter::close);
    }
}

/// On the way to the controller.
struct Reports {
    to: orders::Sender<ClientReport>,
    /// When the next one is due.
    next: Instant,
}

/// Between two reports.
const REPORT: fatbtree_verbs::time::Duration = fatbtree_verbs::time::Duration::from_millis(250);
/// Keys of one report, at most.
const SAMPLE: usize = 2_000;

/// Orders that wait for a server; beyond that a connection breaks again before it is made.
const ORDERS: usize = 1024;

/// An operation may lose its connection as often as happens while nothing is answered for so long: the server is made known of each
/// new queue pair, but a switch on the way to it is frozen, say.
fn limits(patience: Duration) -> Limits {
    let least = Limits::default();
    let breaks = patience.as_millis() / SILENCE.as_millis();
    let reconnects = least.reconnects.saturating_add(u32::try_from(breaks).unwrap_or(u32::MAX));
    Limits { reconnects, ..least }
}

impl ClientProcess {
    /// Opens a session with every memory server, and connects all queue pairs. Signals keep their meaning: see
    /// [`stop_at_signals`](Self::stop_at_signals).
    ///
    /// # Errors
    /// When a server does not answer in time, refuses, or holds something that does not fit the others'.
    pub fn open(options: &ClientOptions) -> Result<Self, NodeError> {
        let control = control_runtime()?;
        let waiter = Waiter::new()?;
        let (waker, stopper) = (waiter.waker(), stopper_of(&waiter));
        let questions = serve_client(&control, options.metrics.as_deref(), waiter.waker())?;
        let adapter = Adapter::open(&options.nic, &options.host, Side::Asks, 1)?;
        let watch = Watch::new(waiter);
        let (answer, answers) = mpsc::channel();
        let (mut infos, mut to_desks, mut names) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for server in &options.servers {
            let out = Out { answers: answer.clone(), waker: waker.clone() };
            let desk = control.block_on(Desk::open(
                server,
                &options.trust,
                options.host.ip,
                options.patience,
                out,
            ))?;
            let info = *desk.info();
            let first = infos.first_key_value();
            if let Some((other, _)) =
                first.filter(|(_, first): &(_, &ServerInfo)| first.config != info.config)
            {
                let other: &String = &names[other];
                return Err(NodeError::Shapes(other.clone(), server.name.clone()));
            }
            names.insert(server.partition, server.name.clone());
            infos.insert(server.partition, info);
            let (order, wanted) = orders::channel(ORDERS);
            to_desks.insert(server.partition, order);
            control.spawn(desk.serve(wanted));
        }
        let roots = grpc::super_root(infos.values())?;
        let tree = infos.values().next().map(|info| info.config).unwrap_or_default();
        let config = PoolConfig {
            tree,
            lanes: options.lanes,
            limits: limits(options.patience),
            ..PoolConfig::default()
        };
        let client = Client::new(adapter, config, roots, rand::random())?;
        let reports = (!options.controllers.is_empty()).then(|| {
            client.set_sample(Some(KeySample::new(SAMPLE, rand::random())));
            let (to, reports) = orders::channel(1);
            let out = Out { answers: answer, waker };
            let peer = |address: &String| options.trust.to(address, CONTROLLER);
            let controllers = Controllers::new(options.controllers.iter().map(peer));
            control.spawn(reporter::serve(controllers, options.host.ip, reports, out));
            Reports { to, next: watch.now() + REPORT }
        });
        let mut process = Self {
            client,
            watch,
            infos,
            sessions: BTreeMap::new(),
            orders: to_desks,
            answers,
            registered: BTreeSet::new(),
            reports,
            unsettled: false,
            pending: 0,
            chores: Vec::new(),
            stopper,
            questions,
            control,
        };
        for id in process.client.pool().connections() {
            process.connect(id);
        }
        while process.pending > 0 {
            if process.stopper.is_told() {
                return Err(NodeError::Stopped);
            }
            if let Some(id) = process.turn() {
                return Err(NodeError::OutOfReach(id.to_string(), options.patience));
            }
            if process.pending > 0 {
                process.wait(None);
            }
        }
        Ok(process)
    }

    /// What does the operations.
    pub fn client(&self) -> &Client<Adapter> {
        &self.client
    }

    /// What the memory servers hold, by partition.
    pub fn infos(&self) -> impl Iterator<Item = &ServerInfo> {
        self.infos.values()
    }

    /// What ends it.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Has Ctrl-C and SIGTERM end [`run`](Self::run) from now on, where they ended the process by themselves before.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn stop_at_signals(&self) -> Result<(), NodeError> {
        self.stopper.at_signals(&self.control)
    }

    /// Has [`run`](Self::run) look whether its future was woken. The waker of a future does that for wakes from the thread of `run` only.
    pub fn waker(&self) -> Waker {
        self.watch.waker()
    }

    /// Its port's counters; none for an RDMA device, which counts for itself.
    pub fn port(&self) -> Option<Counters> {
        port(&self.client)
    }

    /// Runs a future of the client's to its end.
    ///
    /// # Errors
    /// When it is told to stop before.
    pub fn run<F: Future>(&mut self, future: F) -> Result<F::Output, NodeError> {
        let mut future = pin!(future);
        let alarm = Alarm::ringing();
        let waker = Arc::clone(&alarm).into();
        let mut context = Context::from_waker(&waker);
        while !self.stopper.is_told() {
            if alarm.take()
                && let Poll::Ready(output) = future.as_mut().poll(&mut context)
            {
                return Ok(output);
            }
            // Rare and few: they are asked in every turn.
            self.chores.retain_mut(|chore| chore.as_mut().poll(&mut context).is_pending());
            self.turn();
            if !alarm.rings() {
                let report = self.reports.as_ref().map(|reports| reports.next);
                let deadline = self.client.next_deadline();
                self.wait(deadline.into_iter().chain(report).min());
                // The future may have been woken from outside: what it begins now is timed from now.
                self.client.turn(self.watch.now());
            }
        }
        Err(NodeError::Stopped)
    }

    /// Keeps the connections for a time.
    ///
    /// # Errors
    /// When it is told to stop before.
    pub fn run_for(&mut self, time: Duration) -> Result<(), NodeError> {
        let client = self.client.clone();
        let time = fatbtree_verbs::time::Duration::from_nanos(time.as_nanos() as u64);
        // The reactor's time stands still between two runs.
        client.turn(self.watch.now());
        self.run(async { client.pool().reactor().sleep(time).await })
    }

    /// Closes the sessions. A server that does not answer needs nothing.
    pub fn close(mut self) {
        let orders = std::mem::take(&mut self.orders);
        self.control.block_on(async {
            for desk in orders.into_values() {
                let (done, closed) = tokio::sync::oneshot::channel();
                if desk.send(Order::Close(done)).await.is_ok() {
                    // Whoever is gone closes nothing.
                    let _ = tokio::time::timeout(Duration::from_secs(2), closed).await;
                }
            }
        });
    }

    /// Waits until something has come, or until `due`.
    fn wait(&mut self, due: Option<Instant>) {
        let Self { client, watch, .. } = self;
        client.pool().reactor().with(|adapter| {
            let due = due.into_iter().chain(adapter.poll_timeout()).min();
            adapter.wait(watch, due);
        });
    }

    /// Sends what there is to send, takes what has come. Gives a connection that could not be made.
    fn turn(&mut self) -> Option<ConnectionId> {
        let Self { client, watch, questions, .. } = self;
        client.pool().reactor().with(|adapter| {
            adapter.send(watch.now());
            adapter.receive(watch.now());
            adapter.handle_timeout(watch.now());
            // Acknowledgements, and what is sent again.
            adapter.send(watch.now());
        });
        client.turn(watch.now());
        questions.answer(|| metrics(client));
        self.report();
        self.follow_events();
        self.take_answers()
    }

    /// Tells the controller what the client was asked for. What it does not take is told later.
    fn report(&mut self) {
        let Some(reports) = &mut self.reports else { return };
        let now = self.watch.now();
        if now < reports.next {
            return;
        }
        reports.next = now + REPORT;
        if let Ok(place) = reports.to.try_reserve() {
            let Report { keys, index_reads, stale_hints } = self.client.report();
            place.send(ClientReport { keys, index_reads, stale_hints });
        }
    }

    /// Whether index reads are sent to all memory servers.
    pub fn is_registered(&self) -> bool {
        let pool = self.client.pool();
        pool.connections().into_iter().all(|id| pool.is_registered(id))
    }

    fn connect(&mut self, id: ConnectionId) {
        let pool = self.client.pool();
        let replaces = pool.replaces(id);
        if let Some(gone) = replaces {
            self.registered.remove(&(id.server, gone.0));
        }
        let opened = pool.open(id);
        let order = opened.map(|local| Order::Connect { id, local, replaces });
        let sent = order.ok().and_then(|order| self.orders.get(&id.server)?.try_send(order).ok());
        match sent {
            Some(()) => self.pending += 1,
            // The NIC has no more queue pairs, or the desk is full: operations on it fail.
            None => drop(pool.abandon(id)),
        }
    }

    fn follow_events(&mut self) {
        while let Some(event) = self.client.poll_event() {
            match event {
                Event::ConnectionBroken { id, reason } => {
                    tracing::info!(%id, %reason, "a connection broke");
                    self.connect(id);
                }
                Event::MemoryWanted { server, kind, bytes } => {
                    let order = Order::Memory { kind, bytes };
                    if self.orders.get(&server).is_none_or(|desk| desk.try_send(order).is_err()) {
                        self.client.pool().refuse_memory(server, kind, Shortage::Unknown);
                    }
                }
                Event::Unfinished { .. } => {
                    let client = self.client.clone();
                    self.chores.push(Box::pin(async move { client.pool().finish().await }));
                }
            }
        }
    }

    fn take_answers(&mut self) -> Option<ConnectionId> {
        while let Ok(answer) = self.answers.try_recv() {
            let pool = self.client.pool();
            match answer {
                Answer::Connected { id, endpoint, info, session } => {
                    self.pending -= 1;
                    self.believe(id.server, info, session);
                    let pool = self.client.pool();
                    let registered = self.registered.contains(&(id.server, endpoint.queue_pair.0));
                    let remote = RemoteSide { endpoint, rkey: info.tree.rkey, registered };
                    if let Err(error) = pool.connected(id, remote) {
                        tracing::warn!(%id, %error, "not connected");
                        // It is a connection of the pool.
                        let _ = pool.abandon(id);
                    }
                }
                Answer::Lost { id, error } => {
                    self.pending -= 1;
                    tracing::warn!(%id, %error, "given up");
                    let _ = if error.tree_is_lost() { pool.lose(id) } else { pool.abandon(id) };
                    return Some(id);
                }
                Answer::Registered { partition, queue_pair } => {
                    self.registered.insert((partition, queue_pair));
                    let ours = |id: &ConnectionId| {
                        id.server == partition && pool.replaces(*id).is_some_and(|end| end.0 == queue_pair)
                    };
                    if let Some(id) = pool.connections().into_iter().find(ours) {
                        // It is a connection of the pool.
                        let _ = pool.set_registered(id, true);
                    }
                }
                Answer::Info { server, info, session } => {
                    let all = pool.connections().into_iter();
                    // The server had lost its tree, and has one again.
                    let back: Vec<_> = all.filter(|id| id.server == server && pool.is_lost(*id)).collect();
                    self.believe(server, info, session);
                    back.into_iter().for_each(|id| self.connect(id));
                }
                Answer::Memory { server, session, grant: Ok(grant), .. } => {
                    grant.hand_to(pool, server, session);
                }
                Answer::Memory { server, kind, grant: Err(error), .. } => {
                    tracing::warn!(server, %error, "no memory");
                    pool.refuse_memory(server, kind, error.shortage());
                }
            }
        }
        None
    }

    /// What a server has said of itself may have changed, if it was started again or loaded anew.
    fn believe(&mut self, server: u16, info: ServerInfo, session: grpc::Session) {
        let pool = self.client.pool();
        let masked_atomics = pool.reactor().with(|nic| nic.capabilities().masked_atomics);
        if let Some(writer) = info.writer(session.owner, masked_atomics)
            && let Err(error) = pool.set_writer(server, writer)
        {
            tracing::info!(server, %error, "the tree can only be read");
        }
        self.infos.insert(server, info);
        // Roots move as trees grow, and the pool follows them by itself; another session may be one with another tree. Neither its
        // generation nor the key of its memory tells: they come again when a server is started anew.
        let again = self.sessions.insert(server, session.id) != Some(session.id);
        if !again && !self.unsettled {
            return;
        }
        match grpc::super_root(self.infos.values()) {
            Ok(roots) => {
                self.unsettled = false;
                if let Err(error) = pool.set_roots(roots) {
                    tracing::warn!(server, %error, "another tree");
                }
            }
            // Ranges have moved. The others have new ones, too, or will soon: they are asked until all fit together.
            Err(error) => {
                tracing::info!(server, %error, "the other servers are asked for their ranges");
                self.unsettled = true;
                for (_, desk) in self.orders.iter().filter(|(other, _)| **other != server) {
                    // One that is busy answers what it is busy with.
                    let _ = desk.try_send(Order::Look);
                }
            }
        }
    }
}

fn port(client: &Client<Adapter>) -> Option<Counters> {
    client.pool().reactor().with(|adapter| adapter.counters()).map(|(port, _)| port)
}

fn metrics(client: &Client<Adapter>) -> Metrics {
    let (mut metrics, stats) = (Metrics::default(), client.pool().stats());
    metrics.operations(&client.latencies());
    metrics.ports(&port(client).map(|port| (0, port)).into_iter().collect::<Vec<_>>());
    for (name, help, value) in [
        ("client_lookups", "Lookups that have begun", stats.lookups),
        ("client_reads", "READs posted, index reads among them", stats.remote.reads),
        ("client_index_reads", "Index reads posted", stats.index_reads),
        ("client_stale_hints", "Index reads that led to another key's node", stats.stale_hints),
        (
            "client_unregistered",
            "Lookups that walked for want of a registered connection",
            stats.unregistered,
        ),
        ("client_retries", "Reads of something torn", stats.retries),
        ("client_fallbacks", "Walks begun again at the root", stats.fallbacks),
        ("client_broken_connections", "Queue pairs that have failed", stats.remote.broken_connections),
        ("client_lock_retries", "Locks that were asked for again", stats.remote.lock_retries),
        ("client_written_bytes", "Bytes written to memory servers", stats.remote.written_bytes),
        ("client_splits", "Nodes split", stats.splits),
        ("client_merges", "Nodes merged", stats.merges),
    ] {
        metrics.counter(name, help, value);
    }
    metrics
}
