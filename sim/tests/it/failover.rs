//! Any one cable or switch dead at any moment: 0 wrong, 0 failed, and all lookups flow again within a virtual second.
//!
//! `fatbtree simulate failover` runs other seeds.

use fatbtree_sim::failover::{Outcome, Scenario, Without};
use fatbtree_sim::seeds::{Campaign, Report, Seeds};

/// Seeds of a test run.
const SEEDS: u64 = 100;

fn run(seeds: Seeds, without: Without) -> Report<Outcome> {
    let command = "fatbtree simulate failover --seed";
    let campaign = Campaign { command, ..Campaign::default() };
    let report = campaign.run(seeds, |seed| Scenario::from_seed(seed).without(without).run());
    println!("{:?}", report.total);
    report
}

#[test]
fn lookups_go_round_whatever_dies() {
    let report = run(Seeds::fixed(SEEDS), Without::default());
    let total = report.into_result().unwrap_or_else(|failures| panic!("{failures}"));
    assert_eq!((total.wrong, total.failed), (0, 0), "{total:?}");
    assert!(total.stood_still_ms <= 1_000 && total.held_up_ms <= 1_000, "{total:?}");
    // The seeds must have been rough.
    let faults = total.faults.iter().all(|count| *count > 10);
    let rough = faults && total.during_reload > 5 && total.broken > 100 && total.stood_still_ms > 300;
    assert!(rough, "too calm: {total:?}");
}

/// A route that waits for the rest of a large plan comes too late: this is the seed that has shown it.
#[test]
fn routes_do_not_wait_for_a_plan() {
    let report = run(Seeds::one(152), Without::default());
    report.into_result().unwrap_or_else(|failures| panic!("{failures}"));
}

/// Without reports of dead cables and switches, the controller reroutes nothing.
#[test]
fn it_takes_the_monitor() {
    let report = run(Seeds::fixed(24), Without { monitor: true, ..Without::default() });
    assert!(report.failures.len() >= 3, "{report}");
    let is_held_up = |failure: &&fatbtree_sim::seeds::SeedFailure| failure.why.contains("held up");
    assert!(report.failures.iter().all(|failure| is_held_up(&failure)), "{report}");
}

#[test]
fn a_seed_replays_itself() {
    for seed in [3, 7, 19] {
        let once = Scenario::from_seed(seed).run().unwrap();
        assert_eq!(once, Scenario::from_seed(seed).run().unwrap(), "seed {seed} gave two different runs");
    }
}

/// Without any fault: what it costs that index reads and ordinary READs of a queue pair go different ways.
#[test]
#[ignore = "figures"]
fn what_overtaking_costs() {
    let calm = Without { fault: true, ..Without::default() };
    for without in [calm, Without { walks: true, ..calm }] {
        run(Seeds::fixed(SEEDS), without).into_result().unwrap_or_else(|failures| panic!("{failures}"));
    }
}
