//! Threads of one client over tables: as many transactions as they can.

use std::rc::Rc;

use fatbtree_dtx::Tables;
use fatbtree_dtx::workloads::tatp;
use fatbtree_remote_memory::{Attempts, Contention, RemoteConfig};
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use super::ford::{self, Ford};
use super::image::{Image, SERVERS};
use super::{Bench, Protocol, bank};
use crate::card::{Calibration, Cluster, Resources};
use crate::meter::{Done, Measured};
use crate::rig::{CONNECTING, Client, Rig, machines};
use fatbtree_sim::world::{Machine, Random, SimDevice, random};

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

/// One of the transactions of a thread that are under way.
struct Task {
    machine: Machine,
    cards: Cluster,
    side: Side,
    memory: Client,
}

/// A thread's side of the protocol.
#[derive(Clone)]
enum Side {
    Ours(Rc<Tables<SimDevice>>),
    Ford(Rc<Ford>),
}

/// Runs a measurement. Returns the attempts of transactions since the threads began, too.
///
/// # Errors
/// A transaction that failed.
pub(super) fn run(setup: &Setup, image: &Image) -> Result<(Measured, Attempts), String> {
    let mut rig = Rig::new(setup.seed, setup.calibration, 1);
    rig.servers = machines(&rig.world, SERVERS);
    let servers = image.serve(&rig.servers)?;
    let addresses = image.addresses();
    let mut memories = Vec::new();
    for number in 0..setup.threads {
        let config = RemoteConfig { contention: setup.contention, ..RemoteConfig::default() };
        let seed = setup.seed ^ u64::from(number) << 32;
        memories.push(rig.begin(format!("thread {number}"), &servers, config, seed)?);
    }
    rig.cards.threads(rig.clients.iter().map(Machine::id), setup.resources);
    rig.world.run_for(CONNECTING);
    for (number, (machine, memory)) in rig.clients.iter().zip(&memories).enumerate() {
        let (machine, memory, addresses) = (machine.clone(), Rc::clone(memory), Rc::clone(&addresses));
        let (cards, meter, shape) = (rig.cards.clone(), Rc::clone(&rig.meter), image.shape());
        let Setup { seed, protocol, bench, count, .. } = *setup;
        drop(machine.clone().spawn(async move {
            let side = match protocol {
                Protocol::Ours => match Tables::open_knowing(Rc::clone(&memory), 0, addresses).await {
                    Ok(tables) => Side::Ours(Rc::new(tables)),
                    Err(error) => return meter.fail(error.to_string()),
                },
                Protocol::Ford => Side::Ford(Rc::new(Ford::new(machine.clone(), Rc::clone(&memory), shape))),
            };
            for task in 0..u64::from(DEPTH) {
                let mut draw = random(seed, 10_000 + number as u64 * 1_000 + task);
                let slot = meter.slot(number, machine.now());
                let (side, memory) = (side.clone(), Rc::clone(&memory));
                let task = Task { machine: machine.clone(), cards: cards.clone(), side, memory };
                let mut transactions = 0;
                let next = async move || {
                    transactions += 1;
                    task.next(bench, count, transactions, &mut draw).await
                };
                drop(machine.spawn(Rc::clone(&meter).keep_busy(slot, machine.clone(), next)));
            }
        }));
    }
    rig.world.run_for(CLAIMING + setup.warm_up);
    let measured = rig.measure(setup.window)?;
    let mut attempts = Attempts::default();
    memories.iter().for_each(|memory| attempts.merge(&memory.attempts()));
    Ok((measured, attempts))
}

impl Task {
    /// The thread's own work for an attempt.
    async fn work(&self, bench: Bench) {
        let now = self.machine.now();
        let ready = self.cards.work(now, self.machine.id(), bench.own_work());
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

    /// Does the next transaction of its slot.
    async fn next(&self, bench: Bench, count: u64, number: u64, draw: &mut Random) -> Result<Done, String> {
        let below = &mut |most: u64| draw.random_range(0..most);
        let task = match bench {
            Bench::SmallBank => ford::Task::Bank(bank::operation(&bank::customers(count), below)),
            Bench::Tatp => ford::Task::Tatp(tatp::Operation::draw(count, below), below(24)),
        };
        let commits = match &self.side {
            Side::Ours(tables) => self.run_ours(tables, bench, task, number).await?,
            Side::Ford(ford) => self.run_fords(ford, bench, task).await?,
        };
        Ok(if commits { Done::Write(0) } else { Done::Aborted })
    }
}
