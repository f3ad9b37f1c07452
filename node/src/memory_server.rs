//! A memory server as a process: a software NIC behind a port or an RDMA device, the tree in memory or in a folder, the gRPC service beside
//! it.

mod counted;
mod queries;
mod registrar;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use fatbtree_blink::{Integrity, KeyRange, TreeConfig};
use fatbtree_blink_host::grpc::{Loading, TreeServiceOptions, serve_with};
use fatbtree_blink_host::{
    LoadOptions, LoadedTree, TreeEvent, TreeFolder, TreeMailbox, TreeServer, TreeServerInfo, TreeStorage,
    build_in, seeded, sort_keys, tree_in,
};
use fatbtree_controller::grpc::Controllers;
use fatbtree_memserver::{FolderOwner, MemoryServer, ServerOptions, mailbox_with_waker};
use fatbtree_nic::NicStats;
use fatbtree_port::{Counters, Waiter};
use fatbtree_topology::{Host, MemoryServer as Described};
use fatbtree_trust::{CONTROLLER, Door, Refused, Roster, Trust};
use fatbtree_verbs::Device as _;
use fatbtree_verbs::time::{self, Instant};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::NodeError;
use crate::adapter::{Adapter, NicSpec, Side, Watch};
use crate::stop::{Stopper, control_runtime, listen, stopper_of};
use counted::counted;
use queries::{Queries, Workers};
use registrar::Registrar;

pub use queries::{QueryOptions, QueryReport};

/// Requests of the control plane that wait for the data path.
const MAILBOX: usize = 64;
/// Longest time for which a server that begins empty waits for a controller to say whether there was another tree before.
///
/// The first controllers of the list may be dead, and a primary may have to be elected. Afterwards the server serves without their answer,
/// because it must start without controllers, too.
const UNDECIDED: time::Duration = time::Duration::from_secs(5);
/// Nodes read for a snapshot between two batches.
const NODES: usize = 256;

/// Source of a server's tree at its start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeSource {
    /// Keys of the server's partition, in any order. Without keys, the tree is empty until it is loaded over gRPC, or clients insert.
    pub keys: Vec<u64>,
    /// Bytes of each value.
    pub value_bytes: u32,
    /// Seed of the values, which follow from it and the key: see [`fatbtree_blink::value`].
    pub seed: u64,
    /// The tree's shape; with checksums, where the device tears lines or the tree lies in a folder.
    pub config: TreeConfig,
    /// Memory for what will be written, in bytes. It costs nothing until it is used.
    pub spare_bytes: u64,
}

/// Options of a memory server process.
#[derive(Clone, PartialEq, Debug)]
pub struct MemoryServerOptions {
    /// Its description in the cluster file.
    pub described: Described,
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
    /// First tree, unless there is one in its folder.
    pub tree: TreeSource,
    /// Folder in which the server keeps its tree, which then has checksums. `None` if the tree ends with the process.
    pub data: Option<PathBuf>,
    /// Largest region that a load may give the server, in bytes.
    pub region_bytes: u64,
    /// Options for queries, if the server answers any.
    ///
    /// The tree then has checksums, because worker threads and the NIC do not access cache lines atomically with respect to each other.
    pub queries: Option<QueryOptions>,
    /// Time after which the process ends.
    pub limit: Option<Duration>,
}

/// A memory server with a tree, an open port, and a service that listens.
pub struct MemoryServerProcess {
    server: TreeServer<Adapter>,
    mailbox: TreeMailbox,
    watch: Watch,
    stopper: Stopper,
    limit: Option<Duration>,
    grpc: SocketAddr,
    registrar: Option<mpsc::UnboundedSender<TreeEvent>>,
    workers: Option<Workers>,
    _control: Runtime,
}

impl fmt::Debug for MemoryServerProcess {
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

impl MemoryServerProcess {
    /// Opens the port, loads the tree and listens. From now on Ctrl-C and SIGTERM end [`run`](Self::run).
    ///
    /// # Errors
    /// When an address is taken, the port cannot be opened, or the tree cannot be built.
    pub fn open(options: MemoryServerOptions) -> Result<Self, NodeError> {
        let MemoryServerOptions {
            described,
            host,
            nic,
            controllers,
            trust,
            roster,
            metrics,
            tree,
            data,
            region_bytes,
            queries,
            limit,
        } = options;
        let control = control_runtime()?;
        let waiter = Waiter::new()?;
        let (waker, stopper) = (waiter.waker(), stopper_of(&waiter));
        // What is taken by others is found before the tree is built, which may take long.
        let listener = listen(&control, &described.grpc)?;
        let grpc = listener.local_addr().map_err(NodeError::system("asking for the listener's address"))?;
        let threads = queries.as_ref().map_or(1, QueryOptions::threads);
        let mut adapter = Adapter::open(&nic, &host, Side::Answers, threads)?;
        let query_secret = queries.as_ref().and_then(|queries| queries.secret);
        let queries = queries.map(|queries| Queries::open(queries, &host, &mut adapter)).transpose()?;
        let watch = Watch::new(waiter);
        stopper.at_signals(&control)?;
        // Without controllers there is no word to wait for.
        let undecided_for = if controllers.is_empty() { time::Duration::ZERO } else { UNDECIDED };
        let server_options =
            ServerOptions { local_clients: queries.is_some(), undecided_for, ..ServerOptions::writable() };
        let mut storage = match data {
            None => TreeStorage::Memory,
            Some(path) => {
                let owner = FolderOwner {
                    server: described.name.clone(),
                    partition: described.partition,
                    address: host.ip,
                };
                TreeStorage::Folder(TreeFolder::open(&path, owner, server_options.chunk_bytes)?.into())
            }
        };
        let spare_bytes = tree.spare_bytes;
        // A disk that damages what it keeps is noticed by readers then.
        let on_disk = matches!(storage, TreeStorage::Folder(_));
        let needs_sums = on_disk || queries.is_some() || !adapter.capabilities().line_atomicity;
        let tree = if needs_sums { with_checksums(tree)? } else { tree };
        let tree = first_tree(&mut storage, tree, &described)?;
        let server = MemoryServer::new(adapter, tree, &server_options, rand::random())?;
        if server.is_undecided() {
            let patience = Duration::from_nanos(UNDECIDED.as_nanos());
            tracing::info!(
                ?patience,
                "the tree is empty; no session is opened before a controller has said whether there was another one"
            );
        }
        let server = server.with_device_counters(|adapter| {
            adapter.counters().map_or_else(Vec::new, |(_, nic)| nic.counters())
        });
        let (handle, mailbox) = mailbox_with_waker(MAILBOX, move || waker.wake());
        let workers = match (queries, server.local()) {
            (Some(queries), Some(host)) => Some(queries.start(&control, host, server.info(), &handle)?),
            _ => None,
        };
        let board = workers.as_ref().map(|workers| workers.board.clone());
        let refused = Refused::default();
        if let Some(address) = &metrics {
            let (handle, refused) = (handle.clone(), refused.clone());
            crate::metrics::serve(&control, address, move || {
                let (handle, refused, board) = (handle.clone(), refused.clone(), board.clone());
                async move {
                    let mut metrics = counted(handle.statistics().await.ok()?);
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
            control.spawn(Registrar::new(controllers, server.info(), handle.clone()).serve(coming));
            events
        });
        let loading = Loading { storage, region_bytes, spare_bytes, ..Loading::in_memory() };
        let service = TreeServiceOptions { query_secret, ..TreeServiceOptions::default() };
        let door = Door { listener, trust, roster: roster.into(), refused };
        control.spawn(serve_with(service, Some(loading), door, handle, std::future::pending()));
        Ok(Self { server, mailbox, watch, stopper, limit, grpc, registrar, workers, _control: control })
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
    pub fn info(&self) -> &TreeServerInfo {
        self.server.info()
    }

    /// Stopper that ends the process.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Serves until it is told to stop. `tell` is given the server's events.
    pub fn run(mut self, mut tell: impl FnMut(TreeEvent)) -> MemoryServerReport {
        let Self { server, mailbox, watch, stopper, limit, registrar, .. } = &mut self;
        let end = limit.map(|limit| Instant::from_nanos(limit.as_nanos() as u64));
        while !stopper.is_told() && end.is_none_or(|end| watch.now() < end) {
            let more_frames = server.device_mut().receive(watch.now());
            let now = watch.now();
            mailbox.answer(now, server);
            if server.poll_timeout().is_some_and(|at| at <= now) {
                server.handle_timeout(now);
            }
            server.device_mut().handle_timeout(now);
            let more_nodes = server.work(now, NODES);
            server.device_mut().send(watch.now());
            while let Some(event) = server.poll_event() {
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
        if let Err(error) = self.server.sync() {
            tracing::warn!(%error, "the tree may not have reached the disk");
        }
        MemoryServerReport { software: self.server.device().counters(), queries }
    }
}

/// Source of a new tree with checksums: needed if lines may be torn, or lie on a disk.
fn with_checksums(source: TreeSource) -> Result<TreeSource, NodeError> {
    let shape = source.config;
    let (fan_out, leaf_bytes, values) = (shape.fan_out(), shape.leaf_bytes(), shape.values());
    let config = TreeConfig::with_integrity(fan_out, leaf_bytes, values, Integrity::Checksums);
    Ok(TreeSource { config: config?, ..source })
}

/// The tree that a server begins with: the one in its folder, or a new one.
fn first_tree(
    storage: &mut TreeStorage,
    source: TreeSource,
    described: &Described,
) -> Result<LoadedTree, NodeError> {
    if let TreeStorage::Folder(folder) = &*storage
        && let Some(tree) = tree_in(folder)?
    {
        return Ok(tree);
    }
    let TreeSource { mut keys, value_bytes, seed, config, spare_bytes } = source;
    let range = KeyRange { low: described.low, high: described.high.checked_add(1) };
    // No other memory of this server has had it: what the switches know of that is of no use any more.
    let generation = rand::random();
    let options =
        LoadOptions { range, spare_bytes, generation, ..LoadOptions::new(config, described.partition) };
    sort_keys(&mut keys)?;
    let tree = build_in(storage, &options, u64::MAX, &keys, &mut seeded(seed, value_bytes))?;
    storage.keep(tree.kept())?;
    Ok(tree)
}
