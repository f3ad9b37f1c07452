//! Inserts by a client of the cluster, key by key.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fatbtree_blink::Contention;
use fatbtree_memserver::grpc::LoadData as _;
use fatbtree_processes::{Adapter, ClientOptions, NodeError, SpreadProcess};
use fatbtree_registry::{Kind as _, SpreadKind};
use fatbtree_remote_memory::{Change, Structure};
use fatbtree_topology::Cluster;

use super::Arguments;
use super::input::Input;
use super::spread::SpreadResult;
use crate::interrupted::Interrupted;
use crate::progress;
use crate::structure::{client_of, open_client};

/// Inserts under way at once.
const DEPTH: usize = 64;
/// Time limit for memory servers to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Inserts all keys into an empty structure, or those that are missing.
pub(super) fn insert<K: SpreadKind>(
    arguments: &Arguments,
    cluster: &Cluster,
    data: &Input,
) -> Result<SpreadResult> {
    let Arguments { client, nic, cluster: file, .. } = arguments;
    let described = client_of(cluster, client.as_deref())?;
    let trust = crate::topology::trust(cluster, file, &described.name)?;
    let options = |host, nic| ClientOptions {
        lanes: 4,
        trust: trust.clone(),
        patience: PATIENCE,
        contention: Contention::SMART,
        ..ClientOptions::new(host, nic, cluster.servers())
    };
    let open = |host, nic| SpreadProcess::<K::Structure<Adapter>>::open(&options(host, nic));
    let mut process = open_client(nic, cluster, described, PATIENCE, open)?;
    process.stop_at_signals()?;
    let (count, began) = (data.keys().len() as u64, Instant::now());
    let bar = progress::bar("keys inserted", count);
    // Keys are sorted. In that order all inserts at once would be for one leaf.
    let stride = stride(data.keys().len());
    let (next, done, trips, there) = (Cell::new(0), Cell::new(0_u64), Cell::new(0_u64), Cell::new(0_u64));
    let client = process.client().clone();
    let insert = async || {
        let structure = client.structure().await?;
        let mut value = Vec::new();
        while next.get() < data.keys().len() {
            let at = next.replace(next.get() + 1).wrapping_mul(stride) % data.keys().len();
            value.clear();
            data.append(at, &mut value);
            loop {
                let change = if arguments.resume { Change::Insert(&value) } else { Change::Upsert(&value) };
                let answer = structure.change(data.keys()[at], change).await;
                trips.set(trips.get() + u64::from(answer.round_trips));
                match answer.result {
                    Ok(is_new) => {
                        there.set(there.get() + u64::from(arguments.resume && !is_new));
                        break;
                    }
                    // Once more does no harm.
                    Err(error) if K::Structure::<Adapter>::is_unknown(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            done.set(done.get() + 1);
            bar.set_position(done.get());
        }
        Ok::<_, <K::Structure<Adapter> as Structure>::Error>(())
    };
    let all = futures_buffered::join_all((0..DEPTH).map(|_| insert()));
    let ran = process.run(all);
    bar.finish_and_clear();
    let seconds = began.elapsed().as_secs_f64();
    match ran {
        Ok(results) => results.into_iter().collect::<Result<(), _>>().context("inserting")?,
        Err(NodeError::Stopped) => {
            bail!(Interrupted(format!(
                "{} of {count} keys were inserted, and stay there; --resume goes on, --replace begins anew",
                done.get()
            )));
        }
        Err(error) => return Err(error.into()),
    }
    process.close();
    Ok(SpreadResult {
        name: K::NAME,
        keys: count,
        value_bytes: data.value_bytes(),
        seconds,
        keys_per_s: count as f64 / seconds,
        round_trips: Some(trips.get() as f64 / count.max(1) as f64),
        there: arguments.resume.then(|| there.get()),
        servers: cluster.servers().len(),
    })
}

/// Step by which all of `count` places are visited, far apart from one another.
fn stride(count: usize) -> usize {
    fn common(one: usize, other: usize) -> usize {
        if other == 0 { one } else { common(other, one % other) }
    }
    let golden = (count as f64 * 0.618) as usize;
    (golden.max(1)..).find(|&step| common(step, count) == 1).unwrap_or(1)
}
