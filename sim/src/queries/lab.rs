//! The server, its workers, the clients, the links between them, and time.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fatbtree_blink::{
    IndexCache, Limits as Patience, PoolConfig, Shortage, SuperRoot, Verified, VerifyError,
};
use fatbtree_client::{Client, QueryClient};
use fatbtree_memserver::query::{QueryWorker, WorkerOptions};
use fatbtree_memserver::session_keeper::{Denied, KeeperOptions, Meaning, Notice, SessionKeeper};
use fatbtree_memserver::{
    Bounds, ClientId, Limits, LoadOptions, MemoryServer, ServerOptions, bulk_load, fixed,
};
use fatbtree_nic::faults::{FaultRates, LossyLink};
use fatbtree_nic::{Nic, NicConfig};
use fatbtree_query::{RequesterOptions, ResponderOptions, ToServer};
use fatbtree_topology::HostId;
use fatbtree_verbs::time::{Duration, Instant};
use rand::RngExt as _;

use super::clients::{Either, Shared, first_word, key_of, work};
use super::way::{Arrived, Way};
use super::{Outcome, Scenario};
use crate::damage::{Damage, Target};
use crate::world::{Random, random};

/// Clients of each kind.
const CLIENTS: usize = 2;
const LANES: usize = 2;
const WORKERS: usize = 2;
/// Mishaps end then.
const FAULTS: Duration = Duration::from_millis(25);
/// Virtual time by which everything must have ended.
const END: Duration = Duration::from_secs(3);
/// The same where the tree is damaged: each operation of a worker may try for as long as it has patience.
const LATE_END: Duration = Duration::from_secs(120);
/// Time after which work without a link continues.
const STEP: Duration = Duration::from_nanos(500);
/// Datagrams that wait for a worker that sleeps.
const QUEUE: usize = 64;

type Task<T> = Pin<Box<dyn Future<Output = T>>>;

/// A part of a frame's way.
#[derive(Clone, Copy, Debug)]
enum Leg {
    /// A frame from a host to its switch.
    ToSwitches(HostId),
    /// A frame to a host.
    ToHost(HostId),
}

struct Worker {
    worker: QueryWorker,
    /// Time until which the worker sleeps.
    wakes: Instant,
    waiting: VecDeque<(SocketAddr, Vec<u8>)>,
}

struct Rdma {
    client: Client<Nic>,
    id: ClientId,
    keeper: SessionKeeper,
    finishing: Vec<Task<()>>,
}

struct Lab {
    shared: Rc<Shared>,
    random: Random,
    server: MemoryServer<Nic>,
    workers: Vec<Worker>,
    queries: Vec<QueryClient>,
    rdma: Vec<Rdma>,
    way: Way,
    datagrams: LossyLink<Leg>,
    next_reload: Instant,
    /// Link to the server (0), or to an RDMA client by its number from 1.
    frames: LossyLink<usize>,
    cache: Option<Arc<IndexCache>>,
    next_mishap: Instant,
    next_strike: Instant,
    buffer: Vec<u8>,
}

fn nic(number: u8, seed: u64) -> Result<Nic, String> {
    let config = NicConfig {
        ack_timeout: Duration::from_micros(300),
        ..NicConfig::new([2, 0, 0, 0, 0, number], [10, 0, 0, number].into())
    };
    Nic::new(config, seed).map_err(|error| error.to_string())
}

pub(super) fn run(scenario: &Scenario) -> Result<Outcome, String> {
    let mut lab = Lab::new(scenario)?;
    let mut tasks: Vec<Task<Result<(), String>>> = Vec::new();
    for number in 0..CLIENTS {
        let both = [
            ("RDMA", Either::Rdma(lab.rdma[number].client.clone())),
            ("query", Either::Query(lab.queries[number].clone())),
        ];
        for (kind, client) in both {
            for task in 0..scenario.tasks {
                let random = random(lab.random.random_range(0..=u64::MAX), 132);
                let name = format!("{kind} client {number}, task {task}");
                tasks.push(Box::pin(work(Rc::clone(&lab.shared), name, client.clone(), random)));
            }
        }
    }
    lab.run(&mut tasks)?;
    let verified = lab.verify()?;
    let mut outcome = lab.outcome();
    if scenario.hostile.is_none() {
        let checked = lab.shared.history.check().map_err(|violation| violation.to_string())?;
        verified.map_err(|error| error.to_string())?;
        (outcome.answered, outcome.unknown) = (checked.answered as u64, checked.unknown as u64);
    }
    Ok(outcome)
}

impl Lab {
    fn new(scenario: &Scenario) -> Result<Self, String> {
        let mut draw = random(scenario.seed, 133);
        let keys: Vec<u64> = (0..scenario.keys).step_by(2).map(key_of).collect();
        let load = LoadOptions { spare_bytes: 8 << 20, ..LoadOptions::new(scenario.config, 0) };
        let mut values =
            fixed(8, |key, room: &mut [u8]| room.copy_from_slice(&first_word(key).to_le_bytes()));
        let tree = bulk_load(&load, &keys, &mut values).map_err(|error| error.to_string())?;
        let roots = SuperRoot::new(vec![tree.partition]).map_err(|error| error.to_string())?;
        let bounds = Bounds { sessions: 1 << 12, queue_pairs: 1 << 14, chunks: 1 << 12, attempts: 1 << 20 };
        let options = ServerOptions {
            lease: scenario.lease,
            chunk_bytes: 8 << 10,
            local_clients: true,
            lock_table_bytes: 2 << draw.random_range(2..=8),
            limits: Limits { client: bounds, host: bounds, server: bounds, ..Limits::default() },
            ..ServerOptions::writable()
        };
        let server = MemoryServer::new(nic(0, scenario.seed)?, tree, &options, scenario.seed)
            .map_err(|error| error.to_string())?;
        let requests = RequesterOptions {
            first_pause: std::time::Duration::from_micros(200),
            longest_pause: std::time::Duration::from_millis(2),
            patience: std::time::Duration::from_millis(60),
            part: scenario.part,
            ..RequesterOptions::default()
        };
        let queries = (0..CLIENTS)
            .map(|_| QueryClient::new(&requests, (0..LANES).map(|_| draw.random_range(1..=u64::MAX))))
            .collect();
        let rdma = (1..=CLIENTS as u8).map(|number| {
            let seed = draw.random_range(0..=u64::MAX);
            let limits = match scenario.hostile {
                Some(_) => Patience { patience: Duration::from_millis(2), ..Patience::default() },
                None => Patience::default(),
            };
            let config = PoolConfig { tree: scenario.config, lanes: 2, limits, ..PoolConfig::default() };
            let client = Client::new(nic(number, seed)?, config, roots.clone(), seed);
            let client = client.map_err(|error| error.to_string())?;
            let id = ClientId { host: [127, 0, 0, 1].into(), roce: [10, 0, 0, number].into() };
            let keeper = SessionKeeper::new(client.pool().connections(), pauses());
            Ok(Rdma { client, id, keeper, finishing: Vec::new() })
        });
        let rdma = rdma.collect::<Result<_, String>>()?;
        let delay = Duration::from_micros(2);
        let way = Way::new(scenario.config, CLIENTS, &mut draw)?;
        let mut lab = Self {
            shared: Shared::new(scenario),
            server,
            workers: Vec::new(),
            queries,
            rdma,
            way,
            next_reload: Instant::ZERO,
            datagrams: LossyLink::new(delay, scenario.datagrams, draw.random_range(0..=u64::MAX)),
            frames: LossyLink::new(delay, scenario.frames, draw.random_range(0..=u64::MAX)),
            cache: scenario.cache.then(|| Arc::new(IndexCache::new(1 << 16))),
            next_mishap: Instant::ZERO + scenario.calm,
            next_strike: Instant::ZERO,
            buffer: Vec::new(),
            random: draw,
        };
        if scenario.warm && scenario.reloads.is_some() {
            lab.way.load(&lab.server, &mut lab.random)?;
        }
        for _ in 0..WORKERS {
            let worker = lab.worker()?;
            lab.workers.push(worker);
        }
        Ok(lab)
    }

    fn end(&self) -> Duration {
        if self.shared.scenario.hostile.is_some() { LATE_END } else { END }
    }

    /// A hostile writer's WRITEs have come: the server's card writes whatever they bring.
    fn strike(&mut self, now: Instant) {
        let Some(pause) = self.shared.scenario.hostile else { return };
        if now < self.next_strike || now >= Instant::ZERO + FAULTS {
            return;
        }
        let random = &mut self.random;
        self.next_strike = now + Duration::from_nanos(random.random_range(1..=2 * pause.as_nanos()));
        let damage = Damage::ALL[random.random_range(0..Damage::ALL.len())];
        let (info, memory) = (self.server.info(), self.server.memory());
        let target = Target::new(memory, &info.config, info.partition.id, info.partition.root);
        for (offset, bytes) in target.strike(damage, random) {
            // Outside of the region the card refuses it.
            let written = memory.write(offset, &bytes).is_ok();
            self.shared.count(|outcome| outcome.strikes += u64::from(written));
        }
    }

    fn now(&self) -> Instant {
        self.shared.now.get()
    }

    fn worker(&mut self) -> Result<Worker, String> {
        let options = WorkerOptions {
            servers: vec![(0, 0)],
            responder: ResponderOptions { part: self.shared.scenario.part, ..ResponderOptions::default() },
            scans: Default::default(),
            cache: self.cache.clone(),
            session: pauses(),
        };
        let host = self.server.local().ok_or("the server has local clients")?.clone();
        let seed = self.random.random_range(0..=u64::MAX);
        let worker = QueryWorker::new(&host, self.server.info(), options, seed);
        let worker = worker.map_err(|error| error.to_string())?;
        Ok(Worker { worker, wakes: Instant::ZERO, waiting: VecDeque::new() })
    }

    /// Until all tasks have ended.
    fn run(&mut self, tasks: &mut Vec<Task<Result<(), String>>>) -> Result<(), String> {
        let mut context = Context::from_waker(Waker::noop());
        let is_damaged = self.shared.scenario.hostile.is_some();
        while !tasks.is_empty() {
            let busy = self.turn()?;
            let mut wrong = Ok(());
            tasks.retain_mut(|task| match task.as_mut().poll(&mut context) {
                Poll::Pending => true,
                // In a damaged tree answers need not be right.
                Poll::Ready(_) if is_damaged => false,
                Poll::Ready(ended) => {
                    wrong = std::mem::replace(&mut wrong, Ok(())).and(ended);
                    false
                }
            });
            wrong?;
            self.transmit();
            self.advance(busy);
            if self.now() > Instant::ZERO + self.end() {
                return Err(format!("{} tasks have no end", tasks.len()));
            }
        }
        Ok(())
    }

    /// Walks over the whole tree after all writers have stopped.
    fn verify(&mut self) -> Result<Result<Verified, VerifyError>, String> {
        let client = self.rdma[0].client.clone();
        let mut walk: Task<_> = Box::pin(async move { client.verify().await });
        let mut context = Context::from_waker(Waker::noop());
        loop {
            let busy = self.turn()?;
            if let Poll::Ready(verified) = walk.as_mut().poll(&mut context) {
                return Ok(verified);
            }
            self.transmit();
            self.advance(busy);
            if self.now() > Instant::ZERO + self.end() * 2 {
                return Err("the walk over the tree has no end".to_owned());
            }
        }
    }

    fn outcome(&self) -> Outcome {
        let mut outcome = *self.shared.outcome.borrow();
        for query in &self.queries {
            outcome.again += query.stats().again;
            outcome.led += query.stats().led;
        }
        self.workers.iter().for_each(|worker| count_worker(&mut outcome, &worker.worker));
        for rdma in &self.rdma {
            let stats = rdma.client.pool().stats();
            outcome.splits += stats.splits;
            outcome.merges += stats.merges;
            outcome.lock_retries += stats.remote.lock_retries;
            outcome.inherited_locks += stats.remote.inherited_locks;
        }
        let lapsed = self.server.statistics().into_iter().find(|(name, _)| name == "sessions_lapsed");
        outcome.reloads = self.way.reloads;
        outcome.lapsed = lapsed.map_or(0, |(_, count)| count);
        outcome.lost = self.datagrams.faults().counts[0] + self.frames.faults().counts[0];
        outcome
    }

    /// Everything that is due now. Says whether a worker has more to do.
    fn turn(&mut self) -> Result<bool, String> {
        let now = self.now();
        let mut buffer = std::mem::take(&mut self.buffer);
        while let Some(end) = self.frames.receive(now, &mut buffer) {
            match end.checked_sub(1) {
                None => self.server.device_mut().handle_frame(now, &buffer),
                Some(client) => {
                    self.rdma[client].client.pool().reactor().with(|nic| nic.handle_frame(now, &buffer));
                }
            }
        }
        while let Some(leg) = self.datagrams.receive(now, &mut buffer) {
            match leg {
                Leg::ToSwitches(from) => {
                    if let Some((host, frame)) = self.way.pass(from, &buffer) {
                        self.datagrams.send(now, Leg::ToHost(host), &frame);
                    }
                }
                Leg::ToHost(at) => self.arrived(at, &buffer),
            }
        }
        self.buffer = buffer;
        self.befall(now)?;
        self.strike(now);
        if let Some(pause) = self.shared.scenario.reloads
            && now >= self.next_reload
            && now < Instant::ZERO + FAULTS
        {
            self.next_reload = now + pause;
            self.way.reload(&self.server, &mut self.random)?;
        }
        let server = &mut self.server;
        if server.device().poll_timeout().is_some_and(|at| at <= now) {
            server.device_mut().handle_timeout(now);
        }
        server.handle_timeout(now);
        server.work(now, 64);
        while server.poll_event().is_some() {}
        let mut busy = false;
        for number in 0..WORKERS {
            busy |= self.turn_worker(number, now)?;
        }
        for number in 0..CLIENTS {
            self.turn_rdma(number, now)?;
            self.queries[number].turn(now);
        }
        Ok(busy)
    }

    /// A frame has come to its host.
    fn arrived(&mut self, at: HostId, frame: &[u8]) {
        match self.way.arrived(at, frame) {
            Arrived::Query(from, datagram) => {
                let Some((client, lane)) = self.way.lane_of(from) else { return };
                let waiting = &mut self.workers[(client + lane) % WORKERS].waiting;
                if waiting.len() < QUEUE {
                    waiting.push_back((from, datagram));
                }
            }
            Arrived::Answer { client, datagram } => self.queries[client].handle(&datagram),
            Arrived::Damaged => self.shared.count(|outcome| outcome.damaged += 1),
            Arrived::Elsewhere => self.shared.count(|outcome| outcome.elsewhere += 1),
        }
    }

    /// Puts a frame on its way; sometimes a bit of it is another by then.
    fn send(&mut self, from: HostId, mut frame: Vec<u8>) {
        let now = self.now();
        let scenario = &self.shared.scenario;
        if now < Instant::ZERO + FAULTS && self.random.random_range(0..10_000) < scenario.flips {
            let bit = self.random.random_range(0..frame.len() * 8);
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        let leg = match scenario.reloads {
            Some(_) => Leg::ToSwitches(from),
            None => Leg::ToHost(self.way.end_of_cable(from, &frame)),
        };
        self.datagrams.send(now, leg, &frame);
    }

    /// A worker dies and another takes its place, or it sleeps, as a thread does where processors are short.
    fn befall(&mut self, now: Instant) -> Result<(), String> {
        let faults_end = Instant::ZERO + FAULTS;
        if now >= faults_end {
            self.datagrams.set_rates(FaultRates::NONE);
            self.frames.set_rates(FaultRates::NONE);
            self.workers.iter_mut().for_each(|worker| worker.wakes = worker.wakes.min(now));
            return Ok(());
        }
        if now < self.next_mishap {
            return Ok(());
        }
        let number = self.random.random_range(0..WORKERS);
        // Mostly in the middle of something.
        if self.workers[number].worker.under_way() == 0 && self.random.random_bool(0.95) {
            return Ok(());
        }
        let calm = self.shared.scenario.calm.as_nanos();
        self.next_mishap = now + Duration::from_nanos(self.random.random_range(calm / 2..=calm * 2));
        if self.random.random_bool(0.4) {
            let new = self.worker()?;
            let old = std::mem::replace(&mut self.workers[number], new);
            self.shared.count(|outcome| {
                outcome.restarts += 1;
                count_worker(outcome, &old.worker);
            });
        } else {
            let lease = self.shared.scenario.lease.as_nanos();
            let sleep = Duration::from_nanos(self.random.random_range(1_000..=lease * 2));
            self.workers[number].wakes = now + sleep;
            self.shared.count(|outcome| outcome.sleeps += 1);
        }
        Ok(())
    }

    fn turn_worker(&mut self, number: usize, now: Instant) -> Result<bool, String> {
        let Self { workers, server, random, .. } = self;
        let Worker { worker, wakes, waiting } = &mut workers[number];
        if now < *wakes {
            return Ok(false);
        }
        waiting.drain(..).for_each(|(from, datagram)| worker.handle(now, from, &datagram));
        let mut busy = true;
        // Others come between.
        for _ in 0..random.random_range(1..=4) {
            busy = worker.step(now);
            if !busy {
                break;
            }
        }
        while let Some(call) = worker.poll_call(now) {
            busy = true;
            let answer = server.carry_out(now, ClientId::local(number as u32), call).map_err(Denied::from);
            answer.as_ref().map_or_else(check, |_| Ok(()))?;
            worker.handle_answer(now, answer).map_err(|error| error.to_string())?;
        }
        Ok(busy)
    }

    fn turn_rdma(&mut self, number: usize, now: Instant) -> Result<(), String> {
        let Self { rdma, server, .. } = self;
        let Rdma { client, id, keeper, finishing } = &mut rdma[number];
        let pool = client.pool();
        pool.reactor().with(|nic| {
            if nic.poll_timeout().is_some_and(|at| at <= now) {
                nic.handle_timeout(now);
            }
        });
        client.turn(now);
        while let Some((partition, call)) = keeper.poll_call(now, pool) {
            keeper.handle_answer(now, pool, partition, server.carry_out(now, *id, call));
        }
        while let Some(notice) = keeper.poll_notice() {
            match notice {
                Notice::Unfinished { .. } => {
                    let client = client.clone();
                    finishing.push(Box::pin(async move { client.pool().finish().await }));
                }
                Notice::Denied { denied, .. } => check(&denied)?,
                _ => {}
            }
        }
        let mut context = Context::from_waker(Waker::noop());
        finishing.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
        Ok(())
    }

    /// Puts everything that is to be sent on its way.
    fn transmit(&mut self) {
        let now = self.now();
        let Self { server, rdma, frames, buffer, .. } = self;
        while server.device_mut().poll_transmit(now, buffer) {
            // The last byte of a client's MAC is its number.
            frames.send(now, usize::from(buffer[5]), buffer);
        }
        for rdma in rdma {
            rdma.client.pool().reactor().with(|nic| {
                while nic.poll_transmit(now, buffer) {
                    frames.send(now, 0, buffer);
                }
            });
        }
        for client in 0..CLIENTS {
            for lane in 0..LANES {
                while let Some(datagram) = self.queries[client].poll_transmit(lane) {
                    let ToServer { direct, bytes, .. } = datagram;
                    let frame = self.way.query(client, lane, direct, &bytes, &mut self.random);
                    self.send(self.way.client(client), frame);
                }
            }
        }
        for number in 0..WORKERS {
            if self.workers[number].wakes > now {
                continue;
            }
            while let Some(datagram) = self.workers[number].worker.poll_transmit() {
                if let Some(frame) = self.way.answer(datagram.to, &datagram.bytes) {
                    self.send(self.way.server(), frame);
                }
            }
        }
    }

    /// Advances to the next moment at which something happens.
    fn advance(&mut self, busy: bool) {
        let now = self.now();
        let soon = now + STEP;
        let server = [self.server.poll_timeout(), self.server.device().poll_timeout()];
        let links = [self.datagrams.next_arrival(), self.frames.next_arrival()];
        let workers = self.workers.iter().map(|worker| match worker.wakes > now {
            true => worker.wakes,
            false => worker.worker.next_deadline(),
        });
        let rdma = self.rdma.iter().flat_map(|rdma| {
            let nic = rdma.client.pool().reactor().with(|nic| nic.poll_timeout());
            [nic, rdma.client.next_deadline(), Some(rdma.keeper.poll_timeout())]
        });
        let queries = self.queries.iter().map(QueryClient::next_deadline);
        // (one that is due waits for a worker that has something to do)
        let mishap = (now < self.next_mishap && now < Instant::ZERO + FAULTS).then_some(self.next_mishap);
        let reloads = self.shared.scenario.reloads.is_some() && now < Instant::ZERO + FAULTS;
        let strikes = self.shared.scenario.hostile.is_some() && now < Instant::ZERO + FAULTS;
        let strike = strikes.then_some(self.next_strike);
        let reload = reloads.then_some(self.next_reload);
        let all = server
            .into_iter()
            .chain(links)
            .chain(rdma)
            .chain(queries)
            .chain([mishap, reload, strike])
            .flatten();
        let next = all.chain(workers).min().unwrap_or(soon);
        self.shared.now.set(if busy { soon } else { next.max(soon) });
    }
}

/// Pauses after a refusal.
fn pauses() -> KeeperOptions {
    let (first_pause, longest_pause) = (Duration::from_micros(10), Duration::from_micros(100));
    KeeperOptions { first_pause, longest_pause, ..KeeperOptions::default() }
}

/// A server that has everything refuses nothing but memory, in the end.
fn check(denied: &Denied) -> Result<(), String> {
    match denied.meaning == Meaning::No && denied.shortage == Shortage::Unknown {
        true => Err(denied.to_string()),
        false => Ok(()),
    }
}

fn count_worker(outcome: &mut Outcome, worker: &QueryWorker) {
    let stats = worker.stats();
    outcome.not_again += stats.responder.again;
    outcome.stale_hints += stats.stale_hints;
    outcome.refused += stats.damaged;
    outcome.worker_splits += stats.pool.splits;
    outcome.merges += stats.pool.merges;
    outcome.lock_retries += stats.pool.remote.lock_retries;
    outcome.inherited_locks += stats.pool.remote.inherited_locks;
}
