//! `fatbtree control`: programs the switches of a cluster and loads plans into them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use fatbtree_controller::{
    Budget, DeviceConfigFormat, Entry, Fleet, FleetOptions, Plan, Programs, ReloadSteps, Target,
    cluster_base, next_epoch,
};
use fatbtree_topology::Cluster;

use crate::progress;

/// Program the switches of a cluster, and load plans into them.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree control bring-up --cluster testbed.toml                      software switches or BMv2: program and routes
  fatbtree control bring-up --cluster testbed.toml --target tofino1 --compiled target/tofino
                                                                        Tofino, with what p4/compile_tofino.sh made
  fatbtree control load plan.json --cluster testbed.toml                the caches of a plan
  fatbtree control load new.json --replacing plan.json --cluster testbed.toml
                                                                        a reload: lookups go on throughout")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Load each switch's P4 program, which empties its tables, and write its routes.
    BringUp {
        #[command(flatten)]
        binaries: Binaries,
        #[command(flatten)]
        switches: Switches,
    },
    /// Load a plan beside what is there, flip to it, delete what it replaces.
    Load {
        /// The plan.
        plan: PathBuf,
        /// The plan in force, if there is one.
        #[arg(long, value_name = "PLAN")]
        replacing: Option<PathBuf>,
        #[command(flatten)]
        switches: Switches,
    },
}

#[derive(Args)]
struct Switches {
    /// Cluster file (TOML): where each switch's P4Runtime server is.
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// What the switches run.
    #[arg(long, value_enum, default_value_t = TargetName::V1model)]
    target: TargetName,
    /// Election id: the highest one controls a switch.
    #[arg(long, value_name = "ID", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    election_id: u64,
    /// Seconds to wait for the answer of a switch.
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: u64,
}

#[derive(Args)]
struct Binaries {
    /// What `p4/compile_tofino.sh DIR` made; for Tofino.
    #[arg(long, value_name = "DIR")]
    compiled: Option<PathBuf>,
    /// How the switches' P4Runtime servers want their binaries; for Tofino.
    #[arg(long, value_enum, default_value_t = FormatName::Stratum)]
    format: FormatName,
}

/// Names of targets on the command line.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum TargetName {
    /// BMv2 and the software switch.
    V1model,
    /// Tofino 1.
    Tofino1,
    /// Tofino 2.
    Tofino2,
}

impl From<TargetName> for Target {
    fn from(name: TargetName) -> Self {
        match name {
            TargetName::V1model => Self::V1model,
            TargetName::Tofino1 => Self::Tofino1,
            TargetName::Tofino2 => Self::Tofino2,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum FormatName {
    /// Stratum's BfPipelineConfig.
    Stratum,
    /// The packing of PI: the SDE's own server.
    Pi,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    tokio::runtime::Runtime::new()?.block_on(async {
        match &arguments.command {
            Command::BringUp { binaries, switches } => bring_up(binaries, switches).await,
            Command::Load { plan, replacing, switches } => load(plan, replacing.as_deref(), switches).await,
        }
    })
}

async fn bring_up(binaries: &Binaries, switches: &Switches) -> Result<()> {
    let cluster = crate::topology::load(&switches.cluster)?;
    let programs = compiled(binaries, switches.target.into())?;
    let fleet = connect(switches, &cluster, &programs).await?;
    fleet.set_pipeline().await?;
    let report = fleet.load_base(&cluster_base(&cluster)).await?;
    println!(
        "{} switches programmed for {}, {} routes written",
        cluster.tree().switches().len(),
        Target::from(switches.target).name(),
        report.updates
    );
    Ok(())
}

async fn load(plan: &Path, replacing: Option<&Path>, switches: &Switches) -> Result<()> {
    let cluster = crate::topology::load(&switches.cluster)?;
    let (mut new, mut old) = (crate::plan::load(plan)?, replacing.map(crate::plan::load).transpose()?);
    new.check(&Budget::compiled(switches.target.into()))?;
    for plan in [Some(&new), old.as_ref()].into_iter().flatten() {
        plan.check_network(&cluster)?;
    }
    let programs = Programs::tables_only(switches.target.into())?;
    let fleet = connect(switches, &cluster, &programs).await?;
    let (epoch, held) = (fleet.read_epoch().await?, fleet.read_counters().await?.len());
    match (epoch, &old) {
        (None, None) if held == 0 => {}
        (None, Some(_)) if held == 0 => bail!("the switches hold no plan: leave --replacing out"),
        (None, _) => bail!(
            "the switches hold {held} entries of a plan that is not in force: a load was interrupted; empty them with bring-up"
        ),
        (Some(_), None) => bail!(
            "the switches hold a plan already, {held} entries: name it with --replacing, or empty them with bring-up"
        ),
        (Some(epoch), Some(replaced)) => {
            let replaced = replaced.clone().at_epoch(epoch);
            let expected = counted_entries(&replaced);
            if expected != held {
                bail!(
                    "the switches hold {held} entries of fat root and nodes, the plan to be replaced has {expected}: it is \
                     not the one in force, or a load was interrupted; name the right one, or empty them with bring-up"
                );
            }
            new = new.at_epoch(next_epoch(epoch));
            old = Some(replaced);
        }
    }
    let steps = ReloadSteps::new(old.as_ref(), &new)?;
    let (bar, on_progress) = progress::of_push(steps.len());
    let report = fleet.reload(&steps, Some(on_progress)).await?;
    bar.finish_and_clear();
    println!("epoch {} in force: {} updates, {:.0} a second", new.epoch(), report.updates, report.rate());
    Ok(())
}

/// Entries of a plan that switches count packets of.
fn counted_entries(plan: &Plan) -> usize {
    let is_counted = |entry: &&Entry| matches!(entry, Entry::FatRoot(..) | Entry::Child(..));
    plan.entries().values().flatten().filter(is_counted).count()
}

/// The target's programs with what goes to the switches.
fn compiled(binaries: &Binaries, target: Target) -> Result<Programs> {
    let format = match binaries.format {
        FormatName::Stratum => DeviceConfigFormat::Stratum,
        FormatName::Pi => DeviceConfigFormat::Pi,
    };
    match (target.chip(), &binaries.compiled) {
        (None, _) => Ok(Programs::v1model()?),
        (Some(_), Some(folder)) => Programs::compiled(target, folder, format)
            .with_context(|| format!("reading what was compiled for {}", target.name())),
        (Some(_), None) => {
            bail!("{} needs --compiled DIR: what `p4/compile_tofino.sh DIR` made", target.name())
        }
    }
}

async fn connect(switches: &Switches, cluster: &Cluster, programs: &Programs) -> Result<Fleet> {
    let mut options = FleetOptions::default();
    options.election_id = switches.election_id.into();
    options.client.answer_timeout = Duration::from_secs(switches.patience);
    Ok(Fleet::connect(cluster, programs, options).await?)
}

/// Checks a plan against what a target's programs were compiled with.
pub(crate) fn check(plan: &Plan, target: TargetName) -> Result<()> {
    let target = Target::from(target);
    plan.check(&Budget::compiled(target))?;
    println!("the plan fits {}", target.name());
    Ok(())
}
