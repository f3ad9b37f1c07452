//! Scenarios with clients that change the trees of one to three memory servers: locks, splits, merges and new roots under lost
//! messages, cut links, frozen machines and clients that die at any await, every answer explained. Where there are several servers,
//! some clients put new nodes on one after the other, so that trees lie on all of them, and a client's sessions end one by one. The
//! servers are those of production, on simulated cards: they die and are started anew, with their memory or without, with the same
//! numbers of owners and the same keys of memory as before, and other trees take the place of those that they have. In
//! [hostile](Scenario::hostile) scenarios a client damages the trees' structure by plain WRITEs.
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

mod clients;
mod fate;
mod hostile;
mod run;
mod server;
mod setting;

use fatbtree_blink::{Integrity, KeyRange, Limits, Techniques, TreeConfig, ValueLayout};
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;
use serde::Serialize;

use crate::world::{Options, Random, Rkeys, random};

/// A scenario: everything follows from the seed.
#[derive(Clone, Debug)]
pub struct Scenario {
    seed: u64,
    config: TreeConfig,
    /// Of each server.
    keys: u64,
    /// Bytes of the longest value out of line.
    longest: usize,
    tasks: u32,
    operations: u32,
    /// Of 100 changes, so many delete.
    deletes: u32,
    /// Of 100 operations, so many scan.
    scans: u32,
    lanes: u8,
    locks: u32,
    masked: bool,
    lease: Duration,
    calm: Duration,
    /// Of 100 mishaps, so many kill a client.
    deadly: u32,
    /// Bytes of each client's index cache; none: they have none.
    cache: Option<u64>,
    /// Sherman's techniques: all of them, or any.
    techniques: Techniques,
    world: Options,
    /// Memory servers, each with a partition.
    servers: u16,
    /// Of 100 clients, so many put new nodes on one server after the other.
    round_robin: u32,
    /// Of 100 mishaps, so many end one session with one server.
    ending: u32,
    /// Of 100 mishaps, so many kill a server's process.
    restarting: u32,
    /// Of 100 of them, so many lose its memory.
    forgetful: u32,
    /// Of 100 mishaps, so many replace a server's tree.
    loading: u32,
    /// Numbers of owners, at most, that a server has given to others before its clients come.
    strangers: u32,
    /// Keys of registered memory.
    rkeys: Rkeys,
    /// Mean pause between two strikes of a hostile writer, if there is one.
    hostile: Option<Duration>,
    /// Whether servers are asked for snapshots of damaged trees, and for places of keys in them.
    asked: bool,
}

/// How far apart keys are where there is one server.
const KEY_STEP: u64 = 0x0400_0000_0000_0003;

/// What a scenario came to.
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
    /// Sessions that ended because nobody renewed them.
    pub lapsed: u64,
    /// Server processes that died.
    pub restarts: u64,
    /// Of them, those whose memory was lost.
    pub lost_trees: u64,
    /// Of them, those that were the same server's once more, as soon as it was back.
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
    /// Nodes whose split or merge somebody else came to the end of.
    pub settled: u64,
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
    /// Pieces of damage that a hostile writer has written.
    pub strikes: u64,
    /// Damaged trees that were not served again after a restart.
    pub refused_trees: u64,
    /// Snapshots of trees that were being damaged.
    pub snapshots: u64,
    /// Those among them that no plan can be made from.
    pub snapshots_refused: u64,
    /// Requests for places of keys in such trees.
    pub located: u64,
    /// Operations on damaged trees that ended with an error after everything was healed.
    pub errors: u64,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.answered += other.answered;
        self.unknown += other.unknown;
        self.applied += other.applied;
        self.levels += other.levels;
        self.broken_connections += other.broken_connections;
        self.deaths += other.deaths;
        self.lapsed += other.lapsed;
        self.restarts += other.restarts;
        self.lost_trees += other.lost_trees;
        self.second_restarts += other.second_restarts;
        self.loads += other.loads;
        self.reused += other.reused;
        self.lock_retries += other.lock_retries;
        self.inherited_locks += other.inherited_locks;
        self.splits += other.splits;
        self.splits_elsewhere += other.splits_elsewhere;
        self.merges += other.merges;
        self.merges_below_others += other.merges_below_others;
        self.settled += other.settled;
        self.scans += other.scans;
        self.scanned += other.scanned;
        self.round_trips += other.round_trips;
        self.cache_hits += other.cache_hits;
        self.stale_starts += other.stale_starts;
        self.records += other.records;
        self.stale_records += other.stale_records;
        self.strikes += other.strikes;
        self.refused_trees += other.refused_trees;
        self.snapshots += other.snapshots;
        self.snapshots_refused += other.snapshots_refused;
        self.located += other.located;
        self.errors += other.errors;
    }
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
            servers,
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
        }
    }

    /// The scenario of a seed with a hostile writer, who damages the structure of trees. Everything else ends soon, because
    /// clients have little patience.
    #[must_use]
    pub fn hostile(seed: u64) -> Self {
        let draw = &mut random(seed, 93);
        let hostile = Some(Duration::from_micros(draw.random_range(5..=200)));
        let scenario = Self::from_seed(seed);
        Self { hostile, tasks: scenario.tasks.min(3), operations: scenario.operations.min(30), ..scenario }
    }

    /// How long clients are patient.
    fn limits(&self) -> Limits {
        let limits = Limits::default();
        match self.hostile {
            Some(_) => Limits { patience: Duration::from_micros(500), ..limits },
            None => limits,
        }
    }

    /// One of the keys, by its number. Each server has so many of them.
    fn key(&self, number: u64) -> u64 {
        number * (KEY_STEP / u64::from(self.servers))
    }

    /// The keys of a server's partition.
    fn range_of(&self, server: u16) -> KeyRange {
        let pivot = |server: u16| self.key(self.keys * u64::from(server));
        KeyRange { low: pivot(server), high: (server + 1 < self.servers).then(|| pivot(server + 1)) }
    }

    /// Runs it to the end.
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
        return Techniques::SHERMAN;
    }
    let [combine, on_chip, hierarchical, two_level_versions] = std::array::from_fn(|_| draw.random_bool(0.5));
    Techniques { combine, on_chip, hierarchical, two_level_versions }
}

#[cfg(test)]
mod tests;
