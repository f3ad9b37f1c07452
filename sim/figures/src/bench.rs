//! The cluster that is measured: trees, servers, clients, and the loop that keeps operations in flight.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use fatbtree_blink::{
    Change, ConnectionId, EntryCache, IndexCache, KeyRange, PoolConfig, PoolError, RemoteMemory, RemoteSide,
    RemoteStats, ScanOptions, Start, Techniques, Tree, TreeConfig, Writer, value,
};
use fatbtree_blink_client::Client;
use fatbtree_blink_host::{Cluster, LoadOptions, LoadedTree, TreeServer, fixed, load_cluster};
use fatbtree_memserver::{ClientId, MemoryServer, ServerOptions, Tenant};
use fatbtree_remote_memory::session_keeper::{Denied, KeeperOptions, Notice, SessionKeeper};
use fatbtree_remote_memory::{Attempts, Contention, GlobalAddress, Kept, Lane, LockGuard};
use fatbtree_verbs::QueuePair;
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_workload::measure::LatencyHistogram;
use fatbtree_workload::ycsb::{Zipfian, fnv_hash64};
use rand::RngExt as _;

use super::card::{self, Calibration, Resources, Usage};
use super::replay::Replay;
use super::{Mix, Row, Size, Skew};
use fatbtree_sim::world::{Machine, MachineOptions, Options, Random, Retry, SimDevice, World, random};

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
/// Time for which sessions last without renewal: longer than a run, so that no renewal falls into one run and not into another.
pub(super) const LEASE: Duration = Duration::from_secs(60);
/// Time within which all clients are connected. They look for calls every 10 µs, and each call is answered at once.
pub(super) const CONNECTING: Duration = Duration::from_millis(10);

/// Setup of a measurement.
pub(super) struct Setup {
    pub(super) name: String,
    pub(super) tree: TreeConfig,
    pub(super) techniques: Techniques,
    pub(super) mix: Mix,
    pub(super) skew: Skew,
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
    /// Order of the keys in the key space.
    pub(super) order: KeyOrder,
    /// Lookups are scans of up to so many keys; 0: of one key.
    pub(super) scans: u32,
    /// Writes insert keys that are not there.
    pub(super) inserts: bool,
    /// Operations of a trace, instead of drawn ones.
    pub(super) replay: Option<Rc<Replay>>,
}

impl Setup {
    /// Lookups of Sherman's clients in Sherman's cluster, with all inner nodes in their caches.
    pub(super) fn new(name: String, tree: TreeConfig) -> Self {
        Self {
            name,
            tree,
            techniques: Techniques::ALL,
            mix: Mix::ReadOnly,
            skew: Skew::Skewed,
            start: Start::Cached,
            cache: Cache::Full,
            entries: 0,
            calibration: Calibration::CX5_100_IB,
            switches: 1,
            clients: Clients::Processes,
            contention: Contention::SHERMAN,
            locks: None,
            order: KeyOrder::Scrambled,
            scans: 0,
            inserts: false,
            replay: None,
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

/// A world without faults whose times are a modelled cluster's, with so many switches between a client and a server.
pub(super) fn world(seed: u64, calibration: Calibration, switches: u32) -> (World, card::Cluster) {
    // Nothing is lost here, and under FG+ an atomic can wait for long.
    let retry = Retry { timeout: Duration::from_millis(50), limit: 7 };
    let world = World::new(seed, Options { retry, ..Options::default() });
    let model = card::Cluster::new(calibration, switches);
    world.set_timing(model.clone());
    (world, model)
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

/// Results of all operations.
#[derive(Default)]
struct Tally {
    measures: Cell<bool>,
    latencies: RefCell<LatencyHistogram>,
    /// Operations of each slot.
    done: RefCell<Vec<u64>>,
    writes: Cell<u64>,
    write_trips: Cell<u64>,
    reads: Cell<u64>,
    read_trips: Cell<u64>,
    /// Begin of each operation in flight.
    begun: RefCell<Vec<Instant>>,
    wrong: RefCell<Option<String>>,
}

impl Tally {
    fn fail(&self, why: String) {
        self.wrong.borrow_mut().get_or_insert(why);
    }
}

fn add(cell: &Cell<u64>, more: u64) {
    cell.set(cell.get() + more);
}

/// Result of a configuration, with what its card has spent.
pub(super) struct Measured {
    pub(super) row: Row,
    /// Of the card of the first client.
    pub(super) usage: Usage,
    /// Percentage of lookups that a place of the entry cache answered.
    pub(super) speculated_percent: f64,
    /// Operations of each client.
    pub(super) done: Vec<u64>,
    /// Attempts at locks of all clients, since they began.
    pub(super) attempts: Attempts,
}

/// Runs one configuration; see [`measure`].
pub(super) fn run(
    setup: &Setup,
    size: &Size,
    cluster: &Cluster,
    switches: impl FnOnce(&World, &BTreeMap<QueuePair, u32>),
) -> Result<Row, String> {
    measure(setup, size, cluster, switches).map(|measured| measured.row)
}

/// Runs one configuration. `switches` is told the rkey of each queue pair, if index reads are to land anywhere.
pub(super) fn measure(
    setup: &Setup,
    size: &Size,
    cluster: &Cluster,
    switches: impl FnOnce(&World, &BTreeMap<QueuePair, u32>),
) -> Result<Measured, String> {
    let (world, model) = world(size.seed, setup.calibration, setup.switches);
    let usual = LockTable { count: LOCKS, on_card: setup.techniques.on_chip };
    let table = setup.locks.unwrap_or(usual);
    let mut machines = Vec::new();
    let mut servers = Vec::new();
    for tree in &cluster.trees {
        let machine = server(&world, tree, table);
        machines.push(machine.id());
        servers.push(RefCell::new(serve(&machine, tree, table)?));
    }
    let servers: Servers = servers.into();
    let (tally, mut clients) = (Rc::new(Tally::default()), Vec::new());
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
    let mut cache = Arc::new(IndexCache::new(limit));
    let entries = (setup.entries > 0).then(|| Arc::new(EntryCache::new(setup.entries)));
    for number in 0..number {
        let machine = world.machine(MachineOptions::named(format!("client {number}")));
        let config = PoolConfig {
            tree: setup.tree,
            lanes,
            techniques: setup.techniques,
            contention: setup.contention,
            ..PoolConfig::default()
        };
        let client =
            Client::new(machine.device(), config, cluster.roots.clone(), size.seed ^ u64::from(number) << 32);
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
        let told = Rc::clone(&tally);
        keep(&machine, Rc::new(Memory(client.clone())), &servers, move |why| told.fail(why));
        clients.push((machine, client));
    }
    if let Clients::Threads(_, resources) = setup.clients {
        let threads: Vec<_> = clients.iter().map(|(machine, _)| machine.id()).collect();
        model.threads(threads.iter().copied(), resources);
        machines.iter().for_each(|&server| model.share_card(server, threads[0]));
    }
    let rkeys = connected(&world, &clients, &servers)?;
    switches(&world, &rkeys);
    let ranks = match setup.inserts {
        true => Ranks::Fresh { next: Cell::new(0), keys: size.keys },
        false => Ranks::new(setup.skew, size.keys),
    };
    let ranks = Rc::new(ranks);
    for (number, (machine, client)) in (0..).zip(&clients) {
        for task in 0..size.depth {
            let draw = random(size.seed, 1_000 + number * 1_000 + u64::from(task));
            let ranks = Rc::clone(&ranks);
            let slot = tally.begun.borrow().len();
            tally.begun.borrow_mut().push(world.now());
            tally.done.borrow_mut().push(0);
            let own = setup.calibration.operation();
            let work = Work {
                machine: machine.clone(),
                client: client.clone(),
                tally: Rc::clone(&tally),
                slot,
                own,
                locks: setup.locks.is_some(),
                order: setup.order,
                scans: setup.scans,
                replay: setup.replay.clone(),
            };
            drop(machine.spawn(work.run(ranks, setup.mix.writes_percent(), setup.start, draw)));
        }
    }
    world.run_for(Duration::from_micros(size.warm_up_us));
    let (before, usage, hits) = (stats(&clients), model.usage(clients[0].0.id()), speculated(&clients));
    tally.measures.set(true);
    let window = Duration::from_micros(size.window_us);
    world.run_for(window);
    if let Some(why) = tally.wrong.borrow_mut().take() {
        return Err(format!("{}: {why}", setup.name));
    }
    let (after, usage) = (stats(&clients), model.usage(clients[0].0.id()).since(&usage));
    let mut latencies = tally.latencies.borrow_mut();
    let now = world.now();
    tally.begun.borrow().iter().for_each(|begun| latencies.record((now - *begun).as_nanos()));
    let per = |sum: u64, of: u64| if of == 0 { 0.0 } else { sum as f64 / of as f64 };
    let (writes, us) = (tally.writes.get(), |quantile| latencies.quantile_ns(quantile) as f64 / 1_000.0);
    let speculated_percent = 100.0 * per(speculated(&clients) - hits, tally.reads.get());
    let operations = writes + tally.reads.get();
    let row = Row {
        name: setup.name.clone(),
        operations,
        mops: operations as f64 / size.window_us as f64,
        p50_us: us(0.5),
        p90_us: us(0.9),
        p99_us: us(0.99),
        write_round_trips: per(tally.write_trips.get(), writes),
        read_round_trips: per(tally.read_trips.get(), tally.reads.get()),
        written_bytes: per(after.written_bytes - before.written_bytes, writes),
        lock_retries: per(after.lock_retries - before.lock_retries, writes),
        handed_over_percent: 100.0 * per(after.hand_overs - before.hand_overs, writes),
        bus_percent: 100.0 * usage.bus_up.as_nanos() as f64 / window.as_nanos() as f64,
        cache_bytes: clients.iter().map(|(_, client)| client.cache_stats().bytes).max().unwrap_or_default(),
    };
    let mut attempts = Attempts::default();
    clients.iter().for_each(|(_, client)| attempts.merge(&client.pool().attempts()));
    let slots = tally.done.borrow();
    let done = slots.chunks(size.depth as usize).map(|of_one| of_one.iter().sum()).collect();
    Ok(Measured { row, usage, speculated_percent, done, attempts })
}

fn speculated(clients: &[(Machine, Client<SimDevice>)]) -> u64 {
    clients.iter().map(|(_, client)| client.entry_cache_stats().hits).sum()
}

fn stats(clients: &[(Machine, Client<SimDevice>)]) -> RemoteStats {
    clients.iter().map(|(_, client)| client.pool().counters()).fold(RemoteStats::default(), |sum, stats| {
        RemoteStats {
            written_bytes: sum.written_bytes + stats.written_bytes,
            lock_retries: sum.lock_retries + stats.lock_retries,
            hand_overs: sum.hand_overs + stats.hand_overs,
            ..sum
        }
    })
}

/// Memory servers, by number. Calls reach them at once.
type Servers = Rc<[RefCell<TreeServer<SimDevice>>]>;

/// A machine for a memory server.
fn server(world: &World, tree: &LoadedTree, locks: LockTable) -> Machine {
    let default = MachineOptions::named(format!("server {}", tree.partition.id));
    let device_memory = if locks.on_card { default.device_memory } else { 0 };
    world.machine(MachineOptions { device_memory, ..default })
}

/// Starts the memory server of a tree on its machine. The tree's memory is shared with its caller.
fn serve(machine: &Machine, tree: &LoadedTree, locks: LockTable) -> Result<TreeServer<SimDevice>, String> {
    let options = ServerOptions {
        lock_table_bytes: u64::from(locks.count) * 2,
        chunk_bytes: CHUNK,
        lease: LEASE,
        ..ServerOptions::writable()
    };
    MemoryServer::new(machine.device(), tree.clone(), &options, 1).map_err(|error| error.to_string())
}

/// A client's memory under its keeper: all of its queue pairs are registered with the switches.
struct Memory(Client<SimDevice>);

impl Kept for Memory {
    type Verbs = SimDevice;
    type Error = PoolError;

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

/// Keeps a client's sessions with servers, which calls reach at once. Nothing fails here: `fail` is told of what does, and ends the run.
pub(super) fn keep<K, T>(
    machine: &Machine,
    memory: Rc<K>,
    servers: &Rc<[RefCell<MemoryServer<SimDevice, T>>]>,
    fail: impl Fn(String) + 'static,
) where
    K: Kept<Verbs = SimDevice> + 'static,
    T: Tenant + 'static,
{
    let roce = machine.reactor().with(|card| card.address());
    let id = ClientId { host: roce.into(), roce };
    let keeper = SessionKeeper::new(memory.remote().connections(), KeeperOptions::default());
    let (servers, caller) = (Rc::clone(servers), machine.clone());
    let carry = async move |server, call| {
        servers[usize::from(server)].borrow_mut().carry_out(caller.now(), id, call).map_err(Denied::from)
    };
    let told = move |notice| match notice {
        Notice::Opened { .. } | Notice::Connected { .. } => {}
        other => fail(format!("nothing fails here, but: {other:?}")),
    };
    let keeper = Rc::new(RefCell::new(keeper));
    machine.keep_sessions(memory, keeper, carry, told);
}

/// Waits until all clients are connected; returns the rkey that each queue pair reads with.
fn connected(
    world: &World,
    clients: &[(Machine, Client<SimDevice>)],
    servers: &Servers,
) -> Result<BTreeMap<QueuePair, u32>, String> {
    world.run_for(CONNECTING);
    let mut rkeys = BTreeMap::new();
    for (_, client) in clients {
        for id in client.pool().connections() {
            let queue_pair = client.pool().queue_pair(id).ok_or_else(|| format!("{id} is not up"))?;
            rkeys.insert(queue_pair, servers[usize::from(id.server)].borrow().info().region.rkey);
        }
    }
    Ok(rkeys)
}

/// A client's slot, which does one operation after the other.
struct Work {
    machine: Machine,
    client: Client<SimDevice>,
    tally: Rc<Tally>,
    slot: usize,
    /// The client's own time for an operation.
    own: Duration,
    /// Only locks are taken.
    locks: bool,
    order: KeyOrder,
    /// Keys of a scan; 0: lookups.
    scans: u32,
    replay: Option<Rc<Replay>>,
}

impl Work {
    async fn run(self, ranks: Rc<Ranks>, writes_percent: u32, start: Start, mut random: Random) {
        loop {
            let rank = ranks.draw(&mut random);
            let drawn = (self.order.key(rank), random.random_range(0..100) < writes_percent);
            let (key, writes) = self.replay.as_ref().map_or(drawn, |replay| replay.next());
            let begun = self.machine.now();
            self.tally.begun.borrow_mut()[self.slot] = begun;
            if self.own > Duration::ZERO {
                self.machine.sleep(self.own).await;
            }
            let trips = if self.locks {
                self.lock(rank).await
            } else if writes {
                self.write(key, start).await
            } else if self.scans > 0 {
                self.scan(key, start).await
            } else {
                self.read(key, start).await
            };
            let trips = match trips {
                Ok(trips) => u64::from(trips),
                Err(why) => return self.tally.fail(why),
            };
            if !self.tally.measures.get() {
                continue;
            }
            let tally = &self.tally;
            tally.latencies.borrow_mut().record((self.machine.now() - begun).as_nanos());
            tally.done.borrow_mut()[self.slot] += 1;
            let (count, sum) =
                if writes { (&tally.writes, &tally.write_trips) } else { (&tally.reads, &tally.read_trips) };
            add(count, 1);
            add(sum, trips);
        }
    }

    /// Takes a lock of the first server, reads a word, and gives the lock back. Each task has a queue pair of its own.
    async fn lock(&self, rank: u64) -> Result<u32, String> {
        let at = GlobalAddress::new(0, 64 * (1 + rank));
        let lane = Lane::new((self.slot % usize::from(LANES)) as u8);
        let pool: &RemoteMemory<SimDevice> = self.client.pool();
        let (lock, _) =
            LockGuard::lock_and_read(pool, &lane, at, 8).await.map_err(|error| format!("{error:?}"))?;
        lock.release(&lane).await.map_err(|error| format!("{error:?}"))?;
        Ok(lane.round_trips())
    }

    async fn write(&self, key: u64, start: Start) -> Result<u32, String> {
        let change = self.client.pool().mutate(key, Change::Upsert(&value_of(key)), start).await;
        change.result.map(|_| change.trips.round_trips).map_err(|error| error.to_string())
    }

    /// Scans keys from one on; returns the round trips one after the other.
    async fn scan(&self, key: u64, start: Start) -> Result<u32, String> {
        // As many leaves as the keys need, as Sherman's clients read them: at once.
        let options = ScanOptions { start, window: 1 + self.scans as usize / 40, ..ScanOptions::default() };
        let mut scan = self.client.pool().scan(KeyRange::of(key..), options);
        for _ in 0..self.scans {
            let Some(pair) = scan.next().await else { break };
            let (key, found) = pair.map_err(|error| error.to_string())?;
            if !value::check(key, VALUES, &found) {
                return Err(format!("key {key} has a value that nobody wrote"));
            }
        }
        Ok(scan.trips().sequential as u32)
    }

    async fn read(&self, key: u64, start: Start) -> Result<u32, String> {
        let found = self.client.lookup(key, start).await;
        match found.result.map_err(|error| error.to_string())? {
            Some(found) if !value::check(key, VALUES, &found) => {
                Err(format!("key {key} has a value that nobody wrote"))
            }
            _ => Ok(found.trips.round_trips),
        }
    }
}
