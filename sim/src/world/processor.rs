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
    /// Whether an event says when the thread begins with the first of them, or when the card has it.
    is_posting: bool,
    /// Whether the thread has been asked when it begins with the first of them.
    begins: bool,
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
    /// Number after its last request.
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
        while let Some(&Chain { pair, requests, .. }) = self.host(machine).thread.posting.front() {
            let (now, to) = (self.now.at, self.responder(pair));
            let posting = Posting { from: machine, to, requests };
            // What threads share, such as a register, is asked for at the time at which the thread wants it.
            if !std::mem::replace(&mut self.host_mut(machine).thread.begins, true) {
                let begin = self.timing.begin(now, &posting);
                if begin > now {
                    return self.wait_until(begin, machine);
                }
            }
            let at = self.timing.post(now, &posting, &mut self.random);
            self.host_mut(machine).thread.begins = false;
            if at > now {
                return self.wait_until(at, machine);
            }
            self.ring(machine);
        }
    }

    fn wait_until(&mut self, at: Instant, machine: MachineId) {
        let host = self.host_mut(machine);
        host.thread.is_posting = true;
        let generation = host.generation;
        self.events.push(at, Event::Posted { machine: machine.0, generation });
    }

    /// The card has the first chain.
    fn ring(&mut self, machine: MachineId) {
        if let Some(Chain { pair, end, .. }) = self.host_mut(machine).thread.posting.pop_front() {
            self.pairs[pair as usize].requester.rung = end;
            self.send_on(pair, true);
        }
    }

    /// The thread begins with a chain, or has handed one over.
    pub(super) fn posted(&mut self, machine: MachineId, generation: u32) {
        let host = self.host_mut(machine);
        if host.generation != generation {
            return;
        }
        host.thread.is_posting = false;
        if !host.thread.begins {
            self.ring(machine);
        }
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
