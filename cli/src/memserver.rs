//! `fatbtree memserver`: a memory server as a process.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use fatbtree_client::workload::{InsertOrder, KeyMap};
use fatbtree_index::{TreeConfig, ValueLayout};
use fatbtree_node::{MemoryServerOptions, MemoryServerProcess, TreeSource, host_port};
use fatbtree_topology::Named;

use crate::{count, role, room};

/// A memory server of a cluster.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree memserver left --cluster cluster.toml                    100,000 keys in the whole cluster
  fatbtree memserver left --cluster cluster.toml --keys 1000000     it loads those of its own partition

It registers connections with the cluster's controller, and tells of them:
  opened client=10.1.0.2 server=10.0.0.2 queue_pair=17 partition=0 rkey=4711 root=64
  closed client=…
  root partition=0 root=…")]
pub(crate) struct Arguments {
    /// Its name in the cluster file, or its host's.
    name: String,
    /// Cluster file (TOML).
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    #[command(flatten)]
    data: Data,
    #[command(flatten)]
    end: role::End,
}

/// What is loaded, until it is loaded over gRPC: the same for all memory servers of a cluster, and for those who check their answers.
#[derive(Args, Clone, Copy)]
pub(crate) struct Data {
    /// Keys of all memory servers together; each loads those of its partition.
    #[arg(long, value_name = "N", default_value = "100000", value_parser = count::positive)]
    pub(crate) keys: u64,
    /// Bytes of a value.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(8..=65_536))]
    pub(crate) value_bytes: u32,
    /// From which values are made.
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub(crate) seed: u64,
}

impl Data {
    /// The same on another command line.
    pub(crate) fn words(self) -> Vec<String> {
        let Data { keys, value_bytes, seed } = self;
        [("--keys", keys), ("--value-bytes", value_bytes.into()), ("--seed", seed)]
            .into_iter()
            .flat_map(|(name, value)| [name.to_owned(), value.to_string()])
            .collect()
    }
}

/// Memory for what clients write, beside the tree.
const SPARE_BYTES: u64 = 4 << 30;

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Arguments { name, cluster: file, data, end } = arguments;
    let cluster = crate::topology::load(file)?;
    let Some(Named::MemoryServer(described)) = cluster.named(name) else {
        let names: Vec<&str> = cluster.servers().iter().map(|server| server.name.as_str()).collect();
        bail!("no memory server {name:?} in {}: they are {}", file.display(), names.join(", "));
    };
    let servers = cluster.servers().len() as u64;
    room::check(data.keys, servers, data.value_bytes.into())?;
    let map = KeyMap::from(InsertOrder::Hashed);
    let range = described.low..=described.high;
    let keys =
        (0..data.keys).filter_map(|record| map.key(record)).filter(|key| range.contains(key)).collect();
    let tree = TreeSource {
        keys,
        value_bytes: data.value_bytes,
        seed: data.seed,
        config: TreeConfig::new(16, 1024, ValueLayout::OutOfLine)?,
        spare_bytes: SPARE_BYTES,
    };
    let options = MemoryServerOptions {
        described: described.clone(),
        host: cluster.tree().host(described.host).clone(),
        port: host_port(&cluster, described.host)?,
        controller: cluster.controller().map(str::to_owned),
        tree,
        limit: end.seconds.map(Duration::from_secs),
    };
    let process =
        MemoryServerProcess::open(options).with_context(|| format!("memory server {}", described.name))?;
    let info = process.info();
    println!(
        "memory server {}: {} keys, {} levels, gRPC on {}; Ctrl-C stops it",
        described.name,
        info.counts.keys,
        u32::from(info.partition.root_level) + 1,
        process.grpc()
    );
    end.stop_with_stdin(process.stopper());
    let report = process.run(|event| println!("{event}"));
    println!("stopped: {}; NIC: {}", report.port, report.nic);
    Ok(())
}
