//! The compiled program on BMv2 and on the software switch, frame by frame. Both are given the same entries
//! and the same frames, random and damaged ones among them. The frames that leave must be the same, bit for
//! bit.
//!
//! ```text
//! cargo run --release -p fatbtree-sim --example bmv2 -- --bmv2 PATH/simple_switch_grpc \
//!     [--frames 100000] [--seed 1] [--role core|aggregation|edge|single]
//! ```
//!
//! For each role a network is built that has it (`case.rs`), with hosts, connections, hot keys and two epochs
//! of a plan. One switch of it is programmed with all that it gets: the software switch in this process, BMv2
//! as a child process over P4Runtime. Frames (`frames.rs`) go to BMv2 by the gRPC interface that
//! `simple_switch_grpc` has for them (`--dp-grpc-server-addr`), which says of each packet that leaves which
//! one it was when it came in; so nothing depends on time or order, and no port or right of the machine is
//! needed. Every difference is printed with the frame, and makes the exit code 1. At the end all counters
//! must agree, those of the program and those of the tables' entries, and the probes that the controller was
//! given.
//!
//! What is not compared:
//!
//! * **Samples.** Of what is dropped the controller is given one of sixteen, drawn by lot, and each switch draws its own. They change no counter.
//! * **Marks of congestion.** BMv2 marks packets that have waited in a queue of 64 or more; the software switch has no queues. Frames
//!   go in batches that are no longer than [`BATCH`], each when BMv2 holds nothing of the one before, so that no queue is ever that long (and none
//!   overflows: it is there that BMv2's queues end).
//! * **Empty frames**, which the interface does not carry.
//!
//! BMv2 is p4lang's behavioral-model, built with its P4Runtime server: p4lang/PI first, with `--with-proto`, then behavioral-model with
//! `-DWITH_PI=ON` (Thrift and nanomsg are not needed). It is started with eight priority queues; with fewer it drops the packets that
//! `traffic_class` gives another queue than the first.
#![allow(clippy::print_stdout, reason = "an example prints what it has found")]

mod case;
mod counters;
mod damage;
mod frames;
mod ours;
mod reference;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fatbtree_controller::{Change, Tables, base};
use fatbtree_p4runtime::v1::PacketIn;
use fatbtree_p4runtime::{P4InfoIndex, PacketFormat};
use fatbtree_sim::Network;
use fatbtree_topology::IN_FLIGHT_PORT;
use rand_chacha::ChaCha8Rng as Random;

use case::Case;
use counters::Counts;
use frames::Frames;
use ours::Ours;
use reference::Reference;

/// Frames that BMv2 is given at one time: fewer than make a queue congested, or full.
const BATCH: usize = 60;
/// Differences that are printed; all are counted.
const SHOWN: usize = 20;

/// A frame, and the port that it comes in by.
#[derive(Clone, Debug)]
struct Frame {
    port: u16,
    bytes: Vec<u8>,
}

/// Frames that leave, and their ports.
type Sent = Vec<(u16, Vec<u8>)>;

struct Arguments {
    bmv2: Option<PathBuf>,
    frames: usize,
    seed: u64,
    role: Option<String>,
}

impl Arguments {
    fn parse() -> Result<Self, Box<dyn Error>> {
        let mut parsed = Self { bmv2: None, frames: 100_000, seed: 1, role: None };
        let mut arguments = std::env::args().skip(1);
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name}: expected a value after it"))?;
            match name.as_str() {
                "--bmv2" => parsed.bmv2 = Some(value.into()),
                "--frames" => parsed.frames = value.parse()?,
                "--seed" => parsed.seed = value.parse()?,
                "--role" => parsed.role = Some(value),
                _ => return Err(format!("{name}: expected --bmv2, --frames, --seed or --role").into()),
            }
        }
        Ok(parsed)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match Arguments::parse() {
        Ok(Arguments { bmv2: Some(bmv2), frames, seed, role }) => {
            compare_all(&bmv2, frames, seed, role.as_deref()).await
        }
        Ok(_) => Err(
            "expected --bmv2 PATH/simple_switch_grpc: build p4lang/PI with --with-proto, then p4lang/behavioral-model with \
             -DWITH_PI=ON -DWITH_THRIFT=OFF -DWITH_NANOMSG=OFF"
                .into(),
        ),
        Err(error) => Err(error),
    };
    match outcome {
        Ok(0) => ExitCode::SUCCESS,
        Ok(differences) => {
            println!("{differences} differences");
            ExitCode::from(1)
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

async fn compare_all(
    bmv2: &std::path::Path,
    frames: usize,
    seed: u64,
    role: Option<&str>,
) -> Result<usize, Box<dyn Error>> {
    let info = P4InfoIndex::from_text(fatbtree_p4::P4INFO)?;
    let mut differences = 0;
    for (case, mut random) in case::cases(role, seed)? {
        let mut reference = Reference::start(bmv2, &info).await?;
        differences += compare(&case, &info, &mut reference, frames, &mut random).await?;
    }
    Ok(differences)
}

/// One switch. How many differences there were.
async fn compare(
    case: &Case,
    info: &P4InfoIndex,
    reference: &mut Reference,
    count: usize,
    random: &mut Random,
) -> Result<usize, Box<dyn Error>> {
    let tables = Tables::new(info)?;
    let network = Network::new(case.network.clone(), case.placement.clone());
    let mut ours = Ours::start(case, &network)?;
    let of_base = base(&case.network, &case.placement, IN_FLIGHT_PORT);
    let of_base = of_base.get(&case.switch).ok_or("every switch has a base")?;
    let changes = of_base.changes().chain(case.changes.iter().copied());
    let updates = changes.map(|change: Change| change.update(&tables)).collect::<Result<Vec<_>, _>>()?;
    let entries = updates.len();
    // In order: the plan's default action of a table comes after the base's.
    for update in updates.chunks(1000) {
        reference.client.write(update.to_vec()).await?;
    }

    let began = Instant::now();
    let mut differences = Differences::default();
    let mut frames = Frames::new(case, random);
    let mut left = 0;
    for start in (0..count).step_by(BATCH) {
        let batch: Vec<Frame> = (start..count.min(start + BATCH)).map(|_| frames.next()).collect();
        let theirs = reference.pass(&batch).await?;
        for (frame, mut theirs) in batch.iter().zip(theirs) {
            let mut ours = ours.pass(frame);
            left += usize::from(!ours.is_empty());
            ours.sort_unstable();
            theirs.sort_unstable();
            if ours != theirs {
                differences.frame(frame, &ours, &theirs);
            }
        }
    }
    // Time for packets on their way to the controller.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let format = PacketFormat::of(info.p4info()).ok_or("the program has packets for the controller")?;
    let probes =
        [ours.take_packets_in(), reference.take_packets_in()].map(|packets| probes(&format, packets));
    let of_probes = differences.counts("packets for the controller", &probes[0], &probes[1]);
    let wanted = counters::wanted(info);
    let our_counts = counters::counts(info, &tables, ours.read(wanted.clone())?)?;
    let their_counts = counters::counts(info, &tables, reference.read(wanted).await?)?;
    let of_counters = differences.counts("counter", &our_counts, &their_counts);
    println!(
        "{} ({} of a network {}): {entries} entries, {count} frames of which {left} leave; {of_probes} probes; \
         {of_counters} counters above 0; {} differences; {:.0} s",
        case.name,
        case.network.switch(case.switch).name(),
        case.network.kind().name(),
        differences.count,
        began.elapsed().as_secs_f64(),
    );
    println!("    entries of the plan and of connections: {:?}", case.tables());
    let drops: Counts =
        our_counts.into_iter().filter(|(name, packets)| *packets > 0 && name.ends_with(']')).collect();
    println!("    counted: {drops:?}");
    Ok(differences.count)
}

/// Number of packets of each kind that the controller was given, without samples.
fn probes(format: &PacketFormat, packets: Vec<PacketIn>) -> Counts {
    let mut counts = BTreeMap::new();
    for packet in packets {
        if let Some((port, 0)) = format.read(&packet) {
            *counts.entry(format!("port {port}, {}", hex(&packet.payload))).or_default() += 1;
        }
    }
    counts
}

#[derive(Default)]
struct Differences {
    count: usize,
}

impl Differences {
    fn is_shown(&mut self) -> bool {
        self.count += 1;
        self.count <= SHOWN
    }

    fn frame(&mut self, frame: &Frame, ours: &Sent, theirs: &Sent) {
        if self.is_shown() {
            println!("DIFFERENCE: port {}, {}", frame.port, hex(&frame.bytes));
            for (who, sent) in [("software switch", ours), ("BMv2", theirs)] {
                println!("    {who}: {}", if sent.is_empty() { "dropped" } else { "" });
                for (port, bytes) in sent {
                    println!("        port {port}, {}", hex(bytes));
                }
            }
        }
    }

    /// Compares what both have counted. How many counts there are above 0.
    fn counts(&mut self, what: &str, ours: &Counts, theirs: &Counts) -> usize {
        let of = |counts: &Counts, name| counts.get(name).copied().unwrap_or(0);
        let mut names: Vec<&String> = ours.keys().chain(theirs.keys()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let (ours, theirs) = (of(ours, name), of(theirs, name));
            if ours != theirs && self.is_shown() {
                println!("DIFFERENCE: {what} {name}: software switch {ours}, BMv2 {theirs}");
            }
        }
        ours.values().filter(|count| **count > 0).count()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
