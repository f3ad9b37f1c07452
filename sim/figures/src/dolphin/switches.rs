//! Switches that lead the index, beside switches that lead a B-link tree, with as many bytes of SRAM.
//!
//! ```text
//!                  what switches hold                              an entry of SRAM serves
//!   node sets      16 pivots and addresses, below a fat root       the leaves of a node
//!   hot keys       key ─► leaf                                     a key
//!   blocks         key without its low bits ─► leaf                2^low keys: a leaf, or a part of one
//! ```
//!
//! Blocks are the published prefix → leaf, in the table of hot keys as it is: the client leaves the low bits out of its
//! index read. All ways end at a leaf that the client checks. Each server has an index, or a tree, of a range of
//! keys, because a queue pair leads to one server.

use std::collections::{BTreeMap, HashMap};

use fatbtree_blink::{Start, TreeConfig, ValueLayout};
use fatbtree_blink_host::Cluster;
use fatbtree_controller::{Budget, Frequencies, Pivots, Plan, SramBytes, Target, Tree};
use fatbtree_dolphin::host::Place;
use fatbtree_topology::Network as Topology;
use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{QueuePair, Remote};

use super::load::{Image, Parts};
use super::run::{self, Setup};
use super::top::top;
use super::{CLIENTS, FILL, SERVERS, THREADS};
use crate::bench::{self, Cache, Clients, KeyOrder, Ranks, Workload, load_keys};
use crate::card::Calibration;
use crate::column::{
    CACHE, ENTRIES, GET_TRIPS, LED, MOPS, NAME, P50, READ_TRIPS, ROOM, SRAM_USED, TCAM_ROWS, UPDATE_TRIPS,
    WORKLOAD, WRITE_TRIPS,
};
use crate::reads::{self, SAMPLES};
use crate::table::Row;
use crate::{Mix, Size, Skew};
use fatbtree_sim::world::{IndexRead, Random, Resolved, Switches, random};

/// Bytes of SRAM that switches have for this. With 300,000 keys, the first is what a Tofino 1 has for each of 512 million.
const SRAM: [u64; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];
/// Those with which cold caches are measured.
const COLD: u64 = 64 << 10;
/// Position in a budget of the last node set on the way: edge B.
const LAST_SET: usize = 4;
/// Ranges of the fat root above the node sets.
const RANGES: usize = 100;
/// Virtual time in which a cache is cold, in µs.
const COLD_US: u64 = 200;

/// Keys and how they are chosen.
const WORKLOADS: [(&str, KeyOrder, Skew); 3] = [
    ("dense, Zipf 0.99", KeyOrder::Dense, Skew::Skewed),
    ("scrambled, Zipf 0.99", KeyOrder::Scrambled, Skew::Skewed),
    ("scrambled, uniform", KeyOrder::Scrambled, Skew::Uniform),
];

/// Content of switches.
#[derive(Clone)]
enum Held {
    /// Fat root and node sets.
    Sets(Box<Plan>),
    /// Keys without their low bits, each with the address of a leaf.
    Exact { low: u8, leaves: HashMap<u64, u64> },
}

impl Held {
    /// Where a key's index read ends; `None`: where its connection is registered with.
    fn find(&self, key: u64) -> Option<u64> {
        match self {
            Self::Sets(plan) => Some(plan.resolve(key).address),
            Self::Exact { low, leaves } => leaves.get(&(key >> low << low)).copied(),
        }
    }

    /// Bytes and entries of SRAM, and rows of TCAM.
    fn takes(&self, bytes: &SramBytes) -> (f64, usize, usize) {
        let plan = match self {
            Self::Exact { leaves, .. } => return (bytes.hot_key * leaves.len() as f64, leaves.len(), 0),
            Self::Sets(plan) => plan,
        };
        let (mut sum, mut entries) = (0.0, 0);
        for node in plan.nodes() {
            let children = if node.is_regular() { 0 } else { node.children.len() };
            let own = if node.pivots == Pivots::Whole { bytes.whole_node } else { bytes.node };
            sum += own + bytes.child * children as f64;
            // Pivots in five entries.
            entries += 5 + children;
        }
        (sum, entries, plan.summary().stage_rows.iter().sum())
    }
}

/// Switches of a world.
struct Leading {
    held: Held,
    /// Server and rkey of each queue pair; `None`: the server of the key.
    pairs: BTreeMap<QueuePair, (Option<u16>, u32)>,
    /// First key of each server, and where reads end there of which switches know nothing.
    parts: Vec<(u64, u64)>,
}

impl Switches for Leading {
    fn resolve(&mut self, _now: Instant, read: &IndexRead, _random: &mut Random) -> Resolved {
        let Some(&(server, rkey)) = self.pairs.get(&read.queue_pair) else { return Resolved::Unregistered };
        let of_key = || self.parts.partition_point(|(low, _)| *low <= read.key) - 1;
        let server = server.map_or_else(of_key, usize::from);
        // The connection decides which server is read.
        let found = self.held.find(read.key).filter(|address| address >> 48 == server as u64);
        Resolved::At(Remote { address: found.unwrap_or(self.parts[server].1), rkey })
    }
}

/// An index with its keys, as a workload uses it.
struct Subject {
    of: Of,
    /// The planner's view of it.
    tree: Tree,
    /// First key and root of each server.
    parts: Vec<(u64, u64)>,
    /// Leads each key to its leaf.
    all: Held,
}

enum Of {
    Blink(TreeConfig, Cluster),
    Dolphin(Image),
}

impl Subject {
    fn blink(order: KeyOrder, size: &Size) -> Result<Self, String> {
        let tree = TreeConfig::new(16, 1024, ValueLayout::Inline(8)).map_err(|error| error.to_string())?;
        let cluster = load_keys(SERVERS, tree, FILL, (0..size.keys).map(|rank| order.key(rank)))?;
        let tops = cluster.tops().map_err(|error| error.to_string())?;
        let parts = tops.iter().map(|top| (top.partition.range.low, top.partition.root.raw())).collect();
        let top = Tree::new(&tops).map_err(|error| error.to_string())?;
        Self::new(Of::Blink(tree, cluster), top, parts)
    }

    fn dolphin(order: KeyOrder, size: &Size) -> Result<Self, String> {
        let mut keys: Vec<u64> = (0..size.keys).map(|rank| order.key(rank)).collect();
        keys.sort_unstable();
        keys.dedup();
        let image = Image::load_keys(Parts::by_range(&keys), keys)?;
        let lows = image.parts.iter().map(|(low, shape)| (low, shape.home()));
        let tops: Option<Vec<_>> =
            lows.zip(image.places()).map(|((low, server), places)| top(server, low, &places)).collect();
        let tops = tops.ok_or("an index without a leaf")?;
        let parts = image.parts.iter().map(|(low, shape)| (low, shape.header(1, 0).root.raw())).collect();
        let tree = Tree::new(&tops).map_err(|error| error.to_string())?;
        Self::new(Of::Dolphin(image), tree, parts)
    }

    fn new(of: Of, tree: Tree, parts: Vec<(u64, u64)>) -> Result<Self, String> {
        let plan = plan(&tree, &Frequencies::none(&tree), &Budget::bmv2())?;
        Ok(Self { of, tree, parts, all: Held::Sets(Box::new(plan)) })
    }

    /// Node sets of at most so many bytes, for keys that clients have sampled.
    fn node_sets(&self, sampled: &[u64], room: u64, bytes: &SramBytes) -> Result<Held, String> {
        let frequencies = Frequencies::from_keys(&self.tree, sampled);
        let with = |nodes: usize, more: usize| {
            let full = Budget::compiled(Target::Tofino1);
            let mut each = full.set_nodes.map(|_| nodes);
            each[LAST_SET] += more;
            let children = each.map(|nodes| 16 * nodes);
            let budget = Budget {
                fat_root_ranges: RANGES,
                hot_keys: 0,
                set_nodes: each,
                whole_nodes: each,
                children,
                ..full
            };
            plan(&self.tree, &frequencies, &budget).map(|plan| Held::Sets(Box::new(plan)))
        };
        let most = 1 + room as usize / bytes.node as usize;
        // As many in each of the sets, and what is left in the last one.
        let (each, held) = largest(most, |nodes| with(nodes, 0), room, bytes)?;
        let (more, fuller) = largest(most, |more| with(each, more), room, bytes)?;
        Ok(if more > 0 { fuller } else { held })
    }

    /// The blocks of so many low bits that are asked for most, each with the leaf of most of its sampled keys.
    fn exact(&self, sampled: &[u64], low: u8, room: u64, bytes: &SramBytes) -> Held {
        let mut blocks: BTreeMap<u64, BTreeMap<u64, u64>> = BTreeMap::new();
        for key in sampled {
            if let Some(leaf) = self.all.find(*key) {
                *blocks.entry(key >> low << low).or_default().entry(leaf).or_default() += 1;
            }
        }
        let mut ranked: Vec<(u64, u64, u64)> = blocks
            .into_iter()
            .filter_map(|(block, leaves)| {
                let visits = leaves.values().sum();
                let (leaf, _) = leaves.into_iter().max_by_key(|(leaf, visits)| (*visits, *leaf))?;
                Some((visits, block, leaf))
            })
            .collect();
        ranked.sort_unstable_by_key(|(visits, block, _)| (std::cmp::Reverse(*visits), *block));
        ranked.truncate((room as f64 / bytes.hot_key) as usize);
        let leaves = ranked.into_iter().map(|(_, block, leaf)| (block, leaf)).collect();
        Held::Exact { low, leaves }
    }

    /// Percentage of keys that are led to their leaf.
    fn led_percent(&self, held: &Held, sampled: &[u64]) -> f64 {
        let led = sampled.iter().filter(|key| held.find(**key) == self.all.find(**key)).count();
        100.0 * led as f64 / sampled.len() as f64
    }

    /// Half gets, half updates.
    fn run(
        &self,
        size: &Size,
        name: String,
        workload: Workload,
        cache: &str,
        held: Option<Held>,
    ) -> Result<Row, String> {
        let low = match held {
            Some(Held::Exact { low, .. }) => low,
            _ => 0,
        };
        let parts = self.parts.clone();
        match &self.of {
            Of::Blink(tree, cluster) => {
                let setup = bench::Setup {
                    start: if held.is_some() { Start::CachedOrIndexRead } else { Start::Cached },
                    cache: match cache {
                        "none" => Cache::None,
                        "cold" => Cache::Empty,
                        _ => Cache::Full,
                    },
                    calibration: Calibration::CX5_100_IB,
                    clients: Clients::Few(CLIENTS),
                    ..bench::Setup::new(name, *tree, workload)
                };
                bench::run(&setup, &Size { depth: THREADS, ..*size }, cluster, |world, links| {
                    let Some(held) = held else { return };
                    let pairs = links.into_iter().map(|(pair, (_, rkey))| (pair, (None, rkey))).collect();
                    world.set_switches(Leading { held, pairs, parts });
                })
            }
            Of::Dolphin(image) => {
                let setup = Setup {
                    name,
                    workload,
                    cache: (cache == "none").then_some(0),
                    warm: cache == "warm",
                    led: held.is_some().then_some(low),
                };
                run::run(&setup, size, image, |world, links| {
                    let Some(held) = held else { return };
                    let pairs = links.into_iter().map(|(pair, (server, rkey))| (pair, (Some(server), rkey)));
                    world.set_switches(Leading { held, pairs: pairs.collect(), parts });
                })
            }
        }
    }
}

/// The largest number below `over` with which what is held takes no more bytes than there are, and that.
fn largest(
    mut over: usize,
    with: impl Fn(usize) -> Result<Held, String>,
    room: u64,
    bytes: &SramBytes,
) -> Result<(usize, Held), String> {
    let (mut fits, mut held) = (0, with(0)?);
    while over - fits > 1 {
        let tried_with = usize::midpoint(fits, over);
        let tried = with(tried_with)?;
        if tried.takes(bytes).0 <= room as f64 {
            (fits, held) = (tried_with, tried);
        } else {
            over = tried_with;
        }
    }
    Ok((fits, held))
}

fn plan(tree: &Tree, frequencies: &Frequencies, budget: &Budget) -> Result<Plan, String> {
    let network = Topology::pair(SERVERS).map_err(|error| error.to_string())?;
    reads::plan(&network, SERVERS, tree, frequencies, budget)
}

/// Low bits of a key that tell apart about as many keys as a leaf has.
fn bits_of_a_leaf(image: &Image) -> u8 {
    let width = |place: &Place| place.high - place.low;
    let mut widths: Vec<u64> = image.places().iter().flatten().map(width).collect();
    widths.sort_unstable();
    widths.get(widths.len() / 2).map_or(0, |width| width.checked_ilog2().unwrap_or(0) as u8)
}

/// Round trips of gets and updates with what switches hold in as many bytes, and without switches.
///
/// # Errors
/// A wrong answer, an operation that failed, or a plan that cannot be made.
pub(crate) fn switches(size: &Size) -> Result<Vec<Row>, String> {
    let bytes = SramBytes::of(Target::Tofino1).ok_or("a chip without sizes")?;
    let cold = Size { warm_up_us: 0, window_us: COLD_US, ..*size };
    let mut rows = Vec::new();
    for (keys, order, skew) in WORKLOADS {
        let (ranks, mut draw) = (Ranks::new(skew, size.keys), random(size.seed, 7));
        let mut sample = || (0..SAMPLES).map(|_| order.key(ranks.draw(&mut draw))).collect::<Vec<u64>>();
        // What is planned from some keys is judged by others.
        let (sampled, others) = (sample(), sample());
        let (blink, dolphin) = (Subject::blink(order, size)?, Subject::dolphin(order, size)?);
        let Of::Dolphin(image) = &dolphin.of else { return Err("an index of another kind".to_owned()) };
        let wide = bits_of_a_leaf(image);
        let mut measure = |subject: &Subject, what: &str, cache: &'static str, held: Option<(Held, u64)>| {
            let workload = Workload { order, ..Workload::new(skew, Mix::WriteIntensive) };
            let of = if cache == "cold" { &cold } else { size };
            let mut row = Row::default().saying(WORKLOAD, keys).saying(NAME, what).saying(CACHE, cache);
            if let Some((held, room)) = &held {
                let (sram, entries, tcam) = held.takes(&bytes);
                row = row.with([(ROOM, *room as f64), (SRAM_USED, sram.floor()), (ENTRIES, entries as f64)]);
                row = row.with([(TCAM_ROWS, tcam as f64), (LED, subject.led_percent(held, &others))]);
            }
            let held = held.map(|(held, _)| held);
            let done = subject.run(of, format!("{keys}, {what}"), workload, cache, held)?;
            let trips = [(GET_TRIPS, done[READ_TRIPS]), (UPDATE_TRIPS, done[WRITE_TRIPS])];
            rows.push(row.with(trips).with([MOPS, P50].map(|column| (column, done[column]))));
            Ok::<_, String>(())
        };
        for cache in ["none", "cold", "warm"] {
            measure(&blink, "B-link tree, no switches", cache, None)?;
            measure(&dolphin, "Dolphin, no switches", cache, None)?;
            for room in SRAM.into_iter().filter(|room| cache == "none" || cache == "cold" && *room == COLD) {
                let with = |held| Some((held, room));
                let exact = |subject: &Subject, low| with(subject.exact(&sampled, low, room, &bytes));
                let sets = |subject: &Subject| subject.node_sets(&sampled, room, &bytes).map(with);
                measure(&blink, "B-link tree, node sets", cache, sets(&blink)?)?;
                measure(&blink, "B-link tree, hot keys", cache, exact(&blink, 0))?;
                measure(&dolphin, "Dolphin, node sets", cache, sets(&dolphin)?)?;
                measure(&dolphin, "Dolphin, hot keys", cache, exact(&dolphin, 0))?;
                measure(&dolphin, "Dolphin, blocks", cache, exact(&dolphin, wide))?;
            }
        }
    }
    Ok(rows)
}
