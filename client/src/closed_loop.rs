//! A closed loop: keeps a number of lookups under way and records every answer.

use fatbtree_index::{Lookup, Start};
use fatbtree_verbs::Verbs;
use fatbtree_verbs::time::{Duration, Instant};
use thiserror::Error;

use crate::client::{Client, Lookups};
use crate::measure::{Outcome, Recorder, Summary, Troubles};
use crate::workload::{KeyMap, OperationKind, Workload, WorkloadError, WorkloadSpec};

/// Why a workload cannot be run.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum ClosedLoopError {
    /// Not only reads.
    #[error(
        "{share:.1} % of the workload's operations are {}, this client only reads; use a workload with readproportion=1 \
         and all others 0, such as `c`", .kind.name()
    )]
    NotReads {
        /// The first other kind.
        kind: OperationKind,
        /// Its share in per cent.
        share: f64,
    },
    /// The workload itself.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

/// The keys of the `operationcount` reads of `spec`, divided over `clients`, of which this is number `client`.
///
/// # Errors
/// When the workload has other operations than reads, or cannot be drawn from.
pub fn reads(
    spec: &WorkloadSpec,
    keys: KeyMap,
    seed: u64,
    client: u64,
    clients: u64,
) -> Result<impl ExactSizeIterator<Item = u64> + use<>, ClosedLoopError> {
    let weights = spec.proportions.as_array();
    let sum: f64 = weights.iter().sum();
    for (kind, weight) in OperationKind::ALL.into_iter().zip(weights) {
        if kind != OperationKind::Read && weight > 0.0 {
            return Err(ClosedLoopError::NotReads { kind, share: 100.0 * weight / sum });
        }
    }
    let mut workload = Workload::for_client(spec, keys, seed, client, clients)?;
    // The first clients take what does not divide evenly.
    let operations = spec.operation_count / clients + u64::from(client < spec.operation_count % clients);
    let mut next =
        move || workload.next_operation().expect("only inserts use up keys, and there are none").key;
    Ok((0..operations as usize).map(move |_| next()))
}

/// How lookups are made.
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
        ClosedLoop { recorder: Recorder::new(), elapsed: Duration::ZERO, wrong: None }
    }

    /// Looks up all `keys`, which must be in the tree; `right` says whether a value is the key's.
    ///
    /// # Panics
    /// When `options.depth` is 0.
    pub async fn run<V: Verbs>(
        &mut self,
        client: &Client<V>,
        keys: impl Iterator<Item = u64>,
        options: LoopOptions,
        right: impl Fn(u64, &[u8]) -> bool,
    ) {
        let LoopOptions { start, depth } = options;
        let began = now(client);
        let mut lookups = Lookups::new(keys, |key| client.lookup(key, start), depth);
        while let Some(lookup) = lookups.next().await {
            self.record(&lookup, &right);
        }
        self.elapsed = self.elapsed + (now(client) - began);
    }

    #[inline]
    fn record(&mut self, lookup: &Lookup, right: impl Fn(u64, &[u8]) -> bool) {
        let outcome = match &lookup.result {
            Ok(Some(value)) if right(lookup.key, value) => Outcome::Found,
            Ok(Some(_)) => Outcome::WrongAnswer,
            Ok(None) => Outcome::NotFound,
            Err(_) => Outcome::Failed,
        };
        if outcome != Outcome::Found && self.wrong.is_none() {
            self.wrong = Some(format!("key {:#x}: {outcome:?}: {:?}", lookup.key, lookup.result));
        }
        self.recorder.record(outcome, lookup.latency.as_nanos(), lookup.trips.round_trips);
    }

    /// The first lookup that did not end with the right answer, for the report of a failed run.
    pub fn first_wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }

    /// Time that lookups were under way.
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// What was recorded, to merge with other clients'.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The run in figures, with the client's own counters.
    pub fn summary<V: Verbs>(&self, client: &Client<V>) -> Summary {
        let mut recorder = self.recorder.clone();
        recorder.add_troubles(&Troubles::from(client.pool().stats()));
        recorder.summary(self.elapsed.as_nanos())
    }
}

fn now<V: Verbs>(client: &Client<V>) -> Instant {
    client.pool().reactor().now()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::builtin;

    #[test]
    fn only_reads_are_run() {
        let spec = |name| WorkloadSpec::from_properties(&builtin(name).unwrap()).unwrap();
        let new = |name, client, clients| reads(&spec(name), KeyMap::Hashed, 1, client, clients);
        let error = new("a", 0, 1).map(drop).unwrap_err().to_string();
        assert!(error.starts_with("50.0 % of the workload's operations are UPDATE"), "{error}");
        assert_eq!(new("c", 0, 1).unwrap().len(), 1000);
        assert_eq!([0, 1, 2].map(|client| new("c", client, 3).unwrap().len()), [334, 333, 333]);
    }
}
