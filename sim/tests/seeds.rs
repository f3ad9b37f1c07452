//! A thousand seeds of the whole path: every look-up is answered right, or with an error that says why.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use fatbtree_sim::{Outcome, Scenario};

const SEEDS: u64 = 1_000;

#[test]
fn every_seed_is_answered() {
    let next = AtomicU64::new(0);
    let total = Mutex::new(Outcome::default());
    let failures = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(2, Into::into).min(8);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= SEEDS {
                        return;
                    }
                    match Scenario::from_seed(seed).run() {
                        Ok(outcome) => *total.lock().unwrap() += outcome,
                        Err(error) => failures.lock().unwrap().push(error.to_string()),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {SEEDS} seeds failed, the first: {}", failures.len(), failures[0]);

    // Safety holds trivially where nothing happens: the seeds must have been rough, and lookups answered all the same.
    let total = total.into_inner().unwrap();
    println!("{total:?}");
    assert!(total.faults.iter().all(|count| *count > 1_000), "too few faults: {total:?}");
    assert!(
        total.reloads > 500 && total.reconnections > 10 && total.refused_index_reads > 10,
        "too calm: {total:?}"
    );
    assert_eq!(total.wrong, 0);
    assert!(total.failed * 100 < total.lookups, "more than 1 % of the look-ups failed: {total:?}");
}

#[test]
fn a_seed_replays_itself() {
    for seed in [3, 77, 512] {
        let once = Scenario::from_seed(seed).run().unwrap();
        let again = Scenario::from_seed(seed).run().unwrap();
        assert_eq!(once, again, "seed {seed} gave two different runs");
    }
}
