//! All seeds pass, and they are not tame.

use fatbtree_remote_memory::Keys;

use crate::hash::{Aim, Outcome, Scenario};
use crate::seeds::{Campaign, Seeds};

/// Seeds of each test run; `fatbtree simulate hash` runs others.
const SEEDS: u64 = 500;

fn run(seeds: Seeds) -> Outcome {
    let campaign = Campaign { command: "fatbtree simulate hash --seed", ..Campaign::default() };
    let report = campaign.run(seeds, |seed| Scenario::from_seed(seed).run());
    report.into_result().unwrap_or_else(|report| panic!("{report}"))
}

/// Every answer is explained, and the events that make the seeds worth running happen in them.
#[test]
fn the_seeds_pass_and_are_rough() {
    let total = run(Seeds::fixed(SEEDS));
    eprintln!("{total:#?}");
    assert!(
        total.answered > 50 * SEEDS && total.unknown > 0 && total.refused < total.answered / 100,
        "{total:?}"
    );
    assert!(total.deaths > SEEDS && total.restarts > SEEDS / 4 && total.lapsed > SEEDS, "{total:?}");
    assert!(total.former > SEEDS && total.tentative > 0 && total.stale_entries > 0, "{total:?}");
    assert!(total.hits > 3 * SEEDS && total.reclaimed > SEEDS, "{total:?}");
}

/// A scenario with this aim; each third one has keys of bytes.
fn aimed(seed: u64, aim: Aim) -> Scenario {
    let scenario = Scenario::aimed(seed, aim);
    if seed.is_multiple_of(3) { scenario.of_bytes() } else { scenario }
}

/// Exports beside clients and servers that die are explained as scans.
#[test]
fn seeds_of_exports_pass() {
    let campaign = Campaign::default();
    let report = campaign.run(Seeds::fixed(SEEDS), |seed| aimed(seed, Aim::Exports).run());
    let total = report.into_result().unwrap_or_else(|report| panic!("{report}"));
    eprintln!("{total:#?}");
    assert!(total.exports > SEEDS && total.former > SEEDS && total.deaths > SEEDS / 2, "{total:?}");
}

/// Compare-and-swaps of one value have one winner, beside clients and servers that die.
#[test]
fn seeds_of_swaps_pass() {
    let campaign = Campaign::default();
    let report = campaign.run(Seeds::fixed(SEEDS), |seed| aimed(seed, Aim::Swaps).run());
    let total = report.into_result().unwrap_or_else(|report| panic!("{report}"));
    eprintln!("{total:#?}");
    assert!(total.swaps > 10 * SEEDS && total.deaths > SEEDS / 2, "{total:?}");
}

#[test]
fn a_seed_replays_itself() {
    for seed in 0..10 {
        assert_eq!(Scenario::from_seed(seed).run(), Scenario::from_seed(seed).run());
    }
    assert_ne!(Scenario::aimed(1, Aim::All), Scenario::aimed(1, Aim::Splits));
    let of_bytes = (0..SEEDS).filter(|&seed| Scenario::from_seed(seed).kind == Keys::Bytes).count();
    assert!(of_bytes as u64 > SEEDS / 4, "{of_bytes}");
}
