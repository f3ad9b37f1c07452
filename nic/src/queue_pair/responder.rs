//! The responding half: checks requests, carries them out in order, answers, and answers duplicates again (IBTA volume 1,
//! section 9.7.4 on responders, 9.7.5.1 on what they send).
//!
//! Answers wait in one queue, in the order of their requests. The data of a READ is taken from memory when its packet is sent: drivers
//! that send before they hand in the next frame see strictly ordered memory, others see what RDMA promises (a READ may see
//! later WRITEs unless the requester waits for it).

use super::{Failed, Link};
use crate::Psn;
use crate::memory::{Access, Regions};
use crate::stats::{DropReason, NicStats};
use fatbtree_wire::{Aeth, AtomicAckEth, AtomicEth, Extension, Frame, NakCode, Opcode, Reth, Syndrome};
use std::collections::VecDeque;

/// Longest message (IBTA volume 1, section 9.7.1).
const MAX_MESSAGE: u32 = 1 << 31;

/// Answers kept beyond the READs and atomics that may be outstanding: duplicates and acknowledgements.
const SPARE_REPLIES: usize = 64;

enum Reply {
    Ack { psn: Psn, msn: u32 },
    Nak { psn: Psn, msn: u32, code: NakCode },
    Atomic { psn: Psn, msn: u32, original: u64 },
    Read(ReadReply),
}

struct ReadReply {
    psn: Psn,
    msn: u32,
    rkey: u32,
    va: u64,
    remaining: u32,
    started: bool,
}

/// A WRITE of several packets, under way.
struct Writing {
    rkey: u32,
    va: u64,
    remaining: u32,
}

pub(crate) struct Responder {
    mtu: usize,
    /// PSN of the next new request packet.
    expected: Psn,
    /// Requests carried out, 24 bits.
    msn: u32,
    /// The packets missing now have been asked for.
    nak_sent: bool,
    writing: Option<Writing>,
    /// Results of atomics, oldest first, to answer duplicates: carrying them out again would be wrong.
    atomics: VecDeque<(Psn, u64)>,
    max_reads: usize,
    replies: VecDeque<Reply>,
}

type Handled = Result<Result<(), Failed>, DropReason>;

impl Responder {
    pub(crate) fn new(expected: Psn, mtu: usize, max_reads: usize) -> Responder {
        Responder {
            mtu,
            expected,
            msn: 0,
            nak_sent: false,
            writing: None,
            atomics: VecDeque::new(),
            max_reads,
            replies: VecDeque::new(),
        }
    }

    #[inline]
    pub(crate) fn wants_to_transmit(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Takes a request.
    #[inline]
    pub(crate) fn handle(
        &mut self,
        frame: &Frame<'_>,
        regions: &mut Regions,
        stats: &mut NicStats,
    ) -> Handled {
        if frame.bth.opcode > Opcode::RC_SEND_ONLY_INVALIDATE {
            return Err(DropReason::UnknownOpcode);
        }
        if self.replies.len() >= self.max_reads + SPARE_REPLIES {
            return Err(DropReason::ReplyQueueFull); // as if lost: the requester sends it again
        }
        let psn = Psn::new(frame.bth.psn);
        match psn.since(self.expected) {
            0 => {
                self.nak_sent = false;
                let executed = self.execute(psn, frame, regions);
                match executed {
                    Ok(()) => stats.requests_executed += 1,
                    Err(code) => {
                        self.refuse(psn, code);
                        return Ok(Err(Failed));
                    }
                }
                Ok(Ok(()))
            }
            ahead if ahead > 0 => {
                if !self.nak_sent {
                    self.nak_sent = true;
                    self.refuse(self.expected, NakCode::PSN_SEQUENCE_ERROR);
                }
                Err(DropReason::RequestGap)
            }
            _ => {
                stats.duplicate_requests += 1;
                self.repeat(psn, frame, regions)
            }
        }
    }

    fn refuse(&mut self, psn: Psn, code: NakCode) {
        self.replies.push_back(Reply::Nak { psn, msn: self.msn, code });
    }

    /// PSNs a READ of `length` bytes takes.
    fn packets(&self, length: u32) -> u32 {
        length.div_ceil(self.mtu as u32).max(1)
    }

    /// Carries out a new request.
    #[inline]
    fn execute(&mut self, psn: Psn, frame: &Frame<'_>, regions: &mut Regions) -> Result<(), NakCode> {
        let opcode = frame.bth.opcode;
        let continues = matches!(opcode, Opcode::RC_RDMA_WRITE_MIDDLE | Opcode::RC_RDMA_WRITE_LAST);
        if continues != self.writing.is_some() {
            return Err(NakCode::INVALID_REQUEST);
        }
        match (opcode, frame.extension) {
            (Opcode::RC_RDMA_READ_REQUEST, Extension::Reth(reth)) => {
                check_read(&reth, frame, regions)?;
                self.expected = psn.plus(self.packets(reth.length));
                self.finish_message();
                self.reply_read(psn, &reth);
            }
            (Opcode::RC_COMPARE_SWAP | Opcode::RC_FETCH_ADD, Extension::Atomic(atomic)) => {
                let original = execute_atomic(opcode, &atomic, frame, regions)?;
                self.expected = psn.plus(1);
                self.finish_message();
                if self.atomics.len() >= self.max_reads {
                    self.atomics.pop_front();
                }
                self.atomics.push_back((psn, original));
                self.replies.push_back(Reply::Atomic { psn, msn: self.msn, original });
            }
            (Opcode::RC_RDMA_WRITE_FIRST | Opcode::RC_RDMA_WRITE_ONLY, Extension::Reth(reth)) => {
                self.begin_write(opcode, &reth, frame.payload, regions)?;
                self.end_write_packet(psn, opcode == Opcode::RC_RDMA_WRITE_ONLY, frame);
            }
            (Opcode::RC_RDMA_WRITE_MIDDLE | Opcode::RC_RDMA_WRITE_LAST, Extension::None) => {
                self.continue_write(opcode, frame.payload, regions)?;
                self.end_write_packet(psn, opcode == Opcode::RC_RDMA_WRITE_LAST, frame);
            }
            _ => return Err(NakCode::INVALID_REQUEST),
        }
        Ok(())
    }

    fn finish_message(&mut self) {
        self.msn = (self.msn + 1) & 0xff_ffff;
    }

    fn reply_read(&mut self, psn: Psn, reth: &Reth) {
        self.replies.push_back(Reply::Read(ReadReply {
            psn,
            msn: self.msn,
            rkey: reth.rkey,
            va: reth.va,
            remaining: reth.length,
            started: false,
        }));
    }

    fn begin_write(
        &mut self,
        opcode: Opcode,
        reth: &Reth,
        payload: &[u8],
        regions: &mut Regions,
    ) -> Result<(), NakCode> {
        let length = reth.length as usize;
        let fits = if opcode == Opcode::RC_RDMA_WRITE_ONLY {
            length <= self.mtu && payload.len() == length
        } else {
            length > self.mtu && payload.len() == self.mtu && reth.length <= MAX_MESSAGE
        };
        if !fits {
            return Err(NakCode::INVALID_REQUEST);
        }
        if length > 0 {
            // The whole range is checked first, so that no part of a WRITE that reaches too far is carried out.
            let to = regions
                .get_mut(reth.rkey, reth.va, length, Access::WRITE)
                .ok_or(NakCode::REMOTE_ACCESS_ERROR)?;
            to[..payload.len()].copy_from_slice(payload);
        }
        if opcode == Opcode::RC_RDMA_WRITE_FIRST {
            self.writing = Some(Writing {
                rkey: reth.rkey,
                va: reth.va + payload.len() as u64,
                remaining: reth.length - payload.len() as u32,
            });
        }
        Ok(())
    }

    fn continue_write(
        &mut self,
        opcode: Opcode,
        payload: &[u8],
        regions: &mut Regions,
    ) -> Result<(), NakCode> {
        let Some(writing) = &mut self.writing else { return Err(NakCode::INVALID_REQUEST) };
        let remaining = writing.remaining as usize;
        let last = opcode == Opcode::RC_RDMA_WRITE_LAST;
        let fits = if last {
            remaining <= self.mtu && payload.len() == remaining
        } else {
            remaining > self.mtu && payload.len() == self.mtu
        };
        if !fits {
            return Err(NakCode::INVALID_REQUEST);
        }
        let to = regions
            .get_mut(writing.rkey, writing.va, payload.len(), Access::WRITE)
            .ok_or(NakCode::REMOTE_ACCESS_ERROR)?; // deregistered since the first packet
        to.copy_from_slice(payload);
        if last {
            self.writing = None;
        } else {
            writing.va += payload.len() as u64;
            writing.remaining -= payload.len() as u32;
        }
        Ok(())
    }

    fn end_write_packet(&mut self, psn: Psn, message_ends: bool, frame: &Frame<'_>) {
        self.expected = psn.plus(1);
        if message_ends {
            self.finish_message();
        }
        if frame.bth.ack_request {
            self.acknowledge();
        }
    }

    /// Acknowledges everything carried out; one acknowledgement behind another replaces it.
    fn acknowledge(&mut self) {
        let (psn, msn) = (self.expected.previous(), self.msn);
        if let Some(Reply::Ack { .. }) = self.replies.back() {
            self.replies.pop_back();
        }
        self.replies.push_back(Reply::Ack { psn, msn });
    }

    /// Answers a duplicate: a READ by reading again, at whatever address the duplicate names; an atomic from its saved result; a WRITE by an
    /// acknowledgement.
    fn repeat(&mut self, psn: Psn, frame: &Frame<'_>, regions: &Regions) -> Handled {
        match (frame.bth.opcode, frame.extension) {
            (Opcode::RC_RDMA_READ_REQUEST, Extension::Reth(reth)) => {
                if reth.length > MAX_MESSAGE || psn.plus(self.packets(reth.length)).since(self.expected) > 0 {
                    return Err(DropReason::StaleRequest); // longer than what it claims to repeat
                }
                if let Err(code) = check_read(&reth, frame, regions) {
                    self.refuse(psn, code);
                    return Ok(Err(Failed));
                }
                self.reply_read(psn, &reth);
            }
            (Opcode::RC_COMPARE_SWAP | Opcode::RC_FETCH_ADD, _) => {
                let saved = self.atomics.iter().find(|&&(saved, _)| saved == psn);
                let &(_, original) = saved.ok_or(DropReason::StaleRequest)?;
                self.replies.push_back(Reply::Atomic { psn, msn: self.msn, original });
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
        let Some(reply) = self.replies.front_mut() else { return Ok(false) };
        let answer = |syndrome, msn| Aeth { syndrome, msn };
        match reply {
            Reply::Read(read) => {
                let len = (read.remaining as usize).min(self.mtu);
                let last = read.remaining as usize == len;
                let payload = match len {
                    0 => Some(&[][..]),
                    _ => regions.get(read.rkey, read.va, len, Access::READ),
                };
                let Some(payload) = payload else {
                    // Deregistered since the request was checked.
                    let (psn, msn) = (read.psn, read.msn);
                    self.replies.clear();
                    stats.naks_sent += 1;
                    let aeth = answer(Syndrome::nak(NakCode::REMOTE_OPERATIONAL_ERROR), msn);
                    link.emit(out, Opcode::RC_ACKNOWLEDGE, psn, false, &Extension::Aeth(aeth), &[]);
                    return Err(Failed);
                };
                let opcode = match (read.started, last) {
                    (false, true) => Opcode::RC_RDMA_READ_RESPONSE_ONLY,
                    (false, false) => Opcode::RC_RDMA_READ_RESPONSE_FIRST,
                    (true, false) => Opcode::RC_RDMA_READ_RESPONSE_MIDDLE,
                    (true, true) => Opcode::RC_RDMA_READ_RESPONSE_LAST,
                };
                let extension = match opcode {
                    Opcode::RC_RDMA_READ_RESPONSE_MIDDLE => Extension::None,
                    _ => Extension::Aeth(answer(Syndrome::ACK, read.msn)),
                };
                link.emit(out, opcode, read.psn, false, &extension, payload);
                if !last {
                    read.started = true;
                    read.psn = read.psn.plus(1);
                    read.va = read.va.wrapping_add(len as u64);
                    read.remaining -= len as u32;
                    return Ok(true);
                }
            }
            Reply::Ack { psn, msn } => {
                let aeth = answer(Syndrome::ACK, *msn);
                link.emit(out, Opcode::RC_ACKNOWLEDGE, *psn, false, &Extension::Aeth(aeth), &[]);
            }
            Reply::Nak { psn, msn, code } => {
                stats.naks_sent += 1;
                let aeth = answer(Syndrome::nak(*code), *msn);
                link.emit(out, Opcode::RC_ACKNOWLEDGE, *psn, false, &Extension::Aeth(aeth), &[]);
            }
            Reply::Atomic { psn, msn, original } => {
                let extension = Extension::AethAtomicAck(
                    answer(Syndrome::ACK, *msn),
                    AtomicAckEth { original: *original },
                );
                link.emit(out, Opcode::RC_ATOMIC_ACKNOWLEDGE, *psn, false, &extension, &[]);
            }
        }
        self.replies.pop_front();
        Ok(true)
    }
}

/// A READ of no bytes touches no memory, and its rkey is not looked at (IBTA volume 1, section 9.7.4.1.5).
fn check_read(reth: &Reth, frame: &Frame<'_>, regions: &Regions) -> Result<(), NakCode> {
    if reth.length > MAX_MESSAGE || !frame.payload.is_empty() {
        return Err(NakCode::INVALID_REQUEST);
    }
    if reth.length > 0 {
        regions
            .get(reth.rkey, reth.va, reth.length as usize, Access::READ)
            .ok_or(NakCode::REMOTE_ACCESS_ERROR)?;
    }
    Ok(())
}

/// Carries out an atomic; memory holds 64-bit little-endian numbers, as the hosts that share it do.
fn execute_atomic(
    opcode: Opcode,
    atomic: &AtomicEth,
    frame: &Frame<'_>,
    regions: &mut Regions,
) -> Result<u64, NakCode> {
    if !atomic.va.is_multiple_of(8) || !frame.payload.is_empty() {
        return Err(NakCode::INVALID_REQUEST);
    }
    let cell = regions
        .get_mut(atomic.rkey, atomic.va, 8, Access::ATOMIC)
        .and_then(|bytes| bytes.first_chunk_mut::<8>())
        .ok_or(NakCode::REMOTE_ACCESS_ERROR)?;
    let original = u64::from_le_bytes(*cell);
    let new = if opcode == Opcode::RC_FETCH_ADD {
        original.wrapping_add(atomic.swap_or_add)
    } else if original == atomic.compare {
        atomic.swap_or_add
    } else {
        original
    };
    *cell = new.to_le_bytes();
    Ok(original)
}
