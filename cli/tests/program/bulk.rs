//! Bulk loads of structures over all memory servers, whose loader or server is killed, and what a restart finds of them.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::processes::{Role, bench, kill, process as process_of};
use crate::common::spread::{load, shell, structure_file};
use crate::common::{fatbtree, run};

/// Two records, in a file.
fn two(folder: &Path) -> PathBuf {
    let csv = folder.join("two.csv");
    std::fs::write(&csv, "key,value\n1,one\n2,two\n").expect("written");
    csv
}

/// The two records are there, and no other.
fn has_two(cluster: &str) {
    let (answers, all) = shell(&["--cluster", cluster], "get 1\nget 2\nget 3\nlen\n");
    assert!(all && answers == "one\ntwo\nnot there\n2\n", "{answers}");
}

/// Generations whose files are in a server's folder.
fn generations(data: &Path, server: &str) -> usize {
    let entries = std::fs::read_dir(data.join(server)).expect("the server's folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    names.filter(|name| name.to_string_lossy().starts_with("tree-")).count()
}

/// A load of so many keys that it lasts, in the middle: both servers have begun to take their parts. It begins when the one before has ended.
fn in_the_middle(cluster: &str, data: &Path, keys: &str) -> Child {
    let begun = || {
        let mut command = fatbtree();
        command.args(["load", "--cluster", cluster, "--keys", keys, "--replace"]);
        command.stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let (mut loader, began) = (begun(), Instant::now());
    while !["left", "right"].into_iter().all(|server| generations(data, server) == 2) {
        assert!(began.elapsed() < Duration::from_secs(60), "no server takes its part");
        if loader.try_wait().expect("it is this process's").is_some() {
            let output = loader.wait_with_output().expect("it has ended");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("another load is under way"), "it has ended: {said}");
            loader = begun();
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    loader
}

/// What a walk over the whole structure finds, which checks it.
fn verified(cluster: &str) -> String {
    let (answers, all) = shell(&["--cluster", cluster], "verify\n");
    assert!(all, "{answers}");
    answers
}

/// Loads that end before their commit leave what was there; one that has ended is there after kills and stops.
fn loads_are_whole_or_not_there(structure: &str, many: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = structure_file(folder.path(), structure);
    let (cluster, data) = (file.to_str().expect("a plain path"), folder.path().join("data"));
    let up = Role::start(&["up", cluster, "--data", data.to_str().expect("a plain path")]);
    let server = process_of(&up.until("right "));
    up.until("ready");
    let csv = two(folder.path());
    assert_eq!(load(cluster, &["--keys", csv.to_str().expect("plain")])["keys"], 2);
    has_two(cluster);

    // The loader is killed.
    let mut loader = in_the_middle(cluster, &data, many);
    assert!(kill("KILL", loader.id()));
    assert!(!loader.wait().expect("it ends").success());
    has_two(cluster);
    let began = Instant::now();
    while ["left", "right"].into_iter().any(|server| generations(&data, server) != 1) {
        assert!(began.elapsed() < Duration::from_secs(60), "the rest of a load is still there");
        std::thread::sleep(Duration::from_millis(20));
    }

    // A server is killed.
    let loader = in_the_middle(cluster, &data, many);
    assert!(kill("KILL", server));
    let output = loader.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("all servers serve what they served before"), "{said}");
    let server = process_of(&up.until("started"));
    up.until("ready");
    has_two(cluster);

    // Both times nothing is in the way of another load.
    let result = load(cluster, &["--keys", "20000", "--replace"]);
    assert_eq!(
        (&result["keys"], &result["round_trips"]),
        (&20_000.into(), &serde_json::Value::Null),
        "{result}"
    );
    let again = |what: &str| {
        let verified = verified(cluster);
        assert!(verified.starts_with("whole: 20000 keys "), "{what}: {verified}");
        let result = bench(cluster, &["--workload", "c"]);
        assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{what}: {result}");
    };
    again("loaded");
    // At once after the load: nothing was synced but by the load itself.
    assert!(kill("KILL", server));
    up.until("started");
    up.until("ready");
    again("after a kill");
    assert!(up.stop("INT").success());
    let up = Role::start(&["up", cluster, "--data", data.to_str().expect("a plain path")]);
    up.until("ready");
    again("after a stop");

    // Inserts of a client, as before: what is there stays in its way.
    let named = ["load", "--cluster", cluster, "--client", "client", "--keys", "500"];
    let refused = run(&named);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("repeat the command with --replace"));
    let result = load(cluster, &["--client", "client", "--keys", "500", "--replace"]);
    assert!(result["round_trips"].as_f64() > Some(2.0), "{result}");
    let verified_500 = verified(cluster);
    assert!(verified_500.starts_with("whole: 500 keys "), "{verified_500}");

    // Going on leaves what is there as it is.
    let (answers, all) = shell(&["--cluster", cluster], "put 77 mine\n");
    assert!(all, "{answers}");
    let more: String = (70..90).map(|key| format!("{key},its\n")).collect();
    let csv = folder.path().join("more.csv");
    std::fs::write(&csv, format!("key,value\n{more}")).expect("written");
    let on = ["--client", "client", "--keys", csv.to_str().expect("plain"), "--resume"];
    let result = load(cluster, &on);
    assert_eq!((&result["keys"], &result["there"]), (&20.into(), &1.into()), "{result}");
    let (answers, _) = shell(&["--cluster", cluster], "get 77\nget 78\nlen\n");
    assert_eq!(answers, "mine\nits\n520\n");
    assert!(up.stop("INT").success());
}

#[test]
fn loads_of_a_hash_table_are_whole_or_not_there() {
    loads_are_whole_or_not_there("hash", "500000");
}

#[test]
fn loads_of_a_dolphin_index_are_whole_or_not_there() {
    loads_are_whole_or_not_there("dolphin", "500000");
}

#[test]
fn loads_of_transactional_tables_are_whole_or_not_there() {
    loads_are_whole_or_not_there("dtx", "120000");
}
