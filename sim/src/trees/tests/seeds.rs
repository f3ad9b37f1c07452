//! All seeds pass, and they are not tame.

use crate::seeds::{Campaign, Seeds};
use crate::trees::{Outcome, Scenario};

/// Seeds of each test run; `fatbtree simulate trees` runs others.
const SEEDS: u64 = 2_000;

fn run(seeds: Seeds) -> Outcome {
    let campaign = Campaign { command: "fatbtree simulate trees --seed", ..Campaign::default() };
    let report = campaign.run(seeds, |seed| Scenario::from_seed(seed).run());
    report.into_result().unwrap_or_else(|report| panic!("{report}"))
}

#[test]
fn every_answer_is_explained_and_all_succeed_in_the_end() {
    let outcome = run(Seeds::fixed(SEEDS));
    eprintln!("{outcome:#?}");
}

/// What makes the seeds worth running happens in them.
#[test]
fn the_seeds_are_rough() {
    let seeds = 300;
    let Outcome {
        lookups,
        found,
        failed,
        answered,
        unknown,
        changes,
        torn_superblocks,
        round_trips,
        retries,
        restarts,
        siblings,
        landed,
        records,
        broken_connections,
        refused_index_reads,
        deaths,
        overlapped,
    } = run(Seeds::fixed(seeds));
    assert!(lookups > 300 * seeds && found > lookups / 3 && failed < lookups / 50);
    assert!(answered > lookups && unknown > seeds && changes > 50 * seeds);
    assert!(torn_superblocks > seeds / 10 && deaths > 3 * seeds);
    assert!(round_trips > 2 * lookups && landed > lookups / 4 && records > lookups / 50);
    assert!(retries > 5 * seeds && restarts > 50 * seeds && siblings > 50 * seeds);
    assert!(broken_connections > 5 * seeds && refused_index_reads > seeds / 3);
    assert!(overlapped > 2 * seeds);
}

#[test]
fn a_seed_replays_itself() {
    for seed in 0..20 {
        let run = || Scenario::from_seed(seed).run().map_err(|error| error.to_string());
        assert_eq!(run(), run());
    }
}
