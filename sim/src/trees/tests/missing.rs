//! The seeds find what is missing: each check that is not made, each rule that is not kept.

use fatbtree_index::Check;

use crate::seeds::{Campaign, Report, Seeds};
use crate::trees::{Outcome, Rule, Scenario};

fn first_failure(
    most: u64,
    scenario: impl Fn(u64) -> Result<Outcome, crate::trees::ScenarioError> + Sync,
) -> Option<(u64, String)> {
    let campaign = Campaign { most_failures: 1, ..Campaign::default() };
    let report: Report<Outcome> = campaign.run(Seeds::fixed(most), scenario);
    let failure = report.failures.into_iter().next()?;
    Some((failure.seed, failure.why))
}

fn most() -> u64 {
    std::env::var("FATBTREE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(300)
}

#[test]
fn each_check() {
    for &check in Check::ALL {
        let found = first_failure(most(), |seed| check.without(|| Scenario::from_seed(seed).run()));
        let found = found.map(|(seed, why)| (seed, why.lines().next().unwrap_or_default().to_owned()));
        eprintln!("{check:?}: {found:?}");
    }
}

#[test]
fn each_rule() {
    for &rule in Rule::ALL {
        let found = first_failure(most(), |seed| Scenario::from_seed(seed).breaking(rule).run());
        let found = found.map(|(seed, why)| (seed, why.lines().next().unwrap_or_default().to_owned()));
        eprintln!("{rule:?}: {found:?}");
    }
}
