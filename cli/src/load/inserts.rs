//! Inserts by a client of the cluster, key by key.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fatbtree_blink::Contention;
use fatbtree_processes::{Adapter, ClientOptions, NodeError, Reached, StructureProcess};
use fatbtree_registry::{Kind as _, SpreadKind};
use fatbtree_remote_memory::{Answer, Change, SpreadClient, Structure};
use fatbtree_topology::Cluster;
use fatbtree_workload::stride;

use super::Arguments;
use super::spread::{Content, SpreadResult};
use crate::interrupted::Interrupted;
use crate::progress;
use crate::structure::{client_of, open_client};

/// Inserts under way at once.
const DEPTH: usize = 64;
/// Time limit for memory servers to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Client of a structure over all memory servers.
type ClientOf<K> = SpreadClient<<K as SpreadKind>::Structure<Adapter>>;

/// Inserts all keys into an empty structure, or those that are missing. `put` inserts one of them.
pub(super) fn insert<K: SpreadKind>(
    arguments: &Arguments,
    cluster: &Cluster,
    content: &Content<K>,
    put: impl AsyncFn(&ClientOf<K>, usize) -> Result<Answer<bool, <ClientOf<K> as Structure>::Error>>,
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
    let open = |host, nic| StructureProcess::<ClientOf<K>>::open(&options(host, nic));
    let mut process = open_client(nic, cluster, described, PATIENCE, open)?;
    process.stop_at_signals()?;
    let count = content.data.keys().len();
    let done = insert_all(&mut process, count, put)?;
    process.close();
    Ok(SpreadResult {
        name: K::NAME,
        keys: count as u64,
        value_bytes: content.value_bytes,
        seconds: done.seconds,
        keys_per_s: count as f64 / done.seconds,
        round_trips: Some(done.round_trips as f64 / count.max(1) as f64),
        there: arguments.resume.then_some(done.there),
        servers: cluster.servers().len(),
    })
}

/// What inserts have taken.
struct Inserted {
    seconds: f64,
    round_trips: u64,
    /// Keys that were there already.
    there: u64,
}

/// The insertion of a key with this value, which leaves a key alone that a load has inserted with which this one goes on.
pub(super) fn change_to<'v>(value: &'v [u8], arguments: &Arguments) -> Change<'v> {
    if arguments.resume { Change::Insert(value) } else { Change::Upsert(value) }
}

/// Inserts so many keys, which are sorted, many at once. `put` inserts one of them.
fn insert_all<C: Reached>(
    process: &mut StructureProcess<C>,
    count: usize,
    put: impl AsyncFn(&C, usize) -> Result<Answer<bool, C::Error>>,
) -> Result<Inserted> {
    let client = process.client().clone();
    let (began, bar) = (Instant::now(), progress::bar("keys inserted", count as u64));
    // In the order of the keys all inserts at once would be for one leaf.
    let stride = stride(count as u64, (count as f64 * 0.618) as u64) as usize;
    let (next, done, trips, there) = (Cell::new(0), Cell::new(0_u64), Cell::new(0_u64), Cell::new(0_u64));
    let insert = async || {
        while next.get() < count {
            let at = next.replace(next.get() + 1).wrapping_mul(stride) % count;
            let is_new = loop {
                let Answer { result, round_trips } = put(&client, at).await?;
                trips.set(trips.get() + u64::from(round_trips));
                match result {
                    Ok(is_new) => break is_new,
                    // Once more does no harm.
                    Err(error) if C::is_unknown(&error) => {}
                    Err(error) => return Err(error.into()),
                }
            };
            there.set(there.get() + u64::from(!is_new));
            done.set(done.get() + 1);
            bar.set_position(done.get());
        }
        anyhow::Ok(())
    };
    let all = futures_buffered::join_all((0..DEPTH).map(|_| insert()));
    let ran = process.run(all);
    bar.finish_and_clear();
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
    Ok(Inserted { seconds: began.elapsed().as_secs_f64(), round_trips: trips.get(), there: there.get() })
}
