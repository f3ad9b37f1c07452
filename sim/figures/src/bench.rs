//! Trees on the rig: servers, clients with their caches, and operations.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use fatbtree_blink::{
    Change, ConnectionId, EntryCache, IndexCache, KeyRange, PoolConfig, PoolError, RemoteMemory, RemoteSide,
    RemoteStats, ScanOptions, Start, Techniques, Tree, TreeConfig, Writer, value,
};
use fatbtree_blink_client::Client;
use fatbtree_blink_host::{Blink, Cluster, LoadOptions, fixed, load_cluster};
use fatbtree_memserver::{MemoryServer, ServerOptions};
use fatbtree_remote_memory::{Contention, GlobalAddress, Kept, Lane, LockGuard};
use fatbtree_verbs::time::Duration;
use fatbtree_workload::ycsb::{Zipfian, fnv_hash64};
use rand::RngExt as _;

use super::card::{Calibration, Resources};
use super::column::{BUS, CACHE_BYTES, HANDED_OVER, LOCK_RETRIES, WRITTEN_BYTES};
use super::meter::{Done, Measured, per, percent};
use super::replay::Replay;
use super::rig::{LEASE, Links, Rig, Servers, keep};
use super::table::Row;
use super::{Mix, Size, Skew};
use fatbtree_sim::world::{Machine, MachineOptions, Random, SimDevice, World};

/// Number of clients, as in Sherman's cluster (section 5.1.1).
pub(super) const CLIENTS: u16 = 8;
pub(super) const SERVERS: u16 = 8;
/// Locks of a server (Sherman section 4.3).
const LOCKS: u32 = 131_072;
/// Queue pairs of a client to a server: Sherman's threads have one each, and operations take ours in turn. So many that one which waits
/// for a lock seldom holds up another.
const LANES: u8 = 64;
/// Seed of value contents: all writes of a key write the same, so that every answer can be checked.
const VALUES: u64 = 1;
/// Bytes of a chunk. The virtual time of a run is too short for the default of 8 MiB.
const CHUNK: u64 = 256 << 10;
/// Step from one fresh key to the next: a prime, so that they come in no order.
const SCATTER: u64 = 7_919;
/// Setup of a measurement.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) name: String,
    pub(super) tree: TreeConfig,
    pub(super) techniques: Techniques,
    pub(super) workload: Workload,
    pub(super) start: Start,
    pub(super) cache: Cache,
    /// Bytes of the entry cache that all clients share; 0: none.
    pub(super) entries: u64,
    /// Cards, links and processors.
    pub(super) calibration: Calibration,
    /// Switches between a client and a server.
    pub(super) switches: u32,
    pub(super) clients: Clients,
    /// Throttling and back-off.
    pub(super) contention: Contention,
    /// Only locks are taken and given back, in tables of this kind; otherwise operations are the tree's.
    pub(super) locks: Option<LockTable>,
}

/// Operations, and the keys that they are about.
#[derive(Clone)]
pub(super) struct Workload {
    pub(super) skew: Skew,
    pub(super) mix: Mix,
    /// Order of the keys in the key space.
    pub(super) order: KeyOrder,
    /// Lookups are scans of up to so many keys; 0: of one key.
    pub(super) scans: u32,
    /// Writes insert keys that are not there.
    pub(super) inserts: bool,
    /// Operations of a trace, instead of drawn ones.
    pub(super) replay: Option<Rc<Replay>>,
}

impl Workload {
    /// Operations of one key each, of which popular ones lie anywhere.
    pub(super) fn new(skew: Skew, mix: Mix) -> Self {
        Self { skew, mix, order: KeyOrder::Scrambled, scans: 0, inserts: false, replay: None }
    }

    /// Choice of the next key of so many.
    pub(super) fn ranks(&self, keys: u64) -> Ranks {
        match self.inserts {
            true => Ranks::Fresh { next: Cell::new(0), keys },
            false => Ranks::new(self.skew, keys),
        }
    }
}

impl Setup {
    /// Sherman's clients in Sherman's cluster, with all inner nodes in their caches.
    pub(super) fn new(name: String, tree: TreeConfig, workload: Workload) -> Self {
        Self {
            name,
            tree,
            techniques: Techniques::ALL,
            workload,
            start: Start::Cached,
            cache: Cache::Full,
            entries: 0,
            calibration: Calibration::CX5_100_IB,
            switches: 1,
            clients: Clients::Processes,
            contention: Contention::SHERMAN,
            locks: None,
        }
    }
}

/// Order of keys in the key space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyOrder {
    /// Popular ones lie anywhere.
    Scrambled,
    /// Ranks are keys: popular ones lie side by side.
    Dense,
}

impl KeyOrder {
    /// The key of a rank.
    pub(super) fn key(self, rank: u64) -> u64 {
        match self {
            Self::Scrambled => key_of(rank),
            Self::Dense => rank,
        }
    }
}

/// Clients of a cluster, each with `depth` operations at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clients {
    /// 8 processes, each with a card, an index cache and threads that never wait for each other.
    Processes,
    /// Another number of such processes.
    Few(u16),
    /// So many threads of one process. They share an index cache and, with the servers, one card: SMART's loopback (figure 12a to c).
    Threads(u16, Resources),
}

/// A server's locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockTable {
    /// Locks of the server.
    pub(super) count: u32,
    /// Whether they lie in the memory of the card.
    pub(super) on_card: bool,
}

/// A client's index cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cache {
    None,
    /// A cache of unlimited size, with all inner nodes in it at first.
    Full,
    /// A cache of unlimited size, empty at first.
    Empty,
    /// A cache of this percentage of all inner nodes' bytes, empty at first.
    Percent(f64),
    /// A cache of so many bytes, empty at first.
    Bytes(u64),
}

/// The only value of a key.
pub(super) fn value_of(key: u64) -> [u8; 8] {
    let mut room = [0; 8];
    value::fill(key, VALUES, &mut room);
    room
}

/// The key of a rank: popular ones lie anywhere.
pub(super) fn key_of(rank: u64) -> u64 {
    fnv_hash64(rank)
}

/// Choice of the next key.
pub(super) enum Ranks {
    Zipf(Zipfian),
    Uniform(u64),
    /// Odd numbers below twice as many, each once: those that were not loaded.
    Fresh {
        next: Cell<u64>,
        keys: u64,
    },
}

impl Ranks {
    pub(super) fn new(skew: Skew, keys: u64) -> Self {
        match skew.theta() {
            Some(theta) => Self::Zipf(Zipfian::new(keys, theta).expect("there are keys, and it is a skew")),
            None => Self::Uniform(keys),
        }
    }

    pub(super) fn draw(&self, random: &mut Random) -> u64 {
        match self {
            Self::Zipf(zipf) => zipf.draw(random),
            Self::Uniform(keys) => random.random_range(0..*keys),
            Self::Fresh { next, keys } => {
                let number = next.replace(next.get() + 1);
                2 * (number * SCATTER % keys) + 1
            }
        }
    }
}

/// Trees over all servers, nodes 80 % full (section 5.1.3); all of the keys, or two of three.
pub(super) fn load(tree: TreeConfig, size: &Size, all: bool) -> Result<Cluster, String> {
    load_on(SERVERS, tree, size, all)
}

/// The same over some servers.
pub(super) fn load_on(servers: u16, tree: TreeConfig, size: &Size, all: bool) -> Result<Cluster, String> {
    let keys = (0..size.keys).filter(|rank| all || rank % 3 != 2).map(key_of);
    load_keys(servers, tree, 0.8, keys)
}

/// Trees with these keys over some servers, their nodes filled to a share.
pub(super) fn load_keys(
    servers: u16,
    tree: TreeConfig,
    fill: f64,
    keys: impl Iterator<Item = u64>,
) -> Result<Cluster, String> {
    let mut keys: Vec<u64> = keys.collect();
    keys.sort_unstable();
    keys.dedup();
    let options = LoadOptions { fill, spare_bytes: 64 << 20, ..LoadOptions::new(tree, 0) };
    let mut values = fixed(8, |key, room| value::fill(key, VALUES, room));
    load_cluster(&options, servers, &keys, &mut values).map_err(|error| error.to_string())
}

/// Bytes that all inner nodes take in a client's cache.
pub(super) fn inner_bytes(cluster: &Cluster) -> Result<u64, String> {
    let mut bytes = 0;
    for_each_inner(cluster, |node, _| bytes += IndexCache::entry_bytes(node.children().count()))?;
    Ok(bytes)
}

fn for_each_inner(
    cluster: &Cluster,
    mut visit: impl FnMut(&fatbtree_blink::node::InternalNode<'_>, &fatbtree_blink::Partition),
) -> Result<(), String> {
    let memory = cluster.memory();
    for tree in &cluster.trees {
        Tree::new(&memory, &tree.config, &tree.partition)
            .for_each_internal(|node| visit(node, &tree.partition))
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Result of a configuration.
pub(super) struct OfTrees {
    pub(super) row: Row,
    pub(super) measured: Measured,
    /// Percentage of lookups that a place of the entry cache answered.
    pub(super) speculated_percent: f64,
}

/// Runs one configuration; see [`measure`].
pub(super) fn run(
    setup: &Setup,
    size: &Size,
    cluster: &Cluster,
    switches: impl FnOnce(&World, Links),
) -> Result<Row, String> {
    measure(setup, size, cluster, switches).map(|result| result.row)
}

/// Runs one configuration. `switches` is told the queue pairs, if index reads are to land anywhere.
pub(super) fn measure(
    setup: &Setup,
    size: &Size,
    cluster: &Cluster,
    switches: impl FnOnce(&World, Links),
) -> Result<OfTrees, String> {
    let mut rig = Rig::new(size.seed, setup.calibration, setup.switches);
    let servers = serve(&mut rig, setup, cluster)?;
    let clients = begin(&mut rig, setup, size, cluster, &servers)?;
    let links = rig.connect(clients.iter().map(|client| -> &RemoteMemory<SimDevice> { client.pool() }))?;
    switches(&rig.world, links);
    work(&rig, setup, size, &clients);
    rig.world.run_for(Duration::from_micros(size.warm_up_us));
    let (before, hits) = (stats(&clients), speculated(&clients));
    let memories = clients.iter().map(|client| -> &RemoteMemory<SimDevice> { client.pool() });
    let measured = rig.measure(Duration::from_micros(size.window_us), memories);
    let measured = measured.map_err(|why| format!("{}: {why}", setup.name))?;
    let (after, tally) = (stats(&clients), &measured.tally);
    let cache_bytes = clients.iter().map(|client| client.cache_stats().bytes).max().unwrap_or_default();
    let row = measured.of_operations(&setup.name).with([
        (WRITTEN_BYTES, per(after.written_bytes - before.written_bytes, tally.writes)),
        (LOCK_RETRIES, per(after.lock_retries - before.lock_retries, tally.writes)),
        (HANDED_OVER, 100.0 * per(after.hand_overs - before.hand_overs, tally.writes)),
        (BUS, percent(measured.usage.bus_up, measured.window)),
        (CACHE_BYTES, cache_bytes as f64),
    ]);
    let speculated_percent = 100.0 * per(speculated(&clients) - hits, tally.reads);
    Ok(OfTrees { row, measured, speculated_percent })
}

/// Starts the servers of all trees. The trees' memory is shared with the caller.
fn serve(rig: &mut Rig, setup: &Setup, cluster: &Cluster) -> Result<Servers<Blink>, String> {
    let usual = LockTable { count: LOCKS, on_card: setup.techniques.on_chip };
    let locks = setup.locks.unwrap_or(usual);
    let options = ServerOptions {
        lock_table_bytes: u64::from(locks.count) * 2,
        chunk_bytes: CHUNK,
        lease: LEASE,
        ..ServerOptions::writable()
    };
    let mut servers = Vec::new();
    for tree in &cluster.trees {
        let default = MachineOptions::named(format!("server {}", tree.partition.id));
        let device_memory = if locks.on_card { default.device_memory } else { 0 };
        let machine = rig.world.machine(MachineOptions { device_memory, ..default });
        let server = MemoryServer::new(machine.device(), tree.clone(), &options, 1);
        servers.push(RefCell::new(server.map_err(|error| error.to_string())?));
        rig.servers.push(machine);
    }
    Ok(servers.into())
}

/// Starts all clients with their caches.
fn begin(
    rig: &mut Rig,
    setup: &Setup,
    size: &Size,
    cluster: &Cluster,
    servers: &Servers<Blink>,
) -> Result<Vec<Client<SimDevice>>, String> {
    let limit = match setup.cache {
        Cache::None => 0,
        Cache::Full | Cache::Empty => 1 << 40,
        Cache::Percent(percent) => (inner_bytes(cluster)? as f64 * percent / 100.0) as u64,
        Cache::Bytes(bytes) => bytes,
    };
    let (number, lanes, shares) = match setup.clients {
        Clients::Processes => (CLIENTS, LANES, false),
        Clients::Few(processes) => (processes, LANES, false),
        Clients::Threads(threads, _) => (threads, 1, true),
    };
    let config = PoolConfig {
        tree: setup.tree,
        lanes,
        techniques: setup.techniques,
        contention: setup.contention,
        ..PoolConfig::default()
    };
    let mut cache = Arc::new(IndexCache::new(limit));
    let entries = (setup.entries > 0).then(|| Arc::new(EntryCache::new(setup.entries)));
    let mut clients = Vec::new();
    for number in 0..number {
        let machine = rig.client(format!("client {number}"));
        let seed = size.seed ^ u64::from(number) << 32;
        let client = Client::new(machine.device(), config, cluster.roots.clone(), seed);
        let client = client.map_err(|error| error.to_string())?;
        machine.set_driven(Rc::new(client.clone()));
        if number == 0 || !shares {
            cache = Arc::new(IndexCache::new(limit));
            if setup.cache == Cache::Full {
                for_each_inner(cluster, |node, partition| cache.put(node, partition))?;
            }
        }
        client.set_cache(Some(Arc::clone(&cache)));
        client.set_entry_cache(entries.clone());
        keep(&machine, Rc::new(Memory(client.clone())), servers, &rig.meter);
        clients.push(client);
    }
    if let Clients::Threads(_, resources) = setup.clients {
        let threads: Vec<_> = rig.clients.iter().map(Machine::id).collect();
        rig.cards.threads(threads.iter().copied(), resources);
        rig.servers.iter().for_each(|server| rig.cards.share_card(server.id(), threads[0]));
    }
    Ok(clients)
}

/// Keeps all clients busy, with `size.depth` operations at once each.
fn work(rig: &Rig, setup: &Setup, size: &Size, clients: &[Client<SimDevice>]) {
    let (ranks, setup) = (Rc::new(setup.workload.ranks(size.keys)), Rc::new(setup.clone()));
    for (number, (machine, client)) in rig.clients.iter().zip(clients).enumerate() {
        rig.meter.occupy((number, machine), size.depth, (size.seed, 1_000), |slot, mut draw| {
            let (machine, client, lane) =
                (machine.clone(), client.clone(), (slot % usize::from(LANES)) as u8);
            let work = Work { machine, client, lane, ranks: Rc::clone(&ranks), setup: Rc::clone(&setup) };
            async move || work.next(&mut draw).await
        });
    }
}

fn speculated(clients: &[Client<SimDevice>]) -> u64 {
    clients.iter().map(|client| client.entry_cache_stats().hits).sum()
}

fn stats(clients: &[Client<SimDevice>]) -> RemoteStats {
    clients.iter().map(|client| client.pool().counters()).fold(RemoteStats::default(), |sum, stats| {
        RemoteStats {
            written_bytes: sum.written_bytes + stats.written_bytes,
            lock_retries: sum.lock_retries + stats.lock_retries,
            hand_overs: sum.hand_overs + stats.hand_overs,
            ..sum
        }
    })
}

/// A client's memory under its keeper: all of its queue pairs are registered with the switches.
struct Memory(Client<SimDevice>);

impl Kept for Memory {
    type Verbs = SimDevice;
    type Refusal = PoolError;

    fn remote(&self) -> &RemoteMemory<SimDevice> {
        self.0.pool()
    }

    fn let_write(&self, server: u16, writer: Writer) -> Result<(), PoolError> {
        self.0.pool().set_writer(server, writer)
    }

    fn join(&self, id: ConnectionId, remote: RemoteSide) -> Result<(), PoolError> {
        self.0.pool().connected(id, RemoteSide { registered: true, ..remote }).map(drop)
    }
}

/// A client's slot, which does one operation after the other.
struct Work {
    machine: Machine,
    client: Client<SimDevice>,
    /// Queue pair for locks by themselves.
    lane: u8,
    ranks: Rc<Ranks>,
    setup: Rc<Setup>,
}

impl Work {
    /// Does the next operation.
    async fn next(&self, random: &mut Random) -> Result<Done, String> {
        let (setup, workload) = (&self.setup, &self.setup.workload);
        let rank = self.ranks.draw(random);
        let drawn = (workload.order.key(rank), random.random_range(0..100) < workload.mix.writes_percent());
        let (key, writes) = workload.replay.as_ref().map_or(drawn, |replay| replay.next());
        // The client's own work.
        let own = setup.calibration.operation();
        if own > Duration::ZERO {
            self.machine.sleep(own).await;
        }
        let trips = if setup.locks.is_some() {
            self.lock(rank).await?
        } else if writes {
            self.write(key).await?
        } else if workload.scans > 0 {
            self.scan(key).await?
        } else {
            self.read(key).await?
        };
        Ok(if writes { Done::Write(trips) } else { Done::Read(trips) })
    }

    /// Takes a lock of the first server, reads a word, and gives the lock back. Each task has a queue pair of its own.
    async fn lock(&self, rank: u64) -> Result<u32, String> {
        let at = GlobalAddress::new(0, 64 * (1 + rank));
        let lane = Lane::new(self.lane);
        let pool: &RemoteMemory<SimDevice> = self.client.pool();
        let (lock, _) =
            LockGuard::lock_and_read(pool, &lane, at, 8).await.map_err(|error| format!("{error:?}"))?;
        lock.release(&lane).await.map_err(|error| format!("{error:?}"))?;
        Ok(lane.round_trips())
    }

    async fn write(&self, key: u64) -> Result<u32, String> {
        let change = self.client.pool().mutate(key, Change::Upsert(&value_of(key)), self.setup.start).await;
        change.result.map(|_| change.trips.round_trips).map_err(|error| error.to_string())
    }

    /// Scans keys from one on; returns the round trips one after the other.
    async fn scan(&self, key: u64) -> Result<u32, String> {
        // As many leaves as the keys need, as Sherman's clients read them: at once.
        let (start, scans) = (self.setup.start, self.setup.workload.scans);
        let options = ScanOptions { start, window: 1 + scans as usize / 40, ..ScanOptions::default() };
        let mut scan = self.client.pool().scan(KeyRange::of(key..), options);
        for _ in 0..scans {
            let Some(pair) = scan.next().await else { break };
            let (key, found) = pair.map_err(|error| error.to_string())?;
            if !value::check(key, VALUES, &found) {
                return Err(format!("key {key} has a value that nobody wrote"));
            }
        }
        Ok(scan.trips().sequential as u32)
    }

    async fn read(&self, key: u64) -> Result<u32, String> {
        let found = self.client.lookup(key, self.setup.start).await;
        match found.result.map_err(|error| error.to_string())? {
            Some(found) if !value::check(key, VALUES, &found) => {
                Err(format!("key {key} has a value that nobody wrote"))
            }
            _ => Ok(found.trips.round_trips),
        }
    }
}
