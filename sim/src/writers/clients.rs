//! Clients: their sessions and connections, and what they do.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;

use fatbtree_blink::layers::BytesScan;
use fatbtree_blink::{
    Allocation, BreakReason, BytesRange, Change, ConnectionId, EntryCache, IndexCache, KeyRange, Keys,
    OperationError, Order, Partition, PoolConfig, PoolError, RemoteMemory, RemoteSide, Scan, ScanOptions,
    ScanTrips, Start, SuperRoot, Value, ValueLayout, Writer,
};
use fatbtree_blink_client::Client;
use fatbtree_blink_host::TreeInfo;
use fatbtree_memserver::Grant;
use fatbtree_remote_memory::Kept;
use fatbtree_remote_memory::session_keeper::{
    Call as SessionCall, Denied, Granted, Meaning, NoAnswer, Notice, SessionKeeper,
};
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Failure, Reactor, Remote};
use rand::RngExt as _;

use super::setting::Setting;
use crate::history::{Answer, Call};
use crate::trees::values;
use crate::world::{Machine, Random, SimDevice};

/// Interval at which a client looks for work.
const LOOK: Duration = Duration::from_micros(10);

/// A client in one life.
#[derive(Clone)]
pub(super) struct Living {
    pub(super) machine: Machine,
    pub(super) client: Client<SimDevice>,
    setting: Rc<Setting>,
    keeper: Rc<RefCell<SessionKeeper<TreeInfo>>>,
}

impl Living {
    /// Makes a client on a machine that has just booted.
    pub(super) fn begin(machine: &Machine, setting: &Rc<Setting>, random: &mut Random) -> Self {
        let scenario = &setting.scenario;
        let (tree, techniques) = (scenario.config, scenario.techniques);
        let is_round_robin = scenario.round_robin > 0 && random.random_range(0..100) < scenario.round_robin;
        let allocation = if is_round_robin { Allocation::RoundRobin } else { Allocation::Partitioned };
        let config = PoolConfig {
            tree,
            lanes: scenario.lanes,
            techniques,
            allocation,
            limits: scenario.limits,
            contention: scenario.contention,
        };
        let client =
            Client::new(machine.device(), config, setting.roots(), random.random_range(0..=u64::MAX));
        let client = client.expect("a scenario has at least one lane");
        client.set_cache(scenario.cache.map(|bytes| Arc::new(IndexCache::new(bytes))));
        let own = || scenario.entries.map(|bytes| Arc::new(EntryCache::new(bytes)));
        client.set_entry_cache(setting.shared_entries.clone().or_else(own));
        machine.set_driven(Rc::new(client.clone()));
        let keeper = crate::stage::keeper(client.pool());
        let living = Self { machine: machine.clone(), client, setting: Rc::clone(setting), keeper };
        let mut next = || crate::world::random(random.random_range(0..=u64::MAX), 4);
        let memory = Memory { living: living.clone(), random: RefCell::new(next()) };
        let (caller, listener) = (living.clone(), living.clone());
        let carry = async move |server, call| caller.carry(server, call).await;
        let keeper = Rc::clone(&living.keeper);
        let told = move |notice| listener.handle_notice(&notice);
        machine.keep_sessions(Rc::new(memory), keeper, carry, told);
        drop(machine.spawn(living.clone().give_places_back(next())));
        living
    }

    /// Carries a call to a server's process.
    async fn carry(&self, id: u16, call: SessionCall) -> Result<Granted<TreeInfo>, Denied> {
        let server = self.setting.server(id);
        let asks_memory = matches!(call, SessionCall::Allocate { .. });
        let work = |_: &Reactor<SimDevice>| server.carry_out(&self.machine, call);
        let answer = match self.machine.call(&server.machine, work).await {
            Ok(Some(answer)) => answer.map_err(Denied::from),
            Ok(None) | Err(_) => Err(NoAnswer.into()),
        };
        match &answer {
            Ok(Granted::Supplied(Grant::Blocks(places))) => {
                self.setting.count(|outcome| outcome.reused += places.addresses.len() as u64);
            }
            // Places that damaged nodes lead to were never the tree's.
            Err(denied) if asks_memory && denied.meaning == Meaning::No => {
                self.setting.wrong(format!("there is no room for what is written: {denied}"));
            }
            _ => {}
        }
        answer
    }

    fn handle_notice(&self, notice: &Notice) {
        match *notice {
            Notice::Opened { server } => self.believe(server),
            Notice::Broken { id, reason } => self.note_broken(id, reason),
            _ => {}
        }
    }

    /// Takes over the partition that a server has described in a new session.
    fn believe(&self, id: u16) {
        let Some(info) = self.keeper.borrow().info(id).copied() else { return };
        let pool = self.client.pool();
        let of_others = |partition: &Partition| if partition.id == id { info.partition } else { *partition };
        let partitions = pool.roots().partitions().iter().map(of_others).collect();
        let roots = SuperRoot::new(partitions)
            .expect("ranges stay as they are, and a superblock without a root is refused");
        pool.set_roots(roots).expect("servers stay as they are");
    }

    /// Gives places back as if the client was closed, so that they go round. Not in the final phase: each task would take away what
    /// another one has just brought.
    async fn give_places_back(self, mut random: Random) {
        while !self.setting.calm.get() {
            if random.random_bool(0.02) {
                let returned = self.client.pool().take_returned();
                returned.into_iter().for_each(|places| self.keeper.borrow_mut().give_back(places));
            }
            self.machine.sleep(LOOK).await;
        }
    }

    fn note_broken(&self, id: ConnectionId, reason: BreakReason) {
        self.setting.count(|outcome| {
            outcome.broken_connections += 1;
            outcome.refused_index_reads += u64::from(reason == BreakReason::Unregistered);
        });
        // Another tree has another region.
        let is_first_tree = self.setting.scenario.loading == 0 && self.setting.scenario.restarting == 0;
        if reason == BreakReason::Failed(Failure::RemoteAccess) && is_first_tree {
            self.setting.wrong(format!("{id}: something in the region led a request out of it"));
        }
    }

    /// Waits until it may write to every server, as a client does before it begins.
    async fn until_writer(&self) {
        let scenario = &self.setting.scenario;
        let has_all = || scenario.ids().all(|id| self.keeper.borrow().session(id).is_some());
        while scenario.servers > 1 && !has_all() {
            self.machine.sleep(LOOK).await;
        }
    }

    pub(super) async fn work(self, operations: u32, mut random: Random) {
        self.until_writer().await;
        for _ in 0..operations {
            if random.random_range(0..100) < self.setting.scenario.scans {
                let _ = self.scan(&mut random).await;
                continue;
            }
            let key = self.draw_key(&mut random);
            let reads = self.setting.scenario.reads;
            let is_read = reads > 0 && random.random_range(0..100) < reads;
            let what = if is_read { 0 } else { self.draw_what(&mut random) };
            // An error says why, and is no answer.
            let _ = self.operate(key, what, &mut random).await;
        }
    }

    pub(super) fn draw_key(&self, random: &mut Random) -> u64 {
        let scenario = &self.setting.scenario;
        let is_hot = scenario.hot > 0.0 && random.random_bool(scenario.hot);
        let keys = if is_hot { 2 } else { scenario.keys * u64::from(scenario.servers) };
        scenario.key(random.random_range(0..keys))
    }

    fn draw_what(&self, random: &mut Random) -> u32 {
        if random.random_range(0..100) < self.setting.scenario.deletes {
            8
        } else {
            random.random_range(0..8)
        }
    }

    fn draw_start(&self, level: impl Fn(u8) -> bool, random: &mut Random) -> Start {
        let scenario = &self.setting.scenario;
        let with_cache = scenario.cache.is_some();
        // Without an index cache both begin at the root; one of them asks the entry cache first.
        let root = if scenario.entries.is_some() { Start::Cached } else { Start::Root };
        match random.random_range(0..6) {
            0 if with_cache => Start::Cached,
            2..4 if with_cache => Start::CachedOrIndexRead,
            0..2 => root,
            2..5 => Start::IndexRead,
            _ => {
                let seen = self.setting.seen.borrow();
                let (_, address, found) = seen[random.random_range(0..seen.len())];
                if level(found) { Start::Node { address, level: found } } else { Start::Root }
            }
        }
    }

    /// Last operations of clients, which must succeed. An operation may say that a session has just ended,
    /// once for each server.
    pub(super) async fn end(self, keys: Vec<u64>, mut random: Random) -> Result<(), String> {
        self.until_writer().await;
        for key in keys {
            for what in [None, Some(3), Some(0)] {
                let mut spare = self.setting.servers.len();
                loop {
                    let ended = match what {
                        None => self.scan(&mut random).await,
                        Some(what) => self.operate(key, what, &mut random).await,
                    };
                    match ended {
                        Ok(()) => break,
                        Err(why) if spare == 0 => return Err(why),
                        Err(_) => spare -= 1,
                    }
                }
            }
        }
        Ok(())
    }

    /// Last operations of clients in a damaged tree: each operation ends, with any result.
    pub(super) async fn end_damaged(self, keys: Vec<u64>, mut random: Random) -> Result<(), String> {
        self.until_writer().await;
        for key in keys {
            for what in [None, Some(0), Some(3), Some(8)] {
                let ended = match what {
                    None => self.scan(&mut random).await,
                    Some(what) => self.operate(key, what, &mut random).await,
                };
                self.setting.count(|outcome| outcome.errors += u64::from(ended.is_err()));
            }
        }
        Ok(())
    }

    async fn operate(&self, key: u64, what: u32, random: &mut Random) -> Result<(), String> {
        let history = &self.setting.history;
        let (name, now) = (self.machine.name(), self.machine.now());
        let start = self.draw_start(|_| true, random);
        if what < 3 {
            let asked = history.ask(&name, now, key, Call::Get);
            let scenario = &self.setting.scenario;
            let found = match scenario.config.keys() {
                Keys::Numbers => self.client.lookup(key, start).await,
                Keys::Bytes => self.client.pool().lookup_bytes(&scenario.bytes_of(key), start).await,
            };
            self.setting.count(|outcome| outcome.add(&found.trips, &found.result));
            let found = match self.looked_up(key, found.result)? {
                Some(value) => Some((self.opened(key, &value)?, value.to_vec())),
                None => None,
            };
            history.answer(asked, self.machine.now(), Answer::Found(found.as_ref().map(|(word, _)| *word)));
            let Some((word, value)) = found.filter(|_| what == 2) else { return Ok(()) };
            let (new, bytes) = self.draw_value(key, random);
            let call = Call::CompareAndSet { expected: word, new };
            return self
                .mutate(key, call, Change::CompareAndSwap { expected: &value, value: &bytes }, start)
                .await;
        }
        let (word, value) = self.draw_value(key, random);
        let (call, mutation) = match what {
            3 | 4 => (Call::Upsert(word), Change::Upsert(&value)),
            5 | 6 => (Call::Insert(word), Change::Insert(&value)),
            7 => (Call::Update(word), Change::Update(&value)),
            _ => (Call::Delete, Change::Delete),
        };
        self.mutate(key, call, mutation, start).await
    }

    /// The result of a lookup. Errors other than giving up and a broken connection are noted as wrong.
    fn looked_up(
        &self,
        key: u64,
        result: Result<Option<Value>, OperationError>,
    ) -> Result<Option<Value>, String> {
        result.map_err(|error| {
            let may_be =
                matches!(error, OperationError::GaveUp { .. } | OperationError::ConnectionBroke { .. });
            if !may_be {
                self.setting.wrong(format!("a lookup of key {key:#x} ended with: {error}"));
            }
            error.to_string()
        })
    }

    /// The word of a value that was read.
    fn opened(&self, key: u64, value: &[u8]) -> Result<u64, String> {
        values::open(key, value).ok_or_else(|| {
            let why = format!("key {key:#x}: a value of {} bytes that no client wrote", value.len());
            self.setting.wrong(why.clone());
            why
        })
    }

    /// A value of its own, and the word that names it.
    fn draw_value(&self, key: u64, random: &mut Random) -> (u64, Vec<u8>) {
        let (word, scenario) = (self.setting.next_word(), &self.setting.scenario);
        let len = match scenario.config.values() {
            ValueLayout::Inline(len) => usize::from(len),
            ValueLayout::OutOfLine | ValueLayout::ByLength(_) => random.random_range(8..=scenario.longest),
        };
        let mut value = vec![0; len];
        values::fill(key, word, &mut value);
        (word, value)
    }

    async fn mutate(&self, key: u64, call: Call, mutation: Change<'_>, start: Start) -> Result<(), String> {
        let history = &self.setting.history;
        let asked = history.ask(&self.machine.name(), self.machine.now(), key, call);
        let (scenario, pool) = (&self.setting.scenario, self.client.pool());
        let change = match scenario.config.keys() {
            Keys::Numbers => pool.mutate(key, mutation, start).await,
            Keys::Bytes => pool.mutate_bytes(&scenario.bytes_of(key), mutation, start).await,
        };
        self.setting.count(|outcome| outcome.round_trips += u64::from(change.trips.round_trips));
        let applied = change.result.map_err(|error| error.to_string())?;
        self.setting.count(|outcome| outcome.applied += u64::from(applied));
        history.answer(asked, self.machine.now(), Answer::of(applied));
        Ok(())
    }

    /// Scans some keys, in either direction, now and then only a part of them.
    pub(super) async fn scan(&self, random: &mut Random) -> Result<(), String> {
        let history = &self.setting.history;
        let (one, other) = (self.draw_key(random), self.draw_key(random));
        let (low, high) = (one.min(other), one.max(other));
        let order = if random.random_bool(0.5) { Order::Forward } else { Order::Backward };
        let start = self.draw_start(|_| true, random);
        let window = random.random_range(1..=8);
        let most = if random.random_bool(0.2) { random.random_range(1..8) } else { usize::MAX };
        // Half of those that go to the end have told so many as they like.
        let told = if one > other { (one % 40) as usize } else { usize::MAX };
        let options = ScanOptions { order, start, window, wanted: most.min(told) };
        let asked = history.ask_scan(&self.machine.name(), self.machine.now(), low..=high);
        let mut scan = self.begin_scan(low..=high, options);
        let mut pairs = Vec::new();
        while pairs.len() < most
            && let Some(pair) = scan.next(&self.setting).await
        {
            let (key, value) = pair?;
            pairs.push((key, self.opened(key, &value)?));
        }
        let trips = scan.trips();
        self.setting.count(|outcome| {
            outcome.scans += 1;
            outcome.scanned += pairs.len() as u64;
            outcome.round_trips += trips.reads;
        });
        let range = match pairs.last() {
            Some(&(last, _)) if pairs.len() == most && order == Order::Forward => low..=last,
            Some(&(last, _)) if pairs.len() == most => last..=high,
            _ => low..=high,
        };
        history.answer_scan(asked, self.machine.now(), range, pairs);
        Ok(())
    }

    fn begin_scan(&self, keys: RangeInclusive<u64>, options: ScanOptions) -> AnyScan<'_> {
        let (scenario, pool) = (&self.setting.scenario, self.client.pool());
        match scenario.config.keys() {
            Keys::Numbers => AnyScan::Numbers(pool.scan(KeyRange::of(keys), options)),
            Keys::Bytes => {
                let range = BytesRange::of(scenario.bytes_of(*keys.start())..=scenario.bytes_of(*keys.end()));
                AnyScan::Bytes(pool.scan_bytes(range, options))
            }
        }
    }

    /// Adds what this life has counted.
    pub(super) fn count(&self) {
        let (stats, cache) = (self.client.pool().stats(), self.client.cache_stats());
        let entries = self.client.entry_cache_stats();
        self.setting.count(|outcome| {
            outcome.speculated += entries.hits;
            outcome.stale_places += entries.stale;
            outcome.cache_hits += cache.hits;
            outcome.stale_starts += cache.stale;
            outcome.records += stats.records;
            outcome.stale_records += stats.stale_records;
            outcome.lock_retries += stats.remote.lock_retries;
            outcome.inherited_locks += stats.remote.inherited_locks;
            outcome.splits += stats.splits;
            outcome.splits_elsewhere += stats.splits_elsewhere;
            outcome.merges += stats.merges;
            outcome.merges_below_others += stats.merges_below_others;
            outcome.settled += stats.settled;
            outcome.layers_created += stats.layers_created;
            outcome.layers_removed += stats.layers_removed;
        });
    }
}

/// A scan of keys of either kind.
enum AnyScan<'p> {
    Numbers(Scan<'p, SimDevice>),
    Bytes(BytesScan<'p, SimDevice>),
}

impl AnyScan<'_> {
    async fn next(&mut self, setting: &Setting) -> Option<Result<(u64, Vec<u8>), String>> {
        match self {
            Self::Numbers(scan) => {
                let pair = scan.next().await?.map(|(key, value)| (key, value.to_vec()));
                Some(pair.map_err(|error| error.to_string()))
            }
            Self::Bytes(scan) => Some(match scan.next().await? {
                Ok((bytes, value)) => match setting.scenario.key_of(&bytes) {
                    Some(key) => Ok((key, value.to_vec())),
                    None => {
                        let why = format!("a scan has found the key {bytes:?}, which no client has put");
                        setting.wrong(why.clone());
                        Err(why)
                    }
                },
                Err(error) => Err(error.to_string()),
            }),
        }
    }

    fn trips(&self) -> ScanTrips {
        match self {
            Self::Numbers(scan) => scan.trips(),
            Self::Bytes(scan) => scan.trips(),
        }
    }
}

/// A client's memory under its keeper: some of its queue pairs are registered with the switches.
struct Memory {
    living: Living,
    random: RefCell<Random>,
}

impl Kept for Memory {
    type Verbs = SimDevice;
    type Refusal = PoolError;

    fn remote(&self) -> &RemoteMemory<SimDevice> {
        self.living.client.pool()
    }

    fn let_write(&self, server: u16, writer: Writer) -> Result<(), PoolError> {
        let masked_atomics = self.living.setting.scenario.masked;
        self.living.client.pool().set_writer(server, Writer { masked_atomics, ..writer })
    }

    fn join(&self, id: ConnectionId, remote: RemoteSide) -> Result<(), PoolError> {
        let (pool, setting) = (self.living.client.pool(), &self.living.setting);
        let random = &mut *self.random.borrow_mut();
        let is_registered = random.random_bool(0.8);
        if is_registered && let Some(queue_pair) = pool.queue_pair(id) {
            let roots = pool.roots();
            let own = roots.partitions().iter().find(|partition| partition.id == id.server);
            let address = own.map_or(0, |partition| partition.root.raw());
            setting.switches.register(queue_pair, Remote { address, rkey: remote.rkey });
        }
        // Some clients believe that they are registered and are not.
        let registered = is_registered || setting.scenario.reads > 0 && random.random_bool(0.2);
        pool.connected(id, RemoteSide { registered, ..remote }).map(drop)
    }
}
