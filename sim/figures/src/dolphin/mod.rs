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
use serde::Serialize;

pub use memory::{MemoryRow, memory};
pub use paper::{PUBLISHED, Published};
pub use switches::{SwitchRow, switches};

use self::load::{Image, Parts};
use self::run::Setup;
use super::bench::{self, Cache, Clients, KeyOrder, load_keys};
use super::card::Calibration;
use super::replay::Replay;
use super::writes::sherman_tree;
use super::{Mix, Row, Size, Skew};

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

/// A figure of Dolphin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DolphinFigure {
    /// Figure 6a: YCSB A with Zipf 0.99, caches of several sizes.
    CacheSkewed,
    /// Figure 6c: the same, uniform.
    CacheUniform,
    /// Figure 7a: YCSB A.
    Updates,
    /// Figure 7b: YCSB C.
    Reads,
    /// Figure 7c: LOAD.
    Inserts,
    /// Figure 8: scans of 100 keys, alone and with as many insertions.
    Scans,
    /// Figure 9: traces.
    Traces,
}

impl DolphinFigure {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::CacheSkewed,
        Self::CacheUniform,
        Self::Updates,
        Self::Reads,
        Self::Inserts,
        Self::Scans,
        Self::Traces,
    ];

    /// Number in the paper.
    #[must_use]
    pub fn number(self) -> &'static str {
        match self {
            Self::CacheSkewed | Self::CacheUniform => "6",
            Self::Updates | Self::Reads | Self::Inserts => "7",
            Self::Scans => "8",
            Self::Traces => "9",
        }
    }

    /// Title for people, with what the paper says.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::CacheSkewed => {
                "Figure 6a, YCSB A, Zipf 0.99, caches (paper at 800 MB: Dolphin × 1.51 Sherman)"
            }
            Self::CacheUniform => {
                "Figure 6c, YCSB A, uniform, caches (paper at 200 MB: Dolphin × 1.16 and more)"
            }
            Self::Updates => {
                "Figure 7a, YCSB A, Zipf 0.99 (paper: Dolphin × 1.25 to 1.45, p50 5.5 µs, others + 1.4 to 2.5)"
            }
            Self::Reads => "Figure 7b, YCSB C, Zipf 0.99 (paper: Dolphin and Sherman alike)",
            Self::Inserts => "Figure 7c, LOAD (paper: Dolphin and Sherman alike)",
            Self::Scans => {
                "Figure 8, scans of 100 keys, uniform (paper: Dolphin and Sherman alike; 2 to 3 READs)"
            }
            Self::Traces => {
                "Figure 9, made traces (paper, Twitter's clusters 8 and 9: Dolphin best, then Sherman slightly best)"
            }
        }
    }

    /// Distribution of keys.
    #[must_use]
    pub fn skew(self) -> Skew {
        match self {
            Self::CacheSkewed | Self::Updates | Self::Reads | Self::Traces => Skew::Skewed,
            Self::CacheUniform | Self::Inserts | Self::Scans => Skew::Uniform,
        }
    }

    /// Mix of operations, of the first rows.
    #[must_use]
    pub fn mix(self) -> Mix {
        match self {
            Self::CacheSkewed | Self::CacheUniform | Self::Updates | Self::Traces => Mix::WriteIntensive,
            Self::Reads | Self::Scans => Mix::ReadOnly,
            Self::Inserts => Mix::WriteOnly,
        }
    }
}

/// One line of a figure, by both indexes.
#[derive(Clone, Copy, Debug)]
struct Line {
    order: KeyOrder,
    mix: Mix,
    /// Bytes of a client's cache as a part of the paper's 512 million keys' worth; `None`: all it wants.
    cache_mb: Option<u64>,
    scans: u32,
    inserts: bool,
    /// Share of `get` in a trace.
    trace: Option<f64>,
}

impl Line {
    fn of(figure: DolphinFigure, order: KeyOrder) -> Self {
        Self { order, mix: figure.mix(), cache_mb: None, scans: 0, inserts: false, trace: None }
    }

    fn name(&self) -> String {
        if let Some(gets) = self.trace {
            return format!("{:.0} % gets", 100.0 * gets);
        }
        let order = match self.order {
            KeyOrder::Dense => "dense",
            KeyOrder::Scrambled => "scrambled",
        };
        let cache = self.cache_mb.map_or(String::new(), |mb| format!(", {mb} MB"));
        let inserts = if self.scans > 0 && self.inserts { ", half insertions" } else { "" };
        format!("{order}{cache}{inserts}")
    }
}

/// Runs a figure: for each line Sherman, Sherman as published where that takes other round trips, and Dolphin.
///
/// # Errors
/// A wrong answer, or an operation that failed.
pub fn dolphin(size: &Size, figure: DolphinFigure) -> Result<Vec<Row>, String> {
    let both = || [KeyOrder::Dense, KeyOrder::Scrambled].into_iter();
    let lines: Vec<Line> = match figure {
        DolphinFigure::CacheSkewed | DolphinFigure::CacheUniform => [50, 100, 200, 400, 800]
            .into_iter()
            .map(|mb| Line { cache_mb: Some(mb), ..Line::of(figure, KeyOrder::Dense) })
            .collect(),
        DolphinFigure::Updates | DolphinFigure::Reads => {
            both().map(|order| Line::of(figure, order)).collect()
        }
        DolphinFigure::Inserts => {
            both().map(|order| Line { inserts: true, ..Line::of(figure, order) }).collect()
        }
        DolphinFigure::Scans => both()
            .flat_map(|order| {
                let alone = Line { scans: SCAN, ..Line::of(figure, order) };
                [alone, Line { mix: Mix::WriteIntensive, inserts: true, ..alone }]
            })
            .collect(),
        DolphinFigure::Traces => [0.5, 1.0]
            .into_iter()
            .map(|gets| Line {
                trace: Some(gets),
                mix: if gets == 1.0 { Mix::ReadOnly } else { Mix::WriteIntensive },
                ..Line::of(figure, KeyOrder::Scrambled)
            })
            .collect(),
    };
    let mut rows = Vec::new();
    for line in lines {
        let replay =
            || line.trace.map(|gets| Replay::make(size.keys, gets, size.seed).map(Rc::new)).transpose();
        rows.push(sherman(size, figure, &line, Techniques::ALL, replay()?)?);
        if line.mix != Mix::ReadOnly {
            rows.push(sherman(size, figure, &line, Techniques::SHERMAN, replay()?)?);
        }
        rows.push(of_dolphin(size, figure, &line, replay()?)?);
    }
    Ok(rows)
}

/// Keys that are loaded: those of a trace that are there at first; every key, or every other one if the rest is to be inserted.
fn keys(size: &Size, line: &Line, replay: Option<&Replay>) -> Vec<u64> {
    if let Some(replay) = replay {
        return replay.loaded.clone();
    }
    let step = if line.inserts { 2 } else { 1 };
    (0..size.keys).map(|rank| line.order.key(rank * step)).collect()
}

/// Bytes of a client's cache.
fn cache_bytes(size: &Size, line: &Line) -> Option<u64> {
    line.cache_mb.map(|mb| (mb as f64 * 1e6 * size.keys as f64 / PAPER_KEYS as f64) as u64)
}

fn sherman(
    size: &Size,
    figure: DolphinFigure,
    line: &Line,
    techniques: Techniques,
    replay: Option<Rc<Replay>>,
) -> Result<Row, String> {
    let tree = sherman_tree()?;
    let cluster = load_keys(SERVERS, tree, FILL, keys(size, line, replay.as_deref()).into_iter())?;
    let name = if techniques == Techniques::SHERMAN { "Sherman, lock before read" } else { "Sherman" };
    let setup = bench::Setup {
        techniques,
        replay,
        mix: line.mix,
        skew: figure.skew(),
        cache: cache_bytes(size, line).map_or(Cache::Full, Cache::Bytes),
        calibration: Calibration::CX5_100_IB,
        clients: Clients::Few(CLIENTS),
        order: line.order,
        scans: line.scans,
        inserts: line.inserts,
        ..bench::Setup::new(format!("{name}, {}", line.name()), tree)
    };
    bench::run(&setup, &Size { depth: THREADS, ..*size }, &cluster, |_, _| {})
}

fn of_dolphin(
    size: &Size,
    figure: DolphinFigure,
    line: &Line,
    replay: Option<Rc<Replay>>,
) -> Result<Row, String> {
    let image = Image::load_keys(Parts::one(), keys(size, line, replay.as_deref()))?;
    let setup = Setup {
        name: format!("Dolphin, {}", line.name()),
        mix: line.mix,
        skew: figure.skew(),
        cache: cache_bytes(size, line),
        order: line.order,
        scans: line.scans,
        inserts: line.inserts,
        warm: line.cache_mb.is_none(),
        led: None,
        replay,
    };
    run::run(&setup, size, &image, |_, _| {})
}
