//! `fatbtree shell`: a tree to try by hand, or a cluster.

mod cluster;
pub(crate) mod command;
mod spread;
mod transaction;
mod tree;

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use clap::error::ErrorKind;
use fatbtree_blink::{Allocation, Change, KeyRange, Order, ScanOptions, Start, TreeConfig, ValueLayout};
use fatbtree_processes::SpreadClient;
use fatbtree_registry::{Kind, with_kind};
use fatbtree_topology::Cluster;

use crate::nic::Nic;
use crate::stdout::{Out, is_lost};
use crate::structure::StructureArgument;
use command::{Command, HELP, show};
use tree::{Setting, Tree, loaded_value};

/// A tree to try by hand: memory servers with software NICs and a client, all in this process; or a running cluster.
///
/// Reads commands, one a line, from a terminal or a pipe; `help` lists them. A line that fails is reported with its number, and the shell
/// goes on. At the end of a pipe the exit code is 1 if any line has failed.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree shell                                  an empty tree
  fatbtree shell --keys 100000 --trips            keys 1 to 100000, and what each command costs
  fatbtree shell --value-size 8 --fan-out 4       values of 8 bytes in the leaves, small nodes
  fatbtree shell --cluster cluster.toml           the keys of a running cluster, by the same commands
  fatbtree shell --structure hash                 an empty hash table; with --cluster, that of a cluster
  fatbtree shell --structure dolphin              an empty Dolphin index; with --cluster, that of a cluster
  fatbtree shell --structure dtx                  empty tables of transactions: begin, commit and abort
  printf 'put 1 one\\nget 1\\n' | fatbtree shell    prints ok, and one")]
pub(crate) struct Arguments {
    /// Speaks to the running cluster of this file (TOML) instead of a tree of its own.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["servers", "keys", "value_size", "fan_out", "leaf_bytes", "cache", "spare", "round_robin", "trips"])]
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
    /// Loads the keys 1 to N first.
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

/// Pairs that a scan of the shell asks for before it prints them.
const PAIRS_AT_ONCE: usize = 256;

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let is_terminal = io::stdin().is_terminal();
    let cluster = arguments.cluster.as_deref().map(crate::topology::load).transpose()?;
    let structure = match &cluster {
        Some(cluster) => arguments.structure.of(cluster),
        None => arguments.structure.given().unwrap_or_default(),
    };
    let spread = with_kind!(structure, K => on_spread::<K>(arguments, cluster.as_ref())?);
    let lines = match (spread, &arguments.cluster) {
        (Some(lines), _) => lines,
        (None, Some(file)) => {
            let (nic, client) = (&arguments.nic, arguments.client.as_deref());
            let mut shell = cluster::Shell::connect(file, client, nic, Out)?;
            exit_when_interrupted()?;
            let lines = serve(&mut shell, io::stdin().lock(), is_terminal);
            shell.close();
            lines
        }
        (None, None) => {
            let mut shell = own_tree(arguments)?;
            exit_when_interrupted()?;
            serve(&mut shell, io::stdin().lock(), is_terminal)
        }
    };
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

/// Carries out all lines on a structure over all memory servers, of a cluster or in this process.
fn on_spread<K: Kind>(arguments: &Arguments, cluster: Option<&Cluster>) -> Result<io::Result<Lines>> {
    let is_terminal = io::stdin().is_terminal();
    let lines = match (&arguments.cluster, cluster) {
        (Some(file), Some(cluster)) => {
            let (nic, client) = (&arguments.nic, arguments.client.as_deref());
            let place = spread::connect::<SpreadClient<K::Client<_>>>(cluster, file, client, nic)?;
            exit_when_interrupted()?;
            let mut shell = spread::Shell::new(place, false, Out);
            let lines = serve(&mut shell, io::stdin().lock(), is_terminal);
            shell.into_place().close();
            lines
        }
        _ => {
            let place = spread::own::<K>(arguments.servers)?;
            let mut shell = spread::Shell::new(place, arguments.trips, Out);
            shell.load(arguments.keys)?;
            exit_when_interrupted()?;
            serve(&mut shell, io::stdin().lock(), is_terminal)
        }
    };
    Ok(lines)
}

fn own_tree(arguments: &Arguments) -> Result<Shell<Out>> {
    let values = arguments.value_size.map_or(ValueLayout::OutOfLine, ValueLayout::Inline);
    let config = TreeConfig::new(arguments.fan_out, arguments.leaf_bytes, values)
        .unwrap_or_else(|error| clap::Error::raw(ErrorKind::ValueValidation, format!("{error}\n")).exit());
    let Arguments { servers, keys, cache: cache_bytes, spare: spare_bytes, trips, round_robin, .. } =
        *arguments;
    let allocation = if round_robin { Allocation::RoundRobin } else { Allocation::Partitioned };
    let tree = Tree::new(&Setting { config, allocation, servers, keys, cache_bytes, spare_bytes })?;
    Ok(Shell { tree, config, trips, out: Out, operations: 0, round_trips: 0 })
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

struct Shell<W> {
    tree: Tree,
    config: TreeConfig,
    trips: bool,
    out: W,
    /// Operations of all commands so far.
    operations: u64,
    round_trips: u64,
}

/// Reason for which a command was not carried out.
enum Trouble {
    /// The answer could not be written: the shell ends.
    Output(io::Error),
    /// The shell goes on.
    Command(anyhow::Error),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<anyhow::Error> for Trouble {
    fn from(error: anyhow::Error) -> Self {
        Self::Command(error)
    }
}

/// Error of a structure that has no transactions.
fn without_transactions(structure: &str) -> anyhow::Error {
    anyhow::anyhow!("a {structure} has no transactions; see `fatbtree shell --structure dtx`")
}

/// A database that carries out commands.
trait Database {
    /// Place for answers.
    fn out(&mut self) -> &mut impl Write;

    /// Carries out a command and writes its answer.
    fn carry_out(&mut self, command: Command) -> Result<(), Trouble>;
}

/// Carries out all lines up to the end.
fn serve(database: &mut impl Database, mut input: impl BufRead, is_terminal: bool) -> io::Result<Lines> {
    let mut lines = Lines { all: 0, failed: 0 };
    let mut line = Vec::new();
    loop {
        if is_terminal {
            write!(database.out(), "> ")?;
        }
        database.out().flush()?;
        let Some(whole) = read_line(&mut input, &mut line)? else {
            if is_terminal {
                writeln!(database.out())?;
            }
            return Ok(lines);
        };
        lines.all += 1;
        let done = match understand(&line, whole) {
            Ok(None) => Ok(()),
            Ok(Some(Command::Quit)) => return Ok(lines),
            Ok(Some(Command::Help)) => Ok(writeln!(database.out(), "{HELP}")?),
            Ok(Some(command)) => database.carry_out(command),
            Err(error) => Err(error.into()),
        };
        match done {
            Ok(()) => {}
            Err(Trouble::Output(error)) => return Err(error),
            Err(Trouble::Command(error)) => {
                lines.failed += 1;
                database.out().flush()?;
                errln!("line {}: {error:#}", lines.all);
            }
        }
    }
}

fn understand(line: &[u8], whole: bool) -> Result<Option<Command>> {
    ensure!(whole, "the line is longer than {LONGEST_LINE} bytes: values have up to 1 MiB");
    let line = std::str::from_utf8(line).context("the line is not UTF-8: give such bytes as 0x hex")?;
    Command::parse(line)
}

impl<W: Write> Database for Shell<W> {
    fn out(&mut self) -> &mut impl Write {
        &mut self.out
    }

    fn carry_out(&mut self, command: Command) -> Result<(), Trouble> {
        match command {
            Command::Get(key) => {
                let lookup =
                    self.tree.run(async |client| client.lookup(key, Start::CachedOrIndexRead).await)?;
                let round_trips = lookup.trips.round_trips;
                let answer = match lookup.result.map_err(anyhow::Error::from)? {
                    Some(value) => show(&value),
                    None => "not there".to_owned(),
                };
                self.answer(&answer, round_trips.into())
            }
            Command::Put(key, value) => self.mutate(key, Change::Upsert(&value), ["ok", "ok"]),
            Command::Insert(key, value) => {
                self.mutate(key, Change::Insert(&value), ["inserted", "there already"])
            }
            Command::Update(key, value) => self.mutate(key, Change::Update(&value), ["updated", "not there"]),
            Command::CompareAndSet(key, expected, value) => {
                let mutation = Change::CompareAndSwap { expected: &expected, value: &value };
                self.mutate(key, mutation, ["set", "not set"])
            }
            Command::Delete(key) => self.mutate(key, Change::Delete, ["deleted", "not there"]),
            Command::Scan { first, last, limit, backward } => self.scan(first, last, limit, backward),
            Command::Len => {
                let before = self.tree.client.pool().stats().remote.reads;
                let count = self.tree.run(async |client| client.len().await)?;
                let count = count.map_err(anyhow::Error::from)?;
                let reads = self.tree.client.pool().stats().remote.reads - before;
                writeln!(self.out, "{count}")?;
                self.reads(reads)
            }
            Command::Verify => self.verify(),
            Command::Load(count) => self.load(count),
            Command::Stats => self.stats(),
            Command::Begin | Command::Commit | Command::Abort => Err(without_transactions("tree").into()),
            Command::Help | Command::Quit => Ok(()),
        }
    }
}

impl<W: Write> Shell<W> {
    /// Writes an answer and what it has cost.
    fn answer(&mut self, answer: &str, round_trips: u64) -> Result<(), Trouble> {
        writeln!(self.out, "{answer}")?;
        self.cost(round_trips)
    }

    fn cost(&mut self, round_trips: u64) -> Result<(), Trouble> {
        self.operations += 1;
        self.round_trips += round_trips;
        if self.trips {
            let s = if round_trips == 1 { "" } else { "s" };
            writeln!(self.out, "({round_trips} round trip{s})")?;
        }
        Ok(())
    }

    /// Writes the reads of a command that has read the whole tree, many nodes at a time.
    fn reads(&mut self, reads: u64) -> Result<(), Trouble> {
        if self.trips {
            writeln!(self.out, "({reads} reads)")?;
        }
        Ok(())
    }

    /// Carries out a mutation. The two `answers` are for one that was applied, and for one that was not.
    fn mutate(&mut self, key: u64, mutation: Change<'_>, answers: [&str; 2]) -> Result<(), Trouble> {
        let change = self.tree.run(async |client| client.mutate(key, mutation).await)?;
        let applied = change.result.map_err(anyhow::Error::from)?;
        self.answer(answers[usize::from(!applied)], change.trips.round_trips.into())
    }

    fn scan(&mut self, first: u64, last: u64, limit: u64, backward: bool) -> Result<(), Trouble> {
        if first > last {
            return Err(anyhow::anyhow!("the first key, {first}, is above the last, {last}").into());
        }
        let order = if backward { Order::Backward } else { Order::Forward };
        let options = ScanOptions { order, start: Start::CachedOrIndexRead, ..ScanOptions::default() };
        let client = self.tree.client.clone();
        let mut scan = client.pool().scan(KeyRange::of(first..=last), options);
        let mut left = limit;
        while left > 0 {
            // Some at a time: a long scan is printed as it goes.
            let most = left.min(PAIRS_AT_ONCE as u64);
            let pairs = self.tree.run(async |_| {
                let mut pairs = Vec::new();
                while (pairs.len() as u64) < most
                    && let Some(pair) = scan.next().await
                {
                    pairs.push(pair?);
                }
                Ok::<_, fatbtree_blink::OperationError>(pairs)
            })?;
            let pairs = pairs.map_err(anyhow::Error::from)?;
            for (key, value) in &pairs {
                writeln!(self.out, "{key} {}", show(value))?;
            }
            left -= pairs.len() as u64;
            if (pairs.len() as u64) < most {
                break;
            }
        }
        self.cost(scan.trips().sequential)
    }

    fn verify(&mut self) -> Result<(), Trouble> {
        let before = self.tree.client.pool().stats().remote.reads;
        let found = self.tree.run(async |client| client.verify().await)?.map_err(anyhow::Error::from)?;
        let reads = self.tree.client.pool().stats().remote.reads - before;
        let answer = format!(
            "whole: {} keys in {} leaves, {:.0} % full, under {} internal nodes; root at level {}",
            found.keys,
            found.leaves,
            found.leaf_fill() * 100.0,
            found.internal_nodes,
            found.height
        );
        writeln!(self.out, "{answer}")?;
        self.reads(reads)
    }

    fn load(&mut self, count: u64) -> Result<(), Trouble> {
        let config = self.config;
        let round_trips = self.tree.run(async |client| {
            let mut round_trips = 0;
            for key in 1..=count {
                let change = client.mutate(key, Change::Upsert(&loaded_value(&config, key))).await;
                change.result?;
                round_trips += u64::from(change.trips.round_trips);
            }
            Ok::<_, fatbtree_blink::OperationError>(round_trips)
        })?;
        let round_trips = round_trips.map_err(anyhow::Error::from)?;
        self.answer("ok", round_trips)
    }

    fn stats(&mut self) -> Result<(), Trouble> {
        let stats = self.tree.client.pool().stats();
        let cache = self.tree.client.cache_stats();
        writeln!(
            self.out,
            "gets, changes, scans and loads: {}; round trips one after another: {}",
            self.operations, self.round_trips
        )?;
        writeln!(
            self.out,
            "splits {}, merges {}, new roots {}",
            stats.splits, stats.merges, stats.new_roots
        )?;
        writeln!(
            self.out,
            "cache: {} bytes in {} nodes; hits {}, misses {}, stale {}, evicted {}",
            cache.bytes, cache.entries, cache.hits, cache.misses, cache.stale, cache.evicted
        )?;
        Ok(())
    }
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
