//! The server, its workers, the clients, the links between them, and time.

mod mishaps;
mod rdma;
mod wires;
mod worker;

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fatbtree_blink::{
    IndexCache, Limits as Patience, PoolConfig, Shortage, SuperRoot, Verified, VerifyError,
};
use fatbtree_blink_client::QueryClient;
use fatbtree_blink_host::query::WorkerOptions;
use fatbtree_blink_host::{LoadOptions, TreeServer, bulk_load, fixed};
use fatbtree_memserver::{Bounds, Limits, MemoryServer, ServerOptions};
use fatbtree_query::{RequesterOptions, ResponderOptions};
use fatbtree_remote_memory::session_keeper::{Denied, KeeperOptions, Meaning};
use fatbtree_soft_nic::faults::LossyLink;
use fatbtree_soft_nic::{Nic, NicConfig};
use fatbtree_verbs::time::{Duration, Instant};
use rand::RngExt as _;

use super::clients::{Either, Shared, first_word, key_of, work};
use super::way::Way;
use super::{Outcome, Scenario};
use crate::world::{Random, random};
use rdma::Rdma;
use wires::Leg;
use worker::Worker;

/// Clients of each kind.
const CLIENTS: usize = 2;
const LANES: usize = 2;
const WORKERS: usize = 2;
/// Virtual time at which mishaps end.
const FAULTS: Duration = Duration::from_millis(25);
/// Virtual time by which everything must have ended.
const END: Duration = Duration::from_secs(3);
/// Virtual time by which everything must have ended where the tree is damaged. Each operation of a worker may last as
/// long as its patience.
const LATE_END: Duration = Duration::from_secs(120);
/// Time after which work without a link continues.
const STEP: Duration = Duration::from_nanos(500);

type Task<T> = Pin<Box<dyn Future<Output = T>>>;

fn nic(number: u8, seed: u64) -> Result<Nic, String> {
    let config = NicConfig {
        ack_timeout: Duration::from_micros(300),
        ..NicConfig::new([2, 0, 0, 0, 0, number], [10, 0, 0, number].into())
    };
    Nic::new(config, seed).map_err(|error| error.to_string())
}

struct Lab {
    shared: Rc<Shared>,
    random: Random,
    server: TreeServer<Nic>,
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
            first_pause: Duration::from_micros(200),
            longest_pause: Duration::from_millis(2),
            patience: Duration::from_millis(60),
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
            Rdma::new(number, config, roots.clone(), seed)
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
        for number in 0..WORKERS {
            let worker = lab.worker(number)?;
            lab.workers.push(worker);
        }
        Ok(lab)
    }

    fn end(&self) -> Duration {
        if self.shared.scenario.hostile.is_some() { LATE_END } else { END }
    }

    fn now(&self) -> Instant {
        self.shared.now.get()
    }

    fn worker(&mut self, number: usize) -> Result<Worker, String> {
        let options = WorkerOptions {
            servers: vec![(0, 0)],
            responder: ResponderOptions { part: self.shared.scenario.part, ..ResponderOptions::default() },
            scans: Default::default(),
            cache: self.cache.clone(),
            session: pauses(),
        };
        Worker::new(number, &self.server, options, self.random.random_range(0..=u64::MAX))
    }

    /// Runs until all tasks have ended.
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
        self.workers.iter().for_each(|worker| worker.count(&mut outcome));
        self.rdma.iter().for_each(|rdma| rdma.count(&mut outcome));
        let lapsed = self.server.statistics().into_iter().find(|(name, _)| name == "sessions_lapsed");
        outcome.reloads = self.way.reloads;
        outcome.lapsed = lapsed.map_or(0, |(_, count)| count);
        outcome.lost = self.datagrams.faults().counts[0] + self.frames.faults().counts[0];
        outcome
    }

    /// Does everything that is due now. Returns whether a worker has more to do.
    fn turn(&mut self) -> Result<bool, String> {
        let now = self.now();
        self.receive(now);
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
            busy |= self.workers[number].turn(now, &mut self.server, &mut self.random)?;
        }
        for number in 0..CLIENTS {
            self.rdma[number].turn(now, &mut self.server)?;
            self.queries[number].turn(now);
        }
        Ok(busy)
    }

    /// Advances to the next moment at which something happens.
    fn advance(&mut self, busy: bool) {
        let now = self.now();
        let soon = now + STEP;
        let server = [self.server.poll_timeout(), self.server.device().poll_timeout()];
        let links = [self.datagrams.next_arrival(), self.frames.next_arrival()];
        let workers = self.workers.iter().map(|worker| worker.due(now));
        let rdma = self.rdma.iter().flat_map(Rdma::dues);
        let queries = self.queries.iter().map(QueryClient::poll_timeout);
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
