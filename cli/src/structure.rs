//! `--structure`: what the memory servers of a cluster hold.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use fatbtree_processes::{NicSpec, NodeError, Reached, StructureProcess};
use fatbtree_registry::{Kind as _, MAX_SERVERS, WORDS, with_kind};
use fatbtree_topology::{Client, Cluster, Host, Named, Structure};

use crate::nic::Nic;

/// The structure that a command is for.
#[derive(Args, Clone, Copy)]
pub(crate) struct StructureArgument {
    /// Structure that the memory servers hold: B-link trees; or over all of them one hash table, one Dolphin index or tables of transactions
    /// (dtx). By default the cluster file says it (structure = "hash" before its first section), else trees.
    #[arg(long = "structure", value_name = "tree|hash|dolphin|dtx", value_parser = words())]
    structure: Option<Structure>,
}

/// Reader of the words of structures.
fn words() -> impl TypedValueParser<Value = Structure> {
    let of = |word: String| WORDS.into_iter().find(|structure| structure.word() == word);
    PossibleValuesParser::new(WORDS.map(Structure::word))
        .map(move |word| of(word).expect("it is one of them"))
}

impl StructureArgument {
    /// The structure in a cluster.
    pub(crate) fn of(self, cluster: &Cluster) -> Structure {
        self.given().unwrap_or(cluster.structure())
    }

    /// The structure that the command line names, if it does.
    pub(crate) fn given(self) -> Option<Structure> {
        self.structure
    }

    /// The option as words of another command line.
    pub(crate) fn words(self) -> Vec<String> {
        self.given().map_or_else(Vec::new, |given| ["--structure", given.word()].map(str::to_owned).into())
    }
}

/// Refuses an option that only trees have a use for.
pub(crate) fn refuse_without_tree(
    structure: Structure,
    is_given: bool,
    option: &str,
    instead: &str,
) -> Result<()> {
    if is_given && structure != Structure::Tree {
        let held = with_kind!(structure, K => K::NAME);
        bail!("{option} is for trees, and the memory servers hold a {held}: {instead}");
    }
    Ok(())
}

/// The memory servers of a cluster as those of a structure over all of them: a bit for each number.
pub(crate) fn numbers(cluster: &Cluster) -> Result<u32> {
    let mut servers = 0;
    for server in cluster.servers() {
        if server.partition >= MAX_SERVERS {
            bail!(
                "memory server {} has partition {}: those of a structure over all servers are numbered below {MAX_SERVERS}",
                server.name,
                server.partition
            );
        }
        servers |= 1 << server.partition;
    }
    Ok(servers)
}

/// The client of a cluster file with this name; by default the first.
pub(crate) fn client_of<'c>(cluster: &'c Cluster, name: Option<&str>) -> Result<&'c Client> {
    let Some(name) = name else {
        return cluster.clients().first().context("the cluster file has no [[client]]");
    };
    match cluster.named(name) {
        Some(Named::Client(client)) => Ok(client),
        _ => {
            let names: Vec<&str> = cluster.clients().iter().map(|client| client.name.as_str()).collect();
            bail!("no client {name:?} in the cluster file: they are {}", names.join(", "))
        }
    }
}

/// Opens a client at a free seat of its host by `open`, and its structure.
pub(crate) fn open_client<C: Reached>(
    nic: &Nic,
    cluster: &Cluster,
    described: &Client,
    patience: Duration,
    open: impl Fn(Host, NicSpec) -> Result<StructureProcess<C>, NodeError>,
) -> Result<StructureProcess<C>> {
    let mut process = nic.at_seat(cluster, described.host, patience, open)?;
    let client = process.client().clone();
    process.run(client.ready())??;
    Ok(process)
}
