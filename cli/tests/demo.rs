//! The demo from its command line: what a newcomer types, at a small size.

mod common;

use common::run;
use serde_json::Value;

fn demo(name: &str, arguments: &[&str]) -> Value {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let json = folder.path().join(format!("{name}.json"));
    let report = folder.path().join(format!("{name}.html"));
    let (json_text, report_text) = (json.display().to_string(), report.display().to_string());
    let mut all =
        vec!["demo", "--keys", "20000", "--lookups", "2000", "--json", &json_text, "--report", &report_text];
    all.extend(arguments);
    let output = run(&all);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = std::fs::read_to_string(report).expect("the report was written");
    assert!(page.contains("<svg") && page.contains("fat root"), "the report has its pictures");
    serde_json::from_str(&std::fs::read_to_string(json).expect("the figures were written"))
        .expect("they are JSON")
}

#[test]
fn every_answer_is_right_and_takes_few_round_trips() {
    for (name, arguments, most_trips) in
        [("behind-pointers", vec![], 2.2), ("inline", vec!["--value-size", "8"], 1.2)]
    {
        let result = demo(name, &arguments);
        assert_eq!(result["wrong"], 0);
        assert_eq!((&result["keys"], &result["lookups"]), (&20_000.into(), &2_000.into()));
        for way in ["baseline", "in_network"] {
            for figure in ["mean_us", "p50_us", "p99_us", "ops_per_s", "round_trips"] {
                assert!(result[way][figure].as_f64().is_some_and(|value| value > 0.0), "{way}.{figure}");
            }
        }
        let trips = result["in_network"]["round_trips"].as_f64().expect("a number");
        let levels = result["baseline"]["round_trips"].as_f64().expect("a number");
        assert!(
            trips <= most_trips && levels >= trips + 2.0,
            "{trips} round trips, {levels} for the baseline"
        );
        assert_eq!(result["plan"]["stage_entries"].as_array().map(Vec::len), Some(4));
        for (group, figure) in [
            ("plan", "ranges"),
            ("plan", "layers"),
            ("push", "entries"),
            ("push", "seconds"),
            ("load", "seconds"),
        ] {
            assert!(!result[group][figure].is_null(), "{group}.{figure}");
        }
    }
}

#[test]
fn every_distribution_of_the_help_works() {
    for name in ["zipfian", "uniform", "latest", "hotspot", "sequential", "exponential"] {
        let result = demo(name, &["--distribution", name]);
        assert_eq!(result["wrong"], 0, "{name}");
    }
}

#[test]
fn nothing_loaded_still_answers() {
    let result = demo("nothing", &["--layers", "0", "--fat-root", "4"]);
    assert_eq!(result["wrong"], 0);
    assert_eq!(result["plan"]["ranges"], 4);
}

#[test]
fn what_cannot_work_is_refused_before_anything_starts() {
    for (arguments, expected) in [
        (vec!["demo", "--k", "5"], "k = 5 is odd"),
        (vec!["demo", "--keys", "3"], "every server needs at least one key"),
        (vec!["demo", "--keys", "0"], "--keys 0"),
        (vec!["demo", "--keys", "no-such-file"], "neither a number nor a file"),
        (vec!["demo", "--fat-root", "1"], "--fat-root 1"),
        (vec!["demo", "--workload", "a"], "only reads"),
        (vec!["demo", "--distribution", "zipfain"], "zipfain"),
        (vec!["demo", "--distribution", "uniform", "--theta", "0.5"], "has no skew"),
        (vec!["plan", "show", "no-such-plan.json"], "no-such-plan.json"),
    ] {
        let output = run(&arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
        assert!(message.contains(expected), "{arguments:?}: {message}");
        assert!(!message.contains("loading"), "{arguments:?} started: {message}");
    }
    assert_eq!(run(&["demo", "--layer", "9000"]).status.code(), Some(2));
}
