//! A closed loop: keeps a number of operations under way and records every answer.

use std::cell::RefCell;
use std::collections::BTreeMap;

use fatbtree_index::Start;
use fatbtree_verbs::Verbs;
use fatbtree_verbs::time::Duration;

use crate::client::{Client, Lookups};
use crate::measure::{LatencyHistogram, Outcome, Recorder, Summary, Troubles};
use crate::store::{Answered, Direct, NoAnswer, Store};
use crate::values::Values;
use crate::workload::{Operation, OperationKind, Workload, WorkloadError};

/// How operations are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopOptions {
    /// Where each begins.
    pub start: Start,
    /// How many are under way at once, at least 1.
    pub depth: usize,
}

/// What a closed loop has recorded.
#[derive(Debug, Clone)]
pub struct ClosedLoop {
    recorder: Recorder,
    /// Of each kind that there was.
    latencies: BTreeMap<OperationKind, LatencyHistogram>,
    elapsed: Duration,
    wrong: Option<String>,
}

impl Default for ClosedLoop {
    fn default() -> Self {
        Self::new()
    }
}

impl ClosedLoop {
    /// Nothing recorded yet.
    pub fn new() -> Self {
        let (recorder, latencies) = (Recorder::new(), BTreeMap::new());
        ClosedLoop { recorder, latencies, elapsed: Duration::ZERO, wrong: None }
    }

    /// Draws so many operations and does them. Every value that is read must be one that `values` allows.
    ///
    /// # Errors
    /// When no further operation can be drawn; those drawn before are done.
    ///
    /// # Panics
    /// When `options.depth` is 0.
    pub async fn run<V: Verbs>(
        &mut self,
        client: &Client<V>,
        workload: &mut Workload,
        operations: u64,
        options: LoopOptions,
        values: &Values,
    ) -> Result<(), WorkloadError> {
        self.run_watched(client, workload, operations, options, values, |_| {}).await
    }

    /// The same, and `watch` is shown what is recorded so far, after each operation.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Panics
    /// As [`run`](Self::run).
    pub async fn run_watched<V: Verbs>(
        &mut self,
        client: &Client<V>,
        workload: &mut Workload,
        operations: u64,
        options: LoopOptions,
        values: &Values,
        watch: impl FnMut(&Recorder),
    ) -> Result<(), WorkloadError> {
        let LoopOptions { start, depth } = options;
        self.run_on(&Direct { client, start }, workload, operations, depth, values, watch).await
    }

    /// The same on anything that has records, `depth` operations at a time.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Panics
    /// As [`run`](Self::run).
    pub async fn run_on<S: Store>(
        &mut self,
        store: &S,
        workload: &mut Workload,
        operations: u64,
        depth: usize,
        values: &Values,
        mut watch: impl FnMut(&Recorder),
    ) -> Result<(), WorkloadError> {
        let began = store.now();
        let workload = RefCell::new(workload);
        let mut refused = Ok(());
        let mut left = operations;
        let drawn = std::iter::from_fn(|| {
            left = left.checked_sub(1)?;
            workload.borrow_mut().next_operation().map_err(|error| refused = Err(error)).ok()
        });
        let mut running = Lookups::new(drawn, |operation| perform(store, operation, values), depth);
        while let Some(done) = running.next().await {
            if done.operation.kind == OperationKind::Insert {
                workload.borrow_mut().acknowledge_insert(done.operation.record);
            }
            self.record(done);
            watch(&self.recorder);
        }
        drop(running);
        self.elapsed = self.elapsed + (store.now() - began);
        refused
    }

    fn record(&mut self, done: Done) {
        let Done { operation, outcome, error, round_trips, latency } = done;
        if !matches!(outcome, Outcome::Found | Outcome::Unknown) && self.wrong.is_none() {
            let (kind, key) = (operation.kind.name(), operation.key);
            let why = error.map_or(String::new(), |error| format!(": {error}"));
            self.wrong = Some(format!("{kind} of key {key:#x}: {outcome:?}{why}"));
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

    /// The latencies of one kind of operation; none where there was no such operation.
    pub fn latency_of(&self, kind: OperationKind) -> Option<&LatencyHistogram> {
        self.latencies.get(&kind)
    }

    /// What was recorded, to merge with other clients'.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The run in figures, with the client's own counters.
    pub fn summary<V: Verbs>(&self, client: &Client<V>) -> Summary {
        self.summary_of(&Troubles::from(client.pool().stats()))
    }

    /// The same with the counters of whatever the operations were done on.
    pub fn summary_of(&self, troubles: &Troubles) -> Summary {
        let mut recorder = self.recorder.clone();
        recorder.add_troubles(troubles);
        recorder.summary(self.elapsed.as_nanos())
    }
}

/// An operation that has ended.
struct Done {
    operation: Operation,
    outcome: Outcome,
    error: Option<NoAnswer>,
    round_trips: u32,
    latency: Duration,
}

impl Done {
    /// Nothing done yet.
    fn new(operation: Operation) -> Self {
        Self { operation, outcome: Outcome::Found, error: None, round_trips: 0, latency: Duration::ZERO }
    }

    /// Takes note of what a step has cost; gives what it came to, unless it failed.
    fn take<T>(&mut self, answered: Answered<T>) -> Option<T> {
        let Answered { result, round_trips, latency } = answered;
        self.round_trips += round_trips;
        self.latency = self.latency + latency;
        result.map_err(|error| self.fail(error)).ok()
    }

    async fn read<S: Store>(&mut self, store: &S, values: &Values) {
        let began = values.begin();
        let key = self.operation.key;
        let answered = store.read(key).await;
        if let Some(found) = self.take(answered) {
            let found = found.as_ref().map(AsRef::as_ref);
            match (values.allows(key, &began, found), found) {
                (true, _) => {}
                (false, Some(_)) => self.outcome = Outcome::WrongAnswer,
                (false, None) => self.outcome = Outcome::NotFound,
            }
        }
        values.end(began);
    }

    async fn write<S: Store>(&mut self, store: &S, values: &Values) {
        let Operation { kind, key, .. } = self.operation;
        let insert = kind == OperationKind::Insert;
        let (write, value) = values.write(key, !insert);
        let answered = store.write(key, &value, insert).await;
        values.take_back(value);
        match self.take(answered) {
            Some(true) => values.wrote(key, write),
            Some(false) => self.outcome = Outcome::NotFound,
            None => {}
        }
    }

    async fn scan<S: Store>(&mut self, store: &S, values: &Values) {
        let began = values.begin();
        let Operation { key, scan_length, .. } = self.operation;
        let most = scan_length as usize;
        let answered = store.scan(key, most).await;
        if let Some(found) = self.take(answered)
            && !values.allows_scan(key, most, &began, &found)
        {
            self.outcome = Outcome::WrongAnswer;
        }
        values.end(began);
    }

    #[cold]
    fn fail(&mut self, error: NoAnswer) {
        self.outcome = if error.is_unknown() { Outcome::Unknown } else { Outcome::Failed };
        self.error = Some(error);
    }
}

/// Does an operation. What reads and then writes is one operation that takes as long as both; a scan has made as many round trips as it
/// waited for one after another.
async fn perform<S: Store>(store: &S, operation: Operation, values: &Values) -> Done {
    let mut done = Done::new(operation);
    match operation.kind {
        OperationKind::Read => done.read(store, values).await,
        OperationKind::Scan => done.scan(store, values).await,
        OperationKind::Update | OperationKind::Insert => done.write(store, values).await,
        OperationKind::ReadModifyWrite => {
            done.read(store, values).await;
            done.write(store, values).await;
        }
    }
    done
}
