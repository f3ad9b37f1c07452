//! `fatbtree merge`: the runs of several machines, measured by `fatbtree bench --out`, as one.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use comfy_table::{Table, presets};
use fatbtree_workload::measure::LatencyHistogram;
use serde::{Deserialize, Serialize};

use super::Percentiles;
use super::latencies::Latencies;
use crate::count;

/// Merge what `fatbtree bench --out` wrote on several machines into one report.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree bench --cluster cluster.toml --client one --operations 100000 --out one.json    on one machine
  fatbtree bench --cluster cluster.toml --client two --operations 100000 --out two.json    on another, at the same time
  fatbtree merge one.json two.json
  fatbtree merge one.json two.json --json

Percentiles are those of all operations together, to 0.1 %. Rates are added, so they mean something if the runs went on at the same time.")]
pub(crate) struct Arguments {
    /// Files that `fatbtree bench --out` has written.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Format of the files.
const FORMAT: &str = "fatbtree bench 1";

/// A run, as `--out` writes it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub(super) struct Run {
    pub(super) format: String,
    /// Operations that have ended.
    pub(super) operations: u64,
    pub(super) wrong: u64,
    pub(super) failed: u64,
    pub(super) unknown: u64,
    pub(super) seconds: f64,
    pub(super) ops_per_s: f64,
    /// Round trips per operation.
    pub(super) round_trips: f64,
    pub(super) latencies: Vec<Kind>,
}

/// Latencies of operations of one kind.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub(super) struct Kind {
    pub(super) operation: String,
    #[serde(flatten)]
    pub(super) histogram: LatencyHistogram,
}

/// The result, as `--json` prints it.
#[derive(Serialize)]
struct Merged {
    runs: usize,
    operations: u64,
    wrong: u64,
    failed: u64,
    unknown: u64,
    /// Length of the longest run.
    seconds: f64,
    /// Sum of the runs' rates.
    ops_per_s: f64,
    round_trips: f64,
    percentiles: Vec<Percentiles<String>>,
}

impl Run {
    pub(super) fn new() -> Self {
        Self {
            format: FORMAT.to_owned(),
            operations: 0,
            wrong: 0,
            failed: 0,
            unknown: 0,
            seconds: 0.0,
            ops_per_s: 0.0,
            round_trips: 0.0,
            latencies: Vec::new(),
        }
    }

    fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {name}"))?;
        let run: Self = serde_json::from_str(&text)
            .with_context(|| format!("{name}: expected a file of `fatbtree bench --out FILE`"))?;
        if run.format != FORMAT {
            bail!(
                "{name}: expected the format {FORMAT:?}, found {:?}; merge with the program that wrote it",
                run.format
            );
        }
        Ok(run)
    }

    /// Adds a run that went on at the same time.
    fn add(&mut self, other: Self) {
        let trips = |run: &Self| run.round_trips * run.operations as f64;
        let all = trips(self) + trips(&other);
        self.operations += other.operations;
        self.round_trips = if self.operations == 0 { 0.0 } else { all / self.operations as f64 };
        self.wrong += other.wrong;
        self.failed += other.failed;
        self.unknown += other.unknown;
        self.seconds = self.seconds.max(other.seconds);
        self.ops_per_s += other.ops_per_s;
        for kind in other.latencies {
            match self.latencies.iter_mut().find(|it| it.operation == kind.operation) {
                Some(same) => same.histogram.merge(&kind.histogram),
                None => self.latencies.push(kind),
            }
        }
    }
}

pub(crate) fn run(Arguments { files, json }: &Arguments) -> Result<()> {
    let (mut all, mut named) = (Run::new(), HashSet::new());
    for file in files {
        all.add(Run::read(file)?);
        // By one name or several.
        if !named.insert(file.canonicalize().with_context(|| format!("reading {}", file.display()))?) {
            bail!("{} is named twice; a run counts once", file.display());
        }
    }
    let Run { format: _, operations, wrong, failed, unknown, seconds, ops_per_s, round_trips, latencies } =
        all;
    let percentiles = latencies.into_iter().map(|Kind { operation, histogram }| Percentiles {
        operation,
        count: histogram.len(),
        latencies: Latencies::of(&histogram),
    });
    let percentiles: Vec<_> = percentiles.collect();
    let runs = files.len();
    if *json {
        let merged =
            Merged { runs, operations, wrong, failed, unknown, seconds, ops_per_s, round_trips, percentiles };
        outln!("{}", serde_json::to_string_pretty(&merged)?);
        return Ok(());
    }
    outln!("{}", table(&percentiles));
    outln!(
        "{}: {operations} operations in up to {seconds:.2} s, {ops_per_s:.0}/s together, {round_trips:.2} round trips each; {wrong} wrong, \
         {failed} failed, {unknown} unknown",
        count::of(runs as u64, "run")
    );
    Ok(())
}

/// Latencies by kind of operation.
pub(super) fn table<N: AsRef<str>>(percentiles: &[Percentiles<N>]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    table.set_header(["operation", "count"].into_iter().chain(Latencies::HEADS));
    for kind in percentiles {
        let named = [kind.operation.as_ref().to_owned(), kind.count.to_string()];
        table.add_row(named.into_iter().chain(kind.latencies.columns()));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_of(latencies: impl Iterator<Item = u64>) -> Run {
        let mut histogram = LatencyHistogram::new();
        latencies.for_each(|ns| histogram.record(ns));
        let operations = histogram.len();
        let latencies = vec![Kind { operation: "read".to_owned(), histogram }];
        Run {
            operations,
            ops_per_s: operations as f64,
            seconds: 1.0,
            round_trips: 1.5,
            latencies,
            ..Run::new()
        }
    }

    /// Also by way of the files.
    #[test]
    fn two_halves_are_one_run() {
        let ns = |n: u64| (n * n * 7919) % 50_000_000 + 1;
        let whole = run_of((0..20_000).map(ns));
        let mut merged = Run::new();
        for half in [run_of((0..20_000).step_by(2).map(ns)), run_of((1..20_000).step_by(2).map(ns))] {
            let text = serde_json::to_string(&half).expect("numbers");
            let read: Run = serde_json::from_str(&text).expect("what was written");
            assert_eq!(read, half);
            merged.add(read);
        }
        assert_eq!(merged.latencies, whole.latencies);
        let histogram = &merged.latencies[0].histogram;
        for quantile in [0.0, 0.5, 0.9, 0.99, 0.999, 1.0] {
            assert_eq!(histogram.quantile_ns(quantile), whole.latencies[0].histogram.quantile_ns(quantile));
        }
        assert_eq!((merged.operations, merged.round_trips, merged.ops_per_s), (20_000, 1.5, 20_000.0));
    }

    #[test]
    fn what_bench_did_not_write_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("run.json");
        let mut other = Run { format: "fatbtree bench 9".to_owned(), ..Run::new() };
        for (text, expected) in [
            ("{}".to_owned(), "expected a file of `fatbtree bench --out FILE`"),
            (serde_json::to_string(&other).expect("JSON"), "found \"fatbtree bench 9\""),
        ] {
            std::fs::write(&path, text).expect("it is written");
            let error = format!("{:#}", Run::read(&path).expect_err("no run"));
            assert!(error.contains(expected), "{error}");
        }
        other.format = FORMAT.to_owned();
        std::fs::write(&path, serde_json::to_string(&other).expect("JSON")).expect("it is written");
        let name = folder.path().file_name().expect("a name");
        let other_name = folder.path().join("..").join(name).join("run.json");
        for again in [path.clone(), other_name] {
            let arguments = Arguments { files: vec![path.clone(), again], json: true };
            assert!(run(&arguments).expect_err("one file").to_string().contains("is named twice"));
        }
    }
}
