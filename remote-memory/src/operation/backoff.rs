//! Back-off: how long an operation pauses before it tries the same again.
//!
//! Two things are tried again: a read of what was torn or is out of place, and a lock that another client holds. Each has a
//! [`Backoff`] of its own in [`RemoteConfig`](crate::RemoteConfig); the pauses of both come from [`Pauses`].

use fatbtree_verbs::time::Duration;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Pauses of operations between attempts.
///
/// Pauses begin with `unit`, grow to `limit`, and have a random part, half of each at most, so that operations that met do not meet
/// again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Attempts of a round, at least 1: there is one pause after each round, and none within it.
    pub round: u32,
    /// First pause, without its random part.
    pub unit: Duration,
    /// Longest pause.
    pub limit: Duration,
    /// Growth of pauses from round to round.
    pub growth: Growth,
}

/// Growth of the pauses of one operation.
///
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Growth {
    /// Pauses do not grow.
    None,
    /// Twice as long each time.
    Doubling,
    /// Twice as long each time, up to a limit that follows the share of the thread's attempts that fail. The random part is one unit on top
    /// of each (SMART, section 4.3).
    FailureRate,
}

/// Part of the time that an operation still tries which one pause may last: the nearer its end, the more often it tries. Clients whose
/// back-off has grown would starve among those whose has not.
const HURRY: u64 = 8;

impl Backoff {
    /// For reads: a pause before each of them, from 1 µs to 1 ms.
    pub const READS: Self = Self {
        round: 1,
        unit: Duration::from_micros(1),
        limit: Duration::from_millis(1),
        growth: Growth::Doubling,
    };

    /// For locks: 16 attempts without a pause, then one of 16 µs. A lock is held for a round trip or two, and an operation that
    /// pauses between falls after those that do not (Sherman's clients never pause). Of one client only the first operation in the
    /// queue tries.
    pub const LOCKS: Self = Self {
        round: 16,
        unit: Duration::from_micros(16),
        limit: Duration::from_micros(16),
        growth: Growth::None,
    };

    /// SMART's: a pause after each attempt, from 1.7 µs (4,096 cycles) to 1.7 ms (section 4.3).
    pub const SMART: Self = Self {
        round: 1,
        unit: Duration::from_nanos(1_700),
        limit: Duration::from_nanos(1_700 << 10),
        growth: Growth::FailureRate,
    };

    /// For whole transactions, after a conflict: a pause after each attempt, from 20 µs to 5 ms.
    pub const TRANSACTIONS: Self = Self {
        round: 1,
        unit: Duration::from_micros(20),
        limit: Duration::from_millis(5),
        growth: Growth::Doubling,
    };

    /// The same pauses for an operation that gives up after `left`: each lasts an eighth of it at most. `None` if it never gives up.
    pub(crate) fn within(&self, left: Option<Duration>) -> Self {
        let limit = left.map_or(self.limit, |left| self.limit.min(left / HURRY));
        Self { limit, ..*self }
    }

    /// Whether a round ends with this attempt; the first one is number 0.
    pub(crate) fn ends_round(&self, attempt: u32) -> bool {
        let round = self.round.max(1);
        attempt % round == round - 1
    }

    /// Pause after the round of this attempt, without its random part. The growth is `most` at most where it follows the rate of failures.
    fn span(&self, attempt: u32, most: u32) -> u64 {
        let rounds = attempt / self.round.max(1);
        let grown = match self.growth {
            Growth::None => 0,
            Growth::Doubling => rounds,
            Growth::FailureRate => rounds.min(most),
        };
        let factor = 1u64.checked_shl(grown).unwrap_or(u64::MAX);
        self.unit.as_nanos().saturating_mul(factor).min(self.limit.as_nanos())
    }
}

/// The random part of pauses, drawn from one seed.
#[derive(Debug)]
pub struct Pauses {
    random: ChaCha8Rng,
}

impl Pauses {
    /// Pauses of one client or task: others have another seed, so that they part.
    pub fn new(seed: u64) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// Draws the pause after an attempt; the first one is number 0. The growth is `most` at most where it follows the rate of failures.
    pub fn draw(&mut self, backoff: &Backoff, attempt: u32, most: u32) -> Duration {
        let span = backoff.span(attempt, most);
        let range = match backoff.growth {
            Growth::None | Growth::Doubling => span / 2..=span,
            Growth::FailureRate => span..=span.saturating_add(backoff.unit.as_nanos()),
        };
        Duration::from_nanos(self.random.random_range(range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(backoff: &Backoff, seed: u64, attempts: impl Iterator<Item = u32>) -> Vec<u64> {
        let mut pauses = Pauses::new(seed);
        attempts.map(|attempt| pauses.draw(backoff, attempt, 0).as_nanos()).collect()
    }

    #[test]
    fn pauses_double_up_to_the_limit_and_half_of_each_is_random() {
        for (attempt, longest) in
            [(0, 1_000), (1, 2_000), (9, 512_000), (10, 1_000_000), (u32::MAX, 1_000_000)]
        {
            let pauses = drawn(&Backoff::READS, 7, [attempt; 200].into_iter());
            assert!(
                pauses.iter().all(|pause| (longest / 2..=longest).contains(pause)),
                "{attempt}: {pauses:?}"
            );
            let (short, long) = (longest * 6 / 10, longest * 9 / 10);
            assert!(pauses.iter().any(|&pause| pause < short) && pauses.iter().any(|&pause| pause > long));
        }
    }

    #[test]
    fn a_lock_is_asked_for_sixteen_times_between_two_pauses_of_the_same_length() {
        let ends: Vec<u32> = (0..64).filter(|&attempt| Backoff::LOCKS.ends_round(attempt)).collect();
        assert_eq!(ends, [15, 31, 47, 63]);
        let pauses = drawn(&Backoff::LOCKS, 7, 0..1_000);
        assert!(pauses.iter().all(|pause| (8_000..=16_000).contains(pause)), "{pauses:?}");
        assert!((0..64).all(|attempt| Backoff::READS.ends_round(attempt)));
    }

    #[test]
    fn a_round_of_several_attempts_grows_once() {
        let backoff = Backoff { round: 4, ..Backoff::READS };
        assert_eq!(
            [0, 3, 4, 7, 8].map(|attempt| backoff.span(attempt, 0)),
            [1_000, 1_000, 2_000, 2_000, 4_000]
        );
        let no_round = Backoff { round: 0, ..Backoff::READS };
        assert!(no_round.ends_round(0) && no_round.span(1, 0) == 2_000, "it is taken for 1");
    }

    #[test]
    fn the_longest_pause_follows_the_rate_of_failures() {
        let mut pauses = Pauses::new(7);
        for (attempt, most, least) in
            [(0, 10, 1_700), (3, 0, 1_700), (3, 2, 6_800), (u32::MAX, 10, 1_740_800)]
        {
            for _ in 0..100 {
                let pause = pauses.draw(&Backoff::SMART, attempt, most).as_nanos();
                assert!((least..=least + 1_700).contains(&pause), "{attempt} {most}: {pause}");
            }
        }
    }

    #[test]
    fn an_operation_that_will_give_up_pauses_an_eighth_of_what_is_left() {
        let within = |left| Backoff::SMART.within(left).span(u32::MAX, 10);
        assert_eq!(within(None), Backoff::SMART.limit.as_nanos());
        assert_eq!(within(Some(Duration::from_millis(30))), Backoff::SMART.limit.as_nanos());
        assert_eq!(within(Some(Duration::from_micros(80))), 10_000);
        assert_eq!(within(Some(Duration::ZERO)), 0);
    }

    #[test]
    fn a_seed_decides_all_pauses() {
        assert_eq!(drawn(&Backoff::READS, 3, 0..20), drawn(&Backoff::READS, 3, 0..20));
        assert_ne!(drawn(&Backoff::READS, 3, 0..20), drawn(&Backoff::READS, 4, 0..20));
    }
}
