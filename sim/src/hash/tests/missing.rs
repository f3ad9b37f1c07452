//! The seeds find what is missing: each check that is not made.

use fatbtree_memserver::Check as SweepCheck;
use fatbtree_race::Check;
use fatbtree_remote_memory::Check as RemoteCheck;

use crate::hash::{Aim, Outcome, Scenario};
use crate::seeds::{Campaign, SeedFailure, Seeds};

/// Seeds among which a failure must be.
const MOST: u64 = 600;

/// What makes a check matter most.
fn aimed(check: Check, seed: u64) -> Scenario {
    match check {
        Check::Duplicates | Check::Tentative | Check::Removed => Scenario::aimed(seed, Aim::Insertions),
        Check::VersionGoesOn | Check::Freed => Scenario { places: 0, ..Scenario::aimed(seed, Aim::Blocks) },
        Check::UnknownBlock => Scenario::aimed(seed, Aim::Blocks),
        Check::Compares => Scenario::aimed(seed, Aim::Swaps),
        Check::FreedBlock | Check::FreedVersion | Check::FrozenBuckets | Check::Revoked => {
            Scenario::aimed(seed, Aim::All)
        }
        Check::Splits
        | Check::Helping
        | Check::Successors
        | Check::Suffix
        | Check::FrozenAll
        | Check::LinkedInSession => Scenario::aimed(seed, Aim::Splits),
        Check::FreedRival => Scenario::aimed(seed, Aim::Scarce),
        Check::Remembered => Scenario { places: 64, ..Scenario::aimed(seed, Aim::Blocks) },
        Check::RememberFrozen => Scenario { places: 64, ..Scenario::aimed(seed, Aim::Splits) },
        Check::Reserves
        | Check::Thaws
        | Check::ThawEmpties
        | Check::FrozenRivals
        | Check::CopiesCommitted
        | Check::DiscardedVersion
        | Check::KeptSession => Scenario::aimed(seed, Aim::Crowded),
        Check::SoundSlots | Check::OthersKey => unreachable!("no client damages anything"),
        Check::ExportedOnce => Scenario::aimed(seed, Aim::Exports),
        Check::WholeKey => Scenario::aimed(seed, Aim::All).of_bytes(),
        Check::Kind => unreachable!("each client has keys of the table's kind"),
    }
}

/// Checks that seeds do not find, and why.
const OF_TESTS: [Check; 11] = [
    // Clients have keys of the table's kind: `structures/race/tests/table/names.rs`.
    Check::Kind,
    // No client damages anything: `structures/race/tests/table/damage.rs`.
    Check::SoundSlots,
    Check::OthersKey,
    // A table that never frees a block answers rightly: `structures/race/tests/table/memory.rs` finds it.
    Check::Freed,
    // The same of a block that was not linked: its version keeps apart what the server's sweeps see of it. The same file finds it.
    Check::DiscardedVersion,
    // Slots that are frozen without memory are thawed, later: `structures/race/tests/table/split.rs` finds both.
    Check::Reserves,
    Check::Thaws,
    // Insertions of one key beside a split that is taken back are rare: the test of `structures/race/src/table/thaw.rs` finds it.
    Check::ThawEmpties,
    // Four clients must come in one order: the test of `structures/race/tests/table/rivals.rs` finds it.
    Check::FrozenRivals,
    // A frozen slot that is remembered is rare, too: seeds drew it before blocks had size classes, and 600 do not draw it now. The test of
    // `structures/race/tests/table/split.rs` finds it.
    Check::RememberFrozen,
    // A block of a former session is not written in this one, whether it is kept or not: an operation that kept it would fail when its
    // patience ends.
    Check::KeptSession,
];

/// The first seed that fails without a check, and not with it.
fn first_failure(
    without: impl Fn(&Scenario) -> Result<Outcome, String> + Sync,
    scenario: impl Fn(u64) -> Scenario + Sync,
) -> Option<SeedFailure> {
    let campaign = Campaign { most_failures: 1, ..Campaign::default() };
    let report = campaign.run(Seeds::fixed(MOST), |seed| {
        let scenario = scenario(seed);
        // A seed that fails anyway says nothing.
        without(&scenario).or_else(|why| scenario.run().map_or(Ok(Outcome::default()), |_| Err(why)))
    });
    report.failures.into_iter().next()
}

#[test]
fn each_check_that_is_not_made_is_found() {
    let of_table = Check::ALL.iter().filter(|check| !OF_TESTS.contains(check)).map(|&check| {
        let failure = first_failure(|scenario| check.without(|| scenario.run()), |seed| aimed(check, seed));
        (format!("{check:?}"), failure)
    });
    // Those of records that the table relies on.
    let of_records = [RemoteCheck::RecordVersion, RemoteCheck::RecordChecksum].map(|check| {
        let failure = first_failure(
            |scenario| check.without(|| scenario.run()),
            |seed| Scenario::aimed(seed, Aim::Lines),
        );
        (format!("{check:?}"), failure)
    });
    // Those of servers that take blocks for lost. For the others there must be more sessions one after the other than a seed has, or calls
    // that come late: `structures/race/tests/table/` has a story for each, in `sweep.rs`, `settle.rs` and `quiet.rs`.
    let of_sweeps = [
        (SweepCheck::SweepWaits, 0b010, Aim::Blocks),
        // Splits lead to other servers.
        (SweepCheck::SweepAsks, 0b110, Aim::Splits),
    ];
    let of_sweeps = of_sweeps.map(|(check, servers, aim)| {
        let failure = first_failure(
            |scenario| check.without(|| scenario.run()),
            |seed| Scenario { servers, ..Scenario::aimed(seed, aim) },
        );
        (format!("{check:?}"), failure)
    });
    let mut passed = Vec::new();
    for (check, failure) in of_table.chain(of_records).chain(of_sweeps) {
        match failure {
            // Shown with --nocapture, and where the test fails.
            Some(SeedFailure { seed, why, .. }) => {
                eprintln!("{check}: seed {seed}: {}", why.lines().next().unwrap_or_default());
            }
            None => passed.push(check),
        }
    }
    assert!(passed.is_empty(), "without one of these {MOST} seeds pass: {passed:?}");
}
