//! Operations that compete: their turns, and their pauses.

use std::future::poll_fn;
use std::task::Poll;

use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Place, Step, Verbs};

use super::{RemoteMemory, State};
use crate::operation::{Attempts, Backoff};

/// A turn among the operations of one thread that compete with others; see [`RemoteMemory::compete`]. It ends when it is dropped.
#[derive(Debug)]
#[must_use = "the turn ends when this is dropped"]
pub struct Turn<'m, V: Verbs> {
    memory: &'m RemoteMemory<V>,
    place: Place,
    /// Whether it has its turn.
    competes: bool,
}

impl<V: Verbs> Drop for Turn<'_, V> {
    fn drop(&mut self) {
        let mut state = self.memory.state.borrow_mut();
        if self.competes {
            state.conflicts.leave();
        }
        state.conflicts.give_up(&mut self.place);
        drop(state);
        self.memory.call_competitors();
    }
}

impl<V: Verbs> RemoteMemory<V> {
    /// Waits until this operation may compete for what other clients want, too, such as locks. It may at once but where
    /// [`Contention::bounds_tasks`](crate::Contention::bounds_tasks) holds, and many attempts of this thread fail. Operations have their
    /// turns in the order in which they came.
    ///
    /// An operation has one turn, from its first attempt to its end: one that waited for another turn meanwhile would wait for itself.
    pub async fn compete(&self) -> Turn<'_, V> {
        let mut turn = Turn { memory: self, place: Place::default(), competes: false };
        poll_fn(|context| {
            let step = self.state.borrow_mut().conflicts.poll(&mut turn.place, context.waker());
            turn.competes = step == Step::Go;
            if step == Step::Yield {
                context.waker().wake_by_ref();
            }
            if turn.competes { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        turn
    }

    /// Wakes the operations that may compete now.
    pub(super) fn call_competitors(&self) {
        loop {
            let Some(waker) = self.state.borrow_mut().conflicts.call() else { return };
            waker.wake();
        }
    }

    /// Notes an attempt at what others want, too: whether it has failed because another client was first.
    #[inline]
    pub fn note_attempt(&self, failed: bool) {
        let State { conflicts, attempts, .. } = &mut *self.state.borrow_mut();
        conflicts.note(failed);
        if !failed {
            attempts.won();
        }
    }

    /// Counts a failed attempt of an operation for [`attempts`](Self::attempts): the first is number 0.
    #[inline]
    pub(crate) fn count_loss(&self, attempt: u32) {
        self.state.borrow_mut().attempts.lost(attempt);
    }

    /// Distribution of the attempts that this client's operations have needed.
    pub fn attempts(&self) -> Attempts {
        self.state.borrow().attempts.clone()
    }

    /// Pauses after a failed attempt, the first of which is number 0, for as long as
    /// [`Contention::backoff`](crate::Contention::backoff) says. `left` is the time for which the operation still tries: a pause lasts an
    /// eighth of it at most. `None` if the operation never gives up.
    pub async fn pause_after_conflict(&self, attempt: u32, left: Option<Duration>) {
        self.count_loss(attempt);
        self.back_off(&self.config.contention.backoff, attempt, left).await;
    }

    /// Pauses after a failed attempt, within the time that is left.
    pub(crate) async fn back_off(&self, backoff: &Backoff, attempt: u32, left: Option<Duration>) {
        let span = self.draw_pause(&backoff.within(left), attempt);
        self.reactor.sleep(span).await;
    }

    fn draw_pause(&self, backoff: &Backoff, attempt: u32) -> Duration {
        let State { pauses, conflicts, .. } = &mut *self.state.borrow_mut();
        pauses.draw(backoff, attempt, conflicts.rein().growth)
    }
}
