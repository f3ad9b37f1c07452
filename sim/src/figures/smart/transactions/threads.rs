//! Threads of one client over tables: as many transactions as they can.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use fatbtree_dtx::Tables;
use fatbtree_dtx::workloads::smallbank::Customers;
use fatbtree_dtx::workloads::tatp;
use fatbtree_remote::{Attempts, Contention, RemoteConfig};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_workload::measure::LatencyHistogram;
use rand::RngExt as _;

use super::Bench;
use super::image::{self, Image};
use crate::figures::bench::{CONNECTING, world};
use crate::figures::card::{Calibration, Cluster, Resources, Usage};
use crate::world::{Machine, MachineOptions, Random, SimDevice, random};

/// Transactions that a thread has under way.
pub(super) const DEPTH: u32 = 8;
/// Time in which all threads claim their seats.
const CLAIMING: Duration = Duration::from_millis(10);

impl Bench {
    /// Time of a thread for a transaction without its requests: figure 10 with one thread, 4.76 and 2.56 µs, less FORD's 15 and 4 requests of
    /// 0.215 µs.
    const fn own_work(self) -> Duration {
        Duration::from_nanos(match self {
            Self::SmallBank => 1_535,
            Self::Tatp => 1_700,
        })
    }
}

/// A measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) bench: Bench,
    pub(super) count: u64,
    pub(super) calibration: Calibration,
    pub(super) resources: Resources,
    pub(super) contention: Contention,
    pub(super) threads: u32,
    pub(super) warm_up: Duration,
    pub(super) window: Duration,
    pub(super) seed: u64,
}

/// What was measured in the window.
pub(super) struct Measured {
    /// Millions of commits a second.
    pub(super) mops: f64,
    /// Of the client's card.
    pub(super) usage: Usage,
    /// Time for which the busiest bucket of atomics of all servers was busy.
    pub(super) busiest_bucket: Duration,
    /// Transactions of each thread.
    pub(super) done: Vec<u64>,
    /// Transactions that have not ended count with the time that they have taken so far.
    pub(super) latencies: LatencyHistogram,
    /// Attempts of transactions since the threads began.
    pub(super) attempts: Attempts,
}

/// What the tasks of all threads share.
struct Tally {
    measures: Cell<bool>,
    latencies: RefCell<LatencyHistogram>,
    wrong: RefCell<Option<String>>,
}

impl Tally {
    fn fail(&self, why: String) {
        self.wrong.borrow_mut().get_or_insert(why);
    }
}

/// One of the transactions of a thread that are under way.
struct Task {
    machine: Machine,
    cluster: Cluster,
    tables: Rc<Tables<SimDevice>>,
    tally: Rc<Tally>,
    done: Rc<Cell<u64>>,
    begun: Rc<Cell<Instant>>,
}

/// Runs a measurement.
///
/// # Errors
/// A transaction that failed.
pub(super) fn run(setup: &Setup, image: &Image) -> Result<Measured, String> {
    let (world, cluster) = world(setup.seed, setup.calibration, 1);
    let hosts = image::servers(&world);
    let servers = image.serve(&hosts)?;
    let addresses = image.addresses();
    let tally = Rc::new(Tally {
        measures: Cell::new(false),
        latencies: RefCell::default(),
        wrong: RefCell::default(),
    });
    let mut clients = Vec::new();
    for number in 0..setup.threads {
        let machine = world.machine(MachineOptions::named(format!("thread {number}")));
        let config = RemoteConfig { contention: setup.contention, ..RemoteConfig::default() };
        let (told, seed) = (Rc::clone(&tally), setup.seed ^ u64::from(number) << 32);
        let memory = image::begin(&machine, &servers, config, seed, move |why| told.fail(why))?;
        clients.push((machine, memory));
    }
    cluster.threads(clients.iter().map(|(machine, _)| machine.id()), setup.resources);
    world.run_for(CONNECTING);

    let counts: Vec<Rc<Cell<u64>>> = clients.iter().map(|_| Rc::default()).collect();
    let begun: Vec<Rc<Cell<_>>> =
        (0..setup.threads * DEPTH).map(|_| Rc::new(Cell::new(world.now()))).collect();
    for (number, (machine, memory)) in (0..).zip(&clients) {
        let (machine, memory) = (machine.clone(), Rc::clone(memory));
        let (cluster, tally, done) = (cluster.clone(), Rc::clone(&tally), Rc::clone(&counts[number]));
        let (addresses, begun) =
            (Rc::clone(&addresses), begun[number * DEPTH as usize..][..DEPTH as usize].to_vec());
        let Setup { seed, bench, count, .. } = *setup;
        drop(machine.clone().spawn(async move {
            let tables = match Tables::open_knowing(memory, 0, addresses).await {
                Ok(tables) => Rc::new(tables),
                Err(error) => return tally.fail(error.to_string()),
            };
            for (task, begun) in (0..).zip(begun) {
                let draw = random(seed, 10_000 + number as u64 * 1_000 + task);
                let (tables, tally, done) = (Rc::clone(&tables), Rc::clone(&tally), Rc::clone(&done));
                let task =
                    Task { machine: machine.clone(), cluster: cluster.clone(), tables, tally, done, begun };
                drop(machine.spawn(task.run(bench, count, draw)));
            }
        }));
    }
    world.run_for(CLAIMING);
    world.run_for(setup.warm_up);
    let client = clients[0].0.id();
    let usages = || hosts.iter().map(|host| cluster.usage(host.id())).collect::<Vec<_>>();
    let (before, of_servers) = (cluster.usage(client), usages());
    let done_before: Vec<u64> = counts.iter().map(|count| count.get()).collect();
    tally.measures.set(true);
    world.run_for(setup.window);
    if let Some(why) = tally.wrong.borrow_mut().take() {
        return Err(why);
    }
    let mut attempts = Attempts::default();
    clients.iter().for_each(|(_, memory)| attempts.merge(&memory.attempts()));
    let mut latencies = tally.latencies.take();
    begun.iter().for_each(|begun| latencies.record((world.now() - begun.get()).as_nanos()));
    let done: Vec<u64> = counts.iter().zip(done_before).map(|(now, before)| now.get() - before).collect();
    let busy = usages().iter().zip(&of_servers).map(|(now, before)| now.since(before).busiest_bucket).max();
    Ok(Measured {
        mops: done.iter().sum::<u64>() as f64 * 1e3 / setup.window.as_nanos() as f64,
        usage: cluster.usage(client).since(&before),
        busiest_bucket: busy.unwrap_or_default(),
        done,
        latencies,
        attempts,
    })
}

impl Task {
    async fn run(self, bench: Bench, count: u64, mut draw: Random) {
        let customers = Customers { count, hot: count / 25, ..Customers::PAPER };
        let mut number = 0;
        loop {
            let begun = self.machine.now();
            self.begun.set(begun);
            let below = &mut |most: u64| draw.random_range(0..most);
            let (bank, tatp) = (customers.operation(below), tatp::Operation::draw(count, below));
            number += 1;
            let answer = self.tables.run(async |tx| {
                // An attempt that is made again costs the thread's time again.
                let now = self.machine.now();
                let ready = self.cluster.work(now, self.machine.id(), bench.own_work());
                self.machine.sleep(ready - now).await;
                match bench {
                    Bench::SmallBank => bank.carry_out(tx, number, |_, _, _| {}).await,
                    Bench::Tatp => tatp.carry_out(tx, number).await,
                }
            });
            match answer.await.result {
                Ok(_) => {}
                Err(error) => return self.tally.fail(error.to_string()),
            }
            self.done.set(self.done.get() + 1);
            if self.tally.measures.get() {
                self.tally.latencies.borrow_mut().record((self.machine.now() - begun).as_nanos());
            }
        }
    }
}
