//! The cluster that is measured: trees, servers, clients, and the loop that keeps operations in flight.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use fatbtree_blink::{
    ChunkKind, ConnectionId, Event, GlobalAddress, IndexCache, Mutation, Owner, PoolConfig, RemoteSide,
    RemoteStats, SessionId, Start, Techniques, Tree, TreeConfig, Writer, value,
};
use fatbtree_blink_host::{Cluster, LoadOptions, fixed, load_cluster};
use fatbtree_client::Client;
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{Access, Device as _, Memory, QueuePair, Region, Remote};
use fatbtree_workload::measure::LatencyHistogram;
use fatbtree_workload::ycsb::{Zipfian, fnv_hash64};
use rand::RngExt as _;

use super::stations::Stations;
use super::{Mix, Row, Size, Skew};
use crate::world::{Machine, MachineOptions, Options, Random, Retry, ServiceTimes, SimDevice, World, random};

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
const CHUNK: u64 = 256 << 10;
/// Session of every client with every server: none ends.
const SESSION: SessionId = SessionId(1);

/// Setup of a measurement.
pub(super) struct Setup {
    pub(super) name: String,
    pub(super) tree: TreeConfig,
    pub(super) techniques: Techniques,
    pub(super) mix: Mix,
    pub(super) skew: Skew,
    pub(super) start: Start,
    pub(super) cache: Cache,
    /// Switches between a client and a server.
    pub(super) switches: u32,
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
}

/// The key of a rank: popular ones lie anywhere.
pub(super) fn key_of(rank: u64) -> u64 {
    fnv_hash64(rank)
}

/// Choice of the next key.
pub(super) enum Ranks {
    Zipf(Zipfian),
    Uniform(u64),
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
        }
    }
}

/// Trees over all servers, nodes 80 % full (section 5.1.3); all of the keys, or two of three.
pub(super) fn load(tree: TreeConfig, size: &Size, all: bool) -> Result<Cluster, String> {
    let mut keys: Vec<u64> = (0..size.keys).filter(|rank| all || rank % 3 != 2).map(key_of).collect();
    keys.sort_unstable();
    keys.dedup();
    let options = LoadOptions { fill: 0.8, spare_bytes: 64 << 20, ..LoadOptions::new(tree, 0) };
    let mut values = fixed(8, |key, room| value::fill(key, VALUES, room));
    load_cluster(&options, SERVERS, &keys, &mut values).map_err(|error| error.to_string())
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

/// Memory that servers have not given out.
type Spare = Rc<RefCell<BTreeMap<u16, std::ops::Range<u64>>>>;

/// Results of all operations.
#[derive(Default)]
struct Tally {
    measures: Cell<bool>,
    latencies: RefCell<LatencyHistogram>,
    operations: Cell<u64>,
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

/// Runs one configuration. `switches` is told the rkey of each queue pair, if index reads are to land anywhere.
pub(super) fn run(
    setup: &Setup,
    size: &Size,
    cluster: &Cluster,
    switches: impl FnOnce(&World, &BTreeMap<QueuePair, u32>),
) -> Result<Row, String> {
    let times = ServiceTimes { switches: setup.switches, ..ServiceTimes::default() };
    // Nothing is lost here, and under FG+ an atomic can wait for long.
    let retry = Retry { timeout: Duration::from_millis(50), limit: 7 };
    let world = World::new(size.seed, Options { times, retry, ..Options::default() });
    world.set_timing(Stations::new(times));
    let spare: Spare = Rc::default();
    let mut servers = Vec::new();
    for tree in &cluster.trees {
        let server = world.machine(MachineOptions::named(format!("server {}", tree.partition.id)));
        let iova = u64::from(tree.partition.id) << 48;
        let (regions, locks, owners) = registered(&server, &tree.region, iova, setup.techniques)?;
        spare.borrow_mut().insert(tree.partition.id, tree.spare.start.next_multiple_of(64)..tree.spare.end);
        servers.push((server, regions, locks, owners));
    }
    let mut rkeys = BTreeMap::new();
    let (tally, mut clients) = (Rc::new(Tally::default()), Vec::new());
    let limit = match setup.cache {
        Cache::None => 0,
        Cache::Full | Cache::Empty => 1 << 40,
        Cache::Percent(percent) => (inner_bytes(cluster)? as f64 * percent / 100.0) as u64,
    };
    for number in 0..CLIENTS {
        let machine = world.machine(MachineOptions::named(format!("client {number}")));
        let config = PoolConfig {
            tree: setup.tree,
            lanes: LANES,
            techniques: setup.techniques,
            ..PoolConfig::default()
        };
        let client =
            Client::new(machine.device(), config, cluster.roots.clone(), size.seed ^ u64::from(number) << 32);
        let client = client.map_err(|error| error.to_string())?;
        machine.set_driven(Rc::new(client.clone()));
        let cache = Arc::new(IndexCache::new(limit));
        if setup.cache == Cache::Full {
            for_each_inner(cluster, |node, partition| cache.put(node, partition))?;
        }
        client.set_cache(Some(cache));
        let pool = client.pool();
        for (server, (_, _, locks, owners)) in (0..).zip(&servers) {
            let remote = |region: &Region| Remote { address: region.iova, rkey: region.rkey };
            let (locks, owners) = (remote(locks), remote(owners));
            let owner = Owner { session: SESSION, number: number + 1 };
            let writer = Writer { locks, owners, count: LOCKS, owner, masked_atomics: true };
            pool.set_writer(server, writer).map_err(|error| error.to_string())?;
            if setup.mix != Mix::ReadOnly {
                for kind in [ChunkKind::Leaves, ChunkKind::InternalNodes] {
                    grant(&client, &spare, server, kind)?;
                }
            }
        }
        for id in pool.connections() {
            let queue_pair =
                connect(&client, id, &servers[usize::from(id.server)].0, servers[usize::from(id.server)].1)?;
            rkeys.insert(queue_pair, servers[usize::from(id.server)].1.rkey);
        }
        drop(machine.spawn(attend(machine.clone(), client.clone(), Rc::clone(&spare), Rc::clone(&tally))));
        for task in 0..size.depth {
            let draw = random(size.seed, 1_000 + u64::from(number) * 1_000 + u64::from(task));
            let ranks = Ranks::new(setup.skew, size.keys);
            let slot = tally.begun.borrow().len();
            tally.begun.borrow_mut().push(world.now());
            let work =
                Work { machine: machine.clone(), client: client.clone(), tally: Rc::clone(&tally), slot };
            drop(machine.spawn(work.run(ranks, setup.mix.writes_percent(), setup.start, draw)));
        }
        clients.push(client);
    }
    switches(&world, &rkeys);
    world.run_for(Duration::from_micros(size.warm_up_us));
    let before = stats(&clients);
    tally.measures.set(true);
    let window = Duration::from_micros(size.window_us);
    world.run_for(window);
    if let Some(why) = tally.wrong.borrow_mut().take() {
        return Err(format!("{}: {why}", setup.name));
    }
    let after = stats(&clients);
    let mut latencies = tally.latencies.borrow_mut();
    let now = world.now();
    tally.begun.borrow().iter().for_each(|begun| latencies.record((now - *begun).as_nanos()));
    let per = |sum: u64, of: u64| if of == 0 { 0.0 } else { sum as f64 / of as f64 };
    let (writes, us) = (tally.writes.get(), |quantile| latencies.quantile_ns(quantile) as f64 / 1_000.0);
    Ok(Row {
        name: setup.name.clone(),
        operations: tally.operations.get(),
        mops: tally.operations.get() as f64 / size.window_us as f64,
        p50_us: us(0.5),
        p90_us: us(0.9),
        p99_us: us(0.99),
        write_round_trips: per(tally.write_trips.get(), writes),
        read_round_trips: per(tally.read_trips.get(), tally.reads.get()),
        written_bytes: per(after.written_bytes - before.written_bytes, writes),
        lock_retries: per(after.lock_retries - before.lock_retries, writes),
        handed_over_percent: 100.0 * per(after.hand_overs - before.hand_overs, writes),
        cache_bytes: clients.iter().map(|client| client.cache_stats().bytes).max().unwrap_or_default(),
    })
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

/// A server's tree, locks and owners, all of which are alive.
fn registered(
    server: &Machine,
    tree: &Arc<Memory>,
    iova: u64,
    techniques: Techniques,
) -> Result<(Region, Region, Region), String> {
    const OWNERS: u64 = 8192;
    let shared = |bytes| Memory::shared(bytes).map_err(|error| error.to_string());
    let (table, alive) = (shared(u64::from(LOCKS) * 2)?, shared(OWNERS)?);
    alive.update(0, |_| u64::MAX).map_err(|error| error.to_string())?;
    let regions = server.reactor().with(|card| {
        let tree = card.register(tree, iova, Access::ALL)?;
        let locks = if techniques.on_chip {
            card.register_device_memory(u64::from(LOCKS) * 2, 0, Access::ALL)?
        } else {
            card.register(&table, 0, Access::ALL)?
        };
        Ok::<_, fatbtree_verbs::RegisterError>((tree, locks, card.register(&alive, 0, Access::READ)?))
    });
    regions.map_err(|error| error.to_string())
}

fn connect(
    client: &Client<SimDevice>,
    id: ConnectionId,
    server: &Machine,
    tree: Region,
) -> Result<QueuePair, String> {
    let local = client.pool().open(id).map_err(|error| error.to_string())?;
    let endpoint = server.reactor().with(|card| {
        let queue_pair = card.create()?;
        card.connect(queue_pair, &local)?;
        card.endpoint(queue_pair)
    });
    let endpoint = endpoint.map_err(|error| error.to_string())?;
    let side = RemoteSide { endpoint, rkey: tree.rkey, registered: true };
    client.pool().connected(id, side).map_err(|error| error.to_string())?;
    client.pool().queue_pair(id).ok_or_else(|| format!("{id} has no queue pair"))
}

fn grant(client: &Client<SimDevice>, spare: &Spare, server: u16, kind: ChunkKind) -> Result<(), String> {
    let mut spare = spare.borrow_mut();
    let range = spare.get_mut(&server).filter(|range| range.start + CHUNK <= range.end);
    let range = range.ok_or_else(|| format!("the memory of server {server} is used up"))?;
    client.pool().grant(SESSION, GlobalAddress::new(server, range.start), CHUNK, kind);
    range.start += CHUNK;
    Ok(())
}

/// Brings memory.
async fn attend(machine: Machine, client: Client<SimDevice>, spare: Spare, tally: Rc<Tally>) {
    const LOOK: Duration = Duration::from_micros(5);
    loop {
        while let Some(event) = client.poll_event() {
            let done = match event {
                Event::MemoryWanted { server, kind, .. } => grant(&client, &spare, server, kind),
                other => Err(format!("nothing fails here, but: {other:?}")),
            };
            if let Err(why) = done {
                tally.fail(why);
            }
        }
        machine.sleep(LOOK).await;
    }
}

/// A client's slot, which does one operation after the other.
struct Work {
    machine: Machine,
    client: Client<SimDevice>,
    tally: Rc<Tally>,
    slot: usize,
}

impl Work {
    async fn run(self, ranks: Ranks, writes_percent: u32, start: Start, mut random: Random) {
        loop {
            let key = key_of(ranks.draw(&mut random));
            let writes = random.random_range(0..100) < writes_percent;
            let begun = self.machine.now();
            self.tally.begun.borrow_mut()[self.slot] = begun;
            let trips = if writes { self.write(key, start).await } else { self.read(key, start).await };
            let trips = match trips {
                Ok(trips) => u64::from(trips),
                Err(why) => return self.tally.fail(why),
            };
            if !self.tally.measures.get() {
                continue;
            }
            let tally = &self.tally;
            tally.latencies.borrow_mut().record((self.machine.now() - begun).as_nanos());
            add(&tally.operations, 1);
            let (count, sum) =
                if writes { (&tally.writes, &tally.write_trips) } else { (&tally.reads, &tally.read_trips) };
            add(count, 1);
            add(sum, trips);
        }
    }

    async fn write(&self, key: u64, start: Start) -> Result<u32, String> {
        let mut room = [0; 8];
        value::fill(key, VALUES, &mut room);
        let change = self.client.pool().mutate(key, Mutation::Upsert(&room), start).await;
        change.result.map(|_| change.trips.round_trips).map_err(|error| error.to_string())
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
