//! Clients: their sessions and connections, and what they do.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use fatbtree_blink::{
    Allocation, BreakReason, ConnectionId, Event, IndexCache, KeyRange, Mutation, OperationError, Order,
    Partition, PoolConfig, RemoteSide, ScanOptions, Start, SuperRoot, Value, ValueLayout,
};
use fatbtree_client::Client;
use fatbtree_memserver::{Grant, Lease, ServerInfo};
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Failure, Reactor, Remote};
use rand::RngExt as _;

use super::setting::Setting;
use crate::history::{Answer, Call};
use crate::trees::values;
use crate::world::{Machine, Random, SimDevice};

/// Interval at which a client looks for work.
const LOOK: Duration = Duration::from_micros(10);

/// A session that was opened, and what the server said of itself then.
type Opened = (Lease, ServerInfo);

/// A client in one life.
#[derive(Clone)]
pub(super) struct Living {
    pub(super) machine: Machine,
    pub(super) client: Client<SimDevice>,
    setting: Rc<Setting>,
    /// The present session with each server, if there is one.
    sessions: Rc<[Cell<Option<Opened>>]>,
    /// Connections that are not up.
    down: Rc<RefCell<BTreeSet<ConnectionId>>>,
}

impl Living {
    /// Makes a client on a machine that has just booted.
    pub(super) fn begin(machine: &Machine, setting: &Rc<Setting>, random: &mut Random) -> Self {
        let scenario = &setting.scenario;
        let (tree, techniques) = (scenario.config, scenario.techniques);
        let is_round_robin = scenario.round_robin > 0 && random.random_range(0..100) < scenario.round_robin;
        let allocation = if is_round_robin { Allocation::RoundRobin } else { Allocation::Partitioned };
        let config =
            PoolConfig { tree, lanes: scenario.lanes, techniques, allocation, limits: scenario.limits };
        let client =
            Client::new(machine.device(), config, setting.roots(), random.random_range(0..=u64::MAX));
        let client = client.expect("a scenario has at least one lane");
        client.set_cache(scenario.cache.map(|bytes| Arc::new(IndexCache::new(bytes))));
        machine.set_driven(Rc::new(client.clone()));
        let down = client.pool().connections().into_iter().collect();
        let living = Self {
            machine: machine.clone(),
            client,
            setting: Rc::clone(setting),
            sessions: setting.servers.iter().map(|_| Cell::default()).collect(),
            down: Rc::new(RefCell::new(down)),
        };
        for server in scenario.ids() {
            let random = crate::world::random(random.random_range(0..=u64::MAX), 4);
            drop(machine.spawn(living.clone().keep_session(server)));
            drop(machine.spawn(living.clone().attend(server, random)));
        }
        living
    }

    /// Has a session with a server, always.
    async fn keep_session(self, id: u16) {
        let (server, session) = (self.setting.server(id), self.session_of(id));
        loop {
            let Some((lease, _)) = session.get() else {
                let open = |_: &Reactor<SimDevice>| server.open(&self.machine);
                if let Ok(Some(opened)) = self.machine.call(&server.machine, open).await {
                    let (lease, info) = opened.expect("there is room for all sessions");
                    self.believe(id, &lease, &info);
                    session.set(Some((lease, info)));
                }
                self.machine.sleep(LOOK).await;
                continue;
            };
            let third = Duration::from_nanos(lease.duration.as_nanos() / 3);
            self.machine.sleep(third).await;
            let renew = |_: &Reactor<SimDevice>| server.renew(&lease);
            if let Ok(Some(Err(_))) = self.machine.call(&server.machine, renew).await {
                self.ended(id, &lease);
            }
        }
    }

    /// Takes over what a server has said in a new session.
    fn believe(&self, id: u16, lease: &Lease, info: &ServerInfo) {
        let (pool, masked_atomics) = (self.client.pool(), self.setting.scenario.masked);
        let writer = info.writer(lease.owner, masked_atomics).expect("there are locks");
        pool.set_writer(id, writer).expect("there is such a server");
        let of_others = |partition: &Partition| if partition.id == id { info.partition } else { *partition };
        let partitions = pool.roots().partitions().iter().map(of_others).collect();
        let roots = SuperRoot::new(partitions)
            .expect("ranges stay as they are, and a superblock without a root is refused");
        pool.set_roots(roots).expect("servers stay as they are");
    }

    fn session_of(&self, id: u16) -> &Cell<Option<Opened>> {
        &self.sessions[self.setting.scenario.place_of(id)]
    }

    /// The lease of the present session with a server, and what the server said when it was opened.
    fn session(&self, id: u16) -> Option<Opened> {
        self.session_of(id).get()
    }

    /// A server does not know a session any more.
    fn ended(&self, id: u16, lease: &Lease) {
        if self.session(id).is_some_and(|(present, _)| present.session == lease.session) {
            self.session_of(id).set(None);
        }
    }

    /// Connects what is not connected to a server, brings memory, finishes what was dropped.
    async fn attend(self, number: u16, mut random: Random) {
        let place = self.setting.scenario.place_of(number);
        loop {
            while let Some(event) = self.client.poll_event() {
                match event {
                    Event::ConnectionBroken { id, reason } => {
                        self.note_broken(id, reason);
                        if reason != BreakReason::Unregistered {
                            // Perhaps because the session ended.
                            self.machine.sleep(LOOK).await;
                        }
                        self.down.borrow_mut().insert(id);
                    }
                    Event::MemoryWanted { server, kind, bytes } => {
                        // In the next session it is asked for once more.
                        let Some((lease, _)) = self.session(server) else { continue };
                        let grant = match self.setting.server(server).allocate(&lease, kind, bytes) {
                            Some(Ok(grant)) => grant,
                            Some(Err(refusal)) => {
                                // Places that damaged nodes lead to were never the tree's.
                                assert!(
                                    self.setting.scenario.hostile.is_some(),
                                    "there is room for all that is written: {refusal}"
                                );
                                self.client.pool().refuse_memory(server, kind, refusal.shortage());
                                continue;
                            }
                            None => continue,
                        };
                        if let Grant::Blocks(places) = &grant {
                            self.setting.count(|outcome| outcome.reused += places.addresses.len() as u64);
                        }
                        self.machine.sleep(LOOK).await;
                        grant.hand_to(self.client.pool(), server, lease.session.id);
                    }
                    Event::Unfinished { .. } => {
                        let client = self.client.clone();
                        drop(self.machine.spawn(async move { client.pool().finish().await }));
                    }
                }
            }
            // As if it was closed, so that places go round. Not each task: what one has just brought another one would take away, as
            // it does from an operation on a long walk, over and over. So not in the final phase.
            if place == 0 && !self.setting.calm.get() && random.random_bool(0.02) {
                for returned in self.client.pool().take_returned() {
                    if let Some((lease, _)) = self.session(returned.server) {
                        self.setting.server(returned.server).give_back(&lease, &returned);
                    }
                }
            }
            let down: Vec<ConnectionId> =
                self.down.borrow().iter().copied().filter(|id| id.server == number).collect();
            for id in down {
                self.connect(id, &mut random).await;
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

    /// One attempt.
    async fn connect(&self, id: ConnectionId, random: &mut Random) {
        let (server, pool) = (self.setting.server(id.server), self.client.pool());
        let Some((lease, info)) = self.session(id.server) else { return };
        let (local, replaces) = (pool.open(id).expect("it is not up"), pool.replaces(id));
        let accept = |_: &Reactor<SimDevice>| server.connect(&lease, &local, replaces);
        let accepted = self.machine.call(&server.machine, accept).await;
        let is_present = self.session(id.server).is_some_and(|(present, _)| present.session == lease.session);
        match accepted {
            Ok(Some(Ok(endpoint))) if is_present => {
                let rkey = info.tree.rkey;
                let registered = random.random_bool(0.8);
                if registered && let Some(queue_pair) = pool.queue_pair(id) {
                    let address = info.partition.root.raw();
                    self.setting.switches.register(queue_pair, Remote { address, rkey });
                }
                // Some clients believe that they are registered and are not.
                let registered = registered || self.setting.scenario.reads > 0 && random.random_bool(0.2);
                pool.connected(id, RemoteSide { endpoint, rkey, registered })
                    .expect("nodes fit into a packet");
                self.down.borrow_mut().remove(&id);
            }
            Ok(Some(Err(_))) => self.ended(id.server, &lease),
            _ => {}
        }
    }

    /// Waits until it may write to every server, as a client does before it begins.
    async fn until_writer(&self) {
        let is_one = self.sessions.len() == 1;
        while !is_one && self.sessions.iter().any(|session| session.get().is_none()) {
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
        let with_cache = self.setting.scenario.cache.is_some();
        match random.random_range(0..6) {
            0 if with_cache => Start::Cached,
            2..4 if with_cache => Start::CachedOrIndexRead,
            0..2 => Start::Root,
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
                let mut spare = self.sessions.len();
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
            let found = self.client.lookup(key, start).await;
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
                .mutate(key, call, Mutation::CompareAndSet { expected: &value, value: &bytes }, start)
                .await;
        }
        let (word, value) = self.draw_value(key, random);
        let (call, mutation) = match what {
            3 | 4 => (Call::Upsert(word), Mutation::Upsert(&value)),
            5 | 6 => (Call::Insert(word), Mutation::Insert(&value)),
            7 => (Call::Update(word), Mutation::Update(&value)),
            _ => (Call::Delete, Mutation::Delete),
        };
        self.mutate(key, call, mutation, start).await
    }

    /// The result of a lookup. Whatever happens, it ends in one of few ways.
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
            let why = format!("key {key:#x}: a value of {} bytes that nobody wrote", value.len());
            self.setting.wrong(why.clone());
            why
        })
    }

    /// A value of its own, and the word that names it.
    fn draw_value(&self, key: u64, random: &mut Random) -> (u64, Vec<u8>) {
        let (word, scenario) = (self.setting.next_word(), &self.setting.scenario);
        let len = match scenario.config.values() {
            ValueLayout::Inline(len) => usize::from(len),
            ValueLayout::OutOfLine => random.random_range(8..=scenario.longest),
        };
        let mut value = vec![0; len];
        values::fill(key, word, &mut value);
        (word, value)
    }

    async fn mutate(&self, key: u64, call: Call, mutation: Mutation<'_>, start: Start) -> Result<(), String> {
        let history = &self.setting.history;
        let asked = history.ask(&self.machine.name(), self.machine.now(), key, call);
        let change = self.client.pool().mutate(key, mutation, start).await;
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
        let options = ScanOptions { order, start, window: random.random_range(1..=8) };
        let most = if random.random_bool(0.2) { random.random_range(1..8) } else { usize::MAX };
        let asked = history.ask_scan(&self.machine.name(), self.machine.now(), low..=high);
        let mut scan = self.client.pool().scan(KeyRange::of(low..=high), options);
        let mut pairs = Vec::new();
        while pairs.len() < most
            && let Some(pair) = scan.next().await
        {
            let (key, value) = pair.map_err(|error| error.to_string())?;
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

    /// Adds what this life has counted.
    pub(super) fn count(&self) {
        let (stats, cache) = (self.client.pool().stats(), self.client.cache_stats());
        self.setting.count(|outcome| {
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
        });
    }
}
