//! Campaign `hash`: clients of a hash table that die, servers that start anew, links that lose, memory that tears.
//!
//! ```text
//!   3 clients, 2 tasks each: search, insert, update, upsert, delete ──┐
//!   one of them dies at any moment, frozen or killed                  │ verbs over lossy links
//!   ┌──────────── 1 or 2 memory servers, started anew ────────────────▼───────┐
//!   │ directory that grows │ subtables that are split │ blocks that are reused │
//!   └─────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Servers, sessions and clients are those of production: [`MemoryServer`](fatbtree_memserver::MemoryServer),
//! [`SessionKeeper`](fatbtree_remote_memory::session_keeper::SessionKeeper), [`Table`](fatbtree_race::Table). The history of all clients must be
//! [linearizable](crate::history), a client that lives must be answered for every key in the end, and the table's structure must be
//! whole ([`Table::verify`](fatbtree_race::Table::verify)). The seeds find each [`Check`](fatbtree_race::Check) that is missing: tests
//! say so.
//!
//! Some seeds have keys of bytes in place of numbers. They are drawn from few hashes, so that insertions, splits and exports meet other keys
//! of the same one.
//!
//! ```
//! let outcome = fatbtree_sim::hash::Scenario::from_seed(7).run().expect("every answer is explained");
//! assert!(outcome.answered > 0 && outcome.keys > 0);
//! ```

mod keyed;
pub mod lab;
mod run;

#[cfg(test)]
mod tests;

use fatbtree_race::Verified;
use fatbtree_remote_memory::Keys;
use rand::RngExt as _;
use serde::Serialize;

use crate::world::random;

/// What a scenario tries most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aim {
    /// Everything.
    All,
    /// Few keys, values of one size: blocks are used again and again, for other keys.
    Blocks,
    /// The same with values of several lines, which tear.
    Lines,
    /// Few keys that come and go.
    Insertions,
    /// Many keys: splits.
    Splits,
    /// The same on servers whose memory ends, of which one is often away: splits that cannot be completed.
    Scarce,
    /// Few keys with values that take several READs.
    Long,
    /// Many keys, of which few come and go all the time: insertions of one key beside splits.
    Crowded,
    /// Exports beside splits, and beside keys that come and go.
    Exports,
    /// Few keys that are swapped, most of them by what a client has just read.
    Swaps,
}

impl Aim {
    /// Those that take turns by the seed. Scenarios of [`Long`](Self::Long) take as long as ten others, and [`Exports`](Self::Exports) and
    /// [`Swaps`](Self::Swaps) came after seeds were chosen.
    pub const TURNS: [Self; 7] =
        [Self::All, Self::Blocks, Self::Lines, Self::Insertions, Self::Splits, Self::Scarce, Self::Crowded];
}

/// A table, and how it is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scenario {
    /// Seed of all that is random.
    pub seed: u64,
    /// What it tries most.
    pub aim: Aim,
    /// Keys from 0 on.
    pub keys: u64,
    /// Bytes of the longest value.
    pub longest: usize,
    /// Groups of a subtable.
    pub groups: u32,
    /// Memory servers, a bit for each number.
    pub servers: u32,
    /// Bytes of each server for chunks.
    pub spare: u64,
    /// Bytes of a chunk.
    pub chunk: u64,
    /// Places of keys that each client remembers.
    pub places: u64,
    /// Kind of the keys.
    pub kind: Keys,
}

impl Scenario {
    /// The scenario of a seed. Aims take turns, and so do kinds of keys: with each third turn of the aims they are bytes.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let turns = Aim::TURNS.len() as u64;
        let kind = if seed / turns % 3 == 1 { Keys::Bytes } else { Keys::Numbers };
        Self { kind, ..Self::aimed(seed, Aim::TURNS[(seed % turns) as usize]) }
    }

    /// The same with keys of bytes, of which three and three have one hash.
    #[must_use]
    pub fn of_bytes(self) -> Self {
        Self { kind: Keys::Bytes, ..self }
    }

    /// A scenario with this aim, and keys that are numbers.
    #[must_use]
    pub fn aimed(seed: u64, aim: Aim) -> Self {
        let draw = &mut random(seed, 72);
        let (keys, longest, groups) = match aim {
            Aim::All => (draw.random_range(8..60), 400, draw.random_range(1..=2)),
            Aim::Blocks => (draw.random_range(3..12), 8, 1),
            Aim::Lines | Aim::Swaps => (draw.random_range(1..4), 400, 1),
            Aim::Insertions => (draw.random_range(1..4), 8, 1),
            Aim::Splits | Aim::Scarce | Aim::Exports => (draw.random_range(60..160), 60, 1),
            Aim::Crowded => (draw.random_range(300..500), 8, 1),
            Aim::Long => (draw.random_range(1..4), 150_000, 1),
        };
        let servers = if draw.random_range(0..4) == 0 { 0b110 } else { 0b010 };
        let places = if draw.random_bool(0.5) { 64 } else { 0 };
        let (servers, spare, chunk) = match aim {
            Aim::Scarce => {
                let servers = [0b010, 0b110, 0b110, 0b1110][draw.random_range(0..4)];
                (servers, draw.random_range(5..14) * 4096, 4096)
            }
            Aim::Long => (servers, 32 << 20, 256 << 10),
            _ => (servers, 16 << 20, 64 << 10),
        };
        Self { seed, aim, keys, longest, groups, servers, spare, chunk, places, kind: Keys::Numbers }
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// What was wrong.
    pub fn run(&self) -> Result<Outcome, String> {
        run::run(self)
    }
}

counters! {
    /// What happened in a scenario, or in several.
    #[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
    pub struct Outcome {
        /// Operations with an answer.
        pub answered: u64,
        /// Changes of which the client does not know whether they were made.
        pub unknown: u64,
        /// Operations that gave up.
        pub refused: u64,
        /// Operations for which there was no memory.
        pub short: u64,
        /// Searches in one round trip.
        pub hits: u64,
        /// Exports of all pairs.
        #[serde(skip)]
        pub exports: u64,
        /// Compare-and-swaps that applied.
        #[serde(skip)]
        pub swaps: u64,
        /// Clients that died.
        pub deaths: u64,
        /// Servers that were started anew.
        pub restarts: u64,
        /// Sessions that ended because they were not renewed.
        pub lapsed: u64,
        /// Blocks that the servers have taken for lost, and found.
        pub reclaimed: u64,
        /// Keys in the end.
        pub keys: u64,
        /// Subtables in use in the end.
        pub subtables: u64,
        /// Subtables that were split.
        pub former: u64,
        /// Splits that were left unfinished.
        pub unfinished: u64,
        /// Insertions that were left under way.
        pub tentative: u64,
        /// Entries of directories that lead to a subtable that was split.
        pub stale_entries: u64,
    }
}

impl Outcome {
    fn add(&mut self, verified: Verified) {
        let Verified { keys, subtables, former, unfinished, tentative, stale_entries, .. } = verified;
        self.keys += keys;
        self.subtables += subtables;
        self.former += former;
        self.unfinished += unfinished;
        self.tentative += tentative;
        self.stale_entries += stale_entries;
    }
}
