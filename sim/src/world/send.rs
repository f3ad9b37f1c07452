//! The requester: posting, sending, waiting for answers, sending again.

use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{
    Completion, Failure, Operation, Output, PostError, QueuePair, QueuePairState, WorkRequest,
};
use rand::RngExt as _;

use super::MachineId;
use super::access::{Begun, Verdict};
use super::events::Event;
use super::fabric::{Fabric, Journey};
use super::pair::Posted;
use super::timing::Kind;

pub(super) fn kind_of(operation: &Operation<'_>) -> Kind {
    match operation {
        Operation::Read { .. } | Operation::IndexRead { .. } => Kind::Read,
        Operation::Write { .. } => Kind::Write,
        Operation::CompareSwap { .. }
        | Operation::FetchAdd { .. }
        | Operation::MaskedCompareSwap { .. }
        | Operation::MaskedFetchAdd { .. } => Kind::Atomic,
    }
}

/// Bytes that a request brings into a buffer.
fn read_len(operation: &Operation<'_>) -> u64 {
    match *operation {
        Operation::Read { len, .. } | Operation::IndexRead { len, .. } => u64::from(len),
        _ => 0,
    }
}

impl Fabric {
    pub(super) fn post(
        &mut self,
        machine: MachineId,
        queue_pair: QueuePair,
        chain: &[WorkRequest<'_>],
    ) -> Result<(), PostError> {
        let state = self.state(machine, queue_pair);
        if state != Some(QueuePairState::ReadyToSend) {
            let state = state.unwrap_or(QueuePairState::Reset);
            return Err(PostError::NotConnected { queue_pair, state });
        }
        self.check(machine, queue_pair, chain)?;
        let number = queue_pair.0 as u32;
        for (done, request) in chain.iter().enumerate() {
            let Some(posted) = self.take_up(machine, request) else {
                // A chain is posted whole or not at all.
                let queue = &mut self.pairs[number as usize].requester.queue;
                queue.truncate(queue.len() - done);
                return Err(PostError::NoBuffer { len: read_len(&request.operation) });
            };
            self.pairs[number as usize].requester.queue.push_back(posted);
        }
        for WorkRequest { operation, .. } in chain {
            match kind_of(operation) {
                Kind::Read => self.counts.reads += 1,
                Kind::Write => self.counts.writes += 1,
                Kind::Atomic => self.counts.atomics += 1,
            }
            self.counts.index_reads += u64::from(operation.as_index_read().is_some());
        }
        self.hand_over(number, chain.len() as u32);
        Ok(())
    }

    /// A request as it lies in the send queue, its bytes copied; `None` where there is no buffer for it.
    fn take_up(&mut self, machine: MachineId, request: &WorkRequest<'_>) -> Option<Posted> {
        let (mut data, mut buffer) = (Vec::new(), None);
        let (operation, len) = match request.operation {
            Operation::Read { from, len } => (Operation::Read { from, len }, len),
            Operation::IndexRead { key, len, target } => (Operation::IndexRead { key, len, target }, len),
            Operation::Write { to, data: bytes } => {
                data = self.spare.pop().unwrap_or_default();
                data.extend_from_slice(bytes);
                (Operation::Write { to, data: &[] }, bytes.len() as u32)
            }
            Operation::CompareSwap { at, compare, swap } => (Operation::CompareSwap { at, compare, swap }, 8),
            Operation::FetchAdd { at, add } => (Operation::FetchAdd { at, add }, 8),
            Operation::MaskedCompareSwap { at, compare, compare_mask, swap, swap_mask } => {
                (Operation::MaskedCompareSwap { at, compare, compare_mask, swap, swap_mask }, 8)
            }
            Operation::MaskedFetchAdd { at, add, boundary } => {
                (Operation::MaskedFetchAdd { at, add, boundary }, 8)
            }
        };
        if kind_of(&operation) == Kind::Read {
            let mut taken = self.host(machine).pool.take(u64::from(len))?;
            taken.resize(len as usize);
            buffer = Some(taken);
        }
        let WorkRequest { tag, signalled, .. } = *request;
        Some(Posted { tag, signalled, operation, data, buffer, len, received: 0 })
    }

    fn check(
        &self,
        machine: MachineId,
        queue_pair: QueuePair,
        chain: &[WorkRequest<'_>],
    ) -> Result<(), PostError> {
        let host = self.host(machine);
        let pair = &self.pairs[queue_pair.0 as usize];
        let limit = host.options.longest_chain;
        if chain.is_empty() || chain.len() > limit {
            return Err(PostError::ChainLength { found: chain.len(), limit });
        }
        let found = pair.requester.places() + chain.len();
        let limit = host.options.send_queue;
        if found > limit {
            return Err(PostError::Full { queue_pair, what: "requests", found, limit });
        }
        let longest = host.pool.largest();
        let mtu = pair.agreed.map_or(0, |agreed| agreed.mtu.bytes() as u32);
        for request in chain {
            let operation = &request.operation;
            if let Some(address) = operation.atomic_address()
                && !address.is_multiple_of(8)
            {
                return Err(PostError::Misaligned { address });
            }
            let masked =
                matches!(operation, Operation::MaskedCompareSwap { .. } | Operation::MaskedFetchAdd { .. });
            if masked && !host.options.masked_atomics {
                return Err(PostError::Unsupported { what: "masked atomics" });
            }
            let len = match *operation {
                Operation::Read { len, .. } | Operation::IndexRead { len, .. } => {
                    // A READ of no bytes needs no key.
                    if operation.as_index_read().is_some() && len > mtu {
                        return Err(PostError::IndexReadTooLong { found: len, limit: mtu });
                    }
                    u64::from(len)
                }
                Operation::Write { data, .. } => data.len() as u64,
                _ => 0,
            };
            if len > longest {
                return Err(PostError::TooLong { found: len, limit: longest });
            }
        }
        Ok(())
    }

    /// Sends what was posted, as far as outstanding READs allow.
    pub(super) fn send_on(&mut self, number: u32, mut doorbell: bool) {
        loop {
            let pair = &mut self.pairs[number as usize];
            let owner = &mut self.hosts[pair.owner.0 as usize];
            if !pair.is_ready() || owner.frozen || !owner.up || owner.writes_left == Some(0) {
                return;
            }
            let requester = &mut pair.requester;
            let next = requester.next;
            if next >= requester.rung {
                return;
            }
            let Some(posted) = requester.get(next) else { return };
            let kind = kind_of(&posted.operation);
            if kind != Kind::Write {
                let limit = pair.agreed.map_or(1, |agreed| agreed.outstanding_reads);
                if requester.reads >= limit {
                    return;
                }
                requester.reads += 1;
            }
            let counts = kind == Kind::Write || kind == Kind::Atomic && owner.counts_atomics;
            if let Some(left) = owner.writes_left.as_mut().filter(|_| counts) {
                *left -= 1;
            }
            requester.next += 1;
            self.transmit(number, next, doorbell);
            doorbell = false;
        }
    }

    /// Puts one request on the wire.
    fn transmit(&mut self, number: u32, request: u64, doorbell: bool) {
        let requester = &self.pairs[number as usize].requester;
        let Some(posted) = requester.get(request) else { return };
        let (operation, len, from) = (posted.operation, posted.len, posted.received);
        let (signalled, follows) = (posted.signalled, requester.first < request);
        let mut work = self.work(number, kind_of(&operation), len, false);
        (work.doorbell, work.signalled, work.follows) = (doorbell, signalled, follows);
        let now = self.now.at;
        let sending = self.timing.send(now, &work, &mut self.random);
        let journey = self.journey(work.from, work.to);
        let mtu = self.pairs[number as usize].agreed.map_or(1, |agreed| agreed.mtu.bytes() as u32);
        let wait = self.wait();
        let requester = &mut self.pairs[number as usize].requester;
        requester.left = requester.left.max(sending.left);
        if !requester.armed {
            (requester.armed, requester.due) = (true, now + wait);
            self.events.push(now + wait, Event::Retry { pair: number });
        }
        let (delay, until) = match journey {
            Journey::Arrives(delay) => (delay, len),
            // Of a long WRITE a part may get through.
            Journey::Lost if work.kind == Kind::Write && len > mtu => {
                (Duration::ZERO, self.random.random_range(0..len.div_ceil(mtu)) * mtu)
            }
            Journey::Lost => return,
        };
        if until == 0 && len > 0 {
            return;
        }
        // Never at the same moment: what was sent first is first.
        requester.arrives = (requester.arrives + Duration::from_nanos(1)).max(sending.arrives + delay);
        let (left, arrives) = (requester.left, requester.arrives);
        let packet = self.packets.take();
        let slot = &mut self.packets[packet];
        (slot.pair, slot.number, slot.from, slot.until) = (number, request, from, until);
        (slot.started, slot.left, slot.arrives) = (now, left, arrives);
        (slot.landing, slot.lost) = (None, false);
        if operation.as_index_read().is_some() && len > 0 {
            // A message that waits, waits before the switches: they are asked when they let it go.
            let from_there = (sending.arrives - sending.passes).as_nanos();
            let passes = Instant::from_nanos(arrives.as_nanos() - from_there);
            self.events.push(passes, Event::Pass { packet });
        } else {
            self.events.push(arrives, Event::Arrive { packet });
        }
    }

    /// Time for which the requester waits for an answer this time.
    fn wait(&mut self) -> Duration {
        let nanos = self.options.retry.timeout.as_nanos();
        Duration::from_nanos(self.random.random_range(nanos..=2 * nanos))
    }

    /// A queue pair looks whether something was not answered in time.
    pub(super) fn retry(&mut self, number: u32) {
        let pair = &mut self.pairs[number as usize];
        if self.hosts[pair.owner.0 as usize].frozen {
            self.hold(self.pairs[number as usize].owner, Event::Retry { pair: number });
            return;
        }
        let requester = &mut pair.requester;
        if pair.state != Some(QueuePairState::ReadyToSend) || requester.first >= requester.next {
            requester.armed = false;
            return;
        }
        if self.now.at < requester.due {
            self.events.push(requester.due, Event::Retry { pair: number });
            return;
        }
        requester.retries += 1;
        if requester.retries > self.options.retry.limit {
            requester.armed = false;
            self.break_pair(number, Some(Failure::RetryExceeded));
            return;
        }
        let (first, next) = (requester.first, requester.next);
        let due = self.now.at + self.wait();
        self.pairs[number as usize].requester.due = due;
        self.events.push(due, Event::Retry { pair: number });
        self.counts.retries += 1;
        for request in first..next {
            self.transmit(number, request, request == first);
        }
    }

    /// An answer is at the requester.
    pub(super) fn answered(&mut self, access: u32) {
        let number = self.accesses.list[access].requester;
        let owner = self.pairs[number as usize].owner;
        if self.hold(owner, Event::Answer { access }) {
            return;
        }
        let answer = &mut self.accesses.list[access];
        let (request, verdict, found, from) = (answer.number, answer.verdict, answer.found, answer.from);
        let data = std::mem::take(&mut answer.data);
        if !self.hosts[owner.0 as usize].link.down {
            self.take_answer(number, request, verdict, found, from, &data);
        }
        self.accesses.list[access].data = data;
        self.accesses.list.give(access);
    }

    fn take_answer(
        &mut self,
        number: u32,
        request: u64,
        verdict: Verdict,
        found: u64,
        from: u32,
        data: &[u8],
    ) {
        let pair = &mut self.pairs[number as usize];
        let requester = &mut pair.requester;
        if pair.state != Some(QueuePairState::ReadyToSend) || request < requester.first {
            return;
        }
        // An answer tells of every earlier request that it was carried out, but not what it found: a READ or atomic whose
        // answer was lost is asked again, and so is all that follows.
        let earlier = (request - requester.first) as usize;
        if requester.queue.iter().take(earlier).any(|posted| posted.operation.has_result()) {
            return;
        }
        let output = match verdict {
            Verdict::Silent => return,
            Verdict::Refused(failure) => {
                self.complete_writes(number, request);
                self.break_pair(number, Some(failure));
                return;
            }
            Verdict::Good => {
                let Some(posted) = requester.get_mut(request) else { return };
                match kind_of(&posted.operation) {
                    Kind::Write => Output::Written,
                    Kind::Atomic => Output::Atomic(found),
                    Kind::Read => {
                        let end = from + data.len() as u32;
                        // A repeated READ asks for bytes from the cut of the first answer on, or from before.
                        debug_assert!(from <= posted.received, "a READ has a hole");
                        if end < posted.received {
                            return;
                        }
                        let Some(buffer) = posted.buffer.as_mut() else { return };
                        buffer.as_mut_slice()[from as usize..end as usize].copy_from_slice(data);
                        posted.received = end;
                        if end < posted.len {
                            return;
                        }
                        match posted.buffer.take() {
                            Some(buffer) => Output::Read(buffer),
                            None => return,
                        }
                    }
                }
            }
        };
        self.complete_writes(number, request);
        self.complete_first(number, Ok(output));
        let due = self.now.at + self.wait();
        let requester = &mut self.pairs[number as usize].requester;
        (requester.due, requester.retries) = (due, 0);
        self.send_on(number, false);
    }

    /// Completes all requests before `until`, which are WRITEs.
    fn complete_writes(&mut self, number: u32, until: u64) {
        while self.pairs[number as usize].requester.first < until {
            self.complete_first(number, Ok(Output::Written));
        }
    }

    /// Completes the earliest request.
    fn complete_first(&mut self, number: u32, result: Result<Output, Failure>) {
        let pair = &mut self.pairs[number as usize];
        let requester = &mut pair.requester;
        let places = requester.places();
        let Some(posted) = requester.queue.pop_front() else { return };
        let request = requester.first;
        requester.first += 1;
        // A request that is not signalled gives its place back now, unless one before it is to be polled.
        let freed = if posted.signalled { 0 } else { places - requester.places() };
        let kind = kind_of(&posted.operation);
        requester.reads -= u8::from(kind != Kind::Write);
        let (owner, now) = (pair.owner, self.now.at);
        let mut taken = now;
        if result.is_ok() {
            let mut work = self.work(number, kind, posted.len, false);
            work.signalled = posted.signalled;
            taken = self.timing.complete(now, &work);
        }
        if freed > 0 {
            self.timing.freed(owner, freed as u32);
        }
        if posted.data.capacity() > 0 {
            let mut data = posted.data;
            data.clear();
            self.spare.push(data);
        }
        if posted.signalled || result.is_err() {
            self.complete(owner, number, request, posted.tag, result, taken);
        }
    }

    fn complete(
        &mut self,
        owner: MachineId,
        number: u32,
        request: u64,
        tag: u64,
        result: Result<Output, Failure>,
        taken: Instant,
    ) {
        let completion = Completion { queue_pair: QueuePair(u64::from(number)), tag, result };
        self.pairs[number as usize].requester.unpolled.push_back(request);
        self.hand_back(owner, completion, taken);
    }

    /// A queue pair fails: the earliest request because of `cause`, where there is one, the others with it.
    pub(super) fn break_pair(&mut self, number: u32, cause: Option<Failure>) {
        let pair = &mut self.pairs[number as usize];
        if !matches!(pair.state, Some(state) if state != QueuePairState::Error) {
            return;
        }
        pair.state = Some(QueuePairState::Error);
        let owner = pair.owner;
        self.host_mut(owner).broken.push_back(QueuePair(u64::from(number)));
        self.news_for(owner);
        self.flush(number, cause.unwrap_or(Failure::Flushed), true);
    }

    /// Completes posted requests with an error. The requests stay, because messages under way carry them.
    pub(super) fn flush(&mut self, number: u32, cause: Failure, unsignalled: bool) {
        let pair = &mut self.pairs[number as usize];
        let (owner, first) = (pair.owner, pair.requester.first);
        let mut flushed = Vec::new();
        for (request, posted) in (first..).zip(&mut pair.requester.queue) {
            drop(posted.buffer.take());
            if posted.signalled || unsignalled {
                flushed.push((request, posted.tag));
            }
        }
        let mut failure = cause;
        for (request, tag) in flushed {
            self.complete(owner, number, request, tag, Err(failure), self.now.at);
            failure = Failure::Flushed;
        }
    }

    /// Forgets a queue pair: nothing is written into its buffers any more, and what it serves stops.
    pub(super) fn destroy(&mut self, machine: MachineId, queue_pair: QueuePair) {
        let Some(state) = self.state(machine, queue_pair) else { return };
        let number = queue_pair.0 as u32;
        self.pairs[number as usize].state = None;
        self.silence(number, Begun::Finish);
        if state != QueuePairState::Error {
            self.flush(number, Failure::Flushed, false);
        }
    }

    pub(super) fn poll(&mut self, machine: MachineId) -> Option<Completion> {
        let completion = self.host_mut(machine).completions.pop_front()?;
        let requester = &mut self.pairs[completion.queue_pair.0 as usize].requester;
        let before = requester.places();
        requester.unpolled.pop_front();
        let polled = before.saturating_sub(requester.places());
        self.timing.freed(machine, polled as u32);
        Some(completion)
    }
}
