//! The seeds find what is missing: each check that is not made.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fatbtree_dtx::Check;
use fatbtree_sim::transactions::{Aim, run_aiming};

use crate::deaths::{
    a_recovery_stands_still, moments_to_forget, moments_to_stand_still, one_server_forgets_a_client,
};

/// Seeds among which a failure must be.
const MOST: u64 = 600;

/// What makes a check matter most.
fn aim(check: Check) -> Aim {
    match check {
        Check::OwnLocks | Check::LockedReads | Check::Validation => Aim::Accounts,
        Check::Checksum => Aim::Notes,
        Check::Absence | Check::Address => Aim::Absence,
        _ => Aim::All,
    }
}

/// The first seed that fails, and why.
fn first_failure(run: impl Fn(u64) -> Result<(), String>) -> Option<(u64, String)> {
    (0..MOST).find_map(|seed| {
        let ran = catch_unwind(AssertUnwindSafe(|| run(seed)));
        ran.unwrap_or_else(|_| Err("a panic".to_owned())).err().map(|why| (seed, why))
    })
}

#[test]
fn each_check_that_is_not_made_is_found() {
    let mut passed = Vec::new();
    for &check in Check::ALL {
        let failure = match check {
            Check::AllDead => moments_to_forget().find_map(|(micros, server)| {
                let ran = check.without(|| one_server_forgets_a_client(micros, server));
                ran.err().map(|why| (micros, why))
            }),
            Check::Claim => moments_to_stand_still().find_map(|(writes, micros)| {
                let ran = check.without(|| a_recovery_stands_still(writes, micros));
                ran.err().map(|why| (micros, why))
            }),
            _ => first_failure(|seed| check.without(|| run_aiming(seed, aim(check)).map(drop))),
        };
        match failure {
            // Shown with --nocapture, and where the test fails.
            Some((seed, why)) => {
                println!("{check:?}: seed {seed}: {}", why.chars().take(160).collect::<String>());
            }
            None => passed.push(check),
        }
    }
    assert!(passed.is_empty(), "without one of these {MOST} seeds pass: {passed:?}");
}
