//! Fills a structure over all memory servers: a client of the cluster inserts key by key.

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fatbtree_blink::Contention;
use fatbtree_blink_host::grpc::LoadData as _;
use fatbtree_memserver::grpc::{Client, empty};
use fatbtree_processes::{Adapter, ClientOptions, NodeError, SpreadProcess};
use fatbtree_registry::Kind;
use fatbtree_remote_memory::{Change, Portion, Spread, Structure};
use fatbtree_topology::Cluster;
use fatbtree_trust::{OPERATOR, Trust};
use serde::Serialize;

use super::input::{Input, Source};
use super::{Arguments, connect};
use crate::interrupted::Interrupted;
use crate::memserver::MadeValues;
use crate::structure::{client_of, open_client};
use crate::{count, progress};

/// Inserts under way at once.
const DEPTH: usize = 64;
/// Time limit for memory servers to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server's description of its part of a structure.
type InfoOf<K> = <<K as Kind>::Client<Adapter> as Spread>::Info;

/// The result, as `--json` writes it.
#[derive(Serialize)]
pub(super) struct SpreadResult {
    /// Name of the structure.
    #[serde(skip)]
    name: &'static str,
    keys: u64,
    /// Bytes of all values together.
    value_bytes: u64,
    seconds: f64,
    keys_per_s: f64,
    /// Round trips of an insert.
    round_trips: f64,
    servers: usize,
}

impl fmt::Display for SpreadResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, keys, value_bytes, seconds, keys_per_s, round_trips, servers } = self;
        write!(
            f,
            "{} with values of {value_bytes} bytes in all in a {name} over {}, in {seconds:.2} s, {keys_per_s:.0}/s, {round_trips:.2} \
             round trips each",
            count::of(*keys, "key"),
            count::of(*servers as u64, "memory server")
        )
    }
}

/// Fills the structure of a cluster.
pub(super) fn load<K: Kind>(arguments: &Arguments, cluster: &Cluster) -> Result<SpreadResult> {
    let Arguments { keys, trace, empty: emptied, replace, client, nic, values, cluster: file, .. } =
        arguments;
    if emptied.is_some() {
        bail!(
            "--empty is for trees, and the memory servers hold a {}: it is emptied on all servers at once, by --keys with --replace",
            K::NAME
        );
    }
    let source: Source = match trace {
        Some(path) => Source::Trace(path.clone()),
        None => keys.as_deref().unwrap_or_default().parse()?,
    };
    let MadeValues { seed, value_bytes } = *values;
    let data = Input::read(&source, seed, value_bytes)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let trust = crate::topology::trust(cluster, file, OPERATOR)?;
    runtime.block_on(make_empty::<K>(cluster, &trust, *replace))?;

    let described = client_of(cluster, client.as_deref())?;
    let trust = crate::topology::trust(cluster, file, &described.name)?;
    let options = |host, nic| ClientOptions {
        host,
        nic,
        servers: cluster.servers().to_vec(),
        lanes: 4,
        controllers: Vec::new(),
        trust: trust.clone(),
        metrics: None,
        patience: PATIENCE,
        contention: Contention::SMART,
    };
    let open = |host, nic| SpreadProcess::<K::Client<Adapter>>::open(&options(host, nic));
    let mut process = open_client(nic, cluster, described, PATIENCE, open)?;
    process.stop_at_signals()?;
    if !*replace {
        refuse_keys::<K>(&mut process)?;
    }
    let (count, began) = (data.keys().len() as u64, Instant::now());
    let bytes = (0..data.keys().len()).map(|at| u64::from(data.length(at))).sum();
    let bar = progress::bar("keys inserted", count);
    // Keys are sorted. In that order all inserts at once would be for one leaf.
    let stride = stride(data.keys().len());
    let (next, done, trips) = (Cell::new(0), Cell::new(0_u64), Cell::new(0_u64));
    let client = process.client().clone();
    let insert = async || {
        let structure = client.structure().await?;
        let mut value = Vec::new();
        while next.get() < data.keys().len() {
            let at = next.replace(next.get() + 1).wrapping_mul(stride) % data.keys().len();
            value.clear();
            data.append(at, &mut value);
            loop {
                let answer = structure.change(data.keys()[at], Change::Upsert(&value)).await;
                trips.set(trips.get() + u64::from(answer.round_trips));
                match answer.result {
                    Ok(_) => break,
                    // Once more does no harm.
                    Err(error) if K::Client::<Adapter>::is_unknown(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            done.set(done.get() + 1);
            bar.set_position(done.get());
        }
        Ok::<_, <K::Client<Adapter> as Structure>::Error>(())
    };
    let all = futures_buffered::join_all((0..DEPTH).map(|_| insert()));
    let ran = process.run(all);
    bar.finish_and_clear();
    let seconds = began.elapsed().as_secs_f64();
    match ran {
        Ok(results) => results.into_iter().collect::<Result<(), _>>().context("inserting")?,
        Err(NodeError::Stopped) => {
            bail!(Interrupted(format!(
                "{} of {count} keys were inserted, and stay there; --replace begins anew",
                done.get()
            )));
        }
        Err(error) => return Err(error.into()),
    }
    process.close();
    Ok(SpreadResult {
        name: K::NAME,
        keys: count,
        value_bytes: bytes,
        seconds,
        keys_per_s: count as f64 / seconds,
        round_trips: trips.get() as f64 / count.max(1) as f64,
        servers: cluster.servers().len(),
    })
}

/// Refuses to load a structure that holds keys, for one without chunks.
fn refuse_keys<K: Kind>(process: &mut SpreadProcess<K::Client<Adapter>>) -> Result<()> {
    let client = process.client().clone();
    let mut next = Some(Default::default());
    while let Some(cursor) = next {
        let Portion { pairs, rest } = process.run(client.export(cursor, 1))?.result?;
        if !pairs.is_empty() {
            bail!(
                "the {} holds keys: repeat the command with --replace to empty it first, or insert by `fatbtree put` or `fatbtree shell`",
                K::NAME
            );
        }
        next = rest;
    }
    Ok(())
}

/// Step by which all of `count` places are visited, far apart from one another.
fn stride(count: usize) -> usize {
    fn common(one: usize, other: usize) -> usize {
        if other == 0 { one } else { common(other, one % other) }
    }
    let golden = (count as f64 * 0.618) as usize;
    (golden.max(1)..).find(|&step| common(step, count) == 1).unwrap_or(1)
}

/// Makes sure that the structure is empty. With `replace` all servers begin anew, that on which it begins last: until then no client opens
/// it.
async fn make_empty<K: Kind>(cluster: &Cluster, trust: &Trust, replace: bool) -> Result<()> {
    let mut servers = Vec::new();
    for server in cluster.servers() {
        let mut client: Client = connect(server, trust).await?;
        let asking = || format!("memory server {}", server.name);
        let info = client.info::<InfoOf<K>>().await.with_context(asking)?;
        let counters = client.statistics().await.with_context(asking)?;
        let counter = |name| counters.iter().find(|(other, _)| other == name).map_or(0, |(_, count)| *count);
        if counter("chunks_published") > 0 && !replace {
            bail!(
                "memory server {} holds a part of a {} of {}: repeat the command with --replace to empty it first, or insert by `fatbtree put` or \
                 `fatbtree shell`",
                server.name,
                K::NAME,
                count::of(counter("region_bytes_used"), "byte")
            );
        }
        let is_first = K::Client::<Adapter>::home(&info.structure) == server.partition;
        servers.push((is_first, server, client));
    }
    if replace {
        servers.sort_by_key(|(is_first, ..)| *is_first);
        for (_, server, client) in servers {
            empty::<InfoOf<K>>(&client, server.partition)
                .await
                .with_context(|| format!("memory server {}", server.name))?;
        }
    }
    Ok(())
}
