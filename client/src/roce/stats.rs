//! What a client counts.

use super::event::{Answer, Done};
use crate::measure::{Outcome, Troubles};

/// Counters since the client was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientStats {
    /// Lookups submitted.
    pub submitted: u64,
    /// Lookups done, failed ones included.
    pub done: u64,
    /// Reads posted, of both kinds.
    pub reads: u64,
    /// Index reads among them.
    pub index_reads: u64,
    /// Lookups that asked for an index read on a connection that is not registered, and walked.
    pub unregistered: u64,
    /// Lookups that read something anew because it was torn, times each.
    pub retries: u64,
    /// Walks begun again at the root because a node failed its checks, most of them behind a stale index
    /// read.
    pub fallbacks: u64,
    /// Queue pairs that failed.
    pub broken_connections: u64,
    /// Queue pairs among them that failed because an index read was not admitted.
    pub refused_index_reads: u64,
    /// Lookups begun again because of that.
    pub restarts: u64,
    /// Completions of operations that were over.
    pub late_completions: u64,
}

impl ClientStats {
    pub(super) fn count(&mut self, done: &Done) {
        self.done += 1;
        self.retries += u64::from(done.trips.retries);
        self.fallbacks += u64::from(done.trips.restarts);
    }

    /// Those that a report shows.
    pub fn troubles(&self) -> Troubles {
        Troubles {
            retries: self.retries,
            fallbacks: self.fallbacks,
            unregistered: self.unregistered,
            broken_connections: self.broken_connections,
            restarts: self.restarts,
        }
    }
}

impl Answer {
    /// For the report, given whether the key is in the tree.
    pub fn outcome(self, exists: bool) -> Outcome {
        match (self, exists) {
            (Answer::Found, true) => Outcome::Found,
            (Answer::NotFound, true) => Outcome::NotFound,
            (Answer::NotFound, false) => Outcome::Absent,
            (Answer::Wrong, _) | (Answer::Found, false) => Outcome::WrongAnswer,
            (Answer::Failed(_), _) => Outcome::Failed,
        }
    }
}
