//! `fatbtree simulate`: the whole path under virtual time, with faults and a seed.

use anyhow::{Result, bail};
use clap::Args;
use fatbtree_sim::{Outcome, Scenario};

use crate::progress;

/// The whole path under virtual time: random trees, plans, faults and reloads, all from a seed.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree simulate                          seeds 0 to 999
  fatbtree simulate --seed 4711              replays one
  fatbtree simulate --seeds 5000..100000     many")]
pub(crate) struct Arguments {
    /// One seed.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// From the first to before the last.
    #[arg(long, value_name = "FIRST..LAST", default_value = "0..1000", value_parser = range)]
    seeds: (u64, u64),
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let form = || format!("expected FIRST..LAST such as 0..1000, found {text:?}");
    let (first, last) = text.split_once("..").ok_or_else(form)?;
    let range = (first.parse().map_err(|_| form())?, last.parse().map_err(|_| form())?);
    if range.0 < range.1 { Ok(range) } else { Err(form()) }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let (first, last) = arguments.seed.map_or(arguments.seeds, |seed| (seed, seed + 1));
    let bar = progress::bar("simulating", last - first);
    let mut total = Outcome::default();
    let mut failures = 0;
    for seed in first..last {
        match Scenario::from_seed(seed).run() {
            Ok(outcome) => total += outcome,
            Err(error) => {
                failures += 1;
                bar.suspend(|| eprintln!("seed {seed}: {error}"));
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    println!("{}", serde_json::to_string_pretty(&total)?);
    if failures > 0 {
        bail!("{failures} of {} seeds failed", last - first);
    }
    Ok(())
}
