//! Keys that a client remembers of those it was asked for: what planners of switch caches learn from.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A uniform sample of the keys seen so far, of bounded size: a reservoir (Vitter, "Random sampling with a reservoir", 1985,
/// algorithm R).
///
/// ```
/// use fatbtree_client::KeySample;
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

    /// The sample, in no order that means anything.
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// Keys seen.
    pub fn seen(&self) -> u64 {
        self.seen
    }
}
