//! The same keys in a Dolphin index, looked up by clients with caches of several sizes.
//!
//! Round trips and bytes only, as with [mixtures](super::mixtures): client and servers share this process's memory, and no
//! switch is on the way. The trees are gone before the index is loaded, so the demo needs no more memory than without it.

use std::time::Instant;

use anyhow::Result;
use fatbtree_blink::value;
use fatbtree_dolphin::host::{HybridIndex, LoadCounts, LoadOptions, load};
use fatbtree_dolphin::{Index, Shape};
use fatbtree_memserver::ServerOptions;
use fatbtree_verbs::plain::PlainDevice;
use fatbtree_workload::ycsb::{KeyMap, Workload, WorkloadSpec};
use fatbtree_workload::{LoadGenerator, Pace, Values};

use super::arguments::Settings;
use super::measure::{TURN, WARM_UP, count_wrong};
use super::mixtures::MixtureResult;
use super::result::{DolphinResult, LoadResult, WayResult};
use crate::in_process::InProcess;

/// New keys of this many runs do not meet.
const MOST_RUNS: u64 = 1 << 10;

/// Memory servers of an index, at most.
const MAX_SERVERS: u16 = 32;

/// Chunks of each server for what is written: more than one of each class.
const SPARE_CHUNKS: u64 = 16;

/// Content of the client's cache of inner nodes before a way is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    /// Nothing, at the beginning of every turn: a client that has just started.
    Cold,
    /// What as many operations have left as the planner of the trees learned from.
    Warm,
}

/// An index on the demo's keys, and its client.
pub(super) struct Dolphin<'s> {
    settings: &'s Settings,
    own: InProcess<Index<PlainDevice>, HybridIndex>,
    /// Size of the index, and the time that loading took.
    pub(super) result: DolphinResult,
    values: Values,
    /// Runs so far, so that none inserts what another one has.
    runs: u64,
    /// Operations of all runs without the right answer, and the first of them in words.
    pub(super) wrong: u64,
    pub(super) first_wrong: Option<String>,
}

/// Operations of one run.
struct Done {
    operations: LoadGenerator,
    read_bytes: u64,
}

impl<'s> Dolphin<'s> {
    /// Loads the index, and opens it.
    ///
    /// # Errors
    /// When there is no memory.
    pub(super) fn load(settings: &'s Settings) -> Result<Self> {
        let started = Instant::now();
        let &Settings { servers, value_size, seed, ref sorted_keys, .. } = settings;
        let servers = servers.min(MAX_SERVERS);
        let numbers = (0..servers).fold(0, |all, number| all | 1 << number);
        let shape = Shape { servers: numbers, max_value: (value_size as u32).max(8) };
        let chunk_bytes = ServerOptions::default().chunk_bytes;
        let spare_bytes = SPARE_CHUNKS * chunk_bytes;
        let options = LoadOptions { spare_bytes, chunk_bytes, ..LoadOptions::new(shape) };
        let loaded = load(&options, sorted_keys, |key, bytes| {
            bytes.resize(value_size, 0);
            value::fill(key, seed, bytes);
        })?;
        let own = InProcess::serve(loaded.parts, 0)?;
        let seconds = started.elapsed().as_secs_f64();
        let LoadCounts { leaves, nodes: inner_nodes, bytes, record_bytes, .. } = loaded.counts;
        let load = LoadResult { seconds, keys_per_s: settings.records as f64 / seconds };
        Ok(Self {
            settings,
            own,
            result: DolphinResult { servers, leaves, inner_nodes, server_bytes: bytes + record_bytes, load },
            values: Values::new(seed, value_size).with_keys(sorted_keys.clone()),
            runs: 0,
            wrong: 0,
            first_wrong: None,
        })
    }

    /// Measures the workload with no cache, with one of `as_many` bytes, and with one that has room for all nodes.
    ///
    /// # Errors
    /// When no further operation can be drawn.
    pub(super) fn ways(&mut self, as_many: u64) -> Result<Vec<WayResult>> {
        let Settings { spec, lookups, seed, .. } = self.settings;
        let mut ways = Vec::new();
        for (name, bytes, begin) in [
            ("Dolphin, no client cache", 0, Begin::Cold),
            ("Dolphin, client cache, as many bytes as the switches, cold", as_many, Begin::Cold),
            (AS_MANY_WARM, as_many, Begin::Warm),
            ("Dolphin, client cache without a bound, warm", u64::MAX, Begin::Warm),
        ] {
            let cold = (begin == Begin::Cold).then_some(bytes);
            if begin == Begin::Warm {
                self.warm(spec, bytes)?;
            }
            let done = self.run(spec, *seed, *lookups, cold)?;
            let kept = self.own.structure().cache().stats().bytes;
            // Without a bound: what the nodes take that were asked for.
            ways.push(done.way(name, if bytes == u64::MAX { kept } else { bytes }));
        }
        Ok(ways)
    }

    /// Begins anew with a client that remembers what fits into so many bytes, and fills its cache by operations from another seed than
    /// those that are measured.
    ///
    /// # Errors
    /// When no further operation can be drawn.
    pub(super) fn warm(&mut self, spec: &WorkloadSpec, bytes: u64) -> Result<()> {
        self.own.open(bytes)?;
        // What is not remembered needs no operations.
        if bytes > 0 {
            self.run(spec, self.settings.seed ^ WARM_UP, self.settings.learning(), None)?;
        }
        Ok(())
    }

    /// Measures another workload with the client that was [warmed](Self::warm) with `as_many` bytes.
    ///
    /// # Errors
    /// When no further operation can be drawn.
    pub(super) fn ycsb(&mut self, spec: &WorkloadSpec, as_many: u64, operations: u64) -> Result<WayResult> {
        // The client remembers what the workload before has asked for: this one draws by a seed of its own.
        let seed = self.settings.seed ^ self.runs << 32;
        Ok(self.run(spec, seed, operations, None)?.way(AS_MANY_WARM, as_many))
    }

    /// Adds the round trips of lookups with a warm cache of the same bytes.
    ///
    /// # Errors
    /// When no further operation can be drawn.
    pub(super) fn add_to(&mut self, mixtures: &mut [MixtureResult]) -> Result<()> {
        let counted = (self.settings.lookups / 4).max(1);
        let (spec, _) = self.settings.builtin("c", counted)?;
        for mixture in mixtures {
            self.warm(&spec, mixture.client_cache_bytes)?;
            let done = self.run(&spec, self.settings.seed, counted, None)?;
            mixture.dolphin = done.operations.recorder().summary(1).round_trips;
        }
        Ok(())
    }

    /// Does operations. `cold`: bytes of a cache that is empty at the beginning and every [`TURN`] operations.
    fn run(&mut self, spec: &WorkloadSpec, seed: u64, operations: u64, cold: Option<u64>) -> Result<Done> {
        let (number, of) = if spec.proportions.insert > 0.0 { (self.runs, MOST_RUNS) } else { (0, 1) };
        self.runs += 1;
        let keys: KeyMap = self.settings.key_map.clone();
        let mut workload = Workload::for_client(spec, keys, seed, number, of)?;
        let mut done = LoadGenerator::new();
        let read_bytes =
            |own: &InProcess<Index<PlainDevice>, _>| own.structure().memory().counters().read_bytes;
        let mut read = 0;
        let pace = Pace::Closed { depth: self.settings.depth };
        for turn in 0..operations.div_ceil(TURN) {
            if let Some(bytes) = cold {
                self.own.open(bytes)?;
            }
            let before = read_bytes(&self.own);
            let (index, count) = (self.own.structure(), TURN.min(operations - turn * TURN));
            self.own.drive(done.run_on(&*index, &mut workload, count, pace, &self.values, |_| {}))?;
            read += read_bytes(&self.own) - before;
        }
        self.wrong += count_wrong(&done);
        if self.first_wrong.is_none() {
            self.first_wrong = done.first_wrong().map(|wrong| format!("Dolphin: {wrong}"));
        }
        Ok(Done { operations: done, read_bytes: read })
    }
}

/// The way that YCSB's workloads have, too.
const AS_MANY_WARM: &str = "Dolphin, client cache, as many bytes as the switches, warm";

impl Done {
    fn way(&self, name: &str, cache_bytes: u64) -> WayResult {
        WayResult::counted(name.to_owned(), cache_bytes, &self.operations, self.read_bytes)
    }
}
