//! `fatbtree memserver`: a memory server as a process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use fatbtree_blink::{Integrity, Keys, TreeConfig};
use fatbtree_memserver::{ServerInfo, Tenant};
use fatbtree_processes::{
    Hosted, MemoryServerOptions, MemoryServerProcess, PartSource, QueryOptions, TreeSource, roster_of,
};
use fatbtree_registry::{Kind as _, SpreadKind, with_spread};
use fatbtree_topology::{Cluster, MemoryServer, Named, Structure};
use fatbtree_verbs::journal::Pace;
use fatbtree_workload::ycsb::{InsertOrder, KeyMap};

use crate::key_shape::keys_of;
use crate::layout::LayoutArguments;
use crate::nic::Nic;
use crate::structure::{StructureArgument, numbers, refuse_without_tree};
use crate::{count, role, room};

/// A memory server of a cluster.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree memserver left --cluster cluster.toml                    empty: load it by `fatbtree load`, or insert
  fatbtree memserver left --cluster cluster.toml --keys 1000000     it loads those of its own partition at the start
  fatbtree memserver left --cluster cluster.toml --data /var/lib/fatbtree/left
  fatbtree memserver left --cluster cluster.toml --data /var/lib/fatbtree/left --sync 0    nothing acknowledged is lost in a power failure
  fatbtree memserver left --cluster cluster.toml --nic ibverbs:mlx5_0    on an RDMA device, which pins the memory of the tree
  fatbtree memserver left --cluster cluster.toml --serve queries --workers 4    also for clients without RDMA, by its processors
  fatbtree memserver left --cluster cluster.toml --leaves buckets    lookups read 128 bytes of a leaf
  fatbtree memserver left --cluster cluster.toml --inline 32    values of up to 32 bytes lie in the leaves
  fatbtree memserver left --cluster cluster.toml --structure hash    its part of a hash table over all memory servers, filled by clients
  fatbtree memserver left --cluster cluster.toml --structure dtx    its part of tables of transactions, with backups of other servers' items
  fatbtree memserver left --cluster cluster.toml --structure dolphin    its part of a Dolphin index over all of them, likewise

With --data the tree is in files of that folder: a server that was stopped or killed serves the same tree at the same addresses when
it is started again, with all writes that were acknowledged. After a power failure it serves the tree as it was at one moment, at most
--sync seconds before. A folder that has a tree already keeps it: --keys is for a new one.

Without --data it comes back empty, or with its --keys. Where clients or the controller have known another tree, an empty one is not served:
operations fail, and `fatbtree control status` says \"tree lost\", until it is loaded again, or `fatbtree load --empty` says that this is meant.

It registers connections with the cluster's controller, and tells of them:
  opened client=10.1.0.2 server=10.0.0.2 queue_pair=17 partition=0 root=64 mtu=1024
  closed client=…
  root partition=0 root=…")]
pub(crate) struct Arguments {
    /// Name of the memory server in the cluster file, or its host's.
    name: String,
    /// Cluster file (TOML).
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    #[command(flatten)]
    structure: StructureArgument,
    #[command(flatten)]
    nic: Nic,
    /// Keep the tree with checksums though the device reads and writes lines whole: for the sake of other memory servers whose devices do not.
    #[arg(long)]
    checksums: bool,
    #[command(flatten)]
    begin: Begin,
    #[command(flatten)]
    serve: Serve,
    /// Folder to keep the tree in; by default the tree ends with the process. The tree has checksums then, so all memory servers of a cluster
    /// have folders, or --checksums. With an RDMA device, which pins the memory of the tree, its spare memory takes room on the disk, too.
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    #[command(flatten)]
    sync: Sync,
    #[command(flatten)]
    end: role::End,
}

/// Time at which acknowledged writes reach the disk of the data folder.
#[derive(Args, Clone, Copy)]
pub(crate) struct Sync {
    /// Longest time for which acknowledged writes may not be on the disk of --data: a power failure loses no more than that. 0: each is there
    /// before it is acknowledged, which takes as long as the disk does. never: until the server stops. An RDMA card allows only never, which
    /// is its default: it leaves the folder unusable after a power failure.
    #[arg(long, value_name = "SECONDS", value_parser = pace, requires = "data")]
    sync: Option<Pace>,
}

impl Sync {
    pub(crate) fn pace(self) -> Option<Pace> {
        self.sync
    }

    /// The option as words of another command line.
    pub(crate) fn words(self) -> Vec<String> {
        let seconds = match self.sync {
            None => return Vec::new(),
            Some(Pace::Each) => "0".to_owned(),
            Some(Pace::Every(interval)) => interval.as_secs_f64().to_string(),
            Some(Pace::Never) => "never".to_owned(),
        };
        vec!["--sync".to_owned(), seconds]
    }
}

/// Longest interval between two syncs, in seconds.
const LONGEST_SYNC: f64 = 3600.0;
/// Shortest one above 0.
const SHORTEST_SYNC: f64 = 0.001;

/// Reads the value of `--sync`.
fn pace(text: &str) -> Result<Pace, String> {
    if text == "never" {
        return Ok(Pace::Never);
    }
    match text.parse::<f64>() {
        Ok(0.0) => Ok(Pace::Each),
        Ok(seconds) if (SHORTEST_SYNC..=LONGEST_SYNC).contains(&seconds) => {
            Ok(Pace::Every(Duration::from_secs_f64(seconds).into()))
        }
        _ => Err(format!("expected 0, {SHORTEST_SYNC} to {LONGEST_SYNC} seconds, or never")),
    }
}

/// Services of memory servers beside RDMA.
#[derive(Args, Clone, Copy)]
pub(crate) struct Serve {
    /// Answer clients without RDMA as well, over UDP: on the host's wire, where switches lead queries to their keys, or by sockets where the
    /// cluster file says `query = "ADDRESS:PORT"`. Trees have checksums then, so all memory servers of a cluster must do it, or be started
    /// by `fatbtree memserver --checksums`.
    #[arg(long, value_name = "queries", value_enum)]
    serve: Option<Beside>,
    /// Threads that answer queries, each with its own queue.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    workers: u16,
}

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Queries,
}

/// Bytes of inner nodes that query workers cache.
const QUERY_CACHE: u64 = 64 << 20;

impl Serve {
    /// Whether it is asked for queries.
    pub(crate) fn is_given(self) -> bool {
        self.serve.is_some()
    }

    /// The options as words of another command line.
    pub(crate) fn words(self) -> Vec<String> {
        match self.serve {
            None => Vec::new(),
            Some(Beside::Queries) => {
                ["--serve", "queries", "--workers", &self.workers.to_string()].map(str::to_owned).into()
            }
        }
    }

    fn queries(
        self,
        cluster: &Cluster,
        file: &Path,
        described: &MemoryServer,
    ) -> Result<Option<QueryOptions>> {
        if self.serve.is_none() {
            return Ok(None);
        }
        let (address, workers) = (described.query.clone(), self.workers);
        let servers = cluster.servers().iter().map(|server| (server.low, server.partition)).collect();
        let secret = crate::topology::query_secret(cluster, file)?;
        Ok(Some(QueryOptions { address, workers, servers, cache_bytes: QUERY_CACHE, secret }))
    }
}

/// Content with which memory servers begin.
#[derive(Args, Clone, Copy)]
pub(crate) struct Begin {
    /// Begin with so many keys of YCSB in all memory servers together: each loads those of its partition. By default they begin empty.
    #[arg(long, value_name = "N", value_parser = count::positive)]
    keys: Option<u64>,
    #[command(flatten)]
    values: MadeValues,
    #[command(flatten)]
    layout: LayoutArguments,
    /// Bytes of the largest region a server lets itself be loaded with; by default half of the memory that is left.
    #[arg(long, value_name = "BYTES", value_parser = count::positive)]
    region_bytes: Option<u64>,
}

/// Values that are made: the same for commands that load them and for commands that check answers.
#[derive(Args, Clone, Copy)]
pub(crate) struct MadeValues {
    /// Bytes of a value.
    #[arg(long, value_name = "N", default_value_t = Self::BYTES, value_parser = clap::value_parser!(u32).range(8..=65_536))]
    pub(crate) value_bytes: u32,
    /// Seed from which values are made.
    #[arg(long, value_name = "N", default_value_t = Self::SEED)]
    pub(crate) seed: u64,
}

impl MadeValues {
    /// Bytes of a value, where nothing else is asked for.
    pub(crate) const BYTES: u32 = 100;
    /// Seed of values, where nothing else is asked for.
    pub(crate) const SEED: u64 = 42;
}

impl Begin {
    /// Whether it is asked for keys.
    pub(crate) fn has_keys(self) -> bool {
        self.keys.is_some()
    }

    /// The options as words of another command line.
    pub(crate) fn words(self) -> Vec<String> {
        let Begin { keys, values: MadeValues { value_bytes, seed }, layout, region_bytes } = self;
        let words = [
            ("--keys", keys),
            ("--value-bytes", Some(value_bytes.into())),
            ("--seed", Some(seed)),
            ("--region-bytes", region_bytes),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some([name.to_owned(), value?.to_string()]))
        .flatten();
        words.chain(layout.words()).collect()
    }
}

/// The keys of YCSB with these numbers, hashed, in that order.
pub(crate) fn hashed_keys(count: u64) -> impl Iterator<Item = u64> {
    let map = KeyMap::from(InsertOrder::Hashed);
    (0..count).filter_map(move |record| map.key(record))
}

/// Bytes for what clients write, beside the tree.
const SPARE_BYTES: u64 = 4 << 30;

/// Bytes for what clients write where all of them are held, written or not. They are a part of the memory that is
/// left, which two trees can have while one is loaded.
fn pinned_spare_bytes(available: u64) -> u64 {
    SPARE_BYTES.min(available / 8)
}

/// Refuses options that only memory servers of trees have a use for.
pub(crate) fn check_structure(structure: Structure, begin: Begin, serve: Serve) -> Result<()> {
    let refuse = |is_given, option, instead| refuse_without_tree(structure, is_given, option, instead);
    refuse(begin.has_keys(), "--keys", "start them empty, and fill them by `fatbtree load`")?;
    begin.layout.check_structure(structure)?;
    refuse(serve.is_given(), "--serve queries", "its clients use RDMA alone")
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Arguments { name, cluster: file, structure, nic, checksums, begin, serve, .. } = arguments;
    let cluster = crate::topology::load(file)?;
    let Some(Named::MemoryServer(described)) = cluster.named(name) else {
        let names: Vec<&str> = cluster.servers().iter().map(|server| server.name.as_str()).collect();
        bail!("no memory server {name:?} in {}: they are {}", file.display(), names.join(", "));
    };
    let available = room::available().unwrap_or(64 << 30);
    // Untouched spare memory takes none, unless a card holds it.
    let (spare_bytes, region_bytes) = match nic.pins_memory() {
        true => (pinned_spare_bytes(available), available / 2),
        false => (SPARE_BYTES, available / 2 + SPARE_BYTES),
    };
    let structure = structure.of(&cluster);
    check_structure(structure, *begin, *serve)?;
    refuse_without_tree(structure, *checksums, "--checksums", "its blocks have some in any case")?;
    let served = with_spread!(structure, K => serve_part::<K>(arguments, &cluster, described, spare_bytes));
    if let Some(served) = served {
        return served;
    }
    let servers = cluster.servers().len() as u64;
    let (count, MadeValues { value_bytes, seed }) = (begin.keys.unwrap_or(0), begin.values);
    let keys = keys_of(&cluster);
    if keys == Keys::Bytes && begin.has_keys() {
        bail!(
            "--keys makes numbers, and the cluster file says keys = \"bytes\": begin empty, and use `fatbtree load`"
        );
    }
    room::check(count, servers, value_bytes.into())?;
    let range = described.low..=described.high;
    let tree = TreeSource {
        keys: hashed_keys(count).filter(|key| range.contains(key)).collect(),
        value_bytes,
        seed,
        config: TreeConfig::with_integrity(
            16,
            1024,
            begin.layout.values(),
            Integrity::for_device(!checksums),
        )?
        .with_leaves(begin.layout.leaves.kind())?
        .with_keys(keys)?,
        spare_bytes,
        region_bytes: begin.region_bytes.unwrap_or(region_bytes),
        queries: serve.queries(&cluster, file, described)?,
    };
    serve_structure(arguments, &cluster, described, tree, |info| {
        let (keys, levels) = (info.counts.keys, info.partition.root_level + 1);
        format!("{}, {}", count::of(keys, "key"), count::of(levels, "level"))
    })
}

/// Serves a part of a structure over all memory servers to the end of the process.
fn serve_part<K: SpreadKind>(
    arguments: &Arguments,
    cluster: &Cluster,
    described: &MemoryServer,
    spare_bytes: u64,
) -> Result<()> {
    let numbers = numbers(cluster)?;
    let shape = match keys_of(cluster) {
        Keys::Numbers => Some(K::shape(numbers)),
        Keys::Bytes => K::with_byte_keys(numbers).map(|keys| keys.shape),
    };
    let Some(shape) = shape else {
        bail!(
            "the cluster file says keys = \"bytes\", and the keys of a {} are numbers: leave it out",
            K::NAME
        );
    };
    let servers = count::of(cluster.servers().len() as u64, "memory server");
    let content = |_: &_| format!("its part of a {} over {servers}", K::NAME);
    serve_structure(arguments, cluster, described, PartSource::<K::Part> { shape, spare_bytes }, content)
}

/// Serves a structure to the end of the process.
fn serve_structure<S: Hosted>(
    arguments: &Arguments,
    cluster: &Cluster,
    described: &MemoryServer,
    structure: S,
    content: impl FnOnce(&ServerInfo<<S::Tenant as Tenant>::Description>) -> String,
) -> Result<()> {
    let Arguments { cluster: file, nic, serve, data, sync, end, .. } = arguments;
    let options = MemoryServerOptions {
        described: described.clone(),
        servers: cluster.servers().to_vec(),
        host: cluster.tree().host(described.host).clone(),
        nic: nic.spec(cluster, described.host)?,
        controllers: cluster.controllers().to_vec(),
        trust: crate::topology::trust(cluster, file, &described.name)?,
        roster: roster_of(cluster),
        metrics: cluster.metrics(&described.name).map(str::to_owned),
        structure,
        data: data.clone(),
        sync: sync.pace(),
        limit: end.seconds.map(Duration::from_secs),
    };
    let process =
        MemoryServerProcess::open(options).with_context(|| format!("memory server {}", described.name))?;
    crate::stdout::is_log();
    outln!(
        "memory server {}: {}, gRPC on {}; Ctrl-C stops it",
        described.name,
        content(process.info()),
        process.grpc()
    );
    if let Some(address) = process.queries() {
        let whose = match crate::topology::query_secret(cluster, file)? {
            Some(_) => "of clients with certificates",
            None => "OPEN: any host that reaches it reads and writes",
        };
        outln!("queries on {address}, {}, {whose}", count::of(serve.workers, "worker"));
    }
    fatbtree_processes::notify_ready();
    end.stop_with_stdin(process.stopper());
    let report = process.run(|event| outln!("{event}"));
    let report = report.with_context(|| format!("memory server {}", described.name))?;
    if let Some(queries) = report.queries {
        outln!("queries: {queries}");
    }
    match report.software {
        Some((port, nic)) => outln!("stopped: {port}; NIC: {nic}"),
        None => outln!("stopped"),
    }
    Ok(())
}
