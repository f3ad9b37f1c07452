//! Common parts of the distribution tests: a seeded generator and a goodness-of-fit bound.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

pub(crate) fn seeded(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// Pearson's chi-square of `counts` against `pmf`, cells with fewer than 10 expected draws pooled.
///
/// Refuses a statistic more than four standard deviations above its mean (Wilson-Hilferty), and any draw
/// where the law gives none. A correct generator fails with about one seed in 30,000, and the seeds of the
/// tests are fixed.
pub(crate) fn chi_square(counts: &[u64], pmf: &[f64]) -> Result<(), String> {
    assert_eq!(counts.len(), pmf.len());
    let draws: u64 = counts.iter().sum();
    let (mut statistic, mut cells) = (0.0, 0u32);
    let (mut pooled_seen, mut pooled_expected) = (0.0, 0.0);
    for (cell, (&seen, &p)) in counts.iter().zip(pmf).enumerate() {
        if p == 0.0 && seen > 0 {
            return Err(format!("cell {cell} was drawn {seen} times and has probability 0"));
        }
        pooled_seen += seen as f64;
        pooled_expected += p * draws as f64;
        if pooled_expected >= 10.0 {
            statistic += (pooled_seen - pooled_expected).powi(2) / pooled_expected;
            cells += 1;
            (pooled_seen, pooled_expected) = (0.0, 0.0);
        }
    }
    let freedom = f64::from(cells.saturating_sub(1).max(1));
    // (X/k)^(1/3) is nearly normal with mean 1 - 2/9k and variance 2/9k.
    let spread = 2.0 / (9.0 * freedom);
    let z = ((statistic / freedom).cbrt() - (1.0 - spread)) / spread.sqrt();
    if z > 4.0 {
        return Err(format!(
            "chi-square {statistic:.1} with {freedom} degrees of freedom is {z:.1} sigma off"
        ));
    }
    Ok(())
}

#[test]
fn the_bound_notices_a_bent_die() {
    let fair = [10_000u64, 10_050, 9_930, 10_020, 9_990, 10_010];
    let bent = [10_600u64, 9_880, 9_880, 9_880, 9_880, 9_880];
    let pmf = [1.0 / 6.0; 6];
    assert!(chi_square(&fair, &pmf).is_ok());
    assert!(chi_square(&bent, &pmf).is_err());
}
