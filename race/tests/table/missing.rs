//! The seeds find what is missing: each check that is not made.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fatbtree_race::Check;
use fatbtree_remote::Check as RemoteCheck;

use crate::campaign::{Aim, Outcome, run};

/// Seeds among which a failure must be.
const MOST: u64 = 400;

/// What makes a check matter most.
fn aim(check: Check) -> Aim {
    match check {
        Check::Duplicates | Check::Tentative | Check::Removed => Aim::Insertions,
        Check::VersionGoesOn => Aim::Blocks,
        Check::Helping | Check::Successors | Check::Suffix | Check::FrozenAll => Aim::Splits,
    }
}

/// The first seed that fails, and why.
fn first_failure(run: impl Fn(u64) -> Result<Outcome, String>) -> Option<(u64, String)> {
    (0..MOST).find_map(|seed| {
        let ran = catch_unwind(AssertUnwindSafe(|| run(seed)));
        ran.unwrap_or_else(|_| Err("a panic".to_owned())).err().map(|why| (seed, why))
    })
}

#[test]
fn each_check_that_is_not_made_is_found() {
    let of_table = Check::ALL.iter().map(|&check| {
        let run = move |seed| check.without(|| run(seed, aim(check)));
        (format!("{check:?}"), first_failure(run))
    });
    // Those of records that the table relies on.
    let of_records = [RemoteCheck::RecordVersion, RemoteCheck::RecordChecksum].map(|check| {
        let run = move |seed| check.without(|| run(seed, Aim::Lines));
        (format!("{check:?}"), first_failure(run))
    });
    let mut passed = Vec::new();
    for (check, failure) in of_table.chain(of_records) {
        match failure {
            // Shown with --nocapture, and where the test fails.
            Some((seed, why)) => println!("{check}: seed {seed}: {}", why.lines().next().unwrap_or_default()),
            None => passed.push(check),
        }
    }
    assert!(passed.is_empty(), "without one of these {MOST} seeds pass: {passed:?}");
}
