//! Real threads for as long as you like: clients that write to one tree and are killed, checked after each run.
//!
//! ```text
//! cargo run --release -p fatbtree-sim --example threads -- [SECONDS] [THREADS] [OPERATIONS] [KILLS]
//! ```
//!
//! Runs of so many operations a thread, one after the other, each with a seed of its own, until the time is up. After each the tree is
//! verified and all answers are checked. It ends at the first failure.
#![allow(clippy::print_stdout, reason = "an example prints what it has found")]

use std::error::Error;
use std::time::{Duration, Instant};

use fatbtree_sim::threads::{Options, run};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let span = Duration::from_secs(argument(120)?);
    let default = Options { operations: 20_000, kills: 8, ..Options::default() };
    let threads = u8::try_from(argument(default.threads.into())?)?;
    let operations = argument(default.operations)?;
    let kills = u32::try_from(argument(default.kills.into())?)?;
    let began = Instant::now();
    let (mut answered, mut killed, mut inherited) = (0, 0, 0);
    for seed in 1.. {
        let report = run(&Options { seed, threads, operations, kills, ..default })?;
        answered += report.answered;
        killed += report.killed;
        inherited += report.inherited_locks;
        println!("{:>4} s: {report:?}", began.elapsed().as_secs());
        if began.elapsed() > span {
            println!(
                "{seed} runs: {answered} answers explained, {killed} clients killed, {inherited} locks taken over"
            );
            break;
        }
    }
    Ok(())
}
