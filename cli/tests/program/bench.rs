//! Runs one after the other, and side by side: none of them knows what another has written.

use crate::common::processes::{Role, bench, cluster_file, made_trace};
use crate::common::run;

#[test]
fn runs_that_write_follow_one_another_and_run_side_by_side() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file(folder.path());
    let cluster = file.to_str().expect("a plain path");
    let text = std::fs::read_to_string(&file).expect("the file");
    let second = "\n[[client]]\nname = \"second\"\nhost = \"host-2-0-0\"\n";
    std::fs::write(&file, text + second).expect("the file is written");
    let up = Role::start(&["up", cluster, "--keys", "5000"]);
    up.until("ready");
    let right = |further: &[&str]| {
        let result = bench(cluster, further);
        assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{further:?}: {result}");
    };
    for workload in ["a", "c", "e", "e", "d", "d", "f"] {
        right(&["--workload", workload]);
    }
    // Both update the same hot keys, and insert.
    for workload in ["a", "d"] {
        std::thread::scope(|scope| {
            for client in ["client", "second"] {
                scope.spawn(move || {
                    right(&["--client", client, "--workload", workload, "--operations", "10000"]);
                });
            }
        });
    }
    // What was loaded is still told from other values.
    let lying = run(&["bench", "--cluster", cluster, "--operations", "1000", "--seed", "1"]);
    assert_eq!(lying.status.code(), Some(1));
    let short =
        run(&["bench", "--cluster", cluster, "--operations", "1", "--workload", "a", "--value-bytes", "8"]);
    let refused = String::from_utf8_lossy(&short.stderr).into_owned();
    assert!(refused.contains("at least 16 bytes to name its writer"), "{refused}");
    assert!(up.stop("INT").success());
}

/// Runs what must be refused; gives the reason.
fn refused(arguments: &[&str]) -> String {
    let output = run(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
    said
}

#[test]
fn keys_of_a_file_are_asked_for_where_the_file_is_given() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file(folder.path());
    let cluster = file.to_str().expect("a plain path");
    let written = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("it is written");
        path.to_str().expect("a plain path").to_owned()
    };
    let lines = (1..=500).map(|key| format!("{}\n", key * 7));
    let keys = written("keys.txt", &format!("\u{feff}key\n# comment\n7\n{}", lines.collect::<String>()));
    let lines = (1..=400).map(|key| format!("{key},\"value, {key}\"\n"));
    let people =
        written("people.csv", &format!("\u{feff}# comment\nkey,value\n{}", lines.collect::<String>()));
    let unclosed = written("unclosed.csv", "1,\"a\n2,b\n3,c\n");
    let one = written("one.txt", "5\n");
    let up = Role::start(&["up", cluster]);
    up.until("ready");
    let words = ["load", "--cluster", cluster, "--value-bytes", "40", "--replace", "--keys"];
    let load = |keys: &str| run(&[&words[..], &[keys]].concat());
    for (bad, why) in [
        (&unclosed, "unclosed.csv:1: the quote that opens on this line is not closed"),
        (&one, "1 key on 2 memory servers: every server needs at least one key"),
    ] {
        let said = refused(&["load", "--cluster", cluster, "--keys", bad]);
        assert!(said.contains(why), "{said}");
    }

    let loaded = load(&keys);
    let said = String::from_utf8_lossy(&loaded.stderr).into_owned();
    assert!(loaded.status.success() && said.contains("1 line with a key that an earlier line has"), "{said}");
    let words = ["bench", "--cluster", cluster, "--operations", "100"];
    let said = refused(&words);
    assert!(said.contains("other keys than YCSB's") && said.contains("--keys FILE"), "{said}");
    for workload in ["a", "b", "c", "f"] {
        let result = bench(cluster, &["--keys", &keys, "--value-bytes", "40", "--workload", workload]);
        assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{result}");
    }
    let said = refused(&[&words[..], &["--keys", &people]].concat());
    assert!(said.contains("it has 400 keys, the memory servers were loaded with 500"), "{said}");
    let said = refused(&[&words[..], &["--keys", &keys, "--workload", "d"]].concat());
    assert!(said.contains("all keys of a file are loaded"), "{said}");

    assert!(load(&people).status.success());
    for workload in ["a", "a", "c"] {
        let result = bench(cluster, &["--keys", &people, "--workload", workload]);
        assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{result}");
    }
    assert!(up.stop("INT").success());
}

#[test]
fn a_trace_is_loaded_and_done_and_a_second_run_needs_a_load() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file(folder.path());
    let cluster = file.to_str().expect("a plain path");
    let path = made_trace(folder.path(), "6000", "300");
    let trace = path.to_str().expect("a plain path");
    let shown = run(&["trace", "show", trace, "--json"]).stdout;
    let shown: serde_json::Value = serde_json::from_slice(&shown).expect("it is JSON");
    assert_eq!((&shown["operations"], &shown["merged"]), (&6000.into(), &0.into()), "{shown}");
    let up = Role::start(&["up", cluster]);
    up.until("ready");
    let said = refused(&["bench", "--cluster", cluster, "--operations", "10", "--trace", trace]);
    assert!(said.contains("load them before each run") && said.contains("load --cluster"), "{said}");
    assert!(run(&["load", "--cluster", cluster, "--trace", trace]).status.success());
    let said = refused(&["bench", "--cluster", cluster, "--operations", "6001", "--trace", trace]);
    assert!(said.contains("has 6000 operations"), "{said}");
    let result = bench(cluster, &["--trace", trace, "--operations", "6000"]);
    assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{result}");
    let kinds = result["percentiles"].as_array().expect("a list").iter();
    let kinds: Vec<_> = kinds.filter_map(|kind| kind["operation"].as_str()).collect();
    assert_eq!(kinds, ["READ", "PUT", "DELETE"]);
    // Keys are there that were not at first, and others are gone.
    let said = refused(&["bench", "--cluster", cluster, "--operations", "6000", "--trace", trace]);
    assert!(said.contains("load them before each run") || said.contains("operations wrong"), "{said}");
    let broken = folder.path().join("broken.trace");
    std::fs::write(&broken, "0,k,1,9,1,get,0\n0,k,1,9,1,fetch,0\n").expect("it is written");
    let said = refused(&["trace", "show", broken.to_str().expect("a plain path")]);
    assert!(said.contains("broken.trace:2: operation: expected get"), "{said}");
    assert!(up.stop("INT").success());
}
