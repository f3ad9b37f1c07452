use fatbtree_dolphin::Check as DolphinCheck;
use fatbtree_remote_memory::Check;

use super::*;

fn runs(seeds: std::ops::Range<u64>) -> Outcome {
    let mut all = Outcome::default();
    for seed in seeds {
        all += Scenario::from_seed(seed).run().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    all
}

#[test]
fn servers_start_from_whatever_a_power_failure_leaves() {
    let all = runs(0..18);
    assert!(all.cuts > 180 && all.cuts_within > 40 && all.cuts_with_losses > 100, "{all:?}");
    assert!(all.cuts_of_all > 30 && all.cuts_of_one > 40, "{all:?}");
    assert!(all.applied > 1 && all.changes == 18 * 960, "{all:?}");
}

/// Without each of the mechanisms by which servers that fail at moments of their own go together again, seeds fail, of each structure that
/// leads from one server to another.
#[test]
fn each_mechanism_that_is_left_out_is_found() {
    const MOST: u64 = 60;
    let mut passed = Vec::new();
    let mut look = |kind: Kind, name: String, without: &dyn Fn(&Scenario) -> Result<Outcome, String>| {
        let scenarios = (0..MOST).map(|seed| Scenario {
            kind,
            servers: 2 + (seed % 2) as u16,
            ..Scenario::from_seed(seed)
        });
        let failure = scenarios.into_iter().find_map(|scenario| {
            let why = without(&scenario).err()?;
            scenario.run().is_ok().then_some((scenario.seed, why))
        });
        match failure {
            Some((seed, why)) => println!("{kind:?} without {name}: seed {seed}: {why}"),
            None => passed.push((kind, name)),
        }
    };
    for kind in [Kind::Hash, Kind::HashOfBytes, Kind::Dolphin] {
        for check in [Check::Rests, Check::SyncedFirst] {
            look(kind, format!("{check:?}"), &|scenario| check.without(|| scenario.run()));
        }
    }
    for check in [DolphinCheck::CollapseSynced, DolphinCheck::BetweenSynced, DolphinCheck::RelinkSynced] {
        look(Kind::Dolphin, format!("{check:?}"), &|scenario| check.without(|| scenario.run()));
    }
    assert!(passed.is_empty(), "without one of these {MOST} seeds pass: {passed:?}");
}

#[test]
fn flipped_bits_are_refused_or_told() {
    let mut all = flips::Outcome::default();
    // Each damages a folder 8 times, and a third of them is a structure's.
    for seed in 12..24 {
        all += flips::run(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    assert_eq!(all.folders, 96);
    assert!(all.refused > all.refused_after_kill && all.refused_after_kill > 20, "{all:?}");
    assert!(all.told > 0 && all.answers > 1000, "{all:?}");
}
