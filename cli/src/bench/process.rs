//! The client that is measured.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fatbtree_blink::Keys;
use fatbtree_blink_client::RequesterStats;
use fatbtree_processes::{
    Adapter, ClientOptions, NodeError, QueryClientOptions, QueryClientProcess, QueryWay, Reached,
    StructureProcess, at_free_seat,
};
use fatbtree_registry::{Kind, with_kind};
use fatbtree_remote_memory::{CacheUse, Remembered, Structure as _, StructureClient as _};
use fatbtree_topology::{Client, Cluster, Host, Structure};
use fatbtree_trust::Trust;
use fatbtree_wire::query::WINDOW;
use fatbtree_workload::measure::{Recorder, Troubles};
use fatbtree_workload::ycsb::WorkloadError;
use fatbtree_workload::{LoadGenerator, Named, Operations, Pace, Values};

use super::entry_cache::EntryCacheResult;
use super::node_cache::NodeCacheResult;
use super::{Arguments, AttemptsAtLocks, MOST, Protocol, Treatment, WAIT};
use crate::structure::open_client;

/// A client that is measured, of any structure and protocol.
pub(super) trait Measured {
    /// Number of keys that the memory servers were loaded with, if they know it.
    fn loaded(&self) -> Option<u64>;

    /// Whether the keys of its structure are bytes.
    fn has_byte_keys(&self) -> bool;

    /// Name of its structure, if that has no ranges of keys.
    fn without_ranges(&self) -> Option<&'static str>;

    /// Name of its structure, if that has no transactions.
    fn without_transactions(&self) -> Option<&'static str>;

    /// The value of a key, if it is there.
    ///
    /// # Errors
    /// The outer one ends the run; the inner one is that of the operation, as where the key's server is away.
    fn find(&mut self, key: Key<'_>) -> Result<Result<Option<Vec<u8>>>>;

    /// The value of a key, if it is there; `None` if its server does not answer.
    fn value_of(&mut self, key: Key<'_>) -> Result<Option<Option<Vec<u8>>>> {
        Ok(self.find(key)?.ok())
    }

    /// Makes the client as it is to be measured: with its caches, and registered.
    fn begin(&mut self) -> Result<()>;

    /// Runs a load. Returns `false` if a signal ended it early; then `done` tells how far it came.
    fn run(&mut self, done: &mut LoadGenerator, load: Load<'_>) -> Result<bool>;

    /// What the client has counted so far.
    fn counted(&self) -> Counted;

    /// Writes counters of the client's port into the log.
    fn log_port(&self);

    /// Closes the client's sessions.
    fn close(self: Box<Self>);
}

/// A key of either kind.
#[derive(Clone, Copy)]
pub(super) enum Key<'k> {
    Number(u64),
    Bytes(&'k [u8]),
}

/// Parts of a load.
pub(super) struct Load<'l> {
    pub(super) operations: &'l mut dyn Operations,
    pub(super) count: u64,
    pub(super) pace: Pace,
    pub(super) values: &'l Values,
    /// Receives the records so far, and whether index reads are sent to all memory servers.
    pub(super) shown: &'l mut dyn FnMut(&Recorder, bool),
}

/// Counters of a client.
#[derive(Default)]
pub(super) struct Counted {
    pub(super) troubles: Troubles,
    /// Attempts at locks.
    pub(super) attempts: Option<AttemptsAtLocks>,
    /// Use of the cache of inner nodes, if there is one.
    pub(super) cache: Option<NodeCacheResult>,
    /// Use of the cache of places, if there is one.
    pub(super) entry_cache: Option<EntryCacheResult>,
    /// Statistics of queries, if it makes any.
    pub(super) asked: Option<RequesterStats>,
    /// Bytes that READs asked for, if it makes any.
    pub(super) read_bytes: Option<u64>,
    /// System calls of its own sockets, if it has any.
    pub(super) calls: Option<u64>,
}

/// Opens the client that is measured.
pub(super) fn open(
    arguments: &Arguments,
    structure: Structure,
    cluster: &Cluster,
    described: &Client,
) -> Result<Box<dyn Measured>> {
    if arguments.protocol == Protocol::Query && arguments.contention == Treatment::Smart {
        bail!("--contention smart is for RDMA: with --protocol query, the memory servers take the locks");
    }
    let trust = crate::topology::trust(cluster, &arguments.cluster, &described.name)?;
    let patience = Duration::from_secs(arguments.patience);
    if arguments.protocol == Protocol::Query {
        // A server remembers so many requests of a client. One that is late leaves room for as many after it.
        let open = arguments.rate.is_some() || arguments.ramp;
        let mut options = QueryClientOptions {
            way: QueryWay::Sockets,
            root_to_leaf: arguments.root_to_leaf,
            servers: cluster.servers().to_vec(),
            metrics: cluster.metrics(&described.name).map(str::to_owned),
            lanes: if open { MOST } else { arguments.depth }.div_ceil(WINDOW as u16 / 2),
            trust,
            patience,
        };
        let process = match cluster.servers().iter().all(|server| server.query.is_some()) {
            true => QueryClientProcess::open(&options)?,
            false => at_free_seat(cluster, described.host, patience, |host, port| {
                options.way = QueryWay::at(cluster, host, || Ok(port))?;
                QueryClientProcess::open(&options)
            })?,
        };
        process.stop_at_signals()?;
        return Ok(Box::new(process));
    }
    with_kind!(structure, K => rdma::<K>(arguments, cluster, described, &trust))
}

/// Opens a client by RDMA at a free seat of its host.
fn rdma<K: Kind>(
    arguments: &Arguments,
    cluster: &Cluster,
    described: &Client,
    trust: &Trust,
) -> Result<Box<dyn Measured>> {
    let controllers = if arguments.root_to_leaf { &[] } else { cluster.controllers() };
    let (nic, patience) = (&arguments.nic, Duration::from_secs(arguments.patience));
    let first = cluster.tree().host(described.host).ip;
    let open = |host: Host, nic| {
        StructureProcess::<K::Client<Adapter>>::open(&ClientOptions {
            lanes: arguments.lanes,
            controllers: controllers.to_vec(),
            // There is one address for metrics.
            metrics: cluster.metrics(&described.name).map(str::to_owned).filter(|_| host.ip == first),
            trust: trust.clone(),
            patience,
            contention: arguments.contention.into(),
            ..ClientOptions::new(host, nic, cluster.servers())
        })
    };
    let process = open_client(nic, cluster, described, patience, open)?;
    process.stop_at_signals()?;
    let is_led = K::Client::<Adapter>::IS_LED && !controllers.is_empty();
    let caches = [(Remembered::Places, arguments.entry_cache), (Remembered::Nodes, arguments.cache)];
    let caches = caches.into_iter().filter_map(|(kind, bytes)| Some((kind, bytes?))).collect();
    let registered_in = (is_led && !arguments.at_once).then_some(arguments.patience);
    Ok(Box::new(Rdma { process, caches, registered_in }))
}

/// A client of any structure by RDMA.
struct Rdma<C: Reached> {
    process: StructureProcess<C>,
    /// What it is told to remember in so many bytes.
    caches: Vec<(Remembered, u64)>,
    /// Seconds within which the controller must have registered its connections, if it does.
    registered_in: Option<u64>,
}

impl<C: Reached> Rdma<C> {
    /// Use of what it remembers of a kind, if it was told to, or does by itself.
    fn cache_use(&self, kind: Remembered) -> Option<CacheUse> {
        let used = self.process.client().cache_use(kind);
        let is_told = self.caches.iter().any(|(told, _)| *told == kind);
        Some(used).filter(|used| is_told || used.entries > 0)
    }
}

impl<C: Reached> Measured for Rdma<C> {
    fn loaded(&self) -> Option<u64> {
        self.process.infos().map(|info| C::loaded(&info.structure)).sum()
    }

    fn has_byte_keys(&self) -> bool {
        self.process.infos().any(|info| C::has_byte_keys(&info.structure))
    }

    fn without_ranges(&self) -> Option<&'static str> {
        C::LACKS.contains(&"scan").then_some(C::NAME)
    }

    fn without_transactions(&self) -> Option<&'static str> {
        (!C::TRANSACTS).then_some(C::NAME)
    }

    fn find(&mut self, key: Key<'_>) -> Result<Result<Option<Vec<u8>>>> {
        let client = self.process.client().clone();
        let found = match key {
            Key::Number(key) => self.process.run(client.get(key))?,
            Key::Bytes(key) => {
                let found = self.process.run(client.get_bytes(key))?;
                found.with_context(|| format!("a {} has no keys of bytes", C::NAME))?
            }
        };
        let copied = |value: Option<C::Value>| value.map(|value| value.as_ref().to_vec());
        Ok(found.result.map(copied).map_err(Into::into))
    }

    fn begin(&mut self) -> Result<()> {
        for (kind, bytes) in &self.caches {
            self.process.client().remember(*kind, *bytes);
        }
        let (Some(patience), began) = (self.registered_in, Instant::now()) else { return Ok(()) };
        while !self.process.client().is_registered() {
            if began.elapsed() >= Duration::from_secs(patience) {
                bail!(
                    "the controller has not registered all connections in {patience} s: `fatbtree control status` says why; --at-once does \
                     not wait for it, --root-to-leaf does without"
                );
            }
            self.process.run_for(WAIT)?;
        }
        Ok(())
    }

    fn run(&mut self, done: &mut LoadGenerator, load: Load<'_>) -> Result<bool> {
        let client = self.process.client().clone();
        ended(self.process.run(run_on(&client, done, load, || client.is_registered())))
    }

    fn counted(&self) -> Counted {
        let client = self.process.client();
        Counted {
            troubles: client.troubles(),
            read_bytes: Some(client.remote().counters().read_bytes),
            attempts: AttemptsAtLocks::of(&client.remote().attempts()),
            cache: self.cache_use(Remembered::Nodes).map(Into::into),
            entry_cache: self.cache_use(Remembered::Places).map(Into::into),
            ..Counted::default()
        }
    }

    fn log_port(&self) {
        tracing::info!(port = ?self.process.port(), "client");
    }

    fn close(self: Box<Self>) {
        self.process.close();
    }
}

impl Measured for QueryClientProcess {
    fn loaded(&self) -> Option<u64> {
        Some(self.infos().map(|info| info.counts.keys).sum())
    }

    fn has_byte_keys(&self) -> bool {
        self.infos().any(|info| info.config.keys() == Keys::Bytes)
    }

    fn without_ranges(&self) -> Option<&'static str> {
        None
    }

    fn without_transactions(&self) -> Option<&'static str> {
        Some("tree")
    }

    fn find(&mut self, key: Key<'_>) -> Result<Result<Option<Vec<u8>>>> {
        let client = self.client().clone();
        let found = match key {
            Key::Number(key) => self.run(client.get(key))?,
            Key::Bytes(key) => self.run(client.get_bytes(key))?.context("queries have no keys of bytes")?,
        };
        Ok(found.result.map_err(Into::into))
    }

    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    fn run(&mut self, done: &mut LoadGenerator, load: Load<'_>) -> Result<bool> {
        let client = self.client().clone();
        ended(Self::run(self, run_on(&client, done, load, || false)))
    }

    fn counted(&self) -> Counted {
        let calls = self.has_sockets().then(|| self.datagrams().calls);
        Counted { asked: Some(self.client().stats()), calls, ..Counted::default() }
    }

    fn log_port(&self) {
        tracing::info!(datagrams = ?self.datagrams(), requests = ?self.client().stats(), "client");
    }

    fn close(self: Box<Self>) {}
}

/// Does the operations of a load on a structure, by names where keys are bytes.
async fn run_on<S: fatbtree_remote_memory::Structure>(
    structure: &S,
    done: &mut LoadGenerator,
    load: Load<'_>,
    is_registered: impl Fn() -> bool,
) -> Result<(), WorkloadError> {
    let Load { operations, count, pace, values, shown } = load;
    let watch = |recorder: &Recorder| shown(recorder, is_registered());
    match values.names() {
        None => done.run_on(structure, operations, count, pace, values, watch).await,
        Some(names) => {
            done.run_on(&Named::new(structure, names), operations, count, pace, values, watch).await
        }
    }
}

/// Whether a load that has ended came to its end.
fn ended(ended: Result<Result<(), WorkloadError>, NodeError>) -> Result<bool> {
    match ended {
        Ok(result) => result.map(|()| true).map_err(Into::into),
        Err(NodeError::Stopped) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
