//! Slots in which results wait for the futures that want them.

use std::task::Waker;

use crate::completion::{Failure, Output};

/// A place for one result. Its generation distinguishes it from the previous holder's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    index: u32,
    generation: u32,
}

/// Tag bit of a request that is not signalled: its failure explains the slot's.
const CAUSE: u64 = 1 << 63;

/// Tag bit of an index read, whose refusal means something else than that of other READs.
const INDEX_READ: u64 = 1 << 62;

/// Whether a tag belongs to an index read.
pub(super) fn is_index_read(tag: u64) -> bool {
    tag & INDEX_READ != 0
}

impl Slot {
    #[inline]
    pub(super) fn tag(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(super) fn tag_of_cause(self) -> u64 {
        self.tag() | CAUSE
    }

    pub(super) fn tag_of_index_read(self) -> u64 {
        self.tag() | INDEX_READ
    }

    fn of_tag(tag: u64) -> Slot {
        Slot { index: tag as u32, generation: ((tag & !(CAUSE | INDEX_READ)) >> 32) as u32 }
    }
}

#[derive(Debug)]
enum State {
    Free,
    /// The result is still to come.
    Waiting,
    Done(Result<Output, Failure>),
    /// The result is still to come, and is no longer wanted.
    Abandoned,
}

#[derive(Debug)]
struct Place {
    generation: u32,
    /// Waker of the slot's holder. It stays here when the slot is free: the next holder is mostly the same task, and
    /// wakers are not cheap to clone.
    waker: Option<Waker>,
    /// Whether the holder of the slot has left its waker.
    wants_waking: bool,
    /// Whether a request was posted for the slot, so that a completion will come.
    posted: bool,
    /// Requests that have ended when the completion comes: the slot's, and those before it that are not signalled.
    requests: u32,
    state: State,
    cause: Option<Failure>,
}

/// All slots of a reactor.
#[derive(Debug, Default)]
pub(super) struct Slots {
    places: Vec<Place>,
    free: Vec<u32>,
    posted: usize,
    /// Slots for which a completion is still to come that no future waits for.
    abandoned: usize,
}

impl Slots {
    #[inline]
    pub(super) fn claim(&mut self) -> Slot {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place {
                generation: 0,
                waker: None,
                wants_waking: false,
                posted: false,
                requests: 0,
                state: State::Free,
                cause: None,
            });
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        // 30 bits: the highest two of a tag say something else.
        place.generation = (place.generation + 1) & (u32::MAX >> 2);
        place.state = State::Waiting;
        place.wants_waking = false;
        Slot { index, generation: place.generation }
    }

    #[inline]
    pub(super) fn posted_now(&mut self, slot: Slot, requests: u32) {
        let place = &mut self.places[slot.index as usize];
        (place.posted, place.requests) = (true, requests);
        self.posted += 1;
    }

    /// Requests that end with the completion of this tag.
    #[inline]
    pub(super) fn take_requests(&mut self, tag: u64) -> u32 {
        let slot = Slot::of_tag(tag);
        let place = self.places.get_mut(slot.index as usize).filter(|p| p.generation == slot.generation);
        place.filter(|_| tag & CAUSE == 0).map_or(0, |place| std::mem::take(&mut place.requests))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Number of slots for which a completion is still to come.
    #[inline]
    pub(super) fn posted(&self) -> usize {
        self.posted
    }

    /// Number of slots for which a completion is still to come that is no longer wanted.
    pub(super) fn abandoned(&self) -> usize {
        self.abandoned
    }

    /// Notes the result of the slot that `tag` names; returns the waker, to be [put back](Self::put_back) afterwards.
    #[inline]
    pub(super) fn complete(&mut self, tag: u64, result: Result<Output, Failure>) -> Option<(Slot, Waker)> {
        let slot = Slot::of_tag(tag);
        let place = self.places.get_mut(slot.index as usize).filter(|p| p.generation == slot.generation)?;
        if tag & CAUSE != 0 {
            place.cause = place.cause.or(result.err());
            return None;
        }
        let was_posted = usize::from(std::mem::take(&mut place.posted));
        self.posted -= was_posted;
        let result = result.map_err(|failure| place.cause.unwrap_or(failure));
        match std::mem::replace(&mut place.state, State::Free) {
            State::Waiting => {
                place.state = State::Done(result);
                let waker = if place.wants_waking { place.waker.take() } else { None };
                waker.map(|waker| (slot, waker))
            }
            State::Abandoned => {
                self.abandoned -= was_posted;
                self.release(slot);
                None
            }
            other => {
                place.state = other;
                None
            }
        }
    }

    /// Keeps a waker for the next time. Returns it if another one is there already: the caller drops it, because that
    /// runs foreign code.
    #[inline]
    pub(super) fn put_back(&mut self, slot: Slot, waker: Waker) -> Option<Waker> {
        let kept = &mut self.places[slot.index as usize].waker;
        if kept.is_some() {
            return Some(waker);
        }
        *kept = Some(waker);
        None
    }

    /// Whether the result has arrived.
    #[inline]
    pub(super) fn is_done(&self, slot: Slot) -> bool {
        matches!(self.places[slot.index as usize].state, State::Done(_))
    }

    /// Keeps `waker` until the result comes. Returns the one that was kept before, if it is another task's.
    #[inline]
    pub(super) fn keep(&mut self, slot: Slot, waker: &Waker) -> Option<Waker> {
        let place = &mut self.places[slot.index as usize];
        place.wants_waking = true;
        match &place.waker {
            Some(kept) if kept.will_wake(waker) => None,
            _ => place.waker.replace(waker.clone()),
        }
    }

    /// Whether a future waits for the slot that `tag` names.
    pub(super) fn is_waiting(&self, tag: u64) -> bool {
        let slot = Slot::of_tag(tag);
        let place = &self.places[slot.index as usize];
        place.generation == slot.generation && matches!(place.state, State::Waiting)
    }

    /// Takes the result, which must be there, and frees the slot.
    #[inline]
    pub(super) fn take(&mut self, slot: Slot) -> Result<Output, Failure> {
        let state = std::mem::replace(&mut self.places[slot.index as usize].state, State::Free);
        self.release(slot);
        match state {
            State::Done(result) => result,
            // Completions of a queue pair came out of order: the contract is broken, and the result is unknown.
            State::Free | State::Waiting | State::Abandoned => Err(Failure::Other),
        }
    }

    /// Gives up a slot whose result is no longer wanted.
    pub(super) fn abandon(&mut self, slot: Slot) {
        let place = &mut self.places[slot.index as usize];
        match place.state {
            State::Waiting => {
                place.state = State::Abandoned;
                self.abandoned += usize::from(place.posted);
            }
            _ => self.release(slot),
        }
    }

    #[inline]
    pub(super) fn release(&mut self, slot: Slot) {
        let place = &mut self.places[slot.index as usize];
        place.state = State::Free;
        place.cause = None;
        self.free.push(slot.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_begin_anew_below_the_bits_that_say_something_else() {
        let mut slots = Slots::default();
        let first = slots.claim();
        slots.release(first);
        slots.places[0].generation = u32::MAX >> 2;
        let tag = slots.claim().tag();
        assert_eq!((tag & CAUSE, is_index_read(tag)), (0, false));
        assert!(slots.is_waiting(tag));
    }
}
