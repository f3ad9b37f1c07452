//! Results of a run: latencies, round trips, rates, and everything that went wrong.
//!
//! ```text
//!  each operation ─▶ Recorder ──merge──▶ Recorder ─▶ Summary (serde: JSON, tables)
//!                                             └────▶ cdf()   (pictures)
//! ```
//!
//! ```
//! use fatbtree_workload::measure::{Outcome, Recorder};
//!
//! let mut recorder = Recorder::new();
//! for microseconds in 1..=100 {
//!     recorder.record(Outcome::Found, microseconds * 1000, 2);
//! }
//! let summary = recorder.summary(1_000_000_000); // all in one second
//! assert_eq!((summary.operations, summary.ops_per_s), (100, 100.0));
//! assert!((summary.p50_us - 50.0).abs() < 0.1);
//! assert_eq!(summary.round_trips, 2.0);
//! assert!(summary.verified());
//! ```

mod histogram;

use serde::{Deserialize, Serialize};

pub use fatbtree_remote_memory::Troubles;
pub use histogram::{CdfPoint, LatencyHistogram};

/// Outcome of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The operation ended with the right answer.
    Found,
    /// The key was not found, and should not be there.
    Absent,
    /// The key was not found, though it is there.
    NotFound,
    /// The answer was wrong. A run with one of these has failed.
    WrongAnswer,
    /// There was no answer: retries or reconnects are used up.
    Failed,
    /// The outcome of a write is unknown, because its server was started anew meanwhile.
    Unknown,
}

/// Round trips per operation counted one by one up to here, together beyond.
const MAX_TRIPS: usize = 64;

/// Recorder of one client's operations. Recording allocates nothing.
#[derive(Debug, Clone)]
pub struct Recorder {
    latency: LatencyHistogram,
    round_trips: [u64; MAX_TRIPS + 1],
    round_trips_sum: u64,
    outcomes: [u64; 6],
    troubles: Troubles,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// Creates an empty recorder (about 0.2 MB).
    pub fn new() -> Self {
        Recorder {
            latency: LatencyHistogram::new(),
            round_trips: [0; MAX_TRIPS + 1],
            round_trips_sum: 0,
            outcomes: [0; 6],
            troubles: Troubles::default(),
        }
    }

    /// Records a finished operation: its outcome, its latency in nanoseconds, and its number of round trips.
    ///
    /// Every operation counts into latencies and round trips, failed ones too: leaving them out would make a
    /// run with losses look faster than one without.
    #[inline]
    pub fn record(&mut self, outcome: Outcome, latency_ns: u64, round_trips: u32) {
        self.latency.record(latency_ns);
        self.round_trips[(round_trips as usize).min(MAX_TRIPS)] += 1;
        self.round_trips_sum += u64::from(round_trips);
        self.outcomes[outcome as usize] += 1;
    }

    /// Adds counters.
    pub fn add_troubles(&mut self, troubles: &Troubles) {
        self.troubles.merge(troubles);
    }

    /// Adds everything that another client recorded.
    pub fn merge(&mut self, other: &Recorder) {
        self.latency.merge(&other.latency);
        self.round_trips.iter_mut().zip(other.round_trips).for_each(|(own, more)| *own += more);
        self.round_trips_sum += other.round_trips_sum;
        self.outcomes.iter_mut().zip(other.outcomes).for_each(|(own, more)| *own += more);
        self.troubles.merge(&other.troubles);
    }

    /// Number of operations recorded.
    pub fn operations(&self) -> u64 {
        self.outcomes.iter().sum()
    }

    /// Number of operations with this outcome.
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize]
    }

    /// The latencies.
    pub fn latency(&self) -> &LatencyHistogram {
        &self.latency
    }

    /// Pairs of a number of round trips and the operations that made as many, without empty ones. 64 stands for 64
    /// and more.
    pub fn round_trip_histogram(&self) -> impl Iterator<Item = (u32, u64)> {
        (0..).zip(self.round_trips).filter(|&(_, operations)| operations > 0)
    }

    /// The distribution of latencies, for plotting.
    pub fn cdf(&self) -> Vec<CdfPoint> {
        self.latency.cdf()
    }

    /// Summary of a run that took `elapsed_ns` (a rate is 0 without time).
    pub fn summary(&self, elapsed_ns: u64) -> Summary {
        let operations = self.operations();
        let seconds = elapsed_ns as f64 / 1e9;
        let per = |whole: f64, part: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let us = |quantile| self.latency.quantile_ns(quantile) as f64 / 1000.0;
        Summary {
            operations,
            elapsed_s: seconds,
            ops_per_s: per(seconds, operations as f64),
            mean_us: self.latency.mean_ns() / 1000.0,
            p50_us: us(0.5),
            p90_us: us(0.9),
            p99_us: us(0.99),
            p99_9_us: us(0.999),
            max_us: self.latency.max_ns() as f64 / 1000.0,
            round_trips: per(operations as f64, self.round_trips_sum as f64),
            round_trip_histogram: self.round_trip_histogram().collect(),
            found: self.outcomes[Outcome::Found as usize],
            absent: self.outcomes[Outcome::Absent as usize],
            not_found: self.outcomes[Outcome::NotFound as usize],
            wrong_answers: self.outcomes[Outcome::WrongAnswer as usize],
            failed: self.outcomes[Outcome::Failed as usize],
            unknown: self.outcomes[Outcome::Unknown as usize],
            troubles: self.troubles,
        }
    }
}

/// Summary of a run. Latencies are in microseconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Operations finished.
    pub operations: u64,
    /// Length of the run in seconds.
    pub elapsed_s: f64,
    /// Operations per second.
    pub ops_per_s: f64,
    /// Average latency.
    pub mean_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// Latency that 90 % of the operations did not exceed.
    pub p90_us: f64,
    /// Latency that 99 % of the operations did not exceed.
    pub p99_us: f64,
    /// Latency that 99.9 % of the operations did not exceed.
    pub p99_9_us: f64,
    /// Latency of the slowest operation.
    pub max_us: f64,
    /// Average round trips per operation.
    pub round_trips: f64,
    /// Pairs `(round trips, operations)`, ascending.
    pub round_trip_histogram: Vec<(u32, u64)>,
    /// Operations with the right answer.
    pub found: u64,
    /// Operations that rightly did not find their key.
    pub absent: u64,
    /// Operations that should have found their key.
    pub not_found: u64,
    /// Operations with a wrong answer.
    pub wrong_answers: u64,
    /// Operations without an answer.
    pub failed: u64,
    /// Writes whose outcome is unknown. Reads may return the value from before, or the one written.
    #[serde(default)]
    pub unknown: u64,
    /// Counts of events that cost time.
    pub troubles: Troubles,
}

impl Summary {
    /// Whether every operation ended with the right answer, except writes whose outcome is unknown.
    pub fn verified(&self) -> bool {
        self.not_found == 0 && self.wrong_answers == 0 && self.failed == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_equals_recording_in_one() {
        let (mut one, mut left, mut right) = (Recorder::new(), Recorder::new(), Recorder::new());
        for i in 0..10_000u64 {
            let outcome = [Outcome::Found, Outcome::Absent, Outcome::Failed][i as usize % 3];
            let (latency, trips) = (i * i + 1, (i % 100) as u32);
            one.record(outcome, latency, trips);
            if i % 7 == 0 { &mut left } else { &mut right }.record(outcome, latency, trips);
        }
        left.add_troubles(&Troubles { retries: 2, ..Troubles::default() });
        right.add_troubles(&Troubles { retries: 3, fallbacks: 1, ..Troubles::default() });
        one.add_troubles(&Troubles { retries: 5, fallbacks: 1, ..Troubles::default() });
        left.merge(&right);
        assert_eq!(left.summary(5_000_000), one.summary(5_000_000));
        assert_eq!(left.cdf(), one.cdf());
    }

    #[test]
    fn round_trips_beyond_the_last_cell_keep_their_average() {
        let mut recorder = Recorder::new();
        recorder.record(Outcome::Found, 1, 1);
        recorder.record(Outcome::Found, 1, 999);
        let summary = recorder.summary(1);
        assert_eq!(summary.round_trips, 500.0);
        assert_eq!(summary.round_trip_histogram, [(1, 1), (64, 1)]);
    }

    #[test]
    fn bad_outcomes_fail_a_run() {
        for (outcome, verified) in [
            (Outcome::Found, true),
            (Outcome::Absent, true),
            (Outcome::NotFound, false),
            (Outcome::WrongAnswer, false),
            (Outcome::Failed, false),
            (Outcome::Unknown, true),
        ] {
            let mut recorder = Recorder::new();
            recorder.record(outcome, 1, 1);
            assert_eq!(recorder.summary(1).verified(), verified, "{outcome:?}");
        }
    }

    #[test]
    fn an_empty_run_has_no_nan() {
        let summary = Recorder::new().summary(0);
        assert_eq!(summary, Summary::default());
    }

    #[test]
    fn summaries_go_through_json() {
        let mut recorder = Recorder::new();
        recorder.record(Outcome::Found, 27_500, 1);
        let summary = recorder.summary(1000);
        let json = serde_json::to_string(&summary).unwrap();
        assert!(json.contains("\"ops_per_s\":1000000.0") && json.contains("\"p99_9_us\":27.5"), "{json}");
        assert_eq!(serde_json::from_str::<Summary>(&json).unwrap(), summary);
    }
}
