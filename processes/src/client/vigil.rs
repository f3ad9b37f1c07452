//! Decides whether a thread without work polls for a while before it sleeps.

use fatbtree_verbs::time::{Duration, Instant};

/// Polling before sleep.
///
/// Waking a thread that sleeps may take longer than an answer does. A thread that polls is there at once, and takes a processor meanwhile,
/// which another thread may need for the answer: on a virtual machine with two processors, reads have taken four times as long. So the
/// vigil tries both, and keeps to what has the shorter pauses. It polls only where the last pause was shorter than it may poll: an idle thread
/// sleeps. On a machine whose processors are all busy a look may take milliseconds, because another thread has the processor meanwhile: such
/// a pause counts, and a round in which much time is lost ends at once.
#[derive(Debug)]
pub(super) struct Vigil {
    /// Longest time to poll; zero: never.
    most: Duration,
    /// Time of the last work.
    worked: Instant,
    /// Length of the pause before it.
    pause: Duration,
    /// Time of the last look in this pause, if the thread polls.
    looked: Option<Instant>,
    /// Longest time between two looks in this pause.
    away: Duration,
    /// Whether it polls in this round.
    polling: bool,
    /// Pauses in this round, and their sum.
    round: (u32, Duration),
    /// Sum of the last round of each kind, sleeping and polling.
    sums: [Duration; 2],
    /// Rounds that are left before the other kind is tried again; `None` while it is.
    left: Option<u32>,
}

/// Pauses in a round.
const ROUND: u32 = 64;
/// Rounds of the better kind between two trials of the other: a trial that takes four times as long costs 5 %.
const ROUNDS: u32 = 63;
/// A round ends when it has taken so many times as long as the last one of the other kind.
const LOST: u64 = 2;
/// Length from which a pause is idleness and says nothing, unless a look took as long.
const IDLE: Duration = Duration::from_millis(2);

impl Vigil {
    pub(super) fn new(most: Duration, now: Instant) -> Self {
        let (round, sums) = ((0, Duration::ZERO), [Duration::ZERO; 2]);
        // The first round sleeps, the second one tries to poll.
        let (pause, looked, away) = (most, None, Duration::ZERO);
        Self { most, worked: now, pause, looked, away, polling: false, round, sums, left: Some(1) }
    }

    /// There was work at this time.
    pub(super) fn work(&mut self, now: Instant) {
        self.look(now);
        let away = std::mem::take(&mut self.away);
        (self.pause, self.worked, self.looked) = (now - self.worked, now, None);
        if self.pause >= IDLE && away < IDLE || self.most == Duration::ZERO {
            return;
        }
        self.round = (self.round.0 + 1, self.round.1 + self.pause);
        let other = self.sums[usize::from(!self.polling)];
        let is_lost = other > Duration::ZERO && self.round.1 > other * LOST;
        if self.round.0 < ROUND && !is_lost {
            return;
        }
        self.sums[usize::from(self.polling)] = self.round.1;
        self.round = (0, Duration::ZERO);
        match &mut self.left {
            // A trial has ended: the better one goes on.
            None => {
                self.polling = self.sums[1] < self.sums[0];
                self.left = Some(ROUNDS);
            }
            Some(left) => {
                *left = if is_lost { 0 } else { *left - 1 };
                if *left == 0 {
                    (self.polling, self.left) = (!self.polling, None);
                }
            }
        }
    }

    /// Whether to look again at this time, rather than to sleep.
    pub(super) fn polls(&mut self, now: Instant) -> bool {
        self.look(now);
        let polls = self.polling && self.pause < self.most && now - self.worked < self.most;
        self.looked = polls.then_some(now);
        polls
    }

    /// Notes the time since the last look.
    fn look(&mut self, now: Instant) {
        let away = self.looked.map_or(Duration::ZERO, |looked| now - looked);
        self.away = self.away.max(away);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Works through rounds in which a pause takes so many microseconds if the thread sleeps, and if it polls. Returns how many times it polled.
    fn work(vigil: &mut Vigil, now: &mut Instant, rounds: u32, sleeping: u64, polling: u64) -> u32 {
        let mut polled = 0;
        for _ in 0..rounds * ROUND {
            let polls = vigil.polls(*now);
            polled += u32::from(polls);
            *now += Duration::from_micros(if polls { polling } else { sleeping });
            vigil.work(*now);
        }
        polled
    }

    #[test]
    fn it_keeps_to_what_is_quicker_and_tries_the_other() {
        let mut now = Instant::from_nanos(1);
        let mut vigil = Vigil::new(Duration::from_micros(50), now);
        assert_eq!(work(&mut vigil, &mut now, 1, 40, 20), 0, "it sleeps at first");
        assert_eq!(work(&mut vigil, &mut now, 64, 40, 20), 64 * ROUND, "polling is quicker");
        // A round of sleep, and back.
        assert_eq!(work(&mut vigil, &mut now, 1, 40, 20), 0);
        assert_eq!(work(&mut vigil, &mut now, 63, 40, 20), 63 * ROUND);
        // Then polling is slower. What is known of it is old until it has been used again; the trial after that tells.
        assert_eq!(work(&mut vigil, &mut now, 64, 30, 40), 63 * ROUND);
        assert_eq!(work(&mut vigil, &mut now, 64, 30, 40), 0);
        assert_eq!(work(&mut vigil, &mut now, 1, 30, 40), ROUND, "the next trial of polling");
        assert_eq!(work(&mut vigil, &mut now, 63, 30, 40), 0);
    }

    /// Others want the processors: a thread that looks again and again has to wait for them, one that sleeps is served first.
    #[test]
    fn on_a_busy_machine_it_sleeps_soon() {
        let mut now = Instant::from_nanos(1);
        let mut vigil = Vigil::new(Duration::from_micros(50), now);
        assert_eq!(work(&mut vigil, &mut now, 10, 40, 20), 9 * ROUND, "polling is quicker");
        let began = now;
        let polled = work(&mut vigil, &mut now, 200, 40, 5_000);
        assert!(polled < 20, "{polled} looks of 5 ms each");
        assert!(now - began < Duration::from_micros(200 * 64 * 40 * 6 / 5), "{:?}", now - began);
        assert!(work(&mut vigil, &mut now, 200, 40, 20) > 100 * ROUND, "it polls again when they have gone");
    }

    #[test]
    fn it_polls_after_short_pauses_only_and_not_for_long() {
        let mut now = Instant::from_nanos(1);
        let mut vigil = Vigil::new(Duration::from_micros(50), now);
        work(&mut vigil, &mut now, 4, 40, 20);
        assert!(
            vigil.polls(now + Duration::from_micros(49)) && !vigil.polls(now + Duration::from_micros(50))
        );
        // The pause was long, so the next one will be.
        now += Duration::from_millis(500);
        vigil.work(now);
        assert!(!vigil.polls(now + Duration::from_micros(1)));
        let mut never = Vigil::new(Duration::ZERO, now);
        assert_eq!(work(&mut never, &mut now, 200, 40, 20), 0);
    }
}
