//! All seeds pass.

use crate::seeds::{Campaign, Seeds};
use crate::trees::{Outcome, Scenario};

fn run(seeds: Seeds) -> Outcome {
    let campaign = Campaign { command: "fatbtree simulate --trees --seed", ..Campaign::default() };
    let report = campaign.run(seeds, |seed| Scenario::from_seed(seed).run());
    report.into_result().unwrap_or_else(|report| panic!("{report}"))
}

fn count(default: u64) -> u64 {
    std::env::var("FATBTREE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn fixed_seeds() {
    let started = std::time::Instant::now();
    let n = count(200);
    let outcome = run(Seeds::fixed(n));
    eprintln!("{outcome:#?}\n{:?} a seed", started.elapsed() / n as u32);
}
