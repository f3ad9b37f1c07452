//! `--cache`: inner nodes that the measured client remembers.

use std::fmt;

use fatbtree_remote_memory::CacheUse;
use serde::Serialize;

/// Use of the cache.
#[derive(Serialize)]
pub(super) struct NodeCacheResult {
    /// Bytes that it occupies.
    bytes: u64,
    /// Inner nodes in it.
    nodes: u64,
    /// Attempts that began at a leaf because the cache knew it.
    hits: u64,
    /// Attempts whose leaf the cache did not know.
    misses: u64,
    /// Attempts that the cache led to a wrong place.
    stale: u64,
}

impl From<CacheUse> for NodeCacheResult {
    fn from(used: CacheUse) -> Self {
        let CacheUse { hits, misses, stale, bytes, entries: nodes } = used;
        Self { bytes, nodes, hits, misses, stale }
    }
}

impl fmt::Display for NodeCacheResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, nodes, hits, misses, stale } = self;
        let share = 100.0 * *hits as f64 / (hits + misses).max(1) as f64;
        write!(
            f,
            "client cache: {nodes} inner nodes in {bytes} bytes; {hits} attempts began at a leaf that it knew ({share:.1} %), {misses} did \
             not, {stale} stale"
        )
    }
}
