//! Whether this machine has the memory that a tree takes.

use anyhow::{Result, bail};
use fatbtree_blink::MAX_INLINE_VALUE;

/// Refuses keys of which one of `parts` does not fit into memory, before it is loaded. Otherwise the process would
/// end in the middle of the load.
pub(crate) fn check(keys: u64, parts: u64, value_bytes: u64) -> Result<()> {
    let bytes = (keys / parts.max(1)).saturating_mul(bytes_per_key(value_bytes));
    if available().is_some_and(|available| bytes > available) {
        bail!(
            "--keys {keys}: they take about {} MB here, which this machine does not have; ask for fewer",
            bytes / 1_000_000
        );
    }
    Ok(())
}

/// The key, its entry in a leaf that is three quarters full, and its record.
fn bytes_per_key(value: u64) -> u64 {
    let (entry, record) = match value > u64::from(MAX_INLINE_VALUE) {
        true => (8 + 12, value + 20),
        false => (8 + value, 0),
    };
    8 + (entry + 4) * 4 / 3 + record
}

/// Bytes that the system has left; `None` if it does not say.
pub(crate) fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}
