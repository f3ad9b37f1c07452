//! `fatbtree topology`: show, draw and check networks and cluster files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use fatbtree_processes::certificates_of;
use fatbtree_query::Secret;
use fatbtree_topology::{Annotations, Cluster, render_svg, render_text};
use fatbtree_trust::{CONTROLLER, DAYS, MOST_DAYS, OPERATOR, QUERY_SECRET, Trust, make_certificates};

/// Show, draw and check networks and cluster files.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree topology show                             the demo's network
  fatbtree topology show --cluster testbed.toml      a network of your own
  fatbtree topology show --svg network.svg           a drawing of it
  fatbtree topology example > cluster.toml           a file that works as it stands on one machine: `fatbtree up cluster.toml`
  fatbtree topology example single > single.toml     the same with one switch; with two: pair; or leaf-spine, fat-tree
  fatbtree topology example --testbed > testbed.toml   the paper's network, with every setting explained
  fatbtree topology check testbed.toml               is it right? Errors name line and field
  fatbtree topology certificates --cluster testbed.toml   fills the folder that its [trust] names, for tests and small installations")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print switches, ports, addresses and routes.
    Show {
        /// Cluster file (TOML). Without it: the demo's network.
        #[arg(long, value_name = "FILE")]
        cluster: Option<PathBuf>,
        /// Also draw the network, as SVG.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Check a cluster file.
    Check {
        /// The file.
        file: PathBuf,
    },
    /// Make an authority, and a certificate and key for every role of a cluster file and its operator, in the folder that it names.
    #[command(
        after_help = "Each machine gets ca.pem, and NAME.pem and NAME.key of the roles that run there; memory servers that answer queries also get
queries.secret, of which the keys of clients are made. `operator` is for `fatbtree load` and `fatbtree control`.
The authority's own key is not kept: for a further role make a new set. No certificate can be taken back: a new set keeps out its
former owner. An authority of your own can do both: its certificates are used as they are, renewed ones when a role is started again."
    )]
    Certificates {
        /// Cluster file (TOML), with a section [trust].
        #[arg(long, value_name = "FILE")]
        cluster: PathBuf,
        /// Days for which the certificates are good.
        #[arg(long, value_name = "N", default_value_t = DAYS, value_parser = clap::value_parser!(u32).range(1..=MOST_DAYS.into()))]
        days: u32,
    },
    /// Print a commented cluster file: a small network with two memory servers and a client, all on this machine.
    Example {
        /// Kind of network: single (one switch), pair (two), leaf-spine or fat-tree.
        #[arg(default_value = EXAMPLE, value_parser = kinds(), conflicts_with = "testbed")]
        kind: String,
        /// The paper's network instead, to put a testbed's addresses in.
        #[arg(long)]
        testbed: bool,
    },
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.command {
        Command::Show { cluster, svg } => {
            let cluster = match cluster {
                Some(file) => load(file)?,
                None => Cluster::example(),
            };
            out!("{}", render_text(&cluster));
            if let Some(path) = svg {
                std::fs::write(path, render_svg(&cluster, &Annotations::default()))
                    .with_context(|| format!("writing the drawing to {}", path.display()))?;
                outln!("\ndrawn in {}", path.display());
            }
        }
        Command::Check { file } => {
            let cluster = load(file)?;
            outln!(
                "{}: {} switches, {} memory servers, {} clients, all in order",
                file.display(),
                cluster.tree().switches().len(),
                cluster.servers().len(),
                cluster.clients().len()
            );
        }
        Command::Certificates { cluster: file, days } => {
            let cluster = load(file)?;
            let Some(folder) = certificates_of(&cluster, file) else {
                bail!(
                    "{} names no folder: add a section [trust] with folder = \"certificates\"",
                    file.display()
                );
            };
            let switches = cluster.tree().switches().iter().map(|switch| switch.name());
            let servers = cluster.servers().iter().map(|server| server.name.clone());
            let clients = cluster.clients().iter().map(|client| client.name.clone());
            let mut names: Vec<String> = switches.chain(servers).chain(clients).collect();
            names.extend([CONTROLLER.to_owned(), OPERATOR.to_owned()]);
            let ends = make_certificates(&folder, names.iter().map(String::as_str), *days)?;
            outln!(
                "{}: ca.pem, certificates and keys of {} roles, and {QUERY_SECRET}; they end on {ends}",
                folder.display(),
                names.len()
            );
        }
        Command::Example { testbed: true, .. } => out!("{}", Cluster::example_toml()),
        Command::Example { testbed: false, kind } => out!("{}", example(kind)),
    }
    Ok(())
}

/// The kind of network of the example, unless another one is named.
pub(crate) const EXAMPLE: &str = "fat-tree";

/// The kinds of networks that there are examples of.
pub(crate) fn kinds() -> PossibleValuesParser {
    PossibleValuesParser::new(Cluster::examples().map(|(kind, _)| kind))
}

/// The text of the example of a kind.
pub(crate) fn example(kind: &str) -> &'static str {
    let example = Cluster::examples().into_iter().find(|(name, _)| *name == kind);
    example.map_or(Cluster::local_toml(), |(_, text)| text)
}

pub(crate) fn load(file: &Path) -> Result<Cluster> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("reading the cluster file {}", file.display()))?;
    Cluster::from_toml(&text).with_context(|| format!("cluster file {}", file.display()))
}

/// Secret of which the memory servers of a cluster make keys for queries; `None` if queries need none.
pub(crate) fn query_secret(cluster: &Cluster, file: &Path) -> Result<Option<Secret>> {
    match certificates_of(cluster, file) {
        Some(folder) if !cluster.query_open() => {
            let secret = fatbtree_trust::query_secret(&folder)
                .context("queries bear keys where there are certificates; query_open = true in [trust] has them answered without")?;
            Ok(Some(Secret::new(secret)))
        }
        _ => Ok(None),
    }
}

/// Credentials that a role of a cluster shows to others.
pub(crate) fn trust(cluster: &Cluster, file: &Path, name: &str) -> Result<Trust> {
    Ok(fatbtree_processes::trust_of(cluster, file, name)?)
}
