//! Load generator: begins operations, one after the other or at given times, and records every answer.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use futures_buffered::FuturesUnorderedBounded;
use futures_core::Stream as _;

use fatbtree_blink::Start;
use fatbtree_blink_client::Client;
use fatbtree_remote_memory::{Answer, Change, Structure};
use fatbtree_verbs::Verbs;
use fatbtree_verbs::time::{Duration, Instant};

use crate::measure::{LatencyHistogram, Outcome, Recorder, Summary, Troubles};
use crate::operation::{Operation, OperationKind, Operations};
use crate::pace::{Arrivals, Pace, Punctuality};
use crate::scan_parts::ScanParts;
use crate::values::Values;
use crate::ycsb::WorkloadError;

/// Options of a closed loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopOptions {
    /// Start of each operation.
    pub start: Start,
    /// Number of operations under way at once, at least 1.
    pub depth: usize,
}

/// Performs operations, and keeps their records.
#[derive(Debug, Clone)]
pub struct LoadGenerator {
    recorder: Recorder,
    /// Latencies by kind of operation, for the kinds that occurred.
    latencies: BTreeMap<OperationKind, LatencyHistogram>,
    elapsed: Duration,
    punctuality: Option<Punctuality>,
    parts: ScanParts,
    wrong: Option<String>,
}

impl Default for LoadGenerator {
    fn default() -> Self {
        Self::new()
    }
}

impl LoadGenerator {
    /// Load generator that has recorded nothing yet.
    pub fn new() -> Self {
        let (recorder, latencies) = (Recorder::new(), BTreeMap::new());
        LoadGenerator {
            recorder,
            latencies,
            elapsed: Duration::ZERO,
            punctuality: None,
            parts: ScanParts::ONE,
            wrong: None,
        }
    }

    /// Load generator whose scans are requested in parts.
    #[must_use]
    pub fn scanning(self, parts: ScanParts) -> Self {
        Self { parts, ..self }
    }

    /// Draws `operations` operations and performs them in a closed loop. Every value that is read must be one that
    /// `values` allows.
    ///
    /// # Errors
    /// When no further operation can be drawn; those drawn before are done.
    ///
    /// # Panics
    /// When `options.depth` is 0.
    pub async fn run<V: Verbs>(
        &mut self,
        client: &Client<V>,
        workload: &mut impl Operations,
        operations: u64,
        options: LoopOptions,
        values: &Values,
    ) -> Result<(), WorkloadError> {
        let LoopOptions { start, depth } = options;
        self.run_on(&client.starting(start), workload, operations, Pace::Closed { depth }, values, |_| {})
            .await
    }

    /// Draws `operations` operations and performs them on any [`Structure`], at any pace. `watch` receives the records so
    /// far, after each operation.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Panics
    /// As [`run`](Self::run).
    pub async fn run_on<S: Structure, O: Operations + ?Sized>(
        &mut self,
        store: &S,
        workload: &mut O,
        operations: u64,
        pace: Pace,
        values: &Values,
        mut watch: impl FnMut(&Recorder),
    ) -> Result<(), WorkloadError> {
        let most = pace.most();
        assert!(most > 0, "with 0 operations at a time none is ever made");
        let (began, parts) = (store.now(), self.parts);
        let mut schedule = Schedule::new(pace, operations, began);
        let mut refused = Ok(());
        let mut under_way = FuturesUnorderedBounded::new(most);
        let mut nap = pin!(None);
        let mut next_done = |workload: &mut O, context: &mut Context<'_>| loop {
            while under_way.len() < most
                && let Some(due) = schedule.next_due(store.now())
            {
                // A sleep until then would be late.
                nap.set(None);
                match workload.next_operation() {
                    Ok(operation) => under_way.push(perform(store, operation, values, due, parts)),
                    Err(error) => {
                        refused = Err(error);
                        schedule.end();
                    }
                }
            }
            if let Poll::Ready(Some(done)) = Pin::new(&mut under_way).poll_next(context) {
                return Poll::Ready(Some(done));
            }
            match schedule.next {
                None if under_way.is_empty() => return Poll::Ready(None),
                Some(next) if under_way.len() < most => {
                    if nap.is_none() {
                        nap.set(Some(store.sleep_until(next)));
                    }
                    if let Some(sleep) = nap.as_mut().as_pin_mut()
                        && sleep.poll(context).is_pending()
                    {
                        return Poll::Pending;
                    }
                    nap.set(None);
                }
                _ => return Poll::Pending,
            }
        };
        while let Some(done) = poll_fn(|context| next_done(workload, context)).await {
            if done.operation.kind == OperationKind::Insert {
                workload.acknowledge_insert(done.operation.record);
            }
            self.record(done, values);
            watch(&self.recorder);
        }
        self.elapsed = self.elapsed + (store.now() - began);
        self.punctuality = schedule.punctuality(pace, operations, store.now());
        refused
    }

    fn record(&mut self, done: Done, values: &Values) {
        let Done { operation, outcome, error, round_trips, latency } = done;
        if !matches!(outcome, Outcome::Found | Outcome::Unknown) && self.wrong.is_none() {
            let (kind, key) = (operation.kind.name(), values.show(operation.key));
            let why = error.map_or(String::new(), |error| format!(": {error}"));
            self.wrong = Some(format!("{kind} of key {key}: {outcome:?}{why}"));
        }
        self.recorder.record(outcome, latency.as_nanos(), round_trips);
        self.latencies.entry(operation.kind).or_default().record(latency.as_nanos());
    }

    /// The first operation that did not end with the right answer, for the report of a failed run.
    pub fn first_wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }

    /// Time that operations were under way.
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Punctuality of the last run, if it was an open loop.
    pub fn punctuality(&self) -> Option<Punctuality> {
        self.punctuality
    }

    /// Latencies of one kind of operation; `None` if there was no such operation.
    pub fn latency_of(&self, kind: OperationKind) -> Option<&LatencyHistogram> {
        self.latencies.get(&kind)
    }

    /// Kinds of the operations that have ended.
    pub fn kinds(&self) -> impl Iterator<Item = OperationKind> {
        self.latencies.keys().copied()
    }

    /// Records of the run, to merge with other clients'.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Summary of the run, with the client's own counters.
    pub fn summary<V: Verbs>(&self, client: &Client<V>) -> Summary {
        self.summary_of(&Troubles::from(client.pool().stats()))
    }

    /// Summary of the run, with the counters of the store.
    pub fn summary_of(&self, troubles: &Troubles) -> Summary {
        let mut recorder = self.recorder.clone();
        recorder.add_troubles(troubles);
        recorder.summary(self.elapsed.as_nanos())
    }
}

/// Times at which operations of a run begin.
struct Schedule {
    /// Random arrivals of an open loop.
    arrivals: Option<Arrivals>,
    /// Number of operations that have not begun.
    left: u64,
    began: Instant,
    /// Time at which the next operation should begin; `None` when all have begun.
    next: Option<Instant>,
    /// Time at which the last one began.
    last: Instant,
}

impl Schedule {
    fn new(pace: Pace, operations: u64, began: Instant) -> Self {
        let arrivals = match pace {
            Pace::Closed { .. } => None,
            Pace::Open { per_second, seed, .. } => Some(Arrivals::new(operations, per_second, seed)),
        };
        let mut schedule = Self { arrivals, left: operations, began, next: None, last: began };
        schedule.advance();
        schedule
    }

    fn advance(&mut self) {
        self.next = (self.left > 0).then(|| match &mut self.arrivals {
            // Whenever there is room.
            None => Instant::ZERO,
            Some(arrivals) => arrivals.next().map_or(Instant::ZERO, |at| self.began + at),
        });
    }

    /// Takes the next operation if it begins by `now`, and returns the time at which it should begin.
    fn next_due(&mut self, now: Instant) -> Option<Due> {
        let next = self.next.filter(|next| *next <= now)?;
        self.left -= 1;
        self.last = now;
        self.advance();
        Some(self.arrivals.as_ref().map(|_| next))
    }

    fn end(&mut self) {
        (self.left, self.next) = (0, None);
    }

    fn punctuality(&self, pace: Pace, operations: u64, ended: Instant) -> Option<Punctuality> {
        let Pace::Open { per_second, .. } = pace else { return None };
        let begun = (operations - self.left) as f64;
        let intended = begun / per_second;
        let rate = |until: Instant| begun / ((until - self.began).as_nanos() as f64 / 1e9).max(intended);
        Some(Punctuality {
            intended_per_s: per_second,
            begun_per_s: rate(self.last),
            ended_per_s: rate(ended),
        })
    }
}

/// Time at which an operation should begin; `None` in a closed loop.
type Due = Option<Instant>;

/// An operation that has ended.
struct Done {
    operation: Operation,
    outcome: Outcome,
    error: Option<String>,
    round_trips: u32,
    latency: Duration,
}

impl Done {
    /// Operation of which nothing is done yet.
    fn new(operation: Operation) -> Self {
        Self { operation, outcome: Outcome::Found, error: None, round_trips: 0, latency: Duration::ZERO }
    }

    /// Adds the cost of a step, and returns the step's result unless it failed.
    fn take<T, S: Structure>(&mut self, _: &S, answer: Answer<T, S::Error>) -> Option<T> {
        self.round_trips += answer.round_trips;
        answer.result.map_err(|error| self.fail::<S>(&error)).ok()
    }

    async fn read<S: Structure>(&mut self, store: &S, values: &Values) {
        let began = values.begin();
        let key = self.operation.key;
        let answered = store.get(key).await;
        if let Some(found) = self.take(store, answered) {
            let found = found.as_ref().map(AsRef::as_ref);
            match (values.allows(key, &began, found), found) {
                (true, _) => {}
                (false, Some(_)) => self.outcome = Outcome::WrongAnswer,
                (false, None) => self.outcome = Outcome::NotFound,
            }
        }
        values.end(began);
    }

    async fn change<S: Structure>(&mut self, store: &S, values: &Values) {
        let Operation { kind, key, value_bytes, .. } = self.operation;
        let (is_insert, began) = (kind == OperationKind::Insert, values.begin());
        let (number, answered) = if kind == OperationKind::Delete {
            (values.delete(key), store.change(key, Change::Delete).await)
        } else {
            let length = value_bytes.map_or(values.length(), |bytes| bytes as usize);
            let (write, value) = values.write(key, !is_insert, length);
            let change = match kind {
                OperationKind::Insert => Change::Insert(&value),
                OperationKind::Put => Change::Upsert(&value),
                _ => Change::Update(&value),
            };
            let answered = store.change(key, change).await;
            values.take_back(value);
            (write, answered)
        };
        match self.take(store, answered) {
            Some(true) => values.wrote(key, number),
            Some(false) if values.refused(key, number, &began, is_insert) => {}
            Some(false) => self.outcome = Outcome::NotFound,
            None => {}
        }
        values.end(began);
    }

    async fn scan<S: Structure>(&mut self, store: &S, values: &Values, parts: ScanParts) {
        let began = values.begin();
        let Operation { key, scan_length, .. } = self.operation;
        let most = scan_length as usize;
        let answered = parts.scan(store, key, most).await;
        if let Some(found) = self.take(store, answered)
            && !values.allows_scan(key, most, &began, &found)
        {
            self.outcome = Outcome::WrongAnswer;
        }
        values.end(began);
    }

    async fn transact<S: Structure>(&mut self, store: &S) {
        let Operation { record, program: Some(program), .. } = self.operation else { return };
        match program.run(store, record, &mut self.round_trips).await {
            Ok(Outcome::Found) => {}
            Ok(outcome) => {
                self.outcome = outcome;
                let why = "a value that no transaction of this workload has written: if the tables hold other pairs, begin with \
                           `fatbtree load --keys 1 --replace`";
                self.error = Some(why.to_owned());
            }
            Err(error) => self.fail::<S>(&error),
        }
    }

    #[cold]
    fn fail<S: Structure>(&mut self, error: &S::Error) {
        self.outcome = if S::is_unknown(error) { Outcome::Unknown } else { Outcome::Failed };
        self.error = Some(error.to_string());
    }
}

/// Performs an operation. One that reads and then writes counts as one operation that takes as long as both. The
/// round trips of a scan are those that it waited for one after another.
async fn perform<S: Structure>(
    store: &S,
    operation: Operation,
    values: &Values,
    due: Due,
    parts: ScanParts,
) -> Done {
    let (mut done, began) = (Done::new(operation), due.unwrap_or(store.now()));
    match operation.kind {
        OperationKind::Read => done.read(store, values).await,
        OperationKind::Scan => done.scan(store, values, parts).await,
        OperationKind::Update | OperationKind::Insert | OperationKind::Put | OperationKind::Delete => {
            done.change(store, values).await;
        }
        OperationKind::ReadModifyWrite => {
            done.read(store, values).await;
            done.change(store, values).await;
        }
        OperationKind::Transaction(_) => done.transact(store).await,
    }
    done.latency = store.now() - began;
    done
}
