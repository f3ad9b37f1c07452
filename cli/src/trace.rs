//! `fatbtree trace`: makes cache traces, and tells what is in one.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use fatbtree_workload::trace::{Maker, Trace};
use fatbtree_workload::{Names, OperationKind};
use serde::Serialize;

use crate::count;

/// Make a cache trace in the format of Twitter's, or tell what is in one.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree trace make --operations 100000 --keys 10000 --out made.trace
  fatbtree trace make --operations 100000 --keys 10000 --gets 0.3 --deletes 0.05 --out writes.trace
  fatbtree trace show made.trace
  fatbtree load --cluster cluster.toml --trace made.trace --replace
  fatbtree load --cluster cluster.toml --trace made.trace --replace --key-type bytes    its strings are keys
  fatbtree bench --cluster cluster.toml --trace made.trace --operations 20000

A line is timestamp,key,key size,value size,client,operation,TTL. The public traces are at https://github.com/twitter/cache-trace; unpack
them first. Keys are strings there. `load --key-type bytes` takes them as they are. Else they are 64-bit numbers here, in the same order: what
all begin with is left out, and as many bytes as fit make the number. Strings that differ only behind these become one key; `show` counts
them.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Make a trace from a seed.
    Make(Make),
    /// Tell what is in a trace.
    Show(Show),
}

#[derive(Args)]
struct Make {
    /// Lines of the trace.
    #[arg(long, value_name = "N", value_parser = count::positive)]
    operations: u64,
    /// Keys that lines are drawn from.
    #[arg(long, value_name = "N", value_parser = count::positive)]
    keys: u64,
    /// Share of lines that read.
    #[arg(long, value_name = "SHARE", default_value_t = 0.95)]
    gets: f64,
    /// Share of lines that delete; the others set a value.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    deletes: f64,
    /// Skew of keys, the exponent of Zipf's law: from 0 to below 1.
    #[arg(long, value_name = "EXPONENT", default_value_t = 0.99)]
    theta: f64,
    /// Least bytes of a value.
    #[arg(long, value_name = "N", default_value_t = 16)]
    least_bytes: u32,
    /// Most bytes of a value.
    #[arg(long, value_name = "N", default_value_t = 256)]
    most_bytes: u32,
    /// Seed; equal seeds make equal traces.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// File for the trace.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

#[derive(Args)]
struct Show {
    /// Trace file.
    #[arg(value_name = "FILE")]
    trace: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Contents of a trace, as `--json` writes them.
#[derive(Serialize)]
struct Contents {
    operations: usize,
    kinds: Vec<(&'static str, usize)>,
    keys: usize,
    /// Strings that share the key of another one.
    merged: usize,
    /// Keys that are there before the first operation.
    preloaded: usize,
    preloaded_bytes: u64,
    /// Beginning that all keys share, which is left out.
    key_prefix: String,
    /// Bytes after it that make a key.
    key_digits: u32,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.what {
        What::Make(make) => write(make),
        What::Show(Show { trace, json }) => show(trace, *json),
    }
}

/// Reads a whole trace.
///
/// # Errors
/// When the file cannot be read, with the line.
pub(crate) fn read(path: &Path) -> Result<Trace> {
    Ok(Trace::read(&path.display().to_string(), open(path)?, usize::MAX)?)
}

/// Reads a whole trace for a tree of keys of bytes: with its keys as they stand there.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_named(path: &Path) -> Result<(Trace, Names)> {
    Ok(Trace::read_named(&path.display().to_string(), open(path)?, usize::MAX)?)
}

fn open(path: &Path) -> Result<BufReader<File>> {
    let file = File::open(path).with_context(|| format!("--trace {}", path.display()))?;
    Ok(BufReader::with_capacity(1 << 18, file))
}

fn write(make: &Make) -> Result<()> {
    let path = make.out.display();
    let maker = Maker {
        operations: make.operations,
        keys: make.keys,
        theta: make.theta,
        gets: make.gets,
        deletes: make.deletes,
        value_bytes: (make.least_bytes, make.most_bytes),
        ..Maker::default()
    };
    // Refused before a file is replaced.
    Maker { operations: 0, ..maker.clone() }.write(make.seed, std::io::sink())?;
    let file = File::create(&make.out).with_context(|| format!("--out {path}"))?;
    let mut output = BufWriter::with_capacity(1 << 18, file);
    maker.write(make.seed, &mut output).with_context(|| format!("--out {path}"))?;
    output.flush().with_context(|| format!("--out {path}"))?;
    outln!("{} in {path}", count::of(make.operations, "operation"));
    Ok(())
}

fn show(path: &Path, json: bool) -> Result<()> {
    let trace = read(path)?;
    let kinds = OperationKind::ALL.into_iter().map(|kind| (kind.name(), trace.count(kind)));
    let contents = Contents {
        operations: trace.len(),
        kinds: kinds.filter(|(_, count)| *count > 0).collect(),
        keys: trace.keys(),
        merged: trace.merged(),
        preloaded: trace.preloaded().count(),
        preloaded_bytes: trace.preloaded().map(|(_, bytes)| u64::from(bytes)).sum(),
        key_prefix: String::from_utf8_lossy(trace.code().prefix()).into_owned(),
        key_digits: trace.code().digits(),
    };
    if json {
        outln!("{}", serde_json::to_string_pretty(&contents)?);
        return Ok(());
    }
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    table.set_header(["operation", "count", "share"]);
    for (kind, count) in &contents.kinds {
        let share = format!("{:.1} %", 100.0 * *count as f64 / contents.operations as f64);
        table.add_row([(*kind).to_owned(), count.to_string(), share]);
    }
    outln!("{table}");
    let Contents { keys, merged, preloaded, preloaded_bytes, key_prefix, key_digits, .. } = contents;
    outln!(
        "{}, of which {preloaded} are there at first, with values of {preloaded_bytes} bytes in all; keys are the {} after {key_prefix:?}, and \
         {} share the key of another one",
        count::of(keys as u64, "key"),
        count::of(key_digits, "byte"),
        count::of(merged as u64, "string"),
    );
    Ok(())
}
