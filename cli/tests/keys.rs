//! `fatbtree get`, `put`, `delete` and `scan` on a running cluster, with their exit codes.

mod common;
#[path = "common/processes.rs"]
mod processes;

use std::fs;

use common::run;
use processes::{Role, cluster_file_like};

/// Exit code and standard output.
fn said(words: &[&str], cluster: &str) -> (Option<i32>, String) {
    let output = run(&[words, &["--cluster", cluster]].concat());
    (output.status.code(), String::from_utf8(output.stdout).expect("text"))
}

#[test]
fn keys_are_put_read_scanned_and_deleted() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster, "--serve", "queries"]);
    up.until("ready");
    let is = |words: &[&str], code: i32, text: &str| {
        assert_eq!(said(words, cluster), (Some(code), text.to_owned()), "{words:?}");
    };
    is(&["get", "7"], 1, "");
    is(&["put", "7", "seven, or so"], 0, "");
    is(&["put", "0x8000000000000000", "0x00ff"], 0, "");
    is(&["get", "7"], 0, "\"seven, or so\"\n");
    is(&["get", "7", "--query"], 0, "\"seven, or so\"\n");
    is(&["get", "9223372036854775808", "--json"], 0, "{\"key\":9223372036854775808,\"value\":\"0x00ff\"}\n");
    is(&["scan", ".."], 0, "7 \"seven, or so\"\n9223372036854775808 0x00ff\n");
    is(&["scan", "..", "--limit", "1", "--csv"], 0, "7,\"seven, or so\"\n");
    is(&["scan", "8..100"], 0, "");
    is(&["delete", "7"], 0, "");
    is(&["delete", "7"], 1, "");
    is(&["scan", "..10"], 0, "");
    is(&["put", "1", "0x123"], 3, "");
    assert!(up.stop("INT").success());
    is(&["get", "7", "--patience", "1"], 3, "");
    assert_eq!(said(&["get", "seven"], cluster).0, Some(2));
}

#[test]
fn what_a_scan_writes_as_csv_can_be_loaded_again() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster]);
    up.until("ready");
    for (key, value) in [
        ("0", "plain"),
        ("1", ""),
        ("2", "a, b and \"c\""),
        ("3", "\"\""),
        ("4", " two\r\nlines\n"),
        ("5", "# no comment"),
        ("6", "0x00ff0a22fe2c"),
        ("0x8000000000000000", "key,value"),
        ("0xffffffffffffffff", "last"),
    ] {
        assert_eq!(said(&["put", key, value], cluster).0, Some(0), "{key}");
    }
    let scan = |format: &[&str]| {
        let output = run(&[&["scan", "..", "--cluster", cluster], format].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let (shown, written) = (scan(&[]), scan(&["--csv"]));
    let pairs = folder.path().join("pairs.csv");
    fs::write(&pairs, &written).expect("a file");
    let words = ["load", "--keys", pairs.to_str().expect("a plain path"), "--replace"];
    let (code, table) = said(&words, cluster);
    assert!(code == Some(0) && table.contains("9 keys with values of "), "{table}");
    assert_eq!(scan(&[]), shown, "the same pairs");
    assert_eq!(scan(&["--csv"]), written);
    assert!(up.stop("INT").success());
}
