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

/// Seeds of flipped bits, each of which damages a folder 8 times: a structure has a third of them.
fn seeds_of_flips() -> u64 {
    let wanted = std::env::var("FATBTREE_FLIPS").ok();
    wanted.map_or(12, |text| text.parse().expect("a number"))
}

#[test]
fn flipped_bits_are_refused_or_told() {
    let mut all = flips::Outcome::default();
    for seed in 0..seeds_of_flips() {
        all += flips::run(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    println!("{all:?}");
    assert_eq!(all.folders, 8 * seeds_of_flips());
    assert!(all.refused > all.refused_after_kill && all.told > 0 && all.answers > 1000, "{all:?}");
}
