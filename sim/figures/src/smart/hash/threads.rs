//! Threads of one client over a hash table: as many operations as they can.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use fatbtree_race::Table;
use fatbtree_remote_memory::{Attempts, Contention, RemoteConfig};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_workload::measure::LatencyHistogram;
use fatbtree_workload::ycsb::Zipfian;
use rand::RngExt as _;

use super::image::{Image, SERVERS};
use crate::Mix;
use crate::bench::{CONNECTING, key_of, value_of, world};
use crate::card::{Calibration, Cluster, Resources, Usage};
use crate::structure_servers::{begin, machines};
use fatbtree_sim::world::{Machine, MachineOptions, Random, SimDevice, random};

/// Time of a thread for a lookup and for an update, without its requests: figures 8 and 5 with one thread, 1.75 and 4.2 µs, less three and
/// five requests of 0.215 µs.
const LOOKUP: Duration = Duration::from_nanos(1_105);
const UPDATE: Duration = Duration::from_nanos(3_125);
/// Operations that a thread has under way.
pub(super) const DEPTH: u32 = 8;

/// A measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) calibration: Calibration,
    pub(super) resources: Resources,
    pub(super) contention: Contention,
    /// Clients, each with a card of its own.
    pub(super) clients: u32,
    /// Threads of each client.
    pub(super) threads: u32,
    /// Time for which each of a thread's operations rests before the next one.
    pub(super) rest: Duration,
    pub(super) mix: Mix,
    pub(super) warm_up: Duration,
    pub(super) window: Duration,
    pub(super) seed: u64,
}

/// What was measured in the window.
pub(super) struct Measured {
    pub(super) mops: f64,
    /// Of the first client's card.
    pub(super) usage: Usage,
    /// Time for which the busiest bucket of atomics of all servers was busy.
    pub(super) busiest_bucket: Duration,
    /// Operations of each thread.
    pub(super) done: Vec<u64>,
    /// Operations that have not ended count with the time that they have taken so far.
    pub(super) latencies: LatencyHistogram,
    /// Attempts at slots since the threads began.
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

/// One of the operations of a thread that are under way.
struct Task {
    machine: Machine,
    cluster: Cluster,
    table: Rc<Table<SimDevice>>,
    tally: Rc<Tally>,
    done: Rc<Cell<u64>>,
    begun: Rc<Cell<Instant>>,
}

/// Runs a measurement. Every value that is read is checked.
///
/// # Errors
/// A wrong answer, or an operation that failed.
pub(super) fn run(setup: &Setup, table: &Image, ranks: &Zipfian) -> Result<Measured, String> {
    let (world, cluster) = world(setup.seed, setup.calibration, 1);
    let hosts = machines(&world, SERVERS);
    let servers = table.serve(&hosts)?;
    let tally = Rc::new(Tally {
        measures: Cell::new(false),
        latencies: RefCell::default(),
        wrong: RefCell::default(),
    });
    let mut clients = Vec::new();
    for number in 0..setup.clients * setup.threads {
        let machine = world.machine(MachineOptions::named(format!("thread {number}")));
        let config = RemoteConfig { contention: setup.contention, ..RemoteConfig::default() };
        let (told, seed) = (Rc::clone(&tally), setup.seed ^ u64::from(number) << 32);
        let memory = begin(&machine, &servers, config, seed, move |why| told.fail(why))?;
        clients.push((machine, memory));
    }
    for of_one in clients.chunks(setup.threads as usize) {
        cluster.threads(of_one.iter().map(|(machine, _)| machine.id()), setup.resources);
    }
    world.run_for(CONNECTING);

    let (ranks, keys) = (Rc::new(ranks.clone()), table.keys());
    let counts: Vec<Rc<Cell<u64>>> = clients.iter().map(|_| Rc::default()).collect();
    let begun: Vec<Rc<Cell<_>>> =
        (0..setup.clients * setup.threads * DEPTH).map(|_| Rc::new(Cell::new(world.now()))).collect();
    for (number, (machine, memory)) in (0..).zip(&clients) {
        let (machine, memory) = (machine.clone(), Rc::clone(memory));
        let (cluster, tally, done) = (cluster.clone(), Rc::clone(&tally), Rc::clone(&counts[number]));
        let (ranks, begun) = (Rc::clone(&ranks), begun[number * DEPTH as usize..][..DEPTH as usize].to_vec());
        let Setup { seed, mix, rest, .. } = *setup;
        drop(machine.clone().spawn(async move {
            let table = match Table::open(memory, 0).await {
                Ok(table) => Rc::new(table),
                Err(error) => return tally.fail(error.to_string()),
            };
            for (task, begun) in (0..).zip(begun) {
                let draw = random(seed, 10_000 + number as u64 * 1_000 + task);
                let (table, tally, done) = (Rc::clone(&table), Rc::clone(&tally), Rc::clone(&done));
                let task =
                    Task { machine: machine.clone(), cluster: cluster.clone(), table, tally, done, begun };
                let shares = (mix.writes_percent(), rest);
                drop(machine.spawn(task.run(Rc::clone(&ranks), keys, shares, draw)));
            }
        }));
    }
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
    // Those that rest have none under way.
    let under_way = begun.iter().map(|begun| begun.get()).filter(|&begun| begun <= world.now());
    under_way.for_each(|begun| latencies.record((world.now() - begun).as_nanos()));
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
    async fn run(
        self,
        ranks: Rc<Zipfian>,
        keys: u64,
        (writes_percent, rest): (u32, Duration),
        mut draw: Random,
    ) {
        loop {
            if rest > Duration::ZERO {
                // Not all at once.
                let rest = draw.random_range(rest.as_nanos() / 2..=rest.as_nanos() * 3 / 2);
                let rest = Duration::from_nanos(rest);
                self.begun.set(self.machine.now() + rest);
                self.machine.sleep(rest).await;
            }
            // The hot keys' shares are the paper's; keys that are not loaded count as others that are as cold.
            let key = key_of(ranks.draw(&mut draw) % keys);
            let writes = draw.random_range(0..100) < writes_percent;
            let begun = self.machine.now();
            self.begun.set(begun);
            let ready = self.cluster.work(begun, self.machine.id(), if writes { UPDATE } else { LOOKUP });
            self.machine.sleep(ready - begun).await;
            let ended = match writes {
                true => self.update(key).await,
                false => self.search(key).await,
            };
            if let Err(why) = ended {
                return self.tally.fail(why);
            }
            self.done.set(self.done.get() + 1);
            if self.tally.measures.get() {
                self.tally.latencies.borrow_mut().record((self.machine.now() - begun).as_nanos());
            }
        }
    }

    async fn update(&self, key: u64) -> Result<(), String> {
        match self.table.update(key, &value_of(key)).await.result {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("key {key} is gone")),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn search(&self, key: u64) -> Result<(), String> {
        match self.table.search(key).await.result {
            Ok(Some(found)) if found[..] == value_of(key) => Ok(()),
            Ok(found) => Err(format!("key {key} has {found:?}")),
            Err(error) => Err(error.to_string()),
        }
    }
}
