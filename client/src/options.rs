//! Options of a connection.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use fatbtree_processes::{
    ClientOptions, NicSpec, NodeError, QueryClientOptions, QueryClientProcess, QueryWay, StructureProcess,
    at_free_seat, trust_of,
};
use fatbtree_registry::{Kind, with_kind};
use fatbtree_remote_memory::{Remembered, StructureClient as _};
use fatbtree_topology::{Cluster, Host, Named, Structure};
use fatbtree_trust::Trust;
use fatbtree_wire::query::WINDOW;

use crate::engine::Engine;
use crate::service::AT_ONCE;
use crate::{Client, Error};

/// Protocol between a client and the memory servers. The operations are the same, except where they say otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Protocol {
    /// One-sided RDMA: the client walks the tree, with the help of the switches.
    #[default]
    Rdma,
    /// Requests to the processors of the memory servers, which must run with `--serve queries`.
    Query,
}

/// Time for which a thread polls: somewhat more than a lookup takes.
const POLL: Duration = Duration::from_micros(50);

/// Options of a connection. [`connect`](crate::connect) has the defaults.
///
/// ```no_run
/// use std::time::Duration;
///
/// # async fn run() -> Result<(), fatbtree::Error> {
/// let options = fatbtree::Options::new("cluster.toml").client("host-1-0-0").time_limit(Duration::from_secs(2));
/// let db = options.connect().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    file: PathBuf,
    client: Option<String>,
    protocol: Protocol,
    structure: Option<Structure>,
    device: Option<String>,
    lanes: u8,
    root_to_leaf: bool,
    cache_bytes: u64,
    entry_cache_bytes: u64,
    patience: Duration,
    poll: Duration,
    pub(crate) time_limit: Duration,
}

impl Options {
    /// The defaults, with a cluster file (TOML).
    pub fn new(cluster_file: impl Into<PathBuf>) -> Self {
        Self {
            file: cluster_file.into(),
            client: None,
            protocol: Protocol::default(),
            structure: None,
            device: None,
            lanes: 2,
            root_to_leaf: false,
            cache_bytes: 0,
            entry_cache_bytes: 0,
            patience: Duration::from_secs(10),
            poll: POLL,
            time_limit: Duration::from_secs(30),
        }
    }

    /// Name of the client in the cluster file: its host, and its certificate. Default: the first `[[client]]`. Several connections, of one
    /// process or of many, have one name where the file gives the host several seats: see [the crate's page](crate).
    #[must_use]
    pub fn client(mut self, name: impl Into<String>) -> Self {
        self.client = Some(name.into());
        self
    }

    /// Structure that the memory servers hold. Default: as the cluster file says, or trees. A hash table has [`pairs`](crate::Client::pairs) and no
    /// [`scan`](crate::Client::scan).
    #[must_use]
    pub fn structure(mut self, structure: Structure) -> Self {
        self.structure = Some(structure);
        self
    }

    /// Protocol between the client and the memory servers. Default: [`Protocol::Rdma`].
    #[must_use]
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = protocol;
        self
    }

    /// RDMA device, such as `mlx5_0`. Needs the cargo feature `ibverbs`. Default: the software NIC, over the host's wire.
    #[must_use]
    pub fn rdma_device(mut self, device: impl Into<String>) -> Self {
        self.device = Some(device.into());
        self
    }

    /// Queue pairs to each memory server, each with up to 16 READs under way. Default: 2.
    #[must_use]
    pub fn lanes(mut self, lanes: u8) -> Self {
        self.lanes = lanes.max(1);
        self
    }

    /// Makes the client find keys without the switches. Default: false.
    #[must_use]
    pub fn root_to_leaf(mut self, root_to_leaf: bool) -> Self {
        self.root_to_leaf = root_to_leaf;
        self
    }

    /// Bytes of a cache of inner nodes (RDMA only). Default: 0, no cache.
    #[must_use]
    pub fn cache(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Bytes of a cache of single keys' places (RDMA only), 24 each: a lookup of such a key takes one round trip. Default: 0, no cache.
    #[must_use]
    pub fn entry_cache(mut self, bytes: u64) -> Self {
        self.entry_cache_bytes = bytes;
        self
    }

    /// Longest wait while connecting, for a memory server that does not answer and for one of the host's UDP ports, and for a memory
    /// server within an operation. Default: 10 s.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Longest time for which the connection's thread polls for answers and requests before it sleeps (RDMA only); zero: never. Default: 50 µs.
    ///
    /// It tries whether polling is quicker, and keeps to that. It polls only while few operations are under way and where its last pause was
    /// shorter, so a client that is idle, or waits for long, takes no processor time.
    #[must_use]
    pub fn poll_before_sleep(mut self, most: Duration) -> Self {
        self.poll = most;
        self
    }

    /// Time limit of an operation, from the moment that the client's queue admits it. Default: 30 s.
    /// [`Client::with_time_limit`] changes it for some operations.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Connects: opens a session with every memory server, on a thread that the client has for itself. A server that is away is waited for a
    /// second, and gets its session when it comes; operations that need it fail with an error that names it.
    ///
    /// Dropping the future gives the attempt up; its thread ends after `patience` at the latest.
    ///
    /// # Errors
    /// When the cluster file is wrong, no memory server answers in time, or one refuses. With queries each must answer.
    pub async fn connect(self) -> Result<Client, Error> {
        crate::service::start(self, Self::open).await
    }

    /// Connects to a structure of one's own, which the cluster file has no word for, by RDMA. All else is as for [`connect`](Self::connect).
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn connect_to<K: Kind>(self) -> Result<Client, Error> {
        crate::service::start(self, |options| options.open_kind::<K>(&options.site()?)).await
    }

    /// Opens the connections to the structure that the cluster holds. Blocks.
    fn open(&self) -> Result<Engine, Error> {
        let site = self.site()?;
        if self.protocol == Protocol::Query {
            return self.open_queries(&site);
        }
        let structure = self.structure.unwrap_or(site.cluster.structure());
        with_kind!(structure, K => self.open_kind::<K>(&site))
    }

    /// Reads the cluster file, and finds the client in it.
    fn site(&self) -> Result<Site, Error> {
        let text = std::fs::read_to_string(&self.file)
            .map_err(|source| Error::ReadFile { file: self.file.clone(), source })?;
        let cluster = Cluster::from_toml(&text)
            .map_err(|source| Error::ClusterFile { file: self.file.clone(), source: source.into() })?;
        let found = match &self.client {
            None => cluster.clients().first(),
            Some(name) => match cluster.named(name) {
                Some(Named::Client(client)) => Some(client),
                _ => None,
            },
        };
        let Some(described) = found else {
            let found = cluster.clients().iter().map(|client| client.name.clone()).collect();
            return Err(Error::NoClient { file: self.file.clone(), wanted: self.client.clone(), found });
        };
        let trust = trust_of(&cluster, &self.file, &described.name).map_err(Error::connect)?;
        Ok(Site { described: described.clone(), trust, cluster })
    }

    /// Opens the client process of queries.
    fn open_queries(&self, site: &Site) -> Result<Engine, Error> {
        let Site { cluster, described, trust } = site;
        let open = |way| {
            QueryClientProcess::open(&QueryClientOptions {
                way,
                root_to_leaf: self.root_to_leaf,
                servers: cluster.servers().to_vec(),
                // A request that is late leaves room for as many behind it.
                lanes: (AT_ONCE as u16).div_ceil(WINDOW as u16 / 2),
                trust: trust.clone(),
                metrics: site.metrics(),
                patience: self.patience,
            })
        };
        let process = match cluster.servers().iter().all(|server| server.query.is_some()) {
            // By sockets of this machine: a wire is not needed, and may not even be described.
            true => open(QueryWay::Sockets),
            false => at_free_seat(cluster, described.host, self.patience, |host, port| {
                open(QueryWay::at(cluster, host, || Ok(port))?)
            }),
        };
        Ok(Engine::new(process.map_err(Error::connect)?, Rc::default()))
    }

    /// Opens the client process of a structure, and sets its caches.
    fn open_kind<K: Kind>(&self, site: &Site) -> Result<Engine, Error> {
        let controllers = if self.root_to_leaf { &[] } else { site.cluster.controllers() };
        let first = site.cluster.tree().host(site.described.host).ip;
        let open = |host: Host, nic| {
            StructureProcess::<K::Client<_>>::open_without_absent(&ClientOptions {
                // There is one address for metrics.
                metrics: site.metrics().filter(|_| host.ip == first),
                lanes: self.lanes,
                controllers: controllers.to_vec(),
                trust: site.trust.clone(),
                patience: self.patience,
                ..ClientOptions::new(host, nic, site.cluster.servers())
            })
        };
        let mut process = self.at_seat(site, open).map_err(Error::connect)?;
        let few = Rc::<Cell<bool>>::default();
        process.poll_before_sleep(self.poll, Rc::clone(&few));
        let caches = [(Remembered::Places, self.entry_cache_bytes), (Remembered::Nodes, self.cache_bytes)];
        for (kind, bytes) in caches.into_iter().filter(|(_, bytes)| *bytes > 0) {
            process.client().remember(kind, bytes);
        }
        Ok(Engine::new(process, few))
    }

    /// Opens a client at a free seat of its host; with an RDMA device, at the host's own address.
    fn at_seat<T>(
        &self,
        site: &Site,
        mut open: impl FnMut(Host, NicSpec) -> Result<T, NodeError>,
    ) -> Result<T, NodeError> {
        let Site { cluster, described, .. } = site;
        match &self.device {
            Some(device) => {
                let host = cluster.tree().host(described.host).clone();
                open(host, NicSpec::Ibverbs(device.clone()))
            }
            None => at_free_seat(cluster, described.host, self.patience, |host, port| {
                open(host, NicSpec::Software(port))
            }),
        }
    }
}

/// A client's place in its cluster.
struct Site {
    cluster: Cluster,
    described: fatbtree_topology::Client,
    trust: Trust,
}

impl Site {
    /// Address at which the client serves metrics, if it does.
    fn metrics(&self) -> Option<String> {
        self.cluster.metrics(&self.described.name).map(str::to_owned)
    }
}
