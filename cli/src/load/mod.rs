//! `fatbtree load`: fills the memory servers of a cluster.

mod byte_input;
mod following;
mod input;
mod inserts;
mod names;
mod spread;

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use comfy_table::{Table, presets};
use fatbtree_blink::{KeyRange, Keys};
use fatbtree_blink_host::grpc::{load_empty, load_servers, load_servers_bytes};
use fatbtree_blink_host::{BytePairs, Layout, TreeInfo, TreeServerInfo};
use fatbtree_memserver::grpc::{Client, ClientError, LoadData as _};
use fatbtree_registry::with_spread;
use fatbtree_topology::{Cluster, MemoryServer, Named};
use fatbtree_trust::{OPERATOR, Trust};
use serde::Serialize;

use crate::count;
use crate::key_shape::{KeyShapeArgument, KeyType, keys_of};
use crate::layout::LayoutArguments;
use crate::memserver::MadeValues;
use crate::nic::Nic;
use crate::output::Output;
use crate::records::check_enough;
use crate::shell::command::show;
use crate::structure::StructureArgument;
use following::{Following, connected};
use input::{Input, Source};

/// Fill the memory servers of a cluster with keys and values.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree load --cluster cluster.toml --keys 1e6              1,000,000 keys of YCSB, with values that `fatbtree bench` can check
  fatbtree load --cluster cluster.toml --keys keys.txt         a key a line, decimal or 0x...; values are made
  fatbtree load --cluster cluster.toml --keys people.csv       lines of key,value; a first line \"key,value\" is passed over
  fatbtree load --cluster cluster.toml --keys ycsb.out         what `ycsb load basic -P workloads/workloada` has printed
  fatbtree load --cluster cluster.toml --trace made.trace      the keys that are there when a cache trace begins
  fatbtree load --cluster cluster.toml --keys 1e6 --replace    the same where the memory servers hold trees, which are given up
  fatbtree load --cluster cluster.toml --keys 1e6 --inline 32 --leaves buckets    another layout: values of up to 32 bytes in the leaves
  fatbtree load --cluster cluster.toml --keys names.csv --key-type bytes    names, URLs: keys of bytes
  fatbtree load --cluster cluster.toml --keys 1e6 --key-type bytes --key-shape url    1,000,000 URLs that `fatbtree bench` can check
  fatbtree load --cluster cluster.toml --keys names.csv --key-type bytes --structure hash    the same into the hash table
  fatbtree load --cluster cluster.toml --empty left            an empty tree for one server that has lost its own
  fatbtree load --cluster cluster.toml --keys 1e5 --structure hash    into the hash table
  fatbtree load --cluster cluster.toml --keys 1e5 --structure dolphin    into the Dolphin index

Each memory server gets as many keys as the others: the partitions' borders follow from the keys, whatever the cluster file says. A server
that holds a tree refuses the load (1), unless --replace is given. Its tree is replaced when all servers have built their new trees; a load
that is stopped before (exit code 130), or fails (1), changes nothing. Clients lose their sessions and connect anew.

Trees keep the layout that they had, unless --inline or --leaves says otherwise; data folders of older releases get another one so. Clients that
are connected meanwhile end with an error that says so: they are to be started anew.

A hash table, a Dolphin index and tables of transactions are loaded in the same way; their keys lie on all servers, in no ranges. With
--client a client of the cluster file inserts them one by one instead, over the data path: such a load that is stopped leaves what it has
inserted, and --resume goes on with it.")]
pub(crate) struct Arguments {
    /// Cluster file (TOML).
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// Number of keys, as 4711, 1e6 or 2M; or a file of keys; or a file .csv of keys and values.
    #[arg(long, value_name = "COUNT|FILE|CSV", required_unless_present_any = ["empty", "trace"], conflicts_with = "empty")]
    keys: Option<String>,
    /// Cache trace: its keys that are there before its first operation, with values of its sizes.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["empty", "keys", "value_bytes"])]
    trace: Option<PathBuf>,
    /// Have this memory server begin anew with an empty tree. One that was started again without its tree serves no
    /// client until it is loaded, or is told so that this is meant.
    #[arg(long, value_name = "SERVER")]
    empty: Option<String>,
    /// Replace what memory servers hold. Without this, a server that is not empty ends the command.
    #[arg(long)]
    replace: bool,
    /// Kind of the keys of trees, or of a hash table: numbers, or bytes (names, URLs), as they stand in the trace or file, a key a line or
    /// key,value in a .csv.
    #[arg(long, value_enum, value_name = "numbers|bytes", conflicts_with = "empty")]
    key_type: Option<KeyType>,
    #[command(flatten)]
    key_shape: KeyShapeArgument,
    #[command(flatten)]
    structure: StructureArgument,
    /// Client of the cluster file that inserts into the structure, key by key, instead of a bulk load; not for trees.
    #[arg(long, value_name = "NAME")]
    client: Option<String>,
    /// Go on with a load by --client that was stopped: keys that are there keep their values, the others are inserted.
    #[arg(long, requires = "client", conflicts_with = "replace")]
    resume: bool,
    #[command(flatten)]
    nic: Nic,
    #[command(flatten)]
    values: MadeValues,
    #[command(flatten)]
    layout: LayoutArguments,
    /// File for the result as JSON; - for standard output, instead of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Arguments {
    /// Kind of the keys: as the command line says, or else the cluster file.
    fn keys(&self, cluster: &Cluster) -> Keys {
        self.key_type.map_or(keys_of(cluster), Keys::from)
    }

    /// Reads keys and values for trees.
    fn content(&self, cluster: &Cluster) -> Result<Content> {
        Ok(match self.keys(cluster) {
            Keys::Numbers => Content::Numbers(self.input()?),
            Keys::Bytes => Content::Bytes(Arc::new(byte_input::read(self)?)),
        })
    }

    /// Reads keys and values.
    fn input(&self) -> Result<Arc<Input>> {
        let MadeValues { seed, value_bytes } = self.values;
        Ok(Arc::new(Input::read(&self.source()?, seed, value_bytes)?))
    }

    /// Where the keys come from.
    fn source(&self) -> Result<Source> {
        match &self.trace {
            Some(path) => Ok(Source::Trace(path.clone())),
            None => self.keys.as_deref().unwrap_or_default().parse(),
        }
    }
}

/// The result, as `--json` writes it.
#[derive(Serialize)]
struct LoadResult {
    keys: u64,
    /// Bytes of all values together.
    value_bytes: u64,
    /// Seconds from the first byte sent until all servers serve the new trees.
    seconds: f64,
    keys_per_s: f64,
    servers: Vec<LoadedServer>,
}

#[derive(Serialize)]
struct LoadedServer {
    server: String,
    /// Kind of its keys.
    #[serde(skip)]
    kind: Keys,
    partition: u16,
    keys: u64,
    /// Lowest key that belongs to the partition, there or not.
    low: String,
    /// Highest key that belongs to the partition, there or not. Of keys of bytes, which have none, the first one beyond; none: all belong to it.
    high: Option<String>,
    levels: u32,
    generation: u64,
    region_bytes: u64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let cluster = crate::topology::load(&arguments.cluster)?;
    let to_stdout = arguments.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
    let file = Output::optional("--json", arguments.json.as_ref().filter(|_| !to_stdout))?;
    let structure = arguments.structure.of(&cluster);
    arguments.layout.check_structure(structure)?;
    let keys = arguments.keys(&cluster);
    if arguments.key_shape.is_given() && keys == Keys::Numbers {
        bail!("--key-shape is for keys of bytes: give --key-type bytes, too");
    }
    let filled = with_spread!(structure, K => match keys {
        Keys::Numbers => spread::load::<K>(arguments, &cluster)?,
        Keys::Bytes => spread::load_bytes::<K>(arguments, &cluster)?,
    });
    if let Some(result) = filled {
        let json = serde_json::to_string_pretty(&result)?;
        match to_stdout {
            true => outln!("{json}"),
            false => outln!("{result}"),
        }
        return file.map_or(Ok(()), |file| file.write("result", &(json + "\n")));
    }
    if arguments.client.is_some() {
        bail!("--client: trees are loaded in bulk, by no client; leave it out");
    }
    let result = load_trees(arguments, &cluster)?;
    let json = serde_json::to_string_pretty(&result)?;
    if to_stdout {
        outln!("{json}");
    } else {
        print(&result);
    }
    if let Some(file) = file {
        file.write("result", &(json + "\n"))?;
    }
    Ok(())
}

/// Loads trees.
fn load_trees(arguments: &Arguments, cluster: &Cluster) -> Result<LoadResult> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("starting threads")?;
    let trust = crate::topology::trust(cluster, &arguments.cluster, OPERATOR)?;
    match &arguments.empty {
        Some(name) => runtime.block_on(empty(cluster, &trust, name, arguments)),
        None => {
            let data = arguments.content(cluster)?;
            check_enough(data.keys(), cluster.servers().len() as u64)?;
            runtime.block_on(load(cluster, &trust, data, arguments))
        }
    }
}

/// What trees are loaded with.
enum Content {
    Numbers(Arc<Input>),
    Bytes(Arc<BytePairs>),
}

impl Content {
    fn keys(&self) -> u64 {
        match self {
            Self::Numbers(data) => data.keys().len() as u64,
            Self::Bytes(pairs) => pairs.len() as u64,
        }
    }

    fn value_bytes(&self) -> u64 {
        match self {
            Self::Numbers(data) => data.value_bytes(),
            Self::Bytes(pairs) => (0..pairs.len()).map(|at| pairs.pair(at).1.len() as u64).sum(),
        }
    }
}

async fn connect(server: &MemoryServer, trust: &Trust) -> Result<Client> {
    let client = Client::connect(trust.to(&server.grpc, &server.name)).await;
    client.with_context(|| format!("memory server {}", server.name))
}

/// What a server's region is used for.
struct Use {
    /// Whether a load would replace anything.
    is_used: bool,
    /// Bytes in use.
    bytes: u64,
}

async fn use_of(client: &mut Client) -> Result<Use, ClientError> {
    let counters = client.statistics().await?;
    let counter = |name| counters.iter().find(|(other, _)| other == name).map_or(0, |(_, count)| *count);
    Ok(Use { is_used: counter("used") > 0, bytes: counter("region_bytes_used") })
}

/// Connects to a server whose tree shall be replaced.
///
/// # Errors
/// When the server cannot be reached, or holds a tree that `--replace` does not permit to give up.
async fn connect_to_fill(server: &MemoryServer, trust: &Trust, replace: bool) -> Result<Client> {
    let mut client = connect(server, trust).await?;
    if replace {
        return Ok(client);
    }
    let asking = || format!("memory server {}", server.name);
    let info = client.info::<TreeInfo>().await.with_context(asking)?;
    let Use { is_used, bytes } = use_of(&mut client).await.with_context(asking)?;
    if is_used {
        bail!(
            "memory server {} holds a tree of {} (generation {}), and a load would replace it: repeat the command with --replace if that is \
             meant",
            server.name,
            count::of(bytes, "byte"),
            info.generation
        );
    }
    Ok(client)
}

async fn load(
    cluster: &Cluster,
    trust: &Trust,
    content: Content,
    arguments: &Arguments,
) -> Result<LoadResult> {
    let mut signalled = pin!(fatbtree_processes::stop_signal().context("listening for signals")?);
    let connecting = async {
        let mut servers = vec![];
        for server in cluster.servers() {
            servers.push((server.partition, connect_to_fill(server, trust, arguments.replace).await?));
        }
        anyhow::Ok(servers)
    };
    let servers = connected(connecting, &mut signalled).await?;
    let (count, value_bytes) = (content.keys(), content.value_bytes());
    let following = Following::new("keys", count, servers.len());
    let (layout, tell) = (arguments.layout.given_layout(), |progress| following.tell(progress));
    let loaded = async {
        match content {
            Content::Numbers(data) => {
                let layout = Layout { keys: Some(Keys::Numbers), ..layout };
                load_servers(servers, data, layout, tell).await
            }
            Content::Bytes(pairs) => load_servers_bytes(servers, pairs, layout, tell).await,
        }
    };
    let (loaded, seconds) = following.until(loaded, signalled).await?;
    let described = cluster.servers().iter().zip(&loaded);
    let servers = described.map(|(server, info)| told(server.name.clone(), info)).collect();
    Ok(LoadResult { keys: count, value_bytes, seconds, keys_per_s: count as f64 / seconds, servers })
}

/// Loads an empty tree into one server, with the keys that no other one has, and the layout of the others' trees. An earlier load may have moved the
/// borders of the cluster file.
async fn empty(cluster: &Cluster, trust: &Trust, name: &str, arguments: &Arguments) -> Result<LoadResult> {
    let Some(Named::MemoryServer(server)) = cluster.named(name) else {
        let names: Vec<&str> = cluster.servers().iter().map(|server| server.name.as_str()).collect();
        bail!("no memory server {name:?} in the cluster file: they are {}", names.join(", "));
    };
    let began = Instant::now();
    let (mut ranges, mut layout) = (vec![], arguments.layout.given_layout());
    if let Some(option) = arguments.layout.given().filter(|_| cluster.servers().len() > 1) {
        bail!(
            "{option} is for loads of all servers: an empty tree gets the layout that the trees of the others have"
        );
    }
    for other in cluster.servers().iter().filter(|other| other.name != server.name) {
        let info = connect(other, trust).await?.info::<TreeInfo>().await;
        let info = info.with_context(|| format!("memory server {}", other.name))?;
        ranges.push(info.partition.range);
        layout = Layout::of(&info.config);
    }
    let Some(range) = KeyRange::only_gap(ranges) else {
        bail!(
            "the other memory servers do not leave one range of keys for {name}: another one may have lost its tree, too; load all of them \
             with --keys"
        );
    };
    let info = load_empty(connect_to_fill(server, trust, arguments.replace).await?, range, layout).await;
    let info = info.with_context(|| format!("memory server {}", server.name))?;
    let (seconds, servers) = (began.elapsed().as_secs_f64(), vec![told(server.name.clone(), &info)]);
    Ok(LoadResult { keys: 0, value_bytes: 0, seconds, keys_per_s: 0.0, servers })
}

fn told(server: String, info: &TreeServerInfo) -> LoadedServer {
    let range = info.partition.range;
    let (low, high) = match info.config.keys() {
        Keys::Numbers => (
            format!("{:#x}", range.low),
            Some(format!("{:#x}", range.high.map_or(u64::MAX, |high| high - 1))),
        ),
        Keys::Bytes => {
            // The first key beyond, as it can be typed.
            let border = |word| show(&info.config.code().shortest_key(word));
            (border(range.low), range.high.map(border))
        }
    };
    LoadedServer {
        server,
        kind: info.config.keys(),
        partition: info.partition.id,
        keys: info.counts.keys,
        low,
        high,
        levels: u32::from(info.partition.root_level) + 1,
        generation: info.generation,
        region_bytes: info.region.len,
    }
}

fn print(result: &LoadResult) {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "memory server",
        "partition",
        "keys",
        "range from",
        "range to",
        "levels",
        "generation",
    ]);
    for server in &result.servers {
        let numbers = [server.levels.to_string(), server.generation.to_string()];
        let front = [server.server.clone(), server.partition.to_string(), server.keys.to_string()];
        let high = match (&server.high, server.kind) {
            (Some(high), Keys::Numbers) => high.clone(),
            (Some(high), Keys::Bytes) => format!("before {high}"),
            (None, _) => "the end".to_owned(),
        };
        let keys = [server.low.clone(), high];
        table.add_row(front.into_iter().chain(keys).chain(numbers));
    }
    outln!("{table}");
    outln!(
        "{} with values of {} bytes in all, in {:.2} s, {:.0}/s",
        count::of(result.keys, "key"),
        result.value_bytes,
        result.seconds,
        result.keys_per_s
    );
}
