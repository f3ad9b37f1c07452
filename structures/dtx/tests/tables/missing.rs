//! Each check that is not made is found: by a scene of the other tests that was made for it, or by seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fatbtree_dtx::Check;
use fatbtree_sim::transactions::{Aim, run_aiming};

use crate::begun::{
    a_server_that_begins_is_filled, an_emptied_server_waits_for_the_others, an_export_meets_a_dead_commit,
    moments_of_a_commit,
};
use crate::deaths::{a_recovery_stands_still, moments_to_stand_still};
use crate::fills::{a_log_comes_late, moments_to_be_late};
use crate::laid::parts_of_two_loads;
use crate::older::{IN_RECOVERY, an_older_log_is_open, moments_of_an_older_log};
use crate::once::{
    a_deleted_key_comes_back, a_lock_is_broken_under_a_transaction, a_read_is_changed_before_it_is_locked,
    a_slot_is_being_filled, an_absent_key_is_wanted_twice, moments_of_an_insertion,
};
use crate::recoveries::{
    a_coordinator_lives_elsewhere, a_recovery_dies, an_open_log_is_in_the_way, moments_to_die,
    moments_to_live_elsewhere,
};
use crate::seats::{
    an_answer_is_lost, an_idle_client_has_dropped_a_transaction, coordinators_die, moments_to_lose_an_answer,
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

/// The first of some cases that fails, and why.
fn first<C: std::fmt::Debug + Copy, T>(
    cases: impl IntoIterator<Item = C>,
    run: impl Fn(C) -> Result<T, String>,
) -> Option<String> {
    cases.into_iter().find_map(|case| {
        let ran = catch_unwind(AssertUnwindSafe(|| run(case).map(drop)));
        let why = ran.unwrap_or_else(|_| Err("a panic".to_owned())).err()?;
        Some(format!("{case:?}: {}", why.chars().take(160).collect::<String>()))
    })
}

/// A failure without a check. `None` if there is none.
fn failure(check: Check) -> Option<String> {
    match check {
        Check::AllDead | Check::EachServer => {
            first(moments_to_live_elsewhere(), |(micros, primary, server)| {
                a_coordinator_lives_elsewhere(micros, primary, server)
            })
        }
        Check::Claim => {
            first(moments_to_stand_still(), |(writes, micros)| a_recovery_stands_still(writes, micros))
        }
        Check::Outcome => first(moments_to_die(), |(micros, polls)| a_recovery_dies(micros, polls)),
        // It takes a log on one server only, whose data was written in part.
        Check::EachLog => first(960..980, |seed| run_aiming(seed, Aim::Accounts)),
        Check::Eras | Check::ResolvedFirst => {
            first(moments_to_be_late(), |(moment, primary, seed)| a_log_comes_late(moment, primary, seed))
        }
        Check::OnceEach => first([()], |()| an_absent_key_is_wanted_twice()),
        Check::ReadsLocked => first([true, false], a_read_is_changed_before_it_is_locked),
        Check::LockedValidation => first([true, false], a_lock_is_broken_under_a_transaction),
        Check::Filling => first([()], |()| a_slot_is_being_filled()),
        Check::StillFree => first(moments_of_an_insertion(), a_deleted_key_comes_back),
        Check::LocksTell => first(moments_of_an_older_log(), |moment| an_older_log_is_open(moment, None)),
        Check::FillerAlone => {
            first(moments_of_an_older_log(), |moment| an_older_log_is_open(moment, Some(IN_RECOVERY)))
        }
        Check::OpenSeat | Check::SeatsAgain => {
            first(1..9, an_open_log_is_in_the_way).or_else(|| first(1..12, coordinators_die))
        }
        Check::AskedLocks => first(moments_to_lose_an_answer(), an_answer_is_lost),
        Check::NoneWhole => first([0, 1, 2], a_server_that_begins_is_filled),
        Check::OneLoad => first([()], |()| parts_of_two_loads()),
        Check::EmptiedAll => first([()], |()| an_emptied_server_waits_for_the_others()),
        Check::ExportWaits => {
            first(moments_of_a_commit(), |(moment, seed)| an_export_meets_a_dead_commit(moment, seed))
        }
        Check::Told => first(1..60, an_idle_client_has_dropped_a_transaction),
        _ => first(0..MOST, |seed| run_aiming(seed, aim(check))),
    }
}

#[test]
fn each_check_that_is_not_made_is_found() {
    let mut passed = Vec::new();
    for &check in Check::ALL {
        match check.without(|| failure(check)) {
            // Shown with --nocapture, and where the test fails.
            Some(why) => println!("{check:?}: {why}"),
            None => passed.push(check),
        }
    }
    assert!(passed.is_empty(), "without one of these nothing fails: {passed:?}");
}
