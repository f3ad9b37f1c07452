//! `fatbtree control`: programs the switches of a cluster and loads plans into them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use fatbtree_controller::{
    Budget, DeviceConfigFormat, Fleet, FleetOptions, Plan, Programs, ReloadSteps, Target, cluster_base,
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
    #[arg(long, value_name = "ID", default_value_t = 1)]
    election_id: u64,
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
    let new = crate::plan::load(plan)?;
    let old = replacing.map(crate::plan::load).transpose()?;
    new.check(&Budget::compiled(switches.target.into()))?;
    let steps = ReloadSteps::new(old.as_ref(), &new)?;
    let programs = Programs::tables_only(switches.target.into())?;
    let fleet = connect(switches, &cluster, &programs).await?;
    let (bar, on_progress) = progress::of_push(steps.len());
    let report = fleet.reload(&steps, Some(on_progress)).await?;
    bar.finish_and_clear();
    println!("epoch {} in force: {} updates, {:.0} a second", new.epoch(), report.updates, report.rate());
    Ok(())
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
    Ok(Fleet::connect(cluster, programs, options).await?)
}

/// Checks a plan against what a target's programs were compiled with.
pub(crate) fn check(plan: &Plan, target: TargetName) -> Result<()> {
    let target = Target::from(target);
    plan.check(&Budget::compiled(target))?;
    println!("the plan fits {}", target.name());
    Ok(())
}
