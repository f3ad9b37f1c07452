//! Work-request throttling: a bound on the requests that a thread has under way (SMART, section 4.2, Algorithm 1).
//!
//! A card keeps the requests under way in a small cache; beyond some thousand of all threads together, it reads each of them again from the
//! host. So each thread has a limit, and a chain waits until it fits. The best limit depends on the number of threads and on the workload,
//! so it is tried out:
//!
//! ```text
//!   │◄───────────── trial ─────────────►│◄──────────── stable, 480 ms ────────────►│◄─ trial …
//!   no limit 12   10   8    6    4         the limit with which most requests were done
//!    8 ms each
//! ```

use std::num::NonZeroU32;

use crate::time::{Duration, Instant};

/// Bound on the requests that a reactor has under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Throttling {
    /// None but that of the send queues.
    #[default]
    Off,
    /// So many.
    Fixed(NonZeroU32),
    /// The best of 4, 6, 8, 10, 12 and none, tried out every 528 ms.
    Adaptive,
}

/// Limits that are tried out; the first one is none.
const CANDIDATES: [u32; 6] = [u32::MAX, 12, 10, 8, 6, 4];

/// Time for which a limit is tried out.
const TRIAL: Duration = Duration::from_millis(8);

/// Time for which the best limit stays.
const STABLE: Duration = Duration::from_millis(60 * 8);

/// Percent that "no limit" must be better than the best limit: with few threads all are alike, and the limit does no harm.
const MARGIN: u64 = 5;

/// Requests under way, and their limit. It has no clock: time comes with [`handle_timeout`](Self::handle_timeout).
#[derive(Debug)]
pub(super) struct Throttle {
    limit: u32,
    under_way: u32,
    tuner: Option<Tuner>,
}

#[derive(Debug)]
struct Tuner {
    /// Candidate that is tried out; after the last one, the best one stays.
    candidate: usize,
    /// Begin of the present trial, or of the stable time.
    since: Option<Instant>,
    /// Requests done since then.
    done: u64,
    /// Requests per second with each candidate.
    rates: [u64; CANDIDATES.len()],
    /// The limit that was best last time.
    best: u32,
}

impl Throttle {
    pub(super) fn new(throttling: Throttling) -> Self {
        let (limit, tuner) = match throttling {
            Throttling::Off => (u32::MAX, None),
            Throttling::Fixed(limit) => (limit.get(), None),
            Throttling::Adaptive => (CANDIDATES[0], Some(Tuner::default())),
        };
        Self { limit, under_way: 0, tuner }
    }

    /// Whether there is anything to count.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.limit != u32::MAX || self.tuner.is_some()
    }

    /// Present limit; none if all are let through.
    #[cfg(test)]
    fn limit(&self) -> Option<u32> {
        (self.limit != u32::MAX).then_some(self.limit)
    }

    #[cfg(test)]
    pub(super) const fn under_way(&self) -> u32 {
        self.under_way
    }

    /// Whether a chain of so many requests may be posted. One that is longer than the limit may be when nothing else is under way: it would
    /// wait for ever otherwise. So all that wait are called then, as those before them may not come.
    #[inline]
    pub(super) fn admits(&self, requests: u32) -> bool {
        self.under_way == 0 || self.under_way.saturating_add(requests) <= self.limit
    }

    /// Takes credits for a chain.
    #[inline]
    pub(super) fn take(&mut self, requests: u32) {
        self.under_way += requests;
    }

    /// Notes requests that are done: their credits come back.
    #[inline]
    pub(super) fn done(&mut self, requests: u32) {
        self.under_way = self.under_way.saturating_sub(requests);
        if let Some(tuner) = &mut self.tuner {
            tuner.done += u64::from(requests);
        }
    }

    /// Goes on to the next limit, when it is time. A thread that was idle in all trials returns to the limit that it had.
    #[inline]
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if let Some(tuner) = &mut self.tuner
            && let Some(limit) = tuner.handle_timeout(now)
        {
            self.limit = limit;
        }
    }
}

impl Default for Tuner {
    fn default() -> Self {
        Self { candidate: 0, since: None, done: 0, rates: [0; CANDIDATES.len()], best: u32::MAX }
    }
}

impl Tuner {
    /// The limit from now on, if it changes.
    fn handle_timeout(&mut self, now: Instant) -> Option<u32> {
        let Some(since) = self.since else {
            self.since = Some(now);
            return None;
        };
        let (is_trial, elapsed) = (self.candidate < CANDIDATES.len(), now - since);
        if elapsed < if is_trial { TRIAL } else { STABLE } {
            return None;
        }
        let done = std::mem::take(&mut self.done);
        self.since = Some(now);
        if !is_trial {
            self.candidate = 0;
            return Some(CANDIDATES[0]);
        }
        self.rates[self.candidate] = done.saturating_mul(1_000_000_000) / elapsed.as_nanos().max(1);
        self.candidate += 1;
        if let Some(&next) = CANDIDATES.get(self.candidate) {
            return Some(next);
        }
        if self.rates.iter().any(|&rate| rate > 0) {
            self.best = self.find_best();
        }
        Some(self.best)
    }

    fn find_best(&self) -> u32 {
        let rates = &self.rates;
        // Of equal ones the smallest limit, which is last.
        let best = (1..rates.len()).max_by_key(|&at| rates[at]).unwrap_or(0);
        let unlimited_wins = rates[0].saturating_mul(100) > rates[best].saturating_mul(100 + MARGIN);
        if unlimited_wins { u32::MAX } else { CANDIDATES[best] }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A limit's share of the requests that the card can do: it is best at `peak` and falls to both sides.
    fn tuned(rate: impl Fn(u32) -> u64) -> Throttle {
        let mut throttle = Throttle::new(Throttling::Adaptive);
        let mut now = Instant::ZERO;
        throttle.handle_timeout(now);
        for _ in CANDIDATES {
            for _ in 0..8 {
                let requests = rate(throttle.limit) as u32;
                throttle.take(requests);
                throttle.done(requests);
                now += Duration::from_millis(1);
                throttle.handle_timeout(now);
            }
        }
        throttle
    }

    #[test]
    fn the_best_limit_stays_and_is_tried_out_again() {
        let mut throttle = tuned(|limit| if limit == 8 { 1_000 } else { 900 });
        assert_eq!(throttle.limit(), Some(8));
        let since = throttle.tuner.as_ref().unwrap().since.unwrap();
        throttle.handle_timeout(since + Duration::from_nanos(STABLE.as_nanos() - 1));
        assert_eq!(throttle.limit(), Some(8));
        throttle.handle_timeout(since + STABLE);
        assert_eq!(throttle.limit(), None, "the next trial");
    }

    #[test]
    fn no_limit_must_be_better_by_a_margin() {
        let with = |unlimited| tuned(move |limit| if limit == u32::MAX { unlimited } else { 1_000 }).limit();
        assert_eq!((with(1_049), with(1_060)), (Some(4), None));
    }

    #[test]
    fn a_chain_longer_than_the_limit_goes_alone() {
        let mut throttle = Throttle::new(Throttling::Fixed(NonZeroU32::new(4).unwrap()));
        assert!(throttle.admits(9));
        throttle.take(9);
        assert!(!throttle.admits(1));
        throttle.done(9);
        throttle.take(1);
        assert!(throttle.admits(3) && !throttle.admits(4) && !throttle.admits(9));
        assert!(!Throttle::new(Throttling::Off).is_on());
    }

    proptest! {
        /// Chains of any length, one after the other: there are never more under way than the limit, but for one chain alone; and each is
        /// posted in the end.
        #[test]
        fn the_limit_is_kept_and_nothing_waits_for_ever(
            limit in 1u32..16,
            mut chains in prop::collection::vec(1u32..20, 1..60),
            ends in prop::collection::vec(any::<prop::sample::Index>(), 60),
        ) {
            let mut throttle = Throttle::new(Throttling::Fixed(NonZeroU32::new(limit).unwrap()));
            let mut posted: Vec<u32> = Vec::new();
            let mut ends = ends.into_iter().cycle();
            while !chains.is_empty() {
                if throttle.admits(chains[0]) {
                    let chain = chains.remove(0);
                    throttle.take(chain);
                    posted.push(chain);
                } else {
                    prop_assert!(!posted.is_empty(), "{} waits for nothing", chains[0]);
                    let end = ends.next().unwrap().index(posted.len());
                    throttle.done(posted.remove(end));
                }
                prop_assert!(posted.iter().sum::<u32>() <= limit || posted.len() == 1);
            }
        }
    }
}
