//! RACE hashing, and what each of SMART's techniques does for it: figures 5, 7, 8, 9 and 14.
//!
//! ```text
//!   RACE                   a queue pair a thread, no pauses        ─┐
//!   + resources            a doorbell a thread                      │ 1 to 96 threads of one client,
//!   + throttling           the same, requests bounded               │ 8 operations each, two memory servers
//!   + conflict avoidance   the same, back-off and tasks bounded    ─┘
//! ```
//!
//! The table is `fatbtree_race`, on the production reactor. It has fewer keys than the paper's 10^8. Operations choose a key as if it had all
//! of them, so the hottest keys have the paper's shares.

mod image;
mod paper;
mod threads;

use fatbtree_remote_memory::{Backoff, Contention, Growth};
use fatbtree_verbs::Throttling;
use fatbtree_verbs::time::Duration;
use fatbtree_workload::ycsb::{DEFAULT_THETA, Zipfian};

use self::image::Image;
use self::threads::Work;
use super::clients::Setup;
use super::{Check, Checked, TRIALS, causes, checked, measure};
use crate::card::{Calibration, Resources};
use crate::column::MOPS;
use crate::table::Row;
use crate::{Mix, Size};

/// Keys of the paper's table.
const PAPER_KEYS: u64 = 100_000_000;
/// Most keys of ours: beyond, only loading takes longer.
const MOST_KEYS: u64 = 100_000;
/// Times the window in which updates are measured: those that wait for a hot slot wait for long.
const UPDATING_WINDOWS: u64 = 20;
/// Time in which updates gather at hot slots, and bounds follow them.
const GATHERING: Duration = Duration::from_millis(20);

/// The same where lookups stand between updates, so that they gather more slowly. 96 threads of RACE with half updates do 0.64 million operations a
/// second after 20 ms, 0.38 after 49 and 0.26 after 100.
const LONG_GATHERING: Duration = Duration::from_millis(100);

/// No pauses: a failed attempt is followed by the next one.
const AT_ONCE: Backoff =
    Backoff { round: 1, unit: Duration::ZERO, limit: Duration::ZERO, growth: Growth::None };
/// RACE's clients.
pub(super) const RACE: Contention =
    Contention { throttling: Throttling::Off, backoff: AT_ONCE, bounds_tasks: false };

/// Times for which operations of figure 9 rest before the next one, in µs.
const RESTS: [u64; 5] = [0, 20, 50, 100, 200];

type Point = super::Point<Setup<Work>>;

/// Figure 5a: updates alone. Too many threads do less than few.
pub(crate) fn updates(size: &Size) -> Checked {
    checked(updates_by(size, &paper::FIGURE_5), causes::updates)
}

/// Updates by these numbers of threads, with the paper's values.
pub(super) fn updates_by(size: &Size, threads: &[(u32, f64)]) -> Result<Vec<Row>, String> {
    let of = |&(threads, paper)| point(size, "RACE", Mix::WriteOnly, threads, pairs(RACE), paper);
    Bench::load(size)?.measure(&threads.iter().map(of).collect::<Vec<_>>())
}

/// Figure 8: YCSB A, B and C with one technique after the other.
pub(crate) fn techniques(size: &Size) -> Checked {
    let throttled = Contention { throttling: Throttling::Adaptive, ..RACE };
    let lines = [
        ("RACE", pairs(RACE)),
        ("+ resources", doorbells(RACE)),
        ("+ throttling", doorbells(throttled)),
        ("+ conflict avoidance", doorbells(Contention::SMART)),
    ];
    let mut points = Vec::new();
    for (mix, values) in paper::FIGURE_8 {
        for ((name, ways), values) in lines.into_iter().zip(values) {
            for (threads, paper) in paper::FIGURE_8_THREADS.into_iter().zip(values.into_iter().flatten()) {
                points.push(point(size, &format!("{name}, {mix:?}"), mix, threads, ways, paper));
            }
        }
    }
    let bench = Bench::load(size)?;
    let (rows, mut checks) = checked(bench.measure(&points), causes::hash_table)?;
    checks.push(quick_atomics(&bench, size)?);
    Ok((rows, checks))
}

/// Figure 7: RACE and SMART-HT with ever more threads of one client (a to c), and with up to six clients of 96 threads (d to f).
pub(crate) fn throughput(size: &Size) -> Checked {
    let lines = [("RACE", pairs(RACE)), ("SMART-HT", doorbells(Contention::SMART))];
    let mut points = Vec::new();
    for (mix, values) in paper::FIGURE_7 {
        for ((name, ways), values) in lines.into_iter().zip(values) {
            for (threads, paper) in paper::FIGURE_7_THREADS.into_iter().zip(values) {
                points.push(point(size, &format!("{name}, {mix:?}"), mix, threads, ways, paper));
            }
        }
    }
    for (mix, values) in paper::FIGURE_7_CLIENTS {
        for ((name, ways), values) in lines.into_iter().zip(values) {
            for (clients, paper) in paper::FIGURE_7_NUMBERS.into_iter().zip(values) {
                let mut point =
                    point(size, &format!("{name}, {mix:?}, {clients} clients"), mix, 96, ways, paper);
                point.setup.clients = clients;
                points.push(point);
            }
        }
    }
    checked(Bench::load(size)?.measure(&points), causes::hash_throughput)
}

/// Figure 9: searches by 96 threads, whose operations rest for ever longer.
pub(crate) fn latencies(size: &Size) -> Checked {
    let lines = [("RACE", pairs(RACE)), ("SMART-HT", doorbells(Contention::SMART))];
    let mut points = Vec::new();
    for (name, ways) in lines {
        for rest in RESTS {
            let mut point = point(size, &format!("{name}, rest {rest} µs"), Mix::ReadOnly, 96, ways, 0.0);
            point.setup.work.rest = Duration::from_micros(rest);
            points.push(point);
        }
    }
    checked(Bench::load(size)?.measure(&points), causes::hash_latencies)
}

/// Figure 14a: updates with one part of conflict avoidance after the other.
pub(crate) fn conflicts(size: &Size) -> Checked {
    let throttled = Contention { throttling: Throttling::Adaptive, ..RACE };
    let growing = Backoff { growth: Growth::Doubling, ..Backoff::SMART };
    let lines = [
        ("without", throttled),
        ("+ back-off", Contention { backoff: growing, ..throttled }),
        ("+ dynamic limit", Contention { backoff: Backoff::SMART, ..throttled }),
        ("+ tasks bounded", Contention::SMART),
    ];
    let mut points = Vec::new();
    for ((name, contention), values) in lines.into_iter().zip(paper::FIGURE_14) {
        for (threads, paper) in paper::FIGURE_14_THREADS.into_iter().zip(values) {
            points.push(point(size, name, Mix::WriteOnly, threads, doorbells(contention), paper));
        }
    }
    checked(Bench::load(size)?.measure(&points), causes::conflicts)
}

/// YCSB A by RACE with atomics in memory as quick as the card's pipeline: then nothing collapses. Threads have registers of their own, because 96
/// that share them wait for them as soon as they do not wait for a slot.
fn quick_atomics(bench: &Bench, size: &Size) -> Result<Check, String> {
    let points = [(8, true), (96, true), (96, false)].map(|(threads, is_quick)| {
        let mut point = point(size, "RACE", Mix::WriteIntensive, threads, doorbells(RACE), 0.0);
        if is_quick {
            point.setup.calibration = point.setup.calibration.with_quick_atomics();
        }
        point
    });
    let rows = bench.measure(&points)?;
    let [few, many, slow] = [&rows[0], &rows[1], &rows[2]].map(|row| row[MOPS]);
    Ok(Check {
        claim: "cause: with a register each and atomics of 9 ns, 96 threads do at least half of what 8 do; with 0.45 µs they do not".to_owned(),
        found: format!("{few:.2} → {many:.2} Mop/s; {slow:.2} with 0.45 µs"),
        holds: many >= 0.5 * few && slow < 0.5 * few,
    })
}

/// Ways of sharing a card and of treating contention.
pub(super) type Ways = (Resources, Contention);

pub(super) fn pairs(contention: Contention) -> Ways {
    (Resources::QueuePairPerThread, contention)
}

pub(super) fn doorbells(contention: Contention) -> Ways {
    (Resources::DoorbellPerThread, contention)
}

fn point(
    size: &Size,
    name: &str,
    mix: Mix,
    threads: u32,
    (resources, contention): Ways,
    paper: f64,
) -> Point {
    let window = Duration::from_micros(size.window_us);
    let window = if mix == Mix::ReadOnly { window } else { window * UPDATING_WINDOWS };
    let warm_up = match (contention.throttling, mix) {
        (Throttling::Adaptive, _) => TRIALS,
        (_, Mix::ReadOnly) => Duration::from_micros(size.warm_up_us),
        (_, Mix::WriteOnly) => GATHERING,
        _ => LONG_GATHERING,
    };
    let calibration = Calibration::CX6_200_PCIE3;
    let (clients, seed, work) = (1, size.seed, Work { mix, rest: Duration::ZERO });
    let setup = Setup { calibration, resources, contention, clients, threads, warm_up, window, seed, work };
    Point { name: name.to_owned(), setup, paper }
}

/// A loaded table, and which of its keys operations choose.
struct Bench {
    table: Image,
    ranks: Zipfian,
}

impl Bench {
    fn load(size: &Size) -> Result<Self, String> {
        let ranks = Zipfian::new(PAPER_KEYS, DEFAULT_THETA).map_err(|error| error.to_string())?;
        Ok(Self { table: Image::load(size.keys.min(MOST_KEYS))?, ranks })
    }

    /// Measures all points.
    fn measure(&self, points: &[Point]) -> Result<Vec<Row>, String> {
        measure(points, |setup| threads::run(setup, &self.table, &self.ranks), Point::row)
    }
}
