//! A B-link tree in loopback: threads of one client and the memory server share a card (SMART, figure 12a to c).
//!
//! ```text
//!   Sherman+                a queue pair a thread    READ of a leaf: 1024 bytes
//!   + speculative lookup    the same                 READs of the header's line and the entry's: 128 bytes
//!   SMART-BT                a doorbell a thread      the same, requests throttled, conflicts avoided
//! ```

use fatbtree_blink::{LeafKind, Start, TreeConfig, ValueLayout};
use fatbtree_remote_memory::Contention;

use super::paper::{FIGURE_12, FIGURE_12_BATCH, FIGURE_12_THREADS};
use super::{Checked, TRIALS, causes};
use crate::bench::{Cache, Clients, OfTrees, Setup, Workload, load_on, measure};
use crate::card::{Calibration, Resources};
use crate::column::{MOPS, NAME};
use crate::reads::{Planned, plan_for};
use crate::table::Row;
use crate::writes::sherman_tree;
use crate::{Mix, Size, Skew};

/// Time in which threads fill the entry cache, before anything is measured.
const FILLING_US: u64 = 8_000;
/// Bytes of a place in the entry cache, and of one in the paper's.
const PLACE: u64 = 24;

/// A line of the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Sherman,
    Speculative,
    SmartBt,
    /// Clients that remember nothing, led by switches.
    Led,
}

impl Line {
    /// Those of the paper.
    const PUBLISHED: [Self; 3] = [Self::Sherman, Self::Speculative, Self::SmartBt];

    fn name(self) -> &'static str {
        match self {
            Self::Sherman => "Sherman+",
            Self::Speculative => "+ speculative lookup",
            Self::SmartBt => "SMART-BT",
            Self::Led => "led",
        }
    }
}

/// Keys whose share of Zipf-distributed accesses, of so many keys, is the share that the paper's 1,000,000 places can have of its 10^8
/// keys. So a smaller tree with a smaller cache asks the cache the same.
fn places(keys: u64) -> u64 {
    // The generalized harmonic number of order 0.99, by the Euler-Maclaurin formula.
    let harmonic = |n: f64| (n.powf(0.01) - 1.0) / 0.01 + 0.58;
    let share = harmonic(1e6) / harmonic(1e8);
    (1.0 + 0.01 * (share * harmonic(keys as f64) - 0.58)).powi(100) as u64
}

/// Runs threads with `size.depth` operations each over a tree on one server. All inner nodes are in the threads' one index cache, or in switches.
pub(super) fn tree_threads(
    size: &Size,
    threads: u16,
    mix: Mix,
    line: Line,
    tree: TreeConfig,
) -> Result<OfTrees, String> {
    let (resources, contention) = match line {
        Line::Sherman | Line::Speculative => (Resources::QueuePairPerThread, Contention::SHERMAN),
        Line::SmartBt | Line::Led => (Resources::DoorbellPerThread, Contention::SMART),
    };
    let own = Setup::new(format!("{}, {mix:?}", line.name()), tree, Workload::new(Skew::Skewed, mix));
    let (start, cache) =
        if line == Line::Led { (Start::IndexRead, Cache::None) } else { (own.start, own.cache) };
    let entries = match line {
        Line::Sherman | Line::Led => 0,
        Line::Speculative | Line::SmartBt => PLACE * places(size.keys),
    };
    let calibration = Calibration::CX6_200_PCIE3;
    let clients = Clients::Threads(threads, resources);
    let setup = Setup { entries, calibration, clients, contention, start, cache, ..own };
    let warm_up_us = match line {
        Line::SmartBt | Line::Led => TRIALS.as_nanos() / 1_000,
        Line::Sherman | Line::Speculative => FILLING_US,
    };
    let size = &Size { warm_up_us: warm_up_us.max(size.warm_up_us), ..*size };
    let cluster = load_on(1, tree, size, true)?;
    let plan = (line == Line::Led).then(|| plan_for(&cluster, size, Skew::Skewed)).transpose()?;
    measure(&setup, size, &cluster, |world, links| {
        if let Some(plan) = plan {
            world.set_switches(Planned { plan, links });
        }
    })
}

/// Figure 12a to c, and the checks of its cause.
pub(crate) fn speculative(size: &Size) -> Checked {
    let size = &Size { depth: FIGURE_12_BATCH, ..*size };
    let tree = sherman_tree()?;
    let mut rows = Vec::new();
    for (mix, values) in FIGURE_12 {
        for (line, paper) in Line::PUBLISHED.into_iter().zip(values) {
            let measured = tree_threads(size, FIGURE_12_THREADS, mix, line, tree)?;
            rows.push(row(size, measured.row.text(NAME), &measured, paper));
        }
    }
    // Leaves as short as what a speculative lookup reads.
    let short =
        TreeConfig::new(tree.fan_out(), 128, ValueLayout::Inline(8)).map_err(|error| error.to_string())?;
    let of_short = |line| tree_threads(size, FIGURE_12_THREADS, Mix::ReadOnly, line, short);
    let [with_short, speculating] =
        [of_short(Line::Sherman)?, of_short(Line::Speculative)?].map(|it| it.row[MOPS]);
    let checks = causes::speculative(&rows, with_short, speculating);
    Ok((rows, checks))
}

/// Lookups by as many threads of clients that remember nothing, led by switches that know all leaves: what leaves of buckets save the card. No paper
/// has it. Beside them the lines of figure 12, whose clients remember all inner nodes, or all of these and places.
pub(crate) fn led(size: &Size) -> Checked {
    let size = &Size { depth: FIGURE_12_BATCH, ..*size };
    let sherman = sherman_tree()?;
    let plain = TreeConfig::new(16, 1024, ValueLayout::SHORT).map_err(|error| error.to_string())?;
    let buckets = plain.with_leaves(LeafKind::Buckets).map_err(|error| error.to_string())?;
    let mut rows = Vec::new();
    for (line, tree, name) in [
        (Line::Sherman, sherman, None),
        (Line::SmartBt, sherman, None),
        (Line::Led, plain, Some("led, plain leaves")),
        (Line::Led, buckets, Some("led, leaves of buckets")),
    ] {
        let measured = tree_threads(size, FIGURE_12_THREADS, Mix::ReadOnly, line, tree)?;
        rows.push(row(size, name.unwrap_or(measured.row.text(NAME)), &measured, 0.0));
    }
    let checks = causes::led(&rows);
    Ok((rows, checks))
}

fn row(size: &Size, name: &str, of: &OfTrees, paper: f64) -> Row {
    let hits = match of.speculated_percent {
        0.0 => String::new(),
        hits => format!(" ({hits:.0} % of lookups by a place)"),
    };
    let name = format!("{name}{hits}");
    of.measured.of_threads(&name, FIGURE_12_THREADS.into(), size.depth, of.row[MOPS], paper)
}
