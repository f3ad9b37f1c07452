//! All structures side by side, on one modelled cluster and with the same keys, which no paper has.
//!
//! ```text
//!   SpreadKind ──► empty parts ──► loaded by upserts ──► 8 clients × depth operations, which know all keys ──► row
//!   trees, with plain leaves and with leaves of buckets: from the root; with all inner nodes in the clients' caches; led by switches
//! ```
//!
//! A structure that lies over all memory servers has its row by its line of the registry alone.

use std::rc::Rc;

use fatbtree_blink::{LeafKind, Start, TreeConfig, ValueLayout};
use fatbtree_memserver::{Loaded, Part, PartOptions, Tenant as _, found_again, make};
use fatbtree_registry::{Kind, SpreadKind, WORDS, with_spread};
use fatbtree_remote_memory::{Answer, Change, RemoteConfig, Spread, Structure as _};
use fatbtree_sim::world::{Machine, Random, SimDevice};
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use super::bench::{CLIENTS, Cache, Ranks, SERVERS, key_of, load, run, value_of};
use super::column::{CACHE_BYTES, OF_OPERATIONS};
use super::meter::Done;
use super::reads::{PATH, Planned, calibration, plan_for, setup};
use super::rig::{Client, Loading, Rig, for_each, machines, serve};
use super::table::{Row, Table};
use super::{Mix, Size, Skew};

/// Most keys: transactional tables of a process hold 150,000.
const MOST_KEYS: u64 = 100_000;
/// Memory of a server beside what its part begins with. It costs nothing until it is used.
const SPARE: u64 = 1 << 30;
/// Bytes of a chunk.
const CHUNK: u64 = 256 << 10;
/// Bytes of what a client remembers: room for all that it wants to.
const REMEMBERED: u64 = 64 << 20;
/// Longest time for loading, and for reading each key once.
const LOADING: Duration = Duration::from_secs(600);
/// Operations at once while a structure is loaded, and while its clients read each key once.
const AT_ONCE: u32 = 6;

/// Trees with both kinds of leaves, three times each, and each structure that lies over all memory servers.
///
/// # Errors
/// A wrong answer, an operation that failed, or a plan that cannot be made.
pub(super) fn side_by_side(size: &Size, skew: Skew, mix: Mix) -> Result<Vec<Row>, String> {
    let size = &Size { keys: size.keys.min(MOST_KEYS), ..*size };
    let mut rows = trees(size, skew, mix)?;
    let keys: Rc<[u64]> = (0..size.keys).map(key_of).collect();
    for word in WORDS {
        rows.extend(with_spread!(word, K => row::<K>(size, skew, mix, &keys)).transpose()?);
    }
    Ok(rows)
}

/// Measures a structure that lies over all memory servers, whether the registry of the program has it or not, with values of 8 bytes. It must
/// take each of the keys, which are written by upserts. Hot keys are the first ones.
///
/// # Errors
/// A wrong answer, or an operation that failed.
pub fn measured<K: SpreadKind>(size: &Size, skew: Skew, mix: Mix, keys: &[u64]) -> Result<Table, String> {
    Ok(Table::new(&OF_OPERATIONS, vec![row::<K>(size, skew, mix, &keys.into())?]))
}

/// Trees as memory servers make them.
fn trees(size: &Size, skew: Skew, mix: Mix) -> Result<Vec<Row>, String> {
    let plain = TreeConfig::new(16, 1024, ValueLayout::SHORT).map_err(|error| error.to_string())?;
    let buckets = plain.with_leaves(LeafKind::Buckets).map_err(|error| error.to_string())?;
    let mut rows = Vec::new();
    for (tree, leaves) in [(plain, ""), (buckets, ", leaves of buckets")] {
        rows.extend(trees_with(tree, leaves, size, skew, mix)?);
    }
    Ok(rows)
}

fn trees_with(tree: TreeConfig, leaves: &str, size: &Size, skew: Skew, mix: Mix) -> Result<Vec<Row>, String> {
    let of = |name: &str, start, cache| setup(format!("{name}{leaves}"), tree, (skew, mix), start, cache);
    let mut rows = Vec::new();
    for (name, cache) in [("tree, from the root", Cache::None), ("tree, inner nodes cached", Cache::Full)] {
        rows.push(run(&of(name, Start::Cached, cache), size, &load(tree, size, true)?, |_, _| {})?);
    }
    let cluster = load(tree, size, true)?;
    let plan = plan_for(&cluster, size, skew)?;
    let led = of("tree, led by switches", Start::IndexRead, Cache::None);
    rows.push(run(&led, size, &cluster, |world, links| world.set_switches(Planned { plan, links }))?);
    Ok(rows)
}

/// Measures a structure that lies over all memory servers.
fn row<K: SpreadKind>(size: &Size, skew: Skew, mix: Mix, keys: &Rc<[u64]>) -> Result<Row, String> {
    let wrong = |why| format!("{}: {why}", K::NAME);
    Image::<K>::load(keys).and_then(|image| image.measure(size, skew, mix, keys)).map_err(wrong)
}

/// Memory of a structure's servers, which outlives them.
struct Image<K: SpreadKind> {
    parts: Vec<Loaded<K::Part>>,
}

impl<K: SpreadKind> Image<K> {
    /// Loads keys, with values of 8 bytes, by upserts.
    fn load(keys: &Rc<[u64]>) -> Result<Self, String> {
        let shape = K::shape((1 << SERVERS) - 1);
        let part = |server| {
            let options =
                PartOptions { spare_bytes: SPARE, chunk_bytes: CHUNK, ..PartOptions::new(server, shape) };
            let part = make::<K::Part>(&options).map_err(|error| error.to_string())?;
            part.with_chunk_classes(CHUNK).map_err(|error| error.to_string())
        };
        let image = Self { parts: (0..SERVERS).map(part).collect::<Result<_, String>>()? };
        let loading = Loading::begin(image.contents()?, CHUNK)?;
        let (machine, memory) = (loading.machine.clone(), Rc::clone(&loading.memory));
        let (home, keys) = (image.home(), Rc::clone(keys));
        let load = async move {
            let structure = Rc::new(open::<K>(memory, home).await?);
            for_each(&machine, &keys, AT_ONCE, async move |key| upsert::<K>(&structure, key).await.map(drop))
                .await
        };
        loading.run(load, LOADING)?;
        Ok(image)
    }

    /// The parts as servers find them that begin with this memory.
    fn contents(&self) -> Result<Vec<Loaded<K::Part>>, String> {
        let table = |part: &Loaded<K::Part>| part.chunk_classes.clone().expect("each part was given one");
        let found = |part| found_again(part, table(part), CHUNK);
        self.parts.iter().map(found).collect::<Result<_, _>>().map_err(|error| error.to_string())
    }

    /// Server on which the structure begins.
    fn home(&self) -> u16 {
        K::Part::begin(&self.parts[0].tenant.description()).server()
    }

    /// Has clients do as many operations as they can. Each has read every key once.
    fn measure(&self, size: &Size, skew: Skew, mix: Mix, keys: &Rc<[u64]>) -> Result<Row, String> {
        let mut rig = Rig::new(size.seed, calibration(), PATH);
        rig.servers = machines(&rig.world, SERVERS);
        let servers = serve(&rig.servers, self.contents()?.into_iter().map(Ok), CHUNK)?;
        let config = RemoteConfig { lanes: size.depth as u8, ..RemoteConfig::default() };
        let seed = |number: u16| size.seed ^ u64::from(number) << 32;
        let begin = |number| rig.begin(format!("client {number}"), &servers, config, seed(number));
        let memories = (0..CLIENTS).map(begin).collect::<Result<Vec<_>, _>>()?;
        rig.connect(memories.iter().map(|memory| &**memory))?;
        let ranks = Rc::new(Ranks::new(skew, keys.len() as u64));
        let mut opened = Vec::new();
        for (machine, memory) in rig.clients.iter().zip(memories) {
            let (of, home, keys) = (machine.clone(), self.home(), Rc::clone(keys));
            opened.push(machine.spawn(async move {
                let structure = Rc::new(open::<K>(memory, home).await?);
                let knowing = Rc::clone(&structure);
                for_each(&of, &keys, AT_ONCE, async move |key| get::<K>(&knowing, key).await.map(drop))
                    .await?;
                Ok::<_, String>(structure)
            }));
        }
        let ended = rig.world.run_until(|| opened.iter().all(|opening| opening.has_ended()), LOADING);
        ended.map_err(|_| "reading each key takes too long".to_owned())?;
        let mut structures = Vec::new();
        for (number, (opening, machine)) in opened.into_iter().zip(&rig.clients).enumerate() {
            let structure = opening.take().ok_or("a client died")??;
            rig.meter.occupy((number, machine), size.depth, (size.seed, 1_000), |_, mut draw| {
                let (machine, structure) = (machine.clone(), Rc::clone(&structure));
                let (ranks, keys) = (Rc::clone(&ranks), Rc::clone(keys));
                async move || {
                    let key = keys[ranks.draw(&mut draw) as usize];
                    next::<K>(&machine, &structure, key, mix, &mut draw).await
                }
            });
            structures.push(structure);
        }
        rig.world.run_for(Duration::from_micros(size.warm_up_us));
        let measured = rig.measure(Duration::from_micros(size.window_us), [])?;
        let cache_bytes = structures.iter().map(|structure| structure.cache_use().bytes).max();
        Ok(measured.of_operations(K::NAME).with([(CACHE_BYTES, cache_bytes.unwrap_or_default() as f64)]))
    }
}

async fn open<K: SpreadKind>(memory: Client, home: u16) -> Result<K::Structure<SimDevice>, String> {
    K::Structure::open(memory, home, REMEMBERED).await.map_err(|error| error.to_string())
}

/// Does the next operation.
async fn next<K: SpreadKind>(
    machine: &Machine,
    structure: &K::Structure<SimDevice>,
    key: u64,
    mix: Mix,
    random: &mut Random,
) -> Result<Done, String> {
    let writes = random.random_range(0..100) < mix.writes_percent();
    machine.sleep(calibration().operation()).await;
    match writes {
        true => upsert::<K>(structure, key).await.map(Done::Write),
        false => get::<K>(structure, key).await.map(Done::Read),
    }
}

/// Writes the only value of a key. Returns the round trips.
async fn upsert<K: SpreadKind>(structure: &K::Structure<SimDevice>, key: u64) -> Result<u32, String> {
    let Answer { result, round_trips } = structure.change(key, Change::Upsert(&value_of(key))).await;
    match result.map_err(|error| error.to_string())? {
        true => Ok(round_trips),
        false => Err(format!("key {key} is not taken")),
    }
}

/// Reads a key, and checks its value. Returns the round trips.
async fn get<K: SpreadKind>(structure: &K::Structure<SimDevice>, key: u64) -> Result<u32, String> {
    let Answer { result, round_trips } = structure.get(key).await;
    match result.map_err(|error| error.to_string())? {
        Some(value) if value.as_ref() == value_of(key) => Ok(round_trips),
        Some(_) => Err(format!("key {key} has a value that no client wrote")),
        None => Err(format!("key {key} was loaded, and is not found")),
    }
}
