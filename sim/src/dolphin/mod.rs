//! Scenarios with clients that change a Dolphin index, every answer explained.
//!
//! Leaves are split, burst, merged and collapse while clients read, change and scan. Messages are lost,
//! links cut, memory tears; clients die at any await, servers are started anew with their memory. In some
//! seeds switches lead clients, by what was true some time ago or never, and to leaves that are not linked. In the end each key is
//! answered, and the structure is walked over.
//!
//! ```text
//!   3 clients × 3 tasks: get, insert, update, upsert, delete, scan     fate: cuts links, freezes and kills
//!        │ announce + READ, change + end                                     clients, kills servers
//!        ▼
//!   1 to 3 memory servers of production: sessions with leases │ lock table, owners │ nodes, leaves, records
//! ```
//!
//! ```
//! use fatbtree_sim::dolphin::Scenario;
//!
//! let outcome = Scenario::from_seed(7).run().expect("every answer is explained");
//! assert!(outcome.answered > 0);
//! ```

mod lab;
mod run;
#[cfg(test)]
mod tests;

use fatbtree_dolphin::Shape;
use fatbtree_remote_memory::Order;
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;
use serde::Serialize;

pub use lab::{Server, leaves, serve, strays};

pub use crate::stage::begin;

use crate::world::{Options, Random, random};

/// What a scenario tries most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aim {
    /// Everything, by a draw.
    All,
    /// Updates and deletions of few keys, in one leaf.
    Updates,
    /// Few keys that come and go, in one leaf.
    Insertions,
    /// Many keys: leaves that are split and burst.
    Splits,
    /// Many keys that come, go and come again: merges.
    Merges,
    /// Few keys with values out of line.
    Records,
    /// One key or two with values of several lines, all of one size.
    Lines,
    /// Nodes that burst and collapse at one place, again and again.
    Bursts,
    /// The same on several servers, with values out of line: leaves leave their records. Servers are away for long.
    Moves,
    /// Many keys on servers with little memory: it is used up.
    Full,
    /// Few keys that are swapped, most of them by what a client has just read: values in the leaf and out of line.
    Swaps,
}

/// Order of the keys in the key space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Spread {
    /// Side by side.
    Dense,
    /// Anywhere.
    Random,
    /// Side by side behind a few prefixes.
    Clusters,
    /// With one first byte, and several second ones.
    Prefixed,
}

/// Chunks of a server that are not used up.
const MUCH: u64 = 1 << 10;

/// A scenario: everything follows from the seed.
#[derive(Clone, Debug)]
pub struct Scenario {
    seed: u64,
    aim: Aim,
    shape: Shape,
    keys: Vec<u64>,
    /// Bytes of the longest value.
    longest: usize,
    /// Bytes of each client's cache.
    cache: u64,
    /// Low bits of a key that index reads leave out; `None`: switches lead no client.
    led: Option<u8>,
    /// Whether switches lead to leaves that no node leads to, too.
    unlinked: bool,
    /// Whether scans go from the highest key down.
    order: Order,
    /// Mishaps for which a server that died stays away, at most.
    away: u32,
    /// Time for which operations try.
    patience: Duration,
    /// Chunks that each server has.
    chunks: u64,
    world: Options,
}

counters! {
    /// What a scenario has seen.
    #[derive(Clone, Copy, Default, Debug, Serialize)]
    pub struct Outcome {
        /// Operations that were answered.
        pub answered: u64,
        /// Operations whose answers were lost.
        pub unknown: u64,
        /// Operations that gave up.
        pub refused: u64,
        /// Scans that were answered.
        pub scans: u64,
        /// Compare-and-swaps that applied.
        #[serde(skip)]
        pub swaps: u64,
        /// Clients that died.
        pub deaths: u64,
        /// Servers that were started anew.
        pub restarts: u64,
        /// Sessions that lapsed.
        pub lapsed: u64,
        /// Leaves in the end.
        pub leaves: u64,
        /// Inner nodes in the end.
        pub nodes: u64,
        /// Leaves and nodes with a change that was left half done.
        pub unfinished: u64,
        /// Leaves and nodes that were replaced, as their servers' free lists and clients know: chunks given out.
        pub chunks: u64,
    }
}

impl Scenario {
    /// The scenario of a seed.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        // Drawn by itself: the other seeds are what they were before switches led any.
        let draw = &mut random(seed, 83);
        let led = *pick(draw, &[None, None, None, Some(0), Some(4)]);
        let unlinked = draw.random_bool(0.5);
        // So are these aims.
        let aim = match random(seed, 85).random_range(0..10) {
            0 => Aim::Moves,
            1 => Aim::Full,
            _ => Aim::All,
        };
        Self { unlinked, ..Self::aimed(seed, aim).led(led) }
    }

    /// The same with switches that lead to any leaf that lies in memory: one that is written and not linked yet, or never will
    /// be, or that was replaced.
    #[must_use]
    pub fn led_to_unlinked(self) -> Self {
        Self { unlinked: true, ..self }
    }

    /// The same with scans from the highest key down.
    #[must_use]
    pub fn backward(self) -> Self {
        Self { order: Order::Backward, ..self }
    }

    /// The same with switches that lead clients, by keys without so many low bits.
    #[must_use]
    pub fn led(self, led: Option<u8>) -> Self {
        Self { led, ..self }
    }

    /// The scenario of a seed that tries one thing most.
    #[must_use]
    pub fn aimed(seed: u64, aim: Aim) -> Self {
        let draw = &mut random(seed, 80);
        let world = Options::rough(draw);
        let aim = match aim {
            Aim::All => *pick(
                draw,
                &[
                    Aim::All,
                    Aim::Updates,
                    Aim::Insertions,
                    Aim::Splits,
                    Aim::Merges,
                    Aim::Bursts,
                    Aim::Records,
                    Aim::Lines,
                ],
            ),
            aim => aim,
        };
        let count = match aim {
            Aim::All => draw.random_range(8..80),
            Aim::Updates | Aim::Insertions => draw.random_range(2..6),
            Aim::Splits => draw.random_range(100..260),
            Aim::Merges => draw.random_range(60..160),
            Aim::Records | Aim::Swaps => draw.random_range(2..6),
            Aim::Lines => draw.random_range(1..3),
            Aim::Bursts | Aim::Moves => draw.random_range(60..90),
            Aim::Full => draw.random_range(200..500),
        };
        let spread = match aim {
            Aim::Bursts => Spread::Dense,
            Aim::Moves => *pick(draw, &[Spread::Dense, Spread::Prefixed]),
            _ => *pick(draw, &[Spread::Dense, Spread::Random, Spread::Clusters]),
        };
        let (max_value, longest) = match aim {
            Aim::Records => (400, 400),
            Aim::Swaps => *pick(draw, &[(400, 400), (400, 8)]),
            Aim::Lines => (400, 200),
            Aim::Moves => *pick(draw, &[(400, 400), (100, 100), (8, 8)]),
            Aim::All if draw.random_bool(0.3) => (400, 60),
            _ => (8, 8),
        };
        let servers = match aim {
            Aim::Moves => *pick(draw, &[0b110, 0b1_0110]),
            _ if draw.random_range(0..3) == 0 => 0b110,
            _ => 0b010,
        };
        let (away, patience, chunks) = match aim {
            Aim::Moves => (8, *pick(draw, &[600, 2_000, 30_000]), MUCH),
            Aim::Full => (0, 30_000, draw.random_range(2..5)),
            _ => (0, 30_000, MUCH),
        };
        Self {
            seed,
            aim,
            shape: Shape { servers, max_value },
            keys: keys(spread, count, draw),
            longest,
            cache: *pick(draw, &[0, 2_000, 1 << 20, 1 << 20]),
            led: None,
            unlinked: false,
            order: Order::Forward,
            away,
            patience: Duration::from_micros(patience),
            chunks,
            world,
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// What was wrong.
    pub fn run(&self) -> Result<Outcome, String> {
        run::run(self)
    }
}

/// Distinct keys, in ascending order.
fn keys(spread: Spread, count: u64, draw: &mut Random) -> Vec<u64> {
    let base = *pick(draw, &[0, 250, u64::MAX - 300, (1 << 63) - 30, 0x0123_4567_89ab_0000]);
    let mut keys: Vec<u64> = match spread {
        Spread::Dense => (0..count).map(|at| base.saturating_add(at)).collect(),
        Spread::Prefixed => (0..count).map(|at| base & 0xff << 56 | at << 49).collect(),
        Spread::Random => (0..count).map(|_| draw.random_range(0..=u64::MAX)).collect(),
        Spread::Clusters => {
            let prefixes: [u64; 3] =
                std::array::from_fn(|_| draw.random_range(0..=u64::MAX) & 0xffff_00ff_ff00_0000);
            (0..count).map(|at| *pick(draw, &prefixes) | at << *pick(draw, &[0, 8])).collect()
        }
    };
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn pick<'a, T>(random: &mut Random, from: &'a [T]) -> &'a T {
    &from[random.random_range(0..from.len())]
}
