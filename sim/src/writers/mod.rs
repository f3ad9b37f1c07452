//! Scenarios with clients that change the trees of one to three memory servers, every answer explained.
//!
//! There are locks, splits, merges and new roots, under lost messages, cut links, frozen machines and clients that
//! die at any await. Where there are several servers, some clients put new nodes on one after the other. So trees lie
//! on all of them, and a client's sessions end one by one. The servers are those of production, on simulated cards.
//! They die and are started anew, with their memory or without, with the same numbers of owners and the same keys of
//! memory as before. Other trees take the place of those that they have. In [hostile](Scenario::hostile) scenarios a
//! client damages the trees' structure by plain WRITEs.
//!
//! ```text
//!   4 clients × some tasks: get, insert, update, upsert, delete, scan fate: cuts links, freezes clients and servers or their cards,
//!        │ lock + READ, WRITE + unlock                                      kills clients, caches nodes in the switches
//!        ▼
//!   switches that are behind the times
//!        ▼
//!   1 to 3 memory servers: sessions with leases │ lock table and table of owners │ superblock, one empty leaf, chunks
//! ```
//!
//! ```
//! let outcome = fatbtree_sim::writers::Scenario::from_seed(7).run().expect("every answer is explained");
//! assert!(outcome.applied > 0);
//! ```

mod byte_keys;
mod clients;
mod fate;
mod hostile;
mod run;
mod server;
mod setting;

use std::num::NonZeroU32;
use std::ops::Range;

use fatbtree_blink::{
    Combine, Integrity, KeyRange, Keys, LeafKind, Limits, OperationError, POINTER_ROOM, Techniques,
    TreeConfig, Trips, Value, ValueLayout,
};
use fatbtree_remote_memory::{Backoff, Contention};
use fatbtree_verbs::Throttling;
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;
use serde::Serialize;

use crate::world::{Options, Random, Rkeys, random};

/// A scenario: everything follows from the seed.
#[derive(Clone, Debug)]
pub struct Scenario {
    seed: u64,
    pub(crate) config: TreeConfig,
    /// Keys of each server.
    pub(crate) keys: u64,
    /// Bytes of the longest value out of line.
    pub(crate) longest: usize,
    pub(crate) tasks: u32,
    pub(crate) operations: u32,
    /// Percentage of changes that delete.
    pub(crate) deletes: u32,
    /// Percentage of operations that scan.
    pub(crate) scans: u32,
    pub(crate) lanes: u8,
    pub(crate) locks: u32,
    pub(crate) masked: bool,
    pub(crate) lease: Duration,
    pub(crate) calm: Duration,
    /// Percentage of mishaps that kill a client.
    pub(crate) deadly: u32,
    /// Bytes of each client's index cache; none: they have none.
    pub(crate) cache: Option<u64>,
    /// Bytes of each client's entry cache; none: they have none.
    pub(crate) entries: Option<u64>,
    /// Whether all clients have one entry cache, as threads of a process do.
    pub(crate) shares_entries: bool,
    /// Sherman's techniques: all of them, or any.
    pub(crate) techniques: Techniques,
    /// SMART's techniques: none of them, or any.
    pub(crate) contention: Contention,
    pub(crate) world: Options,
    /// Memory servers, each with a partition.
    pub(crate) servers: u16,
    /// Number of the first one. Null pointers lead to number 0.
    pub(crate) first_id: u16,
    /// Percentage of clients that put new nodes on one server after the other.
    pub(crate) round_robin: u32,
    /// Percentage of mishaps that end one session with one server.
    pub(crate) ending: u32,
    /// Percentage of mishaps that kill a server's process.
    pub(crate) restarting: u32,
    /// Percentage of killed server processes that lose their memory.
    pub(crate) forgetful: u32,
    /// Percentage of mishaps that replace a server's tree.
    pub(crate) loading: u32,
    /// Numbers of owners, at most, that a server has given to others before its clients come.
    pub(crate) strangers: u32,
    /// Keys of registered memory.
    pub(crate) rkeys: Rkeys,
    /// Mean pause between two strikes of a hostile writer, if there is one.
    pub(crate) hostile: Option<Duration>,
    /// Whether servers are asked for snapshots of damaged trees, and for places of keys in them.
    pub(crate) asked: bool,
    /// Retries and patience of clients.
    pub(crate) limits: Limits,
    /// Percentage of operations that are lookups, beside those that changes imply.
    pub(crate) reads: u32,
    /// Probability that a drawn key is one of two.
    pub(crate) hot: f64,
    /// Percentage of cached ranges that lead to [litter](crate::trees).
    pub(crate) littered: u32,
    /// Whether superblocks may stay torn until the end.
    pub(crate) torn_superblocks: bool,
}

/// Limit of siblings that finds every key from any former root of these trees.
const ENOUGH_SIBLINGS: u32 = 64;

/// Distance between keys where there is one server.
const KEY_STEP: u64 = 0x0400_0000_0000_0003;

counters! {
    /// Result of a scenario.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    pub struct Outcome {
        /// Operations that were answered.
        pub answered: u64,
        /// Operations that ended with an error, or not at all.
        pub unknown: u64,
        /// Changes that were carried out.
        pub applied: u64,
        /// Levels above the leaves, in the end.
        pub levels: u64,
        /// Queue pairs that broke.
        pub broken_connections: u64,
        /// Clients that died.
        pub deaths: u64,
        /// Sessions that ended because they were not renewed.
        pub lapsed: u64,
        /// Server processes that died.
        pub restarts: u64,
        /// Restarted servers whose memory was lost.
        pub lost_trees: u64,
        /// Restarts of a server that died once more as soon as it was back.
        pub second_restarts: u64,
        /// Trees that took the place of others.
        pub loads: u64,
        /// Places of nodes and records that one client has freed and another one has got.
        pub reused: u64,
        /// Attempts to take a lock that found it taken.
        pub lock_retries: u64,
        /// Locks taken from clients whose sessions had ended.
        pub inherited_locks: u64,
        /// Nodes that were split.
        pub splits: u64,
        /// Nodes of which the upper half went to another server.
        pub splits_elsewhere: u64,
        /// Nodes that were merged away.
        pub merges: u64,
        /// Nodes that were merged away whose parents lay on another server.
        pub merges_below_others: u64,
        /// Nodes whose unfinished split or merge another client completed.
        pub settled: u64,
        /// Layers that came, where keys are bytes.
        pub layers_created: u64,
        /// Layers that went.
        pub layers_removed: u64,
        /// Scans that came to their end.
        pub scans: u64,
        /// Pairs that they found.
        pub scanned: u64,
        /// Round trips of all operations.
        pub round_trips: u64,
        /// Attempts that began at a leaf that a client's cache knew.
        pub cache_hits: u64,
        /// Index reads that led to the record of their key.
        pub records: u64,
        /// Index reads that led to a record which was not the key's any more.
        pub stale_records: u64,
        /// Starts that a cache gave and that led to a wrong node, or to one that had been split.
        pub stale_starts: u64,
        /// Lookups that were answered at a place that an entry cache named.
        pub speculated: u64,
        /// Lookups that such a place did not answer.
        pub stale_places: u64,
        /// Pieces of damage that a hostile writer has written.
        pub strikes: u64,
        /// Damaged trees that were not served again after a restart.
        pub refused_trees: u64,
        /// Snapshots of trees that were being damaged.
        pub snapshots: u64,
        /// Snapshots of such trees that no plan can be made from.
        pub snapshots_refused: u64,
        /// Requests for places of keys in such trees.
        pub located: u64,
        /// Operations on damaged trees that ended with an error after everything was healed.
        pub errors: u64,
        /// Lookups that ended.
        pub lookups: u64,
        /// Lookups that found a value.
        pub found: u64,
        /// Lookups that ended with an error, while things were going wrong.
        pub failed: u64,
        /// Reads of the same bytes again because they were torn, in lookups.
        pub retries: u64,
        /// Walks begun again because a node failed its checks, in lookups.
        pub walks_again: u64,
        /// Steps to a right sibling, in lookups.
        pub siblings: u64,
        /// Lookups whose index read landed on a node that was accepted.
        pub landed: u64,
        /// Index reads that the switches refused.
        pub refused_index_reads: u64,
        /// Superblocks that were torn.
        pub torn_superblocks: u64,
        /// READs and WRITEs that met another one in the same bytes at the same time.
        pub overlapped: u64,
    }
}

impl Outcome {
    fn add(&mut self, trips: &Trips, result: &Result<Option<Value>, OperationError>) {
        self.lookups += 1;
        self.found += u64::from(matches!(result, Ok(Some(_))));
        self.failed += u64::from(result.is_err());
        self.round_trips += u64::from(trips.round_trips);
        self.retries += u64::from(trips.retries);
        self.walks_again += u64::from(trips.restarts);
        self.siblings += u64::from(trips.siblings_followed);
        self.landed += u64::from(trips.landed.is_some());
    }
}

/// Values by their length, as a seed has them: one in four trees has room for more than short ones. Second: the longest value; about as many are
/// longer than an entry holds as are not.
fn by_length(seed: u64, longest_room: u8) -> (ValueLayout, usize) {
    let room = if seed / 8 % 4 == 3 { longest_room } else { POINTER_ROOM };
    (ValueLayout::ByLength(room), 2 * usize::from(room) - 7)
}

impl Scenario {
    /// The scenario of a seed.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let draw = &mut random(seed, 97);
        let integrity = if draw.random_bool(0.5) { Integrity::LineVersions } else { Integrity::Checksums };
        let values = match draw.random_range(0..3) {
            0 => ValueLayout::Inline(8),
            1 => ValueLayout::Inline(60),
            _ => ValueLayout::OutOfLine,
        };
        let lines = if values == ValueLayout::Inline(60) { 7 } else { draw.random_range(2..=4) };
        let config = TreeConfig::with_integrity(draw.random_range(3..=6), 64 * lines, values, integrity)
            .expect("there is room for two entries");
        // Drawn by themselves: scenarios with one server are what they were when all had one.
        let more = &mut random(seed, 98);
        let servers = *[1, 1, 1, 2, 2, 3].choose(more).expect("there are some");
        let round_robin = if servers > 1 && more.random_bool(0.8) { more.random_range(20..=100) } else { 0 };
        // Servers that die and trees that are replaced, drawn by themselves as well.
        let lives = &mut random(seed, 94);
        // Entry caches, drawn by themselves: seeds without one are what they were before there was any.
        let caching = &mut random(seed, 89);
        let (restarts, loads) = (lives.random_bool(0.4), lives.random_bool(0.3));
        Self {
            seed,
            config,
            keys: draw.random_range(4..=60),
            longest: 199,
            tasks: draw.random_range(1..=6),
            operations: draw.random_range(10..=60),
            deletes: draw.random_range(5..=70),
            scans: draw.random_range(0..=20),
            lanes: draw.random_range(1..=3),
            locks: 1 << draw.random_range(2..=8),
            masked: draw.random_bool(0.5),
            lease: Duration::from_micros(draw.random_range(200..=3_000)),
            calm: Duration::from_micros(draw.random_range(50..=2_000)),
            deadly: draw.random_range(0..=60),
            world: Options::rough(draw),
            cache: draw.random_bool(0.5).then(|| draw.random_range(0..4_000)),
            techniques: draw_techniques(draw),
            contention: draw_contention(&mut random(seed, 90)),
            entries: caching.random_bool(0.5).then(|| caching.random_range(96..4_000)),
            shares_entries: caching.random_bool(0.5),
            servers,
            first_id: 0,
            round_robin,
            ending: if servers > 1 { more.random_range(0..=40) } else { 0 },
            restarting: if restarts { lives.random_range(1..=30) } else { 0 },
            // Where trees lie on several servers, one that is lost or replaced takes a part of the others with it.
            forgetful: if round_robin == 0 { lives.random_range(0..=100) } else { 0 },
            loading: if loads && round_robin == 0 { lives.random_range(1..=30) } else { 0 },
            strangers: *[0, 0, 1, 3].choose(lives).expect("there are some"),
            rkeys: *[Rkeys::Random, Rkeys::Lowest].choose(lives).expect("there are some"),
            hostile: None,
            asked: true,
            limits: Limits::default(),
            reads: 0,
            hot: 0.0,
            littered: 0,
            torn_superblocks: false,
        }
    }

    /// The scenario of a seed in which most operations are lookups, by clients with few retries. Memory is torn more
    /// often, and switches lead lookups to litter and to former nodes and records.
    #[must_use]
    pub fn reading(seed: u64) -> Self {
        let draw = &mut random(seed, 91);
        let mut scenario = Self::from_seed(seed);
        scenario.keys = draw.random_range(4..=30);
        scenario.operations = draw.random_range(40..=120);
        scenario.reads = draw.random_range(30..=90);
        scenario.scans /= 4;
        scenario.first_id = *[0, 1, 6].choose(draw).expect("there are some");
        scenario.hot = *[0.0, 0.3, 0.8].choose(draw).expect("there are some");
        scenario.littered = *[0, 10, 50].choose(draw).expect("there are some");
        let siblings = if draw.random_bool(0.5) { ENOUGH_SIBLINGS } else { draw.random_range(4..=32) };
        scenario.limits = Limits {
            torn: draw.random_range(1..=8),
            siblings,
            patience: Duration::from_micros(*[30_000, 1_000_000].choose(draw).expect("there are some")),
            reconnects: draw.random_range(2..=6),
        };
        if draw.random_bool(0.5) {
            // Most accesses meet others; still, all of them are done before they would be sent again.
            scenario.world.times.line = Duration::from_nanos(draw.random_range(100..=500));
            scenario.world.tearing.stretch = 3;
        }
        if scenario.config.integrity() == Integrity::Checksums && siblings == ENOUGH_SIBLINGS {
            // A server does not start with a torn superblock, and former roots lead everywhere only where none is merged away.
            (scenario.torn_superblocks, scenario.restarting, scenario.loading) = (true, 0, 0);
            scenario.deletes = 0;
            // Clients try to tell parents of split roots, each time for as long as this.
            scenario.limits.patience = Duration::from_millis(2);
        }
        scenario
    }

    /// The scenario of a seed in which trees keep values by their length: entries have short ones, and each change may make a longer one of
    /// it, or the other way round. In half of the scenarios most operations are lookups.
    #[must_use]
    pub fn by_length(seed: u64) -> Self {
        let scenario = if seed.is_multiple_of(2) { Self::reading(seed) } else { Self::from_seed(seed) };
        let config = &scenario.config;
        let (fan_out, leaf, integrity) = (config.fan_out(), config.leaf_bytes(), config.integrity());
        // Where leaves have many lines, entries of two.
        let (values, longest) = by_length(seed, if leaf >= 64 * 7 { 60 } else { 19 });
        let config = TreeConfig::with_integrity(fan_out, leaf, values, integrity)
            .expect("there is room for two entries");
        Self { config, longest, ..scenario }
    }

    /// The scenario of a seed in which trees have leaves of buckets, and switches lead to slices of them. Half of the scenarios keep values by their
    /// length; in half most operations are lookups, and one of eight has a hostile writer.
    #[must_use]
    pub fn buckets(seed: u64) -> Self {
        let draw = &mut random(seed, 88);
        let is_by_length = draw.random_bool(0.5);
        let scenario = match seed % 8 {
            0 | 2 | 4 | 6 => Self::reading(seed),
            7 => Self::hostile(seed),
            _ => Self::from_seed(seed),
        };
        let (fan_out, integrity) = (scenario.config.fan_out(), scenario.config.integrity());
        let (values, longest) = match is_by_length {
            true => by_length(seed, 35),
            false => (ValueLayout::Inline(8), scenario.longest),
        };
        let lines = draw.random_range(3..=6);
        let config = TreeConfig::with_integrity(fan_out, 64 * lines, values, integrity)
            .and_then(|config| config.with_leaves(LeafKind::Buckets))
            .expect("two lines hold entries of these sizes");
        Self { config, longest, ..scenario }
    }

    /// The scenario of a seed in which keys are bytes that begin alike: layers come and go. Half of the scenarios keep longer values in entries; in
    /// half most operations are lookups, and one of eight has a hostile writer.
    #[must_use]
    pub fn byte_keys(seed: u64) -> Self {
        let scenario = Self::by_length(seed);
        let draw = &mut random(seed, 87);
        let mut config = scenario.config;
        if draw.random_bool(0.25) && config.leaf_bytes() <= 64 * 6 {
            let leaf = config.leaf_bytes().max(64 * 3);
            config =
                TreeConfig::with_integrity(config.fan_out(), leaf, ValueLayout::SHORT, config.integrity())
                    .and_then(|config| config.with_leaves(LeafKind::Buckets))
                    .expect("two lines hold entries of these sizes");
        }
        let config = config.with_keys(Keys::Bytes).expect("entries say what they hold");
        // Groups lie on one server each. Few of them, so that layers have no keys now and then.
        let keys = byte_keys::GROUP * draw.random_range(2..=10);
        let deletes = draw.random_range(40..=80);
        let mut scenario = Self { config, keys, deletes, ..scenario };
        if scenario.servers == 1 && draw.random_bool(0.5) {
            scenario.config = config.with_code(byte_keys::code(draw));
        }
        if seed % 8 == 7 { scenario.with_hostile_writer() } else { scenario }
    }

    /// The scenario of a seed with a hostile writer, which damages the structure of trees. Everything else
    /// ends soon, because clients have little patience.
    #[must_use]
    pub fn hostile(seed: u64) -> Self {
        Self::from_seed(seed).with_hostile_writer()
    }

    fn with_hostile_writer(self) -> Self {
        let draw = &mut random(self.seed, 93);
        let hostile = Some(Duration::from_micros(draw.random_range(5..=200)));
        let limits = Limits { patience: Duration::from_micros(500), ..self.limits };
        Self { hostile, limits, tasks: self.tasks.min(3), operations: self.operations.min(30), ..self }
    }

    /// Key with this number. Each server has `keys` of them.
    fn key(&self, number: u64) -> u64 {
        number * (KEY_STEP / u64::from(self.servers))
    }

    /// The numbers of the servers.
    fn ids(&self) -> Range<u16> {
        self.first_id..self.first_id + self.servers
    }

    /// The place of a server among all of them, if it is one.
    fn place_of(&self, id: u16) -> usize {
        usize::from(id.wrapping_sub(self.first_id))
    }

    /// The numbers of the keys of a server's partition.
    fn keys_of(&self, id: u16) -> Range<u64> {
        let first = self.place_of(id) as u64 * self.keys;
        first..first + self.keys
    }

    /// The keys of a server's partition.
    fn range_of(&self, id: u16) -> KeyRange {
        let Range { start, end } = self.keys_of(id);
        KeyRange { low: self.key(start), high: (id + 1 < self.ids().end).then(|| self.key(end)) }
    }

    /// Runs the scenario to its end.
    ///
    /// # Errors
    /// An answer that nothing explains, a tree that is none, an operation that fails although everything works. With a hostile
    /// writer, an operation that does not end.
    pub fn run(&self) -> Result<Outcome, String> {
        run::run(self).map_err(|why| format!("{why}\n  in {self:?}"))
    }
}

fn draw_techniques(draw: &mut Random) -> Techniques {
    if draw.random_bool(0.5) {
        return Techniques::ALL;
    }
    let combine = match draw.random_range(0..4) {
        0 => Combine::Off,
        1 => Combine::Writes,
        _ => Combine::LockToo,
    };
    let [on_chip, hierarchical, two_level_versions] = std::array::from_fn(|_| draw.random_bool(0.5));
    Techniques { combine, on_chip, hierarchical, two_level_versions }
}

/// Drawn by itself: seeds without SMART's techniques are what they were before there were any.
fn draw_contention(draw: &mut Random) -> Contention {
    if draw.random_bool(0.5) {
        return Contention::SHERMAN;
    }
    let throttling = match draw.random_range(0..3) {
        0 => Throttling::Off,
        1 => Throttling::Fixed(NonZeroU32::MIN.saturating_add(draw.random_range(0..8))),
        _ => Throttling::Adaptive,
    };
    let backoff = if draw.random_bool(0.5) { Backoff::SMART } else { Backoff::LOCKS };
    Contention { throttling, backoff, bounds_tasks: draw.random_bool(0.5) }
}

#[cfg(test)]
pub(crate) mod tests;
