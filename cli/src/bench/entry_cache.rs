//! `--entry-cache`: speculative lookups of the measured client.

use std::fmt;

use anyhow::{Result, bail};
use fatbtree_blink::EntryCache;
use fatbtree_remote_memory::CacheUse;
use serde::Serialize;

/// Refuses a cache of a client of trees that has no place.
pub(super) fn check(bytes: u64) -> Result<()> {
    let least = EntryCache::LEAST_BYTES;
    if bytes < least {
        bail!("--entry-cache {bytes}: four places take {least} bytes, and fewer cannot be kept");
    }
    Ok(())
}

/// Use of the cache.
#[derive(Serialize)]
pub(super) struct EntryCacheResult {
    /// Bytes that it occupies.
    bytes: u64,
    /// Places in it.
    entries: u64,
    /// Lookups that were answered at the place that it named.
    hits: u64,
    /// Lookups of keys that it did not have.
    misses: u64,
    /// Lookups that the named place did not answer.
    stale: u64,
}

impl From<CacheUse> for EntryCacheResult {
    fn from(used: CacheUse) -> Self {
        let CacheUse { hits, misses, stale, bytes, entries } = used;
        Self { bytes, entries, hits, misses, stale }
    }
}

impl fmt::Display for EntryCacheResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, entries, hits, misses, stale } = self;
        let share = 100.0 * *hits as f64 / (hits + misses + stale).max(1) as f64;
        write!(
            f,
            "entry cache: {entries} places in {bytes} bytes; {hits} lookups answered there ({share:.1} %), {misses} without a place, \
             {stale} stale"
        )
    }
}
