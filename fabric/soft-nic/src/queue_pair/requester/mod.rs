//! Requesting half: the send queue, its packets, their acknowledgements, and retries when these do not come (IBTA
//! volume 1, section 9.7.5 on requesters, 9.7.6 on retries).
//!
//! ```text
//!  work:   [ READ | WRITE | READ | CAS | … ]        front = oldest not complete
//!             ▲ oldest PSN          ▲ cursor: next to be sent        sent_end: after the last PSN ever sent
//! ```
//!
//! Requests complete in order. A response to a later request says that earlier WRITEs were carried out, but the data of earlier READs and
//! atomics is only in their own responses: if those are missing they are asked for again ("implied NAK"). Going back means going back to
//! the oldest request that is not complete; a READ of which some packets came resumes at `va + bytes received`, as hardware does.

mod answers;
mod work;

pub(crate) use work::{INLINE_BYTES, LONGEST_MESSAGE, buffer};

use super::{Failed, Link, Sink, packets};
use crate::{NicConfig, Psn};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{Agreed, BufferPool, Completion, Failure, Message, PostError, QueuePair, WorkRequest};
use fatbtree_wire::{Extension, Opcode, Reth};
use std::collections::VecDeque;
use work::{Push, Task, Work};

/// Maximum number of PSNs that requests in the send queue may span together: half of what comparing PSNs allows.
const MAX_PSN_SPAN: usize = 1 << 22;

// A message of any length fits, whatever the path MTU.
const _: () = assert!(LONGEST_MESSAGE as usize / 256 <= MAX_PSN_SPAN);

/// Packets of a long WRITE between two that request an acknowledgement, so that a loss does not send it all again.
const WRITE_ACK_INTERVAL: u32 = 32;

pub(crate) struct Requester {
    queue_pair: QueuePair,
    mtu: usize,
    max_reads: usize,
    max_work: usize,
    longest_message: u64,
    ack_timeout: Duration,
    retry_count: u8,

    work: VecDeque<Work>,
    /// First PSN of the next request posted.
    next_psn: Psn,
    /// PSN after the last one ever sent.
    sent_end: Psn,
    /// Index in `work` of the request to be sent next.
    cursor: usize,
    /// Number of packets already sent of the WRITE at the cursor.
    write_sent: u32,
    /// Number of READs and atomics before the cursor.
    reads_in_flight: usize,
    /// Time to send again; set while something sent is not acknowledged.
    deadline: Option<Instant>,
    retries_left: u8,
    /// Times in a row that the other side may still not be ready; none: without end.
    rnr_retries_left: Option<u8>,
    rnr_retries: Option<u8>,
    /// Time before which nothing is sent, because the other side was not ready.
    paused: Option<Instant>,
    /// Whether the gap has been requested again since the last progress: further signs of it mean nothing new.
    gap_answered: bool,
}

impl Requester {
    pub(crate) fn new(
        queue_pair: QueuePair,
        first_psn: Psn,
        agreed: &Agreed,
        config: &NicConfig,
        longest_message: u64,
    ) -> Requester {
        Requester {
            queue_pair,
            mtu: agreed.mtu.bytes(),
            max_reads: usize::from(agreed.outstanding_reads),
            max_work: config.send_queue,
            longest_message,
            ack_timeout: config.ack_timeout,
            retry_count: config.retry_count,
            work: VecDeque::new(),
            next_psn: first_psn,
            sent_end: first_psn,
            cursor: 0,
            write_sent: 0,
            reads_in_flight: 0,
            deadline: None,
            retries_left: config.retry_count,
            rnr_retries_left: rnr_retries(config),
            rnr_retries: rnr_retries(config),
            paused: None,
            gap_answered: false,
        }
    }

    #[inline]
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        // While it is paused nothing is on its way.
        self.paused.or(self.deadline)
    }

    /// Appends a message to the send queue.
    pub(crate) fn send(
        &mut self,
        tag: u64,
        message: &Message<'_>,
        pool: &BufferPool,
    ) -> Result<(), PostError> {
        let (queue_pair, limit) = (self.queue_pair, self.max_work);
        let found = self.work.len() + 1;
        if found > limit {
            return Err(PostError::Full { queue_pair, what: "requests", found, limit });
        }
        let task = Task::Push(Push::of_message(message, pool, self.longest_message)?);
        self.append(tag, true, task)
    }

    /// Appends a chain to the send queue: all of it or nothing.
    pub(crate) fn post(&mut self, chain: &[WorkRequest<'_>], pool: &BufferPool) -> Result<(), PostError> {
        let (queue_pair, limit) = (self.queue_pair, self.max_work);
        let found = self.work.len() + chain.len();
        if found > limit {
            return Err(PostError::Full { queue_pair, what: "requests", found, limit });
        }
        let (posted, next_psn) = (self.work.len(), self.next_psn);
        for request in chain {
            let task = Task::new(request, pool, self.mtu, self.longest_message);
            let appended = task.and_then(|task| self.append(request.tag, request.signalled, task));
            if let Err(error) = appended {
                // Buffers taken for its predecessors go back.
                self.work.truncate(posted);
                self.next_psn = next_psn;
                return Err(error);
            }
        }
        Ok(())
    }

    #[inline]
    fn append(&mut self, tag: u64, signalled: bool, task: Task) -> Result<(), PostError> {
        let packets = packets(task.length(), self.mtu);
        let found = self.next_psn.since(self.oldest()) as usize + packets as usize;
        if found > MAX_PSN_SPAN {
            let (queue_pair, limit) = (self.queue_pair, MAX_PSN_SPAN);
            return Err(PostError::Full { queue_pair, what: "packets", found, limit });
        }
        let first_psn = self.next_psn;
        self.next_psn = first_psn.plus(packets);
        self.work.push_back(Work { tag, signalled, first_psn, packets, done: 0, task });
        Ok(())
    }

    /// The oldest PSN that is not acknowledged, or the next one to be given out.
    fn oldest(&self) -> Psn {
        self.work.front().map_or(self.next_psn, |front| front.first_psn.plus(front.done))
    }

    #[inline]
    pub(crate) fn wants_to_transmit(&self) -> bool {
        self.paused.is_none()
            && self
                .work
                .get(self.cursor)
                .is_some_and(|work| !work.takes_resource() || self.reads_in_flight < self.max_reads)
    }

    /// Writes the next request packet into `out`.
    #[inline]
    pub(crate) fn transmit(&mut self, now: Instant, link: &mut Link, out: &mut Vec<u8>) -> bool {
        if !self.wants_to_transmit() {
            return false;
        }
        let Some(work) = self.work.get(self.cursor) else { return false };
        match &work.task {
            Task::Read { reth, .. } => {
                // From where it stands: a READ that was partly answered resumes there.
                let received = work.done * self.mtu as u32;
                let reth = Reth {
                    va: reth.va.wrapping_add(u64::from(received)),
                    rkey: reth.rkey,
                    length: reth.length - received,
                };
                let psn = work.first_psn.plus(work.done);
                link.emit(out, Opcode::RC_RDMA_READ_REQUEST, psn, true, &Extension::Reth(reth), &[]);
            }
            Task::Atomic { opcode, extension } => {
                link.emit(out, *opcode, work.first_psn, true, extension, &[]);
            }
            Task::Push(push) => {
                let at = self.write_sent;
                let last = at + 1 == work.packets;
                let (opcode, extension) = push.header(at == 0, last);
                let start = at as usize * self.mtu;
                let payload = push.data.part(start, (push.length as usize).min(start + self.mtu));
                // What is posted after it and answered says that it was carried out, too.
                let is_awaited = work.signalled || self.cursor + 1 == self.work.len();
                let ack_request = last && is_awaited || (at + 1).is_multiple_of(WRITE_ACK_INTERVAL);
                link.emit(out, opcode, work.first_psn.plus(at), ack_request, &extension, payload);
                if !last {
                    let sent = work.first_psn.plus(at + 1);
                    self.write_sent = at + 1;
                    self.sent(sent, now);
                    return true;
                }
            }
        }
        let (end, takes_resource) = (work.end(), work.takes_resource());
        self.reads_in_flight += usize::from(takes_resource);
        self.cursor += 1;
        self.write_sent = self.work.get(self.cursor).map_or(0, |next| next.done);
        self.sent(end, now);
        true
    }

    /// Notes that everything before `end` has been sent at least once.
    fn sent(&mut self, end: Psn, now: Instant) {
        if end.since(self.sent_end) > 0 {
            self.sent_end = end;
        }
        if self.deadline.is_none() {
            self.deadline = Some(now + self.ack_timeout);
        }
    }

    /// Notes an acknowledgement, after which the retries begin anew.
    fn progress(&mut self, now: Instant) {
        self.retries_left = self.retry_count;
        self.rnr_retries_left = self.rnr_retries;
        self.gap_answered = false;
        let in_flight = self.sent_end.since(self.oldest()) > 0;
        self.deadline = in_flight.then(|| now + self.ack_timeout);
    }

    /// Handles a gap: sends again from the oldest packet, once until there is progress.
    fn gap(&mut self, now: Instant, sink: &mut Sink) {
        if !self.gap_answered {
            self.gap_answered = true;
            self.go_back(now, sink);
        }
    }

    fn go_back(&mut self, now: Instant, sink: &mut Sink) {
        sink.stats.retransmissions += 1;
        self.cursor = 0;
        self.reads_in_flight = 0;
        self.write_sent = self.work.front().map_or(0, |front| front.done);
        self.deadline = Some(now + self.ack_timeout);
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant, sink: &mut Sink) -> Result<(), Failed> {
        if let Some(paused) = self.paused {
            if now >= paused {
                self.paused = None;
                self.go_back(now, sink);
            }
            return Ok(());
        }
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return Ok(());
        }
        sink.stats.timeouts += 1;
        if self.retries_left == 0 {
            self.flush(Some((self.oldest(), Failure::RetryExceeded)), sink);
            return Err(Failed);
        }
        self.retries_left -= 1;
        self.gap_answered = false;
        self.go_back(now, sink);
        Ok(())
    }

    /// Ends the oldest request; `Ok` contains the value that an atomic found.
    #[inline]
    fn complete_front(&mut self, result: Result<u64, Failure>, sink: &mut Sink) {
        let Some(front) = self.work.front_mut() else { return };
        if self.cursor > 0 {
            self.cursor -= 1;
            self.reads_in_flight -= usize::from(front.takes_resource());
        } else {
            // It was about to be sent again, and its answer came after all.
            self.write_sent = 0;
        }
        if front.signalled || result.is_err() {
            let (queue_pair, tag) = (self.queue_pair, front.tag);
            let result = result.map(|original| front.task.output(original));
            sink.completions.push_back(Completion { queue_pair, tag, result });
        } else {
            sink.owed -= 1;
        }
        self.work.pop_front();
    }

    /// Ends all requests: the one that covers the culprit's PSN with its failure, the others as flushed.
    pub(crate) fn flush(&mut self, culprit: Option<(Psn, Failure)>, sink: &mut Sink) {
        while let Some(front) = self.work.front() {
            let guilty =
                culprit.filter(|(psn, _)| psn.since(front.first_psn) >= 0 && psn.since(front.end()) < 0);
            let failure = guilty.map_or(Failure::Flushed, |(_, failure)| failure);
            self.complete_front(Err(failure), sink);
        }
        (self.deadline, self.paused) = (None, None);
    }

    /// Ends all requests because the queue pair is destroyed. Unsignalled ones are not reported.
    pub(crate) fn abandon(&mut self, sink: &mut Sink) {
        self.work.retain(|work| {
            sink.owed -= usize::from(!work.signalled);
            work.signalled
        });
        (self.cursor, self.reads_in_flight) = (0, 0);
        self.flush(None, sink);
    }
}

/// Times in a row that a peer may not be ready; none: without end.
fn rnr_retries(config: &NicConfig) -> Option<u8> {
    Some(config.rnr_retry_count).filter(|count| *count < 7)
}
