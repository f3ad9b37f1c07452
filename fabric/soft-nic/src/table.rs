//! The queue pairs of a NIC, found by number for frames and by handle for their owner. Lists those that have
//! something to send, or a deadline.

use crate::queue_pair::QueuePairCore;
use crate::timers::{Entry, Timers};
use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{ConnectError, QueuePair, QueuePairNumber};
use std::collections::VecDeque;

/// Slot of a queue pair: the lower 16 bits of its number, and of its handle.
pub(crate) type Slot = u32;

const SLOT_BITS: u32 = 16;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

/// First slot of queue pairs: numbers 0 and 1 belong to management.
const FIRST_SLOT: Slot = 2;

/// Bits of a queue pair's number; those above them in a handle count queue pairs, so that no two have one handle.
const NUMBER_BITS: u32 = 24;

#[derive(Default)]
struct Place {
    queue_pair: Option<Box<QueuePairCore>>,
    /// Upper 8 bits of the next number in this slot: a number comes again only after 255 others.
    round: u8,
    /// Whether the slot is in the list of those with something to send.
    queued: bool,
}

pub(crate) struct Table {
    /// Queue pairs by slot, so that a lookup is one index.
    places: Vec<Place>,
    /// Slots that have no queue pair, each once; the one unused longest comes first.
    free: VecDeque<Slot>,
    live: usize,
    limit: usize,
    created: u64,
    /// Slots with something to send, which take turns. Each is listed at most once, whichever queue pairs have used
    /// it meanwhile.
    ready: VecDeque<Slot>,
    timers: Timers,
}

fn slot(number: QueuePairNumber) -> Slot {
    number.0 & SLOT_MASK
}

fn slot_of(queue_pair: QueuePair) -> Slot {
    queue_pair.0 as u32 & SLOT_MASK
}

impl Table {
    /// A table for at most `limit` queue pairs.
    pub(crate) fn new(limit: usize) -> Table {
        Table {
            places: (0..FIRST_SLOT).map(|_| Place::default()).collect(),
            free: VecDeque::new(),
            live: 0,
            limit: limit.min(crate::NicConfig::MOST_QUEUE_PAIRS),
            created: 0,
            ready: VecDeque::new(),
            timers: Timers::default(),
        }
    }

    fn has_room(&self) -> Result<(), ConnectError> {
        if self.live < self.limit { Ok(()) } else { Err(ConnectError::NoQueuePair { limit: self.limit }) }
    }

    /// Draws a number for a new queue pair; `first` gives the upper bits in a slot that is used for the first time.
    pub(crate) fn draw(&mut self, first: u8) -> Result<QueuePairNumber, ConnectError> {
        self.has_room()?;
        let slot = match self.free.pop_front() {
            Some(slot) => slot,
            None => {
                self.places.push(Place { round: first, ..Place::default() });
                self.places.len() as Slot - 1
            }
        };
        let place = &mut self.places[slot as usize];
        let number = QueuePairNumber(u32::from(place.round) << SLOT_BITS | slot);
        place.round = place.round.wrapping_add(1);
        Ok(number)
    }

    /// Claims a requested number.
    pub(crate) fn claim(&mut self, number: QueuePairNumber) -> Result<QueuePairNumber, ConnectError> {
        self.has_room()?;
        let refuse = |found| {
            let reason = format!("expected a free number of 2 to 2^24 - 1, found {number} {found}");
            Err(ConnectError::Driver { what: "make a queue pair", reason })
        };
        let slot = slot(number);
        if number.0 >= 1 << NUMBER_BITS || slot < FIRST_SLOT {
            return refuse("outside of the range");
        }
        while self.places.len() <= slot as usize {
            self.free.push_back(self.places.len() as Slot);
            self.places.push(Place::default());
        }
        if self.places[slot as usize].queue_pair.is_some() {
            return refuse("taken (its lower 16 bits are)");
        }
        self.free.retain(|&free| free != slot);
        Ok(number)
    }

    /// Inserts the queue pair that `make` makes, under a number that was drawn or claimed.
    pub(crate) fn insert(
        &mut self,
        number: QueuePairNumber,
        make: impl FnOnce(QueuePair) -> QueuePairCore,
    ) -> QueuePair {
        self.created += 1;
        let handle = QueuePair(self.created << NUMBER_BITS | u64::from(number.0));
        self.places[slot(number) as usize].queue_pair = Some(Box::new(make(handle)));
        self.live += 1;
        handle
    }

    pub(crate) fn remove(&mut self, handle: QueuePair) -> Option<Box<QueuePairCore>> {
        self.get(handle)?;
        let slot = slot_of(handle);
        let removed = self.places[slot as usize].queue_pair.take();
        self.free.push_back(slot);
        self.live -= 1;
        self.settle();
        removed
    }

    #[inline]
    pub(crate) fn get(&self, handle: QueuePair) -> Option<&QueuePairCore> {
        let queue_pair = self.places.get(slot_of(handle) as usize)?.queue_pair.as_deref()?;
        (queue_pair.handle == handle).then_some(queue_pair)
    }

    /// Queue pair of a handle, for changes that give it nothing to send and no deadline.
    pub(crate) fn get_mut(&mut self, handle: QueuePair) -> Option<&mut QueuePairCore> {
        let queue_pair = self.places.get_mut(slot_of(handle) as usize)?.queue_pair.as_deref_mut()?;
        (queue_pair.handle == handle).then_some(queue_pair)
    }

    /// Calls `work` with the queue pair of a handle.
    #[inline]
    pub(crate) fn with<R>(
        &mut self,
        handle: QueuePair,
        work: impl FnOnce(&mut QueuePairCore) -> R,
    ) -> Option<R> {
        self.at(slot_of(handle), |core| core.handle == handle, work)
    }

    /// Calls `work` with the queue pair of this number.
    #[inline]
    pub(crate) fn with_number<R>(
        &mut self,
        number: QueuePairNumber,
        work: impl FnOnce(&mut QueuePairCore) -> R,
    ) -> Option<R> {
        self.at(slot(number), |core| core.number == number, work)
    }

    /// Calls `work` with the next queue pair that may have something to send. Returns `None`, without a call, if
    /// there is none.
    #[inline]
    pub(crate) fn with_next_ready<R>(&mut self, work: impl FnOnce(&mut QueuePairCore) -> R) -> Option<R> {
        loop {
            let slot = self.ready.pop_front()?;
            let place = &mut self.places[slot as usize];
            place.queued = false;
            // The slot may be empty by now, or its queue pair may have nothing to send; `work` finds that out.
            if place.queue_pair.is_some() {
                return self.at(slot, |_| true, work);
            }
        }
    }

    /// Calls `work` with the queue pair of a slot, and notes whether it now has something to send, and its deadline.
    #[inline]
    fn at<R>(
        &mut self,
        slot: Slot,
        is_meant: impl FnOnce(&QueuePairCore) -> bool,
        work: impl FnOnce(&mut QueuePairCore) -> R,
    ) -> Option<R> {
        let place = self.places.get_mut(slot as usize)?;
        let core = place.queue_pair.as_deref_mut()?;
        if !is_meant(core) {
            return None;
        }
        let result = work(core);
        if !place.queued && core.wants_to_transmit() {
            place.queued = true;
            self.ready.push_back(slot);
        }
        let deadline = core.poll_timeout();
        self.timers.arm(core.handle, deadline, &mut core.timer_entry);
        if self.timers.len() > 2 * self.live + 64 {
            self.sweep();
        }
        Some(result)
    }

    /// Removes entries that closed connections leave behind, which would otherwise stay until their time comes.
    #[cold]
    fn sweep(&mut self) {
        let mut timers = std::mem::take(&mut self.timers);
        timers.sweep(|handle, at| self.get(handle).is_some_and(|core| core.timer_entry == Some(at)));
        self.timers = timers;
    }

    /// The earliest deadline; exact after [`settle`](Self::settle).
    #[inline]
    pub(crate) fn earliest(&self) -> Option<(Instant, QueuePair)> {
        self.timers.earliest()
    }

    /// Makes [`earliest`](Self::earliest) exact.
    #[inline]
    pub(crate) fn settle(&mut self) {
        let places = &mut self.places;
        self.timers.settle(|handle, at| {
            match places.get_mut(slot_of(handle) as usize).and_then(|place| place.queue_pair.as_deref_mut()) {
                Some(core) if core.handle == handle && core.timer_entry == Some(at) => {
                    let deadline = core.poll_timeout();
                    if deadline == Some(at) {
                        return Entry::Exact;
                    }
                    core.timer_entry = deadline;
                    deadline.map_or(Entry::Gone, Entry::Moved)
                }
                _ => Entry::Gone,
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::{Nic, NicConfig};
    use fatbtree_verbs::time::{Duration, Instant};
    use fatbtree_verbs::{Device, Operation, QueuePair, Remote, Verbs, WorkRequest};
    use std::net::Ipv4Addr;

    fn nic() -> Nic {
        Nic::new(NicConfig::new([2, 0, 0, 0, 0, 1], Ipv4Addr::new(10, 0, 0, 1)), 1).unwrap()
    }

    /// A queue pair that talks to itself, with a request posted.
    fn busy(nic: &mut Nic) -> QueuePair {
        let one = nic.create().unwrap();
        nic.connect(one, &nic.endpoint(one).unwrap()).unwrap();
        let operation = Operation::Read { from: Remote { address: 0, rkey: 1 }, len: 8 };
        nic.post(one, &[WorkRequest { tag: 0, signalled: false, operation }]).unwrap();
        one
    }

    /// While the link is full, the driver does not poll, and connections come and go.
    #[test]
    fn the_list_of_those_with_something_to_send_is_bounded() {
        let mut nic = nic();
        for _ in 0..1000 {
            let one = busy(&mut nic);
            nic.destroy(one);
        }
        assert!(nic.table.ready.len() <= 1, "{}", nic.table.ready.len());
        let one = busy(&mut nic);
        let mut frame = Vec::new();
        assert!(nic.poll_transmit(Instant::ZERO, &mut frame), "the slot's new queue pair has the turn");
        nic.destroy(one);
        assert!(!nic.poll_transmit(Instant::ZERO, &mut frame));
    }

    /// Connections come and go in less than a timeout, at the same time or not.
    #[test]
    fn timers_are_bounded() {
        for step in [0, 1] {
            let (mut nic, mut now, mut frame) = (nic(), Instant::ZERO, Vec::new());
            let first = busy(&mut nic);
            assert!(nic.poll_transmit(now, &mut frame));
            let deadline = nic.poll_timeout();
            assert!(deadline.is_some());
            for _ in 0..2000 {
                let one = busy(&mut nic);
                assert!(nic.poll_transmit(now, &mut frame));
                nic.destroy(one);
                now += Duration::from_nanos(step);
                assert_eq!(nic.poll_timeout(), deadline);
                assert!(nic.table.timers.len() <= 2 * 2 + 64);
            }
            nic.destroy(first);
            assert_eq!(nic.poll_timeout(), None);
        }
    }

    /// Time goes back, which it should not: queue pairs that come later have deadlines of their own.
    #[test]
    fn time_that_goes_back_harms_no_other_queue_pair() {
        let (mut nic, mut frame) = (nic(), Vec::new());
        let late = Instant::from_nanos(1_000_000_000);
        let one = busy(&mut nic);
        assert!(nic.poll_transmit(late, &mut frame));
        let two = busy(&mut nic);
        assert!(nic.poll_transmit(Instant::ZERO, &mut frame));
        let timeout = nic.config().ack_timeout;
        assert_eq!(nic.poll_timeout(), Some(Instant::ZERO + timeout));
        nic.destroy(two);
        assert_eq!(nic.poll_timeout(), Some(late + timeout));
        nic.destroy(one);
        assert_eq!(nic.poll_timeout(), None);
    }
}
