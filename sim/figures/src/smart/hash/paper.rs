//! SMART's published values for RACE hashing: millions of operations a second, from the result files of its artifact.

use crate::Mix;

/// Figure 5a: threads, updates with Zipf 0.99.
pub(super) const FIGURE_5: [(u32, f64); 5] = [(1, 0.24), (4, 1.12), (8, 1.57), (12, 0.95), (16, 0.53)];

/// Numbers of threads of figure 8, of eight in the paper.
pub(super) const FIGURE_8_THREADS: [u32; 5] = [1, 8, 24, 48, 96];
/// A line of figure 8; none where it lies on the line before.
type Line = Option<[f64; 5]>;
/// Figure 8, YCSB A, B and C: RACE, + resources, + throttling, + conflict avoidance.
pub(super) const FIGURE_8: [(Mix, [Line; 4]); 3] = [
    (
        Mix::WriteIntensive,
        [
            Some([0.34, 2.80, 0.69, 0.41, 0.20]),
            None,
            Some([0.32, 2.64, 4.02, 1.39, 0.23]),
            Some([0.33, 2.68, 5.35, 5.64, 5.23]),
        ],
    ),
    (
        Mix::ReadIntensive,
        [
            Some([0.51, 3.32, 8.22, 11.5, 5.13]),
            Some([0.50, 3.44, 10.1, 17.1, 3.06]),
            Some([0.50, 3.42, 10.2, 16.8, 9.47]),
            Some([0.50, 3.56, 9.70, 16.8, 20.9]),
        ],
    ),
    (Mix::ReadOnly, [Some([0.57, 4.32, 10.2, 11.5, 6.46]), Some([0.57, 4.58, 12.1, 20.8, 23.9]), None, None]),
];

/// Numbers of threads of figure 7a to c.
pub(super) const FIGURE_7_THREADS: [u32; 8] = [1, 8, 16, 24, 32, 48, 64, 96];
/// Figure 7a to c, YCSB A, B and C: RACE and SMART-HT.
pub(super) const FIGURE_7: [(Mix, [[f64; 8]; 2]); 3] = [
    (
        Mix::WriteIntensive,
        [[0.34, 2.80, 1.58, 0.69, 0.52, 0.41, 0.25, 0.20], [0.33, 2.68, 4.54, 5.35, 5.53, 5.64, 5.47, 5.23]],
    ),
    (
        Mix::ReadIntensive,
        [[0.51, 3.32, 5.72, 8.22, 9.63, 11.5, 7.47, 5.13], [0.50, 3.56, 6.87, 9.70, 12.1, 16.8, 20.2, 20.9]],
    ),
    (
        Mix::ReadOnly,
        [[0.57, 4.32, 6.73, 10.2, 10.4, 11.5, 8.13, 6.46], [0.57, 4.58, 8.47, 12.1, 15.8, 20.8, 23.1, 23.9]],
    ),
];

/// Numbers of clients of figure 7d to f, of six in the paper.
pub(super) const FIGURE_7_NUMBERS: [u32; 3] = [2, 4, 6];
/// Figure 7d to f, YCSB A, B and C; 0: not known.
pub(super) const FIGURE_7_CLIENTS: [(Mix, [[f64; 3]; 2]); 3] = [
    (Mix::WriteIntensive, [[0.123, 0.068, 0.054], [0.0, 0.0, 5.70]]),
    (Mix::ReadIntensive, [[1.79, 0.92, 0.71], [32.0, 35.9, 37.1]]),
    (Mix::ReadOnly, [[13.3, 26.8, 41.1], [44.9, 72.6, 75.1]]),
];

/// Numbers of threads of figure 14a, of six in the paper.
pub(super) const FIGURE_14_THREADS: [u32; 3] = [16, 48, 96];
/// Figure 14a: without, + back-off, + dynamic limit, + tasks bounded.
pub(super) const FIGURE_14: [[f64; 3]; 4] =
    [[2.35, 0.39, 0.18], [1.74, 1.70, 1.43], [2.41, 2.64, 2.45], [2.70, 2.95, 2.66]];
