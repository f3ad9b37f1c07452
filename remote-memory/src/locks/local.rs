//! Fair queues of one client's operations for locks, without a network.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::task::Waker;

use rustc_hash::FxHashMap;

use super::{HAND_OVERS, LockId};

/// A writer's place at a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket(u64);

/// Situation of a writer whose turn has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// The operation has to take the global lock.
    First,
    /// The one before it has handed the global lock over.
    HandedOver,
    /// The one before it was dropped before its end: this has to be finished first.
    Unfinished(Unfinished),
}

/// What an operation that was dropped, or lost its connection, has left behind: it has, or had, the global lock, and perhaps has
/// written a part of what it wanted to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unfinished {
    /// The lane that it used: what it has posted there comes first.
    pub(crate) lane: u8,
}

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    waker: Option<Waker>,
}

/// A lock that an operation of this client has or wants, or has left unfinished.
#[derive(Debug)]
struct Local {
    /// `None` if no operation has it, but there is something to be finished.
    holder: Option<Ticket>,
    admission: Admission,
    /// Further unfinished changes.
    more: Vec<Unfinished>,
    /// The holder's, where it waits for the end of races.
    waker: Option<Waker>,
    /// Times in a row that the global lock was handed over.
    handed_over: u8,
    waiting: VecDeque<Waiting>,
}

impl Local {
    fn new(holder: Option<Ticket>, admission: Admission) -> Self {
        let (more, waiting) = (Vec::new(), VecDeque::new());
        Self { holder, admission, more, waker: None, handed_over: 0, waiting }
    }
}

/// End of a turn.
#[derive(Debug)]
pub(crate) enum End {
    /// The global lock is free, or on its way to be.
    Released,
    /// The global lock is still taken, for the next one.
    HandedOver,
    /// The next one has to find out.
    Unfinished(Unfinished),
}

/// The holder of a lock after an operation's turn.
#[derive(Debug)]
pub(crate) enum Left {
    /// The next operation in the queue, to be waked by this.
    Next(Option<Waker>),
    /// No operation, and nothing is left to be finished.
    Nobody,
    /// No operation; what was left has to be finished.
    Unfinished,
}

/// All locks of one server that operations of this client have or want, in one session.
#[derive(Debug, Default)]
pub(crate) struct LocalLocks {
    locks: FxHashMap<LockId, Local>,
    /// Locks that were left unfinished while no operation waited.
    left: Vec<LockId>,
    /// Operations that compete for a lock, or have it, without a queue.
    racing: FxHashMap<LockId, u32>,
    tickets: u64,
}

impl LocalLocks {
    /// Queues up for a lock.
    pub(crate) fn enter(&mut self, lock: LockId) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        match self.locks.entry(lock) {
            Entry::Vacant(entry) => {
                entry.insert(Local::new(Some(ticket), Admission::First));
            }
            Entry::Occupied(mut entry) => match entry.get_mut() {
                Local { holder: holder @ None, .. } => *holder = Some(ticket),
                local => local.waiting.push_back(Waiting { ticket, waker: None }),
            },
        }
        ticket
    }

    /// Takes a lock that no operation has or wants, and that none has left unfinished.
    pub(crate) fn try_enter(&mut self, lock: LockId) -> Option<Ticket> {
        if self.locks.contains_key(&lock) {
            return None;
        }
        Some(self.enter(lock))
    }

    /// Whether it is this ticket's turn; if not, `waker` is called when it is.
    pub(crate) fn poll(&mut self, lock: LockId, ticket: Ticket, waker: &Waker) -> Option<Admission> {
        let local = self.locks.get_mut(&lock)?;
        if local.holder == Some(ticket) && self.racing.contains_key(&lock) {
            local.waker = Some(waker.clone());
            return None;
        }
        if local.holder == Some(ticket) {
            return Some(std::mem::replace(&mut local.admission, Admission::First));
        }
        let waiting = local.waiting.iter_mut().find(|waiting| waiting.ticket == ticket)?;
        match &mut waiting.waker {
            Some(kept) => kept.clone_from(waker),
            kept => *kept = Some(waker.clone()),
        }
        None
    }

    /// Whether the holder of the lock may hand it over to the next operation as it is.
    pub(crate) fn may_hand_over(&self, lock: LockId) -> bool {
        self.locks.get(&lock).is_some_and(|local| !local.waiting.is_empty() && local.handed_over < HAND_OVERS)
    }

    /// Ends a ticket's turn, or its waiting.
    pub(crate) fn leave(&mut self, lock: LockId, ticket: Ticket, end: End) -> Left {
        let Entry::Occupied(mut entry) = self.locks.entry(lock) else { return Left::Nobody };
        let local = entry.get_mut();
        if local.holder != Some(ticket) {
            local.waiting.retain(|waiting| waiting.ticket != ticket);
            return Left::Nobody;
        }
        let next = local.waiting.pop_front();
        local.holder = next.as_ref().map(|next| next.ticket);
        local.waker = None;
        // What was admitted and never asked is still to be done.
        let admission = std::mem::replace(&mut local.admission, Admission::First);
        (local.admission, local.handed_over) = match (end, admission) {
            (End::Unfinished(unfinished), _) => (Admission::Unfinished(unfinished), 0),
            (End::HandedOver, _) => (Admission::HandedOver, local.handed_over + 1),
            (End::Released, Admission::First) => (Admission::First, 0),
            (End::Released, other) => (other, 0),
        };
        if local.admission == Admission::First
            && let Some(unfinished) = local.more.pop()
        {
            local.admission = Admission::Unfinished(unfinished);
        }
        match next {
            Some(next) => Left::Next(next.waker),
            None if local.admission == Admission::First => {
                entry.remove();
                Left::Nobody
            }
            None => {
                self.left.push(lock);
                Left::Unfinished
            }
        }
    }

    /// Further changes that the holder has to finish first.
    pub(crate) fn take_more(&mut self, lock: LockId) -> Option<Unfinished> {
        self.locks.get_mut(&lock)?.more.pop()
    }

    /// Begins to compete for a lock without a queue. Says whether it may: not if something is to be finished there, which the
    /// queue sees to.
    pub(crate) fn race(&mut self, lock: LockId) -> bool {
        let may = self.may_race(lock);
        if may {
            *self.racing.entry(lock).or_default() += 1;
        }
        may
    }

    /// Whether an operation that competes for a lock may go on.
    pub(crate) fn may_race(&self, lock: LockId) -> bool {
        !self.locks.contains_key(&lock)
    }

    /// Ends what [`race`](Self::race) began. The queue, if there is one, goes on when no operation competes any more: until then
    /// the client's own number in the global lock does not say which operation holds it.
    pub(crate) fn end_race(&mut self, lock: LockId, left: Option<Unfinished>) -> Left {
        let racing = self.racing.get_mut(&lock).map_or(0, |racing| {
            *racing -= 1;
            *racing
        });
        if racing == 0 {
            self.racing.remove(&lock);
        }
        match (self.locks.entry(lock), left) {
            (Entry::Vacant(_), None) => Left::Nobody,
            (Entry::Vacant(entry), Some(unfinished)) => {
                entry.insert(Local::new(None, Admission::Unfinished(unfinished)));
                self.left.push(lock);
                Left::Unfinished
            }
            (Entry::Occupied(mut entry), left) => {
                let local = entry.get_mut();
                match left {
                    Some(unfinished) if local.admission == Admission::First => {
                        local.admission = Admission::Unfinished(unfinished);
                    }
                    Some(unfinished) => local.more.push(unfinished),
                    None => {}
                }
                if racing == 0 { Left::Next(local.waker.take()) } else { Left::Nobody }
            }
        }
    }

    /// All operations that wait for a turn.
    pub(crate) fn take_waiting(&mut self) -> Vec<Waker> {
        let of_one = |local: &mut Local| {
            let queue = local.waiting.iter_mut().filter_map(|waiting| waiting.waker.take());
            queue.chain(local.waker.take()).collect::<Vec<_>>()
        };
        self.locks.values_mut().flat_map(of_one).collect()
    }

    /// A lock that was left unfinished while no operation waited for it.
    pub(crate) fn take_left(&mut self) -> Option<LockId> {
        self.left.pop()
    }

    /// Locks that an operation has or wants.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.locks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock() -> LockId {
        let locks = fatbtree_verbs::Remote { address: 0, rkey: 1 };
        let owner = super::super::Owner { session: super::super::SessionId(1), number: 1 };
        let writer = super::super::Writer {
            locks,
            owners: locks,
            count: 4,
            owner,
            masked_atomics: true,
            syncs: false,
        };
        writer.lock_of(crate::GlobalAddress::new(0, 64))
    }

    #[test]
    fn turns_come_in_order_and_hand_overs_end() {
        let (lock, mut locks) = (lock(), LocalLocks::default());
        let tickets: Vec<Ticket> = (0..8).map(|_| locks.enter(lock)).collect();
        let gone = locks.enter(lock);
        let waker = Waker::noop();
        assert_eq!(locks.poll(lock, tickets[3], waker), None);
        assert!(
            matches!(locks.leave(lock, gone, End::Released), Left::Nobody),
            "one without a turn leaves nothing behind"
        );
        let mut admissions = Vec::new();
        for &ticket in &tickets {
            admissions.push(locks.poll(lock, ticket, waker).expect("its turn"));
            let end = if locks.may_hand_over(lock) { End::HandedOver } else { End::Released };
            locks.leave(lock, ticket, end);
        }
        let (first, handed) = (Admission::First, Admission::HandedOver);
        let expected = [first, handed, handed, handed, handed, first, handed, handed];
        assert_eq!((admissions, locks.len()), (expected.to_vec(), 0));
    }

    #[test]
    fn what_is_unfinished_waits_for_the_next_one() {
        let (lock, mut locks) = (lock(), LocalLocks::default());
        let unfinished = Unfinished { lane: 0 };
        let first = locks.enter(lock);
        locks.poll(lock, first, Waker::noop());
        locks.leave(lock, first, End::Unfinished(unfinished));
        assert_eq!((locks.take_left(), locks.take_left(), locks.len()), (Some(lock), None, 1));
        // One that is dropped before it has even asked changes nothing.
        let second = locks.enter(lock);
        locks.leave(lock, second, End::Released);
        assert_eq!(locks.take_left(), Some(lock));
        let third = locks.enter(lock);
        assert_eq!(locks.poll(lock, third, Waker::noop()), Some(Admission::Unfinished(unfinished)));
        locks.leave(lock, third, End::Released);
        assert_eq!((locks.take_left(), locks.len()), (None, 0));
    }
}
