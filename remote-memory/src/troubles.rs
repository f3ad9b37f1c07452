//! What costs operations time, counted.

use serde::{Deserialize, Serialize};

/// Counts of events that cost time, from the client's own counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Troubles {
    /// Lookups that read a node again, because it was torn, locked or stale.
    pub retries: u64,
    /// Index reads whose node failed its checks, so that the lookup began again at the root.
    pub fallbacks: u64,
    /// Lookups that asked for an index read and were walked ordinarily, because the connection is not
    /// registered.
    pub unregistered: u64,
    /// Queue pairs that went into error.
    pub broken_connections: u64,
    /// Lookups begun again because of a broken queue pair.
    pub restarts: u64,
}

impl Troubles {
    /// Adds the counts of another client.
    pub fn merge(&mut self, other: &Troubles) {
        self.retries += other.retries;
        self.fallbacks += other.fallbacks;
        self.unregistered += other.unregistered;
        self.broken_connections += other.broken_connections;
        self.restarts += other.restarts;
    }
}
