//! Values at the limits of their lengths, in each structure and by each way: what is taken can be read.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};

use crate::common::processes::{Role, cluster_file, cluster_file_like};
use crate::common::spread::{load, shell, single, structure_file};
use fatbtree::blocking::Client;
use fatbtree::{Options, Protocol};
use fatbtree_remote_memory::record::{self, MAX_VALUE};

/// Longest value.
const MOST: usize = MAX_VALUE as usize;

/// Longest value of a command line: the system passes no longer argument.
const ARGUMENT: usize = 100_000;

/// The last length that fits each size of records' places, in any structure, and those beside it: the short ones and the longest.
fn lengths() -> Vec<usize> {
    let places = [record::place_bytes, fatbtree_dolphin::place_bytes];
    let is_last = |length: u32| places.iter().any(|place| place(length) != place(length + 1));
    let of_interest = (0..1_200).chain(MAX_VALUE - 200_000..MAX_VALUE);
    let around = of_interest.filter(|&length| is_last(length)).flat_map(|end| [end.max(1) - 1, end, end + 1]);
    let mut lengths: Vec<usize> = around
        .chain([0, 1, 16_296, 16_297, 60_000, MAX_VALUE - 1, MAX_VALUE])
        .map(|length| length as usize)
        .collect();
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

fn value(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| b'a' + ((at * 7 + number) % 26) as u8).collect()
}

/// An error with its causes.
fn said(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Puts, reads, scans and deletes values of all lengths.
fn by_the_library(file: &Path, protocol: Protocol, has_scans: bool) {
    let db = Client::connect(Options::new(file).protocol(protocol)).expect("the cluster runs");
    // A server takes shorter values by queries, and refuses longer ones.
    let most = if protocol == Protocol::Query { 900_000 } else { MOST };
    for (number, length) in lengths().into_iter().filter(|length| *length <= most).enumerate() {
        let (key, value) = (1_000 + number as u64, value(number, length));
        db.put(key, &value).unwrap_or_else(|error| panic!("putting {length} bytes: {}", said(&error)));
        let found = db.get(key).unwrap_or_else(|error| panic!("reading {length} bytes: {}", said(&error)));
        assert!(found.is_some_and(|found| found == value), "another value of {length} bytes");
        let pairs = if has_scans { db.scan(key..=key) } else { db.pairs() };
        let pairs: Result<Vec<_>, _> = pairs.collect();
        let mut pairs = pairs.unwrap_or_else(|error| panic!("scanning {length} bytes: {}", said(&error)));
        pairs.retain(|(found, _)| *found == key);
        assert!(pairs.len() == 1 && pairs[0].1 == value, "a scan over a value of {length} bytes");
        assert_eq!(db.delete(key).ok(), Some(true), "{length}");
    }
    let error = db.put(7, vec![0; MOST + 1]).expect_err("it is longer than any value");
    let error = said(&error);
    let is_told = error.contains("1048577 bytes") && error.contains("1048576");
    assert!(is_told || (protocol == Protocol::Query && error.contains("up to 900,000 bytes")), "{error}");
    assert_eq!(db.get(7).ok(), Some(None));
    db.close();
}

/// The same by commands, which take long values on standard input.
fn by_commands(cluster: &str) {
    for length in [0, 8, 40, 41, 16_297, ARGUMENT] {
        let value = String::from_utf8(value(3, length)).expect("letters");
        assert_eq!(single(cluster, &["put", "5", &value]).0, Some(0), "{length}");
        assert!(single(cluster, &["get", "5"]) == (Some(0), value), "{length}");
    }
    for length in [MOST - 24, MOST - 23, MOST] {
        let value = String::from_utf8(value(5, length)).expect("letters");
        let (answers, all) = shell(&["--cluster", cluster], &format!("put 6 {value}\nget 6\n"));
        assert!(
            all && answers == format!("ok\n{value}\n"),
            "{length}: {}",
            &answers[..answers.len().min(200)]
        );
        assert!(single(cluster, &["get", "6"]) == (Some(0), value), "{length}");
    }
    let (answers, all) = shell(&["--cluster", cluster], &format!("put 8 {}\nget 8\n", "x".repeat(MOST + 1)));
    assert!(!all && answers.contains("not there"), "{}", &answers[..answers.len().min(200)]);
}

fn cluster_of(folder: &Path, structure: &str) -> PathBuf {
    if structure == "tree" { cluster_file(folder) } else { structure_file(folder, structure) }
}

fn in_a_structure(structure: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_of(folder.path(), structure);
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster]);
    up.until("ready");
    load(cluster, &["--keys", "10"]);
    by_the_library(&file, Protocol::Rdma, structure != "hash");
    by_commands(cluster);
    assert!(up.stop("INT").success());
}

#[test]
fn a_tree_returns_what_it_takes() {
    in_a_structure("tree");
}

#[test]
fn a_hash_table_returns_what_it_takes() {
    in_a_structure("hash");
}

#[test]
fn a_dolphin_index_returns_what_it_takes() {
    in_a_structure("dolphin");
}

#[test]
fn queries_return_what_they_take() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let text = std::fs::read_to_string(&file).expect("the file");
    let mut with_addresses = String::new();
    for line in text.lines() {
        with_addresses += &format!("{line}\n");
        if line == "[[memory_server]]" {
            let free = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
            with_addresses += &format!("query = \"{}\"\n", free.expect("a port"));
        }
    }
    std::fs::write(&file, with_addresses).expect("the file is written");
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster, "--serve", "queries"]);
    up.until("ready");
    load(cluster, &["--keys", "10"]);
    by_the_library(&file, Protocol::Query, true);
    assert!(up.stop("INT").success());
}
