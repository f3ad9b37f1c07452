//! `fatbtree shell`: a tree to try by hand, or a cluster.

pub(crate) mod command;
mod place;
mod session;
mod transaction;
mod tree;

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use clap::error::ErrorKind;
use fatbtree_blink::{Allocation, Keys, TreeConfig, ValueLayout};
use fatbtree_registry::{Kind, SpreadKind, with_kind, with_spread};
use fatbtree_topology::Cluster;

use crate::key_shape::KeyType;
use crate::layout::LeavesArgument;
use crate::nic::Nic;
use crate::stdout::{Out, is_lost};
use crate::structure::{StructureArgument, refuse_without_tree};
use command::{Command, HELP};
use place::Place;
use session::{Shell, Trouble};
use tree::{Setting, Tree};

/// A tree to try by hand: memory servers with software NICs and a client, all in this process; or a running cluster.
///
/// Reads commands, one a line, from a terminal or a pipe; `help` lists them. A line that fails is reported with its number, and the shell
/// goes on. At the end of a pipe the exit code is 1 if any line has failed.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree shell                                  an empty tree
  fatbtree shell --keys 100000 --trips            keys 1 to 100000, and what each command costs
  fatbtree shell --value-size 8 --fan-out 4       values of 8 bytes in the leaves, small nodes
  fatbtree shell --key-type bytes                 an empty tree of keys of bytes: put user:1 Ada, prefix user:
  fatbtree shell --cluster cluster.toml           the keys of a running cluster, by the same commands
  fatbtree shell --structure hash                 an empty hash table; with --cluster, that of a cluster
  fatbtree shell --structure dolphin              an empty Dolphin index; with --cluster, that of a cluster
  fatbtree shell --structure dtx                  empty tables of transactions: begin, commit and abort
  printf 'put 1 one\\nget 1\\n' | fatbtree shell    prints ok, and one")]
pub(crate) struct Arguments {
    /// Speaks to the running cluster of this file (TOML) instead of a tree of its own.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["servers", "keys", "key_type", "value_size", "fan_out", "leaf_bytes", "leaves", "cache", "spare", "round_robin", "trips"])]
    cluster: Option<PathBuf>,
    #[command(flatten)]
    structure: StructureArgument,
    #[command(flatten)]
    nic: Nic,
    /// Client of the cluster file; by default the first. As many processes can be it at once as the file gives its host UDP ports.
    #[arg(long, value_name = "NAME", requires = "cluster")]
    client: Option<String>,
    /// Memory servers.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    servers: u16,
    /// Kind of the keys of a tree: numbers, or bytes (names, URLs). A cluster knows its own.
    #[arg(long, value_enum, value_name = "numbers|bytes", default_value = "numbers")]
    key_type: KeyType,
    /// Loads the keys 1 to N first, or user:1 to user:N.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    keys: u64,
    /// Keeps values of this many bytes in the leaves, 1 to 64; otherwise they lie beside them and have up to 1 MiB.
    #[arg(long, value_name = "BYTES")]
    value_size: Option<u8>,
    /// Most children of an internal node, at least 3: with 2 a node that is split leaves one child on its left, and keys in ascending order
    /// make the tree as high as it is wide.
    #[arg(long, value_name = "CHILDREN", default_value_t = 16, value_parser = clap::value_parser!(u16).range(3..))]
    fan_out: u16,
    /// Bytes of a leaf.
    #[arg(long, value_name = "BYTES", default_value_t = 1024)]
    leaf_bytes: u32,
    #[command(flatten)]
    leaves: LeavesArgument,
    /// The client's cache of inner nodes; 0: none.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    cache: u64,
    /// Memory of each server for what is written; it is taken when it is used.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30, value_parser = clap::value_parser!(u64).range(..1 << 46))]
    spare: u64,
    /// Puts the nodes that splits make on one server after the other, instead of beside those that are split.
    #[arg(long)]
    round_robin: bool,
    /// Prints after each command how many round trips it took.
    #[arg(long)]
    trips: bool,
}

/// Longest line in bytes: two values of 1 MiB, each character of them escaped.
const LONGEST_LINE: u64 = (4 << 20) + 1024;

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let is_terminal = io::stdin().is_terminal();
    let file = arguments.cluster.as_deref();
    let cluster = file.map(|file| anyhow::Ok((file, crate::topology::load(file)?))).transpose()?;
    let cluster = cluster.as_ref().map(|(file, cluster)| (*file, cluster));
    let structure = match cluster {
        Some((_, cluster)) => arguments.structure.of(cluster),
        None => arguments.structure.given().unwrap_or_default(),
    };
    let is_bytes = arguments.key_type == KeyType::Bytes;
    refuse_without_tree(structure, is_bytes, "--key-type bytes", "its keys are numbers")?;
    let lines = match cluster {
        Some(cluster) => with_kind!(structure, K => on_cluster::<K>(arguments, cluster)),
        None => with_spread!(structure, K => own::<K>(arguments))
            .unwrap_or_else(|| own_tree(arguments).and_then(serve_all)),
    }?;
    match lines {
        Ok(Lines { failed: 0, .. }) => Ok(()),
        Ok(_) if is_terminal => Ok(()),
        Ok(Lines { failed, all }) => bail!("{failed} of {all} lines failed"),
        // The reader of the answers has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) if is_lost() => {
            Err(error).context("an answer could not be written: later lines were not carried out")
        }
        Err(error) => Err(error).context("reading commands"),
    }
}

/// Carries out all lines on a structure over memory servers of this process.
fn own<K: SpreadKind>(arguments: &Arguments) -> Result<io::Result<Lines>> {
    let mut shell = Shell::new(place::own::<K>(arguments.servers)?, arguments.trips, Out);
    shell.load(arguments.keys)?;
    serve_all(shell)
}

/// Carries out all lines on the structure of a cluster.
fn on_cluster<K: Kind>(arguments: &Arguments, cluster: (&Path, &Cluster)) -> Result<io::Result<Lines>> {
    let place = place::connect::<K::Client<_>>(cluster, arguments.client.as_deref(), &arguments.nic)?;
    exit_when_interrupted()?;
    let mut shell = Shell::new(place, false, Out);
    let lines = serve(&mut shell, io::stdin().lock(), io::stdin().is_terminal());
    shell.into_place().close();
    Ok(lines)
}

/// Carries out all lines on a structure in this process.
fn serve_all(mut shell: Shell<impl Place, Out>) -> Result<io::Result<Lines>> {
    exit_when_interrupted()?;
    Ok(serve(&mut shell, io::stdin().lock(), io::stdin().is_terminal()))
}

fn own_tree(arguments: &Arguments) -> Result<Shell<Tree, Out>> {
    let kind = arguments.key_type.into();
    let values = arguments.value_size.map_or(ValueLayout::SHORT, ValueLayout::Inline);
    let config = TreeConfig::new(arguments.fan_out, arguments.leaf_bytes, values)
        .and_then(|config| config.with_leaves(arguments.leaves.kind()))
        .and_then(|config| config.with_keys(kind))
        .unwrap_or_else(|error| clap::Error::raw(ErrorKind::ValueValidation, format!("{error}\n")).exit());
    let Arguments { servers, keys, cache: cache_bytes, spare: spare_bytes, trips, round_robin, .. } =
        *arguments;
    let allocation = if round_robin { Allocation::RoundRobin } else { Allocation::Partitioned };
    // Keys of bytes are put.
    let loaded = if kind == Keys::Bytes { 0 } else { keys };
    let tree = Tree::new(&Setting { config, allocation, servers, keys: loaded, cache_bytes, spare_bytes })?;
    let mut shell = Shell::new(tree, trips, Out);
    shell.load(keys - loaded)?;
    Ok(shell)
}

/// Ends the process at Ctrl-C. Nothing of a tree outlives the process, and a session with a cluster ends with its
/// lease.
fn exit_when_interrupted() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("interrupt".into()).spawn(move || {
        if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            errln!();
            std::process::exit(crate::interrupted::EXIT_CODE.into());
        }
    })?;
    Ok(())
}

/// Lines that were read.
struct Lines {
    all: u64,
    failed: u64,
}

/// Carries out all lines up to the end.
fn serve(
    shell: &mut Shell<impl Place, Out>,
    mut input: impl BufRead,
    is_terminal: bool,
) -> io::Result<Lines> {
    let mut lines = Lines { all: 0, failed: 0 };
    let mut line = Vec::new();
    loop {
        if is_terminal {
            write!(shell.out, "> ")?;
        }
        shell.out.flush()?;
        let Some(whole) = read_line(&mut input, &mut line)? else {
            if is_terminal {
                writeln!(shell.out)?;
            }
            return Ok(lines);
        };
        lines.all += 1;
        let done = match understand(&line, whole, shell.keys()) {
            Ok(None) => Ok(()),
            Ok(Some(Command::Quit)) => return Ok(lines),
            Ok(Some(Command::Help)) => Ok(writeln!(shell.out, "{HELP}")?),
            Ok(Some(command)) => shell.carry_out(command),
            Err(error) => Err(error.into()),
        };
        match done {
            Ok(()) => {}
            Err(Trouble::Output(error)) => return Err(error),
            Err(Trouble::Command(error)) => {
                lines.failed += 1;
                shell.out.flush()?;
                errln!("line {}: {error:#}", lines.all);
            }
        }
    }
}

fn understand(line: &[u8], whole: bool, keys: Keys) -> Result<Option<Command>> {
    ensure!(whole, "the line is longer than {LONGEST_LINE} bytes: values have up to 1 MiB");
    let line = std::str::from_utf8(line).context("the line is not UTF-8: give such bytes as 0x hex")?;
    Command::parse(line, keys)
}

/// Reads the next line; `None` at the end, `false` if it is too long and was skipped.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
    line.clear();
    if input.by_ref().take(LONGEST_LINE + 1).read_until(b'\n', line)? == 0 {
        return Ok(None);
    }
    let whole = line.len() as u64 <= LONGEST_LINE || line.ends_with(b"\n");
    if !whole {
        input.skip_until(b'\n')?;
    }
    Ok(Some(whole))
}
