//! Pace at which entries are written: a switch writes tables beside its packets.

use fatbtree_verbs::time::{Duration, Instant};

/// Updates that are written at once, such as a client's connection.
const FEW: usize = 64;

/// Updates per second, for all switches together. It knows no clock.
#[derive(Clone, Debug)]
pub struct Pace {
    per_second: f64,
    /// Time at which all that was admitted so far is written at this pace.
    until: Instant,
}

impl Pace {
    /// Updates per second.
    pub fn new(per_second: f64) -> Self {
        Self { per_second, until: Instant::ZERO }
    }

    /// Time from which so many updates may be written. The time that they take is reserved.
    pub(super) fn begin_of(&mut self, now: Instant, updates: usize) -> Instant {
        if updates <= FEW {
            return now;
        }
        let begin = self.until.max(now);
        self.until = begin + Duration::from_secs_f64(updates as f64 / self.per_second);
        begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_writers_together_keep_the_pace() {
        let mut pace = Pace::new(10_000.0);
        let begins: Vec<Instant> = (0..40).map(|_| pace.begin_of(Instant::ZERO, 1_000)).collect();
        assert_eq!(begins[0], Instant::ZERO);
        assert_eq!(begins[39], Instant::ZERO + Duration::from_millis(3_900));
        assert_eq!(pace.begin_of(Instant::ZERO, FEW), Instant::ZERO, "a connection is not after them");
        // Time in which nothing is written is not saved up.
        let later = Instant::ZERO + Duration::from_secs(60);
        assert_eq!(pace.begin_of(later, 1_000), later);
        assert_eq!(pace.begin_of(later, 1_000), later + Duration::from_millis(100));
    }
}
