//! All of some places in an order in which neighbours lie far apart.

/// The least step from `least` on by which all of `count` places are visited, each once: place `n` is `n · step` modulo `count`.
///
/// ```
/// let step = fatbtree_workload::stride(10, 6);
/// let mut places: Vec<u64> = (0..10).map(|n| n * step % 10).collect();
/// places.sort_unstable();
/// assert_eq!((step, places), (7, (0..10).collect()));
/// ```
#[must_use]
pub fn stride(count: u64, least: u64) -> u64 {
    fn common(one: u64, other: u64) -> u64 {
        if other == 0 { one } else { common(other, one % other) }
    }
    (least.max(1)..).find(|&step| common(step, count) == 1).unwrap_or(1)
}
