//! Transactions on tables of several memory servers, under faults.
//!
//! ```text
//!   clients ── SmallBank, notes that come, change and go, several fetches ──► tables on two or three servers, one or two backups
//!     die, are cut off, freeze, drop transactions                              die with their memory, or without it; messages are late
//!                                     history of all reads and writes: strictly serializable?
//!                                     tables: replicas equal, content as the history says, no money lost or made
//! ```
//!
//! Every transaction is in the history. One that was aborted by its work has read at one moment, as if it had committed. Of one that failed,
//! was dropped, or has no answer, each read counts for itself: the item was so at some moment of the fetch.
//!
//! Clients and servers are those of production. In the end a client that lives uses every item, and must succeed.

pub mod lab;
mod run;
mod work;

use serde::Serialize;

/// Mixture of transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aim {
    /// Everything.
    All,
    /// Few notes of several lines, read and changed all the time.
    Notes,
    /// Notes that come, and transactions that look for them.
    Absence,
    /// Few accounts.
    Accounts,
    /// Few accounts, in transactions of several fetches.
    Steps,
}

counters! {
    /// What seeds have seen.
    #[derive(Clone, Copy, Default, Debug, Serialize)]
    pub struct Outcome {
        /// Transactions that have committed, as their clients were told; each read for itself among them.
        pub committed: u64,
        /// Transactions that have taken effect, although their clients were not told.
        pub without_answer: u64,
        /// Attempts that were aborted.
        pub aborted: u64,
        /// Transactions whose clients were told that their outcome is unknown.
        pub unknown: u64,
        /// Transactions that have failed otherwise.
        pub refused: u64,
        /// Deaths of clients.
        pub deaths: u64,
        /// Deaths of servers that kept their memory.
        pub restarts: u64,
        /// Deaths of servers that lost their memory.
        pub losses: u64,
        /// Keys in the end.
        pub keys: u64,
        /// Locks of dead clients that no other client has wanted.
        pub locks_left: u64,
        /// Logs of dead clients that no other client has closed.
        pub logs_left: u64,
    }
}

/// Runs a seed with a mixture.
///
/// # Errors
/// What does not hold.
pub fn run_aiming(seed: u64, aim: Aim) -> Result<Outcome, String> {
    run::run(seed, aim)
}

/// Runs a seed, which chooses its mixture.
///
/// # Errors
/// What does not hold.
pub fn run(seed: u64) -> Result<Outcome, String> {
    const AIMS: [Aim; 5] = [Aim::All, Aim::Notes, Aim::Absence, Aim::Accounts, Aim::Steps];
    run_aiming(seed, AIMS[(seed % 5) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_pass_and_see_everything() {
        let mut sum = Outcome::default();
        for seed in 0..200 {
            sum +=
                run(seed).unwrap_or_else(|why| panic!("fatbtree simulate transactions --seed {seed}: {why}"));
        }
        println!("{sum:?}");
        assert!(sum.deaths > 400 && sum.restarts > 80 && sum.losses > 80, "{sum:?}");
        assert!(sum.committed > 10_000 && sum.without_answer > 60, "{sum:?}");
    }
}
