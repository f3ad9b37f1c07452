//! Counters of a client.

use fatbtree_remote_memory::{RemoteStats, Troubles};

/// Counters of a client since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// Reads, connections and locks.
    pub remote: RemoteStats,
    /// Lookups begun.
    pub lookups: u64,
    /// Index reads posted; [`RemoteStats::reads`] counts them, too.
    pub index_reads: u64,
    /// Index reads among them that led to a node or record which was not the key's any more: it had been split, merged, replaced or
    /// freed since it was put into the switches. Each cost a round trip or more. Where they become many, planning anew pays.
    pub stale_hints: u64,
    /// Index reads that led to the record of their key: lookups of one round trip.
    pub records: u64,
    /// Index reads among the stale hints that led to a record which is not the key's any more, or soon will
    /// not be. It was replaced, deleted or reused since its place was put into the switches. Each cost a
    /// round trip.
    pub stale_records: u64,
    /// Lookups that were to begin with an index read on a connection that is not registered, and walked.
    pub unregistered: u64,
    /// Times something was read again because it was torn.
    pub retries: u64,
    /// Walks begun again at the root because a node failed its checks, most of them after a stale index read.
    pub fallbacks: u64,
    /// Roots learnt from a superblock.
    pub new_roots: u64,
    /// Operations begun again because their connection broke.
    pub restarts: u64,
    /// Nodes split, roots included.
    pub splits: u64,
    /// Nodes split whose upper half went to another server.
    pub splits_elsewhere: u64,
    /// Nodes merged into their left neighbours.
    pub merges: u64,
    /// Nodes merged into their left neighbours whose parent lies on another server.
    pub merges_below_others: u64,
    /// Layers made for keys of bytes that begin alike.
    pub layers_created: u64,
    /// Layers removed that had no keys any more.
    pub layers_removed: u64,
    /// Nodes whose unfinished split or merge, begun by another operation, was completed.
    pub settled: u64,
}

impl From<PoolStats> for Troubles {
    fn from(stats: PoolStats) -> Self {
        Self {
            retries: stats.retries,
            fallbacks: stats.fallbacks,
            unregistered: stats.unregistered,
            broken_connections: stats.remote.broken_connections,
            restarts: stats.restarts,
        }
    }
}
