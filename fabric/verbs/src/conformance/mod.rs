//! Conformance suite of [`Verbs`] implementations.
//!
//! ```text
//!   run(make)  ── for each case ──►  Bench
//!                                     │ verbs()      the side that posts
//!                                     │ responder()  the side with the memory: in this process or far away
//!                                     │ advance()    frames, time
//! ```
//!
//! An implementation gives a [`Bench`]; [`run`] makes a new one for each case and says which failed and why. A case that needs
//! what a device says it cannot do ([`Capabilities`]) checks that the device refuses it.
//!
//! ```
//! use fatbtree_verbs::conformance;
//! use fatbtree_verbs::plain::PlainBench;
//!
//! let report = conformance::run(PlainBench::new);
//! assert!(report.failures().is_empty(), "{report}");
//! ```

mod access;
mod atomics;
mod lifecycle;
mod local;
mod order;
mod queues;

use std::fmt;

use crate::access::Access;
use crate::capabilities::Capabilities;
use crate::completion::{Completion, Failure, Output};
use crate::device::{Device as _, QueuePair, QueuePairState, Region, Verbs};
use crate::endpoint::{Agreed, Endpoint, QueuePairNumber};
use crate::error::PostError;
use crate::request::{Operation, Remote, WorkRequest};

pub use local::LocalResponder;

/// Two sides with a network between them, nothing connected yet.
pub trait Bench {
    /// The implementation under test.
    type Verbs: Verbs;

    /// The side that posts.
    fn verbs(&mut self) -> &mut Self::Verbs;

    /// The side with the memory.
    fn responder(&mut self) -> &mut dyn Responder;

    /// Lets frames and time pass a little. `turns` counts the calls since the suite began to wait for something. Returns
    /// false when nothing will happen any more, or when waiting longer makes no sense.
    fn advance(&mut self, turns: u64) -> bool;

    /// Whether the network loses messages. Then a queue pair may fail while the answers to earlier READs and atomics
    /// are still missing, and those are flushed, too.
    fn loses_messages(&self) -> bool {
        false
    }
}

/// The side with the memory, wherever it is. Errors are texts for the report.
pub trait Responder {
    /// Capabilities of the responder's device.
    ///
    /// # Errors
    /// When it cannot be asked.
    fn capabilities(&mut self) -> Result<Capabilities, String>;

    /// Registers `len` bytes of zeros.
    ///
    /// # Errors
    /// When the device refuses.
    fn register(&mut self, len: u64, access: Access) -> Result<Region, String>;

    /// Registers `len` bytes on the device.
    ///
    /// # Errors
    /// When it has none.
    fn register_device_memory(&mut self, len: u64, access: Access) -> Result<Region, String>;

    /// Deregisters a region.
    ///
    /// # Errors
    /// When it cannot be told.
    fn deregister(&mut self, rkey: u32) -> Result<(), String>;

    /// Makes a queue pair and connects it to `client`.
    ///
    /// # Errors
    /// When the device refuses.
    fn accept(&mut self, client: &Endpoint) -> Result<Endpoint, String>;

    /// Destroys the queue pair with this number.
    ///
    /// # Errors
    /// When there is none.
    fn disconnect(&mut self, queue_pair: QueuePairNumber) -> Result<(), String>;

    /// Queue pairs that have gone to the error state since the last call, by number.
    ///
    /// # Errors
    /// When it cannot be asked.
    fn broken(&mut self) -> Result<Vec<QueuePairNumber>, String> {
        Err("this responder does not say which queue pairs broke: implement Responder::broken".to_owned())
    }

    /// The memory of a region, as its owner sees it, also of one on the device.
    ///
    /// # Errors
    /// When it is not there.
    fn read(&mut self, rkey: u32, offset: u64, len: u64) -> Result<Vec<u8>, String>;

    /// Changes the memory of a region, as its owner does.
    ///
    /// # Errors
    /// When it is not there.
    fn write(&mut self, rkey: u32, offset: u64, bytes: &[u8]) -> Result<(), String>;
}

/// Result of a case, with the reason of a failure.
type Verdict = Result<(), String>;

/// Fails the case with a text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}
use ensure;

/// A case by name.
struct Case<B: Bench> {
    name: &'static str,
    run: fn(&mut Lab<B>) -> Verdict,
}

fn cases<B: Bench>() -> Vec<Case<B>> {
    let mut cases = Vec::new();
    order::cases(&mut cases);
    atomics::cases(&mut cases);
    access::cases(&mut cases);
    queues::cases(&mut cases);
    lifecycle::cases(&mut cases);
    cases
}

/// The names of all cases, in the order in which they run.
#[must_use]
pub fn names<B: Bench>() -> Vec<&'static str> {
    cases::<B>().iter().map(|case| case.name).collect()
}

/// Runs every case, each on a new bench.
pub fn run<B: Bench>(make: impl FnMut() -> B) -> Report {
    run_observed(make, |_, _| ())
}

/// Runs the suite, and calls `observe` after each case with its name, and the reason if it failed.
pub fn run_observed<B: Bench>(
    mut make: impl FnMut() -> B,
    mut observe: impl FnMut(&'static str, Option<&str>),
) -> Report {
    let mut report = Report { results: Vec::new() };
    for case in cases::<B>() {
        let result = Lab::new(make()).and_then(|mut lab| (case.run)(&mut lab));
        let why = result.err();
        observe(case.name, why.as_deref());
        report.results.push((case.name, why));
    }
    report
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    results: Vec<(&'static str, Option<String>)>,
}

impl Report {
    /// Failed cases, each with the reason.
    #[must_use]
    pub fn failures(&self) -> Vec<(&'static str, &str)> {
        self.results.iter().filter_map(|(name, why)| Some((*name, why.as_deref()?))).collect()
    }

    /// Number of cases that were run.
    #[must_use]
    pub fn cases(&self) -> usize {
        self.results.len()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, why) in &self.results {
            match why {
                None => writeln!(f, "ok    {name}")?,
                Some(why) => writeln!(f, "FAIL  {name}: {why}")?,
            }
        }
        let failed = self.failures().len();
        write!(f, "{} cases, {failed} failed", self.cases())
    }
}

/// Size of the region that every case has, in bytes.
const REGION: u64 = 64 * 1024;

/// A bench with a region, and a connection to it.
struct Lab<B: Bench> {
    bench: B,
    region: Region,
    queue_pair: QueuePair,
    peer: QueuePairNumber,
    agreed: Agreed,
}

impl<B: Bench> Lab<B> {
    fn new(mut bench: B) -> Result<Self, String> {
        let region = bench.responder().register(REGION, Access::ALL)?;
        let (queue_pair, peer, agreed) = connect(&mut bench)?;
        Ok(Lab { bench, region, queue_pair, peer, agreed })
    }

    /// Opens another connection.
    fn connect(&mut self) -> Result<(QueuePair, QueuePairNumber), String> {
        connect(&mut self.bench).map(|(queue_pair, peer, _)| (queue_pair, peer))
    }

    /// A place in the region.
    fn at(&self, offset: u64) -> Remote {
        Remote { address: self.region.iova.wrapping_add(offset), rkey: self.region.rkey }
    }

    fn capabilities(&mut self) -> Result<(Capabilities, Capabilities), String> {
        Ok((self.bench.verbs().capabilities(), self.bench.responder().capabilities()?))
    }

    /// Posts a chain on the connection; all requests are signalled, and their tags are 0, 1, …
    fn post(&mut self, operations: &[Operation<'_>]) -> Result<(), PostError> {
        self.post_on(self.queue_pair, 0, operations)
    }

    fn post_on(
        &mut self,
        queue_pair: QueuePair,
        first_tag: u64,
        operations: &[Operation<'_>],
    ) -> Result<(), PostError> {
        let chain: Vec<WorkRequest<'_>> = (first_tag..)
            .zip(operations)
            .map(|(tag, &operation)| WorkRequest { tag, signalled: true, operation })
            .collect();
        self.bench.verbs().post(queue_pair, &chain)
    }

    /// Takes the next `count` completions.
    fn take(&mut self, count: usize) -> Result<Vec<Completion>, String> {
        let mut found = Vec::new();
        let mut turns = 0;
        while found.len() < count {
            if let Some(completion) = self.bench.verbs().poll() {
                found.push(completion);
                turns = 0;
                continue;
            }
            let goes_on = self.bench.advance(turns);
            turns += 1;
            if !goes_on && found.len() < count {
                // Whatever the last turn brought.
                match self.bench.verbs().poll() {
                    Some(completion) => found.push(completion),
                    None => {
                        return Err(format!("{count} completions expected, {} came: {found:?}", found.len()));
                    }
                }
            }
        }
        Ok(found)
    }

    /// Lets everything that is under way arrive.
    fn settle(&mut self) {
        let mut turns = 0;
        while self.bench.advance(turns) {
            turns += 1;
        }
    }

    /// Fails if there is another completion.
    fn no_more(&mut self) -> Verdict {
        self.settle();
        match self.bench.verbs().poll() {
            Some(completion) => Err(format!("an unexpected completion: {completion:?}")),
            None => Ok(()),
        }
    }

    /// Executes a chain and returns the outputs in order.
    fn outputs(&mut self, operations: &[Operation<'_>]) -> Result<Vec<Output>, String> {
        self.outputs_on(self.queue_pair, operations)
    }

    fn outputs_on(
        &mut self,
        queue_pair: QueuePair,
        operations: &[Operation<'_>],
    ) -> Result<Vec<Output>, String> {
        self.post_on(queue_pair, 0, operations).map_err(|error| error.to_string())?;
        let completions = self.take(operations.len())?;
        let mut outputs = Vec::new();
        for (tag, completion) in (0..).zip(completions) {
            ensure!(
                completion.tag == tag && completion.queue_pair == queue_pair,
                "completion of tag {tag} on {queue_pair} expected, found {completion:?}"
            );
            outputs.push(completion.result.map_err(|failure| format!("request {tag} failed: {failure}"))?);
        }
        Ok(outputs)
    }

    /// Executes one operation that reads bytes.
    fn bytes(&mut self, operation: Operation<'_>) -> Result<Vec<u8>, String> {
        match &self.outputs(&[operation])?[..] {
            [Output::Read(bytes)] => Ok(bytes.to_vec()),
            other => Err(format!("bytes expected, found {other:?}")),
        }
    }

    /// Executes one atomic.
    fn original(&mut self, operation: Operation<'_>) -> Result<u64, String> {
        match self.outputs(&[operation])?[..] {
            [Output::Atomic(original)] => Ok(original),
            ref other => Err(format!("an atomic's result expected, found {other:?}")),
        }
    }

    /// Posts an operation that must fail, between one that must not and one that must be flushed; then checks that the
    /// queue pair is broken.
    fn fails(&mut self, operation: Operation<'_>, expected: &[Failure]) -> Verdict {
        let queue_pair = self.queue_pair;
        let good = Operation::Read { from: self.at(0), len: 8 };
        self.post(&[good, operation, good]).map_err(|error| format!("{operation:?}: {error}"))?;
        let completions = self.take(3)?;
        let failures: Vec<Option<Failure>> =
            completions.iter().map(|completion| completion.result.as_ref().err().copied()).collect();
        let [before, Some(failure), Some(Failure::Flushed)] = failures[..] else {
            return Err(format!("{operation:?}: success, failure, flush expected, found {failures:?}"));
        };
        ensure!(self.may_precede_failure(before), "{operation:?}: the READ before it failed: {before:?}");
        ensure!(
            expected.contains(&failure),
            "{operation:?}: one of {expected:?} expected, found {failure:?}"
        );
        self.is_broken(queue_pair)
    }

    /// Whether this may be the outcome of a good request before one that fails.
    fn may_precede_failure(&self, outcome: Option<Failure>) -> bool {
        outcome.is_none() || outcome == Some(Failure::Flushed) && self.bench.loses_messages()
    }

    /// Checks that a queue pair is in the error state, takes nothing more, and is named once.
    fn is_broken(&mut self, queue_pair: QueuePair) -> Verdict {
        self.no_more()?;
        let good = Operation::Read { from: self.at(0), len: 8 };
        let verbs = self.bench.verbs();
        let state = verbs.state(queue_pair);
        ensure!(state == Some(QueuePairState::Error), "the error state expected, found {state:?}");
        let named: Vec<_> = std::iter::from_fn(|| verbs.poll_broken()).collect();
        ensure!(named == [queue_pair], "{queue_pair} named as broken once expected, found {named:?}");
        match self.post_on(queue_pair, 0, &[good]) {
            Err(error @ PostError::NotConnected { state: QueuePairState::Error, .. })
                if !error.queue_pair_survived() =>
            {
                Ok(())
            }
            other => Err(format!("a broken queue pair took a request: {other:?}")),
        }
    }

    fn owner_reads(&mut self, offset: u64, len: u64) -> Result<Vec<u8>, String> {
        let rkey = self.region.rkey;
        self.bench.responder().read(rkey, offset, len)
    }

    fn owner_writes(&mut self, offset: u64, bytes: &[u8]) -> Verdict {
        let rkey = self.region.rkey;
        self.bench.responder().write(rkey, offset, bytes)
    }
}

fn connect<B: Bench>(bench: &mut B) -> Result<(QueuePair, QueuePairNumber, Agreed), String> {
    let said = |error: crate::ConnectError| error.to_string();
    let queue_pair = bench.verbs().create().map_err(said)?;
    let local = bench.verbs().endpoint(queue_pair).map_err(said)?;
    let remote = bench.responder().accept(&local)?;
    let agreed = bench.verbs().connect(queue_pair, &remote).map_err(said)?;
    Ok((queue_pair, remote.queue_pair, agreed))
}

/// Bytes that depend on their position.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| ((at + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}
