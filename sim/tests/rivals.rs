//! Several controllers over the same switches, which are killed, frozen and cut off: one leads in the end, and it has everything.
//!
//! `FATBTREE_SEEDS=1000 cargo test -p fatbtree-sim --test rivals -- --nocapture` runs so many seeds, `FATBTREE_SEED=152` that one.

#![allow(clippy::print_stdout, reason = "figures for whoever asks")]

use fatbtree_sim::rivals;
use fatbtree_sim::seeds::{Campaign, Seeds};

#[test]
fn one_controller_leads_whatever_happened_to_the_others() {
    let seeds = match std::env::var("FATBTREE_SEED") {
        Ok(seed) => Seeds::one(seed.parse().expect("FATBTREE_SEED is a number")),
        Err(_) => Seeds::wanted(60),
    };
    let are_many = seeds.count() >= 60;
    let command = "cargo test -p fatbtree-sim --test rivals -- --nocapture, with FATBTREE_SEED =";
    let report = Campaign { command, ..Campaign::default() }.run(seeds, rivals::run);
    println!("{:?}", report.total);
    let total = report.into_result().unwrap_or_else(|failures| panic!("{failures}"));
    // The seeds must have been rough.
    let rough = total.put_out > 20 && total.refused > 5 && total.gave_up > 0 && total.terms > 3 * total.runs;
    assert!(rough || !are_many, "too calm: {total:?}");
    assert!(
        total.resumed > 5 || !are_many,
        "no controller has gone on with the plan that it had kept: {total:?}"
    );
}
