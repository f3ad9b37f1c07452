//! A requester's handling of responses.

use super::work::{Task, Work};
use super::{Requester, Sink};
use crate::Psn;
use crate::queue_pair::receives::rnr_time;
use crate::queue_pair::{Failed, Handled};
use crate::stats::DropReason;
use fatbtree_verbs::Failure;
use fatbtree_verbs::time::Instant;
use fatbtree_wire::{Extension, Frame, NakCode, Opcode, SyndromeKind};

impl Requester {
    /// Takes a response.
    #[inline]
    pub(crate) fn handle(&mut self, now: Instant, frame: &Frame<'_>, sink: &mut Sink) -> Handled {
        let psn = Psn::new(frame.bth.psn);
        if psn.since(self.oldest()) < 0 {
            return Err(DropReason::StaleResponse);
        }
        if psn.since(self.sent_end) >= 0 {
            return Err(DropReason::GhostResponse);
        }
        let kind = match &frame.extension {
            Extension::Aeth(aeth) | Extension::AethAtomicAck(aeth, _) => aeth.syndrome.kind(),
            _ => SyndromeKind::Ack(31), // middle packets of a READ response have no AETH
        };
        match (frame.bth.opcode, kind, &frame.extension) {
            (Opcode::RC_ACKNOWLEDGE, SyndromeKind::Ack(_), _) => {
                self.acknowledge(psn.plus(1), now, sink);
                Ok(Ok(()))
            }
            (Opcode::RC_ACKNOWLEDGE, SyndromeKind::Nak(code), _) => {
                sink.stats.naks_received += 1;
                Ok(self.handle_nak(psn, code, now, sink))
            }
            (Opcode::RC_ACKNOWLEDGE, SyndromeKind::RnrNak(timer), _) => {
                sink.stats.naks_received += 1;
                Ok(self.handle_not_ready(psn, timer, now, sink))
            }
            (Opcode::RC_ATOMIC_ACKNOWLEDGE, SyndromeKind::Ack(_), Extension::AethAtomicAck(_, ack)) => {
                self.handle_atomic_ack(psn, ack.original, now, sink)
            }
            (opcode, SyndromeKind::Ack(_), _) if opcode.is_read_response() => {
                self.handle_read_response(psn, frame, now, sink)
            }
            _ => Err(DropReason::BadResponse),
        }
    }

    /// Handles an acknowledgement of everything before `end`: completes WRITEs; a READ or atomic among them lost its
    /// response.
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
            self.complete_front(Ok(0), sink);
            self.progress(now);
        }
    }

    fn handle_nak(&mut self, psn: Psn, code: NakCode, now: Instant, sink: &mut Sink) -> Result<(), Failed> {
        // What lies before the packet that was refused was carried out.
        self.acknowledge(psn, now, sink);
        let failure = match code {
            NakCode::PSN_SEQUENCE_ERROR => {
                self.gap(now, sink);
                return Ok(());
            }
            NakCode::REMOTE_ACCESS_ERROR => Failure::RemoteAccess,
            NakCode::REMOTE_OPERATIONAL_ERROR => Failure::RemoteOperational,
            NakCode::INVALID_REQUEST => Failure::RemoteInvalidRequest,
            _ => Failure::Other,
        };
        self.flush(Some((psn, failure)), sink);
        Err(Failed)
    }

    /// Handles the answer of a peer that has no place for a message: sends it again after the time that the peer asks for.
    fn handle_not_ready(&mut self, psn: Psn, timer: u8, now: Instant, sink: &mut Sink) -> Result<(), Failed> {
        // What lies before it was carried out, so it is the first one now; else something before it is missing, too.
        self.acknowledge(psn, now, sink);
        // Only a message waits for a place: nothing else is held up by a peer that says so without end.
        let takes_place = self.work.front().is_some_and(Work::takes_place);
        if psn != self.oldest() || !takes_place || self.paused.is_some() {
            return Ok(());
        }
        if self.rnr_retries_left == Some(0) {
            self.flush(Some((psn, Failure::ReceiverNotReady)), sink);
            return Err(Failed);
        }
        if let Some(left) = &mut self.rnr_retries_left {
            *left -= 1;
        }
        self.paused = Some(now + rnr_time(timer));
        Ok(())
    }

    fn handle_atomic_ack(&mut self, psn: Psn, original: u64, now: Instant, sink: &mut Sink) -> Handled {
        self.acknowledge(psn, now, sink);
        match self.work.front() {
            Some(front) if front.first_psn == psn => {
                if !matches!(front.task, Task::Atomic { .. }) {
                    return Err(DropReason::BadResponse);
                }
            }
            _ => return Err(DropReason::ResponseGap),
        }
        self.complete_front(Ok(original), sink);
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
    ) -> Handled {
        // WRITEs before this READ were carried out; a READ or atomic before it lost its response.
        while let Some(front) = self.work.front()
            && psn.since(front.end()) >= 0
        {
            if front.takes_resource() {
                self.gap(now, sink);
                return Err(DropReason::ResponseGap);
            }
            self.complete_front(Ok(0), sink);
            self.progress(now);
        }
        let mtu = self.mtu;
        let Some(front) = self.work.front_mut() else { return Err(DropReason::BadResponse) };
        let Task::Read { reth, buffer: Some(buffer) } = &mut front.task else {
            return Err(DropReason::BadResponse);
        };
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
        let expected_len = (reth.length as usize - front.done as usize * mtu).min(mtu);
        if last != says_last || frame.payload.len() != expected_len {
            return Err(DropReason::BadResponse);
        }
        buffer.extend(frame.payload);
        front.done += 1;
        if last {
            self.complete_front(Ok(0), sink);
        }
        self.progress(now);
        Ok(Ok(()))
    }
}
