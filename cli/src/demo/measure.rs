//! The run: the same operations in every way, in turns, every answer checked.

use std::sync::Arc;

use anyhow::{Context, Result};
use fatbtree_blink::{EntryCache, IndexCache, Start};
use fatbtree_blink_client::KeySample;
use fatbtree_remote_memory::Report;
use fatbtree_workload::ycsb::{KeyMap, Workload, WorkloadSpec, builtin};
use fatbtree_workload::{LoadGenerator, LoopOptions, Values};

use super::arguments::Settings;
use super::data_path::{DataPath, DataPathThreads};
use crate::progress;

/// Operations one way before it is the other's turn: short enough that all meet the same state of the machine.
pub(super) const TURN: u64 = 10_000;

/// Turns before measuring begins: caches of the machine itself warm up.
const WARM_UP_TURNS: u64 = 2;

/// Seed, so that a warm cache is not filled by the operations that are measured.
pub(super) const WARM_UP: u64 = 0x5a5a;

/// Keys that a client samples at most.
const SAMPLE: usize = 1 << 18;

/// The client's cache of inner nodes.
#[derive(Clone)]
pub(super) enum Cache {
    /// No cache.
    None,
    /// A cache of at most so many bytes, empty at the beginning of every turn: a client that has just started.
    Cold(u64),
    /// A cache that is kept from turn to turn. Before it is measured, as many operations fill it as the planner
    /// learned from.
    Warm(Arc<IndexCache>),
}

/// A way to do operations.
#[derive(Clone)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) start: Start,
    pub(super) cache: Cache,
    /// The client's cache of single keys' places, kept from turn to turn and warmed as a warm cache is.
    pub(super) entries: Option<Arc<EntryCache>>,
    /// Bytes that the switches keep for it.
    pub(super) in_switches: u64,
}

/// A way, and what it has done so far.
pub(super) struct Way {
    pub(super) kind: Kind,
    workload: Workload,
    pub(super) done: LoadGenerator,
    /// Bytes that its READs asked for, those of locked nodes excepted.
    pub(super) read_bytes: u64,
}

/// Number of operations without the right answer.
pub(super) fn count_wrong(done: &LoadGenerator) -> u64 {
    done.recorder().operations() - done.recorder().summary(1).found
}

/// Makes ways do a workload. The tree belongs to all of them: what one writes the others read.
pub(super) struct Runner {
    data_path: Arc<DataPathThreads>,
    keys: KeyMap,
    seed: u64,
    depth: usize,
    /// Values that reads may answer.
    values: Values,
    /// Ways that there will have been, so that none inserts what another one has.
    ways: u64,
}

/// New keys of this many ways do not meet.
const MOST_WAYS: u64 = 1 << 10;

impl Runner {
    /// Creates a runner for the tree that was loaded.
    pub(super) fn new(data_path: &Arc<DataPathThreads>, settings: &Settings) -> Self {
        let Settings { seed, depth, .. } = *settings;
        let values = Values::new(seed, settings.value_size).with_keys(Arc::clone(&settings.sorted_keys));
        let keys = settings.key_map.clone();
        Self { data_path: Arc::clone(data_path), keys, seed, depth, values, ways: 0 }
    }

    /// Does operations one way, and returns what the client then tells planners. Keys are drawn from another seed
    /// than those that are measured.
    pub(super) async fn learn(
        &mut self,
        spec: &WorkloadSpec,
        kind: &Kind,
        operations: u64,
    ) -> Result<(Way, Report)> {
        self.sample()?;
        let way = self.once(spec, kind, operations, WARM_UP, "learning from what the client does").await?;
        Ok((way, self.report()?))
    }

    /// Does operations one way, without a warm-up. Other seeds draw other keys.
    pub(super) async fn once(
        &mut self,
        spec: &WorkloadSpec,
        kind: &Kind,
        operations: u64,
        seed: u64,
        what: &'static str,
    ) -> Result<Way> {
        let mut ways = vec![self.way(spec, kind.clone(), self.seed ^ seed)?];
        self.turns(&mut ways, what, operations).await?;
        Ok(ways.remove(0))
    }

    /// Inserts keys that are not there.
    pub(super) async fn insert(&mut self, mut keys: Vec<u64>, kind: &Kind) -> Result<Way> {
        let count = keys.len() as u64;
        // The first is taken for loaded, and not asked for.
        keys.insert(0, self.keys.key(0).context("a tree has keys")?);
        let mut properties = builtin("c")?;
        for (name, value) in [("recordcount", "1"), ("readproportion", "0"), ("insertproportion", "1")] {
            properties.set(name, value);
        }
        let spec = WorkloadSpec::from_properties(&properties)?;
        let workload = Workload::new(&spec, KeyMap::File(Arc::new(keys.into())), self.seed)?;
        let mut ways = vec![Way::new(kind.clone(), workload)];
        self.turns(&mut ways, "inserting", count).await?;
        Ok(ways.remove(0))
    }

    /// Makes the client sample keys.
    pub(super) fn sample(&self) -> Result<()> {
        let sample = KeySample::new(SAMPLE, self.seed);
        self.data_path.call(move |path| path.client().set_sample(Some(sample)))
    }

    /// Report of the client to planners; ends the sampling of keys.
    pub(super) fn report(&self) -> Result<Report> {
        self.data_path.call(|path| {
            let report = path.client().report();
            path.client().set_sample(None);
            report
        })
    }

    /// Fills the warm caches, by operations from another seed than those that are measured.
    pub(super) async fn warm(&mut self, spec: &WorkloadSpec, kinds: &[Kind], operations: u64) -> Result<()> {
        let warm = kinds.iter().filter(|kind| matches!(kind.cache, Cache::Warm(_)) || kind.entries.is_some());
        let ways = warm.map(|kind| self.way(spec, kind.clone(), self.seed ^ WARM_UP));
        let mut ways = ways.collect::<Result<Vec<_>>>()?;
        self.turns(&mut ways, "warming the client's caches", operations).await
    }

    /// Measures `operations` in each of the ways, after a warm-up.
    pub(super) async fn measure(
        &mut self,
        spec: &WorkloadSpec,
        kinds: &[Kind],
        operations: u64,
        what: &'static str,
    ) -> Result<Vec<Way>> {
        let ways = kinds.iter().map(|kind| self.way(spec, kind.clone(), self.seed));
        let mut ways = ways.collect::<Result<Vec<_>>>()?;
        let warm_up = (TURN * WARM_UP_TURNS).min(operations);
        self.turns(&mut ways, "warming up", warm_up).await?;
        for way in &mut ways {
            (way.done, way.read_bytes) = (LoadGenerator::new(), 0);
        }
        self.turns(&mut ways, what, operations).await?;
        Ok(ways)
    }

    /// Creates the next way. Where nothing is inserted all draw the same keys.
    fn way(&mut self, spec: &WorkloadSpec, kind: Kind, seed: u64) -> Result<Way> {
        let (number, of) = if spec.proportions.insert > 0.0 { (self.ways, MOST_WAYS) } else { (0, 1) };
        self.ways += 1;
        let workload = Workload::for_client(spec, self.keys.clone(), seed, number, of)?;
        Ok(Way::new(kind, workload))
    }

    /// Does `operations` in each of the ways, in turns; which goes first changes.
    async fn turns(&mut self, ways: &mut Vec<Way>, what: &'static str, operations: u64) -> Result<()> {
        let bar = progress::bar(what, operations);
        for turn in 0..operations.div_ceil(TURN) {
            let count = TURN.min(operations - turn * TURN);
            let (mut moved, depth) = (std::mem::take(ways), self.depth);
            let values = std::mem::replace(&mut self.values, Values::new(0, 0));
            let (back, values, outcome) = self.data_path.call(move |path| {
                let first = turn as usize % moved.len();
                let (last, begin) = moved.split_at_mut(first);
                let mut in_turn = begin.iter_mut().chain(last);
                let outcome = in_turn.try_for_each(|way| way.run(path, count, depth, &values));
                (moved, values, outcome)
            })?;
            (*ways, self.values) = (back, values);
            outcome?;
            bar.inc(count);
            tokio::task::yield_now().await;
        }
        bar.finish_and_clear();
        Ok(())
    }
}

impl Way {
    fn new(kind: Kind, workload: Workload) -> Self {
        Self { kind, workload, done: LoadGenerator::new(), read_bytes: 0 }
    }

    /// Bytes that it keeps of inner nodes and of keys' places, in switches and client together.
    pub(super) fn cache_bytes(&self) -> u64 {
        let in_client = match &self.kind.cache {
            Cache::None => 0,
            Cache::Cold(limit) => *limit,
            Cache::Warm(cache) => cache.limit(),
        };
        let entries = self.kind.entries.as_ref().map_or(0, |entries| entries.limit());
        self.kind.in_switches + in_client + entries
    }

    fn run(&mut self, path: &mut DataPath, operations: u64, depth: usize, values: &Values) -> Result<()> {
        let client = path.client().clone();
        client.set_cache(match &self.kind.cache {
            Cache::None => None,
            Cache::Cold(limit) => Some(Arc::new(IndexCache::new(*limit))),
            Cache::Warm(cache) => Some(Arc::clone(cache)),
        });
        client.set_entry_cache(self.kind.entries.clone());
        let options = LoopOptions { start: self.kind.start, depth };
        let before = client.pool().stats().remote.read_bytes;
        path.run(self.done.run(&client, &mut self.workload, operations, options, values))??;
        self.read_bytes += client.pool().stats().remote.read_bytes - before;
        Ok(())
    }
}
