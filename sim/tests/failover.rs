//! Any one cable or switch dead at any moment: 0 wrong, 0 failed, and all lookups flow again within a virtual second.
//!
//! `FATBTREE_SEEDS=1000 cargo test --release -p fatbtree-sim --test failover -- --nocapture` runs so many seeds.

#![allow(clippy::print_stdout, reason = "figures, for whoever asks")]

use fatbtree_sim::failover::{Outcome, Scenario, Without};
use fatbtree_sim::seeds::{Campaign, Seeds};

/// Seeds of a test run; the variable `FATBTREE_SEEDS` sets another number.
const SEEDS: u64 = 24;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

fn seeds() -> Seeds {
    match from_environment("FATBTREE_SEED") {
        Some(seed) => Seeds::one(seed),
        None => Seeds::fixed(from_environment("FATBTREE_SEEDS").unwrap_or(SEEDS)),
    }
}

fn run(seeds: Seeds, run: impl Fn(u64) -> Scenario + Sync) -> Outcome {
    let command = "cargo test -p fatbtree-sim --test failover -- --nocapture # with FATBTREE_SEED =";
    let report = Campaign { command, ..Campaign::default() }.run(seeds, |seed| run(seed).run());
    println!("{:#?}", report.total);
    report.into_result().unwrap_or_else(|failures| panic!("{failures}"))
}

#[test]
fn lookups_go_round_whatever_dies() {
    let outcome = run(seeds(), Scenario::from_seed);
    assert_eq!((outcome.wrong, outcome.failed), (0, 0));
}

/// Without any fault: what it costs that index reads and ordinary READs of a queue pair go different ways.
#[test]
fn what_overtaking_costs() {
    let calm = Without { fault: true, ..Without::default() };
    run(seeds(), |seed| Scenario::from_seed(seed).without(calm));
    run(seeds(), |seed| Scenario::from_seed(seed).without(Without { walks: true, ..calm }));
}
