//! `fatbtree controller`: the controller as a process.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use fatbtree_controller::election::Way;
use fatbtree_controller::{Budget, DeviceConfigFormat, FollowOptions, Programs, Target};
use fatbtree_processes::{ControllerOptions, ControllerProcess};
use fatbtree_topology::Cluster;
use fatbtree_trust::CONTROLLER;

use crate::role;

/// The controller of a cluster: programs its switches, registers connections, plans, reloads, recovers.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree controller --cluster cluster.toml                         software switches or BMv2
  fatbtree controller --cluster cluster.toml --state plans           a controller that is started again goes on with its plan
  fatbtree controller --cluster cluster.toml --standby               another one: it takes the first one's place when that is gone
  fatbtree controller --cluster cluster.toml --take-over             in the place of the primary, which stands by from then on
  fatbtree controller --cluster testbed.toml --target tofino1 --compiled target/tofino
                                                                     Tofino, with what p4/compile_tofino.sh made

One controller is primary, and programs the switches. If another one is primary already, a controller that was started without --standby
and --take-over waits 12 s for the other one to go, and then ends with an error. Standbys listen at the addresses that the cluster file
names: `standby = [\"127.0.0.1:9691\"]` in [controller]. Memory servers, clients and `fatbtree control` find the primary by themselves.

It tells what happens, a line each. `fatbtree control` asks it.")]
pub(crate) struct Arguments {
    /// Cluster file (TOML), with a section `[controller]`.
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// Folder in which plans are kept.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Target of the switches' program.
    #[arg(long, value_enum, default_value_t = TargetName::V1model)]
    target: TargetName,
    /// Folder that `p4/compile_tofino.sh DIR` made; for Tofino.
    #[arg(long, value_name = "DIR")]
    compiled: Option<PathBuf>,
    /// Format in which the switches' P4Runtime servers want their binaries; for Tofino.
    #[arg(long, value_enum, default_value_t = FormatName::Stratum)]
    format: FormatName,
    /// Table sizes that plans may use (TOML: fat_root_ranges, set_nodes, ...); by default as much as the target's
    /// programs have room for.
    #[arg(long, value_name = "FILE")]
    budget: Option<PathBuf>,
    /// Changes of table entries that are written in a second at most, to all switches together: so many do not slow down packets much.
    #[arg(long, value_name = "N", default_value = "60000")]
    writes_per_s: NonZeroU32,
    /// Changes of table entries per second that plans made by itself may come to on average.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    entries_per_s: u64,
    /// Become primary when there has been no primary for 2 s. Listen at ADDRESS; by default at the first address of
    /// `standby` in the cluster file that is free here, or at `grpc` if the file names no standby.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, require_equals = true)]
    standby: Option<Option<String>>,
    /// Become primary at once. The controller that is primary becomes a standby.
    #[arg(long, conflicts_with = "standby")]
    take_over: bool,
    /// Seconds that a switch may take for an answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: u64,
    #[command(flatten)]
    end: role::End,
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
    let cluster = crate::topology::load(&arguments.cluster)?;
    let Some(grpc) = cluster.controller() else {
        bail!(
            "{} has no [controller]: add the address where it should listen, such as grpc = \"127.0.0.1:9690\"",
            arguments.cluster.display()
        );
    };
    let grpc = match &arguments.standby {
        None => grpc.to_owned(),
        Some(Some(address)) => address.clone(),
        Some(None) => free_for_standby(&cluster, &arguments.cluster)?.to_owned(),
    };
    let way = match (&arguments.standby, arguments.take_over) {
        (Some(_), _) => Way::StandBy,
        (None, true) => Way::TakeOver,
        (None, false) => Way::Start,
    };
    let target = Target::from(arguments.target);
    let budget = match &arguments.budget {
        None => Budget::compiled(target),
        Some(file) => {
            let text =
                std::fs::read_to_string(file).with_context(|| format!("--budget {}", file.display()))?;
            Budget::from_toml(&text).with_context(|| format!("--budget {}", file.display()))?
        }
    };
    let options = ControllerOptions {
        programs: programs(arguments, target, &cluster)?,
        budget: budget.in_network(cluster.tree()),
        writes_per_s: arguments.writes_per_s,
        follow: FollowOptions { entries_per_s: arguments.entries_per_s as f64, ..FollowOptions::default() },
        state: arguments.state.clone(),
        way,
        patience: Duration::from_secs(arguments.patience),
        // The place of the metrics is that of the first controller.
        metrics: cluster
            .metrics(CONTROLLER)
            .filter(|_| cluster.controller() == Some(grpc.as_str()))
            .map(str::to_owned),
        trust: crate::topology::trust(&cluster, &arguments.cluster, CONTROLLER)?,
        cluster,
        grpc,
    };
    let process = ControllerProcess::open(options)?;
    let role = if way == Way::StandBy { "standby controller" } else { "controller" };
    crate::stdout::is_log();
    outln!("{role} on {}; Ctrl-C stops it", process.grpc());
    fatbtree_processes::notify_ready();
    arguments.end.stop_with_stdin(process.stopper());
    if let Some(seconds) = arguments.end.seconds {
        let stopper = process.stopper();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(seconds));
            stopper.stop();
        });
    }
    process.run(|news| outln!("{news}"))?;
    outln!("stopped");
    Ok(())
}

/// The first address for a standby at which nothing listens on this machine.
fn free_for_standby<'c>(cluster: &'c Cluster, file: &Path) -> Result<&'c str> {
    let addresses = match cluster.controllers() {
        [_, standbys @ ..] if !standbys.is_empty() => standbys,
        all => all,
    };
    let is_free = |address: &&String| std::net::TcpListener::bind(address.as_str()).is_ok();
    match addresses.iter().find(is_free) {
        Some(address) => Ok(address),
        None => bail!(
            "{}: expected an address that is free on this machine for a standby, found none of {}; add one to [controller], such as \
             standby = [\"127.0.0.1:9691\"], or give one: --standby=ADDRESS",
            file.display(),
            addresses.join(", ")
        ),
    }
}

/// The target's programs with what goes to the switches.
fn programs(arguments: &Arguments, target: Target, cluster: &Cluster) -> Result<Programs> {
    let format = match arguments.format {
        FormatName::Stratum => DeviceConfigFormat::Stratum,
        FormatName::Pi => DeviceConfigFormat::Pi,
    };
    match (target.chip(), &arguments.compiled) {
        (None, _) => Ok(Programs::v1model()?),
        (Some(_), Some(folder)) => Programs::compiled(target, folder, format, cluster.tree())
            .with_context(|| format!("reading what was compiled for {}", target.name())),
        (Some(_), None) => {
            bail!("{} needs --compiled DIR: what `p4/compile_tofino.sh DIR` made", target.name())
        }
    }
}
