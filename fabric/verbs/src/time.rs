//! Time as integers of nanoseconds: the one type of time in all code without I/O. `std::time` is for drivers only, which
//! convert at their edge by [`From`].
//!
//! ```
//! use fatbtree_verbs::time::{Duration, Instant};
//!
//! let began = std::time::Instant::now();
//! let now = Instant::ZERO + began.elapsed().into();
//! let due = now + Duration::from_millis(5);
//! std::thread::sleep((due - now).into());
//! ```

use std::fmt;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

/// A point in time: nanoseconds since an epoch the driver chooses (584 years fit).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Instant(u64);

/// A span of time in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Duration(u64);

impl Instant {
    /// The driver's epoch.
    pub const ZERO: Instant = Instant(0);

    /// The point `nanos` nanoseconds after the epoch.
    pub const fn from_nanos(nanos: u64) -> Instant {
        Instant(nanos)
    }

    /// Nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time passed since `earlier`, zero if it lies ahead.
    pub const fn saturating_since(self, earlier: Instant) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

impl Duration {
    /// No time at all.
    pub const ZERO: Duration = Duration(0);

    /// Nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Duration {
        Duration(nanos)
    }

    /// Microseconds.
    pub const fn from_micros(micros: u64) -> Duration {
        Duration(micros.saturating_mul(1_000))
    }

    /// Milliseconds.
    pub const fn from_millis(millis: u64) -> Duration {
        Duration(millis.saturating_mul(1_000_000))
    }

    /// Seconds.
    pub const fn from_secs(secs: u64) -> Duration {
        Duration(secs.saturating_mul(1_000_000_000))
    }

    /// Seconds, to the nearest nanosecond; the longest time if no span of time has that length.
    pub fn from_secs_f64(secs: f64) -> Duration {
        std::time::Duration::try_from_secs_f64(secs).map_or(Duration(u64::MAX), Duration::from)
    }

    /// Length in nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole seconds.
    pub const fn as_secs(self) -> u64 {
        self.0 / 1_000_000_000
    }

    /// Length in seconds.
    pub const fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The rest when `part` is taken off; zero if it is longer.
    #[must_use]
    pub const fn saturating_sub(self, part: Duration) -> Duration {
        Duration(self.0.saturating_sub(part.0))
    }
}

/// Time that a driver gives to what it drives: only time in which the process could run counts.
///
/// A process that was suspended (Ctrl-Z, SIGSTOP), starved or moved to another machine has not waited: nothing could reach it. Timers that
/// counted that time would give peers up which have answered long ago. So a gap between two looks at the clock counts for
/// [`LONGEST_STEP`](Self::LONGEST_STEP) at most. A driver that sleeps looks again after [`LONGEST_WAIT`](Self::LONGEST_WAIT) at the latest; what
/// it has waited for then counts in full, and a peer that is dead is given up as soon as before.
///
/// ```
/// use fatbtree_verbs::time::{Duration, Instant, RunningTime};
///
/// let mut time = RunningTime::default();
/// let at = |millis| Instant::ZERO + Duration::from_millis(millis);
/// assert_eq!(time.at(at(300)), at(300));
/// assert_eq!(time.at(at(900)), at(900));
/// // Suspended for a minute.
/// assert_eq!(time.at(at(60_900)), at(1_900));
/// assert_eq!(time.at(at(61_000)), at(2_000));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct RunningTime {
    /// Last reading of the clock.
    seen: Instant,
    now: Instant,
}

impl RunningTime {
    /// Longest gap between two readings of the clock that counts in full. It is far longer than a busy system takes a
    /// processor away, so latencies stay true, and far shorter than a lease.
    pub const LONGEST_STEP: Duration = Duration::from_secs(1);
    /// The longest sleep of a driver.
    pub const LONGEST_WAIT: Duration = Duration::from_millis(500);

    /// Running time, given a reading of a clock that began at [`Instant::ZERO`] and never goes back.
    pub fn at(&mut self, clock: Instant) -> Instant {
        self.now += (clock - self.seen).min(Self::LONGEST_STEP);
        self.seen = self.seen.max(clock);
        self.now
    }
}

impl From<std::time::Duration> for Duration {
    /// Saturates at 584 years.
    fn from(time: std::time::Duration) -> Duration {
        Duration(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Duration> for std::time::Duration {
    fn from(Duration(nanos): Duration) -> std::time::Duration {
        std::time::Duration::from_nanos(nanos)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, more: Duration) -> Instant {
        Instant(self.0.saturating_add(more.0))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, more: Duration) {
        *self = *self + more;
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// Saturates at zero.
    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_since(earlier)
    }
}

impl Add for Duration {
    type Output = Duration;

    fn add(self, more: Duration) -> Duration {
        Duration(self.0.saturating_add(more.0))
    }
}

impl Mul<u64> for Duration {
    type Output = Duration;

    fn mul(self, times: u64) -> Duration {
        Duration(self.0.saturating_mul(times))
    }
}

impl Div<u64> for Duration {
    type Output = Duration;

    /// Panics when `parts` is 0, as integers do.
    fn div(self, parts: u64) -> Duration {
        Duration(self.0 / parts)
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1_000 => write!(f, "{} ns", self.0),
            1_000..1_000_000 => write!(f, "{:.3} µs", self.0 as f64 / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.3} ms", self.0 as f64 / 1e6),
            _ => write!(f, "{:.3} s", self.0 as f64 / 1e9),
        }
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Duration(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        let late = Instant::from_nanos(u64::MAX - 1);
        assert_eq!(late + Duration::from_secs(1), Instant::from_nanos(u64::MAX));
        assert_eq!(Instant::ZERO - late, Duration::ZERO);
        assert_eq!(Duration::from_micros(1_500).to_string(), "1.500 ms");
    }

    #[test]
    fn conversions_saturate() {
        assert_eq!(Duration::from(std::time::Duration::MAX), Duration(u64::MAX));
        assert_eq!(std::time::Duration::from(Duration(u64::MAX)).as_nanos(), u128::from(u64::MAX));
        assert_eq!([0.25, 6e-10, 4e-10].map(Duration::from_secs_f64), [250_000_000, 1, 0].map(Duration));
        for none in [-1.0, f64::NAN, f64::INFINITY, 1e30] {
            assert_eq!(Duration::from_secs_f64(none), Duration(u64::MAX), "{none}");
        }
    }
}
