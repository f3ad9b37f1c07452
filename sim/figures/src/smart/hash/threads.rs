//! Threads of one client over a hash table: as many operations as they can.

use std::rc::Rc;

use fatbtree_race::Table;
use fatbtree_remote_memory::{Attempts, Contention, RemoteConfig};
use fatbtree_verbs::time::Duration;
use fatbtree_workload::ycsb::Zipfian;
use rand::RngExt as _;

use super::image::{Image, SERVERS};
use crate::Mix;
use crate::bench::{key_of, value_of};
use crate::card::{Calibration, Cluster, Resources};
use crate::meter::{Done, Measured, Meter};
use crate::rig::{CONNECTING, Rig, machines};
use fatbtree_sim::world::{Machine, Random, SimDevice, random};

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

/// One of the operations of a thread that are under way.
struct Task {
    machine: Machine,
    cards: Cluster,
    table: Rc<Table<SimDevice>>,
    meter: Rc<Meter>,
    slot: usize,
    ranks: Rc<Zipfian>,
    /// Keys of the table.
    keys: u64,
    writes_percent: u32,
    rest: Duration,
}

/// Runs a measurement. Every value that is read is checked. Returns the attempts at slots since the threads began, too.
///
/// # Errors
/// A wrong answer, or an operation that failed.
pub(super) fn run(setup: &Setup, table: &Image, ranks: &Zipfian) -> Result<(Measured, Attempts), String> {
    let mut rig = Rig::new(setup.seed, setup.calibration, 1);
    rig.servers = machines(&rig.world, SERVERS);
    let servers = table.serve(&rig.servers)?;
    let mut memories = Vec::new();
    for number in 0..setup.clients * setup.threads {
        let config = RemoteConfig { contention: setup.contention, ..RemoteConfig::default() };
        let seed = setup.seed ^ u64::from(number) << 32;
        memories.push(rig.begin(format!("thread {number}"), &servers, config, seed)?);
    }
    for of_one in rig.clients.chunks(setup.threads as usize) {
        rig.cards.threads(of_one.iter().map(Machine::id), setup.resources);
    }
    rig.world.run_for(CONNECTING);
    let (ranks, keys) = (Rc::new(ranks.clone()), table.keys());
    for (number, (machine, memory)) in rig.clients.iter().zip(&memories).enumerate() {
        let (machine, memory, ranks) = (machine.clone(), Rc::clone(memory), Rc::clone(&ranks));
        let (cards, meter) = (rig.cards.clone(), Rc::clone(&rig.meter));
        let Setup { seed, mix, rest, .. } = *setup;
        drop(machine.clone().spawn(async move {
            let table = match Table::open(memory, 0).await {
                Ok(table) => Rc::new(table),
                Err(error) => return meter.fail(error.to_string()),
            };
            for task in 0..u64::from(DEPTH) {
                let mut draw = random(seed, 10_000 + number as u64 * 1_000 + task);
                let slot = meter.slot(number, machine.now());
                let task = Task {
                    machine: machine.clone(),
                    cards: cards.clone(),
                    table: Rc::clone(&table),
                    meter: Rc::clone(&meter),
                    slot,
                    ranks: Rc::clone(&ranks),
                    keys,
                    writes_percent: mix.writes_percent(),
                    rest,
                };
                let next = async move || task.next(&mut draw).await;
                drop(machine.spawn(Rc::clone(&meter).keep_busy(slot, machine.clone(), next)));
            }
        }));
    }
    rig.world.run_for(setup.warm_up);
    let measured = rig.measure(setup.window)?;
    let mut attempts = Attempts::default();
    memories.iter().for_each(|memory| attempts.merge(&memory.attempts()));
    Ok((measured, attempts))
}

impl Task {
    /// Does the next operation.
    async fn next(&self, draw: &mut Random) -> Result<Done, String> {
        let rest = self.rest.as_nanos();
        if rest > 0 {
            // Not all at once.
            let rest = Duration::from_nanos(draw.random_range(rest / 2..=rest * 3 / 2));
            self.meter.begin(self.slot, self.machine.now() + rest);
            self.machine.sleep(rest).await;
        }
        // The hot keys' shares are the paper's; keys that are not loaded count as others that are as cold.
        let key = key_of(self.ranks.draw(draw) % self.keys);
        let writes = draw.random_range(0..100) < self.writes_percent;
        let begun = self.machine.now();
        self.meter.begin(self.slot, begun);
        let ready = self.cards.work(begun, self.machine.id(), if writes { UPDATE } else { LOOKUP });
        self.machine.sleep(ready - begun).await;
        match writes {
            true => self.update(key).await.map(|()| Done::Write(0)),
            false => self.search(key).await.map(|()| Done::Read(0)),
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
