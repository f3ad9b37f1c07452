//! `fatbtree figures`: published figures in virtual time.

use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use comfy_table::presets;
use fatbtree_figures::{FIGURES, Figure, Made, Paper, Size, Table, published};
use serde_json::{Value, json};

use crate::output::Output;
use crate::progress;

/// Sherman's figures 10, 11 and 16 in virtual time, and reads with switches; figures 7 to 9 of the Fat-B+Tree paper; or SMART's figures
/// 3, 4, 5, 7 to 11, 12a to c, 13 and 14 and its table 1; or Dolphin's figures 6 to 9, its table II, and switches that lead it; or all structures
/// side by side, which no paper has.
///
/// 8 clients and 8 memory servers, verb by verb, without faults: the index's own code over modelled cards, buses, links and atomics of
/// each paper's cluster. FG+, then one technique after the other, with all inner nodes in the clients' caches; then lookups by
/// clients that cache little, with and without switches. With --of fat-btree lookups by clients that cache nothing, one at a time each, through two
/// switches: from the root and with plans of other sizes. With --of smart up to 96 threads of one client on one card, as many requests as
/// they can post, the paper's values beside them, and checks of the causes; --keys is for figures 5, 7 to 12 and 14 then, and --depth has no effect. With --of dolphin 4 clients of 18 threads and 4 memory servers, Sherman
/// beside Dolphin, the paper's own values, and round trips where switches lead clients; --depth has no effect. With --of structures up to 100,000 keys with values of 8 bytes,
/// all of which clients have read once; trees from the root, with all inner nodes cached, and led by switches. Nothing here takes real time into account.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree figures                           all of it: some minutes
  fatbtree figures --of fat-btree --keys 2000000   figures 7 to 9 of the Fat-B+Tree paper, with as many keys
  fatbtree figures --of smart --figure 3 --window 400   one of SMART's figures: some seconds
  fatbtree figures --of smart --window 1000  all of them: hours, nearly all for 7, 8, 10, 11 and 14
  fatbtree figures --of dolphin --keys 200000   figures 6 to 9 of Dolphin, its table II, and switches
  fatbtree figures --of structures --figure keys --keys 100000   kinds of keys: round trips, layers, memory
  fatbtree figures --of dolphin --figure switches --keys 200000 --window 500   what leading it takes and saves
  fatbtree figures --of structures --keys 100000   all structures beside each other
  fatbtree figures --keys 30000 --window 500   small and quick
  fatbtree figures --json figures.json       the same rows as JSON, too
  fatbtree figures --depth 32                32 operations of each client in flight instead of 16")]
pub(crate) struct Arguments {
    /// Paper whose figures are made; structures: no paper, all structures.
    #[arg(long, value_name = "sherman|fat-btree|smart|dolphin|structures", value_parser = papers(), default_value = "sherman")]
    of: Paper,
    /// One figure of the paper, by its number, table-1 or table-2, reads (sherman), led (smart), switches (dolphin), skewed or uniform (structures); otherwise all of them.
    #[arg(
        long,
        value_name = "3|4|5|6|7|8|9|10|11|12|13|14|16|table-1|table-2|reads|led|switches|skewed|uniform"
    )]
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
    PossibleValuesParser::new(["sherman", "fat-btree", "smart", "dolphin", "structures"]).map(|word| {
        match &word[..] {
            "fat-btree" => Paper::FatBtree,
            "smart" => Paper::Smart,
            "dolphin" => Paper::Dolphin,
            "structures" => Paper::Structures,
            _ => Paper::Sherman,
        }
    })
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let &Arguments { of, keys, depth, window, seed, .. } = arguments;
    let size = Size { keys, depth, warm_up_us: window / 5, window_us: window, seed };
    let json = Output::optional("--json", arguments.json.as_ref())?;
    let chosen = chosen(of, arguments.figure.as_deref())?;
    let bar = progress::bar("figures", chosen.len() as u64);
    let mut made = Vec::new();
    for figure in chosen {
        made.push(figure.run(&size).map_err(|why| anyhow!(why))?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    made.iter().for_each(print);
    let numbers: Vec<_> = made.iter().map(|made| made.figure.number).collect();
    let published = (of == Paper::Dolphin).then(|| published(&numbers));
    if let Some(published) = published.as_ref().filter(|published| !published.is_empty()) {
        outln!("Published values, not measured here\n{}\n", printed(published));
    }
    let Some(file) = json else { return Ok(()) };
    let all = match published {
        Some(published) => serde_json::to_string_pretty(&of_dolphin(&made, &published))?,
        None => serde_json::to_string_pretty(&made)?,
    };
    file.write("rows", &(all + "\n"))
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

/// Dolphin's figures as JSON: each kind of rows by its name.
fn of_dolphin(made: &[Made], published: &Table) -> Value {
    let figures: Vec<_> = made.iter().filter(|made| made.mix.is_some()).collect();
    let rows = |number| {
        let made = made.iter().find(|made| made.figure.number == number);
        made.map_or_else(|| json!([]), |made| json!(made.rows))
    };
    json!({
        "figures": figures, "memory": rows("table-2"), "published": published, "switches": rows("switches"),
    })
}

fn print(made: &Made) {
    if made.rows.is_empty() {
        return;
    }
    outln!("{}{}\n{}", made.figure.title, made.note, printed(&made.rows));
    for check in made.checks.iter().flatten() {
        outln!("{} {}: {}", if check.holds { "holds:" } else { "FAILS:" }, check.claim, check.found);
    }
    if made.figure.number != "switches" {
        outln!();
    }
}

/// A table for people.
fn printed(table: &Table) -> comfy_table::Table {
    let mut printed = comfy_table::Table::new();
    printed.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    let mut lines = table.lines().into_iter();
    printed.set_header(lines.next().unwrap_or_default()).add_rows(lines);
    printed
}
