//! `--structure`: what the memory servers of a cluster hold.

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use fatbtree_node::{ClientOptions, HashProcess, NicSpec};
use fatbtree_race::{MAX_SERVERS, Shape};
use fatbtree_topology::{Client, Cluster, Host, Named, Structure};

use crate::nic::Nic;

/// The structure that a command is for.
#[derive(Args, Clone, Copy)]
pub(crate) struct StructureArgument {
    /// Structure that the memory servers hold: B-link trees, or one hash table over all of them. By default the cluster file says it
    /// (structure = "hash" before its first section), else trees.
    #[arg(long = "structure", value_name = "tree|hash", value_enum)]
    structure: Option<Word>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Word {
    Tree,
    Hash,
}

impl StructureArgument {
    /// The structure in a cluster.
    pub(crate) fn of(self, cluster: &Cluster) -> Structure {
        self.given().unwrap_or(cluster.structure())
    }

    /// The structure that the command line names, if it does.
    pub(crate) fn given(self) -> Option<Structure> {
        self.structure.map(|word| match word {
            Word::Tree => Structure::Tree,
            Word::Hash => Structure::Hash,
        })
    }

    /// The option as words of another command line.
    pub(crate) fn words(self) -> Vec<String> {
        self.given().map_or_else(Vec::new, |given| ["--structure", given.word()].map(str::to_owned).into())
    }
}

/// Refuses an option that a hash table has no use for.
pub(crate) fn refuse_with_hash(is_given: bool, option: &str, instead: &str) -> Result<()> {
    if is_given {
        bail!("{option} is for trees, and the memory servers hold a hash table: {instead}");
    }
    Ok(())
}

/// Shape of the hash table over all memory servers of a cluster.
pub(crate) fn shape(cluster: &Cluster) -> Result<Shape> {
    let mut servers = 0;
    for server in cluster.servers() {
        if server.partition >= MAX_SERVERS {
            bail!(
                "memory server {} has partition {}: those of a hash table are numbered below {MAX_SERVERS}",
                server.name,
                server.partition
            );
        }
        servers |= 1 << server.partition;
    }
    Ok(Shape { servers, ..Shape::default() })
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

/// Opens a client of the hash table at a free seat of its host, and the table.
pub(crate) fn open_table(
    nic: &Nic,
    cluster: &Cluster,
    described: &Client,
    options: impl Fn(Host, NicSpec) -> ClientOptions,
) -> Result<HashProcess> {
    let open = |host, nic| HashProcess::open(&options(host, nic));
    let mut process = nic.at_seat(cluster, described.host, open)?;
    let client = process.client().clone();
    process.run(async move { client.table().await.map(drop) })??;
    Ok(process)
}
