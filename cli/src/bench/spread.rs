//! A structure over all memory servers under the load generator.

use anyhow::{Context, Result, bail};
use fatbtree_blink::Attempts;
use fatbtree_processes::{NodeError, Spread, SpreadProcess};
use fatbtree_remote_memory::{KeyRange, KeyValue};
use fatbtree_topology::{Client, Cluster, Structure};
use fatbtree_workload::measure::Recorder;
use fatbtree_workload::ycsb::WorkloadError;
use fatbtree_workload::{LoadGenerator, Operations, Pace, Store as _, Values};

use super::entry_cache::EntryCacheResult;
use super::keys::Keys;
use super::node_cache::NodeCacheResult;
use super::{Arguments, Protocol};
use crate::key_value::Records;
use crate::structure::{open_spread, refuse_without_tree};

/// Refuses what only trees have.
pub(super) fn check(structure: Structure, arguments: &Arguments) -> Result<()> {
    let Arguments { protocol, scan_parts, entry_cache, cache, .. } = arguments;
    let refuse = |is_given, option, instead| refuse_without_tree(structure, is_given, option, instead);
    refuse(*protocol == Protocol::Query, "--protocol query", "its clients use RDMA alone")?;
    refuse(*scan_parts > 1, "--scan-parts", "a scan of it has one part, if it has ranges at all")?;
    if structure == Structure::Dolphin && entry_cache.is_some() {
        bail!(
            "--entry-cache is for trees and hash tables: a client of a Dolphin index remembers inner nodes, in as many bytes as --cache says"
        );
    }
    if structure == Structure::Hash && cache.is_some() {
        bail!("--cache is for trees and Dolphin indexes: a hash table has no inner nodes; see --entry-cache");
    }
    Ok(())
}

/// A client of a structure over all memory servers that is measured.
pub(super) trait Measured {
    /// Name of the structure.
    fn name(&self) -> &'static str;

    /// Number of keys that the structure was loaded with, as far as its keys tell.
    fn records(&mut self, keys: &Keys) -> Result<u64>;

    /// Whether a key is there, as far as its server answers.
    fn value_of(&mut self, key: u64) -> Result<Option<Option<Vec<u8>>>>;

    /// Whether the structure has ranges of keys.
    fn has_ranges(&mut self) -> Result<bool>;

    /// Runs a load.
    fn run(
        &mut self,
        done: &mut LoadGenerator,
        operations: &mut dyn Operations,
        count: u64,
        pace: Pace,
        values: &Values,
        shown: &mut dyn FnMut(&Recorder),
    ) -> Result<Result<Result<(), WorkloadError>, NodeError>>;

    /// Attempts at changes.
    fn attempts(&self) -> Attempts;

    /// Use of remembered places, if the client remembers any.
    fn places(&self) -> Option<EntryCacheResult>;

    /// Use of remembered inner nodes, if the structure has any.
    fn nodes(&self) -> Option<NodeCacheResult>;

    /// Writes counters of the client's port into the log.
    fn log_port(&self);

    /// Closes the client's sessions.
    fn close(self: Box<Self>);
}

/// A client of a structure.
struct Process<S: Spread> {
    process: SpreadProcess<S>,
    /// Use of remembered places.
    places: fn(&S) -> Option<EntryCacheResult>,
    /// Use of remembered inner nodes.
    nodes: fn(&S) -> Option<NodeCacheResult>,
}

/// Opens the client of a structure; `None` if that is trees.
pub(super) fn open(
    arguments: &Arguments,
    structure: Structure,
    cluster: &Cluster,
    described: &Client,
    options: impl Fn(fatbtree_topology::Host, fatbtree_processes::NicSpec) -> fatbtree_processes::ClientOptions,
) -> Result<Option<Box<dyn Measured>>> {
    let (nic, patience) = (&arguments.nic, std::time::Duration::from_secs(arguments.patience));
    Ok(match structure {
        Structure::Tree => None,
        Structure::Hash => {
            let open = |host, nic| SpreadProcess::<fatbtree_race::Table<_>>::open(&options(host, nic));
            let process = open_spread(nic, cluster, described, patience, open)?;
            process.client().remember(arguments.entry_cache.unwrap_or(0));
            process.stop_at_signals()?;
            let places = |table: &fatbtree_race::Table<_>| Some(table.place_stats().into());
            Some(Box::new(Process { process, places, nodes: |_| None }))
        }
        Structure::Dolphin => {
            let open = |host, nic| SpreadProcess::<fatbtree_dolphin::Index<_>>::open(&options(host, nic));
            let process = open_spread(nic, cluster, described, patience, open)?;
            if let Some(bytes) = arguments.cache {
                process.client().remember(bytes);
            }
            process.stop_at_signals()?;
            let nodes = |index: &fatbtree_dolphin::Index<_>| Some(index.cache().stats().into());
            Some(Box::new(Process { process, places: |_| None, nodes }))
        }
    })
}

impl<S: Spread> Process<S> {
    fn store(&mut self) -> Result<Records<S>> {
        let client = self.process.client().clone();
        Ok(Records(self.process.run(async move { client.structure().await })??))
    }
}

impl<S: Spread> Measured for Process<S> {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn records(&mut self, keys: &Keys) -> Result<u64> {
        let store = self.store()?;
        self.process.run(records(&store, keys))?
    }

    fn value_of(&mut self, key: u64) -> Result<Option<Option<Vec<u8>>>> {
        let store = self.store()?;
        let found = self.process.run(store.read(key))?.result;
        Ok(found.map(|value| value.map(|value| value.to_vec())).ok())
    }

    fn has_ranges(&mut self) -> Result<bool> {
        let store = self.store()?;
        Ok(store.0.scan(KeyRange::of(0..=0), 0).is_some())
    }

    fn run(
        &mut self,
        done: &mut LoadGenerator,
        operations: &mut dyn Operations,
        count: u64,
        pace: Pace,
        values: &Values,
        shown: &mut dyn FnMut(&Recorder),
    ) -> Result<Result<Result<(), WorkloadError>, NodeError>> {
        let store = self.store()?;
        Ok(self.process.run(done.run_on(&store, operations, count, pace, values, shown)))
    }

    fn attempts(&self) -> Attempts {
        self.process.client().memory().attempts()
    }

    fn places(&self) -> Option<EntryCacheResult> {
        self.process.client().opened().and_then(|open| (self.places)(&open))
    }

    fn nodes(&self) -> Option<NodeCacheResult> {
        self.process.client().opened().and_then(|open| (self.nodes)(&open))
    }

    fn log_port(&self) {
        tracing::info!(port = ?self.process.port(), "client");
    }

    fn close(self: Box<Self>) {
        self.process.close();
    }
}

/// Number of keys that the structure was loaded with. Of a file, all of them; of YCSB, as many as are there from the first one on: they
/// are looked for in halves, because a load inserts all of them, and workloads insert others far behind.
async fn records<S: KeyValue>(store: &Records<S>, keys: &Keys) -> Result<u64> {
    if let Keys::Of { file, .. } = keys {
        return Ok(file.keys().len() as u64);
    }
    let map = keys.map();
    let is_there = async |record: u64| {
        let Some(key) = map.key(record) else { return Ok(false) };
        let found = store.0.get(key).await.result;
        found.map(|value| value.is_some()).context("looking for the keys that are there")
    };
    let (mut least, mut above) = (0, 1_u64);
    while is_there(above - 1).await? {
        least = above;
        above = above.saturating_mul(2);
    }
    while above - least > 1 {
        let middle = least + (above - least) / 2;
        match is_there(middle - 1).await? {
            true => least = middle,
            false => above = middle,
        }
    }
    Ok(least)
}
