//! The client that is measured.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fatbtree_blink::{EntryCache, IndexCache, Start};
use fatbtree_blink_client::RequesterStats;
use fatbtree_memserver::ServerInfo;
use fatbtree_processes::{
    Adapter, ClientOptions, ClientProcess, NicSpec, NodeError, QueryClientOptions, QueryClientProcess,
    QueryWay, SpreadClient, SpreadProcess, StructureClient, StructureProcess, at_free_seat,
};
use fatbtree_registry::{Kind, Remembered, with_kind};
use fatbtree_remote_memory::Structure as _;
use fatbtree_topology::{Client, Cluster, Host, Structure};
use fatbtree_wire::query::WINDOW;
use fatbtree_workload::measure::{Recorder, Troubles};
use fatbtree_workload::ycsb::WorkloadError;
use fatbtree_workload::{LoadGenerator, Operations, Pace, Values};

use super::entry_cache::EntryCacheResult;
use super::keys::Keys;
use super::node_cache::NodeCacheResult;
use super::{Arguments, AttemptsAtLocks, MOST, Protocol, Treatment, WAIT};
use crate::structure::open_client;

/// A client that is measured, of any structure and protocol.
pub(super) trait Measured {
    /// Number of keys that the memory servers were loaded with. Where these do not know it, the keys are looked for.
    fn records(&mut self, keys: &Keys) -> Result<u64>;

    /// Name of its structure, if that has no ranges of keys.
    fn without_ranges(&self) -> Option<&'static str>;

    /// Name of its structure, if that has no transactions.
    fn without_transactions(&self) -> Option<&'static str>;

    /// The value of a key, if it is there; `None` if its server does not answer.
    fn value_of(&mut self, key: u64) -> Result<Option<Option<Vec<u8>>>>;

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
    let controllers = if arguments.root_to_leaf { &[] } else { cluster.controllers() };
    let first = cluster.tree().host(described.host).ip;
    let options = |host: Host, nic| ClientOptions {
        servers: cluster.servers().to_vec(),
        lanes: arguments.lanes,
        controllers: controllers.to_vec(),
        // There is one address for metrics.
        metrics: cluster.metrics(&described.name).map(str::to_owned).filter(|_| host.ip == first),
        host,
        nic,
        trust: trust.clone(),
        patience,
        contention: arguments.contention.into(),
    };
    let kind =
        with_kind!(structure, K => spread::<K>(arguments, rdma(arguments, cluster, described, options)?));
    if let Some(process) = kind {
        return Ok(process);
    }
    let process: ClientProcess = rdma(arguments, cluster, described, options)?;
    let entries = arguments.entry_cache.map(|bytes| Arc::new(EntryCache::new(bytes)));
    let nodes = arguments.cache.map(|bytes| Arc::new(IndexCache::new(bytes)));
    let is_led = cluster.controller().is_some() && !arguments.root_to_leaf;
    // Without a controller, an operation begins at the root where no cache knows more.
    let start = match is_led {
        true => Start::CachedOrIndexRead,
        false if entries.is_none() && nodes.is_none() => Start::Root,
        false => Start::Cached,
    };
    let [client, looks] = [start, Start::Root].map(|start| process.client().starting(start));
    let (has_nodes, has_entries) = (nodes.is_some(), entries.is_some());
    Ok(Box::new(Rdma {
        process,
        client,
        looks,
        loaded: |infos| Some(infos.map(|info| info.counts.keys).sum()),
        remember: Box::new(move |client| {
            client.set_entry_cache(entries.clone());
            client.set_cache(nodes.clone());
        }),
        registered_in: (is_led && !arguments.at_once).then_some(arguments.patience),
        counted: Box::new(move |client| Counted {
            troubles: client.pool().stats().into(),
            cache: has_nodes.then(|| client.cache_stats().into()),
            entry_cache: has_entries.then(|| client.entry_cache_stats().into()),
            ..Counted::default()
        }),
    }))
}

/// Opens a client by RDMA at a free seat of its host.
fn rdma<C: StructureClient>(
    arguments: &Arguments,
    cluster: &Cluster,
    described: &Client,
    options: impl Fn(Host, NicSpec) -> ClientOptions,
) -> Result<StructureProcess<C>> {
    let (nic, patience) = (&arguments.nic, Duration::from_secs(arguments.patience));
    let open = |host, nic| StructureProcess::open(&options(host, nic));
    let process = open_client(nic, cluster, described, patience, open)?;
    process.stop_at_signals()?;
    Ok(process)
}

/// Client of a structure over all memory servers.
fn spread<K: Kind>(arguments: &Arguments, process: SpreadProcess<K::Client<Adapter>>) -> Box<dyn Measured> {
    let (client, looks) = (process.client().clone(), process.client().clone());
    let entry_cache = arguments.entry_cache;
    let bytes = match K::REMEMBERS {
        Remembered::Places => entry_cache,
        Remembered::Nodes => arguments.cache,
    };
    if let Some(bytes) = bytes {
        client.remember(bytes);
    }
    let counted = Box::new(move |client: &SpreadClient<_>| {
        let used = client.opened().map(|open| K::cache_use(&open));
        match K::REMEMBERS {
            Remembered::Places => {
                let entry_cache = used.filter(|_| entry_cache.is_some()).map(Into::into);
                Counted { entry_cache, ..Counted::default() }
            }
            Remembered::Nodes => Counted { cache: used.map(Into::into), ..Counted::default() },
        }
    });
    let remember = Box::new(|_: &_| ());
    Box::new(Rdma { process, client, looks, loaded: |_| None, remember, registered_in: None, counted })
}

/// Number of keys that memory servers were loaded with, by their descriptions; `None` if these do not tell it.
type Loaded<C> = fn(&mut dyn Iterator<Item = &ServerInfo<<C as StructureClient>::Info>>) -> Option<u64>;

/// A client of any structure by RDMA.
struct Rdma<C: StructureClient> {
    process: StructureProcess<C>,
    /// The client whose operations are measured.
    client: C,
    /// The same client, looking for keys before.
    looks: C,
    loaded: Loaded<C>,
    /// Sets its caches.
    remember: Box<dyn Fn(&C)>,
    /// Seconds within which the controller must have registered its connections, if it does.
    registered_in: Option<u64>,
    counted: Box<dyn Fn(&C) -> Counted>,
}

impl<C: StructureClient> Measured for Rdma<C> {
    fn records(&mut self, keys: &Keys) -> Result<u64> {
        let loaded = (self.loaded)(&mut self.process.infos());
        match loaded {
            Some(loaded) => Ok(records_of(loaded, keys)),
            None => self.process.run(search(&self.looks, keys))?,
        }
    }

    fn without_ranges(&self) -> Option<&'static str> {
        C::LACKS.contains(&"scan").then_some(C::NAME)
    }

    fn without_transactions(&self) -> Option<&'static str> {
        (!C::TRANSACTS).then_some(C::NAME)
    }

    fn value_of(&mut self, key: u64) -> Result<Option<Option<Vec<u8>>>> {
        let found = self.process.run(self.looks.get(key))?.result;
        Ok(found.map(|value| value.map(|value| value.as_ref().to_vec())).ok())
    }

    fn begin(&mut self) -> Result<()> {
        (self.remember)(&self.client);
        let (Some(patience), began) = (self.registered_in, Instant::now()) else { return Ok(()) };
        while !self.client.is_registered() {
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
        let Load { operations, count, pace, values, shown } = load;
        let watch = |recorder: &Recorder| shown(recorder, self.client.is_registered());
        ended(self.process.run(done.run_on(&self.client, operations, count, pace, values, watch)))
    }

    fn counted(&self) -> Counted {
        let attempts = AttemptsAtLocks::of(&self.client.remote().attempts());
        Counted { attempts, ..(self.counted)(&self.client) }
    }

    fn log_port(&self) {
        tracing::info!(port = ?self.process.port(), "client");
    }

    fn close(self: Box<Self>) {
        self.process.close();
    }
}

impl Measured for QueryClientProcess {
    fn records(&mut self, keys: &Keys) -> Result<u64> {
        Ok(records_of(self.infos().map(|info| info.counts.keys).sum(), keys))
    }

    fn without_ranges(&self) -> Option<&'static str> {
        None
    }

    fn without_transactions(&self) -> Option<&'static str> {
        Some("tree")
    }

    fn value_of(&mut self, key: u64) -> Result<Option<Option<Vec<u8>>>> {
        let client = self.client().clone();
        Ok(self.run(client.get(key))?.result.ok())
    }

    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    fn run(&mut self, done: &mut LoadGenerator, load: Load<'_>) -> Result<bool> {
        let Load { operations, count, pace, values, shown } = load;
        let client = self.client().clone();
        let watch = |recorder: &Recorder| shown(recorder, false);
        ended(Self::run(self, done.run_on(&client, operations, count, pace, values, watch)))
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

/// Whether a load that has ended came to its end.
fn ended(ended: Result<Result<(), WorkloadError>, NodeError>) -> Result<bool> {
    match ended {
        Ok(result) => result.map(|()| true).map_err(Into::into),
        Err(NodeError::Stopped) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Number of keys of memory servers that were loaded with so many. Keys that clients have put are not counted: whether those of a file
/// are there is seen from the first.
fn records_of(loaded: u64, keys: &Keys) -> u64 {
    match keys {
        Keys::Of { file, .. } if loaded == 0 => file.keys().len() as u64,
        _ => loaded,
    }
}

/// Number of keys that the structure was loaded with. Of a file, all of them; of YCSB, as many as are there from the first one on: they
/// are looked for in halves, because a load inserts all of them, and workloads insert others far beyond.
async fn search<S: fatbtree_remote_memory::Structure>(structure: &S, keys: &Keys) -> Result<u64> {
    if let Keys::Of { file, .. } = keys {
        return Ok(file.keys().len() as u64);
    }
    let map = keys.map();
    let is_there = async |record: u64| {
        let Some(key) = map.key(record) else { return Ok(false) };
        let found = structure.get(key).await.result;
        found.map(|value| value.is_some()).context("looking for the keys that are there")
    };
    let (mut least, mut above) = (0, 1_u64);
    while is_there(above - 1).await? {
        least = above;
        above = above.saturating_mul(2);
    }
    while above - least > 1 {
        let middle = least + (above - least) / 2;
        match is_there(middle - 1).await? {
            true => least = middle,
            false => above = middle,
        }
    }
    Ok(least)
}
