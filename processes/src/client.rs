//! A client as a process: a software NIC behind a port or an RDMA device, sessions with memory servers kept over gRPC.

mod link;
mod reporter;
mod vigil;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::time::Duration;

use fatbtree_controller::grpc::{ClientReport, Controllers};
use fatbtree_memserver::ServerInfo;
use fatbtree_memserver::grpc::Describe;
use fatbtree_port::{Counters, Waiter, Waker};
use fatbtree_remote_memory::session_keeper::{
    Call, CallId, Denied, Granted, KeeperOptions, Meaning, NoAnswer, Notice, SessionKeeper,
};
use fatbtree_remote_memory::{
    Believed, ClientConfig, Contention, Infos, OpenError, Report, Shortage, SpreadClient, StructureClient,
};
use fatbtree_topology::{Host, MemoryServer};
use fatbtree_trust::{CONTROLLER, Trust};
use fatbtree_verbs::Alarm;
use fatbtree_verbs::time::Instant;
use tokio::runtime::Runtime;
use tokio::sync::mpsc as reports;
use tokio::task::JoinSet;

use crate::NodeError;
use crate::adapter::{Adapter, NicSpec, SILENCE, Side, Watch};
use crate::channels::Channels;
use crate::metrics::{Metrics, Questions, serve_client};
use crate::stop::{Stopper, control_runtime, stopper_of};
use link::{Answer, Link, Out};
use vigil::Vigil;

/// Options of a client process.
#[derive(Clone, PartialEq, Debug)]
pub struct ClientOptions {
    /// Its host's addresses.
    pub host: Host,
    /// Its device.
    pub nic: NicSpec,
    /// All memory servers of the cluster.
    pub servers: Vec<MemoryServer>,
    /// Queue pairs to each memory server, at least 1. A queue pair has 16 READs under way at most.
    pub lanes: u8,
    /// Addresses of controllers. The primary is told which keys are asked for, and tells which connections are registered. Without one,
    /// operations begin at the root.
    pub controllers: Vec<String>,
    /// Its certificate.
    pub trust: Trust,
    /// Address at which metrics are served.
    pub metrics: Option<String>,
    /// Time for which operations are tried while a server, or the way to it, does not answer.
    pub patience: Duration,
    /// Treatment of contention for locks and for the memory of the card.
    pub contention: Contention,
}

/// The process of a client of trees.
pub type ClientProcess = StructureProcess<fatbtree_blink_client::Client<Adapter>>;

/// The process of a client of a structure over all memory servers.
pub type SpreadProcess<S> = StructureProcess<SpreadClient<S>>;

/// A client of a structure with sessions, whose futures it runs.
///
/// A connection that breaks is made anew, in a new session where the old one has ended; a server that comes back with another structure of
/// the kind is believed.
pub struct StructureProcess<C: Reached> {
    servers: Vec<MemoryServer>,
    client: C,
    watch: Watch,
    /// Last description of each server, by partition.
    infos: Infos<C::Info>,
    keeper: SessionKeeper<C::Info>,
    links: BTreeMap<u16, Arc<Link<C::Info>>>,
    answers: mpsc::Receiver<Answer<C::Info>>,
    /// Connections that the controller has registered: partition, and the server's queue pair.
    registered: BTreeSet<(u16, u32)>,
    reports: Option<Reports>,
    /// Tasks that release the locks which dropped changes have left.
    chores: Vec<Pin<Box<dyn Future<Output = ()>>>>,
    stopper: Stopper,
    questions: Questions,
    /// Longest time to poll before a sleep, and whether polling pays now.
    poll: (fatbtree_verbs::time::Duration, Rc<Cell<bool>>),
    /// The reason for which this client can do nothing more with a server that it has known.
    misfit: Option<Denied>,
    /// The last call of a server that was denied, until the client has connected.
    denied: Option<Denied>,
    control: Runtime,
}

impl<C: Reached> fmt::Debug for StructureProcess<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StructureProcess").field("memory", self.client.remote()).finish_non_exhaustive()
    }
}

impl<C: Reached> Drop for StructureProcess<C> {
    /// Frees the port, even if a clone of the client still exists.
    fn drop(&mut self) {
        self.client.remote().reactor().with(Adapter::close);
    }
}

/// Reports on their way to the controller.
struct Reports {
    to: reports::Sender<ClientReport>,
    /// Time of the next report.
    next: Instant,
}

/// Interval between two reports.
const REPORT: fatbtree_verbs::time::Duration = fatbtree_verbs::time::Duration::from_millis(250);
/// Maximum number of keys in one report.
const SAMPLE: usize = 2_000;

/// Longest time for which a client that begins waits for a server that cannot be reached, if others are there.
const AWAY: Duration = Duration::from_secs(1);

/// Interval in which such a client looks whether it has waited long enough.
const LOOK: Duration = Duration::from_millis(50);

/// Longest time for which a process that ends waits for its sessions to close.
const CLOSING: Duration = Duration::from_secs(2);

/// A client that a process can run: of any structure that memory servers describe.
pub trait Reached: StructureClient<Verbs = Adapter, Info: Describe> {}

impl<C: StructureClient<Verbs = Adapter, Info: Describe>> Reached for C {}

impl ClientOptions {
    /// Options of a client that knows no controller, has no certificate and serves no metrics: two queue pairs to each server, 10 s of
    /// patience, contention as by default.
    #[must_use]
    pub fn new(host: Host, nic: NicSpec, servers: &[MemoryServer]) -> Self {
        Self {
            host,
            nic,
            servers: servers.to_vec(),
            lanes: 2,
            controllers: Vec::new(),
            trust: Trust::default(),
            metrics: None,
            patience: Duration::from_secs(10),
            contention: Contention::default(),
        }
    }

    /// The client's part of them.
    fn config(&self) -> ClientConfig {
        ClientConfig {
            lanes: self.lanes,
            contention: self.contention,
            patience: self.patience.into(),
            silence: SILENCE.into(),
            is_led: !self.controllers.is_empty(),
        }
    }
}

/// The same refusal with the names of servers in place of their numbers.
fn refused(error: OpenError, servers: &[MemoryServer]) -> NodeError {
    let name = |server| {
        let known = servers.iter().find(|known| known.partition == server);
        known.map_or_else(|| format!("of partition {server}"), |known| known.name.clone())
    };
    match error {
        OpenError::Parts { structure, server } => NodeError::Parts { structure, server: name(server) },
        OpenError::Shapes(one, other) => NodeError::Shapes(name(one), name(other)),
        OpenError::Layout(server) => NodeError::Layout(name(server)),
        OpenError::Apart(error) => NodeError::Roots(error),
        OpenError::Connect(error) => error.into(),
        OpenError::Structure(error) => NodeError::Structure(error),
    }
}

impl<C: Reached> StructureProcess<C> {
    /// Opens a session with every memory server, and connects all queue pairs. Signals keep their meaning: see
    /// [`stop_at_signals`](Self::stop_at_signals).
    ///
    /// All of it takes as long as [`patience`](ClientOptions::patience) lasts at most. A server that has too many sessions is waited for, too:
    /// those of clients that died end with their leases.
    ///
    /// # Errors
    /// When a server does not answer in time, refuses, or holds something that does not fit the others'.
    pub fn open(options: &ClientOptions) -> Result<Self, NodeError> {
        Self::open_with(options, None)
    }

    /// The same, but where another server is there, one that cannot be reached is waited for only a second, or a quarter of
    /// [`patience`](ClientOptions::patience), and one that does not answer for half of it. Their sessions are opened when they come.
    ///
    /// Until then an operation that needs such a server waits for it, as where a server goes away later. From three quarters of `patience` on
    /// it fails at once, with an error that names the server. A structure begins on one server, without which each operation fails. What must
    /// fit together is compared between the servers that are there, and with each other one before it is used.
    ///
    /// # Errors
    /// When no server answers in time; or one refuses, or holds something that does not fit the others'.
    pub fn open_without_absent(options: &ClientOptions) -> Result<Self, NodeError> {
        let patience = options.patience;
        Self::open_with(options, Some([AWAY.min(patience / 4), patience / 2]))
    }

    /// Opens a client that waits so long for each server if another one is there: for one that cannot be reached, and for one that does not
    /// answer. `None`: as long as patience lasts.
    fn open_with(options: &ClientOptions, waits: Option<[Duration; 2]>) -> Result<Self, NodeError> {
        let began = std::time::Instant::now();
        let control = control_runtime()?;
        let waiter = Waiter::new()?;
        let (waker, stopper) = (waiter.waker(), stopper_of(&waiter));
        let questions = serve_client(&control, options.metrics.as_deref(), waiter.waker())?;
        let adapter = Adapter::open(&options.nic, &options.host, Side::Asks, 1)?;
        let watch = Watch::new(waiter);
        let (answer, answers) = mpsc::channel();
        let out = Out { answers: answer, waker };
        let channels = Channels::new(&options.servers, &options.trust);
        let link = |server: &MemoryServer| {
            let (roce, patience) = (options.host.ip, options.patience);
            (
                server.partition,
                Link::new(server.partition, Arc::clone(&channels), roce, patience, out.clone()),
            )
        };
        let links: BTreeMap<u16, Arc<Link<C::Info>>> = options.servers.iter().map(link).collect();
        let infos = control.block_on(descriptions(&links, waits))?;
        control.block_on(channels.compare_present(infos.keys().copied().collect(), options.patience))?;
        let servers: Vec<u16> = options.servers.iter().map(|server| server.partition).collect();
        let client = C::open(adapter, &infos, &servers, &options.config(), rand::random())
            .map_err(|error| refused(error, &options.servers))?;
        let reports = (C::IS_LED && !options.controllers.is_empty()).then(|| {
            client.begin_reports(SAMPLE, rand::random());
            let (to, reports) = reports::channel(1);
            let peer = |address: &String| options.trust.to(address, CONTROLLER);
            let controllers = Controllers::new(options.controllers.iter().map(peer));
            control.spawn(reporter::serve(controllers, options.host.ip, reports, out));
            Reports { to, next: watch.now() + REPORT }
        });
        let connections = client.remote().connections();
        let patience = Some(options.patience.into());
        let mut keeper =
            SessionKeeper::new(connections, KeeperOptions { patience, ..KeeperOptions::default() });
        let until_given_up = (options.patience / 4 * 3).saturating_sub(began.elapsed());
        for server in links.keys().filter(|server| !infos.contains_key(server)) {
            keeper.expect_by(*server, watch.now() + until_given_up.into());
        }
        let mut process = Self {
            servers: options.servers.clone(),
            client,
            watch,
            infos,
            keeper,
            links,
            answers,
            registered: BTreeSet::new(),
            reports,
            chores: Vec::new(),
            stopper,
            questions,
            poll: Default::default(),
            misfit: None,
            denied: None,
            control,
        };
        while !process.has_begun() {
            if process.stopper.is_told() {
                return Err(NodeError::Stopped);
            }
            if let Some(denied) = process.turn() {
                return Err(NodeError::OutOfReach(denied));
            }
            let left = options.patience.saturating_sub(began.elapsed());
            if left.is_zero() && !process.has_begun() {
                return Err(NodeError::OutOfReach(process.denied.take().unwrap_or_else(|| NoAnswer.into())));
            }
            if !process.has_begun() {
                let until = process.watch.now() + left.into();
                process.wait(Some(until));
            }
        }
        Ok(process)
    }

    /// Whether all servers are connected that were there in the beginning, or have come since.
    fn has_begun(&self) -> bool {
        self.keeper.not_connected().all(|server| !self.infos.contains_key(&server))
    }

    /// The client, for operations.
    pub fn client(&self) -> &C {
        &self.client
    }

    /// Descriptions of the memory servers that have given one, by partition.
    pub fn infos(&self) -> impl Iterator<Item = &ServerInfo<C::Info>> {
        self.infos.values()
    }

    /// Stopper that ends the process.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Lets Ctrl-C and SIGTERM end [`run`](Self::run) from now on; before, they end the process at once.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn stop_at_signals(&self) -> Result<(), NodeError> {
        self.stopper.at_signals(&self.control)
    }

    /// Waker that makes [`run`](Self::run) poll its future. The future's own waker does so from the thread of `run` only.
    pub fn waker(&self) -> Waker {
        self.watch.waker()
    }

    /// Counters of the client's port; `None` for an RDMA device, which counts for itself.
    pub fn port(&self) -> Option<Counters> {
        port(self.client.remote())
    }

    /// Has [`run`](Self::run) poll for frames and wakes before it sleeps: up to this time, where its last pause was as short, while
    /// `wanted` is set, and if it finds this quicker. Default: it sleeps at once.
    ///
    /// Polling saves the time to wake the thread, and takes a processor. It pays where few operations are under way: with many, a thread that
    /// sleeps finds more frames at a time. A machine with one processor has none to spare.
    pub fn poll_before_sleep(&mut self, most: Duration, wanted: Rc<Cell<bool>>) {
        let has_more = std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1);
        let most = if has_more { most.into() } else { fatbtree_verbs::time::Duration::ZERO };
        self.poll = (most, wanted);
    }

    /// Runs a future of the client's to its end.
    ///
    /// # Errors
    /// When it is told to stop before. [`NodeError::OutOfReach`] when a server has been loaded with what this client was not opened for.
    pub fn run<F: Future>(&mut self, future: F) -> Result<F::Output, NodeError> {
        let mut future = pin!(future);
        let alarm = Alarm::ringing();
        let waker = Arc::clone(&alarm).into();
        let mut context = Context::from_waker(&waker);
        let mut vigil = Vigil::new(self.poll.0, self.watch.now());
        while !self.stopper.is_told() {
            if let Some(misfit) = self.misfit.take() {
                return Err(NodeError::OutOfReach(misfit));
            }
            if alarm.take() {
                if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                    return Ok(output);
                }
                vigil.work(self.watch.now());
            }
            // Rare and few: they are asked in every turn.
            self.chores.retain_mut(|chore| chore.as_mut().poll(&mut context).is_pending());
            self.turn();
            if !alarm.rings() && self.poll.1.get() && vigil.polls(self.watch.now()) {
                // Another thread that wants the processor may have the answer.
                std::thread::yield_now();
                self.client.turn(self.watch.now());
            } else if !alarm.rings() {
                let report = self.reports.as_ref().map(|reports| reports.next);
                let deadline = self.client.remote().poll_timeout();
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
        // The reactor's time stands still between two runs.
        client.turn(self.watch.now());
        self.run(async { client.remote().reactor().sleep(time.into()).await })
    }

    /// Closes the sessions. A server that does not answer needs nothing.
    pub fn close(mut self) {
        self.keeper.close(&self.client);
        let until = self.watch.now() + CLOSING.into();
        while !self.keeper.is_closed() && self.watch.now() < until {
            self.turn();
            if !self.keeper.is_closed() {
                self.wait(Some(until));
            }
        }
    }

    /// Waits until something has come, or until `due`.
    fn wait(&mut self, due: Option<Instant>) {
        let Self { client, watch, keeper, .. } = self;
        client.remote().reactor().with(|adapter| {
            let due = due.into_iter().chain(adapter.poll_timeout()).chain([keeper.poll_timeout()]).min();
            adapter.wait(watch, due);
        });
    }

    /// Sends and receives what is ready, then serves sessions. Returns the reason if a server was given up.
    fn turn(&mut self) -> Option<Denied> {
        let Self { client, watch, questions, .. } = self;
        client.remote().reactor().with(|adapter| {
            adapter.send(watch.now());
            adapter.receive(watch.now());
            adapter.handle_timeout(watch.now());
            // Acknowledgements, and what is sent again.
            adapter.send(watch.now());
        });
        client.turn(watch.now());
        questions.answer(|| metrics(client));
        self.report();
        self.keep_sessions()
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
            let Report { keys, index_reads, stale_hints, hot_keys } = self.client.report();
            place.send(ClientReport { keys, index_reads, stale_hints, hot_keys });
        }
    }

    /// Takes answers and carries calls. Returns the reason if a server was given up.
    fn keep_sessions(&mut self) -> Option<Denied> {
        let now = self.watch.now();
        while let Ok(answer) = self.answers.try_recv() {
            let Self { client, keeper, .. } = self;
            match answer {
                Answer::Call { call, answer } => {
                    let (server, links) = (call.server(), &self.links);
                    // A server that was away is looked at before it is used: it may have been loaded meanwhile.
                    let is_new = !self.infos.contains_key(&server);
                    let misfit = match &answer {
                        Ok(Granted::Opened(opened)) => {
                            let error = client.admit(&opened.info).err();
                            error.map(|error| (opened.session, refused(error, &self.servers)))
                        }
                        _ => None,
                    };
                    let answer = match misfit {
                        Some((session, error)) => {
                            if let Some(link) = links.get(&server) {
                                self.control.spawn(Arc::clone(link).leave(session));
                            }
                            let (shortage, error) = (Shortage::Unknown, Arc::new(error));
                            let denied = Denied { meaning: Meaning::No, shortage, error };
                            if !is_new {
                                self.misfit = Some(denied.clone());
                            }
                            Err(denied)
                        }
                        None => answer,
                    };
                    keeper.handle_answer(now, client, call, answer);
                }
                Answer::Registered { partition, queue_pair } => {
                    self.registered.insert((partition, queue_pair));
                    self.tell_registered();
                }
            }
        }
        while let Some((id, call)) = self.keeper.poll_call(now, &self.client) {
            self.carry(id, call);
        }
        self.take_notices()
    }

    fn carry(&self, id: CallId, call: Call) {
        if let Some(link) = self.links.get(&id.server()) {
            self.control.spawn(Arc::clone(link).carry(id, call));
        }
    }

    /// Acts on all notices of the keeper. Returns the reason if a server was given up.
    fn take_notices(&mut self) -> Option<Denied> {
        let (mut last, mut given_up) = (None, None);
        while let Some(notice) = self.keeper.poll_notice() {
            match notice {
                Notice::Opened { server } => self.believe(server),
                Notice::Connected { .. } => self.tell_registered(),
                Notice::Broken { id, reason } => {
                    tracing::info!(%id, %reason, "a connection broke");
                    if let Some(gone) = self.client.remote().replaces(id) {
                        self.registered.remove(&(id.server, gone.0));
                    }
                }
                Notice::Unfinished { .. } => {
                    self.chores.push(Box::pin(self.client.finish()));
                }
                Notice::Denied { server, denied } => {
                    tracing::info!(server, %denied, "denied");
                    self.denied = Some(denied.clone());
                    last = Some(denied);
                }
                // The keeper says why before it gives a server up.
                Notice::Lost { server } | Notice::OutOfReach { server } => {
                    tracing::warn!(server, "given up until the server answers");
                    given_up = last.take();
                }
            }
        }
        given_up
    }

    /// Lets index reads go over the connections that the controller has registered.
    fn tell_registered(&self) {
        let remote = self.client.remote();
        for id in remote.connections() {
            let end = remote.replaces(id).map(|end| (id.server, end.0));
            if end.is_some_and(|end| self.registered.contains(&end)) {
                self.client.set_registered(id);
            }
        }
    }

    /// Takes a server's description of itself in a new session, which may be one with another structure of the kind.
    fn believe(&mut self, server: u16) {
        let Some(info) = self.keeper.info(server) else { return };
        self.infos.insert(server, *info);
        match self.client.believe(server, &self.infos) {
            Believed::Fits => {}
            Believed::Another(what) => tracing::warn!(server, "memory server: {what}"),
            Believed::DoubtOthers(why) => {
                tracing::info!(server, why, "the other servers are asked for their ranges");
                for other in self.links.keys().filter(|other| **other != server) {
                    self.keeper.doubt(*other);
                }
            }
        }
    }
}

/// Descriptions of the servers, by partition; they are asked at the same time. After a wait those are enough that have come, if any has: the
/// first one where all others cannot be reached, the second one where one does not answer. Without waits all must come.
///
/// A server that is only slow may know that another one's folder is an older copy: so it is waited for longer.
///
/// # Errors
/// When a server refuses, or none answers.
async fn descriptions<S: Describe + Send + 'static>(
    links: &BTreeMap<u16, Arc<Link<S>>>,
    waits: Option<[Duration; 2]>,
) -> Result<Infos<S>, NodeError> {
    let began = tokio::time::Instant::now();
    let mut asked = JoinSet::new();
    for (&partition, link) in links {
        let link = Arc::clone(link);
        asked.spawn(async move { (partition, link.info().await) });
    }
    let mut infos = Infos::new();
    loop {
        let answer = match tokio::time::timeout(LOOK, asked.join_next()).await {
            Ok(None) => return Ok(infos),
            Ok(Some(answer)) => answer.expect("the task neither panics nor is aborted"),
            Err(_) => {
                let mut others = links.iter().filter(|(server, _)| !infos.contains_key(server));
                let is_reached = others.any(|(_, link)| !link.is_out_of_reach());
                let is_over =
                    |[away, silent]: [Duration; 2]| began.elapsed() >= if is_reached { silent } else { away };
                if !infos.is_empty() && waits.is_some_and(is_over) {
                    return Ok(infos);
                }
                continue;
            }
        };
        infos.insert(answer.0, answer.1?);
    }
}

fn port(remote: &fatbtree_remote_memory::RemoteMemory<Adapter>) -> Option<Counters> {
    remote.reactor().with(|adapter| adapter.counters()).map(|(port, _)| port)
}

fn metrics<C: Reached>(client: &C) -> Metrics {
    let (mut metrics, counters) = (Metrics::default(), client.remote().counters());
    metrics.ports(&port(client.remote()).map(|port| (0, port)).into_iter().collect::<Vec<_>>());
    for (name, help, value) in [
        ("client_reads", "READs posted, index reads among them", counters.reads),
        ("client_read_bytes", "Bytes that READs asked for", counters.read_bytes),
        ("client_broken_connections", "Queue pairs that have failed", counters.broken_connections),
        ("client_lock_retries", "Locks that were asked for again", counters.lock_retries),
        ("client_written_bytes", "Bytes written to memory servers", counters.written_bytes),
    ] {
        metrics.counter(name, help, value);
    }
    for (name, help, value) in client.counted() {
        metrics.counter(name, help, value);
    }
    metrics.operations(&client.latencies());
    metrics
}
