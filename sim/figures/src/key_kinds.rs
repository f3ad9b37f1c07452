//! Kinds of keys: round trips of lookups, layers that they pass, and memory of servers. All of it is counted; nothing is modelled.
//!
//! ```text
//!   KeyShape ──► keys with values of 16 bytes ──► trees of 8 servers ──┬──► sampled ──► plan of Tofino 1
//!                                                                      └──► lookups: led by that plan, with nothing cached;
//!                                                                           with a cache of as many bytes; from the root
//! ```
//!
//! Values are longer than an entry has room for, so numbers have records, as nearly all keys of bytes have. Switches know no hot keys.

use std::sync::Arc;

use fatbtree_blink::plain::PlainClient;
use fatbtree_blink::{GlobalAddress, IndexCache, Keys, Lookup, Start, TreeConfig, ValueLayout, value};
use fatbtree_blink_host::{
    BytePairs, Cluster, LoadOptions, load_cluster, load_cluster_bytes, seeded, sort_keys,
};
use fatbtree_controller::{Budget, Frequencies, Plan, Target, Tree};
use fatbtree_sim::world::random;
use fatbtree_topology::{Cores, Network as Topology};
use fatbtree_workload::byte_keys::{ByteKeys, KeyShape, value_number};
use fatbtree_workload::stride;

use super::bench::{Ranks, SERVERS, key_of};
use super::column::{
    CACHED_TRIPS, CODE_BYTES, KEY_BYTES, KEYS, LAYERS_MEAN, LAYERS_MOST, LED_TRIPS, NAME, ROOT_TRIPS,
    SERVER_EACH, SWITCH_BYTES,
};
use super::reads::{self, SAMPLES};
use super::table::Row;
use super::{Size, Skew};

/// Lookups that are measured in each way.
const LOOKUPS: u64 = 50_000;
/// Bytes of a value.
const VALUE_BYTES: u32 = 16;
/// Streams of ranks: what the planner learns from, what warms a cache, what is measured.
const LEARNED: u64 = 7;
const WARM: u64 = 8;
const MEASURED: u64 = 9;

/// The keys of a kind, by their number.
enum Kind {
    /// Numbers of 64 bits, scrambled.
    Numbers,
    Bytes(ByteKeys),
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Self::Numbers => "numbers of 64 bits",
            Self::Bytes(keys) => keys.shape().word(),
        }
    }

    /// All trees, with so many keys.
    fn load(&self, size: &Size) -> Result<(Cluster, u64), String> {
        let config = TreeConfig::new(16, 1024, ValueLayout::SHORT).map_err(|error| error.to_string())?;
        let options = LoadOptions::new(config, 0);
        let loaded = match self {
            Self::Numbers => {
                let mut keys: Vec<u64> = (0..size.keys).map(key_of).collect();
                sort_keys(&mut keys).map_err(|error| error.to_string())?;
                let loaded = load_cluster(&options, SERVERS, &keys, &mut seeded(size.seed, VALUE_BYTES));
                loaded.map(|cluster| (cluster, 8 * size.keys))
            }
            Self::Bytes(keys) => {
                let config = config.with_keys(Keys::Bytes).map_err(|error| error.to_string())?;
                let (mut pairs, mut key, mut bytes) = (BytePairs::default(), Vec::new(), 0);
                let mut made = [0; VALUE_BYTES as usize];
                for number in 0..size.keys {
                    keys.write(number, &mut key);
                    value::fill(value_number(&key), size.seed, &mut made);
                    pairs.push(&key, &made).map_err(|error| error.to_string())?;
                    bytes += key.len() as u64;
                }
                let options = LoadOptions { config, ..options };
                load_cluster_bytes(&options, SERVERS, &pairs.sorted()).map(|cluster| (cluster, bytes))
            }
        };
        loaded.map_err(|error| format!("{}: {error}", self.name()))
    }

    /// The key of a number as the first layer of a tree has it.
    fn word(&self, tree: &TreeConfig, number: u64) -> u64 {
        match self {
            Self::Numbers => key_of(number),
            Self::Bytes(keys) => tree.code().word(&keys.key(number)),
        }
    }

    /// Looks up the key of a number, and checks what is found.
    fn look_up(&self, client: &PlainClient, number: u64, start: Start, seed: u64) -> Result<Lookup, String> {
        let pool = client.pool();
        let (found, of) = match self {
            Self::Numbers => (client.lookup(key_of(number), start), key_of(number)),
            Self::Bytes(keys) => {
                let key = keys.key(number);
                (pool.reactor().block_on(pool.lookup_bytes(&key, start)), value_number(&key))
            }
        };
        match &found.result {
            Ok(Some(bytes)) if bytes.len() == VALUE_BYTES as usize && value::check(of, seed, bytes) => {
                Ok(found)
            }
            other => Err(format!("{}: key number {number}: {other:?}", self.name())),
        }
    }
}

/// Numbers of keys that are asked for: Zipf 0.99, the most frequent ones all over the keys.
struct Asked {
    ranks: Ranks,
    keys: u64,
}

impl Asked {
    fn stream(&self, seed: u64, stream: u64) -> impl Iterator<Item = u64> + '_ {
        let mut draw = random(seed, stream);
        let step = stride(self.keys, self.keys / 2 + 1);
        std::iter::repeat_with(move || {
            let rank = u128::from(self.ranks.draw(&mut draw));
            (rank * u128::from(step) % u128::from(self.keys)) as u64
        })
    }
}

/// Cost of lookups.
#[derive(Default)]
struct Cost {
    trips: u64,
    layers: u64,
    most_layers: u32,
}

/// Measures each kind of keys.
///
/// # Errors
/// A wrong answer, or a load or plan that cannot be made.
pub(super) fn key_kinds(size: &Size) -> Result<Vec<Row>, String> {
    let shapes = KeyShape::ALL.into_iter().map(|shape| Kind::Bytes(ByteKeys::new(shape, size.seed)));
    [Kind::Numbers].into_iter().chain(shapes).map(|kind| measure(&kind, size)).collect()
}

fn measure(kind: &Kind, size: &Size) -> Result<Row, String> {
    let (cluster, key_bytes) = kind.load(size)?;
    let tree = cluster.trees[0].config;
    let asked = Asked { ranks: Ranks::new(Skew::Skewed, size.keys), keys: size.keys };
    let plan = plan_of(kind, &cluster, &tree, asked.stream(size.seed, LEARNED))?;
    let mut client = PlainClient::new(&cluster.memory(), &tree, &cluster.roots);
    let switch_bytes = plan.entry_bytes() as u64;
    client.set_landing(move |key, target| GlobalAddress(plan.read_at(key, false, target.offset_in_leaf())));
    let run = |start, stream| {
        let mut cost = Cost::default();
        for number in asked.stream(size.seed, stream).take(LOOKUPS as usize) {
            let trips = kind.look_up(&client, number, start, size.seed)?.trips;
            cost.trips += u64::from(trips.round_trips);
            cost.layers += u64::from(trips.layers);
            cost.most_layers = cost.most_layers.max(trips.layers);
        }
        Ok::<_, String>(cost)
    };
    let led = run(Start::IndexRead, MEASURED)?;
    let root = run(Start::Root, MEASURED)?;
    client.pool().set_cache(Some(Arc::new(IndexCache::new(switch_bytes))));
    run(Start::Cached, WARM)?;
    let cached = run(Start::Cached, MEASURED)?;
    let used: u64 = cluster.trees.iter().map(|tree| tree.spare.start).sum();
    let each = |sum: u64| sum as f64 / LOOKUPS as f64;
    Ok(Row::default().saying(NAME, kind.name()).with([
        (KEYS, size.keys as f64),
        (KEY_BYTES, key_bytes as f64 / size.keys as f64),
        (CODE_BYTES, tree.code().description().len() as f64),
        (LED_TRIPS, each(led.trips)),
        (CACHED_TRIPS, each(cached.trips)),
        (ROOT_TRIPS, each(root.trips)),
        (LAYERS_MEAN, each(led.layers)),
        (LAYERS_MOST, f64::from(led.most_layers)),
        (SWITCH_BYTES, switch_bytes as f64),
        (SERVER_EACH, used as f64 / size.keys as f64),
    ]))
}

/// A plan of Tofino 1's budget for these trees in a FatTree.
fn plan_of(
    kind: &Kind,
    cluster: &Cluster,
    tree: &TreeConfig,
    asked: impl Iterator<Item = u64>,
) -> Result<Plan, String> {
    let tops = cluster.tops().map_err(|error| error.to_string())?;
    let top = Tree::new(&tops).map_err(|error| error.to_string())?;
    let sampled: Vec<u64> = asked.take(SAMPLES).map(|number| kind.word(tree, number)).collect();
    let frequencies = Frequencies::from_keys(&top, &sampled);
    let network = Topology::fat_tree(4, Cores::All).map_err(|error| error.to_string())?;
    reads::plan(&network, SERVERS, &top, &frequencies, &Budget::compiled(Target::Tofino1))
}
