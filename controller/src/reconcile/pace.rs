//! Pace at which entries are written: a switch writes tables beside its packets.

use std::time::Duration;

/// Updates that are written at once, such as a client's connection.
const FEW: usize = 64;

/// Updates per second, for all switches together. It knows no clock: time is counted from any moment.
#[derive(Clone, Debug)]
pub struct Pace {
    per_second: f64,
    /// Time at which all that was admitted so far is written at this pace.
    until: Duration,
}

impl Pace {
    /// Updates per second.
    pub fn new(per_second: f64) -> Self {
        Self { per_second, until: Duration::ZERO }
    }

    /// Time from which so many updates may be written. The time that they take is reserved.
    pub(super) fn begin_of(&mut self, now: Duration, updates: usize) -> Duration {
        if updates <= FEW {
            return now;
        }
        let begin = self.until.max(now);
        let takes = Duration::try_from_secs_f64(updates as f64 / self.per_second);
        self.until = begin.saturating_add(takes.unwrap_or(Duration::MAX));
        begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_writers_together_keep_the_pace() {
        let mut pace = Pace::new(10_000.0);
        let begins: Vec<Duration> = (0..40).map(|_| pace.begin_of(Duration::ZERO, 1_000)).collect();
        assert_eq!(begins[0], Duration::ZERO);
        assert_eq!(begins[39], Duration::from_millis(3_900));
        assert_eq!(pace.begin_of(Duration::ZERO, FEW), Duration::ZERO, "a connection is not after them");
        // Time in which nothing is written is not saved up.
        let later = Duration::from_secs(60);
        assert_eq!(pace.begin_of(later, 1_000), later);
        assert_eq!(pace.begin_of(later, 1_000), later + Duration::from_millis(100));
    }
}
