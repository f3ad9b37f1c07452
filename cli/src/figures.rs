//! `fatbtree figures`: Sherman's figures 10 and 11 in virtual time, and reads with switches.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::Args;
use comfy_table::{Table, presets};
use fatbtree_sim::figures::{Mix, Row, Size, Skew, reads, writes};
use serde::Serialize;

use crate::output::Output;
use crate::progress;

/// Sherman's figures 10 and 11 in virtual time, and reads with switches.
///
/// 8 clients and 8 memory servers, verb by verb, without faults: the index's own code, the simulator's table of service times, and lines
/// at cards, links and atomics. FG+, then one technique after the other, with all inner nodes in the clients' caches; then lookups by
/// clients that cache little, with and without switches. Nothing here takes real time into account.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree figures                           all of it: some minutes
  fatbtree figures --keys 30000 --window 500   small and quick
  fatbtree figures --json figures.json       the same rows as JSON, too
  fatbtree figures --depth 32                32 operations of each client in flight instead of 16")]
pub(crate) struct Arguments {
    /// Keys that operations are about; two of three are in the tree at first.
    #[arg(long, default_value_t = Size::default().keys, value_parser = clap::value_parser!(u64).range(1_000..=20_000_000))]
    keys: u64,
    /// Operations in flight of each of the 8 clients.
    #[arg(long, default_value_t = Size::default().depth, value_parser = clap::value_parser!(u32).range(1..=48))]
    depth: u32,
    /// Virtual time that is measured, in µs; before it a fifth of that, unmeasured.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = Size::default().window_us, value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    window: u64,
    /// Decides everything else.
    #[arg(long, default_value_t = Size::default().seed)]
    seed: u64,
    /// Writes the rows to a file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Rows of one workload.
#[derive(Serialize)]
struct Figure {
    title: &'static str,
    skew: Skew,
    mix: Mix,
    rows: Vec<Row>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let &Arguments { keys, depth, window, seed, .. } = arguments;
    let json = Output::optional("--json", arguments.json.as_ref())?;
    let size = Size { keys, depth, warm_up_us: window / 5, window_us: window, seed };
    let bar = progress::bar("figures", 2 * (Mix::WRITING.len() as u64 + 1));
    let mut figures = Vec::new();
    for (skew, title) in [(Skew::Skewed, "Figure 10, skewed"), (Skew::Uniform, "Figure 11, uniform")] {
        for mix in Mix::WRITING {
            let rows = writes(&size, skew, mix).map_err(|why| anyhow!(why))?;
            figures.push(Figure { title, skew, mix, rows });
            bar.inc(1);
        }
    }
    for (skew, title) in [(Skew::Skewed, "Reads, skewed"), (Skew::Uniform, "Reads, uniform")] {
        let rows = reads(&size, skew).map_err(|why| anyhow!(why))?;
        figures.push(Figure { title, skew, mix: Mix::ReadOnly, rows });
        bar.inc(1);
    }
    bar.finish_and_clear();
    for figure in &figures {
        println!("{}, {:?}\n{}\n", figure.title, figure.mix, table(figure));
    }
    if let Some(file) = json {
        file.write("rows", &(serde_json::to_string_pretty(&figures)? + "\n"))?;
    }
    Ok(())
}

fn table(figure: &Figure) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "",
        "Mop/s",
        "× first",
        "p50 µs",
        "p90 µs",
        "p99 µs",
        "trips/write",
        "trips/read",
        "bytes/write",
        "retries/write",
        "handed over %",
    ]);
    let first = figure.rows.first().map_or(1.0, |row| row.mops);
    for row in &figure.rows {
        table.add_row([
            row.name.clone(),
            format!("{:.2}", row.mops),
            format!("{:.2}", row.mops / first),
            format!("{:.1}", row.p50_us),
            format!("{:.1}", row.p90_us),
            format!("{:.1}", row.p99_us),
            format!("{:.2}", row.write_round_trips),
            format!("{:.2}", row.read_round_trips),
            format!("{:.0}", row.written_bytes),
            format!("{:.2}", row.lock_retries),
            format!("{:.1}", row.handed_over_percent),
        ]);
    }
    table
}
