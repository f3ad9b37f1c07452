//! `fatbtree simulate`: the whole path under virtual time, with faults and a seed.

use std::fmt::Display;
use std::ops::AddAssign;

use anyhow::{Result, anyhow};
use clap::Args;
use fatbtree_sim::seeds::{Campaign, Seeds};
use fatbtree_sim::{Scenario, queries, trees, writers};
use serde::Serialize;

use crate::progress;

/// Random clusters under virtual time, all from a seed, every answer checked.
///
/// Otherwise than told, the whole path, frame by frame: switches, plans, reloads, lost and damaged frames. With --trees readers of trees
/// that are written to, verb by verb: torn memory, machines that die and freeze, stale caches. With --writers many writers of one tree. With
/// --queries RDMA clients and clients that ask query workers, on one tree; most queries go through switches that a controller reloads. With
/// --hostile beside either a client damages the trees' structure by plain WRITEs: operations must end, and nothing may panic.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree simulate                          seeds 0 to 999
  fatbtree simulate --seed 4711              replays one
  fatbtree simulate --seeds 5000..100000     many
  fatbtree simulate --trees --seeds 0..5000  trees under writers, torn memory and deaths
  fatbtree simulate --trees --tonight 20000  many that nobody has tried
  fatbtree simulate --writers                many writers of one tree
  fatbtree simulate --queries                clients by RDMA and by queries through switches, on one tree
  fatbtree simulate --writers --hostile      the same writers, one of whom damages the trees")]
pub(crate) struct Arguments {
    /// Trees that are written to, at the level of verbs, instead of frames.
    #[arg(long)]
    trees: bool,
    /// Many writers of one tree, at the level of verbs.
    #[arg(long, conflicts_with = "trees")]
    writers: bool,
    /// Clients by RDMA and by queries on one tree, frame by frame: the queries through switches that a controller reloads.
    #[arg(long, conflicts_with_all = ["trees", "writers"])]
    queries: bool,
    /// With --writers or --queries: one more client, which damages trees.
    #[arg(long, conflicts_with = "trees")]
    hostile: bool,
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
    let Arguments { trees, writers, queries, hostile, .. } = *arguments;
    let command = |kind: &str| format!("fatbtree simulate {kind}--seed");
    match (trees, writers, queries, hostile) {
        (true, ..) => {
            campaign(arguments, &command("--trees "), |seed| trees::Scenario::from_seed(seed).run())
        }
        (_, true, _, false) => {
            campaign(arguments, &command("--writers "), |seed| writers::Scenario::from_seed(seed).run())
        }
        (_, true, _, true) => campaign(arguments, &command("--writers --hostile "), |seed| {
            writers::Scenario::hostile(seed).run()
        }),
        (_, _, true, false) => {
            campaign(arguments, &command("--queries "), |seed| queries::Scenario::from_seed(seed).run())
        }
        (_, _, true, true) => campaign(arguments, &command("--queries --hostile "), |seed| {
            queries::Scenario::hostile(seed).run()
        }),
        (.., true) => Err(anyhow!("--hostile goes with --writers or --queries: say which")),
        _ => campaign(arguments, &command(""), |seed| Scenario::from_seed(seed).run()),
    }
}

fn campaign<T, E>(
    arguments: &Arguments,
    command: &str,
    scenario: impl Fn(u64) -> Result<T, E> + Sync,
) -> Result<()>
where
    T: AddAssign + Default + Send + Serialize,
    E: Display,
{
    let seeds = arguments.seeds();
    let bar = progress::bar("simulating", seeds.count());
    let done = || bar.inc(1);
    let report = Campaign { command, done: &done, ..Campaign::default() }.run(seeds, scenario);
    bar.finish_and_clear();
    println!("{}", serde_json::to_string_pretty(&report.total)?);
    report.into_result().map(drop).map_err(|failures| anyhow!(failures))
}
