//! Latencies in an HDR histogram: three significant digits from 1 ns to beyond an hour.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest latency kept apart: an hour. Longer ones count as this.
const HIGHEST_NS: u64 = 3_600_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;

/// One point of the cumulative distribution.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CdfPoint {
    /// Latency in microseconds.
    pub us: f64,
    /// Share of the operations that took at most that, 0 to 1.
    pub share: f64,
}

/// Latencies in nanoseconds, kept to 0.1 %. With serde it is the sum, the longest latency and its cells, from which an equal one is read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "Cells", try_from = "Cells")]
pub struct LatencyHistogram {
    histogram: Histogram<u64>,
    /// The exact sum, so that the average carries no rounding of cells.
    sum_ns: u128,
    max_ns: u64,
}

/// A histogram as it is written.
#[derive(Serialize, Deserialize)]
struct Cells {
    sum_ns: u64,
    max_ns: u64,
    /// Latency and count of each cell that is not empty, ascending.
    cells: Vec<(u64, u64)>,
}

impl From<LatencyHistogram> for Cells {
    fn from(of: LatencyHistogram) -> Self {
        let cells = of.histogram.iter_recorded();
        let cells = cells.map(|cell| (cell.value_iterated_to(), cell.count_since_last_iteration())).collect();
        Self { sum_ns: u64::try_from(of.sum_ns).unwrap_or(u64::MAX), max_ns: of.max_ns, cells }
    }
}

impl TryFrom<Cells> for LatencyHistogram {
    type Error = String;

    fn try_from(Cells { sum_ns, max_ns, cells }: Cells) -> Result<Self, String> {
        let mut all = Self::new();
        let mut count = 0u64;
        for (ns, of_cell) in cells {
            // Sums of counts stay far from the end of 64 bits.
            count =
                count.checked_add(of_cell).filter(|count| *count < 1 << 60).ok_or("too many latencies")?;
            all.histogram.saturating_record_n(ns.min(HIGHEST_NS), of_cell);
        }
        (all.sum_ns, all.max_ns) = (sum_ns.into(), max_ns);
        Ok(all)
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self::new()
    }
}

impl LatencyHistogram {
    /// An empty histogram.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, HIGHEST_NS, SIGNIFICANT_DIGITS)
            .expect("1 ns to an hour with 3 digits are bounds that the histogram allows");
        LatencyHistogram { histogram, sum_ns: 0, max_ns: 0 }
    }

    /// Counts one latency.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns.min(HIGHEST_NS));
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds the latencies of another histogram.
    pub fn merge(&mut self, other: &LatencyHistogram) {
        self.histogram.add(&other.histogram).expect("both histograms have the same bounds");
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Number of latencies.
    pub fn len(&self) -> u64 {
        self.histogram.len()
    }

    /// Whether nothing is recorded yet.
    pub fn is_empty(&self) -> bool {
        self.histogram.is_empty()
    }

    /// Average; 0 when empty.
    pub fn mean_ns(&self) -> f64 {
        if self.is_empty() { 0.0 } else { self.sum_ns as f64 / self.len() as f64 }
    }

    /// The longest latency, exactly.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The latency that a share `quantile` (0 to 1) of the operations did not exceed, to 0.1 %; 0 when empty.
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        if self.is_empty() { 0 } else { self.histogram.value_at_quantile(quantile).min(self.max_ns) }
    }

    /// The cumulative distribution: one point per recorded value (at most some thousands), ascending in both.
    pub fn cdf(&self) -> Vec<CdfPoint> {
        let whole = self.len() as f64;
        let mut below = 0;
        self.histogram
            .iter_recorded()
            .map(|cell| {
                below += cell.count_since_last_iteration();
                let ns = cell.value_iterated_to().min(self.max_ns);
                CdfPoint { us: ns as f64 / 1000.0, share: below as f64 / whole }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against the definition: the smallest recorded value that at least this share does not exceed.
        #[test]
        fn quantiles_are_within_a_thousandth(
            mut values in prop::collection::vec(1u64..10_000_000_000, 1..300), quantile in 0.0f64..=1.0
        ) {
            let mut histogram = LatencyHistogram::new();
            values.iter().for_each(|&ns| histogram.record(ns));
            values.sort_unstable();
            let at = ((quantile * values.len() as f64).ceil() as usize).max(1) - 1;
            let (exact, got) = (values[at] as f64, histogram.quantile_ns(quantile) as f64);
            prop_assert!((got - exact).abs() <= exact * 0.001 + 1.0, "{got} is not {exact}");
            let mean = values.iter().sum::<u64>() as f64 / values.len() as f64;
            prop_assert!((histogram.mean_ns() - mean).abs() <= mean * 1e-12);
            prop_assert_eq!(histogram.max_ns(), values[values.len() - 1]);
        }

        #[test]
        fn the_cdf_rises_to_one(values in prop::collection::vec(any::<u64>(), 1..300)) {
            let mut histogram = LatencyHistogram::new();
            values.iter().for_each(|&ns| histogram.record(ns));
            let cdf = histogram.cdf();
            prop_assert!(cdf.windows(2).all(|pair| pair[0].us < pair[1].us && pair[0].share < pair[1].share));
            prop_assert_eq!(cdf[cdf.len() - 1].share, 1.0);
        }
    }
}
