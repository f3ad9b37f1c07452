//! The requesting half: the send queue, its packets, their acknowledgements, and what is done when those do not come
//! (IBTA volume 1, section 9.7.5 on requesters, 9.7.6 on retries).
//!
//! ```text
//!  work:   [ READ | WRITE | READ | CAS | … ]        front = oldest not complete
//!             ▲ oldest PSN          ▲ cursor: next to be sent        sent_end: after the last PSN ever sent
//! ```
//!
//! Requests complete in order. A response to a later request says that earlier WRITEs were carried out, but the data of earlier READs and
//! atomics is only in their own responses: if those are missing they are asked for again ("implied NAK"). Going back means going back to
//! the oldest request that is not complete; a READ of which some packets came resumes at `va + bytes received`, as hardware does.

use super::{Failed, Link, Sink};
use crate::stats::DropReason;
use crate::time::{Duration, Instant};
use crate::{Completion, CompletionStatus, NicConfig, Operation, PostError, Psn, QueuePairNumber};
use fatbtree_wire::{AtomicEth, Extension, Frame, NakCode, Opcode, Reth, SyndromeKind};
use std::collections::VecDeque;

/// Longest message (IBTA volume 1, section 9.7.1).
const MAX_MESSAGE: u64 = 1 << 31;

/// PSNs that requests in the send queue may span together: half of what comparing PSNs can bear.
const MAX_PSN_SPAN: usize = 1 << 22;

/// A long WRITE asks for an acknowledgement every so many packets, so that a loss does not send it all again.
const WRITE_ACK_INTERVAL: u32 = 32;

/// What is posted.
pub(crate) enum Request<'a> {
    Read { length: u32 },
    Write { data: &'a [u8] },
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

struct Work {
    wr_id: u64,
    operation: Operation,
    remote_va: u64,
    rkey: u32,
    length: u32,
    first_psn: Psn,
    /// PSNs it takes: packets of the request (WRITE) or of the response (READ), at least 1.
    packets: u32,
    /// Packets acknowledged (WRITE) or received (READ).
    done: u32,
    /// What a WRITE sends; what a READ has received.
    data: Vec<u8>,
    swap_or_add: u64,
    compare: u64,
}

impl Work {
    /// Takes one of the responder's resources while it is outstanding.
    fn takes_resource(&self) -> bool {
        self.operation != Operation::Write
    }

    fn end(&self) -> Psn {
        self.first_psn.plus(self.packets)
    }
}

pub(crate) struct Requester {
    qpn: QueuePairNumber,
    mtu: usize,
    max_reads: usize,
    max_work: usize,
    ack_timeout: Duration,
    retry_count: u8,

    work: VecDeque<Work>,
    /// First PSN of the next request posted.
    next_psn: Psn,
    /// After the last PSN ever sent.
    sent_end: Psn,
    /// Index in `work` of the request to be sent next.
    cursor: usize,
    /// Packets of the WRITE at the cursor that were sent already.
    write_sent: u32,
    /// READs and atomics before the cursor.
    reads_in_flight: usize,
    /// When to send again; set while something sent is not acknowledged.
    deadline: Option<Instant>,
    retries_left: u8,
    /// What is missing has been asked for again since the last progress: further signs of the same gap mean nothing new.
    gap_answered: bool,
}

impl Requester {
    pub(crate) fn new(
        qpn: QueuePairNumber,
        first_psn: Psn,
        mtu: usize,
        remote_max_reads: usize,
        config: &NicConfig,
    ) -> Requester {
        Requester {
            qpn,
            mtu,
            max_reads: config.max_outstanding_reads.min(remote_max_reads).max(1),
            max_work: config.max_send_queue,
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
            gap_answered: false,
        }
    }

    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Appends a request to the send queue.
    pub(crate) fn post(
        &mut self,
        wr_id: u64,
        remote_va: u64,
        rkey: u32,
        request: Request<'_>,
        sink: &mut Sink,
    ) -> Result<(), PostError> {
        let (operation, length, swap_or_add, compare) = match request {
            Request::Read { length } => (Operation::Read, u64::from(length), 0, 0),
            Request::Write { data } => (Operation::Write, data.len() as u64, 0, 0),
            Request::CompareSwap { compare, swap } => (Operation::CompareSwap, 8, swap, compare),
            Request::FetchAdd { add } => (Operation::FetchAdd, 8, add, 0),
        };
        let qpn = self.qpn;
        let limit = MAX_MESSAGE.min((MAX_PSN_SPAN * self.mtu) as u64);
        if length > limit {
            return Err(PostError::TooLong { found: length, limit });
        }
        if matches!(operation, Operation::CompareSwap | Operation::FetchAdd) && !remote_va.is_multiple_of(8) {
            return Err(PostError::Misaligned { va: remote_va });
        }
        if self.work.len() >= self.max_work {
            return Err(PostError::Full {
                qpn,
                what: "requests",
                found: self.work.len(),
                limit: self.max_work,
            });
        }
        let packets = (length as usize).div_ceil(self.mtu).max(1);
        let span = self.next_psn.since(self.oldest()) as usize + packets;
        if span > MAX_PSN_SPAN {
            return Err(PostError::Full { qpn, what: "packets", found: span, limit: MAX_PSN_SPAN });
        }
        let mut data = sink.buffers.take();
        if let Request::Write { data: bytes } = request {
            data.extend_from_slice(bytes);
        }
        let first_psn = self.next_psn;
        self.next_psn = first_psn.plus(packets as u32);
        self.work.push_back(Work {
            wr_id,
            operation,
            remote_va,
            rkey,
            length: length as u32,
            first_psn,
            packets: packets as u32,
            done: 0,
            data,
            swap_or_add,
            compare,
        });
        Ok(())
    }

    /// The oldest PSN that is not acknowledged, or the next one to be given out.
    fn oldest(&self) -> Psn {
        self.work.front().map_or(self.next_psn, |front| front.first_psn.plus(front.done))
    }

    #[inline]
    pub(crate) fn wants_to_transmit(&self) -> bool {
        self.work
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
        match work.operation {
            Operation::Read => {
                // From where it stands: a READ that was partly answered resumes there.
                let received = work.done * self.mtu as u32;
                let reth = Reth {
                    va: work.remote_va.wrapping_add(u64::from(received)),
                    rkey: work.rkey,
                    length: work.length - received,
                };
                let psn = work.first_psn.plus(work.done);
                link.emit(out, Opcode::RC_RDMA_READ_REQUEST, psn, true, &Extension::Reth(reth), &[]);
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                let opcode = match work.operation {
                    Operation::CompareSwap => Opcode::RC_COMPARE_SWAP,
                    _ => Opcode::RC_FETCH_ADD,
                };
                let atomic = AtomicEth {
                    va: work.remote_va,
                    rkey: work.rkey,
                    swap_or_add: work.swap_or_add,
                    compare: work.compare,
                };
                link.emit(out, opcode, work.first_psn, true, &Extension::Atomic(atomic), &[]);
            }
            Operation::Write => {
                let at = self.write_sent;
                let last = at + 1 == work.packets;
                let opcode = match (at == 0, last) {
                    (true, true) => Opcode::RC_RDMA_WRITE_ONLY,
                    (true, false) => Opcode::RC_RDMA_WRITE_FIRST,
                    (false, false) => Opcode::RC_RDMA_WRITE_MIDDLE,
                    (false, true) => Opcode::RC_RDMA_WRITE_LAST,
                };
                let extension = if at == 0 {
                    Extension::Reth(Reth { va: work.remote_va, rkey: work.rkey, length: work.length })
                } else {
                    Extension::None
                };
                let start = at as usize * self.mtu;
                let payload = &work.data[start..work.data.len().min(start + self.mtu)];
                let ack_request = last || (at + 1).is_multiple_of(WRITE_ACK_INTERVAL);
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

    /// Everything before `end` has been sent at least once.
    fn sent(&mut self, end: Psn, now: Instant) {
        if end.since(self.sent_end) > 0 {
            self.sent_end = end;
        }
        if self.deadline.is_none() {
            self.deadline = Some(now + self.ack_timeout);
        }
    }

    /// Takes a response.
    #[inline]
    pub(crate) fn handle(
        &mut self,
        now: Instant,
        frame: &Frame<'_>,
        sink: &mut Sink,
    ) -> Result<Result<(), Failed>, DropReason> {
        let psn = Psn::new(frame.bth.psn);
        if psn.since(self.oldest()) < 0 {
            return Err(DropReason::StaleResponse);
        }
        if psn.since(self.sent_end) >= 0 {
            return Err(DropReason::GhostResponse);
        }
        let kind = match frame.extension {
            Extension::Aeth(aeth) | Extension::AethAtomicAck(aeth, _) => aeth.syndrome.kind(),
            _ => SyndromeKind::Ack(31), // middle packets of a READ response have no AETH
        };
        match (frame.bth.opcode, kind, frame.extension) {
            (Opcode::RC_ACKNOWLEDGE, SyndromeKind::Ack(_), _) => {
                self.acknowledge(psn.plus(1), now, sink);
                Ok(Ok(()))
            }
            (Opcode::RC_ACKNOWLEDGE, SyndromeKind::Nak(code), _) => {
                sink.stats.naks_received += 1;
                Ok(self.handle_nak(psn, code, now, sink))
            }
            // Not ready: nothing here makes a responder say so, and the timeout sends it again.
            (Opcode::RC_ACKNOWLEDGE, SyndromeKind::RnrNak(_), _) => Ok(Ok(())),
            (Opcode::RC_ATOMIC_ACKNOWLEDGE, SyndromeKind::Ack(_), Extension::AethAtomicAck(_, ack)) => {
                self.handle_atomic_ack(psn, ack.original, now, sink)
            }
            (opcode, SyndromeKind::Ack(_), _) if opcode.is_read_response() => {
                self.handle_read_response(psn, frame, now, sink)
            }
            _ => Err(DropReason::BadResponse),
        }
    }

    /// Everything before `end` has been carried out: completes WRITEs; a READ or atomic among them lost its response.
    fn acknowledge(&mut self, end: Psn, now: Instant, sink: &mut Sink) {
        while let Some(front) = self.work.front_mut()
            && end.since(front.first_psn) > 0
        {
            if front.takes_resource() {
                self.gap(now, sink);
                return;
            }
            let packets = end.since(front.first_psn) as u32;
            if packets < front.packets {
                if packets > front.done {
                    front.done = packets;
                    if self.cursor == 0 {
                        self.write_sent = self.write_sent.max(packets);
                    }
                    self.progress(now);
                }
                return;
            }
            self.complete_front(CompletionStatus::Success, 0, sink);
            self.progress(now);
        }
    }

    fn handle_nak(&mut self, psn: Psn, code: NakCode, now: Instant, sink: &mut Sink) -> Result<(), Failed> {
        // What lies before the packet that was refused was carried out.
        self.acknowledge(psn, now, sink);
        let status = match code {
            NakCode::PSN_SEQUENCE_ERROR => {
                self.gap(now, sink);
                return Ok(());
            }
            NakCode::REMOTE_ACCESS_ERROR => CompletionStatus::RemoteAccessError,
            NakCode::REMOTE_OPERATIONAL_ERROR => CompletionStatus::RemoteOperationalError,
            _ => CompletionStatus::RemoteInvalidRequest,
        };
        self.flush(Some(psn), status, sink);
        Err(Failed)
    }

    fn handle_atomic_ack(
        &mut self,
        psn: Psn,
        original: u64,
        now: Instant,
        sink: &mut Sink,
    ) -> Result<Result<(), Failed>, DropReason> {
        self.acknowledge(psn, now, sink);
        match self.work.front() {
            Some(front) if front.first_psn == psn => {
                if !matches!(front.operation, Operation::CompareSwap | Operation::FetchAdd) {
                    return Err(DropReason::BadResponse);
                }
            }
            _ => return Err(DropReason::ResponseGap),
        }
        self.complete_front(CompletionStatus::Success, original, sink);
        self.progress(now);
        Ok(Ok(()))
    }

    #[inline]
    fn handle_read_response(
        &mut self,
        psn: Psn,
        frame: &Frame<'_>,
        now: Instant,
        sink: &mut Sink,
    ) -> Result<Result<(), Failed>, DropReason> {
        // WRITEs before this READ were carried out; a READ or atomic before it lost its response.
        while let Some(front) = self.work.front()
            && psn.since(front.end()) >= 0
        {
            if front.takes_resource() {
                self.gap(now, sink);
                return Err(DropReason::ResponseGap);
            }
            self.complete_front(CompletionStatus::Success, 0, sink);
            self.progress(now);
        }
        let mtu = self.mtu;
        let Some(front) = self.work.front_mut() else { return Err(DropReason::BadResponse) };
        if front.operation != Operation::Read {
            return Err(DropReason::BadResponse);
        }
        if psn != front.first_psn.plus(front.done) {
            self.gap(now, sink);
            return Err(DropReason::ResponseGap);
        }
        // First or middle is not told apart: a READ that was resumed begins again, and a late packet of the first attempt is as good.
        let last = front.done + 1 == front.packets;
        let says_last = matches!(
            frame.bth.opcode,
            Opcode::RC_RDMA_READ_RESPONSE_LAST | Opcode::RC_RDMA_READ_RESPONSE_ONLY
        );
        let expected_len = (front.length as usize - front.done as usize * mtu).min(mtu);
        if last != says_last || frame.payload.len() != expected_len {
            return Err(DropReason::BadResponse);
        }
        front.data.extend_from_slice(frame.payload);
        front.done += 1;
        if last {
            self.complete_front(CompletionStatus::Success, 0, sink);
        }
        self.progress(now);
        Ok(Ok(()))
    }

    /// Something was acknowledged: the retries begin anew.
    fn progress(&mut self, now: Instant) {
        self.retries_left = self.retry_count;
        self.gap_answered = false;
        let in_flight = self.sent_end.since(self.oldest()) > 0;
        self.deadline = in_flight.then(|| now + self.ack_timeout);
    }

    /// Something is missing: sends again from the oldest, once until there is progress.
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
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return Ok(());
        }
        sink.stats.timeouts += 1;
        if self.retries_left == 0 {
            self.flush(Some(self.oldest()), CompletionStatus::RetryExceeded, sink);
            return Err(Failed);
        }
        self.retries_left -= 1;
        self.gap_answered = false;
        self.go_back(now, sink);
        Ok(())
    }

    fn complete_front(&mut self, status: CompletionStatus, original: u64, sink: &mut Sink) {
        let Some(mut front) = self.work.pop_front() else { return };
        if self.cursor > 0 {
            self.cursor -= 1;
            self.reads_in_flight -= usize::from(front.takes_resource());
        } else {
            // It was about to be sent again, and its answer came after all.
            self.write_sent = 0;
        }
        let is_data = front.operation == Operation::Read && status == CompletionStatus::Success;
        let data = if is_data {
            std::mem::take(&mut front.data)
        } else {
            sink.buffers.give(std::mem::take(&mut front.data));
            Vec::new()
        };
        sink.completions.push_back(Completion {
            qpn: self.qpn,
            wr_id: front.wr_id,
            operation: front.operation,
            status,
            data,
            original,
        });
    }

    /// Completes everything: the request that covers `culprit` with `status`, the rest as flushed.
    pub(crate) fn flush(&mut self, culprit: Option<Psn>, status: CompletionStatus, sink: &mut Sink) {
        while let Some(front) = self.work.front() {
            let guilty =
                culprit.is_some_and(|psn| psn.since(front.first_psn) >= 0 && psn.since(front.end()) < 0);
            let status = if guilty { status } else { CompletionStatus::WorkRequestFlushed };
            self.complete_front(status, 0, sink);
        }
        self.deadline = None;
    }
}
