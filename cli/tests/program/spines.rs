//! Leaves under two spines that both hold the fat root: one of them dies while a client looks up keys, and comes back.

#![allow(clippy::print_stdout, reason = "how long lookups stood still")]

use std::time::{Duration, Instant};

use crate::common::http::get;
use crate::common::processes::{Role, cluster_file_like, kill, process};
use crate::common::run;
use fatbtree_topology::Cluster;
use serde_json::Value;

/// Nothing takes so long unless it never ends.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lookups may stand still for so long. What is lost on the dead spine is sent again by way of the other within a second; the rest is for a
/// machine that is busy with something else.
const STILL: Duration = Duration::from_secs(4);

/// A running `bench --progress -`.
struct Bench {
    role: Role,
    /// When each look was taken, and how many operations had ended.
    looks: Vec<(Instant, u64)>,
}

impl Bench {
    fn start(cluster: &str) -> Self {
        let words =
            ["bench", "--cluster", cluster, "--operations", "1000000000", "--depth", "32", "--progress", "-"];
        Self { role: Role::start(&words), looks: Vec::new() }
    }

    fn follow(&mut self) {
        while let Some((at, line)) = self.role.line() {
            let Ok(line) = serde_json::from_str::<Value>(&line) else { continue };
            let count = |name: &str| line[name].as_u64().expect("a count");
            assert_eq!((count("wrong"), count("failed")), (0, 0), "{line}");
            self.looks.push((at, count("operations")));
        }
    }

    fn operations(&mut self) -> u64 {
        self.follow();
        self.looks.last().map_or(0, |look| look.1)
    }

    /// Waits until so many more have ended.
    fn goes_on(&mut self, more: u64) {
        let (began, goal) = (Instant::now(), self.operations() + more);
        while self.operations() < goal {
            assert!(began.elapsed() < PATIENCE, "lookups stand still");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The longest time since `from` in which no operation ended.
    fn longest_break(&mut self, from: Instant) -> Duration {
        self.follow();
        let after: Vec<Instant> = self.looks.iter().map(|look| look.0).filter(|at| *at >= from).collect();
        let breaks = after.windows(2).map(|two| two[1] - two[0]);
        breaks.chain(after.first().map(|first| *first - from)).max().expect("it goes on")
    }
}

fn status(cluster: &str) -> Value {
    let output = run(&["control", "status", "--cluster", cluster, "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn waits(cluster: &str, what: &str, is_so: impl Fn(&Value) -> bool) {
    let began = Instant::now();
    loop {
        let status = status(cluster);
        if is_so(&status) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{what}: {status:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Frames that a switch has received since it was started.
fn received(address: &str) -> u64 {
    let text = get(address, "/metrics");
    let of_ports = text.lines().filter(|line| line.starts_with("fatbtree_port_received_total{"));
    of_ports.map(|line| line.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok()).expect("a number")).sum()
}

#[test]
fn lookups_go_on_by_the_other_spine_and_come_back_to_the_first() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "leaf-spine"]);
    let cluster = file.to_str().expect("a plain path");
    let text = std::fs::read_to_string(&file).expect("the file");
    let described = Cluster::from_toml(&text).expect("a good file");
    let metrics = |name: &str| described.metrics(name).expect("each has a port").to_owned();
    let up = Role::start(&["up", cluster, "--keys", "20000"]);
    let spines = ["spine-0 ", "spine-1 "].map(|name| process(&up.until(name)));
    up.until("ready");
    let is_whole = |status: &Value| {
        let switches = status["switches"].as_array().expect("a list");
        status["epoch"].is_u64()
            && status["reload"].is_null()
            && status["switches_down"] == Value::Array(Vec::new())
            && status["cables_down"] == Value::Array(Vec::new())
            && switches.iter().all(|switch| switch["state"] == "settled")
    };
    waits(cluster, "a plan", is_whole);
    let mut bench = Bench::start(cluster);
    bench.goes_on(2000);

    for (spine, name, freeze) in [(spines[0], "spine-0", false), (spines[1], "spine-1", true)] {
        let dies = Instant::now();
        if freeze {
            // A frozen spine is not restarted: the other one has to do.
            assert!(kill("STOP", spine));
            waits(cluster, "it is missed", |status| !is_whole(status));
            bench.goes_on(4000);
        }
        assert!(kill("KILL", spine));
        up.until("ended");
        up.until("ready");
        waits(cluster, "it is back", is_whole);
        bench.goes_on(2000);
        let still = bench.longest_break(dies);
        println!("{name}: lookups stood still for {still:.2?}");
        assert!(still < STILL, "{name} died, and lookups stood still for {still:?}");

        // Half of the index reads are its own again.
        let (before, done) = (received(&metrics(name)), bench.operations());
        bench.goes_on(4000);
        let (more, done) = (received(&metrics(name)) - before, bench.operations() - done);
        assert!(more > done / 4, "{name} received {more} frames while {done} lookups ended");
    }
    drop(bench);
    assert!(up.stop("INT").success());
}
