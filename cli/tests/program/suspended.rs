//! A process that was suspended has not waited: it goes on where it was.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::fatbtree;
use crate::common::http::get;
use crate::common::processes::{Role, cluster_file, kill, process};
use fatbtree_topology::Cluster;

/// Longer than the lease of a session.
const SUSPENDED: Duration = Duration::from_secs(12);

fn suspend(process: u32) {
    assert!(kill("STOP", process));
    std::thread::sleep(SUSPENDED);
    assert!(kill("CONT", process));
}

fn until_written(file: &Path, what: &str) {
    let began = Instant::now();
    let text = || std::fs::read_to_string(file).expect("text");
    while !text().contains(what) {
        assert!(began.elapsed() < Duration::from_secs(120), "no {what:?} in {}", text());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_demo_that_was_suspended_goes_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let errors = folder.path().join("errors");
    let mut command = fatbtree();
    command.args(["demo", "--keys", "20000", "--lookups", "2000"]);
    let demo = Role::of({
        command.stderr(File::create(&errors).expect("a file"));
        command
    });
    until_written(&errors, "planning without knowing");
    suspend(demo.id());
    assert!(demo.end().success(), "{}", std::fs::read_to_string(&errors).expect("text"));
}

/// The value of a counter without labels.
fn counter(address: &str, name: &str) -> u64 {
    let text = get(address, "/metrics");
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("{} "));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
}

#[test]
fn sessions_with_a_server_that_was_suspended_go_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file(folder.path());
    let path = file.to_str().expect("a plain path");
    let cluster =
        Cluster::from_toml(&std::fs::read_to_string(&file).expect("the file")).expect("a good file");
    let metrics = cluster.metrics("left").expect("an address");
    let up = Role::start(&["up", path, "--keys", "5000"]);
    let server = process(&up.until("left "));
    up.until("ready");
    let words = ["bench", "--cluster", path, "--operations", "1e9", "--patience", "60", "--progress", "-"];
    let bench = Role::start(&words);
    bench.until("\"operations\":");
    suspend(server);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(counter(metrics, "fatbtree_memory_server_sessions_lapsed_total"), 0);
    assert_eq!(bench.stop("INT").code(), Some(130));
}
