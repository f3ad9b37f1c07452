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

/// The events that make the seeds worth running happen in them.
#[test]
fn the_seeds_are_rough() {
    let seeds = 300;
    let total = run(Seeds::fixed(seeds));
    assert!(total.lookups > 200 * seeds && total.found > total.lookups / 3, "{total:?}");
    assert!(total.failed < total.lookups / 50 && total.answered > total.lookups, "{total:?}");
    assert!(total.unknown > 5 * seeds && total.applied > 50 * seeds, "{total:?}");
    assert!(total.torn_superblocks > seeds / 10 && total.deaths > 2 * seeds, "{total:?}");
    assert!(total.landed > total.lookups / 4 && total.records > seeds / 3, "{total:?}");
    assert!(total.retries > seeds / 2 && total.walks_again > 10 * seeds, "{total:?}");
    assert!(total.siblings > 30 * seeds && total.overlapped > 5 * seeds, "{total:?}");
    assert!(total.speculated > 10 * seeds && total.stale_places > seeds / 2, "{total:?}");
    assert!(total.broken_connections > 5 * seeds && total.refused_index_reads > seeds / 3, "{total:?}");
}

#[test]
fn a_seed_replays_itself() {
    for seed in 0..20 {
        let run = || Scenario::reading(seed).run().map_err(|error| error.to_string());
        assert_eq!(run(), run());
    }
}
