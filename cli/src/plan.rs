//! `fatbtree plan`: look at saved plans, and compare them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use fatbtree_controller::operator::SavedPlan;
use fatbtree_controller::{Budget, Plan, Target, diff};

use crate::controller::TargetName;
use crate::count::{AskedKey, key};

/// Look at saved plans, and compare them.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree demo --plan zipf.json                         makes one
  fatbtree demo --distribution uniform --plan flat.json  and another
  fatbtree plan show zipf.json
  fatbtree plan compare zipf.json flat.json              entries to insert, modify, delete per switch
  fatbtree plan check zipf.json --target tofino1         does it fit these switches?
  fatbtree plan land zipf.json 0x1234                    where an index read for a key ends")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print what is cached where.
    Show {
        /// A plan that `fatbtree demo --plan` or `fatbtree control plan --save` wrote.
        plan: PathBuf,
    },
    /// Show what changes in each switch from one plan to another.
    Compare {
        /// The active plan.
        old: PathBuf,
        /// The plan to come.
        new: PathBuf,
    },
    /// Check a plan against what the programs of a target were compiled with.
    Check {
        /// The plan.
        plan: PathBuf,
        /// The switches.
        #[arg(long, value_enum)]
        target: TargetName,
    },
    /// Execute the plan in software for a key.
    Land {
        /// The plan.
        plan: PathBuf,
        /// A key, decimal or 0x-hexadecimal.
        #[arg(value_parser = key)]
        key: AskedKey,
    },
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.command {
        Command::Show { plan } => out!("{}", load(plan)?.print()),
        Command::Compare { old, new } => {
            let (old, new) = (load(old)?, load(new)?);
            let changes = diff(&old.entries(), &new.entries());
            if changes.is_empty() {
                outln!("no difference");
            }
            for (switch, changes) in changes {
                let name = match old.switch_name(switch) {
                    "unknown switch" => new.switch_name(switch),
                    name => name,
                };
                let (mut inserted, mut modified, mut deleted) = (0, 0, 0);
                for change in &changes {
                    match change {
                        fatbtree_controller::Change::Insert(_) => inserted += 1,
                        fatbtree_controller::Change::Delete(_) => deleted += 1,
                        _ => modified += 1,
                    }
                }
                outln!("{name}: insert {inserted}, modify {modified}, delete {deleted}");
            }
        }
        Command::Check { plan, target } => {
            let target = Target::from(*target);
            load(plan)?.check(&Budget::compiled(target))?;
            outln!("the plan fits {}", target.name());
        }
        Command::Land { plan, key } => {
            let plan = load(plan)?;
            if let Some(address) = plan.hot_address(key.key) {
                outln!("key {key} is hot: lookups are led straight to {address:#x}; without that:");
            }
            let landing = plan.resolve(key.key);
            outln!(
                "key {key}: node {:#x} of partition {}, {} levels walked by switches",
                landing.address,
                landing.partition,
                landing.levels
            );
        }
    }
    Ok(())
}

pub(crate) fn load(path: &Path) -> Result<Plan> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading the plan {}", path.display()))?;
    // What `fatbtree control` keeps has the plan in it.
    let text = match serde_json::from_str::<SavedPlan>(&text) {
        Ok(saved) => saved.plan.to_string(),
        Err(_) => text,
    };
    Plan::from_json(&text).with_context(|| format!("plan {}", path.display()))
}
