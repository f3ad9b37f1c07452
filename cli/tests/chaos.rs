//! Roles of a cluster are killed, told to end and frozen, one after another, while a client's answers are checked.
//!
//! What is drawn follows from a seed. The run of the tests is short; a longer one, with how long each round took:
//!
//! ```text
//! FATBTREE_CHAOS_ROUNDS=200 FATBTREE_CHAOS_SEED=7 cargo test -p fatbtree --test chaos -- --nocapture
//! ```

#![allow(clippy::print_stdout, reason = "what was drawn, and how long it took")]

mod common;
#[path = "common/processes.rs"]
mod processes;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::run;
use processes::{Role, cluster_file, kill};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

/// Operations under way at once.
const DEPTH: u64 = 32;
/// Two looks at the client, so far apart at most, between which so many operations end, are a flow: more than are stuck.
const STEP: Duration = Duration::from_secs(1);
const MOVED: u64 = 2 * DEPTH;
/// Lookups flow again when they have done so for this long, without a break.
const STEADY: Duration = Duration::from_secs(1);
/// Nothing takes so long unless it never ends.
const PATIENCE: Duration = Duration::from_secs(40);

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// What a round does to a role.
#[derive(Clone, Copy, Debug)]
enum Act {
    Kill,
    End,
    Freeze(Duration),
}

/// A line of `bench --progress -`.
#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    operations: u64,
    registered: bool,
}

/// How long after a role was back.
#[derive(Clone, Copy)]
struct Recovery {
    /// Until lookups flowed.
    flows: Duration,
    /// Until they flowed without a break. On a machine that is busy with something else there are breaks without a reason in the cluster.
    steady: Duration,
    /// Until all index reads were sent to the switches again.
    led: Duration,
}

/// A process of `up`, as its lines tell of it.
#[derive(Clone, Copy)]
struct Member {
    process: u32,
    started: Instant,
    answers: bool,
}

struct World {
    cluster: String,
    up: Role,
    members: BTreeMap<String, Member>,
    bench: Role,
    looks: Vec<Look>,
    result: std::path::PathBuf,
}

impl World {
    /// Takes what has been told.
    fn follow(&mut self) {
        while let Some((at, line)) = self.up.line() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some(name) = words.first().map(|name| (*name).to_owned()) else { continue };
            match words.get(3..) {
                Some(["started,", "process", process]) => {
                    let process = process.parse().expect("started, process N");
                    self.members.insert(name, Member { process, started: at, answers: false });
                }
                Some(["answers", ..]) => {
                    self.members.get_mut(&name).expect("it was started").answers = true;
                }
                Some(["silent:" | "ended:", ..]) => {
                    self.members.get_mut(&name).expect("it was started").answers = false;
                }
                _ => {}
            }
        }
        while let Some((at, line)) = self.bench.line() {
            let Ok(line) = serde_json::from_str::<Value>(&line) else { continue };
            let count = |name: &str| line[name].as_u64().expect("a count");
            assert_eq!((count("wrong"), count("failed")), (0, 0), "{line}");
            let registered = line["registered"] == true;
            self.looks.push(Look { at, operations: count("operations"), registered });
        }
    }

    fn start_bench(cluster: &str, workload: &str, result: &std::path::Path) -> Role {
        let result = result.to_str().expect("a plain path");
        Role::start(&[
            "bench",
            "--cluster",
            cluster,
            "--operations",
            "1000000000",
            "--workload",
            workload,
            "--depth",
            &DEPTH.to_string(),
            "--patience",
            "60",
            "--progress",
            "-",
            "--json",
            result,
        ])
    }

    /// When lookups began to flow without a break, if they have done so for long enough, and when they were led.
    fn flows_since(&self, back: Instant) -> Option<Recovery> {
        let mut looks = self.looks.iter().skip_while(|look| look.at < back);
        let mut before = *looks.next()?;
        let (mut first, mut since, mut led) = (None, None, None);
        for look in looks {
            let flows = look.at - before.at <= STEP && look.operations - before.operations >= MOVED;
            // Lines come as operations end: many of them may be of few.
            let is_short = look.at - before.at < STEP / 10;
            if !flows && is_short {
                continue;
            }
            first = first.or(flows.then_some(before.at));
            since = if flows { since.or(Some(before.at)) } else { None };
            led = if look.registered { led.or(Some(look.at)) } else { None };
            before = *look;
        }
        let (first, since, led) = (first?, since?, led?);
        (before.at - since >= STEADY).then(|| Recovery {
            flows: first - back,
            steady: since - back,
            led: led - back,
        })
    }

    fn waits<T>(&mut self, what: &str, is_so: impl Fn(&Self) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            self.follow();
            if let Some(result) = is_so(self) {
                return result;
            }
            if began.elapsed() > PATIENCE {
                let status = run(&["control", "status", "--cluster", &self.cluster]);
                panic!("{what}: {}", String::from_utf8_lossy(&status.stdout));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn do_to(&mut self, name: &str, act: Act) -> Instant {
        let process = self.members[name].process;
        match act {
            Act::Freeze(time) => {
                assert!(kill("STOP", process));
                std::thread::sleep(time);
                assert!(kill("CONT", process));
                Instant::now()
            }
            Act::Kill | Act::End => {
                assert!(kill(if matches!(act, Act::Kill) { "KILL" } else { "TERM" }, process));
                self.waits("it is started again", |world| {
                    let member = world.members[name];
                    (member.process != process).then_some(member.started)
                })
            }
        }
    }

    fn rounds(&mut self, random: &mut ChaCha8Rng, rounds: u64) -> Vec<Recovery> {
        let mut all = Vec::new();
        for round in 0..rounds {
            let names: Vec<String> = self.members.keys().cloned().collect();
            // The controller and the memory servers are few among many switches.
            let name = match random.random_range(0..6) {
                0 => "controller".to_owned(),
                1 => "left".to_owned(),
                2 => "right".to_owned(),
                3 => "core-0".to_owned(),
                _ => names[random.random_range(0..names.len())].clone(),
            };
            let act = match random.random_range(0..4) {
                0 => Act::Kill,
                1 => Act::End,
                _ => Act::Freeze(Duration::from_millis(random.random_range(200..4000))),
            };
            println!("round {round}: {name} {act:?}");
            let back = self.do_to(&name, act);
            let recovery = self.waits(&format!("round {round}: {name} {act:?}"), |world| {
                let all_answer = world.members.values().all(|member| member.answers);
                world.flows_since(back).filter(|_| all_answer)
            });
            let Recovery { flows, steady, led } = recovery;
            println!(
                "  lookups flow after {flows:.2?}, without a break after {steady:.2?}, are led after {led:.2?}"
            );
            self.looks.clear();
            all.push(recovery);
        }
        all
    }

    fn ends_well(mut self) -> Role {
        assert!(kill("INT", self.bench.id()));
        let began = Instant::now();
        while !self.result.exists() {
            assert!(began.elapsed() < PATIENCE, "the client does not stop");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.follow();
        let Self { cluster, up, bench, result, .. } = self;
        drop(bench);
        let result: Value =
            serde_json::from_str(&std::fs::read_to_string(&result).expect("it is there")).expect("JSON");
        assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{result}");
        println!(
            "{} operations, {}/s, {} round trips, {} writes unknown",
            result["operations"], result["ops_per_s"], result["round_trips"], result["unknown"]
        );

        let control = |word: &str| -> Value {
            let output = run(&["control", word, "--cluster", &cluster, "--json"]);
            assert!(output.status.success(), "{word}: {}", String::from_utf8_lossy(&output.stderr));
            serde_json::from_slice(&output.stdout).expect("JSON")
        };
        let list = |status: &Value, name: &str| status[name].as_array().expect("a list").clone();
        let began = Instant::now();
        let settled = loop {
            let status = control("status");
            let epoch = &status["epoch"];
            // While a cable is taken for dead, or comes back, ways change.
            let is_whole = ["switches_down", "cables_down"].iter().all(|name| list(&status, name).is_empty());
            let is_settled = is_whole
                && status["reload"].is_null()
                && list(&status, "switches").iter().all(|switch| {
                    // One that caches no nodes holds no epoch.
                    switch["state"] == "settled" && (switch["epoch"].is_null() || switch["epoch"] == *epoch)
                })
                && list(&status, "servers")
                    .iter()
                    .all(|server| server["state"] == "settled" && server["connections"] == 0);
            if is_settled && epoch.is_u64() {
                break status;
            }
            assert!(began.elapsed() < PATIENCE, "not settled: {status:#}");
            std::thread::sleep(Duration::from_millis(100));
        };
        let entries = |name: &str| -> u64 {
            list(&settled, "switches").iter().filter_map(|switch| switch[name].as_u64()).sum()
        };
        assert_eq!(entries("entries"), settled["entries"].as_u64().expect("a count"), "{settled:#}");
        assert_eq!(entries("connections"), 0, "{settled:#}");
        let synced = control("sync");
        let switches = list(&settled, "switches").len();
        assert_eq!((&synced["settled"], &synced["mended"]), (&switches.into(), &0.into()), "{synced:#}");
        up
    }
}

fn distribution(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
    let late = times.iter().filter(|time| **time > Duration::from_secs(2)).count();
    println!(
        "{what}: median {:.2?}, p90 {:.2?}, p99 {:.2?}, longest {:.2?}, {late} of {} over 2 s",
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0),
        times.len()
    );
}

#[test]
fn lookups_flow_whatever_dies_or_freezes() {
    let seed = from_environment("FATBTREE_CHAOS_SEED").unwrap_or_else(rand::random);
    let rounds = from_environment("FATBTREE_CHAOS_ROUNDS").unwrap_or(6);
    println!("FATBTREE_CHAOS_SEED={seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file(folder.path());
    let cluster = file.to_str().expect("a plain path").to_owned();
    let data = folder.path().join("data").display().to_string();
    let mut up = Role::start(&["up", &cluster, "--keys", "20000", "--data", &data]);
    let mut members = BTreeMap::new();
    let mut recoveries = Vec::new();
    // The one that writes comes last: a bench does not know what another has written.
    for workload in ["c", "a"] {
        println!("workload {workload}");
        let result = folder.path().join(format!("{workload}.json"));
        let bench = World::start_bench(&cluster, workload, &result);
        let mut world = World { cluster: cluster.clone(), up, members, bench, looks: Vec::new(), result };
        let began = Instant::now();
        world.waits("all roles answer and lookups flow", |world| {
            let all_answer = world.members.len() == 16 && world.members.values().all(|member| member.answers);
            world.flows_since(began).filter(|_| all_answer)
        });
        recoveries.extend(world.rounds(&mut random, rounds / 2));
        members = world.members.clone();
        up = world.ends_well();
    }
    let times = |of: fn(&Recovery) -> Duration| recoveries.iter().map(of).collect();
    distribution("until lookups flow", times(|recovery| recovery.flows));
    distribution("until they flow without a break", times(|recovery| recovery.steady));
    distribution("until all are led by switches", times(|recovery| recovery.led));
    assert!(up.stop("INT").success());
}
