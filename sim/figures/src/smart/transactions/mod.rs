//! Transactions, and what each of SMART's techniques does for them: figures 10 and 11.
//!
//! ```text
//!   FORD+                  a queue pair a thread, no pauses        ─┐
//!   + resources            a doorbell a thread                      │ 1 to 96 threads of one client, 8 transactions each,
//!   + throttling           the same, requests bounded               │ two memory servers, each with the other's backups
//!   + conflict avoidance   the same, back-off and tasks bounded    ─┘
//! ```
//!
//! Transactions are FORD's as published ([`ford`]), which SMART's techniques are applied to, and those of `fatbtree_dtx`; both on the production
//! reactor. Ours need fewer requests and doorbells: a backup is written once and has no lock, and what goes to one server in one step goes
//! with one doorbell. All addresses are known.

mod bank;
mod ford;
mod image;
mod paper;
mod threads;

use fatbtree_remote_memory::Contention;
use fatbtree_verbs::Throttling;
use fatbtree_verbs::time::Duration;

use self::image::Image;
use self::threads::Work;
use super::clients::Setup;
use super::hash::{RACE as AT_ONCE, Ways, doorbells, pairs};
use super::{Checked, TRIALS, causes, checked};
use crate::Size;
use crate::card::Calibration;
use crate::column::{ABORTED, DOORBELLS, REQUESTS};
use crate::meter::Measured;
use crate::table::Row;

/// Customers or subscribers in the paper.
const MOST: u64 = 100_000;
/// Subscribers of FORD's tables, which lie in the order of keys, with the places of absent ones. So few meet hardly more often.
const MOST_IN_ORDER: u64 = 20_000;
/// Times the window in which transactions are measured.
const WINDOWS: u64 = 4;
/// Time in which transactions gather at hot items.
const GATHERING: Duration = Duration::from_millis(5);
/// Time in which all threads claim their seats.
const CLAIMING: Duration = Duration::from_millis(10);

type Point = super::Point<Setup<Work>>;

/// A benchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bench {
    SmallBank,
    Tatp,
}

/// Transactions' protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Protocol {
    /// FORD's as published: SMART-DTX has it, too.
    Ford,
    /// That of `fatbtree_dtx`.
    Ours,
}

impl Bench {
    const ALL: [Self; 2] = [Self::SmallBank, Self::Tatp];

    const fn name(self) -> &'static str {
        match self {
            Self::SmallBank => "SmallBank",
            Self::Tatp => "TATP",
        }
    }

    const fn paper(self) -> [[f64; 5]; 2] {
        match self {
            Self::SmallBank => paper::SMALL_BANK,
            Self::Tatp => paper::TATP,
        }
    }
}

/// SMART's techniques, one after the other.
fn lines() -> [(&'static str, Ways); 4] {
    let throttled = Contention { throttling: Throttling::Adaptive, ..AT_ONCE };
    [
        ("FORD+", pairs(AT_ONCE)),
        ("+ resources", doorbells(AT_ONCE)),
        ("+ throttling", doorbells(throttled)),
        ("+ conflict avoidance", doorbells(Contention::SMART)),
    ]
}

/// Lines with our protocol: without SMART's techniques, and with all of them.
fn ours() -> [(&'static str, Ways); 2] {
    let [(_, first), .., (_, last)] = lines();
    [("fatbtree_dtx, a queue pair a thread", first), ("fatbtree_dtx, all techniques", last)]
}

/// Figure 10: commits of SmallBank and TATP. The paper has the first and the last line of FORD's protocol; the others stand where they matter.
pub(crate) fn commits(size: &Size) -> Checked {
    let mut rows = Vec::new();
    for bench in Bench::ALL {
        let mut points = Vec::new();
        for (number, line) in lines().into_iter().enumerate() {
            for (at, threads) in paper::THREADS.into_iter().enumerate() {
                let of_paper = match number {
                    0 => Some(0),
                    3 => Some(1),
                    _ => None,
                };
                let paper = of_paper.map(|line: usize| bench.paper()[line][at]);
                if paper.is_some() || [24, 96].contains(&threads) {
                    points.push(point(size, Protocol::Ford, bench, line, threads, paper.unwrap_or(0.0)));
                }
            }
        }
        rows.extend(measure(&points)?);
        let of = |line| paper::THREADS.map(|threads| point(size, Protocol::Ours, bench, line, threads, 0.0));
        rows.extend(measure(ours().map(of).as_flattened())?);
    }
    checked(Ok(rows), causes::transactions)
}

/// FORD+ of SmallBank by these numbers of threads, with the paper's values.
#[cfg(test)]
pub(super) fn ford_by(size: &Size, threads: &[(u32, f64)]) -> Result<Vec<Row>, String> {
    let [line, ..] = lines();
    let of = |&(threads, paper)| point(size, Protocol::Ford, Bench::SmallBank, line, threads, paper);
    measure(&threads.iter().map(of).collect::<Vec<_>>())
}

/// Figure 11: latencies with 96 threads.
pub(crate) fn latencies(size: &Size) -> Checked {
    let (mut rows, mut checks) = (Vec::new(), Vec::new());
    for (bench, papers) in Bench::ALL.into_iter().zip(paper::LATENCIES) {
        let [ford, .., smart] = lines();
        let points = [ford, smart].into_iter().zip(bench.paper());
        let points: Vec<_> =
            points.map(|(line, paper)| point(size, Protocol::Ford, bench, line, 96, paper[4])).collect();
        let measured = measure(&points)?;
        checks.extend(causes::latencies(bench.name(), &measured, papers));
        rows.extend(measured);
        rows.extend(measure(&ours().map(|line| point(size, Protocol::Ours, bench, line, 96, 0.0)))?);
    }
    Ok((rows, checks))
}

fn point(
    size: &Size,
    protocol: Protocol,
    bench: Bench,
    (name, (resources, contention)): (&str, Ways),
    threads: u32,
    paper: f64,
) -> Point {
    let most = if (protocol, bench) == (Protocol::Ford, Bench::Tatp) { MOST_IN_ORDER } else { MOST };
    let gathering = if contention.throttling == Throttling::Adaptive { TRIALS } else { GATHERING };
    let setup = Setup {
        calibration: Calibration::CX6_200_PCIE3,
        resources,
        contention,
        clients: 1,
        threads,
        warm_up: CLAIMING + gathering,
        window: Duration::from_micros(size.window_us) * WINDOWS,
        seed: size.seed,
        work: Work { protocol, bench, count: size.keys.min(most) },
    };
    Point { name: format!("{name}, {}", bench.name()), setup, paper }
}

/// Measures points of one protocol and one benchmark, all on the same tables.
fn measure(points: &[Point]) -> Result<Vec<Row>, String> {
    let Some(Point { setup: Setup { work, .. }, .. }) = points.first() else { return Ok(Vec::new()) };
    let image = Image::load(work.protocol, work.bench, work.count)?;
    let row = |point: &Point, measured: &Measured| {
        let (usage, tally) = (&measured.usage, &measured.tally);
        let ended = (tally.operations() + tally.aborted).max(1) as f64;
        point.row(measured).with([
            (REQUESTS, usage.requests as f64 / ended),
            (DOORBELLS, usage.doorbells as f64 / ended),
            (ABORTED, 100.0 * tally.aborted as f64 / ended),
        ])
    };
    super::measure(points, |setup| threads::run(setup, &image), row)
}
