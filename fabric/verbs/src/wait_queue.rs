//! Tasks that wait for a share of something bounded, in their order.

use std::collections::BTreeMap;
use std::task::Waker;

/// Queue of tasks that wait for shares, such as credits or turns. It counts nothing: its owner knows how much there is.
///
/// A task is *called* when there is room for it, and takes its share when it is polled: shares are never kept for a task. A future may be
/// left alone for long, or for ever, by the task that has it, as those are that a stream has begun ahead. So a task after one that was
/// called lets it come first, once, and passes if it does not come.
///
/// ```
/// use std::task::Waker;
/// use fatbtree_verbs::{Place, Step, WaitQueue};
///
/// let mut queue = WaitQueue::default();
/// let (mut first, mut second) = (Place::default(), Place::default());
/// assert_eq!(queue.poll(&mut first, 2, false, Waker::noop()), Step::Wait);
/// assert_eq!(queue.poll(&mut second, 1, true, Waker::noop()), Step::Wait, "after the first");
/// assert!(queue.call(|sum| sum <= 2).is_some());
/// assert_eq!(queue.poll(&mut second, 1, true, Waker::noop()), Step::Yield, "the first may come");
/// assert_eq!(queue.poll(&mut first, 2, true, Waker::noop()), Step::Go);
/// assert_eq!(queue.poll(&mut second, 1, true, Waker::noop()), Step::Go);
/// ```
#[derive(Debug, Default)]
pub struct WaitQueue {
    waiting: BTreeMap<u64, Waiting>,
    tickets: u64,
}

/// A task's place in a [`WaitQueue`], if it has one.
#[derive(Debug, Default)]
pub struct Place {
    ticket: Option<u64>,
    /// Those before it that were called have had time to come.
    has_yielded: bool,
}

/// Next step of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// It takes its share.
    Go,
    /// It is called when there may be room.
    Wait,
    /// It wakes itself and is polled again, so that those that were called before it come first.
    Yield,
}

#[derive(Debug)]
struct Waiting {
    share: u32,
    /// `None`: the task was called.
    waker: Option<Waker>,
}

impl WaitQueue {
    /// Next step of the task at `place`, which wants a share of this size; `has_room`: there is room for it.
    #[inline]
    pub fn poll(&mut self, place: &mut Place, share: u32, has_room: bool, waker: &Waker) -> Step {
        if has_room && self.waiting.is_empty() {
            return Step::Go;
        }
        self.poll_behind(place, share, has_room, waker)
    }

    fn poll_behind(&mut self, place: &mut Place, share: u32, has_room: bool, waker: &Waker) -> Step {
        let mut before = self.waiting.range(..place.ticket.unwrap_or(u64::MAX)).map(|(_, before)| before);
        let is_first = before.clone().next().is_none();
        let may_pass = has_room && before.all(|before| before.waker.is_none());
        if may_pass && (is_first || place.has_yielded) {
            self.leave(place);
            return Step::Go;
        }
        place.has_yielded = may_pass;
        let ticket = *place.ticket.get_or_insert_with(|| {
            self.tickets += 1;
            self.tickets
        });
        let kept = &mut self.waiting.entry(ticket).or_insert(Waiting { share, waker: None }).waker;
        if may_pass {
            *kept = None;
            return Step::Yield;
        }
        match kept {
            Some(kept) => kept.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        Step::Wait
    }

    /// Gives a place up. Those after it may have to be [called](Self::call).
    #[inline]
    pub fn leave(&mut self, place: &mut Place) {
        if let Some(ticket) = std::mem::take(place).ticket {
            self.waiting.remove(&ticket);
        }
    }

    /// The next task that `fits`, to be waked; again until there is none. `fits` is told the sum of its share and of all before it.
    pub fn call(&mut self, fits: impl Fn(u32) -> bool) -> Option<Waker> {
        let mut sum = 0_u32;
        for waiting in self.waiting.values_mut() {
            sum = sum.saturating_add(waiting.share);
            if waiting.waker.is_some() {
                return if fits(sum) { waiting.waker.take() } else { None };
            }
        }
        None
    }
}

impl Place {
    /// Whether the task waits in a queue.
    #[must_use]
    #[inline]
    pub const fn is_taken(&self) -> bool {
        self.ticket.is_some()
    }
}
