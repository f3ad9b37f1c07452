//! Real time: a memory server and a client, a thread and a software NIC each; gets, updates, and both, 64 under way, keys by Zipf 0.99.
//!
//! ```text
//! cargo run --release -p fatbtree-workload --example stress -- [KEYS] [OPERATIONS] [CACHE MB] [THREADS]
//! ```
//!
//! Keys and values have 8 bytes. Every answer is checked. It fails when one is wrong, when updates have less than half the throughput of
//! gets, when an operation starves (p99.9 of a kind above 100 times its median), or when the tree is not whole in the end. The peak of
//! the process's memory holds the server, the client, and the list of keys that the load was given.
//!
//! With 1 as THREADS server and client take turns on one thread, which never waits: then it tells what an operation costs the
//! processor, which other processes on the machine hardly change, and the ratio of throughputs is no failure.
//!
//! **What an update costs.** With a warm cache a get is 2 frames with 1,160 bytes together, an update 7 with 1,594: lock and READ, and
//! both answers; entry, unlock, and one answer for both. With 50,000 keys that was 870, 880 and 1,160 ns a get and 2,160, 2,200 and 3,100
//! an update in three runs on a machine that did other things, too. A profile (keys all alike) gives about 350 of an update to the
//! check, whose table of what was written does not fit in the processor's caches; and of what is more than in a get 270 to ICRCs, 250
//! to making and 170 to reading frames, 80 to the atomics, and about 300 to locks and leaf. The client's thread has the larger part
//! of it: on two threads updates had 0.35 to 0.38 of the throughput of gets, with 1,000,000 keys.
#![allow(clippy::print_stdout, reason = "an example prints what it has found")]

use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use fatbtree_blink::{
    IndexCache, PoolConfig, PoolStats, RemoteSide, Start, SuperRoot, TreeConfig, ValueLayout,
};
use fatbtree_blink_client::Client;
use fatbtree_blink_host::{LoadOptions, TreeServer, bulk_load_unsorted, seeded};
use fatbtree_memserver::{ClientId, MemoryServer, ServerOptions};
use fatbtree_soft_nic::{Nic, NicConfig, NicStats};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_workload::measure::Summary;
use fatbtree_workload::ycsb::{KeyMap, Workload, WorkloadSpec, builtin};
use fatbtree_workload::{LoadGenerator, LoopOptions, OperationKind, Values};

const SEED: u64 = 1;
const UNDER_WAY: usize = 64;

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (keys, operations, cache) = (argument(1_000_000)?, argument(500_000)?, argument(64)? << 20);
    let threads = argument(2)?;

    let config = TreeConfig::new(16, 1024, ValueLayout::Inline(8))?;
    let map = KeyMap::from(workload_of(keys, operations, 1.0)?.insert_order);
    let mut list: Vec<u64> = (0..keys).filter_map(|record| map.key(record)).collect();
    let load = LoadOptions { spare_bytes: 8 << 20, ..LoadOptions::new(config, 0) };
    let tree = bulk_load_unsorted(&load, &mut list, &mut seeded(SEED, 8))?;
    drop(list);
    println!("{keys} keys in {} MB of tree memory", tree.region.len() >> 20);

    let roots = SuperRoot::new(vec![tree.partition])?;
    let options = ServerOptions { lease: Duration::from_secs(1 << 20), ..ServerOptions::writable() };
    // These wires lose nothing: what comes late waits for the processor.
    let nic = |host: u8| {
        let config = NicConfig::new([2, 0, 0, 0, 0, host], [10, 0, 0, host].into());
        Nic::new(NicConfig { ack_timeout: Duration::from_secs(1), ..config }, host.into())
    };
    let mut server = MemoryServer::new(nic(1)?, tree, &options, SEED)?;
    // A queue pair has 16 READs under way.
    let pool = PoolConfig { tree: config, lanes: 4, ..PoolConfig::default() };
    let client = Client::new(nic(2)?, pool, roots, SEED)?;
    client.set_cache(Some(Arc::new(IndexCache::new(cache))));
    connect(&client, &mut server)?;

    let (here, mut there) = wires();
    let clock = Clock(std::time::Instant::now());
    let is_over = AtomicBool::new(false);
    if threads == 1 {
        let serve = |now| there.turn(server.device_mut(), now);
        return measure(
            &mut Driver { client, port: here, clock, serve: Some(Box::new(serve)) },
            &map,
            keys,
            operations,
        );
    }
    std::thread::scope(|scope| {
        scope.spawn(|| serve(server.device_mut(), there, clock, &is_over));
        let done = measure(&mut Driver { client, port: here, clock, serve: None }, &map, keys, operations);
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

/// The seconds of the wall.
#[derive(Clone, Copy)]
struct Clock(std::time::Instant);

impl Clock {
    fn now(self) -> Instant {
        Instant::ZERO + self.0.elapsed().into()
    }
}

/// An end of the wires between two threads. The receiver of a frame sends its buffer back, to be used again.
struct Port {
    to: rtrb::Producer<Vec<u8>>,
    from: rtrb::Consumer<Vec<u8>>,
    /// Buffers that come back, and those that go back.
    spare: rtrb::Consumer<Vec<u8>>,
    used: rtrb::Producer<Vec<u8>>,
    /// The next frame to be sent.
    frame: Vec<u8>,
    /// Looks in a row that found no frame.
    idle: u32,
}

fn wires() -> (Port, Port) {
    const FRAMES: usize = 4096;
    let ring = || rtrb::RingBuffer::new(FRAMES);
    let ((to_there, from_here), (to_here, from_there)) = (ring(), ring());
    let ((used_there, spare_here), (used_here, spare_there)) = (ring(), ring());
    let port = |to, from, spare, used| Port { to, from, spare, used, frame: Vec::new(), idle: 0 };
    (port(to_there, from_there, spare_here, used_here), port(to_here, from_here, spare_there, used_there))
}

impl Port {
    /// Brings all frames that have come, sends all that there are, and rests where nothing happens.
    fn turn(&mut self, nic: &mut Nic, now: Instant) {
        let mut any = false;
        while let Ok(frame) = self.from.pop() {
            nic.handle_frame(now, &frame);
            let _ = self.used.push(frame);
            any = true;
        }
        while !self.to.is_full() && nic.poll_transmit(now, &mut self.frame) {
            any = true;
            let next = self.spare.pop().unwrap_or_default();
            // The queue is not full, and no other thread fills it.
            let _ = self.to.push(std::mem::replace(&mut self.frame, next));
        }
        self.idle = if any { 0 } else { self.idle + 1 };
        if self.idle.is_multiple_of(256) {
            nic.handle_timeout(now);
        }
        if self.idle > 256 {
            std::thread::yield_now();
        }
    }
}

fn serve(nic: &mut Nic, mut port: Port, clock: Clock, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        port.turn(nic, clock.now());
    }
}

fn connect(client: &Client<Nic>, server: &mut TreeServer<Nic>) -> Result<(), Failure> {
    let now = Instant::ZERO;
    let mut session = None;
    for id in client.pool().connections() {
        let local = client.pool().open(id)?;
        let lease = match session {
            Some(lease) => lease,
            None => server.open_session(now, ClientId { host: [127, 0, 0, 1].into(), roce: local.ip })?,
        };
        session = Some(lease);
        let endpoint = server.connect(now, lease.session, &local, None)?;
        let writer = server.info().writer(lease.owner, true).ok_or("the server has no locks")?;
        client.pool().set_writer(id.server, writer)?;
        let rkey = server.info().region.rkey;
        client.pool().connected(id, RemoteSide { endpoint, rkey, registered: false })?;
    }
    Ok(())
}

/// The client and what moves it on.
struct Driver<'s> {
    client: Client<Nic>,
    port: Port,
    clock: Clock,
    /// The server, where it is on this thread, too.
    serve: Option<Box<dyn FnMut(Instant) + 's>>,
}

/// What the client has counted.
type Counts = (NicStats, PoolStats);

impl Driver<'_> {
    fn counts(&self) -> Counts {
        let pool = self.client.pool();
        (pool.reactor().with(|nic| nic.stats().clone()), pool.stats())
    }

    fn run<F: Future>(&mut self, future: F) -> Result<F::Output, Failure> {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Ok(output);
            }
            let now = self.clock.now();
            self.client.pool().reactor().with(|nic| self.port.turn(nic, now));
            if let Some(serve) = &mut self.serve {
                serve(now);
            }
            self.client.turn(now);
            // Nothing is inserted, so no memory is wanted either.
            if let Some(event) = self.client.poll_event() {
                return Err(format!("a connection broke, or memory was wanted: {event:?}").into());
            }
        }
    }

    fn load_generator(
        &mut self,
        spec: &WorkloadSpec,
        map: &KeyMap,
        operations: u64,
        values: &Values,
    ) -> Result<LoadGenerator, Failure> {
        let mut run = LoadGenerator::new();
        let client = self.client.clone();
        let mut workload = Workload::new(spec, map.clone(), SEED)?;
        let options = LoopOptions { start: Start::Cached, depth: UNDER_WAY };
        self.run(run.run(&client, &mut workload, operations, options, values))??;
        match run.first_wrong() {
            Some(wrong) => Err(wrong.into()),
            None => Ok(run),
        }
    }
}

/// A workload of which `reads` are gets, the rest updates; Zipf 0.99.
fn workload_of(keys: u64, operations: u64, reads: f64) -> Result<WorkloadSpec, Failure> {
    let mut properties = builtin("a")?;
    properties.set("recordcount", &keys.to_string());
    properties.set("operationcount", &operations.to_string());
    properties.set("readproportion", &reads.to_string());
    properties.set("updateproportion", &(1.0 - reads).to_string());
    Ok(WorkloadSpec::from_properties(&properties)?)
}

fn measure(driver: &mut Driver<'_>, map: &KeyMap, keys: u64, operations: u64) -> Result<(), Failure> {
    let values = Values::new(SEED, 8);
    // Warm: the cache, and the processor's.
    driver.load_generator(&workload_of(keys, operations, 1.0)?, map, operations, &values)?;

    let (mut rates, mut costs) = (Vec::new(), Vec::new());
    for (what, reads) in [("gets", 1.0), ("updates", 0.0)] {
        let (before, processor) = (driver.counts(), processor_time());
        let run = driver.load_generator(&workload_of(keys, operations, reads)?, map, operations, &values)?;
        let Summary { ops_per_s, round_trips, .. } = run.summary(&driver.client);
        let (after, processor) = (driver.counts(), processor_time() - processor);
        let each = |count: fn(&Counts) -> u64| (count(&after) - count(&before)) as f64 / operations as f64;
        println!(
            "{what}: {:.2} frames of {:.0} bytes out, {:.2} of {:.0} in, {:.3} sent again; {:.3} locks handed over, {:.3} found taken",
            each(|(nic, _)| nic.frames_sent),
            each(|(nic, _)| nic.bytes_sent),
            each(|(nic, _)| nic.frames_received),
            each(|(nic, _)| nic.bytes_received),
            each(|(nic, _)| nic.retransmissions),
            each(|(_, pool)| pool.remote.hand_overs),
            each(|(_, pool)| pool.remote.lock_retries),
        );
        if driver.serve.is_some() {
            println!(
                "{what}: {} ns of the processor each, server and checks included",
                processor / operations
            );
            costs.push(processor);
        }
        println!("{what} alone: {ops_per_s:.0} a second, {round_trips:.2} round trips each");
        rates.push(ops_per_s);
    }
    let ratio = rates[1] / rates[0];
    println!("updates have {ratio:.2} of the throughput of gets");

    let run = driver.load_generator(&workload_of(keys, operations, 0.5)?, map, operations, &values)?;
    println!("both: {:.0} a second", run.summary(&driver.client).ops_per_s);
    let mut starved = false;
    for (what, kind) in [("gets", OperationKind::Read), ("updates", OperationKind::Update)] {
        let latency = run.latency_of(kind).ok_or("a workload of both has both")?;
        let [p50, p99, p99_9] = [0.5, 0.99, 0.999].map(|at| latency.quantile_ns(at) as f64 / 1000.0);
        let max = latency.max_ns() as f64 / 1000.0;
        println!(
            "  {what}: {} of them, p50 {p50:.0} µs, p99 {p99:.0} µs, p99.9 {p99_9:.0} µs, slowest {max:.0} µs",
            latency.len()
        );
        starved |= p99_9 > 100.0 * p50;
    }
    let client = driver.client.clone();
    let found = driver.run(client.verify())??;
    println!(
        "whole: {} keys in {} leaves under {} internal nodes",
        found.keys, found.leaves, found.internal_nodes
    );
    if let Some(peak) = peak_memory() {
        println!("peak of the process's memory: {} MB", peak >> 10);
    }
    match () {
        () if found.keys != keys => Err(format!("{keys} keys were loaded").into()),
        () if starved => Err("operations starve".into()),
        // On one thread nothing is measured but the processor.
        () if ratio < 0.5 && costs.is_empty() => {
            Err("updates have less than half of the throughput of gets".into())
        }
        () => Ok(()),
    }
}

/// Time that this thread has had a processor for, in ns; Linux tells.
fn processor_time() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    status.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or_default()
}

/// In KB; Linux tells.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}
