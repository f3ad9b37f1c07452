//! Threads of one client over tables: as many transactions as they can.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use fatbtree_dtx::Tables;
use fatbtree_dtx::workloads::tatp;
use fatbtree_remote_memory::{Attempts, Contention, RemoteConfig};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_workload::measure::LatencyHistogram;
use rand::RngExt as _;

use super::ford::{self, Ford};
use super::image::{Image, SERVERS};
use super::{Bench, Protocol, bank};
use crate::bench::{CONNECTING, world};
use crate::card::{Calibration, Cluster, Resources, Usage};
use crate::structure_servers::{Client, begin, machines};
use fatbtree_sim::world::{Machine, MachineOptions, Random, SimDevice, random};

/// Transactions that a thread has under way.
pub(super) const DEPTH: u32 = 8;
/// Time in which all threads claim their seats.
const CLAIMING: Duration = Duration::from_millis(10);

impl Bench {
    /// Time of a thread for an attempt without its requests: FORD+ with 8 threads, which share nothing, makes 1.232 and 2.635 million attempts a
    /// second, 6.49 and 3.04 µs each, less 13.05 and 3.36 requests of 0.215 µs. With 16 threads SMART-DTX takes as long. One thread alone takes
    /// 4.05 and 1.93 µs; see `sim/figures/FIGURES.md`.
    const fn own_work(self) -> Duration {
        Duration::from_nanos(match self {
            Self::SmallBank => 3_690,
            Self::Tatp => 2_310,
        })
    }
}

/// A measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) protocol: Protocol,
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
    /// Commits of each thread.
    pub(super) done: Vec<u64>,
    /// Transactions that ended without a commit, of all threads.
    pub(super) aborted: u64,
    /// Transactions that have not ended count with the time that they have taken so far.
    pub(super) latencies: LatencyHistogram,
    /// Attempts of transactions since the threads began.
    pub(super) attempts: Attempts,
}

/// What the tasks of all threads share.
struct Tally {
    measures: Cell<bool>,
    aborted: Cell<u64>,
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
    side: Side,
    memory: Client,
    tally: Rc<Tally>,
    done: Rc<Cell<u64>>,
    begun: Rc<Cell<Instant>>,
}

/// A thread's side of the protocol.
#[derive(Clone)]
enum Side {
    Ours(Rc<Tables<SimDevice>>),
    Ford(Rc<Ford>),
}

/// Runs a measurement.
///
/// # Errors
/// A transaction that failed.
pub(super) fn run(setup: &Setup, image: &Image) -> Result<Measured, String> {
    let (world, cluster) = world(setup.seed, setup.calibration, 1);
    let hosts = machines(&world, SERVERS);
    let servers = image.serve(&hosts)?;
    let addresses = image.addresses();
    let tally = Rc::new(Tally {
        measures: Cell::new(false),
        aborted: Cell::new(0),
        latencies: RefCell::default(),
        wrong: RefCell::default(),
    });
    let mut clients = Vec::new();
    for number in 0..setup.threads {
        let machine = world.machine(MachineOptions::named(format!("thread {number}")));
        let config = RemoteConfig { contention: setup.contention, ..RemoteConfig::default() };
        let (told, seed) = (Rc::clone(&tally), setup.seed ^ u64::from(number) << 32);
        let memory = begin(&machine, &servers, config, seed, move |why| told.fail(why))?;
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
        let Setup { seed, protocol, bench, count, .. } = *setup;
        let shape = image.shape();
        drop(machine.clone().spawn(async move {
            let side = match protocol {
                Protocol::Ours => match Tables::open_knowing(Rc::clone(&memory), 0, addresses).await {
                    Ok(tables) => Side::Ours(Rc::new(tables)),
                    Err(error) => return tally.fail(error.to_string()),
                },
                Protocol::Ford => Side::Ford(Rc::new(Ford::new(machine.clone(), Rc::clone(&memory), shape))),
            };
            for (task, begun) in (0..).zip(begun) {
                let draw = random(seed, 10_000 + number as u64 * 1_000 + task);
                let (side, memory) = (side.clone(), Rc::clone(&memory));
                let (machine, cluster) = (machine.clone(), cluster.clone());
                let (tally, done) = (Rc::clone(&tally), Rc::clone(&done));
                let task = Task { machine: machine.clone(), cluster, side, memory, tally, done, begun };
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
    let aborted_before = tally.aborted.get();
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
        aborted: tally.aborted.get() - aborted_before,
        latencies,
        attempts,
    })
}

impl Task {
    /// The thread's own work for an attempt.
    async fn work(&self, bench: Bench) {
        let now = self.machine.now();
        let ready = self.cluster.work(now, self.machine.id(), bench.own_work());
        self.machine.sleep(ready - now).await;
    }

    /// Runs a transaction, again where it met another one. Says whether it has done what it was for.
    async fn run_ours(
        &self,
        tables: &Tables<SimDevice>,
        bench: Bench,
        task: ford::Task,
        number: u64,
    ) -> Result<bool, String> {
        let answer = tables.run(async |tx| {
            // An attempt that is made again costs the thread's time again.
            self.work(bench).await;
            match task {
                ford::Task::Bank(bank) => bank.carry_out(tx, number, |_, _, _| {}).await,
                ford::Task::Tatp(tatp, _) => tatp.carry_out(tx, number).await,
            }
        });
        answer.await.result.map_err(|error| error.to_string())
    }

    /// Tries a transaction once. One that is given up is followed by another one, after a pause: SMART's artifact pauses after those that
    /// lack money, too.
    async fn run_fords(&self, ford: &Ford, bench: Bench, task: ford::Task) -> Result<bool, String> {
        let turn = self.memory.compete().await;
        self.work(bench).await;
        let commits = ford.attempt(task).await?;
        self.memory.note_attempt(!commits);
        if !commits {
            self.memory.pause_after_conflict(0, None).await;
        }
        drop(turn);
        Ok(commits)
    }

    async fn run(self, bench: Bench, count: u64, mut draw: Random) {
        let customers = bank::customers(count);
        let mut number = 0;
        loop {
            let begun = self.machine.now();
            self.begun.set(begun);
            let below = &mut |most: u64| draw.random_range(0..most);
            let task = match bench {
                Bench::SmallBank => ford::Task::Bank(bank::operation(&customers, below)),
                Bench::Tatp => ford::Task::Tatp(tatp::Operation::draw(count, below), below(24)),
            };
            number += 1;
            let ended = match &self.side {
                Side::Ours(tables) => self.run_ours(tables, bench, task, number).await,
                Side::Ford(ford) => self.run_fords(ford, bench, task).await,
            };
            match ended {
                Ok(true) => self.done.set(self.done.get() + 1),
                Ok(false) => {
                    self.tally.aborted.set(self.tally.aborted.get() + 1);
                    continue;
                }
                Err(why) => return self.tally.fail(why),
            }
            if self.tally.measures.get() {
                self.tally.latencies.borrow_mut().record((self.machine.now() - begun).as_nanos());
            }
        }
    }
}
