//! A database client over libibverbs: looks keys up on one memory server, and verifies every value. It is told what to do on
//! its standard input, a line at a time, and answers each with a line:
//!
//! ```text
//!   walk 400            lookups=400 found=300 not_found=100 wrong=0 failed=0 round_trips=2300 per_lookup=5.75 …
//!   index 400           the same keys, beginning with index reads where the connection is registered
//!   get 20              keys that are there, one after the other, by `Client::get`
//!   threads 3 80        as `walk 80`, by three threads at once with sessions of their own; a line for each of them
//!   registered          the switches have been told of all connections
//!   expect failures     what cannot be answered from now on is counted, and is no failure of this program
//!   end                 as the end of the input
//! ```
//!
//! Beside these it prints `connected …` for each new connection, `broke …`, `lost …` and `denied …`. A connection that breaks is
//! made anew, and counts as not registered. The keys are those of `memserver/examples/udp_memserver`: number i of n is
//! i · ⌊(2⁶⁴ - 1) / n⌋, and no key is there between two of them.

mod counts;
mod session;

use std::future::{Future, poll_fn};
use std::io::BufRead;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fatbtree_blink::{PoolConfig, Start};
use fatbtree_blink_client::Client;
use fatbtree_ibverbs::{Config, RdmaContext, RdmaDevice};
use fatbtree_verbs::time::Instant;
use futures_core::Stream as _;

use counts::Counts;
use session::{LANES, ServerSession};

/// Lookups at a time.
const AT_ONCE: usize = 8;
/// Between two looks at the completion queue: the emulated machine has other things to do.
const PAUSE: Duration = Duration::from_micros(50);

pub(crate) fn run(device: &str, url: &str) -> Result<(), String> {
    let mut lab = Lab::new(device, url)?;
    let mut wrong = 0;
    let mut failures_are_expected = false;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| format!("reading what to do: {error}"))?;
        let counts = match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["walk", count] => lab.look_up(number(count)?, Start::Root),
            ["index", count] => lab.look_up(number(count)?, Start::IndexRead),
            ["get", count] => lab.get(number(count)?),
            ["threads", threads, count] => {
                for counts in lab.in_threads(number(threads)?, number(count)?)? {
                    println!("{counts}");
                    wrong += counts.wrong + counts.failed;
                }
                continue;
            }
            ["registered"] => {
                lab.registered()?;
                println!("registered");
                continue;
            }
            ["expect", "failures"] => {
                failures_are_expected = true;
                println!("failures are expected");
                continue;
            }
            ["end"] => break,
            _ => return Err(format!("expected a line as in lookup/mod.rs, found {line:?}")),
        };
        println!("{counts}");
        wrong += counts.wrong + if failures_are_expected { 0 } else { counts.failed };
    }
    lab.session.close(&lab.client, lab.began);
    if wrong == 0 { Ok(()) } else { Err(format!("{wrong} lookups were wrong or failed")) }
}

/// A quarter of a second, and two until the server is given up.
fn config() -> Config {
    Config { timeout: 16, ..crate::config() }
}

fn number(word: &str) -> Result<u64, String> {
    word.parse().map_err(|_| format!("expected a number of lookups, found {word:?}"))
}

struct Lab {
    /// Name of the device, and address of the memory server's gRPC.
    peers: (String, String),
    client: Client<RdmaDevice>,
    session: ServerSession,
    /// Keys there are, and how far they are apart.
    keys: u64,
    step: u64,
    began: std::time::Instant,
}

impl Lab {
    fn new(device: &str, url: &str) -> Result<Self, String> {
        let peers = (device.to_owned(), url.to_owned());
        let device = RdmaDevice::open(device, &config()).map_err(|error| error.to_string())?;
        let (session, info) = ServerSession::new(url, &device)?;
        let keys = info.counts.keys;
        let roots = fatbtree_blink_host::grpc::super_root([&info]).map_err(|error| error.to_string())?;
        let pool = PoolConfig { tree: info.config, lanes: LANES, ..PoolConfig::default() };
        let client = Client::new(device, pool, roots, 1).map_err(|error| error.to_string())?;
        println!("server keys={keys} levels={}", u32::from(info.partition.root_level) + 1);
        let began = std::time::Instant::now();
        let mut lab = Self { peers, client, session, keys, step: u64::MAX / keys.max(1), began };
        lab.session.connect(&lab.client, lab.began)?;
        Ok(lab)
    }

    /// Looks keys up in several threads, each with a device of the one context that this process has open.
    fn in_threads(&self, threads: u64, count: u64) -> Result<Vec<Counts>, String> {
        let (device, url) = &self.peers;
        let context = RdmaContext::open(device, &config()).map_err(|error| error.to_string())?;
        let of_one = || {
            let mut lab = Self::new(device, url)?;
            let counts = lab.look_up(count, Start::Root);
            lab.session.close(&lab.client, lab.began);
            Ok(counts)
        };
        let counts = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(of_one)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread has panicked".to_owned())))
                .collect::<Result<Vec<_>, String>>()
        })?;
        let doorbells = if context.has_thread_domains() { "one a thread" } else { "the driver's" };
        println!("{context:?}; doorbells: {doorbells}");
        Ok(counts)
    }

    fn registered(&self) -> Result<(), String> {
        let pool = self.client.pool();
        pool.connections()
            .into_iter()
            .try_for_each(|id| pool.set_registered(id, true))
            .map_err(|error| error.to_string())
    }

    /// The same keys in each run: three of four are there.
    fn key(&self, number: u64) -> u64 {
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.keys * self.step;
        key + u64::from(number % 4 == 3)
    }

    fn look_up(&mut self, count: u64, start: Start) -> Counts {
        let mut counts = Counts::since(self.client.pool().stats());
        let client = self.client.clone();
        let (keys, step): (Vec<u64>, u64) = ((0..count).map(|number| self.key(number)).collect(), self.step);
        let work = async {
            let mut many = pin!(client.lookup_many(keys, start, AT_ONCE));
            while let Some(lookup) = poll_fn(|context| many.as_mut().poll_next(context)).await {
                counts.add(lookup.key, &lookup.result, lookup.key % step == 0);
                counts.landed(lookup.trips.landed);
            }
            counts
        };
        let counts = drive(&client, &mut self.session, self.began, work);
        counts.until(client.pool().stats())
    }

    fn get(&mut self, count: u64) -> Counts {
        let mut counts = Counts::since(self.client.pool().stats());
        let client = self.client.clone();
        let keys: Vec<u64> = (0..count).map(|number| self.key(4 * number)).collect();
        let work = async {
            for key in keys {
                counts.add(key, &client.get(key).await, true);
            }
            counts
        };
        let counts = drive(&client, &mut self.session, self.began, work);
        counts.until(client.pool().stats())
    }
}

/// Time of a run that began then.
fn now(began: std::time::Instant) -> Instant {
    Instant::ZERO + began.elapsed().into()
}

/// Runs `work` to its end. Connections that break meanwhile are made anew.
fn drive<F: Future>(
    client: &Client<RdmaDevice>,
    session: &mut ServerSession,
    began: std::time::Instant,
    work: F,
) -> F::Output {
    let mut work = pin!(work);
    // Each turn polls it again.
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = work.as_mut().poll(&mut context) {
            return output;
        }
        let busy = client.turn(now(began));
        session.turn(now(began), client);
        if !busy {
            std::thread::sleep(PAUSE);
        }
    }
}
