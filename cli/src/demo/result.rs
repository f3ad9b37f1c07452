//! Result of a demo run, as `--json` writes it.

use fatbtree_workload::LoadGenerator;
use serde::Serialize;

use super::measure::Way;
use super::mixtures::MixtureResult;

/// Result of one run: all ways of doing a workload, over the same tree, keys and wires.
#[derive(Debug, Serialize)]
pub(crate) struct DemoResult {
    /// Keys in the tree.
    pub keys: u64,
    /// Bytes per value.
    pub value_size: usize,
    /// Memory servers, one partition each.
    pub servers: usize,
    /// The workload of `ways`, and what it does.
    pub workload: String,
    /// Distribution of the keys that are drawn.
    pub distribution: String,
    /// Operations made each way.
    pub lookups: u64,
    /// Operations under way at once: latencies are those at this load.
    pub depth: usize,
    /// Operations, of all ways and workloads, that gave a wrong value, no value, or an error. Anything but 0 is a failure.
    pub wrong: u64,
    /// The first wrong operation in words.
    pub first_wrong: Option<String>,
    /// Target whose room the plan keeps within.
    pub target: String,
    /// Inner nodes of the tree.
    pub inner_nodes: usize,
    /// Share of the inner nodes that the switches hold.
    pub cached_share: f64,
    /// The ways.
    pub ways: Vec<WayResult>,
    /// Lookups by a client with caches of several sizes, alone and together with the switches.
    pub mixtures: Vec<MixtureResult>,
    /// YCSB's workloads, each over the network and in it, while the switches hold the plan that was made for `workload`.
    pub ycsb: Vec<YcsbResult>,
    /// Operations of each of YCSB's workloads, each way.
    pub ycsb_operations: u64,
    /// The Dolphin index on the same keys, to which the ways named after it belong.
    pub dolphin: DolphinResult,
    /// Cost of a tree that grows; `None` if there is no room for new keys.
    pub growth: Option<GrowthResult>,
    /// Figures of the plan.
    pub plan: PlanResult,
    /// Loading the plan over P4Runtime beside the one before, and taking that away.
    pub push: PushResult,
    /// Bulk load of the memory servers.
    pub load: LoadResult,
    /// Wall time of the whole demo, seconds.
    pub seconds: f64,
    /// Environment of the run.
    pub environment: Environment,
}

/// Size of the Dolphin index.
#[derive(Debug, Serialize)]
pub(crate) struct DolphinResult {
    /// Memory servers: those of the trees, and at most 32.
    pub servers: u16,
    pub leaves: u64,
    pub inner_nodes: u64,
    /// Bytes of leaves, inner nodes and records on all servers.
    pub server_bytes: u64,
    /// Bulk load of the index.
    pub load: LoadResult,
}

/// Round trips of one way, counted; latency and throughput of the emulator.
#[derive(Debug, Serialize)]
pub(crate) struct WayResult {
    pub name: String,
    /// Bytes of inner nodes and keys' places that it keeps, in switches and client together.
    pub cache_bytes: u64,
    /// Mean round trips per operation.
    pub round_trips: f64,
    /// Mean bytes that READs asked for per operation, those of locked nodes excepted.
    pub read_bytes: f64,
    /// Operations by the number of round trips they took.
    pub round_trip_histogram: Vec<(u32, u64)>,
    /// Times in the emulator; `None` if the way was counted over plain memory.
    #[serde(flatten)]
    pub times: Option<Times>,
}

/// Latency and throughput of one way in the emulator.
#[derive(Debug, Serialize)]
pub(crate) struct Times {
    pub mean_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub ops_per_s: f64,
    /// (µs, share of operations at most so long).
    #[serde(skip)]
    pub latency_cdf: Vec<(f64, f64)>,
}

/// Result of one of YCSB's workloads.
#[derive(Debug, Serialize)]
pub(crate) struct YcsbResult {
    /// Letter of the workload.
    pub name: String,
    /// Operations of the workload, in words.
    pub operations: String,
    /// Each way; empty if the workload was left out.
    pub ways: Vec<WayResult>,
}

/// Lookups by index reads, as `ways` has them, while the tree grows and the controller follows it. All are counted.
#[derive(Debug, Serialize)]
pub(crate) struct GrowthResult {
    /// Keys that were inserted beside those that are asked for.
    pub inserted: u64,
    /// Lookups for each of the figures.
    pub operations: u64,
    /// Mean round trips per lookup before.
    pub before: f64,
    /// Mean round trips per lookup with the new keys in the tree, under the plan that knows nothing of them.
    pub stale: f64,
    /// Mean round trips per lookup after the controller has planned anew.
    pub followed: f64,
    /// The share of index reads with a stale hint, as the client told it to the controller.
    pub stale_hints: f64,
    /// Changes of table entries by which the controller followed; 0 if it did not find that worth while.
    pub changes: usize,
}

#[derive(Debug, Serialize)]
pub(crate) struct PlanResult {
    /// Ranges of the fat root.
    pub ranges: usize,
    /// Entries of each of its four 16-bit stages.
    pub stage_entries: [usize; 4],
    /// TCAM rows of each of them.
    pub stage_rows: [usize; 4],
    /// Nodes cached per layer, in path order.
    pub layers: Vec<usize>,
    /// Time to plan, without reading snapshot and counters.
    pub seconds: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct PushResult {
    pub entries: u64,
    pub seconds: f64,
    pub entries_per_s: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct LoadResult {
    pub seconds: f64,
    pub keys_per_s: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Environment {
    pub version: String,
    pub seed: u64,
    pub cpus: usize,
    pub os: String,
}

impl From<&Way> for WayResult {
    fn from(way: &Way) -> Self {
        let counted = Self::counted(way.kind.name.to_owned(), way.cache_bytes(), &way.done, way.read_bytes);
        let recorder = way.done.recorder();
        let summary = recorder.summary(way.done.elapsed().as_nanos());
        let times = Times {
            mean_us: summary.mean_us,
            p50_us: summary.p50_us,
            p90_us: summary.p90_us,
            p99_us: summary.p99_us,
            p999_us: summary.p99_9_us,
            ops_per_s: summary.ops_per_s,
            latency_cdf: recorder.cdf().iter().map(|point| (point.us, point.share)).collect(),
        };
        Self { times: Some(times), ..counted }
    }
}

impl WayResult {
    /// Figures of a way that are counted.
    pub(super) fn counted(name: String, cache_bytes: u64, done: &LoadGenerator, read_bytes: u64) -> Self {
        let summary = done.recorder().summary(1);
        Self {
            name,
            cache_bytes,
            round_trips: summary.round_trips,
            read_bytes: read_bytes as f64 / done.recorder().operations().max(1) as f64,
            round_trip_histogram: summary.round_trip_histogram,
            times: None,
        }
    }

    /// Cost of an operation in the emulator: wall time per operation in µs, with as many under way as there were. `None` if
    /// the way was counted over plain memory.
    pub(crate) fn emulator_us(&self) -> Option<f64> {
        let times = self.times.as_ref()?;
        Some(if times.ops_per_s > 0.0 { 1e6 / times.ops_per_s } else { 0.0 })
    }

    /// The share of operations that took so many round trips, in per cent.
    pub(crate) fn share_of(&self, round_trips: impl Fn(u32) -> bool) -> f64 {
        let sum = |all: &mut dyn Iterator<Item = &(u32, u64)>| all.map(|(_, count)| *count).sum::<u64>();
        let these = sum(&mut self.round_trip_histogram.iter().filter(|(trips, _)| round_trips(*trips)));
        100.0 * these as f64 / sum(&mut self.round_trip_histogram.iter()).max(1) as f64
    }
}

impl DemoResult {
    /// The ways as a table: what was counted first, then what the emulator took.
    pub(crate) fn ways_table(&self) -> Vec<Vec<String>> {
        let heads = ["", "cache, KB", "round trips", "one", "two", "more", "bytes read", "emulator, µs"];
        let percent = |share: f64| format!("{share:.1} %");
        let row = |way: &WayResult| {
            vec![
                way.name.clone(),
                format!("{:.0}", way.cache_bytes as f64 / 1e3),
                format!("{:.2}", way.round_trips),
                percent(way.share_of(|trips| trips <= 1)),
                percent(way.share_of(|trips| trips == 2)),
                percent(way.share_of(|trips| trips > 2)),
                format!("{:.0}", way.read_bytes),
                way.emulator_us().map_or("–".to_owned(), |us| format!("{us:.1}")),
            ]
        };
        std::iter::once(heads.map(str::to_owned).to_vec()).chain(self.ways.iter().map(row)).collect()
    }

    /// Round trips by the size of a client's cache, as a table.
    pub(crate) fn mixtures_table(&self) -> Vec<Vec<String>> {
        let heads = [
            "client cache, warm, KB",
            "of inner nodes",
            "round trips, alone",
            "with the switches",
            "wins",
            "in the Dolphin index, alone",
        ];
        let row = |mixture: &MixtureResult| {
            let &MixtureResult { client_cache_bytes, share, alone, with_switches, dolphin } = mixture;
            // What is asked of the switches costs them entries: where it brings nothing, the client is enough.
            let wins = if with_switches < alone - 0.005 { "together" } else { "the client alone" };
            vec![
                format!("{:.0}", client_cache_bytes as f64 / 1e3),
                format!("{:.1} %", 100.0 * share),
                format!("{alone:.2}"),
                format!("{with_switches:.2}"),
                wins.to_owned(),
                format!("{dolphin:.2}"),
            ]
        };
        std::iter::once(heads.map(str::to_owned).to_vec()).chain(self.mixtures.iter().map(row)).collect()
    }

    /// Round trips of YCSB's workloads as a table.
    pub(crate) fn ycsb_table(&self) -> Vec<Vec<String>> {
        let names = self.ycsb.iter().find(|workload| !workload.ways.is_empty());
        let names: Vec<String> =
            names.into_iter().flat_map(|workload| &workload.ways).map(|way| way.name.clone()).collect();
        let heads = ["YCSB", "operations"].map(str::to_owned).into_iter().chain(names.iter().cloned());
        let row = |workload: &YcsbResult| {
            let of = |name: &String| workload.ways.iter().find(|way| way.name == *name);
            let trips = |name| of(name).map_or("–".to_owned(), |way| format!("{:.2}", way.round_trips));
            let begin = [workload.name.to_uppercase(), workload.operations.clone()];
            begin.into_iter().chain(names.iter().map(trips)).collect()
        };
        std::iter::once(heads.collect()).chain(self.ycsb.iter().map(row)).collect()
    }

    /// Text that explains the tables.
    pub(crate) fn explanation(&self) -> String {
        format!(
            "{keys} keys, values of {size} bytes, workload {workload}, {distribution}, {depth} operations under way. \
             The switches hold {share:.0} % of the tree's {nodes} inner nodes ({target}), by what they counted and the client sampled. \
             Round trips and bytes read per operation are counted and exact. The emulator's time is what one operation costs the processors of this \
             machine, in software switches and NICs; it says nothing about a network, where a round trip costs distance. \
             Dolphin is another index of the same keys: a radix tree of {dolphin_nodes} inner nodes above {dolphin_leaves} leaves of 1 KB, {dolphin_mb:.0} MB \
             on {dolphin_servers} memory servers. No switch leads its clients, and its round trips are counted over plain memory.",
            dolphin_servers = self.dolphin.servers,
            dolphin_nodes = self.dolphin.inner_nodes,
            dolphin_leaves = self.dolphin.leaves,
            dolphin_mb = self.dolphin.server_bytes as f64 / 1e6,
            keys = self.keys,
            size = self.value_size,
            workload = self.workload,
            distribution = self.distribution,
            depth = self.depth,
            share = 100.0 * self.cached_share,
            nodes = self.inner_nodes,
            target = self.target,
        )
    }
}

impl GrowthResult {
    /// The three figures as a table.
    pub(crate) fn table(&self) -> Vec<Vec<String>> {
        let row = |name: &str, trips: f64| vec![name.to_owned(), format!("{trips:.2}")];
        vec![
            vec!["in-network, in a tree that grows".to_owned(), "round trips".to_owned()],
            row("before", self.before),
            row("grown, and the switches know nothing of it", self.stale),
            row("grown, and the controller has followed", self.followed),
        ]
    }

    /// Text that explains the table.
    pub(crate) fn explanation(&self) -> String {
        let followed = match self.changes {
            0 => "which was not worth another plan".to_owned(),
            changes => {
                format!("by which the controller knew, and planned anew: {changes} changes of table entries")
            }
        };
        format!(
            "{} keys were inserted beside those that are asked for. Of the index reads that followed {:.1} % found a stale hint, {followed}. \
             {} lookups each, of keys that were loaded, counted.",
            self.inserted,
            100.0 * self.stale_hints,
            self.operations,
        )
    }
}
