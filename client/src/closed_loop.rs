//! A closed loop: keeps a client busy with a workload's reads and records every answer.

use fatbtree_index::OpId;
use fatbtree_nic::time::{Duration, Instant};
use thiserror::Error;

use crate::measure::{Recorder, Summary};
use crate::roce::{Answer, CheckValue, Done, Mode, RoceClient};
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

/// Runs the reads of a workload on one client, always as many at once as the client takes.
///
/// Call [`fill`](Self::fill) whenever the client may have room, [`on_done`](Self::on_done) with every
/// finished lookup, until [`is_finished`](Self::is_finished).
#[derive(Debug)]
pub struct ClosedLoop {
    workload: Workload,
    mode: Mode,
    to_submit: u64,
    under_way: u64,
    recorder: Recorder,
    first: Option<Instant>,
    last: Instant,
    wrong: Option<(OpId, u64, Answer)>,
}

impl ClosedLoop {
    /// The `operationcount` reads of `spec`, divided over `clients`, of which this is number `client`.
    ///
    /// # Errors
    /// When the workload has other operations than reads, or cannot be drawn from.
    pub fn new(
        spec: &WorkloadSpec,
        keys: KeyMap,
        seed: u64,
        mode: Mode,
        client: u64,
        clients: u64,
    ) -> Result<Self, ClosedLoopError> {
        let weights = spec.proportions.as_array();
        let sum: f64 = weights.iter().sum();
        for (kind, weight) in OperationKind::ALL.into_iter().zip(weights) {
            if kind != OperationKind::Read && weight > 0.0 {
                return Err(ClosedLoopError::NotReads { kind, share: 100.0 * weight / sum });
            }
        }
        let workload = Workload::for_client(spec, keys, seed, client, clients)?;
        // The first clients take what does not divide evenly.
        let operations = spec.operation_count / clients + u64::from(client < spec.operation_count % clients);
        Ok(ClosedLoop {
            workload,
            mode,
            to_submit: operations,
            under_way: 0,
            recorder: Recorder::new(),
            first: None,
            last: Instant::ZERO,
            wrong: None,
        })
    }

    /// Submits as many lookups as the client takes.
    pub fn fill<C: CheckValue>(&mut self, now: Instant, client: &mut RoceClient<C>) {
        while self.to_submit > 0 && client.room() > 0 {
            let operation =
                self.workload.next_operation().expect("only inserts use up keys, and there are none");
            client.submit(now, operation.key, self.mode).expect("the client said that it has room");
            self.first.get_or_insert(now);
            self.to_submit -= 1;
            self.under_way += 1;
        }
    }

    /// Records a finished lookup. All keys of the workload are in the tree.
    pub fn on_done(&mut self, now: Instant, done: &Done) {
        self.under_way = self.under_way.saturating_sub(1);
        self.last = now;
        if done.answer != Answer::Found && self.wrong.is_none() {
            self.wrong = Some((done.op, done.key, done.answer));
        }
        self.recorder.record(done.answer.outcome(true), done.latency.as_nanos(), done.trips.round_trips);
    }

    /// Whether all lookups are done.
    pub fn is_finished(&self) -> bool {
        self.to_submit == 0 && self.under_way == 0
    }

    /// Lookups not done yet.
    pub fn remaining(&self) -> u64 {
        self.to_submit + self.under_way
    }

    /// The first lookup that did not end with the right answer, for the report of a failed run.
    pub fn first_wrong(&self) -> Option<(OpId, u64, Answer)> {
        self.wrong
    }

    /// From the first submission to the last answer.
    pub fn elapsed(&self) -> Duration {
        self.first.map_or(Duration::ZERO, |first| self.last - first)
    }

    /// What was recorded, to merge with other clients'.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The run in figures, with the client's own counters.
    pub fn summary<C: CheckValue>(&self, client: &RoceClient<C>) -> Summary {
        let mut recorder = self.recorder.clone();
        recorder.add_troubles(&client.stats().troubles());
        recorder.summary(self.elapsed().as_nanos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::builtin;

    #[test]
    fn only_reads_are_run() {
        let spec = |name| WorkloadSpec::from_properties(&builtin(name).unwrap()).unwrap();
        let new = |name| ClosedLoop::new(&spec(name), KeyMap::Hashed, 1, Mode::Index, 0, 1);
        let error = new("a").unwrap_err().to_string();
        assert!(error.starts_with("50.0 % of the workload's operations are UPDATE"), "{error}");
        assert_eq!(new("c").unwrap().remaining(), 1000);
        let thirds =
            (0..3).map(|i| ClosedLoop::new(&spec("c"), KeyMap::Hashed, 1, Mode::Index, i, 3).unwrap());
        assert_eq!(thirds.map(|part| part.remaining()).collect::<Vec<_>>(), [334, 333, 333]);
    }
}
