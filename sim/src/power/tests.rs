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
    let all = runs(0..3);
    assert!(all.cuts > 30 && all.cuts_within > 20 && all.cuts_with_losses > 5, "{all:?}");
    assert!(all.applied > 1 && all.changes == 3 * 750, "{all:?}");
}

#[test]
fn flipped_bits_are_refused_or_told() {
    let mut all = flips::Outcome::default();
    // Each damages a folder 8 times, and a third of them is a structure's.
    for seed in 0..12 {
        all += flips::run(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    assert_eq!(all.folders, 96);
    assert!(all.refused > all.refused_after_kill && all.refused_after_kill > 20, "{all:?}");
    assert!(all.told > 0 && all.answers > 1000, "{all:?}");
}
