//! Fills a structure over all memory servers.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use fatbtree_memserver::grpc::{Client, KeysAndValues, LoadData, Plan, empty, load_parts};
use fatbtree_memserver::{Part, Tenant};
use fatbtree_registry::{ByteKeys, Kind as _, SpreadKind};
use fatbtree_remote_memory::{ServerInfo, Structure as _};
use fatbtree_topology::{Cluster, MemoryServer};
use fatbtree_trust::{OPERATOR, Trust};
use serde::Serialize;

use super::following::{Following, connected};
use super::inserts::change_to;
use super::names::Names;
use super::{Arguments, Use, byte_input, connect, inserts, use_of};
use crate::count;
use crate::structure::numbers;

/// A server's description of its part of a structure.
type InfoOf<K> = <<K as SpreadKind>::Part as Tenant>::Description;

/// The result, as `--json` writes it.
#[derive(Serialize)]
pub(super) struct SpreadResult {
    /// Name of the structure.
    #[serde(skip)]
    pub(super) name: &'static str,
    pub(super) keys: u64,
    /// Bytes of all values together.
    pub(super) value_bytes: u64,
    pub(super) seconds: f64,
    pub(super) keys_per_s: f64,
    /// Round trips of an insert. `None`: no client has inserted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) round_trips: Option<f64>,
    /// Keys that were there before, of a load that went on with another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) there: Option<u64>,
    pub(super) servers: usize,
}

impl fmt::Display for SpreadResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, keys, value_bytes, seconds, keys_per_s, round_trips, there, servers } = self;
        write!(
            f,
            "{} with values of {value_bytes} bytes in all in a {name} over {}, in {seconds:.2} s, {keys_per_s:.0}/s",
            count::of(*keys, "key"),
            count::of(*servers as u64, "memory server")
        )?;
        round_trips.map_or(Ok(()), |trips| write!(f, ", {trips:.2} round trips each"))?;
        there.map_or(Ok(()), |there| write!(f, "; {there} of them were there"))
    }
}

/// Fills the structure of a cluster: by a bulk load, or by inserts where a client is named.
pub(super) fn load<K: SpreadKind>(arguments: &Arguments, cluster: &Cluster) -> Result<SpreadResult> {
    if arguments.empty.is_some() {
        bail!(
            "--empty is for trees, and the memory servers hold a {}: it is emptied on all servers at once, by --keys with --replace",
            K::NAME
        );
    }
    let data = arguments.input()?;
    let content = Content::<K> {
        shape: K::shape(numbers(cluster)?),
        data: Arc::clone(&data) as _,
        value_bytes: data.value_bytes(),
        is_other: false,
    };
    match run_fill(arguments, cluster, &content)? {
        Some(loaded) => Ok(loaded),
        None => inserts::insert(arguments, cluster, &content, async |client, at| {
            let mut value = Vec::new();
            data.append(at, &mut value);
            Ok(client.change(data.keys()[at], change_to(&value, arguments)).await)
        }),
    }
}

/// The same with keys of bytes.
pub(super) fn load_bytes<K: SpreadKind>(arguments: &Arguments, cluster: &Cluster) -> Result<SpreadResult> {
    let Some(ByteKeys { shape, word_of }) = K::with_byte_keys(numbers(cluster)?) else {
        bail!(
            "--key-type bytes is for trees and hash tables, and the memory servers hold a {}: its keys are numbers",
            K::NAME
        );
    };
    let names = Arc::new(Names::new(byte_input::read(arguments)?, word_of));
    let value_bytes = names.value_bytes();
    let content = Content::<K> { shape, data: Arc::clone(&names) as _, value_bytes, is_other: true };
    match run_fill(arguments, cluster, &content)? {
        Some(loaded) => Ok(loaded),
        None => inserts::insert(arguments, cluster, &content, async |client, at| {
            let (key, value) = names.pair(at);
            let answer = client.change_bytes(key, change_to(value, arguments)).await;
            answer.context("the structure has no keys of bytes")
        }),
    }
}

/// What a structure is filled with.
pub(super) struct Content<K: SpreadKind> {
    shape: <K::Part as Part>::Shape,
    pub(super) data: Arc<dyn LoadData>,
    /// Bytes of all values together.
    pub(super) value_bytes: u64,
    /// Whether it has another shape than servers have when they are started, or emptied.
    is_other: bool,
}

fn run_fill<K: SpreadKind>(
    arguments: &Arguments,
    cluster: &Cluster,
    content: &Content<K>,
) -> Result<Option<SpreadResult>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let trust = crate::topology::trust(cluster, &arguments.cluster, OPERATOR)?;
    runtime.block_on(fill::<K>(arguments, cluster, &trust, content))
}

/// Loads the structure; or empties it, if a client shall insert the keys, and returns `None`.
async fn fill<K: SpreadKind>(
    arguments: &Arguments,
    cluster: &Cluster,
    trust: &Trust,
    content: &Content<K>,
) -> Result<Option<SpreadResult>> {
    let mut signalled = pin!(fatbtree_processes::stop_signal().context("listening for signals")?);
    let connecting = connect_to_fill::<K>(cluster, trust, arguments.replace || arguments.resume);
    let servers = connected(connecting, &mut signalled).await?;
    let plan = |data| {
        let infos: Vec<_> = servers.iter().map(|server| server.info).collect();
        Plan::<K::Part>::new(content.shape, &infos, data)
    };
    if arguments.client.is_none() {
        let plan = plan(Arc::clone(&content.data))?;
        return bulk_load::<K>(plan, servers, content, signalled).await.map(Some);
    }
    match (content.is_other, arguments.resume) {
        (true, false) => {
            let plan = plan(Arc::new(KeysAndValues::default()))?;
            bulk_load::<K>(plan, servers, content, signalled).await?;
        }
        (false, false) if arguments.replace => make_empty::<K>(servers).await?,
        _ => {}
    }
    Ok(None)
}

/// Sends every server its part.
async fn bulk_load<K: SpreadKind>(
    plan: Plan<K::Part>,
    servers: Vec<Server<'_, K>>,
    content: &Content<K>,
    signalled: impl Future<Output = ()>,
) -> Result<SpreadResult> {
    let count = content.data.keys().len() as u64;
    let following = Following::new("bytes", plan.bytes(), servers.len());
    let clients = servers.into_iter().map(|server| (server.described.partition, server.client));
    let loaded = load_parts(plan, clients.collect(), |progress| following.tell(progress));
    let (infos, seconds) = following.until(loaded, signalled).await?;
    let keys_per_s = count as f64 / seconds;
    Ok(SpreadResult {
        name: K::NAME,
        keys: count,
        value_bytes: content.value_bytes,
        seconds,
        keys_per_s,
        round_trips: None,
        there: None,
        servers: infos.len(),
    })
}

/// A server that is to be filled.
struct Server<'c, K: SpreadKind> {
    described: &'c MemoryServer,
    client: Client,
    info: ServerInfo<InfoOf<K>>,
}

/// Connects to all servers. Without `replace` they must be empty.
async fn connect_to_fill<'c, K: SpreadKind>(
    cluster: &'c Cluster,
    trust: &Trust,
    replace: bool,
) -> Result<Vec<Server<'c, K>>> {
    let mut servers = Vec::new();
    for described in cluster.servers() {
        let mut client: Client = connect(described, trust).await?;
        let asking = || format!("memory server {}", described.name);
        let info = client.info::<InfoOf<K>>().await.with_context(asking)?;
        if !replace && let Use { bytes, is_used: true } = use_of(&mut client).await.with_context(asking)? {
            bail!(
                "memory server {} holds a part of a {} of {}: repeat the command with --replace to replace it, or insert by `fatbtree put` or \
                 `fatbtree shell`",
                described.name,
                K::NAME,
                count::of(bytes, "byte")
            );
        }
        servers.push(Server { described, client, info });
    }
    Ok(servers)
}

/// Has all servers begin anew, that on which the structure begins last: until then no client opens it.
async fn make_empty<K: SpreadKind>(mut servers: Vec<Server<'_, K>>) -> Result<()> {
    servers
        .sort_by_key(|server| K::Part::begin(&server.info.structure).server() == server.described.partition);
    for Server { described, client, .. } in servers {
        let emptied = empty::<InfoOf<K>>(&client, described.partition).await;
        emptied.with_context(|| format!("memory server {}", described.name))?;
    }
    Ok(())
}
