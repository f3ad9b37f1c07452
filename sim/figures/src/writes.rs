//! Figures 10 and 11: FG+, and one technique after the other.

use fatbtree_blink::{Techniques, TreeConfig, ValueLayout};

use super::bench::{Setup, Workload, load, run};
use super::table::Row;
use super::{Mix, Size, Skew};

/// A tree as Sherman's: nodes of 1 KB, keys and values of 8 bytes.
pub(super) fn sherman_tree() -> Result<TreeConfig, String> {
    const NODE: u32 = 1024;
    let shape = |fan_out| TreeConfig::new(fan_out, NODE, ValueLayout::Inline(8));
    let fits = |tree: &TreeConfig| tree.internal_bytes() <= NODE;
    let widest = (2..=128).rev().filter_map(|fan_out| shape(fan_out).ok()).find(fits);
    widest.ok_or_else(|| "no node of 1 KB has two children".to_owned())
}

/// Runs FG+ and each of Sherman's steps on a workload. The clients' caches hold all inner nodes.
///
/// # Errors
/// A wrong answer, or an operation that failed.
pub(super) fn writes(size: &Size, skew: Skew, mix: Mix) -> Result<Vec<Row>, String> {
    let tree = sherman_tree()?;
    let measure = |(name, techniques): (&str, Techniques)| {
        let setup = Setup { techniques, ..Setup::new(name.to_owned(), tree, Workload::new(skew, mix)) };
        run(&setup, size, &load(tree, size, false)?, |_, _| {})
    };
    Techniques::steps().into_iter().map(measure).collect()
}
