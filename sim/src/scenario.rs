//! A random cluster with a random tree, a random plan and random mishaps, checked lookup by lookup.

mod run;

use std::fmt;

use fatbtree_blink::ValueLayout;
use fatbtree_soft_nic::faults::FaultRates;
use fatbtree_verbs::time::Duration;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use run::Run;

/// A scenario: everything follows from the seed.
#[derive(Debug, Clone)]
pub struct Scenario {
    seed: u64,
    servers: u16,
    keys: usize,
    values: ValueLayout,
    value_size: usize,
    lookups: u32,
    depth: u32,
    rates: FaultRates,
    fat_root: usize,
    set_nodes: [usize; fatbtree_controller::SETS],
    reloads: u32,
    /// Time for which a session lasts.
    lease: Duration,
    /// Connections that break before the client thinks of renewing its sessions.
    careless: u64,
    /// Connections that the controller is not told of, though the client believes it was.
    unregistered: bool,
}

/// Result of a scenario. Every lookup found the right value, found that there is none, or said why it failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Lookups made.
    pub lookups: u64,
    /// Right values.
    pub found: u64,
    /// Keys that are not there, and were not found.
    pub not_found: u64,
    /// Wrong values, or a key that is there and was not found, or one that is not and was. Always 0.
    pub wrong: u64,
    /// Lookups that ended with an error that says why.
    pub failed: u64,
    /// Connections that broke and were made again.
    pub reconnections: u64,
    /// Connections that broke because the server refused an index read.
    pub refused_index_reads: u64,
    /// Cache reloads that were carried through.
    pub reloads: u64,
    /// Sessions that ended because the client was too late to renew them.
    pub lapsed: u64,
    /// Frames lost, doubled, delayed, damaged.
    pub faults: [u64; 4],
    /// Round trips of all lookups.
    pub round_trips: u64,
    /// Frames that reached a server with `rkey = 0` on a registered connection. Always 0 where no frames are damaged.
    pub naked_index_reads: u64,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.lookups += other.lookups;
        self.found += other.found;
        self.not_found += other.not_found;
        self.wrong += other.wrong;
        self.failed += other.failed;
        self.reconnections += other.reconnections;
        self.refused_index_reads += other.refused_index_reads;
        self.reloads += other.reloads;
        self.lapsed += other.lapsed;
        self.faults.iter_mut().zip(other.faults).for_each(|(sum, more)| *sum += more);
        self.round_trips += other.round_trips;
        self.naked_index_reads += other.naked_index_reads;
    }
}

/// A scenario that went wrong. It prints the command that replays it.
#[derive(Debug, thiserror::Error)]
pub struct ScenarioError {
    scenario: Box<Scenario>,
    what: String,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}\n  {:?}\n  replay it with: cargo run --package fatbtree-cli -- simulate reads --seed {}",
            self.what, self.scenario, self.scenario.seed
        )
    }
}

impl Scenario {
    /// The scenario of a seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let servers = random.random_range(1..=4u16);
        let inline = random.random_bool(0.5);
        let value_size = if inline { random.random_range(1..=64) } else { random.random_range(65..=3000) };
        let rate = |random: &mut ChaCha8Rng| {
            if random.random_bool(0.5) { 0 } else { random.random_range(0..=300u16) }
        };
        let rates = FaultRates {
            drop: rate(&mut random),
            duplicate: rate(&mut random),
            delay: rate(&mut random),
            corrupt: rate(&mut random),
            longest_delay: Duration::from_micros(random.random_range(1..=200)),
        };
        let mut set_nodes = [0; fatbtree_controller::SETS];
        // Those of a fat tree.
        for nodes in &mut set_nodes[..5] {
            *nodes = if random.random_bool(0.3) { 0 } else { random.random_range(0..=60) };
        }
        Self {
            seed,
            servers,
            keys: random.random_range(usize::from(servers)..=4000),
            values: if inline { ValueLayout::Inline(value_size as u8) } else { ValueLayout::OutOfLine },
            value_size,
            lookups: random.random_range(10..=60),
            depth: random.random_range(1..=8),
            rates,
            fat_root: random.random_range(usize::from(servers)..=100),
            set_nodes,
            reloads: random.random_range(0..=3),
            unregistered: random.random_bool(0.1),
            lease: Duration::from_micros(random.random_range(200..=5_000)),
            careless: if random.random_bool(0.3) { random.random_range(1..=5) } else { 0 },
        }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Runs the scenario to its end.
    ///
    /// # Errors
    /// A wrong answer, a lookup that never ends, or a registered client's index read that reached a server unwritten.
    pub fn run(&self) -> Result<Outcome, ScenarioError> {
        let error = |what: String| ScenarioError { scenario: Box::new(self.clone()), what };
        let mut run = Run::new(self).map_err(error)?;
        run.finish().map_err(error)
    }
}
