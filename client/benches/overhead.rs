//! Cost of the client library beside the client process that it drives: one read after the other, and 32 at once.
//!
//! All have the same memory server, on a thread of this process, and nothing between. `process` runs the reads on its own thread; the library
//! has its thread asked by another one, and the answers brought back. They take turns, for a short time each, so that other load of the
//! machine meets all of them: what counts are the ratios of neighbouring runs.
//!
//! `cargo bench -p fatbtree --bench overhead`

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

#[path = "../tests/it/common/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod common;

use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use common::Running;
use fatbtree_processes::{ClientOptions, ClientProcess, NicSpec, at_free_seat};
use fatbtree_topology::Cluster;
use futures_buffered::FuturesUnorderedBounded;
use futures_core::Stream as _;
use tokio::runtime::Runtime;

/// Keys in the tree, which are read in turn.
const KEYS: u64 = 1_000;

/// Turns of each kind at each depth.
const TURNS: usize = 300;

/// Runs `count` operations, `depth` at once.
async fn in_turn<F: Future>(count: u64, depth: usize, begin: impl Fn(u64) -> F) {
    let mut under_way = FuturesUnorderedBounded::new(depth);
    let mut left = 0..count;
    poll_fn(|context| {
        loop {
            while under_way.len() < depth
                && let Some(number) = left.next()
            {
                under_way.push(begin(number % KEYS));
            }
            match Pin::new(&mut under_way).poll_next(context) {
                Poll::Ready(Some(output)) => drop(black_box(output)),
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
}

fn process(running: &Running) -> ClientProcess {
    let text = std::fs::read_to_string(running.folder.path().join("cluster.toml")).expect("the file");
    let cluster = Cluster::from_toml(&text).expect("a cluster file");
    let opened = at_free_seat(&cluster, cluster.clients()[0].host, Duration::ZERO, |host, port| {
        ClientProcess::open(&ClientOptions::new(host, NicSpec::Software(port), cluster.servers()))
    });
    opened.expect("the server runs")
}

/// Cost of an operation: wall time, processor time of all threads of this process, the server's among them, and switches between threads.
#[derive(Clone, Copy)]
struct Cost {
    micros: f64,
    processor_micros: f64,
    switches: f64,
}

/// Processor time in nanoseconds and switches of all threads so far.
fn spent() -> (u64, u64) {
    let (mut nanos, mut switches) = (0, 0);
    let number =
        |text: Option<&str>| text.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or_default();
    for task in std::fs::read_dir("/proc/self/task").expect("Linux has it").flatten() {
        // A thread may end meanwhile.
        let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        nanos += number(read("schedstat").split(' ').next());
        switches +=
            number(read("status").lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")));
    }
    (nanos, switches)
}

fn timed(count: u64, run: impl FnOnce()) -> Cost {
    let (before, begun) = (spent(), Instant::now());
    run();
    let (micros, after) = (begun.elapsed().as_secs_f64() * 1e6, spent());
    let each = |total: f64| total / count as f64;
    Cost {
        micros: each(micros),
        processor_micros: each((after.0 - before.0) as f64 / 1e3),
        switches: each((after.1 - before.1) as f64),
    }
}

fn of_process(process: &mut ClientProcess, count: u64, depth: usize) -> Cost {
    let client = process.client().clone();
    let get = |key| {
        let client = client.clone();
        async move { client.get(key).await.expect("nothing fails").map(|value| value.len()) }
    };
    timed(count, || process.run(in_turn(count, depth, get)).expect("the server runs"))
}

fn of_library(runtime: &Runtime, client: &fatbtree::Client, count: u64, depth: usize) -> Cost {
    let get = |key| async move { client.get(key).await.expect("nothing fails").map(|value| value.len()) };
    timed(count, || runtime.block_on(in_turn(count, depth, get)))
}

fn quantile(values: impl Iterator<Item = f64>, share: f64) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share) as usize]
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let running = Running::with_seats(4);
    let connect = |poll| {
        let options = running.options().poll_before_sleep(Duration::from_micros(poll));
        runtime.block_on(options.connect()).expect("the server runs")
    };
    let libraries = [("library", connect(50)), ("library that does not poll", connect(0))];
    runtime.block_on(async {
        for key in 0..KEYS {
            libraries[0].1.put(key, key.to_le_bytes()).await.expect("there is room");
        }
    });
    let mut process = process(&running);
    for (depth, count) in [(1, 100), (32, 2_000)] {
        let mut costs = [const { Vec::new() }; 3];
        for _ in 0..TURNS {
            costs[0].push(of_process(&mut process, count, depth));
            for (n, (_, client)) in libraries.iter().enumerate() {
                costs[1 + n].push(of_library(&runtime, client, count, depth));
            }
        }
        println!("\ndepth {depth}, a read:            µs p10   p50   processors' µs   switches");
        let names = ["process"].into_iter().chain(libraries.iter().map(|(name, _)| *name));
        for (name, of_this) in names.zip(&costs) {
            let at = |share, value: fn(&Cost) -> f64| quantile(of_this.iter().map(value), share);
            let (low, middle) = (at(0.1, |cost| cost.micros), at(0.5, |cost| cost.micros));
            let (processor, switches) =
                (at(0.5, |cost| cost.processor_micros), at(0.5, |cost| cost.switches));
            let ratios = of_this.iter().zip(&costs[0]).map(|(cost, base)| cost.micros / base.micros);
            let ratio = quantile(ratios, 0.5);
            println!(
                "{name:<26} {low:>8.1} {middle:>5.1} {processor:>16.1} {switches:>10.2}   {ratio:.2} times the process's"
            );
        }
    }
    process.close();
    for (_, client) in libraries {
        runtime.block_on(client.close());
    }
}
