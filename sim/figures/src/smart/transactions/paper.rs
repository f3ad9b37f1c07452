//! SMART's published values for SMART-DTX: millions of commits a second and µs, from the result files of its artifact.

/// Numbers of threads of figure 10, of eight in the paper.
pub(super) const THREADS: [u32; 5] = [1, 8, 24, 48, 96];
/// Figure 10, SmallBank: FORD+ and SMART-DTX.
pub(super) const SMALL_BANK: [[f64; 5]; 2] = [[0.21, 1.04, 2.12, 1.43, 0.80], [0.20, 0.94, 2.55, 3.94, 4.63]];
/// Figure 10, TATP: FORD+ and SMART-DTX.
pub(super) const TATP: [[f64; 5]; 2] = [[0.39, 1.97, 4.50, 4.64, 2.16], [0.37, 1.97, 4.59, 6.00, 6.50]];
/// Figure 11, 96 threads with 8 transactions each: median and 99th percentile of FORD+ and SMART-DTX. SmallBank, then TATP.
pub(super) const LATENCIES: [[(f64, f64); 2]; 2] =
    [[(454.0, 1536.0), (137.0, 288.0)], [(86.0, 857.0), (44.0, 405.0)]];
