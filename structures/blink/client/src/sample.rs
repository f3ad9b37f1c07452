//! Observations of clients for planners of switch caches: the keys that clients are asked for, and the number of stale hints from switches.

use fatbtree_blink::PoolStats;
use fatbtree_remote_memory::Report;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A uniform sample of the keys seen so far, of bounded size: a reservoir (Vitter, "Random sampling with a reservoir", 1985,
/// algorithm R).
///
/// ```
/// use fatbtree_blink_client::KeySample;
///
/// let mut sample = KeySample::new(100, 1);
/// (0..10_000).for_each(|key| sample.see(key));
/// assert_eq!((sample.keys().len(), sample.seen()), (100, 10_000));
/// let late = sample.keys().iter().filter(|key| **key >= 5_000).count();
/// assert!((30..70).contains(&late), "early keys and late ones alike");
/// ```
#[derive(Clone, Debug)]
pub struct KeySample {
    keys: Vec<u64>,
    most: usize,
    seen: u64,
    random: ChaCha8Rng,
}

impl KeySample {
    /// An empty sample of at most `most` keys.
    pub fn new(most: usize, seed: u64) -> Self {
        Self { keys: Vec::with_capacity(most), most, seen: 0, random: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// Takes notice of a key that was asked for.
    #[inline]
    pub fn see(&mut self, key: u64) {
        self.seen += 1;
        if self.keys.len() < self.most {
            self.keys.push(key);
        } else if let Some(place) = self.keys.get_mut(self.random.random_range(0..self.seen) as usize) {
            *place = key;
        }
    }

    /// Takes the sample, and begins another one.
    pub fn take(&mut self) -> Vec<u64> {
        self.seen = 0;
        std::mem::replace(&mut self.keys, Vec::with_capacity(self.most))
    }

    /// The sample, in no order that means anything.
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// Keys seen.
    pub fn seen(&self) -> u64 {
        self.seen
    }
}

/// Sample of a client, and the counts that it has reported already.
#[derive(Debug, Default)]
pub(crate) struct Sampling {
    sample: Option<KeySample>,
    told: (u64, u64, u64),
}

impl Sampling {
    pub(crate) fn set(&mut self, sample: Option<KeySample>) {
        self.sample = sample;
    }

    #[inline]
    pub(crate) fn see(&mut self, key: u64) {
        if let Some(sample) = &mut self.sample {
            sample.see(key);
        }
    }

    pub(crate) fn report(&mut self, stats: &PoolStats) -> Report {
        let counted = (stats.index_reads, stats.stale_hints, stats.records);
        let told = std::mem::replace(&mut self.told, counted);
        let keys = self.sample.as_mut().map(KeySample::take).unwrap_or_default();
        Report {
            keys,
            index_reads: counted.0 - told.0,
            stale_hints: counted.1 - told.1,
            hot_keys: counted.2 - told.2,
        }
    }
}
