//! `fatbtree simulate`: simulations that take a seed, one after the other or all of them.

use anyhow::{Result, anyhow};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser as _};
use fatbtree_sim::campaigns::{self, Simulation};
use fatbtree_sim::seeds::Seeds;
use serde_json::{Map, Value};

use crate::progress;

/// Random clusters under virtual time, all from a seed, every answer checked.
///
/// Prints what happened in all seeds together, as JSON. A seed that fails is printed with the command that replays it, and the exit code
/// is 1.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree simulate all                           what CI runs
  fatbtree simulate reads                         the seeds that CI runs of one of them
  fatbtree simulate reads --seed 4711             replays one seed
  fatbtree simulate queries --seeds 5000..100000  many
  fatbtree simulate writes --tonight 20000        many new ones
  fatbtree simulate all --tonight 1000            the same of each")]
pub(crate) struct Arguments {
    /// Name of the simulation; or `all` of them.
    #[arg(value_name = "SIMULATION", value_parser = simulations())]
    simulation: String,
    /// One seed.
    #[arg(long, conflicts_with_all = ["seeds", "tonight"])]
    seed: Option<u64>,
    /// Seeds from the first to before the last; those that CI runs unless given.
    #[arg(long, value_name = "FIRST..LAST", value_parser = range)]
    seeds: Option<(u64, u64)>,
    /// Number of seeds, others at each time.
    #[arg(long, value_name = "COUNT", conflicts_with = "seeds", value_parser = clap::value_parser!(u64).range(1..=32_768))]
    tonight: Option<u64>,
}

const ALL: &str = "all";

fn simulations() -> impl clap::builder::TypedValueParser<Value = String> {
    let each =
        campaigns::ALL.iter().map(|simulation| PossibleValue::new(simulation.name).help(simulation.about));
    let all = PossibleValue::new(ALL).help("each of these, one after the other");
    PossibleValuesParser::new(each.chain([all])).map(|name| name)
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let form = || format!("expected FIRST..LAST such as 0..1000, found {text:?}");
    let (first, last) = text.split_once("..").ok_or_else(form)?;
    let range = (first.parse().map_err(|_| form())?, last.parse().map_err(|_| form())?);
    if range.0 < range.1 { Ok(range) } else { Err(form()) }
}

impl Arguments {
    fn seeds(&self, simulation: &Simulation) -> Seeds {
        match (self.seed, self.tonight, self.seeds) {
            (Some(seed), ..) => Seeds::one(seed),
            (None, Some(count), _) => Seeds::tonight(count),
            (None, None, Some((first, last))) => Seeds::from(first..last),
            (None, None, None) => Seeds::from(simulation.ci.clone()),
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if let Some(simulation) = campaigns::find(&arguments.simulation) {
        let (total, result) = campaign(arguments, simulation);
        outln!("{}", serde_json::to_string_pretty(&total)?);
        return result;
    }
    let (mut totals, mut failures) = (Map::new(), Vec::new());
    for simulation in &campaigns::ALL {
        let (total, result) = campaign(arguments, simulation);
        totals.insert(simulation.name.to_owned(), total);
        failures.extend(result.err().map(|error| format!("{}: {error}", simulation.name)));
    }
    outln!("{}", serde_json::to_string_pretty(&totals)?);
    if failures.is_empty() { Ok(()) } else { Err(anyhow!(failures.join("\n"))) }
}

fn campaign(arguments: &Arguments, simulation: &Simulation) -> (Value, Result<()>) {
    let seeds = arguments.seeds(simulation);
    let bar = progress::bar(simulation.name, seeds.count());
    let report = simulation.run(seeds, &|| bar.inc(1));
    bar.finish_and_clear();
    let total = report.total.clone();
    (total, report.into_result().map(drop).map_err(|failures| anyhow!(failures)))
}
