//! Answers that wait to be sent.
//!
//! All answers wait in one queue, in the order of their requests. A READ's answer is one entry, however long it is.
//! Its packets are made one by one when they are polled, with data read from memory then. So a READ of a gigabyte
//! takes as much room as one of a byte.

use crate::Psn;
use crate::memory::Regions;
use crate::queue_pair::Link;
use crate::stats::NicStats;
use fatbtree_verbs::Access;
use fatbtree_wire::{Aeth, AtomicAckEth, Extension, NakCode, Opcode, Reth, Syndrome};
use std::collections::VecDeque;

/// Number of answers kept beyond those to the agreed number of READs and atomics: duplicates and refusals.
const SPARE: usize = 32;

struct Reply {
    psn: Psn,
    msn: u32,
    answer: Answer,
}

enum Answer {
    Ack,
    /// A refusal, or a receiver that is not ready.
    Nak(Syndrome),
    Atomic {
        original: u64,
        /// Whether this answers a request that was executed just now, not a duplicate.
        first: bool,
    },
    Read {
        /// The rest of the READ.
        reth: Reth,
        started: bool,
        /// Whether this answers a request that was executed just now, not a duplicate.
        first: bool,
    },
}

pub(super) struct Replies {
    queue: VecDeque<Reply>,
    mtu: usize,
    /// Maximum number of READs and atomics that wait for their first answer.
    most_reads: usize,
    /// Number of READs and atomics that wait for their first answer.
    reads: usize,
}

impl Replies {
    pub(super) fn new(mtu: usize, most_reads: usize) -> Replies {
        Replies { queue: VecDeque::new(), mtu, most_reads, reads: 0 }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether there is no room for another answer. Each READ and atomic may have an acknowledgement before it.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.queue.len() >= 2 * self.most_reads + SPARE
    }

    /// Whether the peer has as many READs and atomics outstanding as it may: an answer that has not left cannot have come.
    #[inline]
    pub(super) fn has_all_reads(&self) -> bool {
        self.reads >= self.most_reads
    }

    fn push(&mut self, psn: Psn, msn: u32, answer: Answer) {
        self.queue.push_back(Reply { psn, msn, answer });
    }

    /// Queues an acknowledgement; it replaces one right before it.
    pub(super) fn acknowledge(&mut self, psn: Psn, msn: u32) {
        if let Some(Reply { answer: Answer::Ack, .. }) = self.queue.back() {
            self.queue.pop_back();
        }
        self.push(psn, msn, Answer::Ack);
    }

    pub(super) fn refuse(&mut self, psn: Psn, msn: u32, code: NakCode) {
        self.push(psn, msn, Answer::Nak(Syndrome::nak(code)));
    }

    /// Says that there is no place for a message, and the encoded time after which it is to come again.
    pub(super) fn not_ready(&mut self, psn: Psn, msn: u32, timer: u8) {
        self.push(psn, msn, Answer::Nak(Syndrome::rnr(timer)));
    }

    pub(super) fn atomic(&mut self, psn: Psn, msn: u32, original: u64, first: bool) {
        self.reads += usize::from(first);
        self.push(psn, msn, Answer::Atomic { original, first });
    }

    pub(super) fn read(&mut self, psn: Psn, msn: u32, reth: Reth, first: bool) {
        self.reads += usize::from(first);
        self.push(psn, msn, Answer::Read { reth, started: false, first });
    }

    /// Writes the next packet into `out`; returns false if there is none. If it refuses a READ that can no longer be
    /// answered, the queue pair has failed, and `Err` repeats the content of the packet.
    #[inline]
    pub(super) fn transmit(
        &mut self,
        regions: &Regions,
        link: &mut Link,
        stats: &mut NicStats,
        out: &mut Vec<u8>,
    ) -> Result<bool, (Psn, NakCode)> {
        let Some(reply) = self.queue.front_mut() else { return Ok(false) };
        let (psn, aeth) = (reply.psn, |syndrome| Aeth { syndrome, msn: reply.msn });
        match &mut reply.answer {
            Answer::Read { reth, started, first } => {
                let len = (reth.length as usize).min(self.mtu);
                let last = reth.length as usize == len;
                let opcode = match (*started, last) {
                    (false, true) => Opcode::RC_RDMA_READ_RESPONSE_ONLY,
                    (false, false) => Opcode::RC_RDMA_READ_RESPONSE_FIRST,
                    (true, false) => Opcode::RC_RDMA_READ_RESPONSE_MIDDLE,
                    (true, true) => Opcode::RC_RDMA_READ_RESPONSE_LAST,
                };
                let extension = match opcode {
                    Opcode::RC_RDMA_READ_RESPONSE_MIDDLE => Extension::None,
                    _ => Extension::Aeth(aeth(Syndrome::ACK)),
                };
                let append = |out: &mut Vec<u8>| {
                    if len == 0 {
                        return Ok(()); // touches no memory, and its rkey is not looked at
                    }
                    let place = regions.get(reth.rkey, reth.va, len as u64, Access::READ);
                    place.and_then(|(memory, offset)| memory.append(offset, len, out).ok()).ok_or(())
                };
                if link.emit_with(out, opcode, psn, &extension, len, append).is_err() {
                    // Deregistered since the request was checked.
                    let code = NakCode::REMOTE_OPERATIONAL_ERROR;
                    let aeth = aeth(Syndrome::nak(code));
                    stats.naks_sent += 1;
                    link.emit(out, Opcode::RC_ACKNOWLEDGE, psn, false, &Extension::Aeth(aeth), &[]);
                    self.queue.clear();
                    return Err((psn, code));
                }
                if !last {
                    *started = true;
                    reply.psn = psn.plus(1);
                    reth.va = reth.va.wrapping_add(len as u64);
                    reth.length -= len as u32;
                    return Ok(true);
                }
                self.reads -= usize::from(*first);
            }
            Answer::Ack => {
                let aeth = aeth(Syndrome::ACK);
                link.emit(out, Opcode::RC_ACKNOWLEDGE, psn, false, &Extension::Aeth(aeth), &[]);
            }
            Answer::Nak(syndrome) => {
                stats.naks_sent += 1;
                let aeth = aeth(*syndrome);
                link.emit(out, Opcode::RC_ACKNOWLEDGE, psn, false, &Extension::Aeth(aeth), &[]);
            }
            Answer::Atomic { original, first } => {
                let ack = AtomicAckEth { original: *original };
                let extension = Extension::AethAtomicAck(aeth(Syndrome::ACK), ack);
                link.emit(out, Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, false, &extension, &[]);
                self.reads -= usize::from(*first);
            }
        }
        self.queue.pop_front();
        Ok(true)
    }
}
