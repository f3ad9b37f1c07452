//! A client's figures for what knows no index.

use fatbtree_verbs::Throttling;
use fatbtree_verbs::time::Duration;

use crate::operation::Backoff;

/// Sherman's techniques (sections 4.3 and 4.4) for taking locks and writing under them, as far as they know no index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Locking {
    /// Operations that share a doorbell.
    pub combine: Combine,
    /// Locks are released by an atomic, which excludes other atomics; the lock table should lie on the server's card. Off: by a WRITE, as
    /// Sherman's clients do.
    pub on_chip: bool,
    /// Operations of one client that want the same lock wait in a queue, and hand it over. Off: each asks the server by itself.
    pub hierarchical: bool,
}

impl Default for Locking {
    /// All on.
    fn default() -> Self {
        Self { combine: Combine::LockToo, on_chip: true, hierarchical: true }
    }
}

/// Operations that depend on each other and share a doorbell all the same (Sherman, section 4.5): the card carries out the operations of a
/// queue pair in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Combine {
    /// None: each waits for the one before. A change takes lock, read, write and release: four round trips, as in FG.
    Off,
    /// A new sibling, what is written back, and the release, as Sherman's clients do: three round trips.
    Writes,
    /// The lock and the first read of what it protects, too: two round trips.
    LockToo,
}

/// Treatment of contention: for the memory of the card, and for what other clients want, too. Each can be chosen by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contention {
    /// Bound on the requests that the thread has under way (SMART, section 4.2).
    pub throttling: Throttling,
    /// Pauses between attempts at a lock, or at another word, that another client was first to change.
    pub backoff: Backoff,
    /// Fewer operations compete at once while many attempts fail (SMART, section 4.3). Off: all do.
    pub bounds_tasks: bool,
}

impl Contention {
    /// As Sherman's clients: no bounds, and short pauses.
    pub const SHERMAN: Self =
        Self { throttling: Throttling::Off, backoff: Backoff::LOCKS, bounds_tasks: false };
    /// All of SMART's techniques.
    pub const SMART: Self =
        Self { throttling: Throttling::Adaptive, backoff: Backoff::SMART, bounds_tasks: true };
}

impl Default for Contention {
    fn default() -> Self {
        Self::SHERMAN
    }
}

/// A client's figures for what knows no index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteConfig {
    /// Queue pairs per memory server, at least 1.
    pub lanes: u8,
    /// Time for which an operation waits for a lock that another client holds.
    pub patience: Duration,
    /// Number of times that one write may lose its connection and be posted again.
    pub reconnects: u32,
    /// Attempts to read the same again, or to begin again, with their pauses.
    pub reads: Backoff,
    /// Way of taking locks.
    pub locking: Locking,
    /// Treatment of contention.
    pub contention: Contention,
}

impl Default for RemoteConfig {
    /// One queue pair per server, a second of patience.
    fn default() -> Self {
        Self {
            lanes: 1,
            patience: Duration::from_secs(1),
            reconnects: 4,
            reads: Backoff::READS,
            locking: Locking::default(),
            contention: Contention::default(),
        }
    }
}
