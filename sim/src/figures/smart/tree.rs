//! A B-link tree in loopback: threads of one client and the memory server share a card (SMART, figure 12a to c).

use fatbtree_blink::Start;
use fatbtree_remote::Contention;

use crate::figures::bench::{Cache, Clients, Setup, load_on, run};
use crate::figures::card::{Calibration, Resources};
use crate::figures::writes::sherman_tree;
use crate::figures::{Mix, Row, Size, Skew};

/// Runs so many threads, each with `depth` operations at once, over a tree of Sherman's shape on one server. All inner nodes are in the
/// threads' one cache; `start` is where an operation begins, and `contention` what SMART adds to Sherman's clients.
///
/// # Errors
/// A wrong answer, or an operation that failed.
pub fn tree_threads(
    size: &Size,
    threads: u16,
    mix: Mix,
    start: Start,
    contention: Contention,
) -> Result<Row, String> {
    let tree = sherman_tree()?;
    let setup = Setup {
        name: format!("{threads} threads, {mix:?}"),
        tree,
        techniques: fatbtree_blink::Techniques::SHERMAN,
        mix,
        skew: Skew::Skewed,
        start,
        cache: Cache::Full,
        calibration: Calibration::CX6_200_PCIE3,
        switches: 1,
        clients: Clients::Threads(threads, Resources::DoorbellPerThread),
        contention,
        locks: None,
    };
    run(&setup, size, &load_on(1, tree, size, true)?, |_, _| {})
}
