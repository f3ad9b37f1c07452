//! A memory server as a process: a software NIC behind a port or an RDMA device, the structure in memory or in a folder, the gRPC service
//! beside it.

mod counted;
mod fellows;
mod part;
mod queries;
mod registrar;
mod structure;
mod tree;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fatbtree_controller::grpc::Controllers;
use fatbtree_memserver::{
    Ask, Event, Keeping, Mailbox, MemoryServer, Moment, Moments, Seal, ServerInfo, Tenant, mailbox_with_waker,
};
use fatbtree_port::{Counters, Waiter};
use fatbtree_soft_nic::NicStats;
use fatbtree_topology::{Host, MemoryServer as Described};
use fatbtree_trust::{CONTROLLER, Door, Refused, Roster, Trust};
use fatbtree_verbs::journal::Pace;
use fatbtree_verbs::time::{self, Instant};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::NodeError;
use crate::adapter::{Adapter, NicSpec, Side, Watch};
use crate::stop::{Stopper, control_runtime, listen, stopper_of};
use counted::counted;
use fellows::Messenger;
use queries::Workers;
use registrar::Registrar;
use structure::Site;

pub use part::PartSource;
pub use queries::{QueryOptions, QueryReport};
pub use structure::Hosted;
pub use tree::TreeSource;

/// Requests of the control plane that wait for the data path.
const MAILBOX: usize = 64;
/// Longest time for which a server that begins empty waits for a controller to say whether there was another structure before.
///
/// The first controllers of the list may be dead, and a primary may have to be elected. Afterwards the server serves without their answer,
/// because it must start without controllers, too.
const UNDECIDED: time::Duration = time::Duration::from_secs(5);
/// Shortest time between two sweeps for blocks that clients have lost.
const RECLAIM: time::Duration = time::Duration::from_secs(30);
/// Blocks that the structure reads between two batches.
const NODES: usize = 256;

/// Time at which acknowledged writes reach the disk by default: a machine that fails loses at most the last second.
pub const SYNC: Pace = Pace::Every(time::Duration::from_secs(1));

/// How the data folder is kept.
fn keeping(sync: Option<Pace>, is_software: bool) -> Result<Keeping, NodeError> {
    let pace = match sync {
        Some(pace) if is_software || pace == Pace::Never => pace,
        Some(_) => return Err(NodeError::SyncOfCard),
        None if is_software => SYNC,
        None => Pace::Never,
    };
    Ok(Keeping { pace, is_written_by_device: !is_software, has_threads: true, ..Keeping::default() })
}

/// Options of a memory server process of a structure: by default a tree.
#[derive(Clone, PartialEq, Debug)]
pub struct MemoryServerOptions<S = TreeSource> {
    /// Its description in the cluster file.
    pub described: Described,
    /// All memory servers of the cluster file: of a structure over several, they ask each other.
    pub servers: Vec<Described>,
    /// Its host's addresses.
    pub host: Host,
    /// Its device.
    pub nic: NicSpec,
    /// Addresses of controllers. The primary registers connections; without one, they are not registered.
    pub controllers: Vec<String>,
    /// Its certificate.
    pub trust: Trust,
    /// Clients that may open sessions.
    pub roster: Roster,
    /// Address at which metrics are served.
    pub metrics: Option<String>,
    /// The structure with which the server begins, unless there is one in its folder.
    pub structure: S,
    /// Folder in which the server keeps its structure. `None` if that ends with the process.
    pub data: Option<PathBuf>,
    /// Time at which acknowledged writes reach the disk of that folder. `None`: [`SYNC`], or never where an RDMA card writes the memory.
    pub sync: Option<Pace>,
    /// Time after which the process ends.
    pub limit: Option<Duration>,
}

/// A memory server with its structure, an open port, and a service that listens.
pub struct MemoryServerProcess<S: Hosted = TreeSource> {
    server: MemoryServer<Adapter, S::Tenant>,
    mailbox: Mailbox<S::Tenant>,
    watch: Watch,
    stopper: Stopper,
    limit: Option<Duration>,
    grpc: SocketAddr,
    registrar: Option<mpsc::UnboundedSender<EventOf<S>>>,
    /// Questions to other servers, of which there are never more than servers.
    asks: mpsc::UnboundedSender<Ask>,
    workers: Option<Workers>,
    moments: Arc<Moments>,
    /// What leaves checksums in the data folder.
    seal: Option<Seal>,
    _control: Runtime,
}

/// An event of a memory server of a structure.
type EventOf<S> = Event<DescriptionOf<S>>;

/// A structure's description.
type DescriptionOf<S> = <<S as Hosted>::Tenant as Tenant>::Description;

impl<S: Hosted> fmt::Debug for MemoryServerProcess<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryServerProcess").field("grpc", &self.grpc).finish_non_exhaustive()
    }
}

/// Work of a memory server until its end.
#[derive(Clone, Debug)]
pub struct MemoryServerReport {
    /// Counters of its port and its software NIC; `None` for an RDMA device, which counts for itself (`rdma statistic`).
    pub software: Option<(Counters, NicStats)>,
    /// Work of its query workers, if it has any.
    pub queries: Option<QueryReport>,
}

/// The present moment.
fn now() -> Moment {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Moment(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

impl<S: Hosted> MemoryServerProcess<S> {
    /// Opens the port, makes or finds the structure, and listens. From now on Ctrl-C and SIGTERM end [`run`](Self::run).
    ///
    /// # Errors
    /// When an address is taken, the port cannot be opened, or the structure cannot be made.
    pub fn open(options: MemoryServerOptions<S>) -> Result<Self, NodeError> {
        let MemoryServerOptions {
            described,
            servers,
            host,
            nic,
            controllers,
            trust,
            roster,
            metrics,
            structure,
            data,
            sync,
            limit,
        } = options;
        let control = control_runtime()?;
        let waiter = Waiter::new()?;
        let (waker, stopper) = (waiter.waker(), stopper_of(&waiter));
        // What is taken by others is found before the structure is made, which may take long.
        let listener = listen(&control, &described.grpc)?;
        let grpc = listener.local_addr().map_err(NodeError::system("asking for the listener's address"))?;
        let mut adapter = Adapter::open(&nic, &host, Side::Answers, structure.threads())?;
        // Without controllers there is no word to wait for.
        let undecided_for = if controllers.is_empty() { time::Duration::ZERO } else { UNDECIDED };
        let keeping = keeping(sync, adapter.is_software())?;
        let site = Site { described: &described, host: &host, data, keeping, undecided_for };
        let opened = structure.open(site, &mut adapter)?;
        let watch = Watch::new(waiter);
        stopper.at_signals(&control)?;
        let mut services = opened.services;
        let server = MemoryServer::new(adapter, opened.content, &opened.options, rand::random())?;
        if server.is_undecided() {
            tracing::info!(
                patience = %UNDECIDED,
                "the structure is empty; no session is opened before a controller has said whether there was another one"
            );
        }
        let server = server.with_device_counters(|adapter| {
            adapter.counters().map_or_else(Vec::new, |(_, nic)| nic.counters())
        });
        let (moments, seal) = match opened.run {
            Some((file, seal)) => (Moments::begin(file, now())?, Some(seal)),
            None => (Moments::in_memory(now()), None),
        };
        let moments = Arc::new(moments);
        let (handle, mailbox) = mailbox_with_waker(MAILBOX, move || waker.wake());
        let handle = handle.with_moments(Arc::clone(&moments));
        let workers = S::start(&mut services, &control, &server, &handle)?;
        let board = workers.as_ref().map(|workers| workers.board.clone());
        let refused = Refused::default();
        if let Some(address) = &metrics {
            let (handle, refused) = (handle.clone(), refused.clone());
            crate::metrics::serve(&control, address, move || {
                let (handle, refused, board) = (handle.clone(), refused.clone(), board.clone());
                async move {
                    let statistics = handle.statistics().await.ok()?;
                    let is_lost =
                        |(name, value): &fatbtree_memserver::Counter| name == "region_lost" && *value > 0;
                    let is_lost = statistics.iter().any(is_lost);
                    let mut metrics = counted(statistics);
                    metrics.unready(is_lost.then(|| {
                        "the server came back without its data, and refuses all clients until it is loaded"
                            .to_owned()
                    }));
                    metrics.refused(&refused);
                    if let Some(board) = board {
                        board.report().metrics(&mut metrics);
                    }
                    Some(metrics)
                }
            })?;
        }
        let registrar = (!controllers.is_empty()).then(|| {
            let (events, coming) = mpsc::unbounded_channel();
            let controllers =
                Controllers::new(controllers.iter().map(|address| trust.to(address, CONTROLLER)));
            control.spawn(Registrar::<S>::new(controllers, server.info(), handle.clone()).serve(coming));
            events
        });
        let (asks, coming) = mpsc::unbounded_channel();
        control.spawn(Messenger::new(&servers, &trust, handle.clone()).serve(coming));
        let door = Door { listener, trust, roster: roster.into(), refused };
        control.spawn(S::serve(services, door, handle));
        Ok(Self {
            server,
            mailbox,
            watch,
            stopper,
            limit,
            grpc,
            registrar,
            asks,
            workers,
            moments,
            seal,
            _control: control,
        })
    }

    /// Address of its gRPC service.
    pub fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    /// Address for queries, if it answers any.
    pub fn queries(&self) -> Option<SocketAddr> {
        self.workers.as_ref().map(|workers| workers.address)
    }

    /// Description of its content.
    pub fn info(&self) -> &ServerInfo<DescriptionOf<S>> {
        self.server.info()
    }

    /// Stopper that ends the process.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Serves until it is told to stop. `tell` is given the server's events.
    ///
    /// # Errors
    /// When the disk of the data folder fails: what was written since the last sync may be lost, and nothing is acknowledged any more.
    pub fn run(mut self, mut tell: impl FnMut(EventOf<S>)) -> Result<MemoryServerReport, NodeError> {
        let Self { server, mailbox, watch, stopper, limit, registrar, asks, .. } = &mut self;
        let end = limit.map(|limit| Instant::ZERO + limit.into());
        while !stopper.is_told() && end.is_none_or(|end| watch.now() < end) {
            let more_frames = server.device_mut().receive(watch.now());
            let now = watch.now();
            mailbox.answer(now, server);
            if server.poll_timeout().is_some_and(|at| at <= now) {
                server.handle_timeout(now);
            }
            server.device_mut().handle_timeout(now);
            let more_nodes = server.work(now, NODES);
            // What is sent now acknowledges what was written before.
            server.commit()?;
            server.device_mut().send(watch.now());
            while let Some(event) = server.poll_event() {
                if let Event::Ask(ask) = event {
                    let _ = asks.send(ask);
                    continue;
                }
                if let Some(registrar) = registrar {
                    // It takes them as long as the control plane runs.
                    let _ = registrar.send(event);
                }
                tell(event);
            }
            if !more_frames && !more_nodes {
                let due = [server.poll_timeout(), server.device().poll_timeout(), end];
                server.device_mut().wait(watch, due.into_iter().flatten().min());
            }
        }
        let queries = self.workers.take().map(|workers| {
            let board = workers.board.clone();
            // They write nothing any more when this has returned.
            drop(workers);
            board.report()
        });
        self.server.sync().map_err(NodeError::system("bringing the structure to the disk"))?;
        if let Some(seal) = &self.seal {
            // Nothing changes the region any more.
            let sealed = seal.write(self.server.info().generation);
            if let Err(error) = sealed.and_then(|()| self.moments.end(now())) {
                tracing::warn!(%error, "the next start will not notice each kind of damage");
            }
        }
        Ok(MemoryServerReport { software: self.server.device().counters(), queries })
    }
}
