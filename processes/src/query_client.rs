//! A client without RDMA as a process: UDP by sockets or by its host's wire, and requests to memory servers that answer queries.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fatbtree_blink_client::{QueryClient, RequesterStats};
use fatbtree_blink_host::TreeServerInfo;
use fatbtree_blink_host::grpc::TreeCalls as _;
use fatbtree_memserver::grpc;
use fatbtree_port::{DatagramCounts, Datagrams, FrameDatagrams, Lanes, PortSpec, Waiter, Waker};
use fatbtree_query::{Identity, RequesterOptions};
use fatbtree_topology::{Cluster, Host, HostId, MemoryServer};
use fatbtree_trust::Trust;
use fatbtree_verbs::Alarm;
use fatbtree_wire::query::{DIRECT_QUERY_UDP_PORT, QUERY_UDP_PORT};
use tokio::runtime::Runtime;

use crate::NodeError;
use crate::adapter::Watch;
use crate::ask::ask_within;
use crate::channels::Channels;
use crate::metrics::{Metrics, Questions, serve_client};
use crate::stop::{Stopper, control_runtime, stopper_of};
use crate::wires::host_port;

/// Way of requests to the memory servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum QueryWay {
    /// Sockets of this machine, to the addresses in the cluster file.
    Sockets,
    /// A host's wire, through the switches.
    Wire {
        /// The host.
        host: Host,
        /// Its end of the wire.
        port: PortSpec,
        /// All hosts of the network.
        hosts: Vec<Host>,
    },
}

impl QueryWay {
    /// Way by the cluster file: sockets where memory servers have addresses for queries, otherwise the wire of this host.
    ///
    /// # Errors
    /// When some have one and others have none, or the file does not say where the wire is.
    pub fn of(cluster: &Cluster, host: HostId) -> Result<Self, NodeError> {
        Self::at(cluster, cluster.tree().host(host).clone(), || host_port(cluster, host))
    }

    /// The same for a seat of a host, with the seat's address; see [`at_free_seat`](crate::at_free_seat).
    ///
    /// # Errors
    /// As for [`of`](Self::of); also what `port` returns.
    pub fn at(
        cluster: &Cluster,
        host: Host,
        port: impl FnOnce() -> Result<PortSpec, NodeError>,
    ) -> Result<Self, NodeError> {
        let servers = cluster.servers();
        let with = servers.iter().find(|server| server.query.is_some());
        let without = servers.iter().find(|server| server.query.is_none());
        match (with, without) {
            (Some(with), Some(without)) => {
                Err(NodeError::QueryWays { with: with.name.clone(), without: without.name.clone() })
            }
            (Some(_), None) => Ok(Self::Sockets),
            (None, _) => Ok(Self::Wire { host, port: port()?, hosts: cluster.tree().hosts().to_vec() }),
        }
    }
}

/// Options of a client process without RDMA.
#[derive(Clone, PartialEq, Debug)]
pub struct QueryClientOptions {
    /// Way to the memory servers.
    pub way: QueryWay,
    /// Whether each request is sent to the memory server that has its key, as far as the client knows, and begins at the root there.
    ///
    /// Otherwise, by a wire, all requests are sent to one server, and switches choose the server by key. A request that they know nothing
    /// of is
    /// redirected.
    pub root_to_leaf: bool,
    /// All memory servers of the cluster.
    pub servers: Vec<MemoryServer>,
    /// Lanes, at least 1: each has 64 requests under way at most. On a wire each has a UDP port of its own; of sockets there are at most four.
    /// All of one port is answered by one thread of a server.
    pub lanes: u16,
    /// Its certificate.
    pub trust: Trust,
    /// Address at which metrics are served.
    pub metrics: Option<String>,
    /// Time for which a request is tried without an answer, and for which servers are waited for in the beginning.
    pub patience: Duration,
}

/// A client without RDMA, whose futures it runs.
pub struct QueryClientProcess {
    client: QueryClient,
    lanes: Lanes,
    /// Servers by partition.
    servers: BTreeMap<u16, Place>,
    root_to_leaf: bool,
    infos: Vec<TreeServerInfo>,
    watch: Watch,
    stopper: Stopper,
    questions: Questions,
    control: Runtime,
}

/// Address at which a server answers.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Requests that switches may lead, and all answers.
    led: SocketAddr,
    /// Requests for this server alone.
    direct: SocketAddr,
}

/// Lowest UDP port of clients on wires.
const FIRST_PORT: u16 = 49_152;

/// Maximum number of sockets that lanes share. Fewer sockets put more datagrams into one system call; more sockets give work to more
/// threads of a server.
const SOCKETS: u16 = 4;

impl fmt::Debug for QueryClientProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueryClientProcess").field("client", &self.client).finish_non_exhaustive()
    }
}

impl QueryClientProcess {
    /// Opens sockets or the wire, and asks all memory servers what they hold. Signals keep their meaning: see
    /// [`stop_at_signals`](Self::stop_at_signals).
    ///
    /// # Errors
    /// When a server has no address for queries, or answers none; the wire is taken, or a server does not say in time what it holds.
    pub fn open(options: &QueryClientOptions) -> Result<Self, NodeError> {
        let QueryClientOptions { way, root_to_leaf, servers, lanes: count, trust, metrics, patience } =
            options;
        let began = std::time::Instant::now();
        let left = || patience.saturating_sub(began.elapsed());
        let control = control_runtime()?;
        let waiter = Waiter::new()?;
        let stopper = stopper_of(&waiter);
        let questions = serve_client(&control, metrics.as_deref(), waiter.waker())?;
        let count = (*count).max(1);
        let (lanes, places) = match way {
            QueryWay::Sockets => sockets(servers, count.min(SOCKETS))?,
            QueryWay::Wire { host, port, hosts } => {
                let known = hosts.iter().map(|host| (host.ip, host.mac.0));
                // Random, so that late answers to the wire's previous user rarely reach these ports.
                let first = rand::random_range(FIRST_PORT..=u16::MAX - count);
                let ports = first..first + count;
                let frames = FrameDatagrams::new(port.open()?, host.mac.0, host.ip, ports).with_hosts(known);
                (Lanes::Frames(Box::new(frames)), places(servers, hosts))
            }
        };
        let infos = servers.iter().map(|server| control.block_on(info(server, trust, left())));
        let infos: Vec<TreeServerInfo> = infos.collect::<Result<_, _>>()?;
        let all = servers.iter().map(|server| server.partition).collect();
        control.block_on(Channels::new(servers, trust).compare_present(all, *patience))?;
        let mut partitions: Vec<(u64, u16)> =
            infos.iter().map(|info| (info.partition.range.low, info.partition.id)).collect();
        partitions.sort_unstable();
        if let (QueryWay::Wire { .. }, false) = (way, *root_to_leaf) {
            // Any of them: switches choose.
            let any = partitions.get(rand::random_range(0..partitions.len().max(1)));
            partitions = any.iter().map(|(_, partition)| (0, *partition)).collect();
        }
        let requests = RequesterOptions {
            servers: partitions,
            patience: (*patience).into(),
            // The longest value, and what is with it.
            longest_answer: 2 << 20,
            ..RequesterOptions::default()
        };
        // Any server's keys are good at all of them. One that answers no queries says so.
        let mut known = None;
        for server in servers {
            known = control.block_on(keys(server, trust, count, left()))?;
        }
        let client = match known {
            Some(keys) => QueryClient::with_identities(&requests, keys),
            None => QueryClient::new(&requests, (0..count).map(|_| rand::random())),
        };
        let watch = Watch::new(waiter);
        let (servers, root_to_leaf) = (places, *root_to_leaf);
        Ok(Self { client, lanes, servers, root_to_leaf, infos, watch, stopper, questions, control })
    }

    /// The client, for operations.
    pub fn client(&self) -> &QueryClient {
        &self.client
    }

    /// Descriptions of the memory servers when they were asked.
    pub fn infos(&self) -> impl Iterator<Item = &TreeServerInfo> {
        self.infos.iter()
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

    /// Counters of the sockets, or of the wire.
    pub fn datagrams(&self) -> DatagramCounts {
        self.lanes.counts()
    }

    /// Whether it has sockets, whose system calls are counted.
    pub fn has_sockets(&self) -> bool {
        matches!(self.lanes, Lanes::Sockets(_))
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
        let mut more = false;
        while !self.stopper.is_told() {
            self.client.turn(self.watch.now());
            let Self { client, lanes, questions, .. } = self;
            questions.answer(|| told(client, &lanes.counts()));
            if alarm.take()
                && let Poll::Ready(output) = future.as_mut().poll(&mut context)
            {
                return Ok(output);
            }
            self.send();
            let waits = !more && !alarm.rings();
            if waits {
                self.wait();
            }
            // What has come is looked at before the next wait.
            more = self.receive(waits);
        }
        Err(NodeError::Stopped)
    }

    fn send(&mut self) {
        let Self { client, lanes, servers, root_to_leaf, .. } = self;
        let ports = lanes.count();
        for lane in 0..client.lanes() {
            while let Some(datagram) = client.poll_transmit(lane) {
                // A redirect may name an unknown server: the datagram is dropped.
                if let Some(place) = servers.get(&datagram.server) {
                    let direct = datagram.direct || *root_to_leaf;
                    lanes.send(lane % ports, if direct { place.direct } else { place.led }, datagram.bytes);
                }
            }
        }
        lanes.flush();
    }

    /// Receives from the sockets that have something, if a wait has shown that. Returns whether there may be more.
    fn receive(&mut self, waited: bool) -> bool {
        let Self { client, lanes, servers, watch, .. } = self;
        let more = lanes.receive(|place| !waited || watch.is_ready(place));
        lanes.each(|_, from, datagram| {
            // Datagrams from other addresses than the servers' are ignored.
            if servers.values().any(|place| place.led == from) {
                client.handle(datagram);
            }
        });
        more
    }

    fn wait(&mut self) {
        let Self { client, lanes, watch, .. } = self;
        watch.wait(lanes, client.poll_timeout());
    }
}

fn told(client: &QueryClient, datagrams: &DatagramCounts) -> Metrics {
    let (mut metrics, RequesterStats { again, redirects, opens, led, stray, no_key }) =
        (Metrics::default(), client.stats());
    metrics.operations(&client.latencies());
    for (name, help, value) in [
        ("client_query_again", "Requests that were sent again", again),
        ("client_query_redirected", "Redirects that were followed", redirects),
        ("client_query_opens", "Requests for a place among a server's clients", opens),
        ("client_query_led", "Answers that began at a node that switches had found", led),
        ("client_query_stray", "Datagrams that are no answers to anything", stray),
        ("client_query_no_key", "Of these, refusals for want of the right key", no_key),
        ("client_datagrams_received", "Datagrams received", datagrams.received),
        ("client_datagrams_sent", "Datagrams sent", datagrams.sent),
        ("client_datagrams_dropped", "Datagrams that the system did not take", datagrams.dropped),
    ] {
        metrics.counter(name, help, value);
    }
    metrics
}

/// Opens `count` sockets, and resolves the servers' addresses.
fn sockets(servers: &[MemoryServer], count: u16) -> Result<(Lanes, BTreeMap<u16, Place>), NodeError> {
    let mut places = BTreeMap::new();
    for server in servers {
        let Some(query) = &server.query else { continue };
        let failed = |source| NodeError::Listen { address: query.clone(), source };
        let mut found = query.to_socket_addrs().map_err(failed)?;
        let found = found.next().ok_or_else(|| failed(std::io::ErrorKind::AddrNotAvailable.into()))?;
        places.insert(server.partition, Place { led: found, direct: found });
    }
    let any = match places.values().next() {
        Some(Place { led: SocketAddr::V6(_), .. }) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        _ => (Ipv4Addr::UNSPECIFIED, 0).into(),
    };
    let socket = |_| {
        let bound = UdpSocket::bind(any);
        let bound = bound.map_err(|source| NodeError::Listen { address: any.to_string(), source })?;
        Ok(Datagrams::new(bound)?)
    };
    let sockets = (0..count).map(socket).collect::<Result<_, NodeError>>()?;
    Ok((Lanes::Sockets(sockets), places))
}

/// Addresses of the servers in the network, by partition.
fn places(servers: &[MemoryServer], hosts: &[Host]) -> BTreeMap<u16, Place> {
    let place = |server: &MemoryServer| {
        let ip = hosts.iter().find(|host| host.id == server.host)?.ip;
        let (led, direct) = ((ip, QUERY_UDP_PORT).into(), (ip, DIRECT_QUERY_UDP_PORT).into());
        Some((server.partition, Place { led, direct }))
    };
    servers.iter().filter_map(place).collect()
}

async fn info(server: &MemoryServer, trust: &Trust, patience: Duration) -> Result<TreeServerInfo, NodeError> {
    let peer = trust.to(&server.grpc, &server.name);
    let ask = || async { grpc::Client::connect(peer.clone()).await?.info().await };
    Ok(ask_within(patience, &server.grpc, "for its description", ask).await?)
}

/// Asks a server for numbers and keys for this many lanes. `None` if queries need none.
async fn keys(
    server: &MemoryServer,
    trust: &Trust,
    lanes: u16,
    patience: Duration,
) -> Result<Option<Vec<Identity>>, NodeError> {
    let peer = trust.to(&server.grpc, &server.name);
    let ask = || async { grpc::Client::connect(peer.clone()).await?.query_keys(lanes).await };
    Ok(ask_within(patience, &server.grpc, "for keys of queries", ask).await?)
}
