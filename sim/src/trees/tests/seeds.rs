//! All seeds pass, and they are not tame.

use crate::seeds::{Campaign, Seeds};
use crate::writers::{Outcome, Scenario};

/// Seeds of each test run; `fatbtree simulate trees` runs others.
const SEEDS: u64 = 2_000;

fn run(seeds: Seeds) -> Outcome {
    let campaign = Campaign { command: "fatbtree simulate trees --seed", ..Campaign::default() };
    let report = campaign.run(seeds, |seed| Scenario::reading(seed).run());
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
    let total = run(Seeds::fixed(seeds));
    assert!(total.lookups > 300 * seeds && total.found > total.lookups / 3, "{total:?}");
    assert!(total.failed < total.lookups / 50 && total.answered > total.lookups, "{total:?}");
    assert!(total.unknown > seeds && total.applied > 50 * seeds && total.torn_superblocks > seeds / 10);
    assert!(total.deaths > seeds && total.landed > total.lookups / 4, "{total:?}");
    assert!(total.round_trips > 2 * total.lookups && total.records > total.lookups / 50, "{total:?}");
    assert!(total.retries > 5 * seeds && total.walks_again > 50 * seeds, "{total:?}");
    assert!(total.siblings > 50 * seeds && total.overlapped > 2 * seeds, "{total:?}");
    assert!(total.broken_connections > 5 * seeds && total.refused_index_reads > seeds / 3, "{total:?}");
}

#[test]
fn a_seed_replays_itself() {
    for seed in 0..20 {
        let run = || Scenario::reading(seed).run().map_err(|error| error.to_string());
        assert_eq!(run(), run());
    }
}
