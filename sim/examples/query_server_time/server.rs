//! One [`QueryWorker`] without I/O, and the time of the processor that it takes.

use std::net::{Ipv4Addr, SocketAddr};

use fatbtree_blink::{Integrity, TreeConfig, ValueLayout, value};
use fatbtree_blink_host::query::{QueryWorker, WorkerOptions, worker_cache};
use fatbtree_blink_host::{LoadOptions, TreeServer, load_cluster, seeded};
use fatbtree_controller::{Budget, Frequencies, Placement, Plan, Target, Tree};
use fatbtree_memserver::{ClientId, ServerOptions};
use fatbtree_remote_memory::session_keeper::NoAnswer;
use fatbtree_soft_nic::{Nic, NicConfig};
use fatbtree_topology::Network;
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_wire::query::{Op, Query, QueryHeader, Status};
use fatbtree_workload::ycsb::{KeyMap, Workload, WorkloadSpec};
use fatbtree_workload::{OperationKind, Operations as _};
use nix::time::{ClockId, clock_gettime};

pub(super) type Failed = Box<dyn std::error::Error>;

pub(super) const SEED: u64 = 42;
const VALUE: u32 = 64;
/// Keys that clients have sampled.
const SAMPLES: usize = 1_000_000;
/// Requests that come together. A server remembers as many writes of a client.
const BATCH: usize = 64;
/// Bytes of the inner-node cache that the workers of a memory server's process share.
const CACHE: u64 = 64 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Every operation begins at the root.
    Root,
    /// Operations begin at the node that the switches found.
    Led,
    /// Operations begin at the lowest node in the worker's cache.
    Cached,
    /// Both: the worker's cache where the switches found no node.
    Both,
}

impl Kind {
    pub(super) const ALL: [(Self, &'static str); 4] =
        [(Self::Root, "root"), (Self::Led, "led"), (Self::Cached, "cached"), (Self::Both, "led-and-cached")];

    fn is_led(self) -> bool {
        matches!(self, Self::Led | Self::Both)
    }

    fn has_cache(self) -> bool {
        matches!(self, Self::Cached | Self::Both)
    }
}

/// Processor time of this thread.
fn processor_time() -> Result<std::time::Duration, Failed> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// A memory server, and what switches know of its tree.
pub(super) struct Lab {
    pub(super) server: TreeServer<Nic>,
    top: Tree,
    pub(super) plan: Plan,
    now: Instant,
}

pub(super) fn build(keys: u64, spec: &WorkloadSpec) -> Result<Lab, Failed> {
    let map = KeyMap::Hashed;
    let mut sorted: Vec<u64> = (0..keys).filter_map(|record| map.key(record)).collect();
    sorted.sort_unstable();
    // As `fatbtree memserver` has them.
    let config = TreeConfig::with_integrity(16, 1024, ValueLayout::OutOfLine, Integrity::Checksums)?;
    let load = LoadOptions { spare_bytes: 512 << 20, ..LoadOptions::new(config, 0) };
    let loaded = load_cluster(&load, 1, &sorted, &mut seeded(SEED, VALUE))?;
    drop(sorted);
    let tops = loaded.tops()?;
    let top = Tree::new(&tops)?;
    drop(tops);
    let plan = plan(&top, spec)?;
    let nic = |_| {
        Nic::new(NicConfig::new([2, 0, 0, 0, 0, 1], [10, 0, 0, 1].into()), SEED).expect("there is memory")
    };
    let options = ServerOptions { local_clients: true, ..ServerOptions::writable() };
    let server = loaded.serve(&options, SEED, nic)?.pop().ok_or("there is one server")?;
    Ok(Lab { server, top, plan, now: Instant::ZERO })
}

impl Lab {
    /// The controller's next plan, when clients ask for other keys.
    pub(super) fn replan(&mut self, spec: &WorkloadSpec) -> Result<(), Failed> {
        self.plan = plan(&self.top, spec)?;
        Ok(())
    }
}

/// A plan for keys that such clients ask for.
fn plan(tree: &Tree, spec: &WorkloadSpec) -> Result<Plan, Failed> {
    let mut workload = Workload::new(spec, KeyMap::Hashed, SEED + 1)?;
    let mut samples = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        samples.push(workload.next_operation()?.key);
    }
    let frequencies = Frequencies::from_keys(tree, &samples);
    let network = Network::one_core(4)?;
    let placement: Placement = network.hosts().iter().take(1).map(|host| (0, host.id)).collect();
    let budget = Budget::compiled(Target::Tofino1).in_network(&network);
    Ok(Plan::new(&network, &placement, tree, &frequencies, &budget, 1)?)
}

/// A worker of one kind, its session, and a client that it knows.
pub(super) struct Worker {
    pub(super) kind: Kind,
    pub(super) name: &'static str,
    pub(super) worker: QueryWorker,
    next: u64,
    pub(super) times: Vec<f64>,
    pub(super) handled: std::time::Duration,
    pub(super) turned: std::time::Duration,
    pub(super) sent: std::time::Duration,
    pub(super) operations: u64,
}

const CLIENT: u64 = 7;

fn address() -> SocketAddr {
    (Ipv4Addr::new(10, 0, 0, 9), 50_000).into()
}

impl Worker {
    pub(super) fn new(lab: &mut Lab, kind: Kind, name: &'static str) -> Result<Self, Failed> {
        let options = WorkerOptions {
            servers: vec![(0, 0)],
            responder: Default::default(),
            scans: Default::default(),
            cache: kind.has_cache().then(|| worker_cache(CACHE)),
            session: Default::default(),
        };
        let host = lab.server.local().ok_or("it has local clients")?.clone();
        let worker = QueryWorker::new(&host, lab.server.info(), options, SEED)?;
        let mut worker = Self {
            kind,
            name,
            worker,
            next: 1,
            times: Vec::new(),
            handled: Default::default(),
            turned: Default::default(),
            sent: Default::default(),
            operations: 0,
        };
        worker.settle(lab)?;
        // It opens, as a client does that writes.
        let refused = worker.ask(lab, QueryHeader::request(Op::Delete, 0, CLIENT, 0))?;
        let open =
            QueryHeader { range_end: refused.range_end, ..QueryHeader::request(Op::Open, 0, CLIENT, 1) };
        match worker.ask(lab, open)?.status {
            Some(Status::Done) => Ok(worker),
            other => Err(format!("the client was not opened: {other:?}").into()),
        }
    }

    fn ask(&mut self, lab: &mut Lab, header: QueryHeader) -> Result<QueryHeader, Failed> {
        self.worker.handle(lab.now, address(), &header.to_bytes());
        self.settle(lab)?;
        let answer = self.worker.poll_transmit().ok_or("no answer")?;
        Ok(Query::parse(&answer.bytes)?.header)
    }

    /// Until it needs nothing more.
    fn settle(&mut self, lab: &mut Lab) -> Result<(), Failed> {
        loop {
            self.worker.turn(lab.now);
            let Some((id, call)) = self.worker.poll_call(lab.now) else { return Ok(()) };
            let number = Kind::ALL.iter().position(|(kind, _)| *kind == self.kind).unwrap_or(0);
            let answer = lab.server.carry_out(lab.now, ClientId::local(number as u32), call)?;
            self.worker.handle_answer(lab.now, id, Ok::<_, NoAnswer>(answer))?;
        }
    }

    /// Runs operations; returns the nanoseconds of processor time for each.
    pub(super) fn run(
        &mut self,
        lab: &mut Lab,
        spec: &WorkloadSpec,
        seed: u64,
        count: u64,
    ) -> Result<f64, Failed> {
        let mut workload = Workload::new(spec, KeyMap::Hashed, seed)?;
        let (mut requests, mut answers) = (vec![Vec::new(); BATCH], Vec::with_capacity(BATCH));
        let mut bytes = [0; VALUE as usize];
        let before = [self.handled, self.turned, self.sent];
        let mut done = 0;
        while done < count {
            for request in &mut requests {
                let operation = workload.next_operation()?;
                let op = if operation.kind == OperationKind::Read { Op::Get } else { Op::Update };
                let mut header = QueryHeader::request(op, operation.key, CLIENT, self.next);
                self.next += 1;
                if self.kind.is_led() {
                    let landing = lab.plan.resolve(operation.key);
                    (header.walk.partition, header.walk.levels) = (landing.partition, landing.levels);
                    header.address = landing.address;
                }
                value::fill(operation.key, SEED, &mut bytes);
                let part: &[u8] = if op == Op::Update { &bytes } else { &[] };
                header.total = part.len() as u32;
                request.clear();
                request.extend_from_slice(&header.to_bytes());
                request.extend_from_slice(part);
            }
            lab.now += Duration::from_micros(100);
            let began = processor_time()?;
            for request in &requests {
                self.worker.handle(lab.now, address(), request);
            }
            let handled = processor_time()?;
            self.worker.turn(lab.now);
            let turned = processor_time()?;
            while let Some(answer) = self.worker.poll_transmit() {
                answers.push(answer);
            }
            let sent = processor_time()?;
            self.handled += handled - began;
            self.turned += turned - handled;
            self.sent += sent - turned;
            // Chores that no request waits for: memory for records.
            self.settle(lab)?;
            while let Some(answer) = self.worker.poll_transmit() {
                answers.push(answer);
            }
            if answers.len() != BATCH {
                return Err(format!("{} answers to {BATCH} requests", answers.len()).into());
            }
            for answer in answers.drain(..) {
                let answer = Query::parse(&answer.bytes)?;
                let is_right = answer.header.status == Some(Status::Done)
                    && (answer.header.op != Op::Get || {
                        value::fill(answer.header.walk.key, SEED, &mut bytes);
                        answer.part == bytes
                    });
                if !is_right {
                    return Err(format!("a wrong answer: {answer}").into());
                }
            }
            done += BATCH as u64;
        }
        self.operations += done;
        let [handled, turned, sent] = before;
        let spent = (self.handled - handled) + (self.turned - turned) + (self.sent - sent);
        Ok(spent.as_nanos() as f64 / done as f64)
    }
}
