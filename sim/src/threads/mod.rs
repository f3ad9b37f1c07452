//! Real threads in real time: clients that write to one tree, and are killed.
//!
//! ```text
//!   thread 1: Client ─ NIC ─┐ rings of frames                        ┌─ sessions, leases, owners of locks
//!   thread 2: Client ─ NIC ─┼────────────────► NIC ─ MemoryServer ◄──┘  (Mailbox, as in production)
//!   thread 3: Client ─ NIC ─┘                  a thread, too
//!        └── killed: dropped with all its operations, frames still under way; then a new life
//! ```
//!
//! Nothing here follows from a seed alone: threads meet as the machine has it. So this finds what the simulator's order of things
//! hides, and the simulator finds what this hits once a year. The seed decides which client does what.
//!
//! A client that is killed says nothing. Its session ends when its lease does. The server then destroys its queue
//! pairs and reports that the owner of its locks is dead, and other clients take them over. In the end, all dead
//! sessions have ended. Then the tree is [verified](fatbtree_blink::Pool::verify) and all of it is scanned. One order
//! of events must explain all answers of all threads. So every acknowledged write is there.
//! A run that is wrong says so; one that hangs fails after [`Options::patience`] without an answer.

mod life;
mod log;
mod server;
mod wires;
mod work;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fatbtree_blink::{PoolConfig, TreeConfig, ValueLayout};
use fatbtree_blink_client::ComputeServer;
use fatbtree_blink_host::{LoadOptions, bulk_load, fixed};
use fatbtree_memserver::{Bounds, Limits, MemoryServer, ServerOptions, mailbox_with_waker};
use fatbtree_soft_nic::{Nic, NicConfig};
use fatbtree_verbs::time::{Duration, Instant};
use serde::Serialize;

use life::Place;
use log::{Entries, Order, history};
use wires::wires;
use work::Tally;

/// Size of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Seed of the clients' choices.
    pub seed: u64,
    /// Threads with a client each, at most 64.
    pub threads: u8,
    /// Operations that each has under way.
    pub depth: u32,
    /// Operations of each thread, all its lives together.
    pub operations: u64,
    /// Number of times that each client is killed.
    pub kills: u32,
    /// Keys that they are about, at least 2; every other one is there at first.
    pub keys: u64,
    /// Time for which sessions last without renewal.
    pub lease: Duration,
    /// Time for which a thread goes on without any answer before it reports that it hangs.
    pub patience: Duration,
}

impl Default for Options {
    /// A second or two on two processors.
    fn default() -> Self {
        Self {
            seed: 1,
            threads: 3,
            depth: 8,
            operations: 4_000,
            kills: 3,
            keys: 1_000,
            lease: Duration::from_millis(150),
            patience: Duration::from_secs(60),
        }
    }
}

counters! {
    /// Result of a run.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    pub struct Report {
        /// Operations that were answered, and explained.
        pub answered: u64,
        /// Operations that said that they failed, or may have.
        pub failed: u64,
        /// Operations that were under way when their client was killed.
        pub cut_short: u64,
        /// Clients killed.
        pub killed: u64,
        /// Sessions that ended because they were not renewed.
        pub lapsed: u64,
        /// Locks taken over from owners that were dead.
        pub inherited_locks: u64,
        /// Nodes split.
        pub splits: u64,
        /// Nodes merged.
        pub merges: u64,
        /// Keys of the tree in the end, which was verified.
        pub keys: u64,
    }
}

/// A failed run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}: {what}")]
pub struct Failure {
    /// Seed of the run.
    pub seed: u64,
    /// The problem, in words.
    pub what: String,
}

/// The wall's time since a run began.
#[derive(Clone, Copy, Debug)]
struct Clock(std::time::Instant);

impl Clock {
    fn start() -> Self {
        Self(std::time::Instant::now())
    }

    fn now(self) -> Instant {
        Instant::ZERO + self.0.elapsed().into()
    }
}

/// The value that a key has at first.
fn first_value(key: u64) -> u64 {
    key | 1 << 63
}

/// Runs the clients' threads to the end, and checks their answers.
///
/// # Errors
/// An answer that nothing explains, a tree that is damaged, an operation that fails after the last death, or
/// no end.
pub fn run(options: &Options) -> Result<Report, Failure> {
    try_run(options).map_err(|what| Failure { seed: options.seed, what })
}

fn try_run(options: &Options) -> Result<Report, String> {
    const CACHE: u64 = 1 << 20;
    const LANES: u8 = 2;
    // Nodes so small that they are split and merged all the time.
    let tree = TreeConfig::new(5, 256, ValueLayout::Inline(8)).map_err(|error| error.to_string())?;
    let initial: Vec<u64> = (0..options.keys).step_by(2).map(work::key_of).collect();
    let load = LoadOptions { spare_bytes: 64 << 20, ..LoadOptions::new(tree, 0) };
    let mut values = fixed(8, |key, room: &mut [u8]| room.copy_from_slice(&first_value(key).to_le_bytes()));
    let loaded = bulk_load(&load, &initial, &mut values).map_err(|error| error.to_string())?;
    let roots = fatbtree_blink::SuperRoot::new(vec![loaded.partition]).map_err(|error| error.to_string())?;
    let clock = Clock::start();
    let nic = Nic::new(server_nic(), options.seed).map_err(|error| error.to_string())?;
    let mut server = MemoryServer::new(nic, loaded, &server_options(options), options.seed)
        .map_err(|error| error.to_string())?;

    let (handle, mailbox) = mailbox_with_waker(64, || {});
    let config = PoolConfig { tree, lanes: LANES, ..PoolConfig::default() };
    let clients = ComputeServer::new(config, roots, CACHE);
    let (order, is_over, words) = (Order::default(), AtomicBool::new(false), AtomicU64::new(0));
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for _ in 0..=options.threads {
        let (client, server) = wires();
        here.push(client);
        there.push(server);
    }
    let place = |number: u8| Place {
        number,
        options,
        clients: &clients,
        handle: &handle,
        order: &order,
        words: &words,
        clock,
    };
    let (logs, tallies, tree) = std::thread::scope(|scope| {
        scope.spawn(|| server::serve(&mut server, mailbox, there, clock, &is_over));
        let auditor = here.pop();
        let threads: Vec<_> = (0..options.threads)
            .zip(here)
            .map(|(number, port)| {
                let place = place(number);
                scope.spawn(move || work::live(&place, port))
            })
            .collect();
        let results: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        let ended = || {
            let mut logs: Vec<Entries> = Vec::new();
            let mut sum = Tally::default();
            for result in results {
                let (log, tally) = result.map_err(|_| "a client's thread panicked".to_owned())??;
                logs.push(log);
                sum += tally;
            }
            let port = auditor.expect("there is a port more than threads");
            let (log, tree) = work::audit(&place(options.threads), port)?;
            logs.push(log);
            Ok::<_, String>((logs, sum, tree))
        };
        let ended = ended();
        is_over.store(true, Ordering::Relaxed);
        ended
    })?;
    let checked = history(initial.iter().map(|key| (*key, first_value(*key))), logs)
        .check()
        .map_err(|violation| violation.to_string())?;
    let lapsed = server.statistics().into_iter().find(|(name, _)| name == "sessions_lapsed");
    Ok(Report {
        answered: checked.answered as u64,
        failed: tallies.failed,
        cut_short: tallies.cut_short,
        killed: tallies.killed,
        lapsed: lapsed.map_or(0, |(_, count)| count),
        inherited_locks: tallies.inherited_locks,
        splits: tallies.splits,
        merges: tallies.merges,
        keys: tree.keys,
    })
}

fn server_nic() -> NicConfig {
    NicConfig::new([2, 0, 0, 0, 1, 0], [10, 0, 1, 0].into())
}

fn server_options(options: &Options) -> ServerOptions {
    // Dead sessions count until they end, and chunks of theirs that are the tree's for ever.
    let bounds = Bounds { sessions: 1 << 12, queue_pairs: 1 << 14, chunks: 1 << 12, attempts: 1 << 20 };
    let limits = Limits { client: bounds, host: bounds, server: bounds, ..Limits::default() };
    ServerOptions { lease: options.lease, chunk_bytes: 16 << 10, limits, ..ServerOptions::writable() }
}
