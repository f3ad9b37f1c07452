//! What a demo run found, as `--json` writes it.

use serde::Serialize;

/// One run: both ways of looking up, over the same tree, keys and wires.
#[derive(Debug, Serialize)]
pub(crate) struct DemoResult {
    /// Keys in the tree.
    pub keys: u64,
    /// Bytes per value.
    pub value_size: usize,
    /// Memory servers, one partition each.
    pub servers: usize,
    /// How keys are drawn.
    pub distribution: String,
    /// Lookups made each way.
    pub lookups: u64,
    /// Lookups under way at once: latencies are those at this load.
    pub depth: u32,
    /// Lookups, of both ways, that gave a wrong value, no value, or an error. Anything but 0 is a failure.
    pub wrong: u64,
    /// Walking from the root of the partition, one READ per level.
    pub baseline: ModeResult,
    /// One index read, then ordinary READs for what the switches could not walk.
    pub in_network: ModeResult,
    /// In-network mean latency over the baseline's.
    pub latency_ratio: f64,
    /// In-network throughput over the baseline's.
    pub throughput_ratio: f64,
    /// What was planned.
    pub plan: PlanResult,
    /// Loading the switches over P4Runtime.
    pub push: PushResult,
    /// Bulk load of the memory servers.
    pub load: LoadResult,
    /// Wall time of the whole demo, seconds.
    pub seconds: f64,
    /// Where it ran.
    pub environment: Environment,
}

/// Latency, throughput and round trips of one way of looking up.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ModeResult {
    pub mean_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
    pub ops_per_s: f64,
    /// Mean round trips per lookup.
    pub round_trips: f64,
    /// Lookups by the number of round trips they took.
    pub round_trip_histogram: Vec<(u32, u64)>,
    /// (µs, share of lookups at most so long).
    #[serde(skip)]
    pub latency_cdf: Vec<(f64, f64)>,
}

#[derive(Debug, Serialize)]
pub(crate) struct PlanResult {
    /// Ranges of the fat root.
    pub ranges: usize,
    /// Entries of each of its four 16-bit stages.
    pub stage_entries: [usize; 4],
    /// Nodes cached per layer, in path order.
    pub layers: Vec<usize>,
    /// Time to plan, without the snapshot's transfer.
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

/// A row of the table a person reads.
pub(crate) struct Row {
    pub name: &'static str,
    pub baseline: String,
    pub in_network: String,
    pub ratio: String,
}

impl DemoResult {
    /// The table, row by row.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let row = |name, baseline: f64, in_network: f64, digits: usize| Row {
            name,
            baseline: format!("{baseline:.digits$}"),
            in_network: format!("{in_network:.digits$}"),
            ratio: format!("{:.2}", in_network / baseline),
        };
        let (b, n) = (&self.baseline, &self.in_network);
        vec![
            row("mean latency, µs", b.mean_us, n.mean_us, 2),
            row("p50, µs", b.p50_us, n.p50_us, 2),
            row("p90, µs", b.p90_us, n.p90_us, 2),
            row("p99, µs", b.p99_us, n.p99_us, 2),
            row("p99.9, µs", b.p999_us, n.p999_us, 2),
            row("lookups per second", b.ops_per_s, n.ops_per_s, 0),
            row("round trips per lookup", b.round_trips, n.round_trips, 2),
        ]
    }
}
