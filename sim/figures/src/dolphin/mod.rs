//! Dolphin's figures 6 to 9 and its table II, with Sherman beside it, and switches that lead it.
//!
//! ```text
//!   4 clients × 18 operations, one after the other each ── cards, links, atomics ── 4 memory servers
//!        │ fatbtree_dolphin, NodeCache       or       fatbtree_blink with Sherman's techniques, IndexCache
//! ```
//!
//! Both run on the same modelled cluster with the same keys, in two orders: *dense*, where ranks are keys and hot keys are neighbours, as in
//! the paper; and *scrambled*, random 64-bit keys. Bytes are counted in an index that is smaller than the paper's, and scaled by its keys.
//! The public Twitter traces are not here: figure 9 has made ones in their format. Marlin and SMART-ART are not built here; their values are
//! the paper's, and marked so.

mod load;
mod memory;
mod paper;
mod run;
mod switches;
#[cfg(test)]
mod tests;
mod top;

use std::rc::Rc;

use fatbtree_blink::Techniques;

pub(super) use memory::memory;
pub use paper::published;
pub(super) use switches::switches;

use self::load::{Image, Parts};
use self::run::Setup;
use super::bench::{self, Cache, Clients, KeyOrder, Workload, load_keys};
use super::card::Calibration;
use super::replay::Replay;
use super::table::Row;
use super::writes::sherman_tree;
use super::{Mix, Size, Skew};

/// Compute servers and memory servers of the paper.
const CLIENTS: u16 = 4;
const SERVERS: u16 = 4;
/// Threads of a client, each with one operation at a time.
const THREADS: u32 = 18;
/// Keys of the paper.
const PAPER_KEYS: u64 = 512_000_000;
/// Share to which Sherman's nodes are filled, about what insertions in any order leave.
const FILL: f64 = 0.7;
/// Keys of a scan.
const SCAN: u32 = 100;

/// One line of a figure, by both indexes.
#[derive(Clone)]
struct Line {
    workload: Workload,
    /// Bytes of a client's cache as a part of the paper's 512 million keys' worth; `None`: all it wants.
    cache_mb: Option<u64>,
    /// Share of `get` in a trace.
    trace: Option<f64>,
}

impl Line {
    fn of(skew: Skew, mix: Mix, order: KeyOrder) -> Self {
        Self { workload: Workload { order, ..Workload::new(skew, mix) }, cache_mb: None, trace: None }
    }

    fn name(&self) -> String {
        if let Some(gets) = self.trace {
            return format!("{:.0} % gets", 100.0 * gets);
        }
        let order = match self.workload.order {
            KeyOrder::Dense => "dense",
            KeyOrder::Scrambled => "scrambled",
        };
        let cache = self.cache_mb.map_or(String::new(), |mb| format!(", {mb} MB"));
        let inserts = if self.workload.scans > 0 && self.workload.inserts { ", half insertions" } else { "" };
        format!("{order}{cache}{inserts}")
    }
}

/// Both orders of keys.
const ORDERS: [KeyOrder; 2] = [KeyOrder::Dense, KeyOrder::Scrambled];

/// Figure 6: caches of several sizes.
pub(super) fn caches(size: &Size, skew: Skew, mix: Mix) -> Result<Vec<Row>, String> {
    let line = |mb| Line { cache_mb: Some(mb), ..Line::of(skew, mix, KeyOrder::Dense) };
    measure(size, [50, 100, 200, 400, 800].map(line))
}

/// Figures 7a and 7b: both orders of keys.
pub(super) fn ycsb(size: &Size, skew: Skew, mix: Mix) -> Result<Vec<Row>, String> {
    measure(size, ORDERS.map(|order| Line::of(skew, mix, order)))
}

/// Figure 7c: LOAD.
pub(super) fn inserts(size: &Size, skew: Skew, mix: Mix) -> Result<Vec<Row>, String> {
    measure(
        size,
        ORDERS.map(|order| {
            let line = Line::of(skew, mix, order);
            Line { workload: Workload { inserts: true, ..line.workload }, ..line }
        }),
    )
}

/// Figure 8: scans of 100 keys, alone and with as many insertions.
pub(super) fn scans(size: &Size, skew: Skew, mix: Mix) -> Result<Vec<Row>, String> {
    let lines = ORDERS.map(|order| {
        let mut alone = Line::of(skew, mix, order);
        alone.workload.scans = SCAN;
        let mut beside = alone.clone();
        (beside.workload.mix, beside.workload.inserts) = (Mix::WriteIntensive, true);
        [alone, beside]
    });
    measure(size, lines.into_iter().flatten())
}

/// Figure 9: a trace of `mix`, and one of reads alone.
pub(super) fn traces(size: &Size, skew: Skew, mix: Mix) -> Result<Vec<Row>, String> {
    let line = |(gets, mix)| Line { trace: Some(gets), ..Line::of(skew, mix, KeyOrder::Scrambled) };
    measure(size, [(0.5, mix), (1.0, Mix::ReadOnly)].map(line))
}

/// Measures, for each line, Sherman, Sherman as published where that takes other round trips, and Dolphin.
///
/// # Errors
/// A wrong answer, or an operation that failed.
fn measure(size: &Size, lines: impl IntoIterator<Item = Line>) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for line in lines {
        let new = || {
            let replay = line.trace.map(|gets| Replay::make(size.keys, gets, size.seed).map(Rc::new));
            Ok::<_, String>(Workload { replay: replay.transpose()?, ..line.workload.clone() })
        };
        rows.push(sherman(size, &line, Techniques::ALL, new()?)?);
        if line.workload.mix != Mix::ReadOnly {
            rows.push(sherman(size, &line, Techniques::SHERMAN, new()?)?);
        }
        rows.push(of_dolphin(size, &line, new()?)?);
    }
    Ok(rows)
}

/// Keys that are loaded: those of a trace that are there at first; every key, or every other one if the rest is to be inserted.
fn keys(size: &Size, of: &Workload) -> Vec<u64> {
    if let Some(replay) = &of.replay {
        return replay.loaded.clone();
    }
    let step = if of.inserts { 2 } else { 1 };
    (0..size.keys).map(|rank| of.order.key(rank * step)).collect()
}

/// Bytes of a client's cache.
fn cache_bytes(size: &Size, line: &Line) -> Option<u64> {
    line.cache_mb.map(|mb| (mb as f64 * 1e6 * size.keys as f64 / PAPER_KEYS as f64) as u64)
}

fn sherman(size: &Size, line: &Line, techniques: Techniques, workload: Workload) -> Result<Row, String> {
    let tree = sherman_tree()?;
    let cluster = load_keys(SERVERS, tree, FILL, keys(size, &workload).into_iter())?;
    let name = if techniques == Techniques::SHERMAN { "Sherman, lock before read" } else { "Sherman" };
    let setup = bench::Setup {
        techniques,
        cache: cache_bytes(size, line).map_or(Cache::Full, Cache::Bytes),
        calibration: Calibration::CX5_100_IB,
        clients: Clients::Few(CLIENTS),
        ..bench::Setup::new(format!("{name}, {}", line.name()), tree, workload)
    };
    bench::run(&setup, &Size { depth: THREADS, ..*size }, &cluster, |_, _| {})
}

fn of_dolphin(size: &Size, line: &Line, workload: Workload) -> Result<Row, String> {
    let image = Image::load_keys(Parts::one(), keys(size, &workload))?;
    let setup = Setup {
        name: format!("Dolphin, {}", line.name()),
        workload,
        cache: cache_bytes(size, line),
        warm: line.cache_mb.is_none(),
        led: None,
    };
    run::run(&setup, size, &image, |_, _| {})
}
