//! Latencies of operations.

use fatbtree_workload::measure::LatencyHistogram;
use serde::Serialize;

/// Latencies in microseconds.
#[derive(Serialize, Clone, Debug)]
pub(super) struct Latencies {
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p90_us: f64,
    pub(super) p99_us: f64,
    pub(super) p99_9_us: f64,
    pub(super) max_us: f64,
}

impl Latencies {
    /// Heads of the [columns](Self::columns).
    pub(super) const HEADS: [&str; 6] = ["mean µs", "p50", "p90", "p99", "p99.9", "max"];

    pub(super) fn of(latency: &LatencyHistogram) -> Self {
        let at = |quantile| latency.quantile_ns(quantile) as f64 / 1e3;
        Self {
            mean_us: latency.mean_ns() / 1e3,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p99_9_us: at(0.999),
            max_us: latency.max_ns() as f64 / 1e3,
        }
    }

    /// Columns of a table.
    pub(super) fn columns(&self) -> [String; 6] {
        let Self { mean_us, p50_us, p90_us, p99_us, p99_9_us, max_us } = self;
        [mean_us, p50_us, p90_us, p99_us, p99_9_us, max_us].map(|time| format!("{time:.0}"))
    }
}
