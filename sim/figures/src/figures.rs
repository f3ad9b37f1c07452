//! All figures, by paper and number: what `fatbtree figures` makes.

use serde::Serialize;

use super::dolphin::{MemoryRow, SwitchRow, caches, inserts, memory, scans, switches, traces, ycsb};
use super::fat_btree::{layers, nodes, skews};
use super::locks::locks;
use super::reads::reads;
use super::smart::{
    Check, SmartRow, figure, figure_3, figure_4, figure_13, hash, table_1, transactions, tree,
};
use super::writes::writes;
use super::{Mix, Row, Size, Skew};

/// A paper whose figures are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paper {
    /// Sherman, and reads with switches.
    Sherman,
    /// Fat-B+Tree.
    FatBtree,
    /// SMART.
    Smart,
    /// Dolphin, and switches that lead it.
    Dolphin,
}

/// Rows of a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Rows {
    /// Operations of one workload, by several configurations.
    Operations {
        /// Distribution of keys. Rows may have others.
        skew: Skew,
        /// Mix of operations, of the first rows.
        mix: Mix,
        /// Results.
        rows: Vec<Row>,
    },
    /// Threads of clients that share cards.
    Threads {
        /// Name of the modelled cluster.
        calibration: &'static str,
        /// Results, with the paper's.
        rows: Vec<SmartRow>,
        /// Checks of the cause.
        checks: Vec<Check>,
    },
    /// Bytes that indexes take.
    Memory(Vec<MemoryRow>),
    /// Round trips with what switches hold.
    Switches(Vec<SwitchRow>),
}

/// A figure of a paper.
#[derive(Debug)]
pub struct Figure {
    /// The paper.
    pub paper: Paper,
    /// Number in the paper, or a word for what it has not.
    pub number: &'static str,
    /// Title for people, with what the paper says.
    pub title: &'static str,
    run: fn(&Size) -> Result<Rows, String>,
}

impl Figure {
    /// Makes the figure.
    ///
    /// # Errors
    /// A wrong answer, an operation that failed, or a plan that cannot be made.
    pub fn run(&self, size: &Size) -> Result<Rows, String> {
        (self.run)(size)
    }
}

const fn of(
    paper: Paper,
    number: &'static str,
    title: &'static str,
    run: fn(&Size) -> Result<Rows, String>,
) -> Figure {
    Figure { paper, number, title, run }
}

fn written(size: &Size, skew: Skew, mix: Mix) -> Result<Rows, String> {
    Ok(Rows::Operations { skew, mix, rows: writes(size, skew, mix)? })
}

fn read(size: &Size, skew: Skew) -> Result<Rows, String> {
    Ok(Rows::Operations { skew, mix: Mix::ReadOnly, rows: reads(size, skew)? })
}

fn locked(size: &Size) -> Result<Rows, String> {
    Ok(Rows::Operations { skew: Skew::Skewed, mix: Mix::WriteOnly, rows: locks(size)? })
}

/// Rows say how skewed they are.
fn planned(rows: Result<Vec<Row>, String>) -> Result<Rows, String> {
    Ok(Rows::Operations { skew: Skew::Skewed, mix: Mix::ReadOnly, rows: rows? })
}

use Mix::{ReadIntensive, ReadOnly, WriteIntensive, WriteOnly};
use Paper::{Dolphin, FatBtree, Sherman, Smart};
use Skew::{Skewed, Uniform};

/// All figures, in the order of the papers.
pub static FIGURES: [Figure; 33] = [
    of(Sherman, "10", "Figure 10, skewed", |size| written(size, Skewed, WriteOnly)),
    of(Sherman, "10", "Figure 10, skewed", |size| written(size, Skewed, WriteIntensive)),
    of(Sherman, "10", "Figure 10, skewed", |size| written(size, Skewed, ReadIntensive)),
    of(Sherman, "11", "Figure 11, uniform", |size| written(size, Uniform, WriteOnly)),
    of(Sherman, "11", "Figure 11, uniform", |size| written(size, Uniform, WriteIntensive)),
    of(Sherman, "11", "Figure 11, uniform", |size| written(size, Uniform, ReadIntensive)),
    of(Sherman, "16", "Figure 16, locks taken and given back", locked),
    of(Sherman, "reads", "Reads, skewed", |size| read(size, Skewed)),
    of(Sherman, "reads", "Reads, uniform", |size| read(size, Uniform)),
    of(FatBtree, "7", "Figure 7, how skewed lookups are", |size| planned(skews(size))),
    of(FatBtree, "8", "Figure 8, nodes of each layer below the fat root", |size| planned(nodes(size))),
    of(FatBtree, "9", "Figure 9, layers below the fat root", |size| planned(layers(size))),
    of(Smart, "3", "Figure 3, threads and what they share, batches of 8", |size| figure(figure_3(size))),
    of(Smart, "4", "Figure 4, threads and batches, a doorbell a thread", |size| figure(figure_4(size))),
    of(Smart, "5", "Figure 5a, updates of a hash table", |size| figure(hash::updates(size))),
    of(Smart, "7", "Figure 7, a hash table: threads, and clients of 96 threads", |size| {
        figure(hash::throughput(size))
    }),
    of(Smart, "8", "Figure 8, a hash table", |size| figure(hash::techniques(size))),
    of(Smart, "9", "Figure 9, searches of a hash table, 96 threads", |size| figure(hash::latencies(size))),
    of(Smart, "10", "Figure 10, transactions", |size| figure(transactions::commits(size))),
    of(Smart, "11", "Figure 11, latencies of transactions, 96 threads", |size| {
        figure(transactions::latencies(size))
    }),
    of(Smart, "12", "Figure 12a to c, a B-link tree in loopback", |size| figure(tree::speculative(size))),
    of(Smart, "13", "Figure 13, throttling", |size| figure(figure_13(size))),
    of(Smart, "14", "Figure 14a, updates of a hash table, and avoiding conflicts", |size| {
        figure(hash::conflicts(size))
    }),
    of(Smart, "table-1", "Table 1, a number of threads that changes, batches of 64", |size| {
        figure(table_1(size))
    }),
    of(
        Dolphin,
        "6",
        "Figure 6a, YCSB A, Zipf 0.99, caches (paper at 800 MB: Dolphin × 1.51 Sherman)",
        |size| caches(size, Skewed),
    ),
    of(
        Dolphin,
        "6",
        "Figure 6c, YCSB A, uniform, caches (paper at 200 MB: Dolphin × 1.16 and more)",
        |size| caches(size, Uniform),
    ),
    of(
        Dolphin,
        "7",
        "Figure 7a, YCSB A, Zipf 0.99 (paper: Dolphin × 1.25 to 1.45, p50 5.5 µs, others + 1.4 to 2.5)",
        |size| ycsb(size, WriteIntensive),
    ),
    of(Dolphin, "7", "Figure 7b, YCSB C, Zipf 0.99 (paper: Dolphin and Sherman alike)", |size| {
        ycsb(size, ReadOnly)
    }),
    of(Dolphin, "7", "Figure 7c, LOAD (paper: Dolphin and Sherman alike)", inserts),
    of(
        Dolphin,
        "8",
        "Figure 8, scans of 100 keys, uniform (paper: Dolphin and Sherman alike; 2 to 3 READs)",
        scans,
    ),
    of(
        Dolphin,
        "9",
        "Figure 9, made traces (paper, Twitter's clusters 8 and 9: Dolphin best, then Sherman slightly best)",
        traces,
    ),
    of(Dolphin, "table-2", "Table II, bytes for 512 million keys", |size| memory(size).map(Rows::Memory)),
    of(Dolphin, "switches", "Switches that lead clients, half gets and half updates", |size| {
        switches(size).map(Rows::Switches)
    }),
];
