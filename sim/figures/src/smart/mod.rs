//! SMART's figures 3, 4 and 13 and its table 1: threads of one client on one card, which read or write 8 bytes. Figure 12a to c: the
//! same threads over a B-link tree. Figures 5, 7, 8, 9 and 14: over a hash table. Figures 10 and 11: transactions.
//!
//! Threads run the production reactor with its throttling; the card is [`Calibration::CX6_200_PCIE3`]. Each figure has
//! checks of its cause: a result that is right for another reason does not count.

mod causes;
pub(super) mod hash;
mod paper;
mod threads;
pub(super) mod transactions;
pub(super) mod tree;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use fatbtree_remote_memory::Attempts;
use fatbtree_verbs::Throttling;
use fatbtree_verbs::time::Duration;
use serde::Serialize;

use self::paper::{FIGURE_3_THREADS, FIGURE_4, FIGURE_4_BATCHES, FIGURE_13A, FIGURE_13B, TABLE_1};
use self::threads::Setup;
use super::card::{Calibration, Resources, Usage};
use super::meter::{Measured, percent, slowest_percent};
use super::{Rows, Size};
use fatbtree_sim::world::Kind;

/// Time in which the reactor has tried all limits and has chosen one (`fabric/verbs/src/reactor/throttle.rs`).
const TRIALS: Duration = Duration::from_millis(49);
/// Times the window in which table 1 is measured.
const CHANGING_WINDOWS: u64 = 20;

/// Result of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SmartRow {
    /// Name of the configuration.
    pub name: String,
    /// Threads of the client.
    pub threads: u32,
    /// Requests that a thread posts before it waits for all of them.
    pub batch: u32,
    /// Millions of requests in a second.
    pub mops: f64,
    /// The same in the paper; 0: it has none.
    pub paper: f64,
    /// Work of the slowest thread in percent of the mean: 100 is fair, 0 is starvation. Where the number of threads changes, some do not
    /// work.
    pub slowest_thread_percent: f64,
    /// Attempts at a lock or a slot within which 99.9 % of operations had it; 0: there are none.
    pub attempts_p999: u64,
    /// Median and 99th percentile of an operation's latency in µs; 0: not measured.
    pub p50_us: f64,
    /// See `p50_us`.
    pub p99_us: f64,
    /// Percentage of time for which the busiest bucket of the servers' atomics is busy.
    pub busiest_bucket_percent: f64,
    /// Percentage of the threads' time in queues of doorbell registers.
    pub in_registers_percent: f64,
    /// Percentage of the threads' time in queues of queue pairs.
    pub in_queue_pairs_percent: f64,
    /// Percentage of time for which the bus towards the host is busy, or waits for the card's cache.
    pub bus_percent: f64,
    /// Percentage of requests that the card's cache has lost.
    pub missed_percent: f64,
    /// Bytes that a request writes into the host's memory, or reads from it once more.
    pub memory_bytes: f64,
    /// Requests and doorbells of a transaction, those of attempts that fail included; 0: not measured.
    pub requests_each: f64,
    /// See `requests_each`.
    pub doorbells_each: f64,
    /// Percentage of transactions that end without a commit, for lack of money or because of a conflict; 0: not measured.
    pub aborted_percent: f64,
}

/// A statement about the cause of a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// What must hold.
    pub claim: String,
    /// What was found.
    pub found: String,
    /// Whether it holds.
    pub holds: bool,
}

/// A figure's rows, and the checks of its cause.
type Checked = Result<(Vec<SmartRow>, Vec<Check>), String>;

/// A configuration to be measured.
#[derive(Clone, Debug)]
struct Point<S = Setup> {
    name: String,
    setup: S,
    paper: f64,
}

/// A figure of SMART in virtual time. Each point has a warm-up and a window as `size` says; throttled points warm up for
/// the 49 ms in which the reactor tries all limits. Table 1 and mixtures with updates of a hash table are measured for 20 windows, the former
/// with the intervals that fit twice. `keys` are the tree's in figure 12 and, up to 100,000, the hash table's; `depth` is not used.
///
/// # Errors
/// A wrong answer, or a request that failed.
pub(super) fn figure(checked: Checked) -> Result<Rows, String> {
    let calibration = Calibration::CX6_200_PCIE3.name;
    checked.map(|(rows, checks)| Rows::Threads { calibration, rows, checks })
}

/// Figure 3: threads and how they share queue pairs and doorbell registers.
pub(super) fn figure_3(size: &Size) -> Checked {
    checked(&resources(size), causes::resources)
}

/// Figure 4: threads and requests of each of them under way.
pub(super) fn figure_4(size: &Size) -> Checked {
    let (rows, mut checks) = checked(&batches(size), causes::batches)?;
    checks.push(causes::halved(&base(size))?);
    Ok((rows, checks))
}

/// Figure 13: throttling.
pub(super) fn figure_13(size: &Size) -> Checked {
    checked(&throttling(size), causes::throttling)
}

/// Table 1: a number of threads that changes.
pub(super) fn table_1(size: &Size) -> Checked {
    checked(&changing(size), causes::changing)
}

/// READs of one thread after the other, a doorbell a thread.
fn base(size: &Size) -> Setup {
    Setup {
        calibration: Calibration::CX6_200_PCIE3,
        resources: Resources::DoorbellPerThread,
        kind: Kind::Read,
        threads: 1,
        batch: 8,
        throttling: Throttling::Off,
        changes: None,
        warm_up: Duration::from_micros(size.warm_up_us),
        window: Duration::from_micros(size.window_us),
        seed: size.seed,
    }
}

fn resources(size: &Size) -> Vec<Point> {
    let lines = [
        ("READ, one queue pair", Resources::SharedQueuePair, Kind::Read, paper::SHARED),
        ("READ, 4 threads a queue pair", Resources::ThreadsPerQueuePair(4), Kind::Read, paper::FOUR),
        ("READ, 2 threads a queue pair", Resources::ThreadsPerQueuePair(2), Kind::Read, paper::TWO),
        ("READ, a queue pair a thread", Resources::QueuePairPerThread, Kind::Read, paper::QUEUE_PAIR),
        ("READ, a doorbell a thread", Resources::DoorbellPerThread, Kind::Read, paper::DOORBELL),
        ("WRITE, a queue pair a thread", Resources::QueuePairPerThread, Kind::Write, paper::WRITE_QUEUE_PAIR),
        ("WRITE, a doorbell a thread", Resources::DoorbellPerThread, Kind::Write, paper::WRITE_DOORBELL),
    ];
    let mut points = Vec::new();
    for (name, resources, kind, values) in lines {
        for (threads, paper) in FIGURE_3_THREADS.into_iter().zip(values) {
            let setup = Setup { resources, kind, threads, ..base(size) };
            points.push(Point { name: name.to_owned(), setup, paper });
        }
    }
    points
}

fn batches(size: &Size) -> Vec<Point> {
    let mut points = Vec::new();
    for (name, kind) in [("READ", Kind::Read), ("WRITE", Kind::Write)] {
        for (threads, reads, writes) in FIGURE_4 {
            let values = if kind == Kind::Read { reads } else { writes };
            for (batch, paper) in FIGURE_4_BATCHES.into_iter().zip(values) {
                let setup = Setup { kind, threads, batch, ..base(size) };
                points.push(Point { name: name.to_owned(), setup, paper });
            }
        }
    }
    points
}

fn throttling(size: &Size) -> Vec<Point> {
    let mut points = Vec::new();
    let mut add = |threads, batch, values: [f64; 3]| {
        let lines = [
            ("a queue pair a thread", Resources::QueuePairPerThread, Throttling::Off),
            ("a doorbell a thread", Resources::DoorbellPerThread, Throttling::Off),
            ("throttled", Resources::DoorbellPerThread, Throttling::Adaptive),
        ];
        for ((name, resources, throttling), paper) in lines.into_iter().zip(values) {
            let mut setup = Setup { resources, throttling, threads, batch, ..base(size) };
            if throttling == Throttling::Adaptive {
                setup.warm_up = TRIALS;
            }
            points.push(Point { name: name.to_owned(), setup, paper });
        }
    };
    for (threads, values) in FIGURE_13A {
        add(threads, 16, values);
    }
    for (batch, values) in FIGURE_13B.into_iter().filter(|&(batch, _)| batch != 16) {
        add(96, batch, values);
    }
    points
}

fn changing(size: &Size) -> Vec<Point> {
    let window = base(size).window * CHANGING_WINDOWS;
    let mut points = Vec::new();
    for (millis, values) in TABLE_1 {
        let interval = Duration::from_millis(millis);
        if interval * 2 > window {
            break;
        }
        for ((name, throttling), paper) in
            [("without", Throttling::Off), ("throttled", Throttling::Adaptive)].into_iter().zip(values)
        {
            let mut setup =
                Setup { throttling, threads: 96, batch: 64, changes: Some(interval), window, ..base(size) };
            if throttling == Throttling::Adaptive {
                setup.warm_up = TRIALS;
            }
            points.push(Point { name: format!("{name}, every {millis} ms"), setup, paper });
        }
    }
    points
}

/// Measures all points and checks the causes.
fn checked(points: &[Point], checks: fn(&[SmartRow]) -> Vec<Check>) -> Checked {
    let rows = measure(points)?;
    let checks = checks(&rows);
    Ok((rows, checks))
}

fn measure(points: &[Point]) -> Result<Vec<SmartRow>, String> {
    each_point(points, |point| threads::run(&point.setup).map(|measured| point.row(&measured)))
}

/// Measures all points, several at a time: each is a world of its own.
fn each_point<P: Sync>(
    points: &[P],
    row: impl Fn(&P) -> Result<SmartRow, String> + Sync,
) -> Result<Vec<SmartRow>, String> {
    let next = AtomicUsize::new(0);
    let rows = Mutex::new(vec![None; points.len()]);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((at, point)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    points.get(at).map(|point| (at, point))
                } {
                    let row = row(point);
                    rows.lock().expect("no worker panics while it stores a row")[at] = Some(row);
                }
            });
        }
    });
    let rows = rows.into_inner().expect("no worker panics while it stores a row");
    rows.into_iter().map(|row| row.expect("each point is measured by a worker")).collect()
}

impl<S> Point<S> {
    /// What threads have done, whose operations took so many attempts.
    fn of_operations(&self, measured: &Measured, attempts: &Attempts, threads: u32) -> SmartRow {
        let Measured { tally, window, usage, busiest_bucket } = measured;
        SmartRow {
            name: self.name.clone(),
            mops: tally.operations() as f64 * 1e3 / window.as_nanos() as f64,
            paper: self.paper,
            slowest_thread_percent: slowest_percent(&tally.done),
            attempts_p999: attempts.quantile(0.999),
            p50_us: tally.us(0.5),
            p99_us: tally.us(0.99),
            busiest_bucket_percent: percent(*busiest_bucket, *window),
            ..SmartRow::of(usage, threads, *window)
        }
    }
}

impl Point {
    fn row(&self, measured: &threads::Measured) -> SmartRow {
        let Setup { threads, batch, window, .. } = self.setup;
        SmartRow {
            name: self.name.clone(),
            batch,
            mops: measured.mops,
            paper: self.paper,
            slowest_thread_percent: measured.slowest_percent,
            ..SmartRow::of(&measured.usage, threads, window)
        }
    }
}

impl SmartRow {
    /// What a card and its threads have spent in a window; the rest is empty.
    fn of(usage: &Usage, threads: u32, window: Duration) -> Self {
        let requests = usage.requests.max(1) as f64;
        let of_thread = |span| percent(span, window) / f64::from(threads);
        Self {
            threads,
            in_registers_percent: of_thread(usage.in_registers),
            in_queue_pairs_percent: of_thread(usage.in_queue_pairs),
            bus_percent: percent(usage.bus_up, window),
            missed_percent: 100.0 * usage.missed / requests,
            memory_bytes: usage.memory_bytes as f64 / requests,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests;
