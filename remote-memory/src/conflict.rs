//! Conflict avoidance: how long operations pause and how many compete at once, by the share of attempts that fail (SMART, section 4.3).
//!
//! ```text
//!                       more than 1/2 of attempts fail                    fewer than 1/10 fail, or there were none
//!   tasks    no limit ──► 32 ──► 16 ──► … ──► 1                    1 ──► 2 ──► … ──► 32 ──► no limit
//!   pauses                                    then t0 … 1024 t0                                     then 1024 t0 … t0
//! ```
//!
//! Once a millisecond, one of the two changes by a factor of 2. The number of tasks changes first: an operation that waits here for its
//! turn costs no request.

use std::task::Waker;

use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{Place, Step, WaitQueue};

/// Time over which attempts are counted.
const WINDOW: Duration = Duration::from_millis(1);

/// Percent of attempts that may fail before conflicts are avoided more, and below which they are avoided less.
const HIGH: u64 = 50;
const LOW: u64 = 10;

/// Largest growth of pauses: 2^10 units.
const MOST_GROWTH: u32 = 10;

/// Bound above which the number of tasks has no limit.
const MOST_TASKS: u32 = 32;

/// Quiet windows of which more would change nothing: from the shortest rein to the longest.
const QUIET: u64 = (MOST_GROWTH + MOST_TASKS.ilog2() + 1) as u64;

/// What one thread does about conflicts. It has no clock: time comes with [`handle_timeout`](Self::handle_timeout).
#[derive(Debug)]
pub(crate) struct Conflicts {
    /// Whether the number of tasks is bounded.
    throttles: bool,
    attempts: u64,
    failed: u64,
    since: Instant,
    /// Longest pause: this power of 2, in units.
    growth: u32,
    /// Tasks that may compete at once.
    most: u32,
    /// Tasks that do.
    competing: u32,
    waiting: WaitQueue,
}

/// Bounds by which a thread avoids conflicts now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rein {
    /// Longest pause: this power of 2, in units of [`Backoff`](crate::Backoff).
    pub(crate) growth: u32,
    /// Operations that may compete at once; `None`: all.
    pub(crate) tasks: Option<u32>,
}

impl Conflicts {
    pub(crate) fn new(throttles: bool) -> Self {
        Self {
            throttles,
            attempts: 0,
            failed: 0,
            since: Instant::ZERO,
            growth: 0,
            most: u32::MAX,
            competing: 0,
            waiting: WaitQueue::default(),
        }
    }

    pub(crate) fn rein(&self) -> Rein {
        Rein { growth: self.growth, tasks: (self.most != u32::MAX).then_some(self.most) }
    }

    /// Notes an attempt.
    #[inline]
    pub(crate) fn note(&mut self, failed: bool) {
        self.attempts += 1;
        self.failed += u64::from(failed);
    }

    /// Adapts the bounds to what was noted, if a window has ended. Then tasks may go on: see [`call`](Self::call).
    #[inline]
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        let elapsed = now - self.since;
        if elapsed < WINDOW {
            return;
        }
        let windows = elapsed.as_nanos() / WINDOW.as_nanos();
        self.since = now;
        let (attempts, failed) = (std::mem::take(&mut self.attempts), std::mem::take(&mut self.failed));
        // All attempts were in the first window: the others were quiet.
        if failed * 100 > attempts * HIGH {
            self.avoid_more();
        } else if failed * 100 < attempts * LOW || attempts == 0 {
            self.avoid_less();
        }
        (1..windows.min(QUIET)).for_each(|_| self.avoid_less());
    }

    fn avoid_more(&mut self) {
        if self.throttles && self.most > 1 {
            // More than compete are no bound.
            let bound = self.most.min(self.competing.next_power_of_two()).clamp(2, 2 * MOST_TASKS);
            self.most = bound / 2;
        } else {
            self.growth = (self.growth + 1).min(MOST_GROWTH);
        }
    }

    fn avoid_less(&mut self) {
        if self.most == u32::MAX {
            self.growth = self.growth.saturating_sub(1);
        } else if self.most >= MOST_TASKS {
            self.most = u32::MAX;
        } else {
            self.most *= 2;
        }
    }

    /// Next step of an operation that wants to compete. It does when it is told to [go](Step::Go).
    #[inline]
    pub(crate) fn poll(&mut self, place: &mut Place, waker: &Waker) -> Step {
        let step = self.waiting.poll(place, 1, self.competing < self.most, waker);
        self.competing += u32::from(step == Step::Go);
        step
    }

    /// Leaves the queue.
    pub(crate) fn give_up(&mut self, place: &mut Place) {
        self.waiting.leave(place);
    }

    /// Ends to compete.
    #[inline]
    pub(crate) fn leave(&mut self) {
        self.competing -= 1;
    }

    /// The next task that may go on, to be waked; again until there is none. When no task competes all may, because those before them may
    /// not come.
    #[inline]
    pub(crate) fn call(&mut self) -> Option<Waker> {
        let Self { competing, most, waiting, .. } = self;
        waiting.call(|tasks| *competing == 0 || competing.saturating_add(tasks) <= *most)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs windows in each of which `percent` of 100 attempts fail.
    fn run(conflicts: &mut Conflicts, windows: u32, percent: u64) -> Rein {
        for _ in 0..windows {
            (0..100).for_each(|at| conflicts.note(at < percent));
            conflicts.handle_timeout(conflicts.since + WINDOW);
        }
        conflicts.rein()
    }

    #[test]
    fn tasks_are_bounded_first_and_set_free_first() {
        let mut conflicts = Conflicts::new(true);
        conflicts.competing = 8;
        let rein = |growth, tasks| Rein { growth, tasks };
        assert_eq!(run(&mut conflicts, 1, 60), rein(0, Some(4)));
        assert_eq!(run(&mut conflicts, 1, 30), rein(0, Some(4)), "neither many nor few");
        assert_eq!(run(&mut conflicts, 2, 60), rein(0, Some(1)));
        assert_eq!(run(&mut conflicts, 3, 60), rein(3, Some(1)));
        assert_eq!(run(&mut conflicts, 30, 99), rein(10, Some(1)));
        assert_eq!(run(&mut conflicts, 5, 5), rein(10, Some(32)));
        assert_eq!(run(&mut conflicts, 3, 5), rein(8, None));
    }

    #[test]
    fn without_a_bound_on_tasks_pauses_change_alone() {
        let mut conflicts = Conflicts::new(false);
        assert_eq!(run(&mut conflicts, 4, 60), Rein { growth: 4, tasks: None });
        assert_eq!(run(&mut conflicts, 1, 0), Rein { growth: 3, tasks: None });
    }

    #[test]
    fn a_quiet_time_sets_all_free() {
        let mut conflicts = Conflicts::new(true);
        conflicts.competing = 4;
        run(&mut conflicts, 40, 90);
        conflicts.handle_timeout(conflicts.since + Duration::from_secs(1));
        assert_eq!(conflicts.rein(), Rein { growth: 0, tasks: None });
        run(&mut conflicts, 40, 90);
        conflicts.handle_timeout(conflicts.since + WINDOW);
        assert_eq!(conflicts.rein(), Rein { growth: 10, tasks: Some(2) }, "one quiet window");
    }

    #[derive(Clone, Copy, Debug)]
    enum Act {
        Enter,
        Poll(prop::sample::Index),
        GiveUp(prop::sample::Index),
        Leave,
        Window(u64),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            3 => Just(Act::Enter),
            4 => any::<prop::sample::Index>().prop_map(Act::Poll),
            1 => any::<prop::sample::Index>().prop_map(Act::GiveUp),
            3 => Just(Act::Leave),
            2 => (0..100u64).prop_map(Act::Window),
        ]
    }

    proptest! {
        /// Tasks have their turns in their order, as long as those that are called come; and each that comes has its turn, though others do
        /// not.
        #[test]
        fn tasks_go_in_their_order_and_none_waits_for_ever(
            acts in prop::collection::vec(act(), 1..200),
            sleeps in any::<prop::sample::Index>(),
        ) {
            let mut conflicts = Conflicts::new(true);
            let (mut competing, mut queue) = (0_u32, Vec::new());
            for act in acts {
                match act {
                    Act::Enter => {
                        let mut place = Place::default();
                        if conflicts.poll(&mut place, Waker::noop()) == Step::Go {
                            prop_assert!(queue.is_empty());
                            competing += 1;
                        } else {
                            queue.push(place);
                        }
                    }
                    Act::Poll(which) if !queue.is_empty() => {
                        let at = which.index(queue.len());
                        if conflicts.poll(&mut queue[at], Waker::noop()) == Step::Go {
                            prop_assert_eq!(at, 0, "nothing was called");
                            queue.remove(0);
                            competing += 1;
                        }
                    }
                    Act::GiveUp(which) if !queue.is_empty() => {
                        conflicts.give_up(&mut queue.remove(which.index(queue.len())));
                    }
                    Act::Leave if competing > 0 => {
                        conflicts.leave();
                        competing -= 1;
                    }
                    Act::Window(percent) => drop(run(&mut conflicts, 1, percent)),
                    _ => {}
                }
                prop_assert_eq!(conflicts.competing, competing);
            }
            (0..competing).for_each(|_| conflicts.leave());
            // One that does not come.
            if !queue.is_empty() {
                queue.remove(sleeps.index(queue.len()));
            }
            while !queue.is_empty() {
                while conflicts.call().is_some() {}
                let before = queue.len();
                // Twice: those after one that was called let it come first.
                for _ in 0..2 {
                    queue.retain_mut(|place| conflicts.poll(place, Waker::noop()) != Step::Go);
                }
                prop_assert!(queue.len() < before, "{} wait for ever", queue.len());
                (queue.len()..before).for_each(|_| conflicts.leave());
            }
        }
    }
}
