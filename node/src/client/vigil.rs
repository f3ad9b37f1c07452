//! Decides whether a thread without work polls for a while before it sleeps.

use fatbtree_verbs::time::{Duration, Instant};

/// Polling before sleep.
///
/// Waking a thread that sleeps takes longer than most answers do. A thread that polls is there at once, and takes a processor meanwhile. So it
/// polls only where its last pause was shorter than it may poll: in a closed loop of short operations nearly always, otherwise nearly never.
#[derive(Debug)]
pub(super) struct Vigil {
    /// Longest time to poll; zero: never.
    most: Duration,
    /// Time of the last work.
    worked: Instant,
    /// Length of the pause before it.
    pause: Duration,
}

impl Vigil {
    pub(super) fn new(most: Duration, now: Instant) -> Self {
        Self { most, worked: now, pause: most }
    }

    /// There was work at this time.
    pub(super) fn work(&mut self, now: Instant) {
        (self.pause, self.worked) = (now - self.worked, now);
    }

    /// Whether to look again at this time, rather than to sleep.
    pub(super) fn polls(&self, now: Instant) -> bool {
        self.pause < self.most && now - self.worked < self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_polls_after_short_pauses_only_and_not_for_long() {
        let at = |micros: u64| Instant::from_nanos(micros * 1000);
        let mut vigil = Vigil::new(Duration::from_micros(50), at(0));
        assert!(!vigil.polls(at(1)), "nothing is known yet");
        vigil.work(at(30));
        assert!(vigil.polls(at(31)) && vigil.polls(at(79)) && !vigil.polls(at(80)));
        // The pause was long, so the next one will be.
        vigil.work(at(500));
        assert!(!vigil.polls(at(501)));
        vigil.work(at(510));
        assert!(vigil.polls(at(511)));
        let mut never = Vigil::new(Duration::ZERO, at(0));
        never.work(at(0));
        assert!(!never.polls(at(0)));
    }
}
