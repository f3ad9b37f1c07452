//! Figure 10 of the Fat-B+Tree paper: throughput of one thread of a memory server by keys, clients, share of
//! reads and skew.
//!
//! Operations a second are the reciprocal of the processor's time for one: **counted** here, on this machine. Only how clients share the
//! thread is **modelled**.

use fatbtree_workload::ycsb::WorkloadSpec;

use super::server::{Failed, Kind, Lab, SEED, Worker, build};
use super::{median, spec};

/// The paper's defaults, where it varies another parameter.
const READS: f64 = 0.9;
const THETA: f64 = 0.99;

/// Microseconds that an operation of a client takes beside the server's: in the paper, one client alone has 52,000 operations a second.
const ELSEWHERE_US: f64 = 16.0;

/// Nanoseconds of an operation.
#[derive(Clone, Copy)]
struct Times {
    root: f64,
    led: f64,
}

/// Measures and prints it all, as Markdown.
pub(super) fn show(keys: u64, rounds: usize, operations: u64) -> Result<(), Failed> {
    let measure = |lab: &mut Lab, spec: &WorkloadSpec| measure(lab, spec, rounds, operations);
    let default = |keys| spec(keys, READS, Some(THETA));
    println!(
        "Thousands of operations a second of one thread, 64-byte values; {rounds} rounds of {operations} operations."
    );

    head("(a) keys", "up to × 1.35");
    let mut last = None;
    for tenths in [1, 2, 4, 6, 8, 10] {
        let keys = keys * tenths / 10;
        drop(last.take());
        let spec = default(keys)?;
        let mut lab = build(keys, &spec)?;
        let times = measure(&mut lab, &spec)?;
        row(&format!("{:.1} million", keys as f64 / 1e6), times);
        last = Some((lab, times));
    }
    let (mut lab, times) = last.ok_or("there is a last one")?;

    head("(b) clients, modelled", "up to × 1.32");
    for clients in [1, 2, 4, 8, 12, 16] {
        let each = |ns: f64| 1e3 / closed(clients, ns / 1e3, ELSEWHERE_US);
        row(&clients.to_string(), Times { root: each(times.root), led: each(times.led) });
    }

    head("(c) share of reads", "up to × 1.35");
    for reads in [0.5, 0.6, 0.7, 0.8, 0.9, 1.0] {
        row(&format!("{reads:.1}"), measure(&mut lab, &spec(keys, reads, Some(THETA))?)?);
    }

    head("(d) skew, Zipf", "up to × 1.32");
    for theta in [0.9, 0.92, 0.94, 0.96, 0.98, 0.99] {
        let spec = spec(keys, READS, Some(theta))?;
        lab.replan(&spec)?;
        row(&format!("{theta:.2}"), measure(&mut lab, &spec)?);
    }
    Ok(())
}

fn head(what: &str, paper: &str) {
    println!("\n| {what} | from the root | led by switches | gain (the paper: {paper}) |\n|---|---|---|---|");
}

fn row(name: &str, Times { root, led }: Times) {
    println!("| {name} | {:.0} | {:.0} | × {:.2} |", 1e6 / root, 1e6 / led, root / led);
}

/// Medians of rounds in which both kinds do the same operations.
fn measure(lab: &mut Lab, spec: &WorkloadSpec, rounds: usize, operations: u64) -> Result<Times, Failed> {
    let mut workers = [Worker::new(lab, Kind::Root, "root")?, Worker::new(lab, Kind::Led, "led")?];
    // The first does not count: pages are mapped.
    for round in 0..=rounds as u64 {
        for worker in &mut workers {
            let time = worker.run(lab, spec, SEED + 2 + round, operations)?;
            worker.times.extend((round > 0).then_some(time));
        }
    }
    let [root, led] = workers.map(|worker| median(&worker.times));
    Ok(Times { root, led })
}

/// Operations a microsecond of `clients`, each with one under way, which spends `elsewhere` outside and then
/// needs `service` of one thread: mean value analysis of a closed network with one queue.
fn closed(clients: u32, service: f64, elsewhere: f64) -> f64 {
    let (mut queue, mut rate) = (0.0, 0.0);
    for clients in 1..=clients {
        let residence = service * (1.0 + queue);
        rate = f64::from(clients) / (elsewhere + residence);
        queue = rate * residence;
    }
    rate
}
