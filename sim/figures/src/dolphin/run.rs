//! Clients of an index: as many operations as they can.

use std::cell::Cell;
use std::rc::Rc;

use fatbtree_remote_memory::{KeyRange, RemoteConfig};
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use super::load::{self, Image, Opened};
use super::{CLIENTS, SERVERS, THREADS};
use crate::bench::{KeyOrder, Ranks, value_of};
use crate::card::Calibration;
use crate::meter::Done;
use crate::replay::Replay;
use crate::rig::{Client, Links, Rig, machines};
use crate::{Mix, Row, Size, Skew};
use fatbtree_sim::world::{Machine, Random, World, random};

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

/// A thread of a client.
struct Thread {
    machine: Machine,
    index: Rc<Opened>,
    own: Duration,
    order: KeyOrder,
    scans: u32,
    inserts: bool,
    replay: Option<Rc<Replay>>,
}

/// Runs a measurement. Every value that is read is checked. `switches` is told the queue pairs.
pub(super) fn run(
    setup: &Setup,
    size: &Size,
    image: &Image,
    switches: impl FnOnce(&World, Links),
) -> Result<Row, String> {
    let mut rig = Rig::new(size.seed, Calibration::CX5_100_IB, 1);
    rig.servers = machines(&rig.world, SERVERS);
    let servers = image.serve(&rig.servers)?;
    let mut memories = Vec::new();
    for number in 0..CLIENTS {
        let machine = rig.client(format!("client {number}"));
        let config = RemoteConfig { lanes: LANES, ..RemoteConfig::default() };
        let seed = size.seed ^ u64::from(number) << 32;
        memories.push(load::begin(&machine, &servers, config, seed, &rig.meter)?);
    }
    let links = rig.connect(memories.iter().map(|memory| &**memory))?;
    switches(&rig.world, links);
    let ranks = match setup.inserts {
        true => Ranks::Fresh { next: Cell::new(0), keys: size.keys },
        false => Ranks::new(setup.skew, size.keys),
    };
    // Scans of what was loaded, beside insertions.
    let ranks = Rc::new((ranks, Ranks::Uniform(size.keys)));
    let mut opened = Vec::new();
    for (number, (machine, memory)) in rig.clients.iter().zip(&memories).enumerate() {
        let index = open(&rig.world, setup, image, machine, memory)?;
        opened.push(Rc::clone(&index));
        for thread in 0..THREADS {
            let mut draw = random(size.seed, 1_000 + number as u64 * 1_000 + u64::from(thread));
            let slot = rig.meter.slot(number, rig.world.now());
            let thread = Thread {
                machine: machine.clone(),
                index: Rc::clone(&index),
                own: Calibration::CX5_100_IB.operation(),
                order: setup.order,
                scans: setup.scans,
                inserts: setup.inserts,
                replay: setup.replay.clone(),
            };
            let (ranks, writes_percent) = (Rc::clone(&ranks), setup.mix.writes_percent());
            let next = async move || thread.next(&ranks, writes_percent, &mut draw).await;
            drop(machine.spawn(Rc::clone(&rig.meter).keep_busy(slot, machine.clone(), next)));
        }
    }
    rig.world.run_for(Duration::from_micros(size.warm_up_us));
    let measured = rig.measure(Duration::from_micros(size.window_us));
    let measured = measured.map_err(|why| format!("{}: {why}", setup.name))?;
    let cache_bytes = opened.iter().map(|index| index.cache_bytes()).max().unwrap_or_default();
    Ok(Row { cache_bytes, ..Row::of(&setup.name, &measured) })
}

/// Opens the index on a client's memory.
fn open(
    world: &World,
    setup: &Setup,
    image: &Image,
    machine: &Machine,
    memory: &Client,
) -> Result<Rc<Opened>, String> {
    let (memory, parts, warm, led) = (Rc::clone(memory), image.parts.clone(), setup.warm, setup.led);
    let limit = setup.cache.unwrap_or(1 << 40);
    let opening = machine.spawn(async move {
        let index = parts.open(&memory, limit).await?;
        if warm {
            index.warm().await?;
        }
        index.indexes.iter().for_each(|index| index.set_led(led));
        Ok::<_, String>(Rc::new(index))
    });
    let ended = world.run_until(|| opening.has_ended(), Duration::from_secs(60));
    ended.map_err(|_| "opening takes too long".to_owned())?;
    opening.take().ok_or("a client died")?
}

impl Thread {
    /// Does the next operation.
    async fn next(
        &self,
        (ranks, loaded): &(Ranks, Ranks),
        writes_percent: u32,
        random: &mut Random,
    ) -> Result<Done, String> {
        let writes = random.random_range(0..100) < writes_percent;
        let rank = match (writes, self.inserts) {
            (false, true) => 2 * loaded.draw(random),
            _ => ranks.draw(random),
        };
        let drawn = (self.order.key(rank), writes);
        let (key, writes) = self.replay.as_ref().map_or(drawn, |replay| replay.next());
        self.machine.sleep(self.own).await;
        let trips = self.operate(key, writes).await?;
        Ok(if writes { Done::Write(trips) } else { Done::Read(trips) })
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
