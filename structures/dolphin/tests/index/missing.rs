//! The seeds find what is missing: each check that is not made, and so each hole of the published index.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fatbtree_dolphin::Check;
use fatbtree_remote_memory::Check as RemoteCheck;
use fatbtree_sim::dolphin::{Aim, Outcome, Scenario};

/// Seeds among which a failure must be.
const MOST: u64 = 1_000;

/// What makes a check matter most.
fn aim(check: Check) -> Option<Aim> {
    Some(match check {
        Check::NoValue | Check::FirstFree | Check::Tombstone => Aim::Insertions,
        Check::AwaitsLast => Aim::Updates,
        Check::NewRecord => Aim::Lines,
        Check::VersionGoesOn => Aim::Records,
        Check::Stamps | Check::OwnCounts | Check::Drains | Check::Locked | Check::Range | Check::Settles => {
            Aim::Merges
        }
        Check::AllSlots | Check::RangeMatch | Check::Prefix => Aim::Merges,
        Check::Unborn => Aim::Bursts,
        Check::Compares => Aim::Swaps,
        Check::Landing | Check::LandingState => Aim::Merges,
        // No answer is wrong: see `model.rs`.
        Check::Pauses => return None,
        // Two clients must die at two moments, or one break there: see `died.rs`.
        Check::OpensLast
        | Check::LinksFirst
        | Check::LinksLast
        | Check::LocksAll
        | Check::FreesRetired
        | Check::HoldsDoubtful => return None,
        // A client must stand still while another one dies or goes on, or be dropped in its middle: see `stale.rs` and `dropped.rs`.
        Check::GapSettled | Check::RoomInRange | Check::TakesBack => return None,
        // Servers must lose their power: see `sim/src/power/tests.rs`.
        Check::CollapseSynced | Check::BetweenSynced | Check::RelinkSynced => return None,
        // No client damages anything: see `damage.rs`.
        Check::SoundHeaders | Check::SoundNodes => return None,
    })
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
    let of_index = Check::ALL.iter().filter_map(|&check| {
        let aim = aim(check)?;
        // Where a client must come to a leaf that is not linked, wrong switches lead it there.
        let led = matches!(check, Check::Unborn | Check::Landing | Check::LandingState);
        let scenario = move |seed| {
            let scenario = Scenario::aimed(seed, aim);
            if led { scenario.led(Some(0)).led_to_unlinked() } else { scenario }
        };
        let run = move |seed| check.without(|| scenario(seed).run());
        Some((format!("{check:?}"), first_failure(run)))
    });
    // Those of records that the index relies on.
    let of_records = [RemoteCheck::RecordVersion, RemoteCheck::RecordChecksum].map(|check| {
        let run = move |seed| check.without(|| Scenario::aimed(seed, Aim::Lines).run());
        (format!("{check:?}"), first_failure(run))
    });
    let mut passed = Vec::new();
    for (check, failure) in of_index.chain(of_records) {
        match failure {
            // Shown with --nocapture, and where the test fails.
            Some((seed, why)) => println!("{check}: seed {seed}: {}", why.lines().next().unwrap_or_default()),
            None => passed.push(check),
        }
    }
    assert!(passed.is_empty(), "without one of these {MOST} seeds pass: {passed:?}");
}
