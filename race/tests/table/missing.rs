//! The seeds find what is missing: each check that is not made.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fatbtree_race::Check;

use crate::campaign::{Aim, run};

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

/// The first seed that fails without a check, and why.
fn first_failure(check: Check) -> Option<(u64, String)> {
    let fails = |seed| {
        let ran = catch_unwind(AssertUnwindSafe(|| check.without(|| run(seed, aim(check)))));
        ran.unwrap_or_else(|_| Err("a panic".to_owned())).err().map(|why| (seed, why))
    };
    (0..MOST).find_map(fails)
}

#[test]
fn each_check_that_is_not_made_is_found() {
    let mut passed = Vec::new();
    for &check in Check::ALL {
        match first_failure(check) {
            // Shown with --nocapture, and where the test fails.
            Some((seed, why)) => {
                println!("{check:?}: seed {seed}: {}", why.lines().next().unwrap_or_default())
            }
            None => passed.push(check),
        }
    }
    assert!(passed.is_empty(), "without one of these {MOST} seeds pass: {passed:?}");
}
