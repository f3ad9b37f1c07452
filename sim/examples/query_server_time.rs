//! What an answer costs a memory server's processor, where switches have found the node to begin at and where they have not.
//!
//! ```sh
//! cargo run --release -p fatbtree-sim --example query_server_time                          # 4 million keys
//! cargo run --release -p fatbtree-sim --example query_server_time -- --gib 12 --rounds 10  # as many as fit in so much
//! cargo run --release -p fatbtree-sim --example query_server_time -- --only led            # for a profiler
//! ```
//!
//! One [`QueryWorker`] without I/O: requests are made beforehand, answers are looked at afterwards, and the time of the thread is taken
//! between. 90 % reads, 10 % updates, Zipf 0.99, values of 64 bytes, as the memory server's process has its trees. The plan is the
//! controller's, within what the programs of a Tofino 1 have room for, of sampled keys; where it leads a query is what the compiled
//! switches write (`sim/tests/queries.rs` compares both). All kinds have the same operations in each round, one kind behind the other.

#![allow(clippy::print_stdout, reason = "an example prints what it has found")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;

use fatbtree_client::workload::{KeyMap, OperationKind, Workload, WorkloadSpec, builtin};
use fatbtree_controller::{Budget, Frequencies, Placement, Plan, Target, Tree};
use fatbtree_index::{IndexCache, Integrity, TreeConfig, ValueLayout, value};
use fatbtree_memserver::query::{Need, QueryWorker, WorkerOptions};
use fatbtree_memserver::{ClientId, Lease, LoadOptions, MemoryServer, ServerOptions, load_cluster, seeded};
use fatbtree_nic::{Nic, NicConfig};
use fatbtree_topology::Network;
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_wire::query::{Op, Query, QueryHeader, Status};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use nix::time::{ClockId, clock_gettime};

type Failed = Box<dyn std::error::Error>;

const SEED: u64 = 42;
const VALUE: u32 = 64;
/// Keys that clients have sampled.
const SAMPLES: usize = 1_000_000;
/// Requests that come together. A server remembers as many writes of a client.
const BATCH: usize = 64;
/// Bytes of inner nodes that workers of a memory server's process know by heart.
const CACHE: u64 = 64 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Every operation begins at the root.
    Root,
    /// It begins where the switches say.
    Led,
    /// It begins at the lowest node that the worker knows by heart.
    Cached,
    /// Both: where the switches say nothing, by heart.
    Both,
}

impl Kind {
    const ALL: [(Self, &'static str); 4] =
        [(Self::Root, "root"), (Self::Led, "led"), (Self::Cached, "cached"), (Self::Both, "led-and-cached")];

    fn is_led(self) -> bool {
        matches!(self, Self::Led | Self::Both)
    }

    fn has_cache(self) -> bool {
        matches!(self, Self::Cached | Self::Both)
    }
}

struct Arguments {
    keys: u64,
    rounds: usize,
    operations: u64,
    only: Option<Kind>,
    workload: String,
}

/// Bytes of memory for each key, of values of 64 bytes: records, leaves that are three quarters full, inner nodes.
const BYTES_PER_KEY: u64 = 140;

fn arguments() -> Result<Arguments, Failed> {
    let mut found =
        Arguments { keys: 4_000_000, rounds: 6, operations: 400_000, only: None, workload: "zipf".into() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        match word.as_str() {
            "--keys" => found.keys = value.parse::<f64>()? as u64,
            "--gib" => found.keys = (value.parse::<f64>()? * (1u64 << 30) as f64) as u64 / BYTES_PER_KEY,
            "--rounds" => found.rounds = value.parse()?,
            "--operations" => found.operations = value.parse::<f64>()? as u64,
            "--only" => {
                let kind = Kind::ALL.into_iter().find(|(_, name)| *name == value);
                found.only = Some(kind.ok_or("expected root, led, cached or led-and-cached")?.0);
            }
            "--requests" => found.workload = value,
            _ => {
                return Err(format!(
                    "{word}: expected --keys, --gib, --rounds, --operations, --only or --requests"
                )
                .into());
            }
        }
    }
    Ok(found)
}

/// Of this thread.
fn processor_time() -> Result<std::time::Duration, Failed> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

struct Lab {
    server: MemoryServer<Nic>,
    plan: Plan,
    now: Instant,
}

fn build(keys: u64, spec: &WorkloadSpec) -> Result<Lab, Failed> {
    let map = KeyMap::Hashed;
    let mut sorted: Vec<u64> = (0..keys).filter_map(|record| map.key(record)).collect();
    sorted.sort_unstable();
    // As `fatbtree memserver` has them.
    let config = TreeConfig::with_integrity(16, 1024, ValueLayout::OutOfLine, Integrity::Checksums)?;
    let load = LoadOptions { spare_bytes: 512 << 20, ..LoadOptions::new(config, 0) };
    let loaded = load_cluster(&load, 1, &sorted, &mut seeded(SEED, VALUE))?;
    drop(sorted);
    let tops = loaded.tops()?;
    let tree = Tree::new(&tops)?;
    drop(tops);
    let mut workload = Workload::new(spec, map, SEED + 1)?;
    let mut samples = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        samples.push(workload.next_operation()?.key);
    }
    let frequencies = Frequencies::from_keys(&tree, &samples);
    let network = Network::one_core(4)?;
    let placement: Placement = network.hosts().iter().take(1).map(|host| (0, host.id)).collect();
    let budget = Budget::compiled(Target::Tofino1).in_network(&network);
    let plan = Plan::new(&network, &placement, &tree, &frequencies, &budget, 1)?;
    print!("{}", plan.print());
    let nic = |_| {
        Nic::new(NicConfig::new([2, 0, 0, 0, 0, 1], [10, 0, 0, 1].into()), SEED).expect("there is memory")
    };
    let options = ServerOptions { local_clients: true, ..ServerOptions::writable() };
    let server = loaded.serve(&options, SEED, nic)?.pop().ok_or("there is one server")?;
    Ok(Lab { server, plan, now: Instant::ZERO })
}

/// A worker of one kind, its session, and a client that it knows.
struct Worker {
    kind: Kind,
    name: &'static str,
    worker: QueryWorker,
    lease: Option<Lease>,
    next: u64,
    times: Vec<f64>,
    handled: std::time::Duration,
    turned: std::time::Duration,
    sent: std::time::Duration,
    operations: u64,
}

const CLIENT: u64 = 7;

fn address() -> SocketAddr {
    (Ipv4Addr::new(10, 0, 0, 9), 50_000).into()
}

impl Worker {
    fn new(lab: &mut Lab, kind: Kind, name: &'static str) -> Result<Self, Failed> {
        let options = WorkerOptions {
            servers: vec![(0, 0)],
            responder: Default::default(),
            scans: Default::default(),
            cache: kind.has_cache().then(|| Arc::new(IndexCache::new(CACHE))),
        };
        let host = lab.server.local().ok_or("it has local clients")?.clone();
        let worker = QueryWorker::new(&host, lab.server.info(), options, SEED)?;
        let mut worker = Self {
            kind,
            name,
            worker,
            lease: None,
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
            let Some(need) = self.worker.poll_need() else { return Ok(()) };
            let number = Kind::ALL.iter().position(|(kind, _)| *kind == self.kind).unwrap_or(0);
            let client = ClientId {
                host: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                roce: Ipv4Addr::from_bits(number as u32),
            };
            let lease = match self.lease {
                Some(lease) => lab.server.renew_session(lab.now, lease.session)?,
                None => lab.server.open_session(lab.now, client)?,
            };
            self.lease = Some(lease);
            match need {
                Need::Link { local, replaces } => {
                    let attached = lab.server.attach(lab.now, lease.session, &local, replaces)?;
                    self.worker.attached(&attached, lease.owner)?;
                }
                Need::Memory { kind, bytes } => {
                    let supply = lab.server.allocate(lab.now, lease.session, kind, bytes)?;
                    if let fatbtree_memserver::Supply::Chunk(chunk) = &supply {
                        lab.server.publish(lab.now, lease.session, chunk.address)?;
                    }
                    self.worker.supplied(kind, Some(&supply));
                }
                Need::GiveBack(places) => {
                    for some in places.addresses.chunks(fatbtree_memserver::PLACES_AT_ONCE) {
                        lab.server.give_back(lab.now, lease.session, places.kind, places.bytes, some)?;
                    }
                }
            }
        }
    }

    /// So many operations; nanoseconds of the processor for each.
    fn run(&mut self, lab: &mut Lab, spec: &WorkloadSpec, seed: u64, count: u64) -> Result<f64, Failed> {
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
                    let landing = lab.plan.land(operation.key);
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

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn measure() -> Result<(), Failed> {
    let Arguments { keys, rounds, operations, only, workload } = arguments()?;
    let mut properties = builtin("a")?;
    properties.set("recordcount", &keys.to_string());
    properties.set("readproportion", "0.9");
    properties.set("updateproportion", "0.1");
    if workload == "uniform" {
        properties.set("requestdistribution", "uniform");
    }
    let spec = WorkloadSpec::from_properties(&properties)?;
    let mut lab = build(keys, &spec)?;
    let info = *lab.server.info();
    println!(
        "{keys} keys in {:.1} GiB, {} levels above records; {} leaves, {} inner nodes",
        lab.server.memory().len() as f64 / (1u64 << 30) as f64,
        info.partition.root_level + 1,
        info.counts.leaf_nodes,
        info.counts.internal_nodes
    );
    let mut workers = Vec::new();
    for (kind, name) in Kind::ALL.into_iter().filter(|(kind, _)| only.is_none_or(|only| only == *kind)) {
        workers.push(Worker::new(&mut lab, kind, name)?);
    }
    // One round that does not count: pages are mapped, caches fill.
    for worker in &mut workers {
        worker.run(&mut lab, &spec, SEED + 2, operations)?;
        (worker.handled, worker.turned, worker.sent) = Default::default();
        worker.operations = 0;
    }
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let before: Vec<_> = workers.iter().map(|worker| worker.worker.stats()).collect();
    for round in 0..rounds {
        // Each kind is first once in a while.
        for turn in 0..workers.len() {
            let place = (turn + round) % workers.len();
            let time = workers[place].run(&mut lab, &spec, SEED + 3 + round as u64, operations)?;
            workers[place].times.push(time);
        }
    }
    let after = getrusage(UsageWho::RUSAGE_SELF)?;
    let (user, system) = (
        after.user_time().num_microseconds() - usage.user_time().num_microseconds(),
        after.system_time().num_microseconds() - usage.system_time().num_microseconds(),
    );
    println!(
        "{rounds} rounds of {operations} operations each; the process: {user} µs user, {system} µs system"
    );
    println!(
        "kind             ns/op median (least..most)   handle   turn   send   reads/op    led  astray   ratio to root (each round)"
    );
    let root = workers.iter().find(|worker| worker.kind == Kind::Root).map(|worker| worker.times.clone());
    for (worker, before) in workers.iter().zip(&before) {
        let count = worker.operations as f64;
        let each = |time: std::time::Duration| time.as_nanos() as f64 / count;
        let (least, most) = worker
            .times
            .iter()
            .fold((f64::MAX, 0.0), |(least, most): (f64, f64), time| (least.min(*time), most.max(*time)));
        let stats = worker.worker.stats();
        let share = |now: u64, before: u64| 100.0 * (now - before) as f64 / count;
        let ratios: Vec<f64> = match &root {
            Some(root) => root.iter().zip(&worker.times).map(|(root, time)| root / time).collect(),
            None => Vec::new(),
        };
        let listed: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
        println!(
            "{:<16} {:>8.0} ({least:.0}..{most:.0}) {:>12.0} {:>6.0} {:>6.0} {:>9.2} {:>6.1}% {:>5.1}%   {:.3} ({})",
            worker.name,
            median(&worker.times),
            each(worker.handled),
            each(worker.turned),
            each(worker.sent),
            (stats.pool.reads - before.pool.reads) as f64 / count,
            share(stats.led, before.led),
            share(stats.led_astray, before.led_astray),
            median(&ratios),
            listed.join(", ")
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("query_server_time: {error}");
            ExitCode::FAILURE
        }
    }
}
