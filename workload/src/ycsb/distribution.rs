//! YCSB's request distributions, which choose the record of each operation.
//!
//! Every chooser draws from the records that exist at that moment, `0..=last`, where `last` moves up as
//! inserts are acknowledged. Where YCSB redraws a record that does not exist yet, so do we.

use rand::{Rng, RngExt};

use super::hash::fnv_hash64;
use super::zipf::{ZipfError, Zipfian};

/// Number of items over which YCSB's scrambled generator draws ranks, whatever the record count.
pub const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// Precomputed zeta of YCSB's scrambled generator, at skew 0.99.
pub const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// A request distribution and its parameters, as named in a workload file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RequestDistribution {
    /// All records are equally likely.
    Uniform,
    /// YCSB's `zipfian`: ranks over 10^10 items, hashed onto the records. Popular records lie scattered; and
    /// since 10^10 ranks share the records, the head is a little flatter than a Zipfian over the records
    /// themselves.
    Zipfian {
        /// Skew.
        theta: f64,
    },
    /// A Zipfian over the records themselves: record 0 is the most popular. With hashed keys the popular
    /// *keys* lie scattered all the same. This is what the Sherman and Fat-B+Tree papers mean by "Zipf 0.99".
    /// Our own name, `zipfian-ranked`; YCSB has the generator but no name for it.
    RankedZipfian {
        /// Skew.
        theta: f64,
    },
    /// The newest record is the most popular.
    Latest {
        /// Skew.
        theta: f64,
    },
    /// A share of the operations goes to the first share of the records, evenly.
    Hotspot {
        /// Share of the records that are hot, 0 to 1.
        data: f64,
        /// Share of the operations that go there, 0 to 1.
        operations: f64,
    },
    /// Records follow one another, cyclically.
    Sequential,
    /// Ages (newest first) drawn from an exponential distribution.
    Exponential {
        /// Share of the operations in per cent that go to the newest records, strictly between 0 and 100.
        percentile: f64,
        /// Newest share of the records to which they go, above 0.
        fraction: f64,
    },
}

/// Records that a chooser may draw from when it is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    /// First record number (`insertstart`).
    pub(crate) start: u64,
    /// Number of records loaded from there (`insertcount`).
    pub(crate) count: u64,
    /// Number of records in all when the run starts (`recordcount`).
    pub(crate) records: u64,
    /// Inserts to expect during the run, to make room for in the scrambled distribution.
    pub(crate) expected_inserts: u64,
}

/// Draws record numbers.
#[derive(Debug, Clone)]
pub(crate) enum Chooser {
    Uniform { start: u64, count: u64 },
    Scrambled { zipf: Zipfian, start: u64, count: u64 },
    Ranked { zipf: Zipfian, start: u64 },
    Latest { zipf: Zipfian },
    Hotspot { start: u64, hot: u64, cold: u64, operations: f64 },
    Sequential { start: u64, count: u64, next: u64 },
    Exponential { gamma: f64 },
}

impl Chooser {
    /// Creates a chooser; `range.count` must be at least 1.
    pub(crate) fn new(distribution: RequestDistribution, range: Range) -> Result<Self, ZipfError> {
        let Range { start, count, records, expected_inserts } = range;
        Ok(match distribution {
            RequestDistribution::Uniform => Chooser::Uniform { start, count },
            RequestDistribution::Zipfian { theta } => {
                // YCSB's bounds are inclusive: one item more than the constant says, here and below.
                let zipf = if theta == super::zipf::DEFAULT_THETA {
                    Zipfian::with_zeta(SCRAMBLED_ITEMS + 1, theta, SCRAMBLED_ZETA)?
                } else {
                    Zipfian::new(SCRAMBLED_ITEMS + 1, theta)?
                };
                Chooser::Scrambled { zipf, start, count: count + expected_inserts + 1 }
            }
            RequestDistribution::RankedZipfian { theta } => {
                Chooser::Ranked { zipf: Zipfian::new(count, theta)?, start }
            }
            RequestDistribution::Latest { theta } => Chooser::Latest { zipf: Zipfian::new(records, theta)? },
            RequestDistribution::Hotspot { data, operations } => {
                let hot = (count as f64 * data) as u64;
                Chooser::Hotspot { start, hot, cold: count - hot, operations }
            }
            RequestDistribution::Sequential => Chooser::Sequential { start, count, next: 0 },
            RequestDistribution::Exponential { percentile, fraction } => {
                Chooser::Exponential { gamma: -(1.0 - percentile / 100.0).ln() / (records as f64 * fraction) }
            }
        })
    }

    /// Draws a record number, at most `last`.
    #[inline]
    pub(crate) fn draw<R: Rng + ?Sized>(&mut self, rng: &mut R, last: u64) -> u64 {
        match self {
            Chooser::Uniform { start, count } => *start + rng.random_range(0..*count),
            Chooser::Scrambled { zipf, start, count } => loop {
                let record = *start + fnv_hash64(zipf.draw(rng)) % *count;
                if record <= last {
                    break record;
                }
            },
            Chooser::Ranked { zipf, start } => *start + zipf.draw(rng),
            Chooser::Latest { zipf } => {
                // YCSB draws over `last` items, one too few, and so never reads record 0.
                zipf.set_items(last + 1);
                last - zipf.draw(rng)
            }
            Chooser::Hotspot { start, hot, cold, operations } => {
                let in_hot = (rng.random::<f64>() < *operations && *hot > 0) || *cold == 0;
                *start + if in_hot { rng.random_range(0..*hot) } else { *hot + rng.random_range(0..*cold) }
            }
            Chooser::Sequential { start, count, next } => {
                let record = *start + *next;
                *next = (*next + 1) % *count;
                record
            }
            Chooser::Exponential { gamma } => loop {
                // 1 - u lies in (0, 1], whose logarithm is finite.
                let age = -(1.0 - rng.random::<f64>()).ln() / *gamma;
                if age <= last as f64 {
                    break last - age as u64;
                }
            },
        }
    }
}

/// Distribution of the number of records that a scan requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanLengthDistribution {
    /// All lengths are equally likely.
    Uniform,
    /// Short scans are favoured (skew 0.99).
    Zipfian,
}

/// Draws scan lengths `min..=max`.
#[derive(Debug, Clone)]
pub(crate) struct ScanLength {
    min: u32,
    max: u32,
    zipf: Option<Zipfian>,
}

impl ScanLength {
    /// Creates a generator; `min <= max` must hold.
    pub(crate) fn new(distribution: ScanLengthDistribution, min: u32, max: u32) -> Result<Self, ZipfError> {
        let zipf = match distribution {
            ScanLengthDistribution::Uniform => None,
            ScanLengthDistribution::Zipfian => {
                Some(Zipfian::new(u64::from(max - min) + 1, super::zipf::DEFAULT_THETA)?)
            }
        };
        Ok(ScanLength { min, max, zipf })
    }

    pub(crate) fn draw<R: Rng + ?Sized>(&self, rng: &mut R) -> u32 {
        match &self.zipf {
            None => rng.random_range(self.min..=self.max),
            Some(zipf) => self.min + zipf.draw(rng) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ycsb::statistics::{chi_square, seeded};

    const RECORDS: u64 = 500;
    const DRAWS: usize = 300_000;

    fn range(records: u64) -> Range {
        Range { start: 0, count: records, records, expected_inserts: 0 }
    }

    fn counts(distribution: RequestDistribution, records: u64) -> Vec<u64> {
        let mut chooser = Chooser::new(distribution, range(records)).unwrap();
        let mut rng = seeded(11);
        let mut counts = vec![0; records as usize];
        for _ in 0..DRAWS {
            counts[chooser.draw(&mut rng, records - 1) as usize] += 1;
        }
        counts
    }

    fn assert_follows(distribution: RequestDistribution, pmf: &[f64]) {
        let total: f64 = pmf.iter().sum();
        assert!((total - 1.0).abs() < 1e-6, "{distribution:?}: the expected law sums to {total}");
        chi_square(&counts(distribution, pmf.len() as u64), pmf)
            .unwrap_or_else(|why| panic!("{distribution:?}: {why}"));
    }

    #[test]
    fn uniform() {
        assert_follows(RequestDistribution::Uniform, &[1.0 / RECORDS as f64; RECORDS as usize]);
    }

    /// The law of the scrambled draw: the head ranks where their hash puts them, the rest spread by the hash
    /// as if at random. With 10^5 head ranks summed exactly, what the rest adds to each of 501 cells is even
    /// to a fraction of the noise of the draws.
    #[test]
    fn zipfian_scrambled() {
        let zipf = Zipfian::with_zeta(SCRAMBLED_ITEMS + 1, 0.99, SCRAMBLED_ZETA).unwrap();
        let cells = RECORDS + 1;
        let mut pmf = vec![0.0; cells as usize];
        for rank in 0..100_000 {
            pmf[(fnv_hash64(rank) % cells) as usize] += zipf.probability(rank);
        }
        let rest = (1.0 - pmf.iter().sum::<f64>()) / cells as f64;
        pmf.iter_mut().for_each(|p| *p += rest);
        // The last cell is a record that does not exist yet: those draws are repeated.
        let missing = pmf.pop().unwrap();
        pmf.iter_mut().for_each(|p| *p /= 1.0 - missing);
        assert_follows(RequestDistribution::Zipfian { theta: 0.99 }, &pmf);
    }

    #[test]
    fn zipfian_ranked() {
        let zipf = Zipfian::new(RECORDS, 0.8).unwrap();
        let pmf: Vec<f64> = (0..RECORDS).map(|r| zipf.probability(r)).collect();
        assert_follows(RequestDistribution::RankedZipfian { theta: 0.8 }, &pmf);
    }

    #[test]
    fn latest() {
        let zipf = Zipfian::new(RECORDS, 0.99).unwrap();
        let pmf: Vec<f64> = (0..RECORDS).rev().map(|r| zipf.probability(r)).collect();
        assert_follows(RequestDistribution::Latest { theta: 0.99 }, &pmf);
    }

    #[test]
    fn latest_follows_the_newest_record() {
        let mut chooser = Chooser::new(RequestDistribution::Latest { theta: 0.99 }, range(10)).unwrap();
        let mut rng = seeded(3);
        let newest = (0..10_000).filter(|_| chooser.draw(&mut rng, 999) == 999).count();
        let expected = Zipfian::new(1000, 0.99).unwrap().probability(0) * 10_000.0;
        assert!((newest as f64 - expected).abs() < 6.0 * expected.sqrt(), "{newest} of {expected}");
    }

    #[test]
    fn hotspot() {
        let (data, operations) = (0.2, 0.8);
        let pmf: Vec<f64> = (0..RECORDS).map(|r| if r < 100 { 0.8 / 100.0 } else { 0.2 / 400.0 }).collect();
        assert_follows(RequestDistribution::Hotspot { data, operations }, &pmf);
        // Degenerate shares still draw something that exists.
        for (data, operations) in [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (1.0, 1.0)] {
            let all = counts(RequestDistribution::Hotspot { data, operations }, 10);
            assert_eq!(all.iter().sum::<u64>(), DRAWS as u64);
        }
    }

    #[test]
    fn exponential() {
        let (percentile, fraction) = (95.0, 6.0 / 7.0);
        let gamma = -(0.05f64).ln() / (RECORDS as f64 * fraction);
        let last = (RECORDS - 1) as f64;
        let whole = 1.0 - (-gamma * last).exp();
        let pmf: Vec<f64> = (0..RECORDS)
            .rev()
            .map(|age| {
                let (from, to) = (age as f64, ((age + 1) as f64).min(last));
                ((-gamma * from).exp() - (-gamma * to).exp()) / whole
            })
            .collect();
        assert_follows(RequestDistribution::Exponential { percentile, fraction }, &pmf);
    }

    #[test]
    fn sequential_wraps() {
        let mut chooser =
            Chooser::new(RequestDistribution::Sequential, Range { start: 5, ..range(3) }).unwrap();
        let mut rng = seeded(1);
        let drawn: Vec<u64> = (0..7).map(|_| chooser.draw(&mut rng, 7)).collect();
        assert_eq!(drawn, [5, 6, 7, 5, 6, 7, 5]);
    }

    #[test]
    fn scan_lengths() {
        let mut rng = seeded(9);
        let uniform = ScanLength::new(ScanLengthDistribution::Uniform, 3, 12).unwrap();
        let zipf = ScanLength::new(ScanLengthDistribution::Zipfian, 3, 12).unwrap();
        let mut seen = [[0u64; 10]; 2];
        for _ in 0..100_000 {
            seen[0][uniform.draw(&mut rng) as usize - 3] += 1;
            seen[1][zipf.draw(&mut rng) as usize - 3] += 1;
        }
        chi_square(&seen[0], &[0.1; 10]).unwrap();
        let law = Zipfian::new(10, 0.99).unwrap();
        let pmf: Vec<f64> = (0..10).map(|rank| law.probability(rank)).collect();
        chi_square(&seen[1], &pmf).unwrap();
    }
}
