//! Faults by seed: a few seeds of each aim. `fatbtree simulate dolphin` runs many.

use fatbtree_sim::dolphin::{Aim, Outcome, Scenario};

/// First seed of a run; `SEED` and `SEEDS` in the environment choose others.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number =
        |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let first = number("SEED", 0);
    first..first + number("SEEDS", count)
}

fn campaign(aim: Aim, count: u64) -> Outcome {
    sum_of(&format!("{aim:?}"), count, |seed| Scenario::aimed(seed, aim))
}

fn sum_of(name: &str, count: u64, scenario: impl Fn(u64) -> Scenario) -> Outcome {
    let mut sum = Outcome::default();
    for seed in seeds(count) {
        sum += scenario(seed).run().unwrap_or_else(|why| panic!("SEED={seed} SEEDS=1, {name}: {why}"));
    }
    eprintln!("{name}: {sum:?}");
    sum
}

/// All aims, with and without switches, as `fatbtree simulate dolphin` draws them.
#[test]
fn seeds_of_the_command() {
    sum_of("simulate dolphin", 60, Scenario::from_seed);
}

/// Whether the seeds are the usual ones, whose sums are known.
fn is_usual() -> bool {
    std::env::var_os("SEED").is_none() && std::env::var_os("SEEDS").is_none()
}

#[test]
fn all_kinds_of_operations() {
    let sum = campaign(Aim::All, 100);
    assert!(!is_usual() || sum.deaths > 200 && sum.restarts > 20 && sum.lapsed > 200, "{sum:?}");
}

#[test]
fn updates_of_few_keys() {
    campaign(Aim::Updates, 60);
}

#[test]
fn insertions_of_the_same_keys() {
    campaign(Aim::Insertions, 60);
}

#[test]
fn splits_under_way() {
    let sum = campaign(Aim::Splits, 60);
    assert!(!is_usual() || sum.leaves > 200 && sum.nodes > 100, "{sum:?}");
}

#[test]
fn merges_under_way() {
    campaign(Aim::Merges, 60);
}

/// A key that is there throughout is found once by a scan from the highest key down, whatever splits and merges meanwhile.
#[test]
fn scans_from_the_highest_key_down() {
    for (aim, count) in [(Aim::All, 60), (Aim::Splits, 30), (Aim::Merges, 30)] {
        let sum = sum_of(&format!("{aim:?} backward"), count, |seed| Scenario::aimed(seed, aim).backward());
        assert!(!is_usual() || sum.scans > 100, "{sum:?}");
    }
}

#[test]
fn values_out_of_line() {
    campaign(Aim::Records, 60);
}

#[test]
fn values_of_several_lines() {
    campaign(Aim::Lines, 40);
}

#[test]
fn bursts_under_way() {
    campaign(Aim::Bursts, 60);
}

#[test]
fn leaves_that_move_to_other_servers_while_one_is_away() {
    let sum = campaign(Aim::Moves, 100);
    assert!(!is_usual() || sum.refused > 100 && sum.restarts > 30, "{sum:?}");
}

#[test]
fn memory_that_is_used_up() {
    let sum = campaign(Aim::Full, 60);
    assert!(!is_usual() || sum.refused > 200, "{sum:?}");
}

/// Compare-and-swaps of one value have one winner, in the leaf and out of line.
#[test]
fn values_that_are_swapped() {
    let sum = campaign(Aim::Swaps, 100);
    assert!(!is_usual() || sum.swaps > 1_000 && sum.deaths > 50, "{sum:?}");
}
