//! Processor time of a memory server for an answer, where switches have found the node to begin at and where
//! they have not.
//!
//! ```sh
//! cargo run --release -p fatbtree-sim --example query_server_time                          # 4 million keys
//! cargo run --release -p fatbtree-sim --example query_server_time -- --gib 12 --rounds 10  # as many as fit in so much
//! cargo run --release -p fatbtree-sim --example query_server_time -- --only led            # for a profiler
//! cargo run --release -p fatbtree-sim --example query_server_time -- --figure-10 --keys 2e7    # what the paper's Figure 10 varies
//! ```
//!
//! One [`QueryWorker`] without I/O: requests are made beforehand, answers are looked at afterwards, and the time of the thread is taken
//! between. 90 % reads, 10 % updates, Zipf 0.99, values of 64 bytes, as the memory server's process has its trees. The plan is the
//! controller's, within what the programs of a Tofino 1 have room for, of sampled keys; where it leads a query is what the compiled
//! switches write (`sim/tests/it/queries.rs` compares both). All kinds have the same operations in each round, one kind after the other.

#![allow(clippy::print_stdout, reason = "an example prints what it has found")]

mod figure_10;
mod server;

use std::process::ExitCode;

use fatbtree_workload::ycsb::{WorkloadSpec, builtin};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

use server::{Failed, Kind, SEED, Worker, build};

struct Arguments {
    keys: u64,
    rounds: usize,
    operations: u64,
    only: Option<Kind>,
    workload: String,
    figure: bool,
}

/// Bytes of memory for each key, of values of 64 bytes: records, leaves that are three quarters full, inner nodes.
const BYTES_PER_KEY: u64 = 140;

fn arguments() -> Result<Arguments, Failed> {
    let mut found = Arguments {
        keys: 4_000_000,
        rounds: 6,
        operations: 400_000,
        only: None,
        workload: "zipf".into(),
        figure: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--figure-10" {
            found.figure = true;
            continue;
        }
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        match word.as_str() {
            "--keys" => found.keys = value.parse::<f64>()? as u64,
            "--gib" => found.keys = (value.parse::<f64>()? * (1u64 << 30) as f64) as u64 / BYTES_PER_KEY,
            "--rounds" => found.rounds = value.parse()?,
            "--operations" => found.operations = value.parse::<f64>()? as u64,
            "--only" => {
                let kind = Kind::ALL.into_iter().find(|(_, name)| *name == value);
                found.only = Some(kind.ok_or("expected root, led, cached or led-and-cached")?.0);
            }
            "--requests" => found.workload = value,
            _ => {
                return Err(format!(
                    "{word}: expected --keys, --gib, --rounds, --operations, --only, --requests or --figure-10"
                )
                .into());
            }
        }
    }
    Ok(found)
}

/// Such a share of reads, the rest updates; Zipf's exponent, none where all keys are alike.
fn spec(keys: u64, reads: f64, theta: Option<f64>) -> Result<WorkloadSpec, Failed> {
    let mut properties = builtin("a")?;
    properties.set("recordcount", &keys.to_string());
    properties.set("readproportion", &reads.to_string());
    properties.set("updateproportion", &(1.0 - reads).to_string());
    match theta {
        Some(theta) => properties.set("zipfianconstant", &theta.to_string()),
        None => properties.set("requestdistribution", "uniform"),
    }
    Ok(WorkloadSpec::from_properties(&properties)?)
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn measure() -> Result<(), Failed> {
    let Arguments { keys, rounds, operations, only, workload, figure } = arguments()?;
    if figure {
        return figure_10::show(keys, rounds, operations);
    }
    let spec = spec(keys, 0.9, if workload == "uniform" { None } else { Some(0.99) })?;
    let mut lab = build(keys, &spec)?;
    print!("{}", lab.plan.print());
    let info = *lab.server.info();
    println!(
        "{keys} keys in {:.1} GiB, {} levels above records; {} leaves, {} inner nodes",
        lab.server.memory().len() as f64 / (1u64 << 30) as f64,
        info.partition.root_level + 1,
        info.counts.leaf_nodes,
        info.counts.internal_nodes
    );
    let mut workers = Vec::new();
    for (kind, name) in Kind::ALL.into_iter().filter(|(kind, _)| only.is_none_or(|only| only == *kind)) {
        workers.push(Worker::new(&mut lab, kind, name)?);
    }
    // One round that does not count: pages are mapped, caches fill.
    for worker in &mut workers {
        worker.run(&mut lab, &spec, SEED + 2, operations)?;
        (worker.handled, worker.turned, worker.sent) = Default::default();
        worker.operations = 0;
    }
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let before: Vec<_> = workers.iter().map(|worker| worker.worker.stats()).collect();
    for round in 0..rounds {
        // Each kind is first once in a while.
        for turn in 0..workers.len() {
            let place = (turn + round) % workers.len();
            let time = workers[place].run(&mut lab, &spec, SEED + 3 + round as u64, operations)?;
            workers[place].times.push(time);
        }
    }
    let after = getrusage(UsageWho::RUSAGE_SELF)?;
    let (user, system) = (
        after.user_time().num_microseconds() - usage.user_time().num_microseconds(),
        after.system_time().num_microseconds() - usage.system_time().num_microseconds(),
    );
    println!(
        "{rounds} rounds of {operations} operations each; the process: {user} µs user, {system} µs system"
    );
    println!(
        "kind             ns/op median (least..most)   handle   turn   send   reads/op    led   stale   ratio to root (each round)"
    );
    let root = workers.iter().find(|worker| worker.kind == Kind::Root).map(|worker| worker.times.clone());
    for (worker, before) in workers.iter().zip(&before) {
        let count = worker.operations as f64;
        let each = |time: std::time::Duration| time.as_nanos() as f64 / count;
        let (least, most) = worker
            .times
            .iter()
            .fold((f64::MAX, 0.0), |(least, most): (f64, f64), time| (least.min(*time), most.max(*time)));
        let stats = worker.worker.stats();
        let share = |now: u64, before: u64| 100.0 * (now - before) as f64 / count;
        let ratios: Vec<f64> = match &root {
            Some(root) => root.iter().zip(&worker.times).map(|(root, time)| root / time).collect(),
            None => Vec::new(),
        };
        let listed: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
        println!(
            "{:<16} {:>8.0} ({least:.0}..{most:.0}) {:>12.0} {:>6.0} {:>6.0} {:>9.2} {:>6.1}% {:>5.1}%   {:.3} ({})",
            worker.name,
            median(&worker.times),
            each(worker.handled),
            each(worker.turned),
            each(worker.sent),
            (stats.pool.remote.reads - before.pool.remote.reads) as f64 / count,
            share(stats.led, before.led),
            share(stats.stale_hints, before.stale_hints),
            median(&ratios),
            listed.join(", ")
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("query_server_time: {error}");
            ExitCode::FAILURE
        }
    }
}
