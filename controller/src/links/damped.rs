//! Up and down without flapping: what went down is up again only when it was good for a while, and each time for longer.

use fatbtree_verbs::time::{Duration, Instant};

/// First time for which a direction must be good before it is up.
pub(super) const HOLD: Duration = Duration::from_secs(1);
/// The longest that it must be good.
pub(super) const LONGEST: Duration = Duration::from_secs(16);
/// Up for so long, it is as if it had never been down.
const FORGIVEN: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Damped {
    is_down: bool,
    /// Time for which it must be good this time.
    hold: Duration,
    /// While it is down: it has been good since.
    good_since: Option<Instant>,
    /// Time at which it came up last.
    came_up: Option<Instant>,
}

impl Damped {
    /// Takes it down.
    pub(super) fn bad(&mut self, now: Instant) {
        self.good_since = None;
        if !self.is_down {
            self.is_down = true;
            let is_again = self.came_up.is_some_and(|up| now < up + FORGIVEN);
            self.hold = if is_again { (self.hold * 2).min(LONGEST) } else { HOLD };
        }
    }

    /// Takes note that it has been good since then, or longer.
    pub(super) fn good(&mut self, since: Instant) {
        if self.is_down {
            self.good_since.get_or_insert(since);
        }
    }

    /// Unknown: what was is not counted any more.
    pub(super) fn pause(&mut self) {
        self.good_since = None;
    }

    /// Time at which it is up again, if nothing happens.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.good_since.map(|since| since + self.hold)
    }

    /// Takes note of the time.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|due| due <= now) {
            *self = Self { came_up: Some(now), hold: self.hold, ..Self::default() };
        }
    }

    pub(super) fn is_down(&self) -> bool {
        self.is_down
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// Goes down at a time and is good a moment later; says when it is up.
    fn down_and_up(damped: &mut Damped, at: Instant) -> Instant {
        damped.bad(at);
        damped.good(at + Duration::from_millis(10));
        let due = damped.poll_timeout().unwrap();
        damped.handle_timeout(Instant::from_nanos(due.as_nanos() - 1));
        assert!(damped.is_down());
        damped.handle_timeout(due);
        assert!(!damped.is_down() && damped.poll_timeout().is_none());
        due
    }

    #[test]
    fn what_flaps_is_held_down_twice_as_long_each_time() {
        let mut damped = Damped::default();
        let mut now = at(100_000);
        for seconds in [1, 2, 4, 8, 16, 16] {
            let up = down_and_up(&mut damped, now);
            assert_eq!(up - now, Duration::from_secs(seconds) + Duration::from_millis(10));
            now = up + Duration::from_secs(59);
        }
        // After a minute it is forgiven.
        let up = down_and_up(&mut damped, now + Duration::from_secs(1));
        assert_eq!(up - now, Duration::from_millis(2010));
    }

    #[test]
    fn it_must_be_good_all_the_time() {
        let mut damped = Damped::default();
        damped.bad(Instant::ZERO);
        damped.good(at(500));
        damped.bad(at(900));
        damped.handle_timeout(at(1600));
        assert!(damped.is_down() && damped.poll_timeout().is_none());
        damped.good(at(1700));
        damped.pause();
        assert!(damped.is_down() && damped.poll_timeout().is_none());
        damped.good(at(1900));
        damped.good(at(2500));
        assert_eq!(damped.poll_timeout(), Some(at(2900)));
    }
}
