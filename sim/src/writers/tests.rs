//! All seeds pass; and where a safety mechanism is missing, some do not.

use fatbtree_blink::{Check, Contention, TreeConfig, ValueLayout, layers};
use fatbtree_verbs::time::Duration;

use crate::seeds::{Campaign, SeedFailure, Seeds};
use crate::world::Rkeys;
use crate::writers::{Outcome, Scenario};

/// Seeds of each test run; `fatbtree simulate writes` runs others.
const SEEDS: u64 = 2_000;
/// Seeds with values by their length; `fatbtree simulate short-values` runs others.
const BY_LENGTH: u64 = 1_000;
/// Seeds with leaves of buckets; `fatbtree simulate buckets` runs others.
const BUCKETS: u64 = 1_000;
/// Seeds with keys of bytes; `fatbtree simulate byte-keys` runs others.
const BYTE_KEYS: u64 = 1_000;
/// Seeds with a hostile writer; `fatbtree simulate hostile-writes` runs others.
const HOSTILE: u64 = 400;

/// Runs so many seeds of a simulation, each of which must pass.
fn all_pass(simulation: &str, seeds: u64, scenario: fn(u64) -> Scenario) -> Outcome {
    let command = &format!("fatbtree simulate {simulation} --seed");
    let campaign = Campaign { command, most_failures: 3, ..Campaign::default() };
    let report = campaign.run(Seeds::fixed(seeds), |seed| scenario(seed).run());
    report.into_result().unwrap_or_else(|failures| panic!("{failures}"))
}

#[test]
fn every_answer_is_explained_and_all_succeed_in_the_end() {
    let total = all_pass("writes", SEEDS, Scenario::from_seed);
    assert!(total.applied > 100_000 && total.broken_connections > 1_000 && total.levels > 3_000);
    assert!(total.deaths > 1_000 && total.inherited_locks > 1_000 && total.splits > 10_000);
    assert!(total.merges > 300 && total.settled > 50 && total.reused > 4_000, "{total:?}");
    assert!(total.splits_elsewhere > 2_000 && total.merges_below_others > 30, "{total:?}");
    assert!(total.scans > 10_000 && total.scanned > 100_000, "{total:?}");
    assert!(total.unknown * 4 < total.answered, "{total:?}");
    assert!(total.records > 100 && total.stale_records > 100, "{total:?}");
    assert!(total.restarts > 500 && total.lost_trees > 100 && total.loads > 500, "{total:?}");
    assert!(total.second_restarts > 100, "{total:?}");
    assert!(total.cache_hits > 10_000 && total.stale_starts > 1_000, "{total:?}");
    assert!(total.speculated > 5_000 && total.stale_places > 200, "{total:?}");
}

#[test]
fn values_grow_into_records_and_shrink_into_entries() {
    let total = all_pass("short-values", BY_LENGTH, Scenario::by_length);
    assert!(total.records > 200 && total.stale_records > 100, "{total:?}");
    assert!(total.speculated > 2_000 && total.stale_places > 300, "{total:?}");
}

#[test]
fn lookups_of_buckets_are_explained() {
    let total = all_pass("buckets", BUCKETS, Scenario::buckets);
    assert!(total.landed > 5_000 && total.splits > 2_000 && total.merges > 100, "{total:?}");
}

#[test]
fn keys_of_bytes_begin_alike() {
    let total = all_pass("byte-keys", BYTE_KEYS, Scenario::byte_keys);
    assert!(total.layers_created > 4 * BYTE_KEYS && total.layers_removed > BYTE_KEYS / 2, "{total:?}");
}

#[test]
fn a_seed_replays_itself() {
    for seed in 0..10 {
        assert_eq!(Scenario::from_seed(seed).run(), Scenario::from_seed(seed).run());
        assert_eq!(Scenario::hostile(seed).run(), Scenario::hostile(seed).run());
    }
}

/// Answers are not checked there: see [`hostile`](super::hostile).
#[test]
fn operations_on_trees_that_a_hostile_writer_damages_end() {
    let total = all_pass("hostile-writes", HOSTILE, Scenario::hostile);
    // Shown with --nocapture.
    eprintln!("{total:#?}");
    assert!(total.strikes > 5 * HOSTILE && total.errors > HOSTILE, "{total:?}");
    assert!(total.refused_trees > HOSTILE / 20 && total.restarts > HOSTILE / 2, "{total:?}");
    assert!(total.snapshots > HOSTILE && total.located > HOSTILE, "{total:?}");
}

/// Seeds among which a failure must be.
const MOST: u64 = 4_000;

/// Mechanisms that keep writers and their readers safe. The seeds find each one missing. Readers of
/// [`trees`](crate::trees) find missing checks of nodes, too, and sooner.
const MECHANISMS: &[Check] = &[
    Check::HighFence,
    Check::LowFence,
    Check::Free,
    Check::Lock,
    Check::UnlockLast,
    Check::Partner,
    Check::PartnerFirst,
    Check::ChildThere,
    Check::OwnerLife,
    Check::Session,
    Check::RecordKey,
    Check::Published,
    Check::UnpublishedFirst,
    Check::PublishedLast,
];

/// Faults that this code once had, by what keeps each away: a seed finds each where it is switched back on.
const FAULTS: &[(&str, Check)] = &[
    ("after a load a record is written to a place of the former tree", Check::ForgetsPlaces),
    ("after a load a node is written to the rest of a chunk of the former tree", Check::ForgetsChunks),
    ("the session with a server that was started anew is taken for the one before", Check::SessionIdentity),
    ("siblings that lead in a circle are followed without end", Check::SiblingChain),
];

/// Shape of a tree like `config`, with values out of line.
fn out_of_line(config: &TreeConfig) -> TreeConfig {
    let (fan_out, leaf, integrity) = (config.fan_out(), config.leaf_bytes(), config.integrity());
    let out_of_line = TreeConfig::with_integrity(fan_out, leaf, ValueLayout::OutOfLine, integrity);
    out_of_line.expect("entries with pointers are among the smaller ones")
}

/// What a bucket proves of itself. Seeds of lookups in leaves of buckets find each missing.
pub(crate) const OF_BUCKETS: &[Check] = &[
    Check::BucketLine,
    Check::BucketVersion,
    Check::BucketChecksum,
    Check::BucketFree,
    Check::BucketPartner,
    Check::BucketRange,
];

/// Makes a scenario in which the mechanism matters more often.
fn aimed(mechanism: Check, seed: u64) -> Scenario {
    if OF_BUCKETS.contains(&mechanism) {
        // Readers, and no hostile writer.
        return aimed_at_bucket(mechanism, Scenario::buckets(2 * seed));
    }
    let mut scenario = Scenario::from_seed(seed);
    // Servers that die hide what clients do that die.
    (scenario.restarting, scenario.loading) = (0, 0);
    // So do requests that wait for each other: fewer are half done when a client dies.
    scenario.contention = Contention::SHERMAN;
    match mechanism {
        // Splits and merges that are left half done.
        Check::Partner | Check::PartnerFirst => {
            (scenario.deadly, scenario.deletes) = (95, 40);
            // A split onto another server has no partner.
            (scenario.servers, scenario.round_robin, scenario.ending) = (1, 0, 0);
        }
        // Sessions that end under clients which sleep for a moment.
        Check::Session => {
            (scenario.deadly, scenario.lease, scenario.calm) =
                (0, Duration::from_micros(300), Duration::from_micros(100));
        }
        // Servers that come back with nothing but the same numbers, and trees that take the place of others.
        Check::SessionIdentity => {
            (scenario.restarting, scenario.forgetful) = (40, 50);
            (scenario.strangers, scenario.rkeys) = (0, Rkeys::Lowest);
            (scenario.deadly, scenario.servers, scenario.round_robin, scenario.ending) = (0, 1, 0, 0);
        }
        Check::ForgetsChunks | Check::ForgetsPlaces => {
            if mechanism == Check::ForgetsPlaces {
                scenario.config = out_of_line(&scenario.config);
            }
            scenario.loading = 40;
            (scenario.deadly, scenario.servers, scenario.round_robin, scenario.ending) = (0, 1, 0, 0);
        }
        // Circles, which honest clients do not make.
        Check::SiblingChain => {
            scenario = Scenario::hostile(seed);
            // A server would walk on in no virtual time at all: only clients are to meet them.
            (scenario.asked, scenario.restarting, scenario.deadly) = (false, 0, 0);
        }
        // Few keys, whose records take the places of one another, and clients that die between two WRITEs.
        Check::UnpublishedFirst | Check::PublishedLast => {
            scenario.config = out_of_line(&scenario.config);
            (scenario.keys, scenario.longest, scenario.deletes, scenario.scans) = (4, 8, 10, 0);
            (scenario.deadly, scenario.servers, scenario.round_robin, scenario.ending) = (95, 1, 0, 0);
        }
        _ => {}
    }
    scenario
}

/// The same for lookups of buckets.
fn aimed_at_bucket(mechanism: Check, mut scenario: Scenario) -> Scenario {
    (scenario.restarting, scenario.loading) = (0, 0);
    if mechanism == Check::BucketPartner {
        // Splits and merges that are left half done.
        (scenario.deadly, scenario.deletes) = (95, 40);
        (scenario.servers, scenario.round_robin, scenario.ending) = (1, 0, 0);
    }
    scenario
}

/// The first seed that fails without a mechanism, and passes with it.
fn first_that_finds(mechanism: Check) -> Option<SeedFailure> {
    let campaign = Campaign { most_failures: 1, ..Campaign::default() };
    let report = campaign.run(Seeds::fixed(MOST), |seed| {
        let run = || aimed(mechanism, seed).run();
        // A seed that fails anyway says nothing.
        mechanism.without(run).or_else(|why| run().map_or(Ok(Outcome::default()), |_| Err(why)))
    });
    report.failures.into_iter().next()
}

/// Shown with --nocapture, and where the test fails.
fn tell(what: &dyn std::fmt::Debug, failure: &SeedFailure) {
    eprintln!("{what:?}: seed {}: {}", failure.seed, failure.why.lines().next().unwrap_or_default());
}

#[test]
fn each_mechanism_that_is_missing_is_found() {
    let mut passed = Vec::new();
    for mechanism in MECHANISMS.iter().chain(OF_BUCKETS) {
        match first_that_finds(*mechanism) {
            Some(failure) => tell(mechanism, &failure),
            None => passed.push(mechanism),
        }
    }
    assert!(passed.is_empty(), "without one of these {MOST} seeds pass: {passed:?}");
}

/// Checks of layers that no seed finds missing, with the reason or the test that does.
const OF_LAYERS: &[(layers::Check, &str)] = &[
    (
        layers::Check::Head,
        "structures/blink/src/layers/mod.rs: a_block_is_the_layer_of_one_entry_and_of_no_other",
    ),
    (
        layers::Check::Depth,
        "structures/blink/src/layers/mod.rs: a_block_is_the_layer_of_one_entry_and_of_no_other",
    ),
    (
        layers::Check::Unborn,
        "a client must be about to write to a layer that goes, and sleep until the same layer comes again in the same place and the client that \
         brings it dies between two of three WRITEs of one chain",
    ),
];

/// Makes a scenario with keys of bytes in which a check of layers matters more often.
fn aimed_at_layers(check: layers::Check, seed: u64) -> Scenario {
    // Without a hostile writer.
    let mut scenario = Scenario::byte_keys(2 * seed);
    // Groups of all kinds, or few keys.
    let keys = if check == layers::Check::Ended { 12 } else { 6 };
    (scenario.restarting, scenario.keys, scenario.scans) = (0, keys, 5);
    (scenario.servers, scenario.round_robin, scenario.ending) = (1, 0, 0);
    scenario.contention = Contention::SHERMAN;
    scenario.deadly = match check {
        // Layers whose coming and going is left half done.
        layers::Check::Unborn | layers::Check::Dead | layers::Check::Settled => 95,
        _ => 0,
    };
    scenario
}

#[test]
fn each_check_of_layers_that_is_not_made_is_found() {
    let mut passed = Vec::new();
    let is_aside = |check: &layers::Check| OF_LAYERS.iter().any(|(name, _)| name == check);
    for &check in layers::Check::ALL.iter().filter(|check| !is_aside(check)) {
        let campaign = Campaign { most_failures: 1, ..Campaign::default() };
        let report = campaign.run(Seeds::fixed(MOST), |seed| {
            let run = || aimed_at_layers(check, seed).run();
            check.without(run).or_else(|why| run().map_or(Ok(Outcome::default()), |_| Err(why)))
        });
        match report.failures.into_iter().next() {
            Some(failure) => tell(&check, &failure),
            None => passed.push(check),
        }
    }
    assert!(passed.is_empty(), "without one of these {MOST} seeds pass: {passed:?}");
}

#[test]
fn each_fault_of_the_past_is_found_where_it_comes_back() {
    let mut passed = Vec::new();
    for fault in FAULTS {
        match first_that_finds(fault.1) {
            Some(failure) => tell(fault, &failure),
            None => passed.push(fault),
        }
    }
    assert!(passed.is_empty(), "{MOST} seeds pass with these faults: {passed:?}");
}
