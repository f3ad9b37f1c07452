//! SMART's published values: millions of requests a second, from the result files of its artifact.

use crate::Mix;

/// Numbers of threads of figure 3.
pub(super) const FIGURE_3_THREADS: [u32; 9] = [1, 8, 16, 24, 32, 48, 64, 80, 96];

/// READs, by policy.
pub(super) const SHARED: [f64; 9] = [1.90, 0.58, 0.44, 0.40, 0.34, 0.27, 0.26, 0.25, 0.26];
pub(super) const FOUR: [f64; 9] = [1.90, 1.3, 2.6, 3.6, 5.0, 7.8, 9.1, 10.4, 12.1];
pub(super) const TWO: [f64; 9] = [1.90, 3.2, 8.5, 14.4, 18.2, 19.9, 22.8, 22.5, 18.9];
pub(super) const QUEUE_PAIR: [f64; 9] = [1.92, 14.8, 29.0, 39.0, 39.1, 29.4, 23.0, 20.8, 19.2];
pub(super) const DOORBELL: [f64; 9] = [1.81, 14.5, 28.7, 42.1, 55.2, 75.4, 90.3, 105.5, 111.2];
/// WRITEs, by policy.
pub(super) const WRITE_QUEUE_PAIR: [f64; 9] = [1.82, 14.0, 27.2, 35.9, 37.4, 29.2, 23.6, 20.5, 19.1];
pub(super) const WRITE_DOORBELL: [f64; 9] = [1.70, 13.9, 27.3, 39.1, 50.3, 68.8, 78.4, 84.4, 90.6];

/// Batches of figure 4a.
pub(super) const FIGURE_4_BATCHES: [u32; 6] = [1, 4, 8, 16, 24, 32];
/// Threads, READs and WRITEs of figure 4a, by batch.
pub(super) const FIGURE_4: [(u32, [f64; 6], [f64; 6]); 8] = [
    (12, [5.1, 13.6, 21.8, 31.1, 37.0, 40.4], [5.0, 13.2, 20.3, 29.5, 35.2, 38.7]),
    (24, [10.0, 26.0, 41.8, 60.8, 69.2, 77.0], [9.7, 25.3, 38.8, 54.7, 65.5, 72.6]),
    (36, [14.3, 38.5, 61.3, 86.3, 97.8, 104.2], [13.7, 36.8, 56.5, 79.5, 86.5, 91.4]),
    (48, [18.5, 48.7, 75.5, 102.5, 111.1, 104.0], [17.4, 45.9, 68.6, 85.8, 84.2, 69.9]),
    (60, [22.3, 58.2, 89.2, 111.0, 105.0, 85.7], [21.1, 53.1, 75.8, 92.7, 66.2, 65.1]),
    (72, [25.8, 66.9, 98.6, 107.1, 96.1, 73.2], [24.1, 59.3, 81.6, 67.0, 64.1, 63.6]),
    (84, [29.5, 74.3, 108.4, 92.2, 86.4, 62.4], [27.2, 64.7, 86.3, 64.5, 63.4, 62.9]),
    (96, [33.0, 81.6, 111.0, 78.1, 77.0, 55.2], [30.2, 71.2, 89.5, 62.8, 63.0, 63.1]),
];

/// Threads of figure 12a to c, and operations of each.
pub(super) const FIGURE_12_THREADS: u16 = 94;
pub(super) const FIGURE_12_BATCH: u32 = 8;
/// Figure 12a to c, YCSB A, B and C: Sherman+, + speculative lookup, SMART-BT.
pub(super) const FIGURE_12: [(Mix, [f64; 3]); 3] = [
    (Mix::WriteIntensive, [4.29, 4.46, 5.00]),
    (Mix::ReadIntensive, [11.4, 13.6, 20.8]),
    (Mix::ReadOnly, [11.5, 16.8, 23.2]),
];

/// Figure 13a, batches of 16: threads; a queue pair a thread, a doorbell a thread, throttled.
pub(super) const FIGURE_13A: [(u32, [f64; 3]); 4] = [
    (24, [46.0, 61.0, 58.0]),
    (48, [29.0, 103.0, 99.0]),
    (72, [23.0, 108.0, 107.0]),
    (96, [21.0, 80.0, 110.0]),
];
/// Figure 13b, 96 threads: batch; the same.
pub(super) const FIGURE_13B: [(u32, [f64; 3]); 4] = [
    (1, [15.8, 32.9, 32.8]),
    (8, [18.5, 111.0, 110.5]),
    (16, [21.4, 79.5, 109.0]),
    (32, [22.8, 55.0, 109.0]),
];

/// Table 1: interval in ms; without throttling, and with.
pub(super) const TABLE_1: [(u64, [f64; 2]); 9] = [
    (8, [80.8, 100.1]),
    (16, [79.8, 98.8]),
    (32, [79.3, 97.8]),
    (64, [79.3, 95.1]),
    (128, [77.9, 99.7]),
    (256, [74.7, 101.0]),
    (512, [73.8, 105.8]),
    (1024, [71.9, 109.3]),
    (2048, [65.7, 109.6]),
];
