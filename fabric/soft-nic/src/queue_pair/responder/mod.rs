//! Responding half: checks requests, executes them in order, answers, and answers duplicates again (IBTA volume 1,
//! section 9.7.4 on responders, 9.7.5.1 on their answers).
//!
//! Answers wait in a queue until they are sent, and the data of a READ is taken from memory when its packet is sent: drivers
//! that send before they hand in the next frame see strictly ordered memory, others see what RDMA promises (a READ may see
//! later WRITEs unless the requester waits for it).
//!
//! PSNs are counted in 64 bits here, so that a duplicate is never taken for one of 2^24 packets ago.

mod replies;

use super::receives::Receives;
use super::{Failed, Handled, Link, Sink, packets};
use crate::memory::Regions;
use crate::stats::{DropReason, NicStats};
use crate::{Psn, atomic};
use fatbtree_verbs::{Access, Agreed, Failure, Operation, QueuePair, Remote};
use fatbtree_wire::{Extension, Frame, NakCode, Opcode, Reth};
use replies::Replies;
use std::collections::VecDeque;

/// Longest message (IBTA volume 1, section 9.7.1).
const MAX_MESSAGE: u32 = 1 << 31;

/// A message of several packets, under way.
enum UnderWay {
    /// A WRITE, of which so much remains.
    Write { rkey: u32, va: u64, remaining: u32, length: u32 },
    /// A SEND, which lies in the first place for messages.
    Send,
}

/// Reason why a request is not carried out.
enum Refusal {
    /// The queue pair fails.
    Nak(NakCode),
    /// There is no place for a message: it is to come again.
    NotReady,
}

impl From<NakCode> for Refusal {
    fn from(code: NakCode) -> Self {
        Refusal::Nak(code)
    }
}

/// What a request may use.
pub(crate) struct Means<'n> {
    pub(crate) queue_pair: QueuePair,
    pub(crate) regions: &'n Regions,
    pub(crate) receives: &'n mut Receives,
    pub(crate) sink: &'n mut Sink,
}

pub(crate) struct Responder {
    mtu: usize,
    /// Count of the first packet that the peer sends: its lower 24 bits are the PSN.
    first: u64,
    /// Count of the next new request packet.
    expected: u64,
    /// Number of executed requests, 24 bits.
    msn: u32,
    /// Whether the packets missing now have been requested.
    nak_sent: bool,
    under_way: Option<UnderWay>,
    /// Results of atomics by packet count, oldest first, to answer duplicates, which must not be executed again.
    atomics: VecDeque<(u64, u64)>,
    /// Maximum number of READs and atomics that the peer may have outstanding; as many results are kept.
    most_reads: usize,
    replies: Replies,
    /// PSN of the request that made the queue pair fail, and the reason.
    refused: Option<(Psn, NakCode)>,
    /// Time after which a message is to come again for which there is no place, encoded.
    rnr_timer: u8,
}

impl Responder {
    /// Creates the responder for a peer that begins at `first`; `theirs` is the agreement as the peer sees it.
    pub(crate) fn new(first: Psn, theirs: &Agreed, rnr_timer: u8) -> Responder {
        let (mtu, most_reads) = (theirs.mtu.bytes(), usize::from(theirs.outstanding_reads));
        Responder {
            mtu,
            first: u64::from(first.value()),
            expected: u64::from(first.value()),
            msn: 0,
            nak_sent: false,
            under_way: None,
            atomics: VecDeque::new(),
            most_reads,
            replies: Replies::new(mtu, most_reads),
            refused: None,
            rnr_timer,
        }
    }

    #[inline]
    pub(crate) fn wants_to_transmit(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Takes a request.
    #[inline]
    pub(crate) fn handle(&mut self, frame: &Frame<'_>, means: &mut Means<'_>) -> Handled {
        let opcode = frame.bth.opcode;
        let is_masked = matches!(opcode, Opcode::RC_MASKED_COMPARE_SWAP | Opcode::RC_MASKED_FETCH_ADD);
        if opcode > Opcode::RC_SEND_ONLY_INVALIDATE && !is_masked {
            return Err(DropReason::UnknownOpcode);
        }
        if self.replies.is_full() {
            return Err(DropReason::ReplyQueueFull); // as if lost: the requester sends it again
        }
        let psn = Psn::new(frame.bth.psn);
        let count = psn.nearest(self.expected).filter(|&count| count >= self.first);
        let count = count.ok_or(DropReason::StaleRequest)?; // before the connection's beginning
        if count > self.expected {
            if !self.nak_sent {
                self.nak_sent = true;
                self.replies.refuse(Psn::new(self.expected as u32), self.msn, NakCode::PSN_SEQUENCE_ERROR);
            }
            return Err(DropReason::RequestGap);
        }
        if count < self.expected {
            means.sink.stats.duplicate_requests += 1;
            return self.repeat(count, frame, means.regions);
        }
        self.nak_sent = false;
        match self.execute(psn, frame, means) {
            Ok(()) => {
                means.sink.stats.requests_executed += 1;
                Ok(Ok(()))
            }
            Err(Refusal::Nak(code)) => Ok(Err(self.refuse(psn, code))),
            Err(Refusal::NotReady) => {
                // What follows it comes again with it.
                self.nak_sent = true;
                self.replies.not_ready(psn, self.msn, self.rnr_timer);
                Err(DropReason::NoReceive)
            }
        }
    }

    /// Refuses a request for good.
    fn refuse(&mut self, psn: Psn, code: NakCode) -> Failed {
        self.refused = Some((psn, code));
        self.replies.refuse(psn, self.msn, code);
        Failed
    }

    /// Repeats the refusal to a peer that still asks, because the NAK was lost. Without it the peer would learn of
    /// the failure only when its retries are used up, and not the reason.
    pub(crate) fn repeat_refusal(&mut self) {
        if let Some((psn, code)) = self.refused
            && self.replies.is_empty()
        {
            self.replies.refuse(psn, self.msn, code);
        }
    }

    /// Executes a new request.
    #[inline]
    fn execute(&mut self, psn: Psn, frame: &Frame<'_>, means: &mut Means<'_>) -> Result<(), Refusal> {
        let (opcode, regions) = (frame.bth.opcode, means.regions);
        let fits = match self.under_way {
            None => !continues_write(opcode) && !continues_send(opcode),
            Some(UnderWay::Write { .. }) => continues_write(opcode),
            Some(UnderWay::Send) => continues_send(opcode),
        };
        if !fits {
            return Err(NakCode::INVALID_REQUEST.into());
        }
        match (opcode, &frame.extension) {
            (Opcode::RC_RDMA_READ_REQUEST, Extension::Reth(reth)) => {
                self.check_resources()?;
                check_read(reth, frame, regions)?;
                self.expected += u64::from(packets(reth.length, self.mtu));
                self.finish_message();
                self.replies.read(psn, self.msn, *reth, true);
            }
            (Opcode::RC_RDMA_WRITE_FIRST | Opcode::RC_RDMA_WRITE_ONLY, Extension::Reth(reth)) => {
                let is_only = opcode == Opcode::RC_RDMA_WRITE_ONLY;
                self.begin_write(is_only, reth, frame.payload, regions)?;
                self.end_packet(is_only, frame);
            }
            (Opcode::RC_RDMA_WRITE_ONLY_IMMEDIATE, Extension::RethImmediate(reth, word)) => {
                means.is_ready()?;
                self.begin_write(true, reth, frame.payload, regions)?;
                means.complete(Some(reth.length), Some(*word));
                self.end_packet(true, frame);
            }
            (Opcode::RC_RDMA_WRITE_MIDDLE | Opcode::RC_RDMA_WRITE_LAST, Extension::None) => {
                let is_last = opcode == Opcode::RC_RDMA_WRITE_LAST;
                self.continue_write(is_last, frame.payload, regions)?;
                self.end_packet(is_last, frame);
            }
            (Opcode::RC_RDMA_WRITE_LAST_IMMEDIATE, Extension::Immediate(word)) => {
                means.is_ready()?;
                let length = self.continue_write(true, frame.payload, regions)?;
                means.complete(Some(length), Some(*word));
                self.end_packet(true, frame);
            }
            (Opcode::RC_SEND_FIRST | Opcode::RC_SEND_MIDDLE, Extension::None) => {
                means.is_ready()?;
                if frame.payload.len() != self.mtu {
                    return Err(NakCode::INVALID_REQUEST.into());
                }
                means.append(frame.payload)?;
                self.under_way = Some(UnderWay::Send);
                self.end_packet(false, frame);
            }
            (Opcode::RC_SEND_LAST | Opcode::RC_SEND_ONLY, Extension::None)
            | (Opcode::RC_SEND_LAST_IMMEDIATE | Opcode::RC_SEND_ONLY_IMMEDIATE, Extension::Immediate(_)) => {
                means.is_ready()?;
                if frame.payload.len() > self.mtu {
                    return Err(NakCode::INVALID_REQUEST.into());
                }
                means.append(frame.payload)?;
                let immediate =
                    if let Extension::Immediate(word) = frame.extension { Some(word) } else { None };
                means.complete(None, immediate);
                self.under_way = None;
                self.end_packet(true, frame);
            }
            (opcode, extension) => {
                let (at, operation) = atomic::from_wire(opcode, extension).ok_or(NakCode::INVALID_REQUEST)?;
                self.check_resources()?;
                let original = execute_atomic(at, &operation, frame, regions)?;
                if self.atomics.len() >= self.most_reads {
                    self.atomics.pop_front();
                }
                self.atomics.push_back((self.expected, original));
                self.expected += 1;
                self.finish_message();
                self.replies.atomic(psn, self.msn, original, true);
            }
        }
        Ok(())
    }

    /// Refuses READs and atomics beyond the agreed number (IBTA volume 1, section 9.7.5.2.3: too many requests are an invalid
    /// request).
    #[inline]
    fn check_resources(&self) -> Result<(), NakCode> {
        if self.replies.has_all_reads() { Err(NakCode::INVALID_REQUEST) } else { Ok(()) }
    }

    fn finish_message(&mut self) {
        self.msn = (self.msn + 1) & 0xff_ffff;
    }

    fn begin_write(
        &mut self,
        is_only: bool,
        reth: &Reth,
        payload: &[u8],
        regions: &Regions,
    ) -> Result<(), NakCode> {
        let length = reth.length as usize;
        let fits = if is_only {
            length <= self.mtu && payload.len() == length
        } else {
            length > self.mtu && payload.len() == self.mtu && reth.length <= MAX_MESSAGE
        };
        if !fits {
            return Err(NakCode::INVALID_REQUEST);
        }
        if length > 0 {
            // The whole range is checked first, so that no part of a WRITE that reaches too far is carried out.
            let (memory, offset) = regions
                .get(reth.rkey, reth.va, u64::from(reth.length), Access::WRITE)
                .ok_or(NakCode::REMOTE_ACCESS_ERROR)?;
            memory.write(offset, payload).map_err(|_| NakCode::REMOTE_ACCESS_ERROR)?;
        }
        if !is_only {
            self.under_way = Some(UnderWay::Write {
                rkey: reth.rkey,
                va: reth.va + payload.len() as u64,
                remaining: reth.length - payload.len() as u32,
                length: reth.length,
            });
        }
        Ok(())
    }

    /// Goes on with a WRITE; says how long it is.
    fn continue_write(&mut self, is_last: bool, payload: &[u8], regions: &Regions) -> Result<u32, NakCode> {
        let Some(UnderWay::Write { rkey, va, remaining, length }) = &mut self.under_way else {
            return Err(NakCode::INVALID_REQUEST);
        };
        let (rest, length) = (*remaining as usize, *length);
        let fits = if is_last {
            rest <= self.mtu && payload.len() == rest
        } else {
            rest > self.mtu && payload.len() == self.mtu
        };
        if !fits {
            return Err(NakCode::INVALID_REQUEST);
        }
        let (memory, offset) = regions
            .get(*rkey, *va, payload.len() as u64, Access::WRITE)
            .ok_or(NakCode::REMOTE_ACCESS_ERROR)?; // deregistered since the first packet
        memory.write(offset, payload).map_err(|_| NakCode::REMOTE_ACCESS_ERROR)?;
        if is_last {
            self.under_way = None;
        } else {
            *va += payload.len() as u64;
            *remaining -= payload.len() as u32;
        }
        Ok(length)
    }

    fn end_packet(&mut self, message_ends: bool, frame: &Frame<'_>) {
        self.expected += 1;
        if message_ends {
            self.finish_message();
        }
        if frame.bth.ack_request {
            self.acknowledge();
        }
    }

    /// Acknowledges everything carried out.
    fn acknowledge(&mut self) {
        self.replies.acknowledge(Psn::new(self.expected as u32).previous(), self.msn);
    }

    /// Answers a duplicate: a READ by reading again, at the address that the duplicate names; an atomic from its
    /// saved result; a WRITE or a SEND by an acknowledgement.
    fn repeat(&mut self, count: u64, frame: &Frame<'_>, regions: &Regions) -> Handled {
        let psn = Psn::new(frame.bth.psn);
        match (frame.bth.opcode, &frame.extension) {
            (Opcode::RC_RDMA_READ_REQUEST, Extension::Reth(reth)) => {
                if count + u64::from(packets(reth.length, self.mtu)) > self.expected {
                    return Err(DropReason::StaleRequest); // longer than what it claims to repeat
                }
                if let Err(code) = check_read(reth, frame, regions) {
                    return Ok(Err(self.refuse(psn, code)));
                }
                self.replies.read(psn, self.msn, *reth, false);
            }
            (opcode, extension) if atomic::from_wire(opcode, extension).is_some() => {
                let saved = self.atomics.iter().find(|&&(saved, _)| saved == count);
                let &(_, original) = saved.ok_or(DropReason::StaleRequest)?;
                self.replies.atomic(psn, self.msn, original, false);
            }
            _ => self.acknowledge(),
        }
        Ok(Ok(()))
    }

    /// Writes the next answer into `out`.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        regions: &Regions,
        link: &mut Link,
        stats: &mut NicStats,
        out: &mut Vec<u8>,
    ) -> Result<bool, Failed> {
        self.replies.transmit(regions, link, stats, out).map_err(|refused| {
            self.refused = Some(refused);
            Failed
        })
    }
}

impl Means<'_> {
    /// Whether there is a place for a message.
    fn is_ready(&self) -> Result<(), Refusal> {
        if self.receives.is_empty() { Err(Refusal::NotReady) } else { Ok(()) }
    }

    /// Appends bytes to the message that arrives. One that is longer than its place is refused, and its owner is told.
    fn append(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.receives.append(bytes).map_err(|()| {
            self.receives.flush(self.queue_pair, Failure::MessageLength, self.sink);
            NakCode::INVALID_REQUEST.into()
        })
    }

    fn complete(&mut self, written: Option<u32>, immediate: Option<u32>) {
        self.receives.complete(self.queue_pair, written, immediate, self.sink);
    }
}

const fn continues_write(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::RC_RDMA_WRITE_MIDDLE | Opcode::RC_RDMA_WRITE_LAST | Opcode::RC_RDMA_WRITE_LAST_IMMEDIATE
    )
}

const fn continues_send(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::RC_SEND_MIDDLE
            | Opcode::RC_SEND_LAST
            | Opcode::RC_SEND_LAST_IMMEDIATE
            | Opcode::RC_SEND_LAST_INVALIDATE
    )
}

/// Checks a READ. A READ of no bytes touches no memory, and its rkey is not checked (IBTA volume 1, section
/// 9.7.4.1.5).
fn check_read(reth: &Reth, frame: &Frame<'_>, regions: &Regions) -> Result<(), NakCode> {
    if reth.length > MAX_MESSAGE || !frame.payload.is_empty() {
        return Err(NakCode::INVALID_REQUEST);
    }
    if reth.length > 0 {
        regions
            .get(reth.rkey, reth.va, u64::from(reth.length), Access::READ)
            .ok_or(NakCode::REMOTE_ACCESS_ERROR)?;
    }
    Ok(())
}

/// Executes an atomic; returns the value that it found.
fn execute_atomic(
    at: Remote,
    operation: &Operation<'_>,
    frame: &Frame<'_>,
    regions: &Regions,
) -> Result<u64, NakCode> {
    if !at.address.is_multiple_of(8) || !frame.payload.is_empty() {
        return Err(NakCode::INVALID_REQUEST);
    }
    let (memory, offset) =
        regions.get(at.rkey, at.address, 8, Access::ATOMIC).ok_or(NakCode::REMOTE_ACCESS_ERROR)?;
    // Refused where the region itself lies crooked: its first address is no multiple of 8.
    memory
        .update(offset, |found| operation.apply(found).unwrap_or(found))
        .map_err(|_| NakCode::REMOTE_ACCESS_ERROR)
}
