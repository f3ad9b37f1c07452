//! `fatbtree load`: fills the memory servers of a cluster.

mod input;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use comfy_table::{Table, presets};
use fatbtree_memserver::ServerInfo;
use fatbtree_memserver::grpc::{Client, LoadData, LoadProgress, load_servers};
use fatbtree_topology::Cluster;
use fatbtree_trust::{OPERATOR, Trust};
use serde::Serialize;

use crate::memserver::MadeValues;
use crate::output::Output;
use crate::{count, progress};
use input::{Input, Source};

/// Fill the memory servers of a cluster with keys and values.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree load --cluster cluster.toml --keys 1e6              1,000,000 keys of YCSB, with values that `fatbtree bench` can check
  fatbtree load --cluster cluster.toml --keys keys.txt         a key a line, decimal or 0x...; values are made
  fatbtree load --cluster cluster.toml --keys people.csv       lines of key,value; a first line \"key,value\" is passed over

Each memory server gets as many keys as the others: the partitions' borders follow from the keys, whatever the cluster file says. What the
servers held before is replaced when all have built their new trees; a load that is stopped before, or fails, changes nothing. Clients lose
their sessions and connect anew.")]
pub(crate) struct Arguments {
    /// Cluster file (TOML).
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// How many keys, as 4711, 1e6 or 2M; or a file of keys; or a file .csv of keys and values.
    #[arg(long, value_name = "COUNT|FILE|CSV")]
    keys: String,
    #[command(flatten)]
    values: MadeValues,
    /// Where to write the result as JSON; - for standard output, instead of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The result, as `--json` writes it.
#[derive(Serialize)]
struct LoadResult {
    keys: u64,
    /// Of all values together.
    value_bytes: u64,
    /// From the first byte sent until all servers serve the new trees.
    seconds: f64,
    keys_per_s: f64,
    servers: Vec<LoadedServer>,
}

#[derive(Serialize)]
struct LoadedServer {
    server: String,
    partition: u16,
    keys: u64,
    /// First key of the partition.
    low: String,
    /// Last key of the partition.
    high: String,
    levels: u32,
    generation: u64,
    region_bytes: u64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let cluster = crate::topology::load(&arguments.cluster)?;
    let to_stdout = arguments.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
    let file = Output::optional("--json", arguments.json.as_ref().filter(|_| !to_stdout))?;
    let source: Source = arguments.keys.parse()?;
    let MadeValues { seed, value_bytes } = arguments.values;
    let data = Arc::new(Input::read(&source, seed, value_bytes)?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let trust = crate::topology::trust(&cluster, &arguments.cluster, OPERATOR)?;
    let result = runtime.context("starting threads")?.block_on(load(&cluster, &trust, data))?;
    let json = serde_json::to_string_pretty(&result)?;
    if to_stdout {
        println!("{json}");
    } else {
        print(&result);
    }
    if let Some(file) = file {
        file.write("result", &(json + "\n"))?;
    }
    Ok(())
}

async fn load(cluster: &Cluster, trust: &Trust, data: Arc<Input>) -> Result<LoadResult> {
    let mut servers = vec![];
    for server in cluster.servers() {
        let client = Client::connect(trust.to(&server.grpc, &server.name)).await;
        let client = client.with_context(|| format!("memory server {}", server.name))?;
        servers.push((server.partition, client));
    }
    let count = data.keys().len() as u64;
    let value_bytes = (0..data.keys().len()).map(|at| u64::from(data.length(at))).sum();
    let (bar, began) = (progress::bar("keys", count), Instant::now());
    let loaded = load_servers(servers, data, |progress| match progress {
        LoadProgress::Sent(keys) => {
            bar.inc(keys);
            if bar.position() == count {
                bar.set_message("keys sent; trees are built");
            }
        }
        LoadProgress::Built(_) => {}
    });
    let loaded = loaded.await;
    let seconds = began.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let loaded = loaded?;
    let described = cluster.servers().iter().zip(&loaded);
    let servers = described.map(|(server, info)| told(server.name.clone(), info)).collect();
    Ok(LoadResult { keys: count, value_bytes, seconds, keys_per_s: count as f64 / seconds, servers })
}

fn told(server: String, info: &ServerInfo) -> LoadedServer {
    let range = info.partition.range;
    LoadedServer {
        server,
        partition: info.partition.id,
        keys: info.counts.keys,
        low: format!("{:#x}", range.low),
        high: format!("{:#x}", range.high.map_or(u64::MAX, |high| high - 1)),
        levels: u32::from(info.partition.root_level) + 1,
        generation: info.generation,
        region_bytes: info.tree.len,
    }
}

fn print(result: &LoadResult) {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    table.set_header(["memory server", "partition", "keys", "first key", "last key", "levels", "generation"]);
    for server in &result.servers {
        let numbers = [server.levels.to_string(), server.generation.to_string()];
        let front = [server.server.clone(), server.partition.to_string(), server.keys.to_string()];
        let keys = [server.low.clone(), server.high.clone()];
        table.add_row(front.into_iter().chain(keys).chain(numbers));
    }
    println!("{table}");
    println!(
        "{} with values of {} bytes in all, in {:.2} s, {:.0}/s",
        count::of(result.keys, "key"),
        result.value_bytes,
        result.seconds,
        result.keys_per_s
    );
}
