//! `fatbtree figures`: published figures in virtual time.

use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use comfy_table::{Table, presets};
use fatbtree_figures::{
    DolphinFigure, MemoryRow, Mix, PUBLISHED, PaperFigure, Published, Row, Size, Skew, SmartFigure,
    SmartResult, SmartRow, SwitchRow, dolphin, fat_btree, locks, memory, reads, smart, switches, writes,
};
use serde::Serialize;

use crate::output::Output;
use crate::progress;

/// Sherman's figures 10, 11 and 16 in virtual time, and reads with switches; figures 7 to 9 of the Fat-B+Tree paper; or SMART's figures
/// 3, 4, 5, 7 to 11, 12a to c, 13 and 14 and its table 1; or Dolphin's figures 6 to 9, its table II, and switches that lead it.
///
/// 8 clients and 8 memory servers, verb by verb, without faults: the index's own code over modelled cards, buses, links and atomics of
/// each paper's cluster. FG+, then one technique after the other, with all inner nodes in the clients' caches; then lookups by
/// clients that cache little, with and without switches. With --of fat-btree lookups by clients that cache nothing, one at a time each, through two
/// switches: from the root and with plans of other sizes. With --of smart up to 96 threads of one client on one card, as many requests as
/// they can post, the paper's values beside them, and checks of the causes; --keys is for figures 5, 7 to 12 and 14 then, and --depth has no effect. With --of dolphin 4 clients of 18 threads and 4 memory servers, Sherman
/// beside Dolphin, the paper's own values, and round trips where switches lead clients; --depth has no effect. Nothing here takes real time into account.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree figures                           all of it: some minutes
  fatbtree figures --of fat-btree --keys 2000000   figures 7 to 9 of the Fat-B+Tree paper, with as many keys
  fatbtree figures --of smart --figure 3 --window 400   one of SMART's figures: some seconds
  fatbtree figures --of smart --window 1000  all of them: hours, nearly all for 7, 8, 10, 11 and 14
  fatbtree figures --of dolphin --keys 200000   figures 6 to 9 of Dolphin, its table II, and switches
  fatbtree figures --of dolphin --figure switches --keys 200000 --window 500   what leading it takes and saves
  fatbtree figures --keys 30000 --window 500   small and quick
  fatbtree figures --json figures.json       the same rows as JSON, too
  fatbtree figures --depth 32                32 operations of each client in flight instead of 16")]
pub(crate) struct Arguments {
    /// Paper whose figures are made.
    #[arg(long, value_name = "sherman|fat-btree|smart|dolphin", value_enum, default_value = "sherman")]
    of: Paper,
    /// One figure, with --of smart or --of dolphin (6, 7, 8, 9, table-2 or switches); otherwise all of them.
    #[arg(long, value_name = "3|4|5|6|7|8|9|10|11|12|13|14|table-1|table-2|switches")]
    figure: Option<String>,
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

#[derive(clap::ValueEnum, Clone, Copy)]
enum Paper {
    Sherman,
    FatBtree,
    Smart,
    Dolphin,
}

/// Rows of one workload.
#[derive(Serialize)]
struct Figure {
    title: &'static str,
    skew: Skew,
    mix: Mix,
    rows: Vec<Row>,
}

fn smart_figure(number: &str) -> Result<SmartFigure> {
    let numbers = SmartFigure::ALL.map(SmartFigure::number);
    let found = SmartFigure::ALL.into_iter().find(|figure| figure.number() == number);
    found.ok_or_else(|| anyhow!("no such figure: choose {}", numbers.join(", ")))
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.figure.is_some() && !matches!(arguments.of, Paper::Smart | Paper::Dolphin) {
        bail!(
            "--figure chooses one of SMART's or Dolphin's figures: add --of smart or --of dolphin, or leave --figure out"
        );
    }
    let only = arguments.figure.as_deref();
    let &Arguments { keys, depth, window, seed, .. } = arguments;
    let json = Output::optional("--json", arguments.json.as_ref())?;
    let size = Size { keys, depth, warm_up_us: window / 5, window_us: window, seed };
    let figures = match arguments.of {
        Paper::Sherman => of_sherman(&size)?,
        Paper::FatBtree => of_fat_btree(&size)?,
        Paper::Smart => return of_smart(&size, only.map(smart_figure).transpose()?, json),
        Paper::Dolphin => return of_dolphin(&size, only, json),
    };
    for figure in &figures {
        outln!("{}, {:?}\n{}\n", figure.title, figure.mix, table(figure));
    }
    if let Some(file) = json {
        file.write("rows", &(serde_json::to_string_pretty(&figures)? + "\n"))?;
    }
    Ok(())
}

fn of_sherman(size: &Size) -> Result<Vec<Figure>> {
    let bar = progress::bar("figures", 2 * (Mix::WRITING.len() as u64 + 1) + 1);
    let mut figures = Vec::new();
    for (skew, title) in [(Skew::Skewed, "Figure 10, skewed"), (Skew::Uniform, "Figure 11, uniform")] {
        for mix in Mix::WRITING {
            let rows = writes(size, skew, mix).map_err(|why| anyhow!(why))?;
            figures.push(Figure { title, skew, mix, rows });
            bar.inc(1);
        }
    }
    let (title, skew, mix) = ("Figure 16, locks taken and given back", Skew::Skewed, Mix::WriteOnly);
    figures.push(Figure { title, skew, mix, rows: locks(size).map_err(|why| anyhow!(why))? });
    bar.inc(1);
    for (skew, title) in [(Skew::Skewed, "Reads, skewed"), (Skew::Uniform, "Reads, uniform")] {
        let rows = reads(size, skew).map_err(|why| anyhow!(why))?;
        figures.push(Figure { title, skew, mix: Mix::ReadOnly, rows });
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(figures)
}

fn of_fat_btree(size: &Size) -> Result<Vec<Figure>> {
    let bar = progress::bar("figures", PaperFigure::ALL.len() as u64);
    let mut figures = Vec::new();
    for figure in PaperFigure::ALL {
        let rows = fat_btree(size, figure).map_err(|why| anyhow!(why))?;
        // Rows say how skewed they are.
        figures.push(Figure { title: figure.title(), skew: Skew::Skewed, mix: Mix::ReadOnly, rows });
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(figures)
}

fn of_smart(size: &Size, only: Option<SmartFigure>, json: Option<Output>) -> Result<()> {
    let chosen: Vec<_> =
        SmartFigure::ALL.into_iter().filter(|&figure| only.is_none_or(|only| only == figure)).collect();
    let bar = progress::bar("figures", chosen.len() as u64);
    let mut figures = Vec::new();
    for figure in chosen {
        figures.push(smart(size, figure).map_err(|why| anyhow!(why))?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    for figure in figures.iter().filter(|figure| !figure.rows.is_empty()) {
        outln!("{}\n{}", figure.title, smart_table(figure));
        for check in &figure.checks {
            outln!("{} {}: {}", if check.holds { "holds:" } else { "FAILS:" }, check.claim, check.found);
        }
        outln!();
    }
    if let Some(file) = json {
        file.write("rows", &(serde_json::to_string_pretty(&figures)? + "\n"))?;
    }
    Ok(())
}

/// Name of Dolphin's table II, and of what leading it takes.
const TABLE: &str = "table-2";
const SWITCHES: &str = "switches";

fn of_dolphin(size: &Size, only: Option<&str>, json: Option<Output>) -> Result<()> {
    let numbers = ["6", "7", "8", "9", TABLE, SWITCHES];
    if only.is_some_and(|only| !numbers.contains(&only)) {
        bail!("no such figure: choose {}", numbers.join(", "));
    }
    let is_wanted = |name: &str| only.is_none_or(|only| only == name);
    let chosen: Vec<_> = DolphinFigure::ALL.into_iter().filter(|figure| is_wanted(figure.number())).collect();
    let bar = progress::bar("figures", chosen.len() as u64 + 2);
    let mut figures = Vec::new();
    for figure in chosen {
        let rows = dolphin(size, figure).map_err(|why| anyhow!(why))?;
        figures.push(Figure { title: figure.title(), skew: figure.skew(), mix: figure.mix(), rows });
        bar.inc(1);
    }
    let bytes = if is_wanted(TABLE) { memory(size).map_err(|why| anyhow!(why))? } else { Vec::new() };
    bar.inc(1);
    let led = if is_wanted(SWITCHES) { switches(size).map_err(|why| anyhow!(why))? } else { Vec::new() };
    bar.finish_and_clear();
    for figure in &figures {
        outln!("{}\n{}\n", figure.title, table(figure));
    }
    if !bytes.is_empty() {
        let title = "Table II, bytes for 512 million keys, scaled from";
        outln!("{title} {} keys\n{}\n", size.keys, memory_table(&bytes));
    }
    let figure_of = |value: &Published| value.figure.trim_end_matches(['a', 'b', 'c']);
    let of_paper: Vec<_> = PUBLISHED
        .into_iter()
        .filter(|value| is_wanted(if value.figure == "II" { TABLE } else { figure_of(value) }))
        .collect();
    if !of_paper.is_empty() {
        outln!("Published values, not measured here\n{}\n", published_table(&of_paper));
    }
    if !led.is_empty() {
        outln!("Switches that lead clients, half gets and half updates\n{}", switch_table(&led));
    }
    if let Some(file) = json {
        let all = serde_json::json!({
            "figures": figures, "memory": bytes, "published": of_paper, "switches": led,
        });
        file.write("rows", &(serde_json::to_string_pretty(&all)? + "\n"))?;
    }
    Ok(())
}

/// An empty table with this header.
fn table_of(header: impl Into<comfy_table::Row>) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header(header);
    table
}

fn published_table(values: &[Published]) -> Table {
    let mut table = table_of(["figure", "index", "published"]);
    for value in values {
        table.add_row([value.figure, value.index, value.value]);
    }
    table
}

fn switch_table(rows: &[SwitchRow]) -> Table {
    let mut table = table_of([
        "keys",
        "",
        "client's cache",
        "SRAM room",
        "SRAM used",
        "entries",
        "TCAM rows",
        "led to leaf %",
        "trips/get",
        "trips/update",
        "Mop/s",
        "p50 µs",
    ]);
    for row in rows {
        table.add_row([
            row.keys.clone(),
            row.name.clone(),
            row.cache.to_owned(),
            unless_zero(row.room_bytes as f64, 0),
            unless_zero(row.sram_bytes as f64, 0),
            unless_zero(row.entries as f64, 0),
            unless_zero(row.tcam_rows as f64, 0),
            unless_zero(row.led_percent, 1),
            format!("{:.2}", row.get_round_trips),
            format!("{:.2}", row.update_round_trips),
            format!("{:.2}", row.mops),
            format!("{:.1}", row.p50_us),
        ]);
    }
    table
}

fn memory_table(rows: &[MemoryRow]) -> Table {
    let mut table = table_of([
        "",
        "cache bytes/key",
        "client MB",
        "paper",
        "server bytes/key",
        "servers GB",
        "paper",
        "keys/leaf",
    ]);
    for row in rows {
        table.add_row([
            row.name.clone(),
            format!("{:.2}", row.cache_bytes),
            format!("{:.0}", row.cache_mb),
            unless_zero(row.paper_cache_mb, 0),
            format!("{:.1}", row.server_bytes),
            format!("{:.1}", row.server_gb),
            unless_zero(row.paper_server_gb, 0),
            format!("{:.1}", row.keys_a_leaf),
        ]);
    }
    table
}

/// A column of SMART's figures: its title, and the text of a row, empty where it says nothing.
type Column = (&'static str, fn(&SmartRow) -> String);

/// All of them; a figure has those that say something.
const COLUMNS: [Column; 19] = [
    ("", |row| row.name.clone()),
    ("threads", |row| row.threads.to_string()),
    ("batch", |row| row.batch.to_string()),
    ("Mop/s", |row| format!("{:.2}", row.mops)),
    ("paper", |row| unless_zero(row.paper, 2)),
    ("off by %", |row| match row.paper {
        0.0 => String::new(),
        paper => format!("{:+.0}", 100.0 * (row.mops / paper - 1.0)),
    }),
    ("p50 µs", |row| unless_zero(row.p50_us, 1)),
    ("p99 µs", |row| unless_zero(row.p99_us, 0)),
    ("requests each", |row| unless_zero(row.requests_each, 1)),
    ("doorbells each", |row| unless_zero(row.doorbells_each, 1)),
    ("aborted %", |row| unless_zero(row.aborted_percent, 1)),
    ("slowest thread %", |row| format!("{:.0}", row.slowest_thread_percent)),
    ("attempts p99.9", |row| unless_zero(row.attempts_p999 as f64, 0)),
    ("busiest bucket %", |row| unless_zero(row.busiest_bucket_percent, 0)),
    ("in registers %", |row| unless_zero(row.in_registers_percent, 0)),
    ("in queue pairs %", |row| unless_zero(row.in_queue_pairs_percent, 0)),
    ("bus %", |row| format!("{:.0}", row.bus_percent)),
    ("cache lost %", |row| unless_zero(row.missed_percent, 0)),
    ("bytes of memory", |row| format!("{:.0}", row.memory_bytes)),
];

fn unless_zero(value: f64, digits: usize) -> String {
    if value == 0.0 { String::new() } else { format!("{value:.digits$}") }
}

fn smart_table(figure: &SmartResult) -> Table {
    let says = |(_, text): &Column| figure.rows.iter().any(|row| !text(row).is_empty());
    let columns: Vec<Column> = COLUMNS.into_iter().filter(says).collect();
    let mut table = table_of(columns.iter().map(|(title, _)| *title));
    for row in &figure.rows {
        table.add_row(columns.iter().map(|(_, text)| text(row)));
    }
    table
}

fn table(figure: &Figure) -> Table {
    let mut table = table_of([
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
