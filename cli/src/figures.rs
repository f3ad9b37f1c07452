//! `fatbtree figures`: published figures in virtual time.

use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use comfy_table::{Table, presets};
use fatbtree_figures::{
    FIGURES, Figure, MemoryRow, PUBLISHED, Paper, Published, Row, Rows, Size, SmartRow, SwitchRow,
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
    #[arg(long, value_name = "sherman|fat-btree|smart|dolphin", value_parser = papers(), default_value = "sherman")]
    of: Paper,
    /// One figure of the paper, by its number, table-1 or table-2, reads (sherman) or switches (dolphin); otherwise all of them.
    #[arg(long, value_name = "3|4|5|6|7|8|9|10|11|12|13|14|16|table-1|table-2|reads|switches")]
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

fn papers() -> impl TypedValueParser<Value = Paper> {
    PossibleValuesParser::new(["sherman", "fat-btree", "smart", "dolphin"]).map(|word| match &word[..] {
        "fat-btree" => Paper::FatBtree,
        "smart" => Paper::Smart,
        "dolphin" => Paper::Dolphin,
        _ => Paper::Sherman,
    })
}

/// A figure that was made.
#[derive(Serialize)]
struct Made {
    #[serde(skip)]
    figure: &'static Figure,
    title: &'static str,
    #[serde(flatten)]
    rows: Rows,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let &Arguments { of, keys, depth, window, seed, .. } = arguments;
    let size = Size { keys, depth, warm_up_us: window / 5, window_us: window, seed };
    let json = Output::optional("--json", arguments.json.as_ref())?;
    let chosen = chosen(of, arguments.figure.as_deref())?;
    let bar = progress::bar("figures", chosen.len() as u64);
    let mut made = Vec::new();
    for figure in chosen {
        let rows = figure.run(&size).map_err(|why| anyhow!(why))?;
        made.push(Made { figure, title: figure.title, rows });
        bar.inc(1);
    }
    bar.finish_and_clear();
    made.iter().for_each(|made| print(made, &size));
    let published = if of == Paper::Dolphin { published(&made) } else { Vec::new() };
    if !published.is_empty() {
        outln!("Published values, not measured here\n{}\n", table(&OF_PAPERS, &published));
    }
    let Some(file) = json else { return Ok(()) };
    let all = match of {
        Paper::Dolphin => of_dolphin(&made, &published)?,
        _ => serde_json::to_string_pretty(&made)?,
    };
    file.write("rows", &(all + "\n"))?;
    Ok(())
}

/// The figures of a paper, or those of one number.
fn chosen(paper: Paper, number: Option<&str>) -> Result<Vec<&'static Figure>> {
    let of_paper = || FIGURES.iter().filter(|figure| figure.paper == paper);
    let chosen: Vec<_> =
        of_paper().filter(|figure| number.is_none_or(|number| number == figure.number)).collect();
    if chosen.is_empty() {
        let mut numbers: Vec<_> = of_paper().map(|figure| figure.number).collect();
        numbers.dedup();
        bail!("no such figure: choose {}", numbers.join(", "));
    }
    Ok(chosen)
}

/// Values that the paper's text gives for these figures.
fn published(made: &[Made]) -> Vec<Published> {
    let number = |value: &Published| match value.figure {
        "II" => "table-2",
        number => number.trim_end_matches(['a', 'b', 'c']),
    };
    let is_made = |value: &Published| made.iter().any(|made| made.figure.number == number(value));
    PUBLISHED.into_iter().filter(is_made).collect()
}

/// Dolphin's figures as JSON: each kind of rows by its name.
fn of_dolphin(made: &[Made], published: &[Published]) -> Result<String> {
    let figures: Vec<_> = made.iter().filter(|made| matches!(made.rows, Rows::Operations { .. })).collect();
    let of = |is: fn(&Rows) -> bool| made.iter().map(|made| &made.rows).find(|rows| is(rows));
    let memory = of(|rows| matches!(rows, Rows::Memory(_)));
    let switches = of(|rows| matches!(rows, Rows::Switches(_)));
    let none = || serde_json::json!([]);
    let rows = |rows: Option<&Rows>| rows.map_or_else(|| Ok(none()), serde_json::to_value);
    let all = serde_json::json!({
        "figures": figures, "memory": rows(memory)?, "published": published, "switches": rows(switches)?,
    });
    Ok(serde_json::to_string_pretty(&all)?)
}

fn print(made: &Made, size: &Size) {
    let title = made.title;
    match &made.rows {
        Rows::Operations { mix, rows, .. } => {
            let mix = if made.figure.paper == Paper::Dolphin { String::new() } else { format!(", {mix:?}") };
            let first = rows.first().map_or(1.0, |row| row.mops);
            let rows: Vec<_> = rows.iter().map(|row| (row.clone(), first)).collect();
            outln!("{title}{mix}\n{}\n", table(&OF_OPERATIONS, &rows));
        }
        Rows::Threads { rows, .. } if rows.is_empty() => {}
        Rows::Threads { rows, checks, .. } => {
            outln!("{title}\n{}", table(&OF_THREADS, rows));
            for check in checks {
                outln!("{} {}: {}", if check.holds { "holds:" } else { "FAILS:" }, check.claim, check.found);
            }
            outln!();
        }
        Rows::Memory(rows) => {
            outln!("{title}, scaled from {} keys\n{}\n", size.keys, table(&OF_MEMORY, rows));
        }
        Rows::Switches(rows) => outln!("{title}\n{}", table(&OF_SWITCHES, rows)),
    }
}

/// A column of a table: its title, and the text of a row, empty where it says nothing.
type Column<R> = (&'static str, fn(&R) -> String);

const OF_OPERATIONS: [Column<(Row, f64)>; 11] = [
    ("", |(row, _)| row.name.clone()),
    ("Mop/s", |(row, _)| format!("{:.2}", row.mops)),
    ("× first", |(row, first)| format!("{:.2}", row.mops / first)),
    ("p50 µs", |(row, _)| format!("{:.1}", row.p50_us)),
    ("p90 µs", |(row, _)| format!("{:.1}", row.p90_us)),
    ("p99 µs", |(row, _)| format!("{:.1}", row.p99_us)),
    ("trips/write", |(row, _)| format!("{:.2}", row.write_round_trips)),
    ("trips/read", |(row, _)| format!("{:.2}", row.read_round_trips)),
    ("bytes/write", |(row, _)| format!("{:.0}", row.written_bytes)),
    ("retries/write", |(row, _)| format!("{:.2}", row.lock_retries)),
    ("handed over %", |(row, _)| format!("{:.1}", row.handed_over_percent)),
];

const OF_PAPERS: [Column<Published>; 3] = [
    ("figure", |value| value.figure.to_owned()),
    ("index", |value| value.index.to_owned()),
    ("published", |value| value.value.to_owned()),
];

const OF_SWITCHES: [Column<SwitchRow>; 12] = [
    ("keys", |row| row.keys.clone()),
    ("", |row| row.name.clone()),
    ("client's cache", |row| row.cache.to_owned()),
    ("SRAM room", |row| unless_zero(row.room_bytes as f64, 0)),
    ("SRAM used", |row| unless_zero(row.sram_bytes as f64, 0)),
    ("entries", |row| unless_zero(row.entries as f64, 0)),
    ("TCAM rows", |row| unless_zero(row.tcam_rows as f64, 0)),
    ("led to leaf %", |row| unless_zero(row.led_percent, 1)),
    ("trips/get", |row| format!("{:.2}", row.get_round_trips)),
    ("trips/update", |row| format!("{:.2}", row.update_round_trips)),
    ("Mop/s", |row| format!("{:.2}", row.mops)),
    ("p50 µs", |row| format!("{:.1}", row.p50_us)),
];

const OF_MEMORY: [Column<MemoryRow>; 8] = [
    ("", |row| row.name.clone()),
    ("cache bytes/key", |row| format!("{:.2}", row.cache_bytes)),
    ("client MB", |row| format!("{:.0}", row.cache_mb)),
    ("paper", |row| unless_zero(row.paper_cache_mb, 0)),
    ("server bytes/key", |row| format!("{:.1}", row.server_bytes)),
    ("servers GB", |row| format!("{:.1}", row.server_gb)),
    ("paper", |row| unless_zero(row.paper_server_gb, 0)),
    ("keys/leaf", |row| format!("{:.1}", row.keys_a_leaf)),
];

const OF_THREADS: [Column<SmartRow>; 19] = [
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

/// A table with the columns that say something.
fn table<R>(columns: &[Column<R>], rows: &[R]) -> Table {
    let says = |(_, text): &&Column<R>| rows.iter().any(|row| !text(row).is_empty());
    let columns: Vec<_> = columns.iter().filter(says).collect();
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header(columns.iter().map(|(title, _)| *title));
    for row in rows {
        table.add_row(columns.iter().map(|(_, text)| text(row)));
    }
    table
}
