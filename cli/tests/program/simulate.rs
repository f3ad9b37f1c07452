//! Simulations from their command line.

use crate::common::run;
use serde_json::Value;

fn simulate(arguments: &[&str]) -> Value {
    let output = run(&[&["simulate"], arguments].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("the figures are JSON")
}

#[test]
fn every_kind_of_scenario_runs() {
    let reads = simulate(&["reads", "--seeds", "0..20"]);
    assert!(reads["found"].as_u64() > Some(100) && reads["wrong"] == 0, "{reads}");
    let trees = simulate(&["trees", "--seeds", "0..20"]);
    assert!(trees["applied"].as_u64() > Some(100), "{trees}");
    let writes = simulate(&["writes", "--tonight", "5"]);
    assert!(writes["applied"].as_u64() > Some(100), "{writes}");
    for kind in ["hostile-writes", "hostile-queries"] {
        let hostile = simulate(&[kind, "--tonight", "5"]);
        assert!(hostile["strikes"].as_u64() > Some(10), "{kind}: {hostile}");
    }
}

#[test]
fn all_of_them_run_one_after_the_other() {
    let all = simulate(&["all", "--seed", "3"]);
    assert_eq!(all.as_object().map(serde_json::Map::len), Some(17), "{all}");
    assert!(all["elections"]["terms"].as_u64() > Some(0), "{all}");
}

#[test]
fn the_last_seed_of_all_is_one_like_others() {
    let last = simulate(&["reads", "--seed", "18446744073709551615"]);
    assert!(last["lookups"].as_u64() > Some(0), "{last}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let nonsense: [(&[&str], &str); 6] = [
        (&["reads", "--seeds", "9..3"], "FIRST..LAST"),
        (&["reads", "--tonight", "0"], "1..=32768"),
        (&["reads", "--seed", "-1"], "-1"),
        (&["reads", "--seed", "1", "--seeds", "1..2"], "cannot be used with"),
        (&["everything"], "hostile-writes"),
        (&[], "SIMULATION"),
    ];
    for (arguments, says) in nonsense {
        let output = run(&[&["simulate"][..], arguments].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && text.contains(says), "{arguments:?}: {text}");
    }
}
