//! Latencies in few buckets, for monitoring: counts that only grow, and that others can add up.

/// Latencies by bucket, since the beginning.
///
/// ```
/// use fatbtree_remote_memory::LatencyBuckets;
///
/// let mut latencies = LatencyBuckets::default();
/// latencies.record(7_000); // 7 µs
/// latencies.record(7_000_000_000_000);
/// let buckets: Vec<(f64, u64)> = latencies.buckets().filter(|(_, count)| *count > 0).collect();
/// assert_eq!(buckets, [(10e-6, 1), (f64::MAX, 1)]);
/// assert_eq!((latencies.count(), latencies.sum_s()), (2, 7000.000007));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyBuckets {
    /// Number of latencies in each bucket; the last bucket is above all bounds.
    counts: [u64; BOUNDS_NS.len() + 1],
    sum_ns: u128,
}

/// Bounds of the buckets, from a way through a network to an operation that times out: 1, 2.5 and 5 of each power of ten.
const BOUNDS_NS: [u64; 20] = [
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    10_000_000_000,
];

impl LatencyBuckets {
    /// Counts one latency, in nanoseconds.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.counts[BOUNDS_NS.partition_point(|bound| *bound < ns)] += 1;
        self.sum_ns += u128::from(ns);
    }

    /// The upper bound of each bucket in seconds, [`f64::MAX`] for the last, and the latencies in it alone.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = BOUNDS_NS.iter().map(|bound| *bound as f64 / 1e9).chain([f64::MAX]);
        bounds.zip(self.counts)
    }

    /// Number of latencies.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of the latencies, in seconds.
    pub fn sum_s(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }
}

/// Latencies of a client's operations, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationLatencies {
    /// Lookups.
    pub reads: LatencyBuckets,
    /// Inserts, updates, deletes.
    pub writes: LatencyBuckets,
    /// Scans; of a client by RDMA those of [`Structure::scan`](crate::Structure::scan).
    pub scans: LatencyBuckets,
}

impl OperationLatencies {
    /// All kinds of operations by name.
    pub fn by_name(&self) -> [(&'static str, &LatencyBuckets); 3] {
        [("read", &self.reads), ("write", &self.writes), ("scan", &self.scans)]
    }
}
