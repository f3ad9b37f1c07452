//! Trees of keys of bytes, measured and typed at: `bench`, traces and `shell`.

use std::fs;

use fatbtree_workload::byte_keys::{ByteKeys, KeyShape};

use crate::common::processes::{Role, bench, cluster_file_like, cluster_file_of_bytes, made_trace};
use crate::common::{refused, run};

/// Keys that are made are measured by all workloads, then those of a trace, then those of a file.
#[test]
fn keys_of_bytes_are_measured_and_every_answer_checked() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster, "--serve", "queries"]);
    up.until("ready");
    let load = |further: &[&str]| {
        let words = ["load", "--cluster", cluster, "--replace", "--key-type", "bytes"];
        let output = run(&[&words[..], further].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let measured = |further: &[&str]| {
        let result = bench(cluster, further);
        assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{further:?}: {result}");
        assert!(result["round_trips"].as_f64() >= Some(1.0), "{result}");
        assert_eq!(result["read_bytes"].is_null(), further.contains(&"query"), "{result}");
    };
    let is_refused = |further: &[&str], reason: &str| {
        let operations = if further.contains(&"--operations") { &[][..] } else { &["--operations", "500"] };
        refused(&[&["bench", "--cluster", cluster], operations, further].concat(), reason);
    };
    let command = ["load", "--cluster", cluster, "--keys", "9", "--key-shape", "uuid"];
    refused(&command, "--key-shape is for keys of bytes: give --key-type bytes, too");

    load(&["--keys", "600", "--key-shape", "uuid"]);
    // What a run inserts, the next one finds in its scans.
    for workload in ["c", "a", "d", "e", "e", "f"] {
        measured(&["--workload", workload, "--operations", "400", "--key-shape", "uuid"]);
    }
    measured(&["--workload", "e", "--operations", "200", "--key-shape", "uuid", "--scan-parts", "4"]);
    let words = ["--workload", "c", "--operations", "2000", "--key-shape", "uuid", "--entry-cache", "1M"];
    let result = bench(cluster, &words);
    assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{result}");
    assert!(result["entry_cache"]["hits"].as_u64() > Some(100), "{result}");
    for workload in ["a", "e"] {
        let words = ["--protocol", "query", "--operations", "400", "--key-shape", "uuid"];
        measured(&[&words[..], &["--workload", workload]].concat());
    }
    is_refused(&[], "do not hold the key user:0: give --key-shape");
    is_refused(&["--key-shape", "uuid", "--seed", "7"], "give --key-shape and --seed of the load");
    is_refused(&["--key-shape", "uuid", "--value-bytes", "50"], "values of 100 bytes");
    // A value that is not the key's.
    // Not the first one, which is looked at before the run.
    let key = String::from_utf8(ByteKeys::new(KeyShape::Uuid, 42).key(1)).expect("text");
    assert!(run(&["put", &key, &"x".repeat(100), "--cluster", cluster]).status.success());
    is_refused(
        &["--key-shape", "uuid", "--operations", "20000"],
        &format!("READ of key \"{key}\": WrongAnswer"),
    );

    let path = made_trace(folder.path(), "3000", "200");
    let trace = path.to_str().expect("a plain path");
    let words = ["--trace", trace, "--operations", "3000"];
    is_refused(&words, &format!("--trace {trace} --key-type bytes --replace"));
    load(&["--trace", trace]);
    // The strings themselves.
    let output = run(&["scan", "--prefix", "cache:", "--limit", "9", "--json", "--cluster", cluster]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 9);
    measured(&words);

    let names = folder.path().join("names.csv");
    fs::write(&names, "key,value\nuser:1,Ada\nuser:12,Grace\n0,\"a, b\"\n").expect("a file");
    let names = names.to_str().expect("a plain path");
    let loaded = load(&["--keys", names]);
    // Borders are shown as keys.
    assert!(loaded.contains("before u ") && loaded.contains("the end"), "{loaded}");
    for workload in ["c", "a", "b"] {
        measured(&["--workload", workload, "--keys", names]);
    }
    is_refused(&["--workload", "d", "--keys", names], "all keys of a file are loaded");
    is_refused(&["--keys", names, "--key-shape", "uuid"], "--key-shape is for keys that `load` has made");
    assert!(run(&["put", "user:1", "Bob", "--cluster", cluster]).status.success());
    is_refused(&["--keys", names], "READ of key \"user:1\": WrongAnswer");
    let words = ["load", "--cluster", cluster, "--replace", "--keys", "100"];
    assert!(run(&words).status.success());
    is_refused(&["--key-shape", "uuid"], "those of the memory servers are numbers");
    assert!(up.stop("INT").success());
}

#[test]
fn keys_of_bytes_are_asked_for_by_queries() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // They begin empty, with keys of bytes, and a border that is text.
    let file = cluster_file_of_bytes(folder.path(), "");
    let cluster = file.to_str().expect("a plain path");
    refused(
        &["memserver", "left", "--cluster", cluster, "--keys", "9"],
        "says keys = \"bytes\": begin empty",
    );
    refused(&["memserver", "left", "--cluster", cluster, "--structure", "dtx"], "are numbers: leave it out");
    let up = Role::start(&["up", cluster, "--serve", "queries"]);
    up.until("ready");
    let said = |words: &[&str]| {
        let output = run(&[words, &["--cluster", cluster]].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let is = |words: &[&str], code: i32, text: &str| {
        assert_eq!(said(words), (Some(code), text.to_owned()), "{words:?}")
    };
    let border = || {
        let status: serde_json::Value =
            serde_json::from_str(&said(&["control", "status", "--json"]).1).expect("JSON");
        let of = |at: usize| status["servers"][at]["first_key"].clone();
        (of(0), of(1))
    };
    is(&["put", "lynx", "cat", "--query"], 0, "");
    is(&["put", "mole", "talpid"], 0, "");
    is(&["scan", "--bytes", "--query"], 0, "lynx cat\nmole talpid\n");
    assert_eq!(border(), ("\"\"".into(), "m".into()));
    // Its keys are of the kind that the cluster file says. Nearly all begin alike, so that their words are others than before.
    assert_eq!(said(&["load", "--keys", "300", "--replace"]).0, Some(0));
    is(&["get", "user:7", "--query"], 0, &said(&["get", "user:7"]).1);
    assert!(border().1.as_str().is_some_and(|border| border.starts_with("user:")), "{:?}", border());
    let words = ["load", "--key-type", "bytes", "--keys", "300", "--key-shape", "email", "--replace"];
    assert_eq!(said(&words).0, Some(0));
    let long = "long".repeat(1000);
    is(&["put", "user:1", "Ada", "--query"], 0, "");
    is(&["put", &long, &long, "--query"], 0, "");
    for by in [&[][..], &["--query"]] {
        let is = |words: &[&str], code: i32, text: &str| is(&[words, by].concat(), code, text);
        is(&["get", "user:1"], 0, "Ada");
        is(&["get", &long], 0, &long);
        is(&["get", "user:2"], 1, "");
        is(&["scan", "--prefix", "user:", "--json"], 0, "{\"key\":\"user:1\",\"value\":\"Ada\"}\n");
        is(&["get", "7"], 3, "");
    }
    // All keys, over both servers.
    let (code, all) = said(&["scan", "--bytes", "--json"]);
    assert_eq!((code, all.lines().count()), (Some(0), 302));
    is(&["scan", "--bytes", "--json", "--query"], 0, &all);
    is(&["scan", "--bytes", "--backward", "--query"], 3, "");
    is(&["delete", &long, "--query"], 0, "");
    is(&["delete", &long, "--query"], 1, "");
    // A tree of numbers refuses keys of bytes.
    assert_eq!(said(&["load", "--keys", "300", "--replace", "--key-type", "numbers"]).0, Some(0));
    is(&["get", "user:1", "--query"], 3, "");
    assert_eq!(border(), (serde_json::Value::Null, serde_json::Value::Null));
    assert!(up.stop("INT").success());
}

/// Lines for a tree of bytes, and what is printed.
const LINES: &str = "\
put user:1 Ada
insert user:1 another
insert user:12 Grace
insert user:2 \"two words\"
put 0xff00 0x00
put \"0xff00\" text
cas user:12 Grace Hopper
update 4711 x
get 0xff00
scan user:1 user:2
rscan user:1 user:2 2
prefix user:1
prefix 0xff 1
prefix nothing
delete user:2
delete user:2
len
";
const ANSWERS: &str = "\
ok
there already
inserted
inserted
ok
ok
set
not there
0x00
user:1 Ada
user:12 Hopper
user:2 \"two words\"
user:2 \"two words\"
user:12 Hopper
user:1 Ada
user:12 Hopper
0xff00 0x00
deleted
not there
4
";

#[test]
fn a_shell_has_keys_of_bytes_of_its_own_and_of_a_cluster() {
    use crate::shell::{answers, shell};
    assert_eq!(answers(&["--key-type", "bytes"], LINES), ANSWERS);
    // More pairs than are read at once, on several servers.
    let many = answers(
        &["--key-type", "bytes", "--keys", "700", "--servers", "2"],
        "len\nprefix user:7\nscan user:1 user:9 500\n",
    );
    let mut lines = many.lines();
    assert_eq!((lines.next(), lines.next()), (Some("700"), Some("user:7 v7")), "{many}");
    assert_eq!((many.lines().count(), many.lines().last()), (1 + 12 + 500, Some("user:549 v549")));
    for (arguments, line, reason) in [
        (&["--key-type", "bytes"][..], "scan b a", "the first key, b, is above the last, a"),
        (&["--key-type", "bytes"], "begin", "has no transactions"),
        (&["--key-type", "bytes"], "get 0x123", "expected two hex digits a byte"),
        (&[], "prefix 7", "prefix is for keys of bytes"),
        (&["--key-type", "bytes", "--structure", "hash"], "get a", "--key-type bytes is for trees"),
    ] {
        let output = shell(arguments, line.as_bytes());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains(reason), "{line}: {said}");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster]);
    up.until("ready");
    let words = ["load", "--cluster", cluster, "--key-type", "bytes", "--replace", "--keys", "2"];
    assert!(run(&words).status.success());
    let lines = format!("delete user:0\ndelete user:1\n{LINES}load 300\nlen\nverify\n");
    let said = answers(&["--cluster", cluster], &lines);
    let rest = said.strip_prefix(&format!("deleted\ndeleted\n{ANSWERS}ok\n")).expect(&said);
    // user:1, user:12 and two others were there.
    assert!(rest.starts_with("302\n") && rest.lines().count() > 1, "{rest}");
    assert!(up.stop("INT").success());
}

/// The same of a hash table, which has no ranges. Its servers begin with keys of bytes, as the cluster file says.
#[test]
fn keys_of_bytes_of_a_hash_table_are_measured_and_typed_at() {
    use crate::shell::answers;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_of_bytes(folder.path(), "structure = \"hash\"\n");
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster]);
    up.until("ready");
    let lines =
        "put user:1 Ada\ninsert user:1 another\ninsert user:12 Grace\nget user:12\ndelete user:1\nverify\n";
    let said = answers(&["--cluster", cluster], lines);
    assert!(said.starts_with("ok\nthere already\ninserted\nGrace\ndeleted\n"), "{said}");
    let load = |further: &[&str]| {
        let output = run(&[&["load", "--cluster", cluster, "--replace"], further].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let measured = |further: &[&str]| {
        let result = bench(cluster, further);
        assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{further:?}: {result}");
    };
    load(&["--keys", "500", "--key-shape", "url"]);
    for workload in ["c", "a", "d", "f"] {
        measured(&["--workload", workload, "--operations", "300", "--key-shape", "url"]);
    }
    let words = ["bench", "--cluster", cluster, "--operations", "9", "--key-shape", "url"];
    refused(&[&words[..], &["--workload", "e"]].concat(), "has no order of keys");
    refused(&[&words[..6], &["email"]].concat(), "give --key-shape and --seed of the load");
    let path = made_trace(folder.path(), "1000", "100");
    let trace = path.to_str().expect("a plain path");
    load(&["--trace", trace]);
    measured(&["--trace", trace, "--operations", "1000"]);
    assert!(up.stop("INT").success());
}
