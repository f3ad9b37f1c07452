//! A client without RDMA as a process: UDP sockets, and requests to memory servers that answer queries.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fatbtree_client::QueryClient;
use fatbtree_memserver::{ServerInfo, grpc};
use fatbtree_port::{BATCH, DatagramCounts, Datagrams, Waiter};
use fatbtree_query::RequesterOptions;
use fatbtree_topology::MemoryServer;
use fatbtree_trust::Trust;
use fatbtree_verbs::Alarm;
use tokio::runtime::Runtime;

use crate::NodeError;
use crate::adapter::Watch;
use crate::stop::{Stopper, control_runtime, stopper_of};

/// What a client without RDMA is told.
#[derive(Clone, PartialEq, Debug)]
pub struct QueryClientOptions {
    /// All memory servers of the cluster.
    pub servers: Vec<MemoryServer>,
    /// Lanes, at least 1: each has 64 requests under way at most, a socket of its own, and is answered by one thread of a server.
    pub lanes: u16,
    /// Its certificate.
    pub trust: Trust,
    /// How long a request is tried while nobody answers, and servers are waited for in the beginning.
    pub patience: Duration,
}

/// A client without RDMA, whose futures it runs.
pub struct QueryClientProcess {
    client: QueryClient,
    sockets: Vec<Datagrams>,
    /// By partition.
    addresses: BTreeMap<u16, SocketAddr>,
    infos: Vec<ServerInfo>,
    watch: Watch,
    stopper: Stopper,
    _control: Runtime,
}

impl fmt::Debug for QueryClientProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueryClientProcess").field("client", &self.client).finish_non_exhaustive()
    }
}

/// Between two tries to reach a server in the beginning.
const PAUSE: Duration = Duration::from_millis(50);

impl QueryClientProcess {
    /// Opens the sockets, and asks all memory servers what they hold. From now on Ctrl-C and SIGTERM end [`run`](Self::run).
    ///
    /// # Errors
    /// When a server has no address for queries, or does not say in time what it holds.
    pub fn open(options: &QueryClientOptions) -> Result<Self, NodeError> {
        let QueryClientOptions { servers, lanes, trust, patience } = options;
        let control = control_runtime()?;
        let waiter = Waiter::new()?;
        let stopper = stopper_of(&waiter);
        stopper.at_signals(&control)?;
        let mut addresses = BTreeMap::new();
        for server in servers {
            let query = server.query.as_deref().ok_or_else(|| NodeError::NoQueries(server.name.clone()))?;
            let failed = |source| NodeError::Listen { address: query.to_owned(), source };
            let mut found = query.to_socket_addrs().map_err(failed)?;
            let found = found.next().ok_or_else(|| failed(std::io::ErrorKind::AddrNotAvailable.into()))?;
            addresses.insert(server.partition, found);
        }
        let infos = servers.iter().map(|server| control.block_on(info(server, trust, *patience)));
        let infos: Vec<ServerInfo> = infos.collect::<Result<_, _>>()?;
        let mut partitions: Vec<(u64, u16)> =
            infos.iter().map(|info| (info.partition.range.low, info.partition.id)).collect();
        partitions.sort_unstable();
        let requests = RequesterOptions {
            servers: partitions,
            patience: *patience,
            // The longest value, and what is with it.
            longest_answer: 2 << 20,
            ..RequesterOptions::default()
        };
        let any = match addresses.values().next() {
            Some(SocketAddr::V6(_)) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
            _ => (Ipv4Addr::UNSPECIFIED, 0).into(),
        };
        let lanes = 0..(*lanes).max(1);
        let socket = |_| {
            let bound = UdpSocket::bind(any);
            let bound = bound.map_err(|source| NodeError::Listen { address: any.to_string(), source })?;
            Ok(Datagrams::new(bound)?)
        };
        let sockets = lanes.clone().map(socket).collect::<Result<_, NodeError>>()?;
        let client = QueryClient::new(&requests, lanes.map(|_| rand::random()));
        let watch = Watch::new(waiter);
        Ok(Self { client, sockets, addresses, infos, watch, stopper, _control: control })
    }

    /// What does the operations.
    pub fn client(&self) -> &QueryClient {
        &self.client
    }

    /// What the memory servers held when they were asked.
    pub fn infos(&self) -> impl Iterator<Item = &ServerInfo> {
        self.infos.iter()
    }

    /// What ends it.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// What the sockets have counted.
    pub fn datagrams(&self) -> DatagramCounts {
        let mut all = DatagramCounts::default();
        self.sockets.iter().for_each(|socket| all.merge(&socket.counts()));
        all
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
        for (lane, socket) in self.sockets.iter_mut().enumerate() {
            while let Some(datagram) = self.client.poll_transmit(lane) {
                // A server that nobody knows: a redirect has named it. It will not answer.
                if let Some(to) = self.addresses.get(&datagram.server) {
                    socket.send(*to, datagram.bytes);
                }
            }
            socket.flush();
        }
    }

    /// From those that have something, if that is known from a wait. Says whether there may be more.
    fn receive(&mut self, waited: bool) -> bool {
        let mut more = false;
        for (lane, socket) in self.sockets.iter_mut().enumerate() {
            if waited && !self.watch.is_ready(lane) {
                continue;
            }
            more |= socket.receive() == BATCH;
            // Whoever is not one of the servers has nothing to say.
            let known = |from: &SocketAddr| self.addresses.values().any(|address| address == from);
            let came = socket.iter().filter(|(from, _)| known(from));
            came.for_each(|(_, datagram)| self.client.handle(lane, datagram));
        }
        more
    }

    fn wait(&mut self) {
        let Self { client, sockets, watch, .. } = self;
        if let Some(socket) = sockets.first_mut() {
            socket.count_call();
        }
        watch.wait_for(sockets.iter().map(Datagrams::fd), client.next_deadline());
    }
}

async fn info(server: &MemoryServer, trust: &Trust, patience: Duration) -> Result<ServerInfo, NodeError> {
    let began = std::time::Instant::now();
    loop {
        let asked = async {
            let mut client = grpc::Client::connect(trust.to(&server.grpc, &server.name)).await?;
            client.info().await
        };
        match asked.await {
            Ok(info) => return Ok(info),
            Err(error) if error.is_final() || began.elapsed() >= patience => return Err(error.into()),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
