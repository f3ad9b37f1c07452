//! A memory server as a process: a software NIC behind a port, the tree in memory, the gRPC service beside it.

mod registrar;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use fatbtree_controller::Incarnation;
use fatbtree_index::{KeyRange, TreeConfig};
use fatbtree_memserver::{
    Event, LoadOptions, Mailbox, MemoryServer, ServerInfo, ServerOptions, bulk_load_unsorted,
    mailbox_with_waker, seeded,
};
use fatbtree_nic::{Nic, NicStats};
use fatbtree_port::{Counters, PortSpec, Waiter};
use fatbtree_topology::{Host, MemoryServer as Described};
use fatbtree_verbs::time::Instant;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::NodeError;
use crate::link::{Link, nic};
use crate::stop::{Stopper, control_runtime, listen, stopper_of};
use registrar::Registrar;

/// Requests of the control plane that wait for the data path.
const MAILBOX: usize = 64;
/// Nodes read for a snapshot between two batches.
const NODES: usize = 64;

/// What the tree of a server is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeSource {
    /// Keys of the server's partition, in any order.
    pub keys: Vec<u64>,
    /// Bytes of each value.
    pub value_bytes: u32,
    /// From which values are made, with the key: see [`fatbtree_index::value`].
    pub seed: u64,
    /// The tree's shape.
    pub config: TreeConfig,
    /// Memory for what will be written, in bytes. It costs nothing until it is used.
    pub spare_bytes: u64,
}

/// What a memory server is told.
#[derive(Clone, PartialEq, Debug)]
pub struct MemoryServerOptions {
    /// As the cluster file describes it.
    pub described: Described,
    /// Its host's addresses.
    pub host: Host,
    /// Its port.
    pub port: PortSpec,
    /// Where the controller is, which registers connections; without one, nobody does.
    pub controller: Option<String>,
    /// What it loads.
    pub tree: TreeSource,
    /// End after so long.
    pub limit: Option<Duration>,
}

/// A memory server with a tree, an open port, and a service that listens.
pub struct MemoryServerProcess {
    server: MemoryServer<Nic>,
    mailbox: Mailbox,
    link: Link,
    stopper: Stopper,
    limit: Option<Duration>,
    grpc: SocketAddr,
    registrar: Option<mpsc::UnboundedSender<Event>>,
    _control: Runtime,
}

impl fmt::Debug for MemoryServerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryServerProcess").field("grpc", &self.grpc).finish_non_exhaustive()
    }
}

/// What a memory server has done.
#[derive(Clone, Debug)]
pub struct MemoryServerReport {
    /// Its port.
    pub port: Counters,
    /// Its NIC.
    pub nic: NicStats,
}

impl MemoryServerProcess {
    /// Opens the port, loads the tree and listens. From now on Ctrl-C and SIGTERM end [`run`](Self::run).
    ///
    /// # Errors
    /// When an address is taken, the port cannot be opened, or the tree cannot be built.
    pub fn open(options: MemoryServerOptions) -> Result<Self, NodeError> {
        let MemoryServerOptions { described, host, port, controller, tree, limit } = options;
        let control = control_runtime()?;
        let waiter = Waiter::new()?;
        let (waker, stopper) = (waiter.waker(), stopper_of(&waiter));
        // What is taken by others is found before the tree is built, which may take long.
        let listener = listen(&control, &described.grpc)?;
        let grpc = listener.local_addr().map_err(NodeError::system("asking for the listener's address"))?;
        let link = Link::open(&port, waiter)?;
        stopper.at_signals(&control)?;
        let TreeSource { mut keys, value_bytes, seed, config, spare_bytes } = tree;
        let range = KeyRange { low: described.low, high: described.high.checked_add(1) };
        let options = LoadOptions { range, spare_bytes, ..LoadOptions::new(config, described.partition) };
        let tree = bulk_load_unsorted(&options, &mut keys, &mut seeded(seed, value_bytes))?;
        drop(keys);
        let server = MemoryServer::new(nic(&host)?, tree, &ServerOptions::writable(), rand::random())?;
        let server = server.with_device_counters(|nic| nic.stats().counters());
        let (handle, mailbox) = mailbox_with_waker(MAILBOX, move || waker.wake());
        let info = server.info();
        let registrar = controller.map(|controller| {
            let (partition, root) = (info.partition.id, info.partition.root.raw());
            // Another process fills its memory anew.
            let incarnation = Incarnation { number: rand::random(), low: info.partition.range.low };
            let (events, coming) = mpsc::unbounded_channel();
            control.spawn(Registrar::new(controller, partition, incarnation, root).serve(coming));
            events
        });
        control.spawn(fatbtree_memserver::grpc::serve(listener, handle, std::future::pending()));
        Ok(Self { server, mailbox, link, stopper, limit, grpc, registrar, _control: control })
    }

    /// Where clients and controllers connect.
    pub fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    /// What it holds.
    pub fn info(&self) -> &ServerInfo {
        self.server.info()
    }

    /// What ends it.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Serves until it is told to stop. `tell` is given the server's events.
    pub fn run(mut self, mut tell: impl FnMut(Event)) -> MemoryServerReport {
        let Self { server, mailbox, link, stopper, limit, registrar, .. } = &mut self;
        let end = limit.map(|limit| Instant::from_nanos(limit.as_nanos() as u64));
        while !stopper.is_told() && end.is_none_or(|end| link.now() < end) {
            let more_frames = link.receive(server.device_mut());
            let now = link.now();
            mailbox.answer(now, server);
            if server.poll_timeout().is_some_and(|at| at <= now) {
                server.handle_timeout(now);
            }
            link.handle_timeout(server.device_mut());
            let more_nodes = server.work(now, NODES);
            link.send(server.device_mut());
            while let Some(event) = server.poll_event() {
                if let Some(registrar) = registrar {
                    // It takes events as long as the control plane runs.
                    let _ = registrar.send(event);
                }
                tell(event);
            }
            if !more_frames && !more_nodes {
                link.wait(
                    [server.poll_timeout(), server.device().poll_timeout(), end].into_iter().flatten().min(),
                );
            }
        }
        MemoryServerReport { port: self.link.port().counters(), nic: self.server.device().stats().clone() }
    }
}
