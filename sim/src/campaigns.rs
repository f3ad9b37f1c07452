//! All simulations that take a seed, by name: what `fatbtree simulate` runs, in CI, at night, and to replay a seed.
//!
//! ```
//! use fatbtree_sim::campaigns;
//! use fatbtree_sim::seeds::Seeds;
//!
//! let trees = campaigns::find("trees").expect("it is listed");
//! let report = trees.run(Seeds::from(7..9), &|| {});
//! assert_eq!(report.passed, 2);
//! assert!(report.total["applied"].as_u64() > Some(0));
//! ```

use std::fmt::Display;
use std::ops::{AddAssign, Range};

use serde::Serialize;
use serde_json::Value;

use crate::seeds::{Campaign, Report, Seeds};
use crate::{Scenario, dolphin, failover, hash, power, queries, rivals, threads, transactions, writers};

/// A kind of simulation, as `fatbtree simulate` names it.
#[derive(Debug)]
pub struct Simulation {
    /// Name on the command line.
    pub name: &'static str,
    /// Content, in one line.
    pub about: &'static str,
    /// Seeds that CI runs: none of those that `cargo test` runs.
    pub ci: Range<u64>,
    run: fn(&Campaign<'_>, Seeds) -> Report<Value>,
}

/// All simulations that take a seed.
pub static ALL: [Simulation; 17] = [
    Simulation {
        name: "reads",
        about: "the whole path frame by frame: switches, plans, reloads; frames are lost, doubled, late and damaged",
        ci: 1_000..2_000,
        run: |campaign, seeds| totals(campaign, seeds, |seed| Scenario::from_seed(seed).run()),
    },
    Simulation {
        name: "trees",
        about: "readers of trees that clients write: torn memory, litter beside the trees, machines that die and freeze, stale caches",
        ci: 2_000..5_000,
        run: |campaign, seeds| totals(campaign, seeds, |seed| writers::Scenario::reading(seed).run()),
    },
    Simulation {
        name: "writes",
        about: "many writers of one tree; clients and memory servers die and start anew, trees are loaded meanwhile",
        ci: 2_000..5_000,
        run: |campaign, seeds| totals(campaign, seeds, |seed| writers::Scenario::from_seed(seed).run()),
    },
    Simulation {
        name: "short-values",
        about: "readers and writers of trees that keep short values in entries and longer ones in records: values grow and shrink",
        ci: 1_000..4_000,
        run: |campaign, seeds| totals(campaign, seeds, |seed| writers::Scenario::by_length(seed).run()),
    },
    Simulation {
        name: "buckets",
        about: "readers and writers of trees with leaves of buckets, whose slices switches lead to",
        ci: 1_000..4_000,
        run: |campaign, seeds| totals(campaign, seeds, |seed| writers::Scenario::buckets(seed).run()),
    },
    Simulation {
        name: "byte-keys",
        about: "readers and writers of trees whose keys are bytes that begin alike: layers come and go",
        ci: 1_000..3_000,
        run: |campaign, seeds| totals(campaign, seeds, |seed| writers::Scenario::byte_keys(seed).run()),
    },
    Simulation {
        name: "hostile-writes",
        about: "the same, and one client damages the trees by plain WRITEs: operations must end, and nothing may panic",
        ci: 400..2_400,
        run: |campaign, seeds| totals(campaign, seeds, |seed| writers::Scenario::hostile(seed).run()),
    },
    Simulation {
        name: "hash",
        about: "clients of a hash table that splits and grows; they and the servers die, links lose, memory tears, blocks are used again",
        ci: 2_000..5_000,
        run: |campaign, seeds| totals(campaign, seeds, |seed| hash::Scenario::from_seed(seed).run()),
    },
    Simulation {
        name: "queries",
        about: "RDMA clients and query clients on one tree; queries go through switches that a controller reloads",
        ci: 150..1_650,
        run: |campaign, seeds| totals(campaign, seeds, |seed| queries::Scenario::from_seed(seed).run()),
    },
    Simulation {
        name: "hostile-queries",
        about: "the same, and one client damages the tree by plain WRITEs",
        ci: 40..240,
        run: |campaign, seeds| totals(campaign, seeds, |seed| queries::Scenario::hostile(seed).run()),
    },
    Simulation {
        name: "dolphin",
        about: "clients of a hybrid index: splits, bursts, merges, values out of line; clients and servers die, memory tears",
        ci: 20_000..23_000,
        run: |campaign, seeds| totals(campaign, seeds, |seed| dolphin::Scenario::from_seed(seed).run()),
    },
    Simulation {
        name: "failover",
        about: "any one cable or switch dead at any moment: lookups go on",
        ci: 200..600,
        run: |campaign, seeds| totals(campaign, seeds, |seed| failover::Scenario::from_seed(seed).run()),
    },
    Simulation {
        name: "elections",
        about: "several controllers over the same switches, which die, freeze and are cut off: one leads in the end",
        ci: 60..660,
        run: |campaign, seeds| totals(campaign, seeds, rivals::run),
    },
    Simulation {
        name: "transactions",
        about: "transactions on tables with replicas; clients and servers die, servers lose their memory and are filled anew",
        ci: 1_000..4_000,
        run: |campaign, seeds| totals(campaign, seeds, transactions::run),
    },
    Simulation {
        name: "power",
        about: "servers with data folders lose their power at any moment, and what was not synced: they start from what is left",
        ci: 1_000..1_060,
        run: |campaign, seeds| totals(campaign, seeds, |seed| power::Scenario::from_seed(seed).run()),
    },
    Simulation {
        name: "flips",
        about: "bits of a data folder are flipped before a start: it is refused, or answers are right or say damaged",
        ci: 1_000..1_060,
        run: |campaign, seeds| totals(campaign, seeds, power::flips::run),
    },
    Simulation {
        name: "threads",
        about: "clients on real threads, killed and born again; a seed decides their work, not the order of the threads",
        ci: 3..13,
        run: |campaign, seeds| {
            // Each run has threads of its own.
            let one_by_one = Campaign { threads: 1, ..*campaign };
            totals(&one_by_one, seeds, |seed| {
                threads::run(&threads::Options { seed, ..threads::Options::default() })
            })
        },
    },
];

/// The simulation of a name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Simulation> {
    ALL.iter().find(|simulation| simulation.name == name)
}

impl Simulation {
    /// Runs seeds on all processors. `done` is called by the threads after each seed.
    ///
    /// The totals are those of the scenario's outcome; a failure names the command that replays its seed.
    pub fn run(&self, seeds: Seeds, done: &(dyn Fn() + Sync)) -> Report<Value> {
        let command = format!("fatbtree simulate {} --seed", self.name);
        (self.run)(&Campaign { command: &command, done, ..Campaign::default() }, seeds)
    }
}

fn totals<T, E>(
    campaign: &Campaign<'_>,
    seeds: Seeds,
    scenario: impl Fn(u64) -> Result<T, E> + Sync,
) -> Report<Value>
where
    T: AddAssign + Default + Send + Serialize,
    E: Display,
{
    let Report { total, passed, failures } = campaign.run(seeds, scenario);
    // Outcomes are plain structures of numbers.
    Report { total: serde_json::to_value(total).unwrap_or_default(), passed, failures }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_each_simulation_passes_a_seed_of_its_own() {
        for (number, simulation) in ALL.iter().enumerate() {
            let name = simulation.name;
            assert!(ALL[..number].iter().all(|before| before.name != name), "{name} is listed twice");
            assert_eq!(find(name).map(|found| found.about), Some(simulation.about));
            let first = simulation.ci.start;
            let report = simulation.run(Seeds::one(first), &|| {});
            assert_eq!((report.passed, report.failures), (1, Vec::new()), "{name}");
            assert!(report.total.as_object().is_some_and(|total| total.len() > 3), "{name}");
        }
        assert!(find("everything").is_none());
    }
}
