//! Roles of a cluster are killed, told to end and frozen, one after another, while a client's answers are checked. So are the
//! client itself and the process that keeps them all; and some are killed once more as soon as they are back.
//!
//! What is drawn follows from a seed. The run of the tests is short; a longer one, with how long each round took:
//!
//! ```text
//! FATBTREE_CHAOS_ROUNDS=200 FATBTREE_CHAOS_SEED=7 cargo test -p fatbtree-cli --test program chaos:: -- --nocapture
//! ```
//!
//! With `FATBTREE_CHAOS_FOLDERS=1` rounds also damage the folder of a memory server that is stopped, and fill the disk. The disk is a
//! small tmpfs that only the cluster's processes see, so this takes root and `unshare`; without them the test says that it cannot.
//!
//! With `FATBTREE_CHAOS_POWER=1` folders lie on a disk that loses what was not synced (`scripts/losing_disk.py`: root, `unshare`, FUSE), and
//! rounds also cut the power of a memory server, or of both at one moment. Servers have `--sync 0`, so all that was acknowledged must be there.

#![allow(clippy::print_stdout, reason = "what was drawn, and how long it took")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::chaos_folders::{Disk, with_writer};
use crate::common::processes::{Role, cluster_file, kill};
use crate::common::run;
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
/// Time after which a memory server ends the session of a client that is silent.
const LEASE: Duration = Duration::from_secs(10);
/// Nothing takes so long unless it never ends.
const PATIENCE: Duration = Duration::from_secs(40);
/// Memory servers of the example's cluster.
const SERVERS: [&str; 2] = ["left", "right"];
/// Processes of the example's cluster.
const MEMBERS: usize = 16;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// What a round does to a role.
#[derive(Clone, Copy, Debug)]
enum Act {
    Kill,
    End,
    Freeze(Duration),
    /// Killed, and once more this long after it was started again.
    KillTwice(Duration),
    /// The process that keeps all others is killed, and started again when they are gone.
    KillUp,
    /// The client that asks is killed, and another one asks.
    KillClient,
    /// While all are stopped a memory server's folder is damaged. It does not start, says why, and gets its folder back.
    DamageFolder,
    /// The disk is full for a while.
    FillDisk,
    /// The power of a memory server fails, or that of all at one moment.
    CutPower {
        all: bool,
    },
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

struct World<'a> {
    cluster: String,
    data: std::path::PathBuf,
    disk: &'a Disk,
    workload: &'static str,
    up: Role,
    members: BTreeMap<String, Member>,
    bench: Role,
    looks: Vec<Look>,
    result: std::path::PathBuf,
}

impl<'a> World<'a> {
    /// Takes what has been told.
    fn follow(&mut self) {
        while let Some((at, line)) = self.up.line() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some(name) = words.get(1).map(|name| (*name).to_owned()) else { continue };
            match words.get(4..) {
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

    fn is_ready(&self) -> bool {
        self.members.len() == MEMBERS && self.members.values().all(|member| member.answers)
    }

    /// Starts everything again after it has ended.
    fn start_up(&mut self) -> Instant {
        self.members.clear();
        self.up = self.disk.start_up(&self.cluster, &self.data);
        self.waits("all roles answer", |world| world.is_ready().then(Instant::now))
    }

    /// Waits until no process of the cluster is left, however it ended.
    fn until_gone(&mut self) {
        self.waits("all processes end", |world| {
            world.members.values().all(|member| is_gone(member.process)).then_some(())
        });
    }

    fn kill_and_wait(&mut self, name: &str) -> Instant {
        let process = self.members[name].process;
        assert!(kill("KILL", process));
        self.waits("it is started again", |world| {
            let member = world.members[name];
            (member.process != process).then_some(member.started)
        })
    }

    /// Stops servers, has their disks lose what was not synced, and kills them.
    fn cut_power(&mut self, names: &[&str]) -> Instant {
        let processes: Vec<u32> = names.iter().map(|name| self.members[*name].process).collect();
        for process in &processes {
            assert!(kill("STOP", *process));
        }
        self.waits("they stop", |_| processes.iter().all(|process| is_in_state(*process, 'T')).then_some(()));
        self.disk.cut(names);
        for process in &processes {
            assert!(kill("KILL", *process));
        }
        self.waits("they are started again", |world| {
            let members: Vec<_> = names.iter().map(|name| world.members[*name]).collect();
            let are_new = members.iter().zip(&processes).all(|(member, former)| member.process != *former);
            are_new.then(|| members.iter().map(|member| member.started).max().expect("there is one"))
        })
    }

    fn do_to(&mut self, name: &str, act: Act, random: &mut ChaCha8Rng) -> Instant {
        let process = self.members[name].process;
        match act {
            Act::KillTwice(after) => {
                self.kill_and_wait(name);
                std::thread::sleep(after);
                self.follow();
                self.kill_and_wait(name)
            }
            Act::KillUp => {
                assert!(kill("KILL", self.up.id()));
                self.until_gone();
                self.start_up()
            }
            Act::KillClient => {
                assert!(kill("KILL", self.bench.id()));
                // Its locks are freed when its session ends. Until then writes to these nodes fail, and say so.
                if self.workload != "c" {
                    std::thread::sleep(LEASE + Duration::from_secs(1));
                }
                self.bench = Self::start_bench(&self.cluster, self.workload, &self.result);
                Instant::now()
            }
            Act::DamageFolder => {
                assert!(kill("INT", self.up.id()));
                self.until_gone();
                self.disk.damage_and_restore(&self.cluster, &self.data.join(name), name, random);
                self.start_up()
            }
            Act::FillDisk => {
                let filled = self.disk.fill(&self.data);
                let (file, first) =
                    (std::path::PathBuf::from(&self.cluster), random.random_range(1..1 << 40) << 20);
                self.disk.insert_until_refused(&file, first);
                // What is read goes on meanwhile.
                let began = Instant::now();
                self.waits("lookups flow although the disk is full", |world| world.flows_since(began));
                drop(filled);
                self.disk.insert_again(&file, first);
                Instant::now()
            }
            Act::Freeze(time) => {
                assert!(kill("STOP", process));
                std::thread::sleep(time);
                assert!(kill("CONT", process));
                Instant::now()
            }
            Act::CutPower { all } => {
                self.cut_power(if all { &SERVERS[..] } else { std::slice::from_ref(&name) })
            }
            Act::Kill => self.kill_and_wait(name),
            Act::End => {
                assert!(kill("TERM", process));
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
            let act = self.draw_act(random);
            let is_of_a_server = matches!(act, Act::DamageFolder | Act::CutPower { .. });
            let name = if is_of_a_server { SERVERS[random.random_range(0..2)].to_owned() } else { name };
            println!("round {round}: {name} {act:?}");
            let back = self.do_to(&name, act, random);
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

    fn draw_act(&self, random: &mut ChaCha8Rng) -> Act {
        if self.disk.loses() && random.random_range(0..3) == 0 {
            return Act::CutPower { all: random.random_bool(0.4) };
        }
        let most = if self.disk.is_small() {
            16
        } else if self.disk.damages() {
            15
        } else {
            14
        };
        match random.random_range(0..most) {
            0..2 => Act::Kill,
            2..4 => Act::End,
            4..8 => Act::Freeze(Duration::from_millis(random.random_range(200..4000))),
            8..11 => Act::KillTwice(Duration::from_millis(random.random_range(0..1500))),
            11..13 => Act::KillUp,
            13 => Act::KillClient,
            14 => Act::DamageFolder,
            // Where the client writes it would be refused, too.
            15 if self.workload == "c" => Act::FillDisk,
            _ => Act::Kill,
        }
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

/// Whether a process has ended. A zombie, for which its parent has not waited yet, has ended, too.
fn is_gone(process: u32) -> bool {
    !Path::new(&format!("/proc/{process}")).exists() || is_in_state(process, 'Z')
}

/// Whether a process that is there is in a state, as `/proc` names it.
fn is_in_state(process: u32, state: char) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { return false };
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(state))
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
    let data = folder.path().join("data");
    std::fs::create_dir(&data).expect("a folder for trees");
    let text = std::fs::read_to_string(&file).expect("the cluster file");
    std::fs::write(&file, with_writer(&text)).expect("the cluster file is written");
    let disk = match from_environment("FATBTREE_CHAOS_POWER") {
        Some(1) => Disk::losing(&data, seed),
        _ => Disk::wanted(from_environment("FATBTREE_CHAOS_FOLDERS") == Some(1), &data),
    };
    let mut up = disk.start_up(&cluster, &data);
    let mut members = BTreeMap::new();
    let mut recoveries = Vec::new();
    // The one that writes comes last: a bench does not know what another has written.
    for workload in ["c", "a"] {
        println!("workload {workload}");
        let result = folder.path().join(format!("{workload}.json"));
        let bench = World::start_bench(&cluster, workload, &result);
        let (cluster, data, disk, looks) = (cluster.clone(), data.clone(), &disk, Vec::new());
        let mut world = World { cluster, data, disk, workload, up, members, bench, looks, result };
        let began = Instant::now();
        world.waits("all roles answer and lookups flow", |world| {
            world.flows_since(began).filter(|_| world.is_ready())
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
