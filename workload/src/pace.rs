//! Times at which operations of a load generator begin.

use fatbtree_verbs::time::Duration;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Times at which operations begin, and the number under way at once, at least 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// A closed loop: an operation begins when another has ended.
    Closed {
        /// Number of operations under way.
        depth: usize,
    },
    /// An open loop: each operation has a time at which it should begin, whether or not others have ended. Its
    /// latency counts from there, and so includes the wait after slow operations (no coordinated omission).
    Open {
        /// Operations per second. Their times are random, as those of many independent clients (a Poisson process
        /// that has as many events as there are operations).
        per_second: f64,
        /// Seed of the times.
        seed: u64,
        /// Maximum number of operations under way: one that finds no room begins late.
        most: usize,
    },
}

impl Pace {
    pub(crate) fn most(self) -> usize {
        match self {
            Self::Closed { depth } => depth,
            Self::Open { most, .. } => most,
        }
    }
}

/// Times at which operations should begin, ascending, from the start of the run.
///
/// In a Poisson process whose number of events in a span is known, the events are spread like as many uniform
/// numbers. They are drawn in order: the smallest of n uniform numbers in a span t is t (1 - u^(1/n)).
#[derive(Clone, Debug)]
pub(crate) struct Arrivals {
    left: u64,
    /// Time of the previous operation in seconds.
    at: f64,
    end: f64,
    random: ChaCha8Rng,
}

impl Arrivals {
    pub(crate) fn new(operations: u64, per_second: f64, seed: u64) -> Self {
        let random = ChaCha8Rng::seed_from_u64(seed);
        Self { left: operations, at: 0.0, end: operations as f64 / per_second, random }
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let uniform: f64 = 1.0 - self.random.random::<f64>(); // not 0
        let share = -(uniform.ln() / self.left as f64).exp_m1();
        self.left = self.left.checked_sub(1)?;
        self.at += (self.end - self.at) * share;
        Some(Duration::from_nanos((self.at * 1e9) as u64))
    }
}

/// Intended and actual rates of an open loop.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Punctuality {
    /// Operations that should have begun per second.
    pub intended_per_s: f64,
    /// Operations that began per second.
    pub begun_per_s: f64,
    /// Operations that ended per second, until all had.
    pub ended_per_s: f64,
}

impl Punctuality {
    /// Whether operations began at the intended rate, within one per cent, and ended at that rate, within five: the
    /// last ones end after all have begun. Otherwise latencies are those of a queue that grows with the length of the
    /// run.
    pub fn kept_up(&self) -> bool {
        self.begun_per_s >= 0.99 * self.intended_per_s && self.ended_per_s >= 0.95 * self.intended_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_ascend_fill_their_span_and_have_random_gaps() {
        let arrivals: Vec<u64> = Arrivals::new(100_000, 50_000.0, 7).map(Duration::as_nanos).collect();
        assert_eq!(arrivals.len(), 100_000);
        assert!(arrivals.is_sorted());
        let last = *arrivals.last().unwrap() as f64 / 1e9;
        assert!((1.99..2.0).contains(&last), "{last} of 2 s");
        let half = arrivals.partition_point(|at| *at < 1_000_000_000);
        assert!((49_000..51_000).contains(&half), "{half} in the first half");
        // Gaps of a Poisson process: a share of 1/e is longer than their mean.
        let long = arrivals.windows(2).filter(|pair| pair[1] - pair[0] > 20_000).count();
        assert!((36_000..37_600).contains(&long), "{long} gaps above the mean");
    }

    #[test]
    fn a_seed_decides() {
        let of = |seed| Arrivals::new(10, 1.0, seed).collect::<Vec<_>>();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        assert_eq!(Arrivals::new(0, 1.0, 1).next(), None);
    }
}
