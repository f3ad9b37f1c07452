//! SMART's figures 3, 4 and 13 and its table 1: threads of one client on one card, which read or write 8 bytes. Figure 12a to c: the
//! same threads over a B-link tree. Figures 5, 7, 8, 9 and 14: over a hash table. Figures 10 and 11: transactions.
//!
//! Threads run the production reactor with its throttling; the card is [`Calibration::CX6_200_PCIE3`]. Each figure has
//! checks of its cause: a result that is right for another reason does not count.

mod causes;
mod clients;
pub(super) mod hash;
mod paper;
mod threads;
pub(super) mod transactions;
pub(super) mod tree;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use fatbtree_verbs::Throttling;
use fatbtree_verbs::time::Duration;
use serde::Serialize;

use self::paper::{FIGURE_3_THREADS, FIGURE_4, FIGURE_4_BATCHES, FIGURE_13A, FIGURE_13B, TABLE_1};
use self::threads::Setup;
use super::Size;
use super::card::{Calibration, Resources};
use super::column::{BUSIEST_BUCKET, P50, P99};
use super::meter::{Measured, percent};
use super::table::Row;
use fatbtree_sim::world::Kind;

/// Time in which the reactor has tried all limits and has chosen one (`fabric/verbs/src/reactor/throttle.rs`).
const TRIALS: Duration = Duration::from_millis(49);
/// Times the window in which table 1 is measured.
const CHANGING_WINDOWS: u64 = 20;

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

/// Rows of a figure of SMART, and the checks of its cause.
///
/// Each point has a warm-up and a window as `size` says; throttled points warm up for the 49 ms in which the reactor tries all limits.
/// Table 1 and mixtures with updates of a hash table are measured for 20 windows, the former with the intervals that fit twice. `keys` are
/// the tree's in figure 12 and, up to 100,000, the hash table's; `depth` is not used.
pub(super) type Checked = Result<(Vec<Row>, Vec<Check>), String>;

/// A configuration to be measured.
#[derive(Clone, Debug)]
struct Point<S = Setup> {
    name: String,
    setup: S,
    paper: f64,
}

/// Figure 3: threads and how they share queue pairs and doorbell registers.
pub(super) fn figure_3(size: &Size) -> Checked {
    checked(of_words(&resources(size)), causes::resources)
}

/// Figure 4: threads and requests of each of them under way.
pub(super) fn figure_4(size: &Size) -> Checked {
    let (rows, mut checks) = checked(of_words(&batches(size)), causes::batches)?;
    checks.push(causes::halved(&base(size))?);
    Ok((rows, checks))
}

/// Figure 13: throttling.
pub(super) fn figure_13(size: &Size) -> Checked {
    checked(of_words(&throttling(size)), causes::throttling)
}

/// Table 1: a number of threads that changes.
pub(super) fn table_1(size: &Size) -> Checked {
    checked(of_words(&changing(size)), causes::changing)
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

/// Checks the causes of rows.
fn checked(rows: Result<Vec<Row>, String>, checks: fn(&[Row]) -> Vec<Check>) -> Checked {
    let rows = rows?;
    let checks = checks(&rows);
    Ok((rows, checks))
}

/// Measures threads that read or write words.
fn of_words(points: &[Point]) -> Result<Vec<Row>, String> {
    let row = |point: &Point, measured: &Measured| {
        let Setup { threads, batch, .. } = point.setup;
        measured.of_threads(&point.name, threads, batch, measured.request_mops(), point.paper)
    };
    measure(points, threads::run, row)
}

/// Measures all points, several at a time: each is a world of its own.
fn measure<S: Sync>(
    points: &[Point<S>],
    run: impl Fn(&S) -> Result<Measured, String> + Sync,
    row: impl Fn(&Point<S>, &Measured) -> Row + Sync,
) -> Result<Vec<Row>, String> {
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
                    let measured = run(&point.setup).map_err(|why| format!("{}: {why}", point.name));
                    let row = measured.map(|measured| row(point, &measured));
                    rows.lock().expect("no worker panics while it stores a row")[at] = Some(row);
                }
            });
        }
    });
    let rows = rows.into_inner().expect("no worker panics while it stores a row");
    rows.into_iter().map(|row| row.expect("each point is measured by a worker")).collect()
}

impl<W> Point<clients::Setup<W>> {
    /// Result of threads over a structure.
    fn row(&self, measured: &Measured) -> Row {
        let mops = measured.mops(measured.tally.operations());
        measured.of_threads(&self.name, self.setup.threads, clients::DEPTH, mops, self.paper).with([
            (P50, measured.tally.us(0.5)),
            (P99, measured.tally.us(0.99)),
            (BUSIEST_BUCKET, percent(measured.busiest_bucket, measured.window)),
        ])
    }
}

#[cfg(test)]
mod tests;
