//! Clients of an index: as many operations as they can.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use fatbtree_remote_memory::{KeyRange, RemoteConfig};
use fatbtree_verbs::QueuePair;
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_workload::measure::LatencyHistogram;
use rand::RngExt as _;

use super::load::{self, Image, Opened};
use super::{CLIENTS, SERVERS, THREADS};
use crate::bench::{CONNECTING, KeyOrder, Ranks, value_of, world};
use crate::card::Calibration;
use crate::replay::Replay;
use crate::structure_servers::machines;
use crate::{Mix, Row, Size, Skew};
use fatbtree_sim::world::{Machine, MachineOptions, Random, World, random};

/// Queue pairs of a client to a server.
const LANES: u8 = 18;

/// A measurement.
pub(super) struct Setup {
    pub(super) name: String,
    pub(super) mix: Mix,
    pub(super) skew: Skew,
    /// Bytes of a client's cache; `None`: all it wants.
    pub(super) cache: Option<u64>,
    pub(super) order: KeyOrder,
    /// Keys of a scan; 0: lookups.
    pub(super) scans: u32,
    pub(super) inserts: bool,
    /// All nodes are in the cache at first. A cache with a limit begins empty.
    pub(super) warm: bool,
    /// Low bits of a key that index reads leave out, where switches lead.
    pub(super) led: Option<u8>,
    /// Operations of a trace, instead of drawn ones.
    pub(super) replay: Option<Rc<Replay>>,
}

/// What the tasks of all clients share.
#[derive(Default)]
struct Tally {
    measures: Cell<bool>,
    latencies: RefCell<LatencyHistogram>,
    writes: Cell<u64>,
    write_trips: Cell<u64>,
    reads: Cell<u64>,
    read_trips: Cell<u64>,
    wrong: RefCell<Option<String>>,
}

impl Tally {
    fn fail(&self, why: String) {
        self.wrong.borrow_mut().get_or_insert(why);
    }
}

fn add(cell: &Cell<u64>, more: u64) {
    cell.set(cell.get() + more);
}

/// A thread of a client.
struct Thread {
    machine: Machine,
    index: Rc<Opened>,
    tally: Rc<Tally>,
    begun: Rc<Cell<Instant>>,
    own: Duration,
    order: KeyOrder,
    scans: u32,
    inserts: bool,
    replay: Option<Rc<Replay>>,
}

/// Runs a measurement. Every value that is read is checked. `switches` is told the server and the rkey of each queue pair.
pub(super) fn run(
    setup: &Setup,
    size: &Size,
    image: &Image,
    switches: impl FnOnce(&World, BTreeMap<QueuePair, (u16, u32)>),
) -> Result<Row, String> {
    let (world, _) = world(size.seed, Calibration::CX5_100_IB, 1);
    let servers = image.serve(&machines(&world, SERVERS))?;
    let tally = Rc::new(Tally::default());
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let machine = world.machine(MachineOptions::named(format!("client {number}")));
        let config = RemoteConfig { lanes: LANES, ..RemoteConfig::default() };
        let (told, seed) = (Rc::clone(&tally), size.seed ^ u64::from(number) << 32);
        let memory = load::begin(&machine, &servers, config, seed, move |why| told.fail(why))?;
        clients.push((machine, memory));
    }
    world.run_for(CONNECTING);
    let mut rkeys = BTreeMap::new();
    for (_, memory) in &clients {
        for id in memory.connections() {
            let (queue_pair, rkey) = memory.link(id).map_err(|error| format!("{id} is not up: {error:?}"))?;
            rkeys.insert(queue_pair, (id.server, rkey));
        }
    }
    switches(&world, rkeys);
    let ranks = match setup.inserts {
        true => Ranks::Fresh { next: Cell::new(0), keys: size.keys },
        false => Ranks::new(setup.skew, size.keys),
    };
    // Scans of what was loaded, beside insertions.
    let loaded = Rc::new(Ranks::Uniform(size.keys));
    let ranks = Rc::new(ranks);
    let (mut begun, mut opened) = (Vec::new(), Vec::new());
    for (number, (machine, memory)) in (0..).zip(&clients) {
        let opening = {
            let (memory, parts, warm, led) = (Rc::clone(memory), image.parts.clone(), setup.warm, setup.led);
            let limit = setup.cache.unwrap_or(1 << 40);
            machine.spawn(async move {
                let index = parts.open(&memory, limit).await?;
                if warm {
                    index.warm().await?;
                }
                index.indexes.iter().for_each(|index| index.set_led(led));
                Ok::<_, String>(Rc::new(index))
            })
        };
        let ended = world.run_until(|| opening.has_ended(), Duration::from_secs(60));
        ended.map_err(|_| "opening takes too long".to_owned())?;
        let index = opening.take().ok_or("a client died")??;
        opened.push(Rc::clone(&index));
        for thread in 0..THREADS {
            let draw = random(size.seed, 1_000 + number * 1_000 + u64::from(thread));
            let own_begun = Rc::new(Cell::new(world.now()));
            begun.push(Rc::clone(&own_begun));
            let thread = Thread {
                machine: machine.clone(),
                index: Rc::clone(&index),
                tally: Rc::clone(&tally),
                begun: own_begun,
                own: Calibration::CX5_100_IB.operation(),
                order: setup.order,
                scans: setup.scans,
                inserts: setup.inserts,
                replay: setup.replay.clone(),
            };
            let ranks = (Rc::clone(&ranks), Rc::clone(&loaded));
            drop(machine.spawn(thread.run(ranks, setup.mix.writes_percent(), draw)));
        }
    }
    world.run_for(Duration::from_micros(size.warm_up_us));
    tally.measures.set(true);
    world.run_for(Duration::from_micros(size.window_us));
    if let Some(why) = tally.wrong.borrow_mut().take() {
        return Err(format!("{}: {why}", setup.name));
    }
    let mut latencies = tally.latencies.borrow_mut();
    begun.iter().for_each(|begun| latencies.record((world.now() - begun.get()).as_nanos()));
    let per = |sum: u64, of: u64| if of == 0 { 0.0 } else { sum as f64 / of as f64 };
    let us = |quantile| latencies.quantile_ns(quantile) as f64 / 1_000.0;
    let operations = tally.writes.get() + tally.reads.get();
    Ok(Row {
        name: setup.name.clone(),
        operations,
        mops: operations as f64 / size.window_us as f64,
        p50_us: us(0.5),
        p90_us: us(0.9),
        p99_us: us(0.99),
        write_round_trips: per(tally.write_trips.get(), tally.writes.get()),
        read_round_trips: per(tally.read_trips.get(), tally.reads.get()),
        cache_bytes: opened.iter().map(|index| index.cache_bytes()).max().unwrap_or_default(),
        ..Row::default()
    })
}

impl Thread {
    async fn run(self, (ranks, loaded): (Rc<Ranks>, Rc<Ranks>), writes_percent: u32, mut random: Random) {
        loop {
            let writes = random.random_range(0..100) < writes_percent;
            let rank = match (writes, self.inserts) {
                (false, true) => 2 * loaded.draw(&mut random),
                _ => ranks.draw(&mut random),
            };
            let drawn = (self.order.key(rank), writes);
            let (key, writes) = self.replay.as_ref().map_or(drawn, |replay| replay.next());
            let begun = self.machine.now();
            self.begun.set(begun);
            self.machine.sleep(self.own).await;
            let trips = match self.operate(key, writes).await {
                Ok(trips) => u64::from(trips),
                Err(why) => return self.tally.fail(why),
            };
            let tally = &self.tally;
            if !tally.measures.get() {
                continue;
            }
            tally.latencies.borrow_mut().record((self.machine.now() - begun).as_nanos());
            let (count, sum) =
                if writes { (&tally.writes, &tally.write_trips) } else { (&tally.reads, &tally.read_trips) };
            add(count, 1);
            add(sum, trips);
        }
    }

    /// Returns the round trips.
    async fn operate(&self, key: u64, writes: bool) -> Result<u32, String> {
        let wrong = |key| Err(format!("key {key} has a value that nobody wrote"));
        if writes {
            let done = self.index.of(key).upsert(key, &value_of(key)).await;
            return done.result.map(|_| done.round_trips).map_err(|error| error.to_string());
        }
        if self.scans > 0 {
            let found = self.index.of(key).scan(KeyRange::of(key..), self.scans as usize).await;
            let pairs = found.result.map_err(|error| error.to_string())?;
            let bad = pairs.iter().find(|(key, value)| value[..] != value_of(*key));
            return bad.map_or(Ok(found.round_trips), |(key, _)| wrong(*key));
        }
        let found = self.index.of(key).get(key).await;
        match found.result.map_err(|error| error.to_string())? {
            Some(value) if value[..] == value_of(key) => Ok(found.round_trips),
            Some(_) => wrong(key),
            None if self.replay.is_some() => Ok(found.round_trips),
            None => Err(format!("key {key} was loaded, and is not found")),
        }
    }
}
