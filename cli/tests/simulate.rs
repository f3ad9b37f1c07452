//! Simulations from their command line.

mod common;

use common::run;
use serde_json::Value;

fn simulate(arguments: &[&str]) -> Value {
    let output = run(&[&["simulate"], arguments].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("the figures are JSON")
}

#[test]
fn both_kinds_of_scenario_run() {
    let frames = simulate(&["--seeds", "0..20"]);
    assert!(frames["found"].as_u64() > Some(100) && frames["wrong"] == 0, "{frames}");
    let trees = simulate(&["--trees", "--tonight", "20"]);
    assert!(trees["changes"].as_u64() > Some(100), "{trees}");
}

#[test]
fn the_last_seed_of_all_is_one_like_others() {
    let last = simulate(&["--seed", "18446744073709551615"]);
    assert!(last["lookups"].as_u64() > Some(0), "{last}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    for arguments in [["--seeds", "9..3"], ["--tonight", "0"], ["--seed", "-1"]] {
        let output = run(&[&["simulate"][..], &arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
