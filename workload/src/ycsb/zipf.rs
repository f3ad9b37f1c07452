//! Zipfian ranks: rank `k` (from 0) has weight `1 / (k + 1)^theta`.
//!
//! For `theta` below 1 this is the inverse of Gray et al., "Quickly Generating Billion-Record Synthetic
//! Databases" (SIGMOD 1994, figure 3), which is what YCSB runs: the first two ranks are exact, all others
//! follow a power law fitted through rank 2 and rank n. It costs one power function per draw. The fit makes
//! rank 2 (of many) 20 % too frequent and is within 4 % from rank 10 on; every published YCSB figure includes
//! that. [`Zipfian::probability`] gives what the generator really draws.
//!
//! The fit has no form for `theta >= 1`; there the draw is exact, by rejection (`rand_distr::Zipf`).

use rand::{Rng, RngExt};
use rand_distr::Distribution;
use thiserror::Error;

/// YCSB's default skew.
pub const DEFAULT_THETA: f64 = 0.99;

/// Limit of theta from which `1 / (1 - theta)` magnifies rounding so much that the exact sampler is the better generator.
const FIT_LIMIT: f64 = 0.9999;

/// Reasons for which a Zipfian generator cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum ZipfError {
    /// The skew is not a positive finite number.
    #[error(
        "a Zipfian constant must be a finite number above 0, found {theta}; for no skew at all use the uniform distribution"
    )]
    Theta {
        /// Theta that was asked for.
        theta: f64,
    },
    /// There are no items to draw from.
    #[error("a Zipfian distribution needs at least 1 item, found 0; load records first")]
    NoItems,
}

/// The generalised harmonic number `sum of k^-theta for k in 1..=n`, to about 1e-12 relative, in constant
/// time.
///
/// The first thousand terms are summed, the rest is the Euler-Maclaurin formula with two correction terms, so
/// that zeta of YCSB's 10^10 items costs microseconds and not the minutes of a plain sum.
pub fn zeta(n: u64, theta: f64) -> f64 {
    const HEAD: u64 = 1000;
    // Smallest terms first keeps the rounding error at the last bit.
    let direct = |n: u64| (1..=n).rev().map(|k| (k as f64).powf(-theta)).sum::<f64>();
    if n <= HEAD {
        return direct(n);
    }
    let (m, n) = (HEAD as f64, n as f64);
    let spread = (n / m).ln();
    let integral = if theta == 1.0 {
        spread
    } else {
        m.powf(1.0 - theta) * ((1.0 - theta) * spread).exp_m1() / (1.0 - theta)
    };
    let ends = (n.powf(-theta) + m.powf(-theta)) / 2.0;
    let first = |x: f64| -theta * x.powf(-theta - 1.0);
    let third = |x: f64| -theta * (theta + 1.0) * (theta + 2.0) * x.powf(-theta - 3.0);
    direct(HEAD - 1) + integral + ends + (first(n) - first(m)) / 12.0 - (third(n) - third(m)) / 720.0
}

/// Draws ranks `0..items`, rank 0 the most popular.
#[derive(Debug, Clone)]
pub struct Zipfian {
    items: u64,
    theta: f64,
    zeta_n: f64,
    draw: Draw,
}

#[derive(Debug, Clone)]
enum Draw {
    Fit(Fit),
    Exact(rand_distr::Zipf<f64>),
}

/// Gray's constants, named as in the paper.
#[derive(Debug, Clone, Copy)]
struct Fit {
    items: f64,
    zeta_n: f64,
    zeta_2: f64,
    alpha: f64,
    eta: f64,
}

impl Fit {
    fn new(items: u64, theta: f64, zeta_n: f64) -> Self {
        let n = items as f64;
        let zeta_2 = 1.0 + 0.5f64.powf(theta);
        // With one or two items every draw ends in the exact branches and eta is never used.
        let eta = if items > 2 { (1.0 - (2.0 / n).powf(1.0 - theta)) / (1.0 - zeta_2 / zeta_n) } else { 1.0 };
        Fit { items: n, zeta_n, zeta_2, alpha: 1.0 / (1.0 - theta), eta }
    }

    #[inline]
    fn rank(&self, u: f64) -> u64 {
        let uz = u * self.zeta_n;
        if uz < 1.0 {
            return 0;
        }
        if uz < self.zeta_2 {
            return 1;
        }
        // u < 1, so the power is below 1; rounding may still lift the product to n itself.
        let rank = self.items * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.items as u64 - 1)
    }

    /// The smallest `u` that draws a rank of `k` or more, for `k >= 2`.
    fn threshold(&self, k: f64, theta: f64) -> f64 {
        (((k / self.items).powf(1.0 - theta) - 1.0 + self.eta) / self.eta).clamp(0.0, 1.0)
    }
}

impl Zipfian {
    /// A generator over `items` ranks with skew `theta`.
    pub fn new(items: u64, theta: f64) -> Result<Self, ZipfError> {
        check(items, theta)?;
        Self::with_zeta(items, theta, zeta(items, theta))
    }

    /// Generator with `zeta(items, theta)` known beforehand, as YCSB does for its scrambled generator.
    pub fn with_zeta(items: u64, theta: f64, zeta_n: f64) -> Result<Self, ZipfError> {
        check(items, theta)?;
        let draw = if theta <= FIT_LIMIT {
            Draw::Fit(Fit::new(items, theta, zeta_n))
        } else {
            let zipf = rand_distr::Zipf::new(items as f64, theta)
                .expect("items >= 1 and theta > 0 were checked, which is all that the sampler asks for");
            Draw::Exact(zipf)
        };
        Ok(Zipfian { items, theta, zeta_n, draw })
    }

    /// Number of ranks.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Changes the number of ranks (no fewer than 1), as after inserts.
    ///
    /// Zeta is carried on from the old value for small steps and computed anew for large ones. YCSB keeps
    /// computing `eta` from the *first* item count here, which bends the tail as the table grows; the count
    /// active is used instead.
    pub fn set_items(&mut self, items: u64) {
        let items = items.max(1);
        if items == self.items {
            return;
        }
        let added = items.saturating_sub(self.items);
        let zeta_n = if added > 0 && added <= 16 {
            self.zeta_n + (self.items + 1..=items).map(|k| (k as f64).powf(-self.theta)).sum::<f64>()
        } else {
            zeta(items, self.theta)
        };
        *self = Self::with_zeta(items, self.theta, zeta_n).expect("theta was checked when this was made");
    }

    /// Draws a rank.
    #[inline]
    pub fn draw<R: Rng + ?Sized>(&self, rng: &mut R) -> u64 {
        match &self.draw {
            Draw::Fit(fit) => fit.rank(rng.random::<f64>()),
            Draw::Exact(zipf) => (zipf.sample(rng) as u64).clamp(1, self.items) - 1,
        }
    }

    /// The probability with which this generator draws `rank`: Gray's fit below `theta` 1, the true law from
    /// 1 on.
    pub fn probability(&self, rank: u64) -> f64 {
        if rank >= self.items {
            return 0.0;
        }
        match &self.draw {
            Draw::Exact(_) => ((rank + 1) as f64).powf(-self.theta) / self.zeta_n,
            Draw::Fit(_) if rank == 0 => 1.0 / self.zeta_n,
            Draw::Fit(fit) if rank == 1 => (fit.zeta_2.min(self.zeta_n) - 1.0) / self.zeta_n,
            Draw::Fit(fit) => {
                let floor = fit.zeta_2 / self.zeta_n;
                let from = fit.threshold(rank as f64, self.theta).max(floor);
                let to = fit.threshold((rank + 1) as f64, self.theta).max(floor);
                to - from
            }
        }
    }
}

fn check(items: u64, theta: f64) -> Result<(), ZipfError> {
    if !(theta.is_finite() && theta > 0.0) {
        return Err(ZipfError::Theta { theta });
    }
    if items == 0 {
        return Err(ZipfError::NoItems);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ycsb::statistics::{chi_square, seeded};

    #[test]
    fn zeta_agrees_with_the_plain_sum() {
        for theta in [0.1, 0.5, 0.99, 1.0, 1.2, 2.0] {
            for n in [1u64, 2, 999, 1000, 1001, 5000, 100_000] {
                let sum: f64 = (1..=n).rev().map(|k| (k as f64).powf(-theta)).sum();
                let got = zeta(n, theta);
                assert!((got - sum).abs() / sum < 1e-12, "theta {theta}, n {n}: {got} is not {sum}");
            }
        }
    }

    /// YCSB ships zeta(10^10, 0.99) as a constant, because summing it takes minutes.
    #[test]
    fn zeta_agrees_with_the_constant_of_ycsb() {
        let got = zeta(10_000_000_000, 0.99);
        assert!((got - 26.469_028_201_783_02).abs() < 1e-8, "{got}");
    }

    #[test]
    fn probabilities_sum_to_one() {
        for theta in [0.2, 0.5, 0.99, 1.0, 1.5] {
            for items in [1, 2, 3, 10, 1000] {
                let zipf = Zipfian::new(items, theta).unwrap();
                let sum: f64 = (0..items).map(|rank| zipf.probability(rank)).sum();
                assert!((sum - 1.0).abs() < 1e-9, "theta {theta}, {items} items: {sum}");
            }
        }
    }

    #[test]
    fn draws_follow_the_probabilities() {
        for (theta, items) in [(0.3, 50), (0.5, 1000), (0.99, 1000), (0.99, 3), (1.0, 1000), (1.4, 200)] {
            let zipf = Zipfian::new(items, theta).unwrap();
            let mut rng = seeded(7);
            let mut counts = vec![0u64; items as usize];
            for _ in 0..400_000 {
                counts[zipf.draw(&mut rng) as usize] += 1;
            }
            let pmf: Vec<f64> = (0..items).map(|rank| zipf.probability(rank)).collect();
            chi_square(&counts, &pmf).unwrap_or_else(|why| panic!("theta {theta}, {items} items: {why}"));
        }
    }

    /// The fit against the law it fits: exact at the first two ranks, close in the body.
    #[test]
    fn the_fit_is_close_to_the_law() {
        let zipf = Zipfian::new(100_000, 0.99).unwrap();
        let law = |rank: u64| ((rank + 1) as f64).powf(-0.99) / zeta(100_000, 0.99);
        for rank in [0, 1] {
            assert!((zipf.probability(rank) / law(rank) - 1.0).abs() < 1e-12);
        }
        for rank in 2..10 {
            assert!((zipf.probability(rank) / law(rank) - 1.0).abs() < 0.2, "rank {rank}");
        }
        for rank in [10, 100, 1000, 10_000, 99_999] {
            let ratio = zipf.probability(rank) / law(rank);
            assert!((ratio - 1.0).abs() < 0.04, "rank {rank}: {ratio}");
        }
    }

    #[test]
    fn growth_equals_a_fresh_generator() {
        for theta in [0.7, 0.99, 1.1] {
            let mut grown = Zipfian::new(10, theta).unwrap();
            for items in (11..200).chain([5000, 5001, 100_000, 40]) {
                grown.set_items(items);
                let fresh = Zipfian::new(items, theta).unwrap();
                assert!((grown.zeta_n / fresh.zeta_n - 1.0).abs() < 1e-12);
                for rank in [0, 1, 2, items / 2, items - 1] {
                    let (a, b) = (grown.probability(rank), fresh.probability(rank));
                    assert!((a - b).abs() <= 1e-9 * b.max(1e-9), "theta {theta}, {items}, {rank}: {a} {b}");
                }
            }
        }
    }

    #[test]
    fn senseless_constants_are_refused() {
        for theta in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(Zipfian::new(10, theta), Err(ZipfError::Theta { .. })), "{theta}");
        }
        assert_eq!(Zipfian::new(0, 0.99).unwrap_err(), ZipfError::NoItems);
        assert!(Zipfian::new(10, 0.0).unwrap_err().to_string().contains("uniform"));
    }

    #[test]
    fn one_item_is_always_drawn() {
        for theta in [0.5, 0.99, 1.0, 3.0] {
            let zipf = Zipfian::new(1, theta).unwrap();
            let mut rng = seeded(1);
            assert!((0..100).all(|_| zipf.draw(&mut rng) == 0));
        }
    }
}
