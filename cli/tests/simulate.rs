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
fn every_kind_of_scenario_runs() {
    let frames = simulate(&["--seeds", "0..20"]);
    assert!(frames["found"].as_u64() > Some(100) && frames["wrong"] == 0, "{frames}");
    let trees = simulate(&["--trees", "--seeds", "0..20"]);
    assert!(trees["changes"].as_u64() > Some(100), "{trees}");
    let writers = simulate(&["--writers", "--tonight", "5"]);
    assert!(writers["applied"].as_u64() > Some(100), "{writers}");
    for kind in ["--writers", "--queries"] {
        let hostile = simulate(&[kind, "--hostile", "--tonight", "5"]);
        assert!(hostile["strikes"].as_u64() > Some(10), "{kind}: {hostile}");
    }
}

#[test]
fn the_last_seed_of_all_is_one_like_others() {
    let last = simulate(&["--seed", "18446744073709551615"]);
    assert!(last["lookups"].as_u64() > Some(0), "{last}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let nonsense: [&[&str]; 5] = [
        &["--seeds", "9..3"],
        &["--tonight", "0"],
        &["--trees", "--writers"],
        &["--trees", "--hostile"],
        &["--seed", "-1"],
    ];
    for arguments in nonsense {
        let output = run(&[&["simulate"][..], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    let output = run(&["simulate", "--hostile"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("--writers or --queries"), "{text}");
}
