//! The thread of a machine, as far as it takes time: it hands one chain after the other to its card, and takes
//! completions when it has handed over all of them.
//!
//! How long each takes is an answer of [`Timing`](super::Timing). Where that is nothing, as in a plain table of
//! service times, no event is made and everything happens at once.

use std::collections::VecDeque;

use fatbtree_verbs::Completion;
use fatbtree_verbs::time::Instant;

use super::MachineId;
use super::events::Event;
use super::fabric::Fabric;
use super::timing::Posting;

/// State of a machine's thread.
#[derive(Debug, Default)]
pub(super) struct Thread {
    /// Chains that the card does not have yet.
    posting: VecDeque<Chain>,
    /// Whether an event says when the card has the first of them.
    is_posting: bool,
    /// Completions on their way to the thread.
    coming: VecDeque<Completion>,
    /// Time at which the last of them is taken.
    last: Instant,
    /// Whether completions were taken while it posted.
    has_late_news: bool,
}

#[derive(Clone, Copy, Debug)]
struct Chain {
    pair: u32,
    /// Number behind its last request.
    end: u64,
    requests: u32,
}

impl Fabric {
    /// The thread hands the requests over that were posted last on a queue pair.
    pub(super) fn hand_over(&mut self, pair: u32, requests: u32) {
        let (owner, end) = (self.pairs[pair as usize].owner, self.pairs[pair as usize].requester.end());
        let thread = &mut self.host_mut(owner).thread;
        thread.posting.push_back(Chain { pair, end, requests });
        if !thread.is_posting {
            self.post_on(owner);
        }
    }

    fn post_on(&mut self, machine: MachineId) {
        while let Some(&Chain { requests, .. }) = self.host(machine).thread.posting.front() {
            let now = self.now.at;
            let at = self.timing.post(now, &Posting { from: machine, requests }, &mut self.random);
            if at > now {
                let host = self.host_mut(machine);
                host.thread.is_posting = true;
                let generation = host.generation;
                self.events.push(at, Event::Posted { machine: machine.0, generation });
                return;
            }
            self.ring(machine);
        }
    }

    /// The card has the first chain.
    fn ring(&mut self, machine: MachineId) {
        if let Some(Chain { pair, end, .. }) = self.host_mut(machine).thread.posting.pop_front() {
            self.pairs[pair as usize].requester.rung = end;
            self.send_on(pair, true);
        }
    }

    /// The thread has handed a chain over.
    pub(super) fn posted(&mut self, machine: MachineId, generation: u32) {
        let host = self.host_mut(machine);
        if host.generation != generation {
            return;
        }
        host.thread.is_posting = false;
        self.ring(machine);
        self.post_on(machine);
        let thread = &mut self.host_mut(machine).thread;
        if !thread.is_posting && std::mem::take(&mut thread.has_late_news) {
            self.news_for(machine);
        }
    }

    /// Gives a completion to the thread, at `at` or when it has taken those before.
    pub(super) fn hand_back(&mut self, machine: MachineId, completion: Completion, at: Instant) {
        let now = self.now.at;
        let host = &mut self.hosts[machine.0 as usize];
        let (thread, generation) = (&mut host.thread, host.generation);
        if at <= now && thread.coming.is_empty() {
            host.completions.push_back(completion);
            return self.news_for(machine);
        }
        thread.last = thread.last.max(at).max(now);
        thread.coming.push_back(completion);
        let last = thread.last;
        self.events.push(last, Event::Taken { machine: machine.0, generation });
    }

    /// The thread takes the first completion, unless it is busy.
    pub(super) fn taken(&mut self, machine: MachineId, generation: u32) {
        let host = self.host_mut(machine);
        if host.generation != generation {
            return;
        }
        host.completions.extend(host.thread.coming.pop_front());
        if host.thread.is_posting {
            host.thread.has_late_news = true;
        } else {
            self.news_for(machine);
        }
    }
}
