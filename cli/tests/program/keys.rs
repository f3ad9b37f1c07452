//! `fatbtree get`, `put`, `delete` and `scan` on a running cluster, with their exit codes.

use std::collections::BTreeSet;
use std::fs;

use crate::common::processes::{Role, cluster_file_like};
use crate::common::{fatbtree, run};

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
    // The bytes, and nothing else.
    is(&["get", "7"], 0, "seven, or so");
    is(&["get", "7", "--query"], 0, "seven, or so");
    is(&["get", "7", "--quote"], 0, "\"seven, or so\"\n");
    is(&["get", "0x8000_0000_0000_0000", "--quote"], 0, "0x00ff\n");
    is(&["scan", ".."], 0, "7 \"seven, or so\"\n9223372036854775808 0x00ff\n");
    is(&["scan", "..", "--limit", "1", "--csv"], 0, "7,\"seven, or so\"\n");
    is(&["scan", "..", "--limit", "1", "--backward"], 0, "9223372036854775808 0x00ff\n");
    is(&["scan", "..8", "--backward"], 0, "7 \"seven, or so\"\n");
    is(&["scan", "8..100"], 0, "");
    is(&["delete", "7"], 0, "");
    is(&["delete", "7"], 1, "");
    is(&["scan", "..10"], 0, "");
    is(&["put", "1", "0x123"], 3, "");
    is(&["put", "1_000", "--text", "0x123"], 0, "");
    is(&["get", "1e3"], 0, "0x123");
    is(&["put", "1000", "--text", "-"], 0, "");
    is(&["get", "1000"], 0, "-");
    is(&["put", "1000", "-5"], 0, "");
    is(&["scan", "1e3..=1_000", "--json"], 0, "{\"key\":1000,\"value\":\"-5\"}\n");
    assert!(up.stop("INT").success());
    is(&["get", "7", "--patience", "1"], 3, "");
    is(&["get", "seven", "--patience", "1"], 3, "");
}

#[test]
fn keys_of_bytes_are_loaded_put_read_scanned_and_deleted() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster, "--serve", "queries"]);
    up.until("ready");
    let names = folder.path().join("names.csv");
    let pairs: String =
        (0..200).map(|n| format!("https://{}.example/{n},{n}\n", ["a", "b"][n % 2])).collect();
    fs::write(&names, format!("key,value\nuser:1,Ada\nuser:12,Grace\n\"a,b\",\"c\"\"\"\n{pairs}"))
        .expect("a file");
    let names = names.to_str().expect("a plain path");
    let load =
        |more: &[&str]| said(&[&["load", "--keys", names, "--key-type", "bytes"], more].concat(), cluster).0;
    assert_eq!(load(&[]), Some(0));
    assert_eq!(load(&[]), Some(1), "it would replace a tree");
    let is = |words: &[&str], code: i32, text: &str| {
        assert_eq!(said(words, cluster), (Some(code), text.to_owned()), "{words:?}");
    };
    is(&["get", "user:1"], 0, "Ada");
    is(&["get", "user:2"], 1, "");
    is(&["get", "user:1", "--json"], 0, "{\"key\":\"user:1\",\"value\":\"Ada\"}\n");
    is(&["scan", "--prefix", "user:"], 0, "user:1 Ada\nuser:12 Grace\n");
    is(&["scan", "user:1..user:12", "--backward"], 0, "user:1 Ada\n");
    is(&["scan", "--bytes", "--limit", "1", "--csv"], 0, "\"a,b\",\"c\"\"\"\n");
    is(&["put", "0xff00", "--bytes", "x"], 0, "");
    is(&["scan", "0xff..", "--bytes", "--json"], 0, "{\"key\":null,\"key_hex\":\"ff00\",\"value\":\"x\"}\n");
    is(&["delete", "0xff00", "--bytes"], 0, "");
    is(&["delete", "0xff00", "--bytes"], 1, "");
    let (code, all) = said(&["scan", "--bytes", "--csv"], cluster);
    assert_eq!((code, all.lines().count()), (Some(0), 203));
    // Numbers are refused at once, by RDMA and by queries.
    is(&["get", "7"], 3, "");
    is(&["get", "7", "--query"], 3, "");
    is(&["scan"], 3, "");
    assert_eq!(load(&["--replace", "--client", "client"]), Some(1), "trees are loaded in bulk");
    assert_eq!(said(&["scan", "--bytes", "--csv"], cluster), (Some(0), all.clone()), "nothing is lost");
    // What was written can be loaded again.
    fs::write(names, &all).expect("a file");
    assert_eq!(load(&["--replace"]), Some(0));
    assert_eq!(said(&["scan", "--bytes", "--csv"], cluster), (Some(0), all));
    // What all keys begin with is left out of the tree; keys without it may come later.
    fs::write(names, "https://a/1,x\nhttps://a/2,y\n").expect("a file");
    assert_eq!(load(&["--replace"]), Some(0));
    is(&["put", "user:3", "Joan"], 0, "");
    is(&["put", "", "nothing", "--bytes"], 0, "");
    is(&["get", "user:3"], 0, "Joan");
    is(&["scan", "--bytes"], 0, "\"\" nothing\nhttps://a/1 x\nhttps://a/2 y\nuser:3 Joan\n");
    // A key a line, with values that are made; those that are repeated are left out, and told.
    fs::write(folder.path().join("lines"), "b\na\n# none\nb\n").expect("a file");
    let lines = folder.path().join("lines");
    let words =
        ["load", "--cluster", cluster, "--keys", lines.to_str().expect("plain"), "--key-type", "bytes"];
    let output = run(&[&words[..], &["--replace"]].concat());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("1 line with a key that an earlier line has"), "{told}");
    assert_eq!(said(&["scan", "--bytes"], cluster).1.lines().count(), 2);
    // Borders are told as keys whatever the command line says of keys: the kind is the memory server's.
    let output = run(&["load", "--cluster", cluster, "--empty", "left", "--replace"]);
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("before b"), "{told}");
    fs::write(&lines, [&b"a\n"[..], &[b'x'; 5000]].concat()).expect("a file");
    let output = run(&[&words[..], &["--replace"]].concat());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("lines: the key at position 1 has 5000 bytes; up to 4096 are possible"), "{told}");
    assert!(up.stop("INT").success());
}

/// A hash table takes keys of bytes as well, in no order: in bulk, or by a client. Dolphin indexes and tables of transactions refuse them.
#[test]
fn a_hash_table_has_keys_of_bytes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let text = fs::read_to_string(&file).expect("the file is there");
    fs::write(&file, format!("structure = \"hash\"\n{text}")).expect("a file");
    let cluster = file.to_str().expect("a plain path");
    let data = folder.path().join("data");
    let words = ["up", cluster, "--data", data.to_str().expect("a plain path")];
    let up = Role::start(&words);
    up.until("ready");
    let names = folder.path().join("names.csv");
    let pairs: BTreeSet<String> = (0..500).map(|n| format!("https://www.example.com/{n},{n}")).collect();
    let text: Vec<_> = pairs.iter().cloned().collect();
    fs::write(&names, text.join("\n")).expect("a file");
    let names = names.to_str().expect("a plain path");
    let load =
        |more: &[&str]| said(&[&["load", "--keys", names, "--key-type", "bytes"], more].concat(), cluster);
    let (code, told) = load(&[]);
    assert!(code == Some(0) && told.contains("500 keys with values of "), "{told}");
    assert_eq!(load(&[]).0, Some(1), "it would replace a table");
    let is = |words: &[&str], code: i32, text: &str| {
        assert_eq!(said(words, cluster), (Some(code), text.to_owned()), "{words:?}");
    };
    let all = || -> BTreeSet<String> {
        let (code, text) = said(&["scan", "--bytes", "--csv"], cluster);
        assert_eq!(code, Some(0));
        text.lines().map(str::to_owned).collect()
    };
    assert_eq!(all(), pairs);
    is(&["get", "https://www.example.com/7"], 0, "7");
    is(&["get", "https://www.example.com/"], 1, "");
    is(&["put", "0xff00", "--bytes", "x"], 0, "");
    is(&["get", "0xff00", "--bytes", "--json"], 0, "{\"key\":null,\"key_hex\":\"ff00\",\"value\":\"x\"}\n");
    is(&["delete", "0xff00", "--bytes"], 0, "");
    is(&["delete", "0xff00", "--bytes"], 1, "");
    // A server that comes back has the same table.
    assert!(up.stop("INT").success());
    let up = Role::start(&words);
    up.until("ready");
    assert_eq!(all(), pairs);
    let refused = |words: &[&str], why: &str| {
        let output = run(&[words, &["--cluster", cluster]].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(why), "{words:?}: {text}");
    };
    refused(&["get", "7"], "keys of this hash table are bytes");
    refused(&["scan"], "keys of this hash table are bytes");
    refused(&["scan", "--prefix", "https"], "a hash table does not have the operation scan");
    refused(&["scan", "a..b"], "a hash table does not have the operation scan");
    refused(&["scan", "--bytes", "--backward"], "a hash table does not have the operation scan_backward");
    // By a client, which goes on with what is there.
    let (code, told) = load(&["--client", "client", "--replace"]);
    assert!(code == Some(0) && told.contains("round trips each"), "{told}");
    assert_eq!(all(), pairs);
    fs::write(names, "https://www.example.com/7,another\nuser:1,Ada\n").expect("a file");
    let (code, told) = load(&["--client", "client", "--resume"]);
    assert!(code == Some(0) && told.contains("1 of them were there"), "{told}");
    is(&["get", "https://www.example.com/7"], 0, "7");
    is(&["get", "user:1"], 0, "Ada");
    // Another load makes it one of numbers again.
    assert_eq!(said(&["load", "--keys", "100", "--replace"], cluster).0, Some(0));
    refused(&["get", "user:1"], "keys of this hash table are numbers");
    assert_eq!(said(&["scan"], cluster).1.lines().count(), 100);
    assert!(up.stop("INT").success());
    for (structure, name) in [("dolphin", "Dolphin index"), ("dtx", "transactional table")] {
        let load = ["load", "--keys", names, "--key-type", "bytes", "--structure", structure];
        refused(&load, &format!("hold a {name}: its keys are numbers"));
    }
}

/// A shell's `$( )` takes line ends away, so what `get` prints must not have others.
#[test]
fn values_of_any_bytes_come_back_as_they_were_put() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster]);
    up.until("ready");
    let path = folder.path().join("value");
    let path = path.to_str().expect("a plain path");
    let values: [&[u8]; 10] = [
        b"",
        b" ",
        b"plain",
        b"a b",
        b"\"quoted\"",
        b"0x41",
        b"two\nlines\n",
        b"\x00\xff\n",
        "größe".as_bytes(),
        &vec![b'v'; 1 << 20],
    ];
    for value in values {
        fs::write(path, value).expect("a file");
        let from_file = ["put", "7", "--file", path];
        assert_eq!(said(&from_file, cluster), (Some(0), String::new()));
        let get = |further: &[&str]| {
            let output = run(&[&["get", "7", "--cluster", cluster], further].concat());
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            output.stdout
        };
        assert!(get(&[]) == value, "{:?}", &value[..value.len().min(40)]);
        let json: serde_json::Value = serde_json::from_slice(&get(&["--json"])).expect("JSON");
        match std::str::from_utf8(value) {
            Ok(text) => assert!(json["value"] == text && json.get("hex").is_none()),
            Err(_) => assert!(json["hex"] == "00ff0a" && json.get("value").is_none(), "{json}"),
        }
        // The same from standard input.
        assert_eq!(said(&["delete", "7"], cluster).0, Some(0));
        let mut put = fatbtree();
        put.args(["put", "7", "-", "--cluster", cluster]).stdin(fs::File::open(path).expect("it is there"));
        assert!(put.status().expect("it starts").success());
        assert!(get(&[]) == value);
    }
    fs::write(path, vec![7; (1 << 20) + 1]).expect("a file");
    let output = run(&["put", "7", "--file", path, "--cluster", cluster]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(3) && text.contains("up to 1048576 bytes"), "{text}");
    assert!(up.stop("INT").success());
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
