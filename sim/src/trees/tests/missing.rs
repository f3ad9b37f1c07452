//! The seeds find what is missing: each check that is not made, each rule that writers do not keep.

use fatbtree_blink::{Check, ValueLayout};

use crate::seeds::{Campaign, SeedFailure, Seeds};
use crate::writers::tests::OF_BUCKETS;
use crate::writers::{Outcome, Scenario};

/// Seeds among which a failure must be.
const MOST: u64 = 3_000;
/// Seeds among which none is where none can be.
const ENOUGH: u64 = 300;

/// Checks that decide nothing in a lookup, with the reason. They stay as a second line: they make
/// [`Node`](fatbtree_blink::node::Node)'s view of any bytes a view of a node, also for other readers of nodes
/// (snapshots).
const SECOND_LINE: &[(Check, &str)] = &[
    (
        Check::Length,
        "an index read asks for the largest node, and a READ for a node of the level that is expected: where fewer bytes come than \
         the node has, it is of another level, and the check of levels refuses it with the same consequence",
    ),
    (
        Check::Count,
        "a wrong count makes a walk take another child, or none (which the check of null pointers refuses); the child is checked \
         for itself, so it is the right one, or leads to it, or is refused",
    ),
    (
        Check::Structure,
        "pivots in any order, or a range without keys, make a walk take another child or go on to a sibling, each of which is checked for \
         itself; only a client that rewrites the node must not trust it",
    ),
    (
        Check::LevelOrder,
        "a lookup goes down, and not along a level; servers do (snapshots, the check at the start), and have another bound beside this one",
    ),
];

/// Checks that only writers make, or readers of what writers leave behind: [`writers`](crate::writers) finds
/// them missing.
const OF_WRITERS: &[Check] = &[
    Check::Partner,
    Check::OwnerLife,
    Check::Session,
    Check::SessionIdentity,
    Check::ForgetsChunks,
    Check::ForgetsPlaces,
    Check::Lock,
    Check::UnlockLast,
    Check::PartnerFirst,
    Check::ChildThere,
    Check::UnpublishedFirst,
    Check::PublishedLast,
    Check::SpeculatedPartner,
];

/// Checks that no seed finds missing, with the tests of the index that do. They matter where a READ lasts as long as
/// several writes of its leaf, or a WRITE of a node is cut short. They also matter where a client dies between two
/// WRITEs of one kind of split.
const OF_THE_INDEX: &[(Check, &str)] = &[
    (Check::KeyTwice, "structures/blink/tests/it/damage.rs"),
    (Check::VersionIsNew, "structures/blink/tests/it/nodes.rs: a_version_is_one_that_no_line_has"),
    (
        Check::VersionGoesOn,
        "structures/blink/tests/it/merges.rs: a_node_in_the_memory_of_one_that_was_merged_away_has_the_next_version",
    ),
    (
        Check::FreshElsewhere,
        "structures/blink/tests/it/merges.rs: a_split_onto_another_server_takes_memory_that_was_no_node",
    ),
    (Check::RecordChecksum, "remote-memory/src/record.rs: a_new_middle_in_an_old_record_is_noticed"),
    // A place is of another tree, or of memory that is used again between two READs of one chain: nothing here is so fast.
    (
        Check::SpeculatedTree,
        "structures/blink/tests/it/speculation.rs: places_of_a_former_tree_are_not_asked_for",
    ),
    (
        Check::SpeculatedLeaf,
        "structures/blink/tests/it/speculation.rs: memory_that_is_no_leaf_of_the_tree_is_noticed",
    ),
    (
        Check::SpeculatedVersion,
        "structures/blink/tests/it/speculation.rs: a_header_of_another_leaf_in_the_same_memory_is_noticed",
    ),
];

/// Makes a scenario in which a check matters more often; false where it cannot.
fn aim(check: Check, scenario: &mut Scenario) -> bool {
    let out_of_line = scenario.config.values() == ValueLayout::OutOfLine;
    match check {
        Check::RecordVersion | Check::RecordVersionGoesOn => {
            // Few keys, values of one size, and clients that die between a record and the entry that leads to it.
            (scenario.hot, scenario.keys, scenario.longest, scenario.scans) = (0.8, 4, 8, 0);
            (scenario.deadly, scenario.servers, scenario.round_robin, scenario.ending) = (95, 1, 0, 0);
            out_of_line
        }
        Check::SpeculatedFree
        | Check::SpeculatedChecksum
        | Check::SpeculatedKey
        | Check::SpeculatedEntryVersion => {
            // Places of all keys, and few keys, so that each is changed behind the back of its place.
            (scenario.entries, scenario.hot, scenario.scans) = (Some(4_000), 0.3, 0);
            !out_of_line
        }
        _ => true,
    }
}

fn first_failure(check: Check, most: u64) -> Option<SeedFailure> {
    let campaign = Campaign { most_failures: 1, ..Campaign::default() };
    let report = campaign.run(Seeds::fixed(most), |seed| {
        let mut scenario = Scenario::reading(seed);
        if !aim(check, &mut scenario) {
            return Ok(Outcome::default());
        }
        // A seed that fails anyway says nothing.
        let run = || scenario.run();
        check.without(run).or_else(|why| run().map_or(Ok(Outcome::default()), |_| Err(why)))
    });
    report.failures.into_iter().next()
}

#[test]
fn each_check_that_is_not_made_is_found() {
    let mut passed = Vec::new();
    // Trees are no structure over several servers: `structures/race/tests/table/damage.rs` and that of `dolphin`,
    // and `remote-memory/src/members.rs`. What a word leads to on another server's disk is in `sim/src/power/tests.rs`.
    let of_others = [Check::MembersEverywhere, Check::Awaited, Check::Rests, Check::SyncedFirst];
    let is_aside = |check: &Check| {
        OF_WRITERS.contains(check)
            || OF_BUCKETS.contains(check)
            || OF_THE_INDEX.iter().any(|(name, _)| name == check)
            || of_others.contains(check)
    };
    for &check in Check::ALL.iter().filter(|check| !is_aside(check)) {
        let second_line = SECOND_LINE.iter().find(|(name, _)| *name == check);
        match (first_failure(check, if second_line.is_some() { ENOUGH } else { MOST }), second_line) {
            (Some(SeedFailure { seed, why, .. }), None) => {
                // Shown with --nocapture, and where the test fails.
                eprintln!("{check:?}: seed {seed}: {}", why.lines().next().unwrap_or_default());
            }
            (None, Some(_)) => {}
            (None, None) => passed.push(check),
            (Some(failure), Some((_, why))) => {
                panic!("{check:?} decides something, although {why}: {failure}")
            }
        }
    }
    assert!(passed.is_empty(), "without one of these {MOST} seeds pass: {passed:?}");
}
