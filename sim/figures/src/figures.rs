//! All figures, by paper and number: what `fatbtree figures` makes.

use serde::Serialize;

use super::card::Calibration;
use super::column::{GAIN, MOPS, OF_KEYS, OF_MEMORY, OF_OPERATIONS, OF_SWITCHES, OF_THREADS};
use super::dolphin::{caches, inserts, memory, scans, switches, traces, ycsb};
use super::fat_btree::{layers, nodes, skews};
use super::key_kinds::key_kinds;
use super::locks::locks;
use super::reads::reads;
use super::smart::{Check, Checked, figure_3, figure_4, figure_13, hash, table_1, transactions, tree};
use super::structures::side_by_side;
use super::table::{Row, Table};
use super::writes::writes;
use super::{Mix, Size, Skew};

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
    /// No paper: all structures side by side.
    Structures,
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
    run: Run,
}

type Rows = Result<Vec<Row>, String>;

/// Source of a figure's rows.
#[derive(Debug)]
enum Run {
    /// Operations of one workload, by several configurations. Rows may have other workloads, and say so.
    Operations(Skew, Mix, fn(&Size, Skew, Mix) -> Rows),
    /// Threads of clients that share cards.
    Threads(fn(&Size) -> Checked),
    /// Bytes that indexes take.
    Memory(fn(&Size) -> Rows),
    /// Round trips with what switches hold.
    Switches(fn(&Size) -> Rows),
    /// Round trips of each kind of keys.
    Keys(fn(&Size) -> Rows),
}

/// A figure that was made.
#[derive(Debug, Serialize)]
pub struct Made {
    /// The figure.
    #[serde(skip)]
    pub figure: &'static Figure,
    title: &'static str,
    /// Words that follow the title for people.
    #[serde(skip)]
    pub note: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    calibration: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    skew: Option<Skew>,
    /// Mix of operations, of the first rows; `None` unless all rows are operations of one workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mix: Option<Mix>,
    /// Results.
    pub rows: Table,
    /// Checks of the cause; `None` if the figure has no such checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checks: Option<Vec<Check>>,
}

impl Figure {
    /// Makes the figure.
    ///
    /// # Errors
    /// A wrong answer, an operation that failed, or a plan that cannot be made.
    pub fn run(&'static self, size: &Size) -> Result<Made, String> {
        let made = |layout, rows| Made {
            figure: self,
            title: self.title,
            note: String::new(),
            calibration: None,
            skew: None,
            mix: None,
            rows: Table::new(layout, rows),
            checks: None,
        };
        Ok(match self.run {
            Run::Operations(skew, mix, run) => {
                let mut rows = run(size, skew, mix)?;
                let first = rows.first().map_or(1.0, |row| row[MOPS]);
                rows.iter_mut().for_each(|row| row.set(GAIN, row[MOPS] / first));
                let note = if self.paper == Paper::Dolphin { String::new() } else { format!(", {mix:?}") };
                Made { note, skew: Some(skew), mix: Some(mix), ..made(&OF_OPERATIONS, rows) }
            }
            Run::Threads(run) => {
                let (rows, checks) = run(size)?;
                let calibration = Some(Calibration::CX6_200_PCIE3.name);
                Made { calibration, checks: Some(checks), ..made(&OF_THREADS, rows) }
            }
            Run::Memory(run) => {
                Made { note: format!(", scaled from {} keys", size.keys), ..made(&OF_MEMORY, run(size)?) }
            }
            Run::Switches(run) => made(&OF_SWITCHES, run(size)?),
            Run::Keys(run) => made(&OF_KEYS, run(size)?),
        })
    }
}

const fn of(paper: Paper, number: &'static str, title: &'static str, run: Run) -> Figure {
    Figure { paper, number, title, run }
}

use Mix::{ReadIntensive, ReadOnly, WriteIntensive, WriteOnly};
use Paper::{Dolphin, FatBtree, Sherman, Smart, Structures};
use Run::{Keys, Memory, Operations, Switches, Threads};
use Skew::{Skewed, Uniform};

/// All figures, in the order of the papers.
#[rustfmt::skip] // a line for each
pub static FIGURES: [Figure; 39] = [
    of(Sherman, "10", "Figure 10, skewed", Operations(Skewed, WriteOnly, writes)),
    of(Sherman, "10", "Figure 10, skewed", Operations(Skewed, WriteIntensive, writes)),
    of(Sherman, "10", "Figure 10, skewed", Operations(Skewed, ReadIntensive, writes)),
    of(Sherman, "11", "Figure 11, uniform", Operations(Uniform, WriteOnly, writes)),
    of(Sherman, "11", "Figure 11, uniform", Operations(Uniform, WriteIntensive, writes)),
    of(Sherman, "11", "Figure 11, uniform", Operations(Uniform, ReadIntensive, writes)),
    of(Sherman, "16", "Figure 16, locks taken and given back", Operations(Skewed, WriteOnly, locks)),
    of(Sherman, "reads", "Reads, skewed", Operations(Skewed, ReadOnly, reads)),
    of(Sherman, "reads", "Reads, uniform", Operations(Uniform, ReadOnly, reads)),
    of(FatBtree, "7", "Figure 7, how skewed lookups are", Operations(Skewed, ReadOnly, skews)),
    of(FatBtree, "8", "Figure 8, nodes of each layer below the fat root", Operations(Skewed, ReadOnly, nodes)),
    of(FatBtree, "9", "Figure 9, layers below the fat root", Operations(Skewed, ReadOnly, layers)),
    of(Smart, "3", "Figure 3, threads and what they share, batches of 8", Threads(figure_3)),
    of(Smart, "4", "Figure 4, threads and batches, a doorbell a thread", Threads(figure_4)),
    of(Smart, "5", "Figure 5a, updates of a hash table", Threads(hash::updates)),
    of(Smart, "7", "Figure 7, a hash table: threads, and clients of 96 threads", Threads(hash::throughput)),
    of(Smart, "8", "Figure 8, a hash table", Threads(hash::techniques)),
    of(Smart, "9", "Figure 9, searches of a hash table, 96 threads", Threads(hash::latencies)),
    of(Smart, "10", "Figure 10, transactions", Threads(transactions::commits)),
    of(Smart, "11", "Figure 11, latencies of transactions, 96 threads", Threads(transactions::latencies)),
    of(Smart, "12", "Figure 12a to c, a B-link tree in loopback", Threads(tree::speculative)),
    of(Smart, "led", "A B-link tree in loopback, led by switches", Threads(tree::led)),
    of(Smart, "13", "Figure 13, throttling", Threads(figure_13)),
    of(Smart, "14", "Figure 14a, updates of a hash table, and avoiding conflicts", Threads(hash::conflicts)),
    of(Smart, "table-1", "Table 1, a number of threads that changes, batches of 64", Threads(table_1)),
    of(Dolphin, "6", "Figure 6a, YCSB A, Zipf 0.99, caches (paper at 800 MB: Dolphin × 1.51 Sherman)",
        Operations(Skewed, WriteIntensive, caches)),
    of(Dolphin, "6", "Figure 6c, YCSB A, uniform, caches (paper at 200 MB: Dolphin × 1.16 and more)",
        Operations(Uniform, WriteIntensive, caches)),
    of(Dolphin, "7", "Figure 7a, YCSB A, Zipf 0.99 (paper: Dolphin × 1.25 to 1.45, p50 5.5 µs, others + 1.4 to 2.5)",
        Operations(Skewed, WriteIntensive, ycsb)),
    of(Dolphin, "7", "Figure 7b, YCSB C, Zipf 0.99 (paper: Dolphin and Sherman alike)", Operations(Skewed, ReadOnly, ycsb)),
    of(Dolphin, "7", "Figure 7c, LOAD (paper: Dolphin and Sherman alike)", Operations(Uniform, WriteOnly, inserts)),
    of(Dolphin, "8", "Figure 8, scans of 100 keys, uniform (paper: Dolphin and Sherman alike; 2 to 3 READs)",
        Operations(Uniform, ReadOnly, scans)),
    of(Dolphin, "9", "Figure 9, made traces (paper, Twitter's clusters 8 and 9: Dolphin best, then Sherman slightly best)",
        Operations(Skewed, WriteIntensive, traces)),
    of(Dolphin, "table-2", "Table II, bytes for 512 million keys", Memory(memory)),
    of(Dolphin, "switches", "Switches that lead clients, half gets and half updates", Switches(switches)),
    of(Structures, "skewed", "All structures, Zipf 0.99", Operations(Skewed, ReadOnly, side_by_side)),
    of(Structures, "skewed", "All structures, Zipf 0.99", Operations(Skewed, WriteIntensive, side_by_side)),
    of(Structures, "uniform", "All structures, uniform", Operations(Uniform, ReadOnly, side_by_side)),
    of(Structures, "uniform", "All structures, uniform", Operations(Uniform, WriteIntensive, side_by_side)),
    of(Structures, "keys", "Kinds of keys, Zipf 0.99, values of 16 bytes", Keys(key_kinds)),
];
