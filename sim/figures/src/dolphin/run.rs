//! Clients of an index: as many operations as they can.

use std::rc::Rc;

use fatbtree_remote_memory::{KeyRange, RemoteConfig};
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use super::load::{self, Image, Opened};
use super::{CLIENTS, SERVERS, THREADS};
use crate::Size;
use crate::bench::{Ranks, Workload, value_of};
use crate::card::Calibration;
use crate::column::CACHE_BYTES;
use crate::meter::Done;
use crate::rig::{Client, Links, Rig, machines};
use crate::table::Row;
use fatbtree_sim::world::{Machine, Random, World};

/// Queue pairs of a client to a server.
const LANES: u8 = 18;

/// A measurement.
pub(super) struct Setup {
    pub(super) name: String,
    pub(super) workload: Workload,
    /// Bytes of a client's cache; `None`: all it wants.
    pub(super) cache: Option<u64>,
    /// All nodes are in the cache at first. A cache with a limit begins empty.
    pub(super) warm: bool,
    /// Low bits of a key that index reads leave out, where switches lead.
    pub(super) led: Option<u8>,
}

/// A thread of a client.
struct Thread {
    machine: Machine,
    index: Rc<Opened>,
    ranks: Rc<Ranks>,
    /// Keys of scans beside insertions: what was loaded.
    loaded: Ranks,
    workload: Workload,
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
    let ranks = Rc::new(setup.workload.ranks(size.keys));
    let mut opened = Vec::new();
    for (number, (machine, memory)) in rig.clients.iter().zip(&memories).enumerate() {
        let index = open(&rig.world, setup, image, machine, memory)?;
        opened.push(Rc::clone(&index));
        rig.meter.occupy((number, machine), THREADS, (size.seed, 1_000), |_, mut draw| {
            let (index, ranks, workload) = (Rc::clone(&index), Rc::clone(&ranks), setup.workload.clone());
            let loaded = Ranks::Uniform(size.keys);
            let thread = Thread { machine: machine.clone(), index, ranks, loaded, workload };
            async move || thread.next(&mut draw).await
        });
    }
    rig.world.run_for(Duration::from_micros(size.warm_up_us));
    let measured = rig.measure(Duration::from_micros(size.window_us), []);
    let measured = measured.map_err(|why| format!("{}: {why}", setup.name))?;
    let cache_bytes = opened.iter().map(|index| index.cache_bytes()).max().unwrap_or_default();
    Ok(measured.of_operations(&setup.name).with([(CACHE_BYTES, cache_bytes as f64)]))
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
    async fn next(&self, random: &mut Random) -> Result<Done, String> {
        let workload = &self.workload;
        let writes = random.random_range(0..100) < workload.mix.writes_percent();
        let rank = match (writes, workload.inserts) {
            (false, true) => 2 * self.loaded.draw(random),
            _ => self.ranks.draw(random),
        };
        let drawn = (workload.order.key(rank), writes);
        let (key, writes) = workload.replay.as_ref().map_or(drawn, |replay| replay.next());
        self.machine.sleep(Calibration::CX5_100_IB.operation()).await;
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
        if self.workload.scans > 0 {
            let found = self.index.of(key).scan(KeyRange::of(key..), self.workload.scans as usize).await;
            let pairs = found.result.map_err(|error| error.to_string())?;
            let bad = pairs.iter().find(|(key, value)| value[..] != value_of(*key));
            return bad.map_or(Ok(found.round_trips), |(key, _)| wrong(*key));
        }
        let found = self.index.of(key).get(key).await;
        match found.result.map_err(|error| error.to_string())? {
            Some(value) if value[..] == value_of(key) => Ok(found.round_trips),
            Some(_) => wrong(key),
            None if self.workload.replay.is_some() => Ok(found.round_trips),
            None => Err(format!("key {key} was loaded, and is not found")),
        }
    }
}
