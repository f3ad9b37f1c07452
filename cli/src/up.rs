//! `fatbtree up`: all roles of a cluster file, on this machine.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use fatbtree_processes::{RoleState, Supervisor, UpNews, UpOptions};
use fatbtree_trust::OPERATOR;
use tempfile::TempDir;

use fatbtree_topology::Structure;

use crate::log;
use crate::memserver::{Begin, Serve, Sync, check_structure};
use crate::structure::StructureArgument;
use crate::topology::{EXAMPLE, example, kinds};

/// Start all roles of a cluster file on this machine: controller, switches and memory servers.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree up                                    the example of `fatbtree topology example`; prints the path of its cluster file
  fatbtree up --example single                   the same with one switch
  fatbtree up cluster.toml --example single      the same; cluster.toml is written, and stays
  fatbtree topology example > cluster.toml
  fatbtree up cluster.toml                       prints `ready` when every role answers; Ctrl-C stops them all
  fatbtree up cluster.toml --data /var/tmp/fatbtree    the same; trees are there again after a restart
  fatbtree up cluster.toml --data /var/tmp/fatbtree --sync 0    and nothing acknowledged is lost in a power failure
  fatbtree up cluster.toml --serve queries       memory servers answer clients without RDMA, too, and switches lead what these ask
  fatbtree up cluster.toml --structure hash      a hash table over the memory servers, instead of trees
  fatbtree up cluster.toml --structure dolphin   a Dolphin index over the memory servers, instead of trees
  fatbtree up cluster.toml --structure dtx       tables of transactions over the memory servers, with a backup of each value
  fatbtree up cluster.toml --keys 1000000        with keys at the start; without, `fatbtree load` loads them
  fatbtree up --page 127.0.0.1:8088              with a live page of the cluster: open http://127.0.0.1:8088 in a browser
  curl http://127.0.0.1:9800/metrics             what core-0 has counted: [metrics] in the file gives every role a port")]
pub(crate) struct Arguments {
    /// Cluster file (TOML). Without one: an example, whose file lies in a temporary folder while the cluster runs.
    file: Option<PathBuf>,
    /// Start an example, with a network of this kind: single (one switch), pair (two), leaf-spine or fat-tree. Its cluster file is written
    /// to FILE if that is not there.
    #[arg(long, value_name = "KIND", value_parser = kinds())]
    example: Option<String>,
    #[command(flatten)]
    structure: StructureArgument,
    #[command(flatten)]
    begin: Begin,
    #[command(flatten)]
    serve: Serve,
    /// Folder in which memory servers keep their trees, each in one of its own below it.
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    #[command(flatten)]
    sync: Sync,
    /// Threads in each switch that forward packets.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    switch_threads: u64,
    /// Leave a role that dies dead.
    #[arg(long)]
    no_restart: bool,
    /// Serve a live page for browsers at this address, such as 127.0.0.1:8088.
    #[arg(long, value_name = "ADDRESS")]
    page: Option<String>,
    /// Time limit for a role to answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
}

/// The cluster file of an example, with the structure that the command line names: other commands read it there.
fn example_text(kind: Option<&str>, structure: Option<Structure>) -> String {
    let text = example(kind.unwrap_or(EXAMPLE));
    match structure {
        None => text.to_owned(),
        Some(structure) => format!("structure = \"{}\"\n\n{text}", structure.word()),
    }
}

/// Writes an example's cluster file into a temporary folder, which is removed with the value.
fn write_temporary(text: &str) -> Result<(TempDir, PathBuf)> {
    let folder =
        tempfile::Builder::new().prefix("fatbtree-").tempdir().context("making a temporary folder")?;
    let file = folder.path().join("cluster.toml");
    std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
    Ok((folder, file))
}

/// Writes an example's cluster file where it is to stay. One that was changed since is not replaced.
fn write_lasting(file: &Path, text: &str) -> Result<()> {
    match std::fs::read_to_string(file) {
        Ok(found) if found == text => Ok(()),
        Ok(_) => bail!(
            "{} is there, and is not the example; leave --example away to start it, or name another file",
            file.display()
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
            outln!("cluster file {}", file.display());
            Ok(())
        }
        Err(error) => Err(error).with_context(|| format!("reading {}", file.display())),
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let text = example_text(arguments.example.as_deref(), arguments.structure.given());
    let (_folder, file) = match &arguments.file {
        Some(file) => {
            if arguments.example.is_some() {
                write_lasting(file, &text)?;
            }
            (None, file.clone())
        }
        None => {
            let (folder, file) = write_temporary(&text)?;
            outln!("cluster file {}", file.display());
            (Some(folder), file)
        }
    };
    let cluster = crate::topology::load(&file)?;
    let structure = arguments.structure.of(&cluster);
    check_structure(structure, arguments.begin, arguments.serve)?;
    let Arguments { sync, begin, serve, .. } = arguments;
    let memory_server_arguments =
        [arguments.structure.words(), sync.words(), begin.words(), serve.words()].concat();
    let options = UpOptions {
        program: std::env::current_exe().context("finding this program")?,
        trust: crate::topology::trust(&cluster, &file, OPERATOR)?,
        file,
        cluster,
        memory_server_arguments,
        switch_arguments: vec!["--threads".to_owned(), arguments.switch_threads.to_string()],
        data: arguments.data.clone(),
        restart: !arguments.no_restart,
        patience: Duration::from_secs(arguments.patience),
        page: arguments.page.clone(),
    };
    crate::stdout::is_log();
    Supervisor::new(options)?.run(|news| match news {
        // Alone on its line, for scripts that wait for it.
        UpNews::Ready => {
            outln!("ready");
            fatbtree_processes::notify_ready();
        }
        UpNews::Warning(warning) => outln!("{} warning: {warning}", log::now()),
        UpNews::Trouble(error) => outln!("{} trouble: {error}", log::now()),
        UpNews::Role { name, kind, address, state } => {
            let state = match state {
                RoleState::Started(process) => format!("started, process {process}"),
                RoleState::Answers => "answers".to_owned(),
                RoleState::Silent => "silent: it runs, but does not answer".to_owned(),
                RoleState::Ended(status) => format!("ended: {status}"),
                RoleState::Stopped { killed: false } => "stopped".to_owned(),
                RoleState::Stopped { killed: true } => "did not stop, and was killed".to_owned(),
            };
            outln!("{} {name:<12} {:<10} {address:<21} {state}", log::now(), kind.name());
        }
    })?;
    Ok(())
}
