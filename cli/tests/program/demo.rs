//! The demo from its command line: what a newcomer types, at a small size.

use crate::common::run;
use serde_json::Value;

fn demo(name: &str, arguments: &[&str]) -> Value {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let json = folder.path().join(format!("{name}.json"));
    let report = folder.path().join(format!("{name}.html"));
    let (json_text, report_text) = (json.display().to_string(), report.display().to_string());
    let mut all = vec!["demo", "--json", &json_text, "--report", &report_text];
    for (option, small) in [("--keys", "20000"), ("--lookups", "2000")] {
        if !arguments.contains(&option) {
            all.extend([option, small]);
        }
    }
    all.extend(arguments);
    let output = run(&all);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = std::fs::read_to_string(report).expect("the report was written");
    assert!(page.contains("<svg") && page.contains("fat root"), "the report has its pictures");
    serde_json::from_str(&std::fs::read_to_string(json).expect("the figures were written"))
        .expect("they are JSON")
}

/// A figure of one of the ways.
fn figure(result: &Value, way: &str, figure: &str) -> f64 {
    let ways = result["ways"].as_array().expect("the ways");
    let way = ways.iter().find(|found| found["name"] == way).unwrap_or_else(|| panic!("no way {way}"));
    way[figure].as_f64().unwrap_or_else(|| panic!("no figure {figure}"))
}

fn round_trips(result: &Value, way: &str) -> f64 {
    figure(result, way, "round_trips")
}

#[test]
fn every_answer_is_right_and_takes_few_round_trips() {
    for (name, arguments, most_trips) in
        [("behind-pointers", vec!["--value-size", "1000"], 2.2), ("inline", vec![], 1.2)]
    {
        let result = demo(name, &arguments);
        assert_eq!(result["wrong"], 0);
        assert_eq!((&result["keys"], &result["lookups"]), (&20_000.into(), &2_000.into()));
        for way in ["root-to-leaf", "in-network, planned without knowledge", "in-network"] {
            for name in ["mean_us", "p50_us", "p99_us", "ops_per_s", "round_trips"] {
                assert!(figure(&result, way, name) > 0.0, "{way}: {name}");
            }
        }
        let (trips, levels) = (round_trips(&result, "in-network"), round_trips(&result, "root-to-leaf"));
        assert!(
            trips <= most_trips && levels >= trips + 2.0,
            "{trips} round trips, {levels} from root to leaf"
        );
        assert_eq!(figure(&result, "root-to-leaf", "cache_bytes"), 0.0);
        let in_switches = figure(&result, "in-network", "cache_bytes");
        assert!(in_switches > 1000.0);
        let [cold, warm] =
            ["cold", "warm"].map(|state| format!("client cache, as many bytes as the switches, {state}"));
        assert_eq!(figure(&result, &warm, "cache_bytes"), in_switches);
        assert!(round_trips(&result, &warm) + 1.0 < levels, "it holds more than half of the nodes");
        assert!(round_trips(&result, &warm) < round_trips(&result, &cold));
        // A place of a key that was asked for before costs one round trip, and less than a leaf of 1 KB where values are in line.
        let entries = "entry cache, as many bytes as the switches, warm";
        assert_eq!(figure(&result, entries, "cache_bytes"), in_switches);
        assert!(round_trips(&result, entries) + 0.5 < levels);
        assert!(figure(&result, entries, "read_bytes") < figure(&result, "root-to-leaf", "read_bytes"));
        assert!(
            round_trips(&result, "client cache and entry cache, half of these bytes each, warm") + 0.5
                < levels
        );
        assert!(
            round_trips(&result, "client cache, 1 % of the inner nodes, warm") > 2.0,
            "there is room for none"
        );
        assert_eq!(
            (&result["cached_share"], &result["target"]),
            (&1.0.into(), &"Tofino 1, two epochs".into())
        );
        // The same keys in a Dolphin index: a value that does not lie in the leaf takes a round trip more.
        let beside = if name == "inline" { 0.0 } else { 1.0 };
        let in_dolphin = |cache: &str| round_trips(&result, &format!("Dolphin, {cache}")) - beside;
        let without = in_dolphin("no client cache");
        assert!((2.0..=4.0).contains(&without), "{without} round trips from the root on");
        let as_many = ["cold", "warm"]
            .map(|state| in_dolphin(&format!("client cache, as many bytes as the switches, {state}")));
        let all = "client cache without a bound, warm";
        // Here the cold cache can be ahead: a full one has to evict.
        assert!(as_many.iter().all(|trips| trips + 0.5 < without), "{as_many:?}, {without} without");
        assert!(in_dolphin(all) < 1.01, "a leaf is known at once");
        assert!(figure(&result, &format!("Dolphin, {all}"), "cache_bytes") > 1000.0);
        for (name, least) in [("leaves", 400.0), ("inner_nodes", 2.0), ("server_bytes", 400_000.0)] {
            let found = result["dolphin"][name].as_f64().unwrap_or_else(|| panic!("no figure {name}"));
            assert!(found >= least, "{name}: {found}");
        }
        let mixtures = result["mixtures"].as_array().expect("sizes of caches");
        let trips_of =
            |name: &str| -> Vec<f64> { mixtures.iter().filter_map(|row| row[name].as_f64()).collect() };
        let (alone, together) = (trips_of("alone"), trips_of("with_switches"));
        assert_eq!((alone.len(), together.len()), (5, 5));
        // Counted over plain memory what the ways counted over wires; fewer lookups, of the same kind.
        assert!(
            (alone[0] - levels).abs() < 0.01 && (together[0] - trips).abs() < 0.05,
            "{alone:?} {together:?}"
        );
        assert!(
            alone.windows(2).all(|pair| pair[1] <= pair[0] + 0.01) && alone[4] + 1.0 < alone[0],
            "{alone:?}"
        );
        assert!(
            alone.iter().zip(&together).all(|(alone, together)| together <= alone),
            "{alone:?} {together:?}"
        );
        let dolphin: Vec<f64> = trips_of("dolphin").iter().map(|trips| trips - beside).collect();
        assert!((dolphin[0] - without).abs() < 0.01 && dolphin[4] < 1.05, "{dolphin:?}");
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

/// Where the switches cannot hold the tree, what they hold is worth more when it is what clients ask for.
#[test]
fn a_plan_made_by_counters_and_samples_beats_one_made_without() {
    let result =
        demo("learning", &["--keys", "100000", "--lookups", "10000", "--layer", "10", "--fat-root", "12"]);
    let share = result["cached_share"].as_f64().expect("a share");
    assert!((0.1..0.9).contains(&share), "{share}");
    assert_eq!(result["target"], "Tofino 1, two epochs, changed by the command line");
    let (blind, learned) =
        (round_trips(&result, "in-network, planned without knowledge"), round_trips(&result, "in-network"));
    assert!(learned + 0.1 < blind, "{learned} round trips, {blind} without knowledge");
}

/// Keys are inserted where lookups go: stale switches cost round trips, and the controller sees to it by itself.
#[test]
fn a_tree_that_grows_is_followed() {
    let result = demo("growth", &["--keys", "50000", "--lookups", "20000"]);
    assert_eq!(result["wrong"], 0);
    let growth = &result["growth"];
    let figure = |name: &str| growth[name].as_f64().unwrap_or_else(|| panic!("no figure {name}: {growth}"));
    assert_eq!((figure("inserted"), figure("operations")), (4_000.0, 2_000.0));
    let [before, stale, followed] = ["before", "stale", "followed"].map(figure);
    assert!(stale > before + 0.05 && figure("stale_hints") > 0.02, "{growth}");
    assert!(followed < before * 1.05 && figure("changes") > 0.0, "{growth}");
}

/// Writes, also those of the other way, are read; new keys are found.
#[test]
fn workloads_that_write_run_every_way() {
    for (workload, size) in [("a", "8"), ("d", "8"), ("e", "8"), ("f", "100")] {
        let result = demo(workload, &["--workload", workload, "--value-size", size]);
        assert_eq!(result["wrong"], 0, "{workload}");
        assert!(
            round_trips(&result, "in-network") + 1.0 < round_trips(&result, "root-to-leaf"),
            "{workload}"
        );
    }
}

#[test]
fn ycsb_runs_both_ways() {
    let result = demo("ycsb", &[]);
    let workloads = result["ycsb"].as_array().expect("the workloads");
    let names: Vec<_> = workloads.iter().filter_map(|workload| workload["name"].as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "d", "e", "f"]);
    for workload in workloads.iter().filter(|workload| workload["name"] != "e") {
        assert!(
            round_trips(workload, "in-network") + 1.0 < round_trips(workload, "root-to-leaf"),
            "{workload}"
        );
    }
    // Half of these operations are updates, which take a round trip more than a get.
    let way = "Dolphin, client cache, as many bytes as the switches, warm";
    let [a, c, e] = [0, 2, 4].map(|at: usize| round_trips(&workloads[at], way));
    assert!((1.0..2.0).contains(&c) && c + 0.1 < a && a < c + 0.9 && e < 4.0, "A {a}, C {c}, E {e}");
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
    assert_eq!((&result["plan"]["ranges"], &result["cached_share"]), (&4.into(), &0.0.into()));
}

#[test]
fn keys_of_a_file_are_looked_up() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("keys.txt");
    let lines: String = (1..2000u64).map(|n| format!("{}\n", n * n)).collect();
    std::fs::write(&file, lines).expect("the file is written");
    let result = demo("file", &["--keys", &file.display().to_string()]);
    assert_eq!((&result["wrong"], &result["keys"]), (&0.into(), &1999.into()));
    assert_eq!(result["ycsb"][3]["ways"].as_array().map(Vec::len), Some(0), "no keys are left to insert");
    assert!(
        result["growth"]["inserted"].as_u64().is_some_and(|count| count > 0),
        "between them there is room"
    );
}

#[test]
fn what_cannot_work_is_refused_before_anything_starts() {
    for (arguments, expected) in [
        (vec!["demo", "--k", "5"], "k = 5 is odd"),
        (vec!["demo", "--keys", "3"], "every server needs at least one key"),
        (vec!["demo", "--keys", "0"], "--keys 0"),
        (vec!["demo", "--keys", "1e12"], "which this machine does not have"),
        (vec!["demo", "--json", "no/such/folder.json"], "cannot be written"),
        (vec!["demo", "--report", "/"], "cannot be written"),
        (vec!["demo", "--keys", "no-such-file"], "neither a count such as 4711"),
        (vec!["demo", "--fat-root", "1"], "--fat-root 1"),
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
    assert_eq!(run(&["demo", "--k", "254"]).status.code(), Some(2));
    assert_eq!(run(&["demo", "--keys", "1.5"]).status.code(), Some(2));
    assert_eq!(run(&["demo", "--layer", "70000"]).status.code(), Some(2));
    assert_eq!(run(&["demo", "--target", "tofino3"]).status.code(), Some(2));
}
