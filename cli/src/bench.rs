//! `fatbtree bench`: a client of a cluster, measured, every answer checked.

mod entry_cache;
mod keys;
mod latencies;
pub(crate) mod merge;
mod node_cache;
mod options;
mod process;
mod ramp;
mod source;

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use fatbtree_blink::{Attempts, Contention};
use fatbtree_workload::measure::{Outcome, Recorder};
use fatbtree_workload::{LoadGenerator, OperationKind, Pace};
use serde::Serialize;

use crate::interrupted::Interrupted;
use crate::key_shape::KeyShapeArgument;
use crate::memserver::MadeValues;
use crate::nic::Nic;
use crate::output::Output;
use crate::structure::{StructureArgument, client_of};
use crate::{count, progress};
use entry_cache::EntryCacheResult;
use latencies::Latencies;
use node_cache::NodeCacheResult;
use process::{Counted, Load};
use ramp::Step;
use source::{Asked, Source};

/// Do operations on a running cluster, check every answer, and measure.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree bench --cluster cluster.toml --operations 100000
  fatbtree bench --cluster cluster.toml --operations 100000 --workload a --json result.json
  fatbtree bench --cluster cluster.toml --operations 100000 --keys people.csv      after `fatbtree load --keys people.csv`
  fatbtree bench --cluster cluster.toml --operations 100000 --key-shape url        after `fatbtree load --key-type bytes --key-shape url`
  fatbtree bench --cluster cluster.toml --operations 100000 --nic ibverbs:mlx5_0   on an RDMA device
  fatbtree bench --cluster cluster.toml --operations 100000 --protocol query       without RDMA; servers: fatbtree memserver --serve queries
  fatbtree bench --cluster cluster.toml --operations 100000 --protocol query --root-to-leaf    the same without help of the switches
  fatbtree bench --cluster cluster.toml --operations 10000 --workload e --scan-parts 8   scans in 8 parts at once
  fatbtree bench --cluster cluster.toml --operations 20000 --workload a --contention smart     SMART's techniques against contention
  fatbtree bench --cluster cluster.toml --operations 100000 --entry-cache 1M        places of 40,000 keys, one round trip each
  fatbtree bench --cluster cluster.toml --operations 20000 --trace made.trace       after `fatbtree load --trace made.trace`
  fatbtree bench --cluster cluster.toml --operations 20000 --structure hash --workload b   on a hash table
  fatbtree bench --cluster cluster.toml --operations 20000 --structure dolphin --workload e   on a Dolphin index
  fatbtree bench --cluster cluster.toml --operations 20000 --structure dolphin --cache 100K   its client remembers fewer inner nodes
  fatbtree bench --cluster cluster.toml --operations 20000 --structure dtx --workload smallbank   transactions of two bank accounts
  fatbtree bench --cluster cluster.toml --operations 20000 --rate 5000             5000 operations a second, whether answers come or not
  fatbtree bench --cluster cluster.toml --operations 20000 --ramp --picture ramp.svg     latency against load
  fatbtree bench --cluster cluster.toml --client two --operations 100000 --out two.json   one of several machines; then: fatbtree merge

Exit code 1: an answer was wrong, or an operation has failed; 130: interrupted, and what was done until then is told.
Every value that a run writes says by itself which write of which run it comes from, and for which key. So runs may follow one another,
and several may write at once (each as another client of the file); damaged values, other keys' values and values that were replaced
are found all the same. Only the time of another run's write is unknown: such a value is believed if it was never read before.
Inserts of each run are keys of its own. `fatbtree load` begins anew. A trace changes which keys there are, so each run of one needs
a load before it, and no other run beside it.")]
pub(crate) struct Arguments {
    /// Cluster file (TOML).
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// Client of the cluster file; by default the first.
    #[arg(long, value_name = "NAME")]
    client: Option<String>,
    #[command(flatten)]
    structure: StructureArgument,
    #[command(flatten)]
    nic: Nic,
    /// Way to the trees: by RDMA, or by asking the memory servers' processors over UDP, on its host's wire. (By
    /// sockets, past the switches, where the cluster file gives memory servers addresses for that.)
    #[arg(long, value_name = "roce|query", value_enum, default_value = "roce")]
    protocol: Protocol,
    /// The file of keys, or of keys and values, that `fatbtree load --keys FILE` was given; by default keys are YCSB's, as with
    /// `fatbtree load --keys COUNT`. Whether keys are numbers or bytes is known from the memory servers.
    #[arg(long, value_name = "FILE|CSV")]
    keys: Option<PathBuf>,
    #[command(flatten)]
    key_shape: KeyShapeArgument,
    /// Operations to do.
    #[arg(long, value_name = "N", value_parser = count::positive)]
    operations: u64,
    /// A workload of YCSB, a to f, or a file of its properties; on tables of transactions also smallbank or tatp, which bring their records.
    #[arg(long, value_name = "NAME|FILE", default_value = "c")]
    workload: String,
    /// Customers of --workload smallbank, 2 or more, or subscribers of tatp. Those that are not there yet are made first.
    #[arg(long, value_name = "N", default_value_t = CUSTOMERS, value_parser = count::positive)]
    customers: u64,
    /// Do the operations of a cache trace instead of a workload's: lines of timestamp,key,key size,value size,client,operation,TTL.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workload", "keys", "scan_parts", "ramp", "value_bytes"])]
    trace: Option<PathBuf>,
    /// Operations under way at once; with --rate, and in the open loops of --ramp, at most 1024 are.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=MOST.into()))]
    depth: u16,
    /// Begin so many operations a second at random times, whether others have ended or not. Latencies count from these times.
    #[arg(long, value_name = "OPERATIONS", value_parser = rate, conflicts_with_all = ["depth", "ramp"])]
    rate: Option<f64>,
    /// Ask for the range of a scan in so many parts at once (--workload e).
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    scan_parts: u16,
    /// First as fast as --depth at a time go; then at a tenth of that rate, two tenths, and so on, until it is too much.
    #[arg(long)]
    ramp: bool,
    /// File for a drawing of latency against load, as SVG.
    #[arg(long, value_name = "FILE", requires = "ramp")]
    picture: Option<PathBuf>,
    /// Queue pairs to each memory server; each has up to 16 READs under way.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    lanes: u8,
    /// Walk from the root to the leaf, even where the switches would lead to it.
    #[arg(long)]
    root_to_leaf: bool,
    /// Begin at once, not when the controller has registered all connections: operations walk from the root until it has.
    #[arg(long)]
    at_once: bool,
    /// Seed from which operations are drawn.
    #[arg(long, value_name = "N", default_value_t = 1)]
    draw_seed: u64,
    /// Seed from which values, and keys of a --key-shape, were made: --seed of `fatbtree load`.
    #[arg(long, value_name = "N", default_value_t = MadeValues::SEED)]
    seed: u64,
    /// Bytes of a value: --value-bytes of `fatbtree load`.
    #[arg(long, value_name = "N", default_value_t = MadeValues::BYTES)]
    value_bytes: u32,
    /// File for the result as JSON; - for standard output, instead of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// File for the result with all latencies as a histogram, for `fatbtree merge`: one measurement by several machines.
    #[arg(long, value_name = "FILE", conflicts_with = "ramp")]
    out: Option<PathBuf>,
    /// File for the progress, a line of JSON ten times a second while operations end; - for standard output.
    #[arg(long, value_name = "FILE")]
    progress: Option<PathBuf>,
    /// Way to meet other clients at locks, and bounds of the card, over RDMA. sherman: short pauses, no bound. smart: pauses and operations
    /// at once follow the share of attempts that fail, and requests under way have a limit that is tried out.
    #[arg(long, value_name = "sherman|smart", value_enum, default_value = "sherman")]
    contention: Treatment,
    /// With RDMA: bytes for places of single keys, 24 each. A lookup of such a key reads its entry or record first, and verifies it:
    /// one round trip.
    #[arg(long, value_name = "BYTES", value_parser = count::positive)]
    entry_cache: Option<u64>,
    /// With RDMA: bytes for the client's copies of inner nodes. Trees: none unless given. A Dolphin index: 64 MiB unless given; 0 for none.
    #[arg(long, value_name = "BYTES", value_parser = count::any)]
    cache: Option<u64>,
    /// Time limit for memory servers to answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    patience: u64,
}

/// Customers of SmallBank, subscribers of TATP.
const CUSTOMERS: u64 = 10_000;

/// Operations under way at once.
const MOST: u16 = 1024;

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate >= 0.001);
    rate.ok_or_else(|| format!("expected operations a second such as 5000, found {text:?}"))
}

/// Way in which a client reaches the trees.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Protocol {
    Roce,
    Query,
}

/// Treatment of contention.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Treatment {
    Sherman,
    Smart,
}

impl From<Treatment> for Contention {
    fn from(treatment: Treatment) -> Self {
        match treatment {
            Treatment::Sherman => Self::SHERMAN,
            Treatment::Smart => Self::SMART,
        }
    }
}

/// The result, as `--json` writes it.
#[derive(Serialize)]
struct BenchResult {
    protocol: Protocol,
    /// Operations that have ended.
    operations: u64,
    /// Operations with an impossible answer.
    wrong: u64,
    /// Operations without an answer.
    failed: u64,
    /// Writes that may or may not have been carried out, because their server was started anew meanwhile.
    unknown: u64,
    /// Whether Ctrl-C or SIGTERM ended the run before all operations were done.
    interrupted: bool,
    seconds: f64,
    ops_per_s: f64,
    /// Round trips per operation.
    round_trips: f64,
    /// Bytes that READs asked for, per operation; `None` for queries.
    #[serde(skip_serializing_if = "Option::is_none")]
    read_bytes: Option<f64>,
    /// Answers to queries that began at a node that the switches had found.
    #[serde(skip_serializing_if = "Option::is_none")]
    led: Option<u64>,
    /// Queries that went to a server that does not have their key, and then to the one that has.
    #[serde(skip_serializing_if = "Option::is_none")]
    redirected: Option<u64>,
    /// Use of the cache of inner nodes; `None` without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cache: Option<NodeCacheResult>,
    /// Use of the entry cache; `None` without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    entry_cache: Option<EntryCacheResult>,
    /// System calls of the client per operation, if it has sockets of its own for queries.
    #[serde(skip_serializing_if = "Option::is_none")]
    system_calls: Option<f64>,
    percentiles: Vec<Percentiles>,
    /// Attempts at locks, if there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<AttemptsAtLocks>,
    /// Open loops, from little load to much.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    load: Vec<Step>,
    first_wrong: Option<String>,
}

/// Attempts that an operation needs to take a lock.
#[derive(Serialize)]
struct AttemptsAtLocks {
    /// Locks taken.
    locks: u64,
    p50: u64,
    p99: u64,
    p999: u64,
}

impl AttemptsAtLocks {
    fn of(attempts: &Attempts) -> Option<Self> {
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|quantile| attempts.quantile(quantile));
        (attempts.wins() > 0).then(|| Self { locks: attempts.wins(), p50, p99, p999 })
    }
}

/// Latencies of operations of one kind.
#[derive(Serialize)]
struct Percentiles<N = &'static str> {
    operation: N,
    count: u64,
    #[serde(flatten)]
    latencies: Latencies,
}

/// Interval between checks whether the connections are registered.
const WAIT: Duration = Duration::from_millis(10);

/// Interval between lines of progress.
const LINE: Duration = Duration::from_millis(100);

/// Progress of a run, as `--progress` writes it.
#[derive(Serialize)]
struct Progress {
    /// Seconds since the run began.
    seconds: f64,
    /// Operations that have ended.
    operations: u64,
    wrong: u64,
    failed: u64,
    /// Whether index reads are sent to all memory servers.
    registered: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let cluster = crate::topology::load(&arguments.cluster)?;
    let described = client_of(&cluster, arguments.client.as_deref())?;
    let structure = arguments.structure.of(&cluster);
    options::check(structure, arguments)?;
    if arguments.protocol == Protocol::Query {
        refuse_with_queries("--entry-cache", arguments.entry_cache)?;
        refuse_with_queries("--cache", arguments.cache)?;
    }
    let asked = Asked::read(arguments)?;
    let to_stdout = arguments.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
    let file = Output::optional("--json", arguments.json.as_ref().filter(|_| !to_stdout))?;
    let out = Output::optional("--out", arguments.out.as_ref())?;
    let picture = Output::optional("--picture", arguments.picture.as_ref())?;
    let mut lines: Option<Box<dyn Write>> = match &arguments.progress {
        None => None,
        Some(path) if path.as_os_str() == "-" => Some(Box::new(crate::stdout::Out)),
        Some(path) => {
            let file = std::fs::File::create(path);
            Some(Box::new(file.with_context(|| format!("--progress {}", path.display()))?))
        }
    };
    let mut process = process::open(arguments, structure, &cluster, described)?;
    let mut source = match Source::open(asked, arguments, &mut *process) {
        Ok(source) => source,
        Err(error) => {
            process.close();
            return Err(error);
        }
    };
    process.begin()?;
    let mut done = LoadGenerator::new().scanning(source.parts);
    let closed = Pace::Closed { depth: arguments.depth.into() };
    let pace = arguments.rate.map_or(closed, open);
    let (bar, began) = (progress::bar("operations", arguments.operations), Instant::now());
    let (mut due, mut broken) = (Duration::ZERO, None);
    let mut shown = |recorder: &Recorder, registered: bool| {
        let elapsed = began.elapsed();
        if elapsed < due {
            return;
        }
        due = elapsed + LINE;
        bar.set_position(recorder.operations());
        let Some(lines) = &mut lines else { return };
        let line = Progress {
            seconds: elapsed.as_secs_f64(),
            operations: recorder.operations(),
            wrong: recorder.count(Outcome::WrongAnswer) + recorder.count(Outcome::NotFound),
            failed: recorder.count(Outcome::Failed),
            registered,
        };
        let line = serde_json::to_string(&line).expect("numbers always serialise");
        // The reader of these lines may close the pipe.
        broken = writeln!(lines, "{line}").and_then(|()| lines.flush()).err().or(broken.take());
    };
    let before = process.counted().read_bytes;
    let Source { operations, values, parts } = &mut source;
    let mut measure = |done: &mut LoadGenerator, count, pace, shown: &mut dyn FnMut(&Recorder, bool)| {
        let load = Load { operations: &mut **operations, count, pace, values, shown };
        let goes_on = process.run(done, load)?;
        anyhow::Ok((goes_on, process.counted()))
    };
    let (mut goes_on, Counted { asked, calls, read_bytes, .. }) =
        measure(&mut done, arguments.operations, pace, &mut shown)?;
    let mut steps = Vec::from_iter(Step::of(&done, None));
    let mut ramp = Vec::new();
    let seconds = began.elapsed().as_secs_f64();
    bar.finish_and_clear();
    if arguments.ramp {
        let fastest = done.recorder().operations() as f64 / (done.elapsed().as_nanos() as f64 / 1e9);
        let bar = progress::bar("loads", ramp::shares().count() as u64);
        for share in ramp::shares() {
            let enough = |step: &Step| share > ramp::FULL && !step.kept_up;
            if !goes_on || steps.last().is_some_and(enough) {
                break;
            }
            let mut step = LoadGenerator::new().scanning(*parts);
            // All take about as long.
            let operations = (arguments.operations * u64::from(share)).div_ceil(100);
            let pace = open(fastest * f64::from(share) / 100.0);
            (goes_on, _) = measure(&mut step, operations, pace, &mut |_, _| {})?;
            steps.extend(Step::of(&step, Some(share)).filter(|_| goes_on));
            ramp.push(step);
            bar.inc(1);
        }
        bar.finish_and_clear();
    }
    if let Some(error) = broken
        && !crate::stdout::is_lost()
    {
        tracing::warn!(%error, "--progress");
    }
    process.log_port();
    let Counted { troubles, attempts, cache, entry_cache, .. } = process.counted();
    let summary = done.summary_of(&troubles);
    let all = || std::iter::once(&done).chain(&ramp);
    let count = |outcomes: &[Outcome]| {
        all().flat_map(|done| outcomes.iter().map(|outcome| done.recorder().count(*outcome))).sum()
    };
    let each = |all: u64| all as f64 / summary.operations.max(1) as f64;
    let result = BenchResult {
        protocol: arguments.protocol,
        operations: summary.operations,
        wrong: count(&[Outcome::WrongAnswer, Outcome::NotFound]),
        failed: count(&[Outcome::Failed]),
        unknown: count(&[Outcome::Unknown]),
        interrupted: !goes_on,
        seconds,
        ops_per_s: summary.operations as f64 / seconds,
        round_trips: summary.round_trips,
        read_bytes: read_bytes.zip(before).map(|(after, before)| each(after - before)),
        led: asked.map(|asked| asked.led),
        redirected: asked.map(|asked| asked.redirects),
        cache,
        entry_cache,
        system_calls: calls.map(each),
        percentiles: done.kinds().filter_map(|kind| percentiles(&done, kind)).collect(),
        attempts,
        load: steps,
        first_wrong: all().find_map(LoadGenerator::first_wrong).map(str::to_owned),
    };
    process.close();
    let json = serde_json::to_string_pretty(&result)?;
    if to_stdout {
        outln!("{json}");
    } else {
        print(&result);
    }
    if let Some(file) = file {
        file.write("result", &(json + "\n"))?;
    }
    if let Some(file) = out {
        let run = serde_json::to_string(&run_of(&result, &done))?;
        file.write_beside("latencies", &(run + "\n"), to_stdout)?;
    }
    if let Some(file) = picture {
        file.write_beside("picture", &ramp::picture(&result.load)?, to_stdout)?;
    }
    tracing::info!(troubles = ?summary.troubles, "client");
    if let Some(wrong) = result.first_wrong {
        bail!("{} operations wrong, {} failed; the first: {wrong}", result.wrong, result.failed);
    }
    if result.interrupted {
        let loads = match arguments.ramp {
            true => format!(", and {} of {} loads", ramp.len().saturating_sub(1), ramp::shares().count()),
            false => String::new(),
        };
        let all = arguments.operations;
        bail!(Interrupted(format!("{} of {all} operations were done{loads}", result.operations)));
    }
    Ok(())
}

/// Refuses a cache of the client's if it asks by queries.
fn refuse_with_queries(option: &str, bytes: Option<u64>) -> Result<()> {
    if let Some(bytes) = bytes {
        bail!(
            "{option} {bytes}: a client that asks by --protocol query reads no memory itself; use --protocol roce, or leave it out"
        );
    }
    Ok(())
}

/// An open loop.
fn open(per_second: f64) -> Pace {
    Pace::Open { per_second, seed: rand::random(), most: MOST.into() }
}

fn percentiles(done: &LoadGenerator, kind: OperationKind) -> Option<Percentiles> {
    let latency = done.latency_of(kind)?;
    Some(Percentiles { operation: kind.name(), count: latency.len(), latencies: Latencies::of(latency) })
}

/// The run, to be merged with others.
fn run_of(result: &BenchResult, done: &LoadGenerator) -> merge::Run {
    let of = |kind: OperationKind| {
        let histogram = done.latency_of(kind)?.clone();
        Some(merge::Kind { operation: kind.name().to_owned(), histogram })
    };
    merge::Run {
        operations: result.operations,
        wrong: result.wrong,
        failed: result.failed,
        unknown: result.unknown,
        seconds: result.seconds,
        ops_per_s: result.ops_per_s,
        round_trips: result.round_trips,
        latencies: done.kinds().filter_map(of).collect(),
        ..merge::Run::new()
    }
}

fn print(result: &BenchResult) {
    outln!("{}", merge::table(&result.percentiles));
    if let Some(AttemptsAtLocks { locks, p50, p99, p999 }) = &result.attempts {
        outln!("{locks} locks taken; attempts at one: {p50} at p50, {p99} at p99, {p999} at p99.9");
    }
    let unknown = match result.unknown {
        0 => String::new(),
        unknown => {
            format!(
                ", {unknown} writes that may have been carried out or not: no answer came, or their server was started anew"
            )
        }
    };
    match &result.load[..] {
        [] => {}
        [step] if step.share.is_none() => outln!("{}", step.explanation()),
        steps => outln!("{}\n{}", ramp::table(steps), ramp::conclusion(steps)),
    }
    let bytes = result.read_bytes.map_or(String::new(), |bytes| format!(" and {bytes:.0} bytes read"));
    let calls = result.system_calls.map_or(String::new(), |calls| format!(", {calls:.2} system calls each"));
    let (led, redirected) = (result.led.unwrap_or(0), result.redirected.unwrap_or(0));
    let share = |count: u64| 100.0 * count as f64 / result.operations.max(1) as f64;
    let led = match led {
        0 => String::new(),
        led => format!(", {:.1} % begun where switches had led them", share(led)),
    };
    let redirected = match redirected {
        0 => String::new(),
        redirected => format!(", {:.1} % redirected", share(redirected)),
    };
    if let Some(cache) = &result.cache {
        outln!("{cache}");
    }
    if let Some(cache) = &result.entry_cache {
        outln!("{cache}");
    }
    outln!(
        "{} operations in {:.2} s, {:.0}/s, {:.2} round trips{bytes} each{led}{redirected}{calls}; {} wrong, {} failed{unknown}",
        result.operations,
        result.seconds,
        result.ops_per_s,
        result.round_trips,
        result.wrong,
        result.failed
    );
}
