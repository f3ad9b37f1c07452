//! Queue pairs: what a requester has posted, and how far a responder has come.

use std::collections::VecDeque;

use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{Agreed, Buffer, Operation, QueuePairState, Remote};

use super::MachineId;

/// A queue pair. Its number is its place in the fabric's list, and no other queue pair of the world ever has it.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) owner: MachineId,
    /// `None` when it was destroyed or its machine died: messages that are under way for it are lost.
    pub(super) state: Option<QueuePairState>,
    pub(super) psn: u32,
    /// The other side, once connected.
    pub(super) peer: Option<u32>,
    pub(super) agreed: Option<Agreed>,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
}

/// The half that posts. Requests are numbered from 0.
#[derive(Debug, Default)]
pub(super) struct Requester {
    /// Requests that are not complete. When the queue pair has failed they stay, because messages under way carry their
    /// content out nevertheless.
    pub(super) queue: VecDeque<Posted>,
    /// The number of the first in `queue`.
    pub(super) first: u64,
    /// The number of the first that was never sent.
    pub(super) next: u64,
    /// The number after the last that is with the card: the thread still posts what follows.
    pub(super) rung: u64,
    /// Requests whose completions were not polled. They hold their places in the send queue, and so do all requests
    /// after them. Requests that are not signalled give their places back as soon as they are complete.
    pub(super) unpolled: VecDeque<u64>,
    /// READs and atomics sent and not complete.
    pub(super) reads: u8,
    /// Times at which the last message left and arrives: later ones do not overtake it.
    pub(super) left: Instant,
    pub(super) arrives: Instant,
    /// A `Retry` event is under way.
    pub(super) armed: bool,
    /// Time at which everything is sent again if nothing is answered before.
    pub(super) due: Instant,
    pub(super) retries: u32,
}

/// A request that was posted.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) tag: u64,
    pub(super) signalled: bool,
    /// A WRITE's bytes are in `data`.
    pub(super) operation: Operation<'static>,
    pub(super) data: Vec<u8>,
    pub(super) buffer: Option<Buffer>,
    /// Bytes to read or write; 8 for atomics.
    pub(super) len: u32,
    /// Bytes of a READ that have come.
    pub(super) received: u32,
}

/// The half that answers.
#[derive(Debug, Default)]
pub(super) struct Responder {
    /// The number of the request that is next.
    pub(super) expected: u64,
    /// Bytes of that one that were written already: a WRITE of several packets that lost one.
    pub(super) partial: u32,
    /// Time at which the last WRITE or atomic is carried out: nothing begins before.
    pub(super) order: Instant,
    /// Times at which the last answer is sent and arrives: later ones do not overtake it.
    pub(super) answers: Instant,
    pub(super) arrives: Instant,
    /// Accesses whose answers were not sent, in the order of the requests.
    pub(super) replies: VecDeque<u32>,
    /// Atomics and what they found, the last few: for requests that come again.
    pub(super) atomics: VecDeque<(u64, u64)>,
    /// Landings of the last few index reads, for strict responders.
    pub(super) landings: VecDeque<(u64, Remote)>,
}

impl Pair {
    pub(super) fn new(owner: MachineId, psn: u32) -> Self {
        Self {
            owner,
            state: Some(QueuePairState::Reset),
            psn,
            peer: None,
            agreed: None,
            requester: Requester::default(),
            responder: Responder::default(),
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.state == Some(QueuePairState::ReadyToSend)
    }
}

impl Requester {
    /// The number that the next request to be posted gets.
    pub(super) fn end(&self) -> u64 {
        self.first + self.queue.len() as u64
    }

    /// Places taken in the send queue.
    pub(super) fn places(&self) -> usize {
        let first = self.unpolled.front().copied().unwrap_or(self.first);
        (self.end() - first) as usize
    }

    /// A request that is not complete.
    pub(super) fn get(&self, number: u64) -> Option<&Posted> {
        self.queue.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Posted> {
        self.queue.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }
}

impl Responder {
    /// Notes something about a request, and forgets the oldest where there are more than `depth`.
    pub(super) fn note<T>(list: &mut VecDeque<(u64, T)>, number: u64, what: T, depth: usize) {
        if list.len() >= depth {
            list.pop_front();
        }
        list.push_back((number, what));
    }
}

/// Note about a request.
pub(super) fn noted<T: Copy>(list: &VecDeque<(u64, T)>, number: u64) -> Option<T> {
    list.iter().rev().find(|(of, _)| *of == number).map(|&(_, what)| what)
}
