//! Figure 16 of Sherman: threads that take locks and give them back.

use fatbtree_blink::{Start, Techniques};

use super::bench::{Cache, LockTable, Setup, Workload, load_on, run};
use super::card::Calibration;
use super::table::Row;
use super::writes::sherman_tree;
use super::{Mix, Size, Skew};

/// Locks of the one server (Sherman section 5.7).
const LOCKS: u32 = 10_240;
/// Operations of each of the 8 clients at once: the paper's 176 threads.
const THREADS: u32 = 22;

/// Takes and gives back locks of one server by 8 × 22 operations, each on a queue pair of its own, Zipf 0.99. The first three rows are the
/// paper's steps, where locks are given back by an atomic; hierarchical locks are handed over, too. The last two give locks back by a WRITE. An
/// operation reads a word with its first attempt.
///
/// # Errors
/// An operation that failed.
pub(super) fn locks(size: &Size, skew: Skew, mix: Mix) -> Result<Vec<Row>, String> {
    let tree = sherman_tree()?;
    // It takes as long until the threads have gathered at the locks that all want.
    let size = Size { keys: LOCKS.into(), depth: THREADS, warm_up_us: size.window_us, ..*size };
    // Large enough that each lock has something to protect.
    let cluster = load_on(1, tree, &Size { keys: u64::from(LOCKS) * 8, ..size }, true)?;
    let single = Techniques { hierarchical: false, ..Techniques::ALL };
    let written = Techniques { on_chip: false, ..single };
    [
        ("in memory", single, false),
        ("+On-Chip", single, true),
        ("+Hierarchical and handed over", Techniques::ALL, true),
        ("in memory, given back by a WRITE", written, false),
        ("on the card, given back by a WRITE", written, true),
    ]
    .into_iter()
    .map(|(name, techniques, on_card)| {
        let setup = Setup {
            techniques,
            start: Start::Root,
            cache: Cache::None,
            calibration: Calibration::CX5_100_IB.without_own_work(),
            locks: Some(LockTable { count: LOCKS, on_card }),
            ..Setup::new(name.to_owned(), tree, Workload::new(skew, mix))
        };
        run(&setup, &size, &cluster, |_, _| {})
    })
    .collect()
}
