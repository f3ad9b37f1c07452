//! `fatbtree simulate`: the whole path under virtual time, with faults and a seed.

use anyhow::{Result, anyhow};
use clap::Args;
use fatbtree_sim::Scenario;
use fatbtree_sim::seeds::{Campaign, Seeds};

use crate::progress;

/// The whole path under virtual time: random trees, plans, faults and reloads, all from a seed.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree simulate                          seeds 0 to 999
  fatbtree simulate --seed 4711              replays one
  fatbtree simulate --seeds 5000..100000     many
  fatbtree simulate --tonight 20000          many that nobody has tried")]
pub(crate) struct Arguments {
    /// One seed.
    #[arg(long, conflicts_with_all = ["seeds", "tonight"])]
    seed: Option<u64>,
    /// From the first to before the last.
    #[arg(long, value_name = "FIRST..LAST", default_value = "0..1000", value_parser = range)]
    seeds: (u64, u64),
    /// As many seeds, others at each time.
    #[arg(long, value_name = "COUNT", conflicts_with = "seeds", value_parser = clap::value_parser!(u64).range(1..=32_768))]
    tonight: Option<u64>,
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let form = || format!("expected FIRST..LAST such as 0..1000, found {text:?}");
    let (first, last) = text.split_once("..").ok_or_else(form)?;
    let range = (first.parse().map_err(|_| form())?, last.parse().map_err(|_| form())?);
    if range.0 < range.1 { Ok(range) } else { Err(form()) }
}

impl Arguments {
    fn seeds(&self) -> Seeds {
        match (self.seed, self.tonight) {
            (Some(seed), _) => Seeds::one(seed),
            (None, Some(count)) => Seeds::tonight(count),
            (None, None) => Seeds::from(self.seeds.0..self.seeds.1),
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let seeds = arguments.seeds();
    let bar = progress::bar("simulating", seeds.count());
    let done = || bar.inc(1);
    let campaign = Campaign { command: "fatbtree simulate --seed", done: &done, ..Campaign::default() };
    let report = campaign.run(seeds, |seed| Scenario::from_seed(seed).run());
    bar.finish_and_clear();
    println!("{}", serde_json::to_string_pretty(&report.total)?);
    report.into_result().map_err(|failures| anyhow!(failures))?;
    Ok(())
}
