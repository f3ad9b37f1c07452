//! Network faults as a small seeded part: one verdict per frame, decided by rates and a seed, and a link that applies
//! it.
//!
//! ```
//! use fatbtree_soft_nic::faults::{FaultRates, LossyLink};
//! use fatbtree_verbs::time::{Duration, Instant};
//!
//! let rates = FaultRates { drop: 5_000, ..FaultRates::NONE }; // every second frame is lost
//! let mut link = LossyLink::new(Duration::from_micros(2), rates, 7);
//! for number in 0..100u8 {
//!     link.send(Instant::ZERO, "far end", &[number]);
//! }
//! let (mut frame, mut arrived) = (Vec::new(), 0);
//! while let Some(now) = link.next_arrival() {
//!     assert_eq!(link.receive(now, &mut frame), Some("far end"));
//!     arrived += 1;
//! }
//! assert_eq!(arrived + link.faults().counts[0], 100);
//! ```

mod link;

pub use link::LossyLink;

use fatbtree_verbs::time::Duration;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Rates of faults on a link, in parts per 10,000 frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultRates {
    /// Rate of frames that never arrive.
    pub drop: u16,
    /// Rate of frames that arrive twice, the second time later.
    pub duplicate: u16,
    /// Rate of frames that arrive late, so that later frames overtake them.
    pub delay: u16,
    /// Rate of frames that arrive with one to eight of their bits flipped, or cut short.
    pub corrupt: u16,
    /// The longest extra delay of a late or duplicate frame.
    pub longest_delay: Duration,
}

impl FaultRates {
    /// Rates of a network that delivers everything.
    pub const NONE: Self =
        Self { drop: 0, duplicate: 0, delay: 0, corrupt: 0, longest_delay: Duration::from_nanos(1) };
}

/// Fate of one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The frame arrives as it was sent.
    Pass,
    /// The frame is lost.
    Drop,
    /// The frame arrives this much later than it should.
    Delay(Duration),
    /// The frame arrives, and once more this much later.
    Duplicate(Duration),
    /// The frame arrives damaged.
    Corrupt,
}

/// Judge of faults: a pure function of its seed and of the number of earlier calls.
#[derive(Debug)]
pub struct Faults {
    rates: FaultRates,
    random: ChaCha8Rng,
    /// Frames that met each fault: dropped, duplicated, delayed, corrupted.
    pub counts: [u64; 4],
}

impl Faults {
    /// A judge with the given rates.
    pub fn new(rates: FaultRates, seed: u64) -> Self {
        Self { rates, random: ChaCha8Rng::seed_from_u64(seed), counts: [0; 4] }
    }

    /// Changes the rates; the random sequence goes on.
    pub fn set_rates(&mut self, rates: FaultRates) {
        self.rates = rates;
    }

    /// Decides what happens to the next frame.
    pub fn judge(&mut self) -> Verdict {
        let mut draw = self.random.random_range(0..10_000u16);
        let mut is = |rate: u16| {
            let hit = draw < rate;
            draw = draw.saturating_sub(rate);
            // Once a class was hit the remaining draw is meaningless, and is not used again.
            hit
        };
        let (class, verdict) = if is(self.rates.drop) {
            (0, Verdict::Drop)
        } else if is(self.rates.duplicate) {
            (1, Verdict::Duplicate(self.extra_delay()))
        } else if is(self.rates.delay) {
            (2, Verdict::Delay(self.extra_delay()))
        } else if is(self.rates.corrupt) {
            (3, Verdict::Corrupt)
        } else {
            return Verdict::Pass;
        };
        self.counts[class] += 1;
        verdict
    }

    /// Flips one to eight bits of `frame`, or sometimes cuts it short.
    pub fn damage(&mut self, frame: &mut Vec<u8>) {
        if frame.is_empty() {
            return;
        }
        if self.random.random_range(0..8u8) == 0 {
            let keep = self.random.random_range(0..frame.len());
            frame.truncate(keep);
            return;
        }
        for _ in 0..self.random.random_range(1..=8u8) {
            let bit = self.random.random_range(0..frame.len() * 8);
            frame[bit / 8] ^= 1 << (bit % 8);
        }
    }

    fn extra_delay(&mut self) -> Duration {
        Duration::from_nanos(self.random.random_range(1..=self.rates.longest_delay.as_nanos().max(1)))
    }
}
