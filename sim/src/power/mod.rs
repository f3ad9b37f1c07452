//! Power failures: servers with data folders on disks that lose what was not synced, under clients that write.
//!
//! ```text
//!   clients ── verbs ──► servers of production, journals of production ──► LossyDisk ──► folders
//!                                                                             │ cut
//!   a fresh client ◄── servers started from what is left ◄────────────────────┘
//! ```
//!
//! Runs are of one server, of two and of three. Of several servers either all lose their power at one moment, each with changes of its own that
//! were not synced, or one of them does, and the others are as they are at that moment.
//!
//! The power is cut before a server does a sync that a client waits for, in the middle of operations of the disk (of one server), and at moments
//! in between, while the run goes on: each cut is a folder. From each of them a server is started. The folder must be taken, with all checks of
//! its structure; a walk over the whole structure must find no fault; and each key must have a value that it has had since the last time at
//! which all that was acknowledged had reached the disk. Then all keys are written again: nothing is left that stops a client.
//!
//! Each client changes keys of its own, one after the other, so that the values of a key are a list.

pub mod flips;
mod kinds;
mod run;
#[cfg(test)]
mod tests;

use serde::Serialize;

counters! {
    /// What a run has seen.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
    pub struct Outcome {
        /// Changes that were acknowledged.
        pub changes: u64,
        /// Cuts from which servers were started.
        pub cuts: u64,
        /// Cuts in the middle of an operation of the disk.
        pub cuts_within: u64,
        /// Cuts of several servers at one moment.
        pub cuts_of_all: u64,
        /// Cuts of one server of several.
        pub cuts_of_one: u64,
        /// Cuts that have lost acknowledged changes, none of which was older than the last sync.
        pub cuts_with_losses: u64,
        /// Keys that were read from them.
        pub reads: u64,
        /// Halves of journals that were applied.
        pub applied: u64,
        /// Operations of the disks.
        pub disk_operations: u64,
    }
}

/// A run, drawn from a seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scenario {
    /// Seed of everything that is drawn.
    pub seed: u64,
    /// Structure.
    pub kind: Kind,
    /// Memory servers.
    pub servers: u16,
    /// Cuts.
    pub cuts: u64,
}

/// Structure of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A B-link tree.
    Tree,
    /// A hash table.
    Hash,
    /// A Dolphin index.
    Dolphin,
    /// A B-link tree of keys of bytes, some of them in layers.
    TreeOfBytes,
    /// A hash table of keys of bytes.
    HashOfBytes,
}

impl Scenario {
    /// The run of a seed.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let kind = match (seed % 3, seed / 9 % 2) {
            (0, 0) => Kind::Tree,
            (0, _) => Kind::TreeOfBytes,
            (1, 0) => Kind::Hash,
            (1, _) => Kind::HashOfBytes,
            _ => Kind::Dolphin,
        };
        Self { seed, kind, servers: 1 + (seed / 3 % 3) as u16, cuts: 24 }
    }

    /// Runs it.
    ///
    /// # Errors
    /// A cut from which a server cannot be started, or that has lost what was on the disk, or is a mixture.
    pub fn run(&self) -> Result<Outcome, String> {
        match self.kind {
            Kind::Tree => run::run::<kinds::Tree>(self),
            Kind::Hash => run::run::<kinds::Hash>(self),
            Kind::Dolphin => run::run::<kinds::Dolphin>(self),
            Kind::TreeOfBytes => run::run::<kinds::TreeOfBytes>(self),
            Kind::HashOfBytes => run::run::<kinds::HashOfBytes>(self),
        }
    }
}
