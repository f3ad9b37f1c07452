//! One scenario: what follows from a seed, and what came of it.

use std::fmt;

use fatbtree_blink::{Integrity, KeyRange, Limits, OperationError, TreeConfig, Trips, Value, ValueLayout};
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{BufferClass, Mtu};
use rand::RngExt as _;
use serde::Serialize;

use super::rules::Rule;
use super::run;
use super::writer::Action;
use crate::world::{MachineOptions, Options, Random, random};

/// More siblings than a level of these trees has: whoever follows so many finds every key from any former root.
const ENOUGH_SIBLINGS: u32 = 64;

/// A scenario: everything follows from the seed.
#[derive(Clone, Debug)]
pub struct Scenario {
    seed: u64,
    pub(super) servers: u16,
    /// The number of the first memory server: not always 0, to which null pointers lead.
    pub(super) first_id: u16,
    pub(super) config: TreeConfig,
    /// Bytes of values out of line.
    pub(super) lengths: Vec<u32>,
    /// Keys that each tree may have.
    pub(super) keys: usize,
    /// Places for nodes and records in each region.
    pub(super) nodes: u64,
    pub(super) records: u64,
    pub(super) clients: u32,
    /// Lookups of a client at a time, and how many one after the other.
    pub(super) tasks: u32,
    pub(super) lookups: u32,
    pub(super) lanes: u8,
    pub(super) limits: Limits,
    /// Changes of each writer, and its longest pause between two.
    pub(super) changes: u32,
    pub(super) pace: Duration,
    /// Of its actions.
    pub(super) weights: [u32; Action::ALL.len()],
    /// How probably a key that is drawn is one of two.
    pub(super) hot: f64,
    /// How probably a writer pauses between two WRITEs of one change.
    pub(super) hesitant: f64,
    /// Nodes and records are written in several WRITEs.
    pub(super) pieces: bool,
    /// How probably a WRITE is the last thing its writer does.
    pub(super) daring: f64,
    /// The longest time between two mishaps.
    pub(super) calm: Duration,
    pub(super) faults: Duration,
    /// Of caches that are written, those that lead to litter, in per cent.
    pub(super) littered: u32,
    pub(super) world: Options,
    /// The rule that its writers do not keep.
    pub(super) broken: Option<Rule>,
}

/// What a scenario came to: all answers were explained, and in the end all lookups succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Lookups that ended.
    pub lookups: u64,
    /// Of those, with a value.
    pub found: u64,
    /// With an error that says why, while things were going wrong.
    pub failed: u64,
    /// Operations with an answer, writes included.
    pub answered: u64,
    /// Operations whose answer nobody got.
    pub unknown: u64,
    /// Changes of trees begun.
    pub changes: u64,
    /// Superblocks left torn.
    pub torn_superblocks: u64,
    /// READs, index reads included.
    pub round_trips: u64,
    /// Reads of the same bytes again because they were torn.
    pub retries: u64,
    /// Walks begun again because a node failed its checks.
    pub restarts: u64,
    /// Steps to a right sibling.
    pub siblings: u64,
    /// Lookups whose index read landed on a node that was accepted.
    pub landed: u64,
    /// Lookups whose index read landed on the record of their key.
    pub records: u64,
    /// Queue pairs of clients that broke.
    pub broken_connections: u64,
    /// Of those, because an index read was refused.
    pub refused_index_reads: u64,
    /// Machines that died.
    pub deaths: u64,
    /// READs and WRITEs that met another one in the same bytes at the same time.
    pub overlapped: u64,
}

impl Outcome {
    pub(super) fn add(&mut self, trips: &Trips, result: &Result<Option<Value>, OperationError>) {
        self.lookups += 1;
        self.found += u64::from(matches!(result, Ok(Some(_))));
        self.failed += u64::from(result.is_err());
        self.round_trips += u64::from(trips.round_trips);
        self.retries += u64::from(trips.retries);
        self.restarts += u64::from(trips.restarts);
        self.siblings += u64::from(trips.siblings_followed);
        self.landed += u64::from(trips.landed.is_some());
        self.records += u64::from(trips.landed_on_record);
    }
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        let Self {
            lookups,
            found,
            failed,
            answered,
            unknown,
            changes,
            torn_superblocks,
            round_trips,
            retries,
            restarts,
            siblings,
            landed,
            records,
            broken_connections,
            refused_index_reads,
            deaths,
            overlapped,
        } = other;
        self.lookups += lookups;
        self.found += found;
        self.failed += failed;
        self.answered += answered;
        self.unknown += unknown;
        self.changes += changes;
        self.torn_superblocks += torn_superblocks;
        self.round_trips += round_trips;
        self.retries += retries;
        self.restarts += restarts;
        self.siblings += siblings;
        self.landed += landed;
        self.records += records;
        self.broken_connections += broken_connections;
        self.refused_index_reads += refused_index_reads;
        self.deaths += deaths;
        self.overlapped += overlapped;
    }
}

/// A scenario in which something went wrong that must not.
#[derive(Clone, Debug)]
pub struct ScenarioError {
    pub(super) scenario: Box<Scenario>,
    /// What.
    pub what: String,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  in {:?}", self.what, self.scenario)
    }
}

impl std::error::Error for ScenarioError {}

impl Scenario {
    /// The scenario of a seed.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let mut draw = random(seed, 97);
        let draw = &mut draw;
        let integrity = if draw.random_bool(0.5) { Integrity::LineVersions } else { Integrity::Checksums };
        let values = match draw.random_range(0..10) {
            0..2 => ValueLayout::Inline(8),
            2 => ValueLayout::Inline(draw.random_range(8..=54)),
            3..5 => ValueLayout::Inline(draw.random_range(55..=64)),
            _ => ValueLayout::OutOfLine,
        };
        let config = loop {
            let (fan_out, lines) = (draw.random_range(2..=7), draw.random_range(2..=5));
            let config = TreeConfig::with_integrity(fan_out, 64 * lines, values, integrity);
            if let Ok(config) = config {
                break config;
            }
        };
        let lengths = [8, 24, 60, 150, 300, 500];
        let lengths = (0..draw.random_range(1..=3)).map(|_| lengths[draw.random_range(0..lengths.len())]);
        let lengths = lengths.collect();
        let weight = |draw: &mut Random| draw.random_range(1..=8);
        let mut weights = std::array::from_fn(|_| weight(draw));
        weights[0] *= 3;
        let micros =
            |draw: &mut Random, from: &[u64]| Duration::from_micros(from[draw.random_range(0..from.len())]);
        let mut world = Options::rough(draw);
        // Who sleeps longer than the whole scenario finds nothing.
        world.calls.timeout = Duration::from_micros(300);
        if draw.random_bool(0.5) {
            // Most accesses meet others; still, all of them are done before they would be sent again.
            world.times.line = Duration::from_nanos(draw.random_range(100..=500));
            world.tearing.stretch = 3;
        }
        let siblings = if draw.random_bool(0.5) { ENOUGH_SIBLINGS } else { draw.random_range(4..=32) };
        Self {
            seed,
            servers: draw.random_range(1..=3),
            first_id: [0, 1, 6][draw.random_range(0..3)],
            config,
            lengths,
            keys: draw.random_range(10..=40),
            nodes: draw.random_range(20..=40),
            records: draw.random_range(60..=100),
            clients: draw.random_range(4..=5),
            tasks: draw.random_range(2..=6),
            lookups: draw.random_range(20..=150),
            lanes: draw.random_range(1..=2),
            limits: Limits {
                torn: draw.random_range(1..=8),
                siblings,
                patience: micros(draw, &[30_000, 1_000_000]),
                reconnects: draw.random_range(2..=6),
            },
            changes: draw.random_range(100..=500),
            pace: micros(draw, &[0, 5, 30]),
            weights,
            hot: [0.0, 0.3, 0.8][draw.random_range(0..3)],
            hesitant: [0.0, 0.3][draw.random_range(0..2)],
            pieces: draw.random_bool(0.3),
            daring: if draw.random_bool(0.5) { 0.0 } else { 0.03 },
            calm: micros(draw, &[30, 100, 300, 1_000]),
            faults: Duration::from_millis(10),
            littered: [0, 10, 50][draw.random_range(0..3)],
            world,
            broken: None,
        }
    }

    /// The same with writers that do not keep a rule: it should be found out.
    #[must_use]
    pub fn breaking(mut self, rule: Rule) -> Self {
        self.broken = Some(rule);
        self
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Runs it to the end.
    ///
    /// # Errors
    /// When an answer cannot be explained, a lookup ended in a way that must not be, or something did not succeed in the end.
    pub fn run(&self) -> Result<Outcome, ScenarioError> {
        run::run(self).map_err(|what| ScenarioError { scenario: Box::new(self.clone()), what })
    }

    /// The partitions' key ranges.
    pub(super) fn ranges(&self) -> Vec<KeyRange> {
        let share = u64::MAX / u64::from(self.servers);
        let low = |number: u16| u64::from(number) * share;
        let high = |number: u16| (number + 1 < self.servers).then(|| low(number + 1));
        (0..self.servers).map(|number| KeyRange { low: low(number), high: high(number) }).collect()
    }

    /// The keys that each tree may have: some dense, some scattered, the ends of the range among them.
    pub(super) fn keys(&self, ranges: &[KeyRange], draw: &mut Random) -> Vec<Vec<u64>> {
        let keys = |range: &KeyRange| {
            let all = super::setting::inclusive(*range);
            let middle = all.start() + (all.end() - all.start()) / 2;
            let mut keys: Vec<u64> = (0..self.keys)
                .map(|number| match number % 2 {
                    0 => draw.random_range(all.clone()),
                    _ => middle + number as u64 * 2,
                })
                .chain([*all.start(), *all.end()])
                .collect();
            keys.sort_unstable();
            keys.dedup();
            for last in (1..keys.len()).rev() {
                keys.swap(last, draw.random_range(0..=last));
            }
            keys
        };
        ranges.iter().map(keys).collect()
    }

    /// Whether superblocks may stay torn for good. Clients then find their way from any former root, if they follow enough
    /// siblings.
    pub(super) fn tears_superblocks(&self) -> bool {
        self.config.integrity() == Integrity::Checksums && self.limits.siblings == ENOUGH_SIBLINGS
    }

    /// Index reads fit in a packet.
    fn mtu(&self) -> Mtu {
        if self.config.max_node_bytes() <= 256 && self.seed.is_multiple_of(2) { Mtu::B256 } else { Mtu::B512 }
    }

    fn options(&self, name: &str, draw: &mut Random) -> MachineOptions {
        MachineOptions {
            mtu: self.mtu(),
            buffers: vec![BufferClass { count: 64, bytes: 1024 }],
            ..MachineOptions::rough(name, draw)
        }
    }

    pub(super) fn server_options(&self, number: usize, draw: &mut Random) -> MachineOptions {
        let line_atomicity = self.config.integrity() == Integrity::LineVersions;
        MachineOptions { line_atomicity, ..self.options(&format!("server {number}"), draw) }
    }

    pub(super) fn client_options(&self, name: &str, draw: &mut Random) -> MachineOptions {
        self.options(name, draw)
    }
}
