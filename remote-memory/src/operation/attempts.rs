//! Distribution of attempts: how often operations try before they win a lock or a CAS.

use std::array;

/// Losses that are counted one by one; beyond, those whose number is a power of two.
const SINGLE: u32 = 64;

const DOUBLED: usize = (u32::BITS - SINGLE.ilog2()) as usize;

/// Distribution of attempts at what other clients want, too. Throughput alone hides an operation that loses for ever; this shows it.
///
/// ```
/// use fatbtree_remote_memory::Attempts;
///
/// let mut attempts = Attempts::default();
/// (0..998).for_each(|_| attempts.won());
/// // Two operations lose three times each, and win.
/// for _ in 0..2 {
///     (0..3).for_each(|loss| attempts.lost(loss));
///     attempts.won();
/// }
/// assert_eq!((attempts.quantile(0.5), attempts.quantile(0.999), attempts.wins()), (1, 4, 1_000));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempts {
    wins: u64,
    /// Operations that have lost at least so often: 1, 2, … 64 times, then 65, 129, 257, …
    lost: [u64; SINGLE as usize + DOUBLED],
}

impl Default for Attempts {
    fn default() -> Self {
        Self { wins: 0, lost: array::from_fn(|_| 0) }
    }
}

impl Attempts {
    /// An operation has won.
    #[inline]
    pub fn won(&mut self) {
        self.wins += 1;
    }

    /// An operation has lost, after it had lost `before` times.
    #[inline]
    pub fn lost(&mut self, before: u32) {
        if before < SINGLE {
            self.lost[before as usize] += 1;
        } else if before.is_power_of_two() {
            self.lost[(SINGLE + before.ilog2() - SINGLE.ilog2()) as usize] += 1;
        }
    }

    /// Operations that have won.
    #[must_use]
    pub fn wins(&self) -> u64 {
        self.wins
    }

    /// Attempts within which this share of operations has won: exact up to 64, then at most twice as many. 0: none has won.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> u64 {
        if self.wins == 0 {
            return 0;
        }
        let beyond = ((1.0 - quantile.clamp(0.0, 1.0)) * self.wins as f64 + 1e-6) as u64;
        let beyond = beyond.min(self.wins - 1);
        let within = self.lost.iter().position(|&lost| lost <= beyond).unwrap_or(self.lost.len());
        match within.checked_sub(SINGLE as usize) {
            None => within as u64 + 1,
            // So many losses at most were had before the next count.
            Some(doubled) => (u64::from(SINGLE) << doubled) + 1,
        }
    }

    /// Adds the attempts of another client.
    pub fn merge(&mut self, other: &Self) {
        self.wins += other.wins;
        self.lost.iter_mut().zip(&other.lost).for_each(|(sum, more)| *sum += more);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The quantile is that of the sorted list, or at most twice as many where losses are not counted one by one.
        #[test]
        fn quantiles_are_those_of_the_sorted_list(
            mut losses in prop::collection::vec(prop_oneof![0..4_u32, 0..200_u32, 0..5_000_u32], 1..200),
            percent in 0..=100_usize,
        ) {
            let (mut whole, mut parts) = (Attempts::default(), [Attempts::default(), Attempts::default()]);
            for (number, &count) in losses.iter().enumerate() {
                for attempts in [&mut whole, &mut parts[number % 2]] {
                    (0..count).for_each(|before| attempts.lost(before));
                    attempts.won();
                }
            }
            let [mut merged, other] = parts;
            merged.merge(&other);
            prop_assert_eq!(&merged, &whole);
            losses.sort_unstable();
            let rank = (losses.len() * percent).div_ceil(100).max(1);
            let exact = u64::from(losses[rank - 1]) + 1;
            let found = whole.quantile(percent as f64 / 100.0);
            let bound = if exact <= 65 { exact } else { 2 * exact };
            prop_assert!((exact..=bound).contains(&found), "{} instead of {}", found, exact);
        }
    }
}
