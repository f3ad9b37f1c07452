//! Cost of a write and a read of memory, with and without a journal: `cargo run --release -p fatbtree-verbs --example journal_cost FOLDER`.
//!
//! One thread writes 100 bytes at places all over 256 MiB, and commits after 1 or 32 of them, as a memory server does after a batch of frames.
//! The folder is on the disk that is measured.

#![allow(clippy::print_stdout, reason = "an example reports on the terminal")]

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fatbtree_verbs::Memory;
use fatbtree_verbs::journal::{Disk, Journal, OsDisk, Pace, Target};
use nix::time::{ClockId, clock_gettime};

const BYTES: u64 = 256 << 20;
const WRITES: u64 = 400_000;
/// With a sync for each commit.
const FEW: u64 = 2_000;

fn memory(folder: &Path, pace: Option<Pace>) -> (Memory, Option<Arc<Journal>>) {
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::default());
    let path = folder.join("memory");
    let memory = Memory::file(&path, disk.open(&path, true).expect("a file"), BYTES).expect("a mapping");
    memory.reserve(BYTES).expect("there is room");
    let Some(pace) = pace else { return (memory, None) };
    memory.sync().expect("the disk works");
    let journal = folder.join("journal");
    Journal::create(&*disk, &journal, Journal::LARGEST_HALF, 1).expect("there is room");
    let target = Target { file: disk.open(&path, false).expect("a file"), path, len: BYTES };
    let journal = Journal::open(&disk, &journal, 1, vec![target], pace).expect("it is new");
    memory.journalled(&journal, 0).expect("a mapping");
    (memory, Some(journal))
}

/// Processor time of all threads of this process.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("the system has this clock");
    Duration::new(time.tv_sec() as u64, time.tv_nsec() as u32)
}

/// Nanoseconds of processor time for each write, time that passes for each write, and processor time for each read.
fn measure(folder: &Path, pace: Option<Pace>, batch: u64) -> [f64; 3] {
    let (memory, journal) = memory(folder, pace);
    let place = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (BYTES / 128) * 128;
    let write = |count: u64| {
        let began = Instant::now();
        for number in 0..count {
            memory.write(place(number), &[number as u8; 100]).expect("it is inside");
            if number % batch == batch - 1 {
                memory.commit().expect("the disk works");
            }
        }
        began.elapsed().as_nanos() as f64 / count as f64
    };
    let count = if pace == Some(Pace::Each) { FEW * batch.min(8) } else { WRITES };
    let [works, passes] = thread::scope(|scope| {
        if let Some(journal) = &journal {
            scope.spawn(|| while journal.wait_for_sealed() && journal.apply().is_ok() {});
            if let Pace::Every(interval) = journal.pace() {
                scope.spawn(move || while journal.pause(interval / 2) && journal.sync().is_ok() {});
            }
        }
        // Pages are touched before, as in a server that has run for a while.
        if pace != Some(Pace::Each) {
            write(count);
        }
        let before = processor_time();
        let passes = write(count);
        let works = (processor_time() - before).as_nanos() as f64 / count as f64;
        journal.iter().for_each(|journal| journal.close());
        [works, passes]
    });
    let mut bytes = [0; 100];
    let before = processor_time();
    for number in 0..WRITES {
        memory.read(place(number), &mut bytes).expect("it is inside");
        std::hint::black_box(&bytes);
    }
    [works, passes, (processor_time() - before).as_nanos() as f64 / WRITES as f64]
}

fn main() {
    let folder = std::env::args().nth(1).expect("a folder on the disk to be measured");
    let folder = Path::new(&folder);
    println!("{:<34} {:>12} {:>12} {:>12}", "ns each", "write: work", "passes", "read: work");
    for batch in [1, 32] {
        for (name, pace) in [
            ("mapped, no journal", None),
            ("--sync never", Some(Pace::Never)),
            ("--sync 1", Some(Pace::Every(Duration::from_secs(1).into()))),
            ("--sync 0", Some(Pace::Each)),
        ] {
            let [write, passes, read] = measure(folder, pace, batch);
            println!("{name:<22} {batch:>2} a commit {write:>12.0} {passes:>12.0} {read:>12.0}");
        }
    }
}
