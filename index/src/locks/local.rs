//! Who of one client waits for which lock: fair queues, without a network.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::task::Waker;

use rustc_hash::FxHashMap;

use super::{HAND_OVERS, LockId};

/// A writer's place at a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket(u64);

/// What a writer meets when its turn has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// It has to take the global lock.
    First,
    /// The one before it has handed the global lock over.
    HandedOver,
}

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    waker: Option<Waker>,
}

/// A lock that somebody of this client has or wants.
#[derive(Debug)]
struct Local {
    holder: Ticket,
    admission: Admission,
    /// Times in a row that the global lock was handed over.
    handed_over: u8,
    waiting: VecDeque<Waiting>,
}

/// All locks that somebody of this client has or wants.
#[derive(Debug, Default)]
pub(crate) struct LocalLocks {
    locks: FxHashMap<LockId, Local>,
    tickets: u64,
}

impl LocalLocks {
    /// Queues up for a lock.
    pub(crate) fn enter(&mut self, lock: LockId) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        match self.locks.entry(lock) {
            Entry::Vacant(entry) => {
                let (admission, waiting) = (Admission::First, VecDeque::new());
                entry.insert(Local { holder: ticket, admission, handed_over: 0, waiting });
            }
            Entry::Occupied(mut entry) => {
                entry.get_mut().waiting.push_back(Waiting { ticket, waker: None });
            }
        }
        ticket
    }

    /// Whether it is this ticket's turn; if not, `waker` is called when it is.
    pub(crate) fn poll(&mut self, lock: LockId, ticket: Ticket, waker: &Waker) -> Option<Admission> {
        let local = self.locks.get_mut(&lock)?;
        if local.holder == ticket {
            return Some(local.admission);
        }
        let waiting = local.waiting.iter_mut().find(|waiting| waiting.ticket == ticket)?;
        match &mut waiting.waker {
            Some(kept) => kept.clone_from(waker),
            kept => *kept = Some(waker.clone()),
        }
        None
    }

    /// Whether whoever has the lock now may leave it to the next one as it is.
    pub(crate) fn may_hand_over(&self, lock: LockId) -> bool {
        self.locks.get(&lock).is_some_and(|local| !local.waiting.is_empty() && local.handed_over < HAND_OVERS)
    }

    /// Ends a ticket's turn, or its waiting. `handed_over`: the global lock is still taken, for the next one. Returns whom to
    /// wake; and the lock stays taken by nobody where there is no next one.
    pub(crate) fn leave(&mut self, lock: LockId, ticket: Ticket, handed_over: bool) -> Option<Waker> {
        let Entry::Occupied(mut entry) = self.locks.entry(lock) else { return None };
        let local = entry.get_mut();
        if local.holder != ticket {
            local.waiting.retain(|waiting| waiting.ticket != ticket);
            return None;
        }
        let Some(next) = local.waiting.pop_front() else {
            entry.remove();
            return None;
        };
        local.holder = next.ticket;
        (local.admission, local.handed_over) = match handed_over {
            true => (Admission::HandedOver, local.handed_over + 1),
            false => (Admission::First, 0),
        };
        next.waker
    }

    /// Locks that somebody has or wants.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.locks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_order_and_hand_overs_end() {
        let writer = super::super::Writer {
            locks: fatbtree_verbs::Remote { address: 0, rkey: 1 },
            count: 4,
            owner: 1,
            masked_atomics: true,
        };
        let lock = writer.lock_of(crate::GlobalAddress::new(0, 64));
        let mut locks = LocalLocks::default();
        let tickets: Vec<Ticket> = (0..8).map(|_| locks.enter(lock)).collect();
        let gone = locks.enter(lock);
        let waker = Waker::noop();
        assert_eq!(locks.poll(lock, tickets[3], waker), None);
        assert!(
            locks.leave(lock, gone, false).is_none(),
            "one that has not had its turn leaves nothing behind"
        );
        let mut admissions = Vec::new();
        for &ticket in &tickets {
            admissions.push(locks.poll(lock, ticket, waker).expect("its turn"));
            let hand_over = locks.may_hand_over(lock);
            locks.leave(lock, ticket, hand_over);
        }
        use Admission::{First, HandedOver};
        let expected = [First, HandedOver, HandedOver, HandedOver, HandedOver, First, HandedOver, HandedOver];
        assert_eq!((admissions, locks.len()), (expected.to_vec(), 0));
    }
}
