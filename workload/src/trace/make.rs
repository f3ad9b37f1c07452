//! Traces made from a seed, in the format of the published ones.

use std::io::{self, Write};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustc_hash::FxHashSet;
use thiserror::Error;

use crate::byte_keys::DIGITS;
use crate::ycsb::{ZipfError, Zipfian, fnv_hash64};

/// Maker of a trace. Each field is public; [`Maker::default`] resembles a cache that is mostly read.
///
/// ```
/// use fatbtree_workload::trace::{Maker, Trace};
///
/// let mut lines = Vec::new();
/// Maker { operations: 1000, keys: 100, gets: 0.5, deletes: 0.1, ..Maker::default() }.write(1, &mut lines)?;
/// let trace = Trace::read("made", &lines[..], usize::MAX)?;
/// assert_eq!((trace.len(), trace.merged()), (1000, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Maker {
    /// Number of lines.
    pub operations: u64,
    /// Number of keys that lines are drawn from, at least 1.
    pub keys: u64,
    /// Skew of keys: exponent of the Zipf distribution, from 0 to below 1.
    pub theta: f64,
    /// Share of lines that are `get`.
    pub gets: f64,
    /// Share of lines that are `delete`; the others are `set`.
    pub deletes: f64,
    /// Bytes of values, from the least to the most.
    pub value_bytes: (u32, u32),
    /// Number of clients.
    pub clients: u64,
    /// Lines a second of the time stamps, at least 1.
    pub rate: u64,
}

impl Default for Maker {
    fn default() -> Self {
        Self {
            operations: 100_000,
            keys: 10_000,
            theta: 0.99,
            gets: 0.95,
            deletes: 0.0,
            value_bytes: (16, 256),
            clients: 100,
            rate: 10_000,
        }
    }
}

/// Reasons for which a trace cannot be made.
#[derive(Debug, Error)]
pub enum MakerError {
    /// Keys cannot be drawn so.
    #[error(transparent)]
    Zipf(#[from] ZipfError),
    /// Shares that are no shares.
    #[error(
        "expected shares of gets and deletes from 0 to 1 that sum to at most 1, found {gets} and {deletes}"
    )]
    Shares {
        /// Share of `get`.
        gets: f64,
        /// Share of `delete`.
        deletes: f64,
    },
    /// A range of sizes from more to less.
    #[error("expected bytes of values from the least to the most, found {least} to {most}")]
    Sizes {
        /// Least bytes.
        least: u32,
        /// Most bytes.
        most: u32,
    },
    /// The output failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Maker {
    /// Writes the lines. Equal makers and seeds write equal lines.
    ///
    /// A key is in the cache at first if its first line reads or deletes it. A `get` of a key that the trace has
    /// deleted finds nothing, and its line has value size 0.
    ///
    /// # Errors
    /// When a field has no possible value, or the output fails.
    pub fn write(&self, seed: u64, mut output: impl Write) -> Result<(), MakerError> {
        let Self { gets, deletes, value_bytes: (least, most), .. } = *self;
        let is_share = |share: f64| (0.0..=1.0).contains(&share);
        if !is_share(gets) || !is_share(deletes) || gets + deletes > 1.0 {
            return Err(MakerError::Shares { gets, deletes });
        }
        if least > most {
            return Err(MakerError::Sizes { least, most });
        }
        let keys = Zipfian::new(self.keys, self.theta)?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut absent = FxHashSet::default();
        for number in 0..self.operations {
            let record = keys.draw(&mut rng);
            let key = name(record);
            let (chance, client) = (rng.random::<f64>(), rng.random_range(0..self.clients.max(1)));
            // A key's value keeps its size, as most do in the published traces.
            let bytes = least + (fnv_hash64(record ^ seed) % (u64::from(most - least) + 1)) as u32;
            let (operation, bytes, ttl) = if chance < gets {
                ("get", if absent.contains(&record) { 0 } else { bytes }, 0)
            } else if chance < gets + deletes {
                ("delete", if absent.insert(record) { bytes } else { 0 }, 0)
            } else {
                absent.remove(&record);
                ("set", bytes, 3600)
            };
            let (at, length) = (number / self.rate.max(1), key.len());
            writeln!(output, "{at},{key},{length},{bytes},{client},{operation},{ttl}")?;
        }
        Ok(output.flush()?)
    }
}

/// Name of a record: its number in base 62, scrambled so that hot keys are no neighbours.
fn name(record: u64) -> String {
    // A bijection of 50 bits, which are nine digits: no two records share a name.
    const BITS: u64 = (1 << 50) - 1;
    let mut number = record.wrapping_mul(0x9e37_79b9_7f4a_7c15) & BITS;
    let mut digits = [b'0'; 9];
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[(number % 62) as usize];
        number /= 62;
    }
    format!("cache:{}", String::from_utf8_lossy(&digits))
}
