//! The seeds find what is missing: each check that is not made, each rule that is not kept.

use fatbtree_blink::{Check, Integrity, ValueLayout};

use crate::seeds::{Campaign, SeedFailure, Seeds};
use crate::trees::{Outcome, Rule, Scenario, ScenarioError};

/// Seeds among which a failure must be.
const MOST: u64 = 3_000;
/// Seeds among which none is where none can be.
const ENOUGH: u64 = 300;

/// Checks that decide nothing in a lookup, and why. They stay as a second line: they make [`Node`](fatbtree_blink::node::Node)'s
/// view of any bytes a view of a node, also for those who read nodes otherwise (snapshots).
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
         itself; it is who writes the node again that must not trust it",
    ),
    (
        Check::LevelOrder,
        "a lookup goes down, and not along a level; servers do (snapshots, the check at the start), and have another bound beside this one",
    ),
];

/// Checks that only those who write make, or readers of what writers leave behind: [`writers`](crate::writers) finds them missing.
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
];

/// Checks that matter where a READ lasts as long as several writes of its leaf, which no seed brings about; and the tests of the index that
/// find them missing.
const OF_THE_INDEX: &[(Check, &str)] = &[
    (Check::KeyTwice, "index/tests/damage.rs"),
    (
        Check::VersionGoesOn,
        "index/tests/merges.rs: a_node_in_the_memory_of_one_that_was_merged_away_has_the_next_version",
    ),
];

fn first_failure(
    most: u64,
    run: impl Fn(Scenario) -> Result<Outcome, ScenarioError> + Sync,
) -> Option<SeedFailure> {
    let campaign = Campaign { most_failures: 1, ..Campaign::default() };
    let report = campaign.run(Seeds::fixed(most), |seed| run(Scenario::from_seed(seed)));
    report.failures.into_iter().next()
}

fn tell(what: &dyn std::fmt::Debug, failure: &SeedFailure) {
    let why = failure.why.lines().next().unwrap_or_default();
    // Shown with --nocapture, and where the test fails.
    eprintln!("{what:?}: seed {}: {why}", failure.seed);
}

#[test]
fn each_check_that_is_not_made_is_found() {
    let of_the_index = |check: &Check| OF_THE_INDEX.iter().any(|(name, _)| name == check);
    for &check in Check::ALL.iter().filter(|check| !OF_WRITERS.contains(check) && !of_the_index(check)) {
        let second_line = SECOND_LINE.iter().find(|(name, _)| *name == check);
        let most = if second_line.is_some() { ENOUGH } else { MOST };
        let failure = first_failure(most, |mut scenario| {
            // It shows where places of records are used again for the same key.
            if check == Check::RecordVersion && !aim(Rule::RecordVersionsGoOn, &mut scenario) {
                return Ok(Outcome::default());
            }
            check.without(|| scenario.run())
        });
        match (failure, second_line) {
            (Some(failure), None) => tell(&check, &failure),
            (None, Some(_)) => {}
            (None, None) => panic!("without the check {check:?} {most} seeds pass"),
            (Some(failure), Some((_, why))) => {
                panic!("{check:?} decides something, although {why}: {failure}")
            }
        }
    }
}

/// Makes a scenario in which the rule matters; false where it cannot.
fn aim(rule: Rule, scenario: &mut Scenario) -> bool {
    let out_of_line = scenario.config.values() == ValueLayout::OutOfLine;
    let lines = scenario.config.integrity() == Integrity::LineVersions;
    match rule {
        Rule::RecordVersionsGoOn => {
            // Few keys, values of one length, and time between a record and the entry that leads to it.
            (scenario.hot, scenario.hesitant) = (0.8, 0.3);
            scenario.lengths.truncate(1);
            out_of_line
        }
        Rule::NothingEarly => {
            // Memory that is used again soon, and time between the halves of a split.
            (scenario.hesitant, scenario.nodes) = (1.0, 20);
            scenario.weights = [8, 6, 0, 6, 2, 0];
            (scenario.hot, scenario.littered, scenario.daring) = (0.0, 0, 0.0);
            true
        }
        Rule::RecordsStayRecords => {
            (scenario.hot, scenario.lengths) = (0.8, vec![8]);
            out_of_line && scenario.config.fan_out() > 3 && lines
        }
        _ => true,
    }
}

#[test]
fn each_rule_that_is_not_kept_is_found() {
    for &rule in Rule::ALL {
        let failure = first_failure(MOST, |mut scenario| {
            if aim(rule, &mut scenario) { scenario.breaking(rule).run() } else { Ok(Outcome::default()) }
        });
        match failure {
            Some(failure) => tell(&rule, &failure),
            None => panic!("where {rule:?} is broken {MOST} seeds pass"),
        }
    }
}
