//! A queue pair of a reliable connection: its state machine, its addresses, and its two halves.
//!
//! ```text
//!          connect                                        fatal NAK either way,
//!  RESET ──▶ INIT ──▶ RTR (may respond) ──▶ RTS (may request) ──▶ ERR   retries exhausted
//! ```

mod receives;
mod requester;
mod responder;

pub(crate) use receives::Receives;
pub(crate) use requester::{INLINE_BYTES, LONGEST_MESSAGE, Requester, buffer};
pub(crate) use responder::{Means, Responder};

use crate::memory::Regions;
use crate::stats::{DropReason, NicStats};
use crate::{NicConfig, Psn};
use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{
    Agreed, Completion, ConnectError, Endpoint, Failure, QueuePair, QueuePairNumber, QueuePairState, Received,
};
use fatbtree_wire::{Bth, DEFAULT_PKEY, Extension, Flow, Frame, HeaderTemplate, Opcode};
use std::collections::VecDeque;
use std::net::Ipv4Addr;

/// Output of queue pairs that concerns the whole NIC.
#[derive(Default)]
pub(crate) struct Sink {
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) received: VecDeque<Received>,
    /// Queue pairs that have failed since the NIC was last asked.
    pub(crate) broken: VecDeque<QueuePair>,
    /// Number of posted requests that may still make a completion, or have made one that was not taken. It limits the
    /// completions that wait.
    pub(crate) owed: usize,
    pub(crate) stats: NicStats,
}

/// State that both halves need to send a frame.
pub(crate) struct Link {
    template: HeaderTemplate,
    identification: u16,
    destination_qp: u32,
}

impl Link {
    #[inline]
    pub(crate) fn emit(
        &mut self,
        out: &mut Vec<u8>,
        opcode: Opcode,
        psn: Psn,
        ack_request: bool,
        extension: &Extension,
        payload: &[u8],
    ) {
        let bth = Bth { ack_request, ..Bth::new(opcode, self.destination_qp, psn.value()) };
        self.template.emit(out, self.identification, &bth, extension, payload);
        self.identification = self.identification.wrapping_add(1);
    }

    /// Emits a packet as [`emit`](Self::emit) does, with a payload of `len` bytes that `append` appends. Nothing is sent when it fails.
    #[inline]
    pub(crate) fn emit_with<E>(
        &mut self,
        out: &mut Vec<u8>,
        opcode: Opcode,
        psn: Psn,
        extension: &Extension,
        len: usize,
        append: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let bth = Bth::new(opcode, self.destination_qp, psn.value());
        self.template.emit_with(out, self.identification, &bth, extension, len, append)?;
        self.identification = self.identification.wrapping_add(1);
        Ok(())
    }
}

/// Error that moves the queue pair to the error state; completions have been made already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed;

/// Result of a frame that was taken.
pub(crate) type Handled = Result<Result<(), Failed>, DropReason>;

/// PSNs that a message of `length` bytes takes: the packets of a WRITE's request or of a READ's response, at least 1.
#[inline]
pub(crate) fn packets(length: u32, mtu: usize) -> u32 {
    length.div_ceil(mtu as u32).max(1)
}

/// A queue pair; [`QueuePair`] is its handle.
pub(crate) struct QueuePairCore {
    pub(crate) handle: QueuePair,
    pub(crate) number: QueuePairNumber,
    pub(crate) state: QueuePairState,
    first_psn: Psn,
    source_port: u16,
    identification: u16,
    connection: Option<Connection>,
    /// Places for messages.
    pub(crate) receives: Receives,
    /// The deadline under which the NIC's timers have an entry.
    pub(crate) timer_entry: Option<Instant>,
}

/// State of a queue pair from RTR on.
struct Connection {
    peer: Ipv4Addr,
    link: Link,
    requester: Requester,
    responder: Responder,
}

impl QueuePairCore {
    pub(crate) fn new(
        handle: QueuePair,
        number: QueuePairNumber,
        first_psn: Psn,
        source_port: u16,
        identification: u16,
    ) -> QueuePairCore {
        QueuePairCore {
            handle,
            number,
            state: QueuePairState::Reset,
            first_psn,
            source_port,
            identification,
            connection: None,
            receives: Receives::default(),
            timer_entry: None,
        }
    }

    pub(crate) fn endpoint(&self, config: &NicConfig) -> Endpoint {
        Endpoint {
            mac: config.mac,
            ip: config.ip,
            queue_pair: self.number,
            psn: self.first_psn.value(),
            mtu: config.mtu,
            responder_reads: config.responder_reads.max(1),
            initiator_reads: config.initiator_reads.max(1),
        }
    }

    /// Connects the queue pair: from RESET through INIT and RTR to RTS.
    pub(crate) fn connect(
        &mut self,
        remote: &Endpoint,
        config: &NicConfig,
        longest_message: u64,
    ) -> Result<Agreed, ConnectError> {
        if self.state != QueuePairState::Reset {
            return Err(ConnectError::State { queue_pair: self.handle, state: self.state });
        }
        remote.check()?;
        self.state = QueuePairState::Init;
        let local = self.endpoint(config);
        // What this side may ask, and what the other may: the same agreement, seen from both ends.
        let (agreed, theirs) = (Agreed::between(&local, remote), Agreed::between(remote, &local));
        let template = HeaderTemplate::new(&Flow {
            source_mac: config.mac,
            destination_mac: remote.mac,
            source_ip: config.ip,
            destination_ip: remote.ip,
            source_port: self.source_port,
            tos: config.tos,
            ttl: config.ttl,
        });
        self.connection = Some(Connection {
            peer: remote.ip,
            link: Link { template, identification: self.identification, destination_qp: remote.queue_pair.0 },
            requester: Requester::new(self.handle, self.first_psn, &agreed, config, longest_message),
            responder: Responder::new(Psn::new(remote.psn), &theirs, receives::rnr_code(config.rnr_timer)),
        });
        self.state = QueuePairState::ReadyToReceive;
        self.state = QueuePairState::ReadyToSend;
        Ok(agreed)
    }

    /// Connects the queue pair as the Communication Manager does: the PSN of each side is the one with which the other one begins.
    pub(crate) fn connect_managed(
        &mut self,
        remote: &Endpoint,
        config: &NicConfig,
        longest_message: u64,
    ) -> Result<Agreed, ConnectError> {
        let (own, theirs) = (self.first_psn, Psn::new(remote.psn));
        self.first_psn = theirs;
        let agreed = self.connect(&Endpoint { psn: own.value(), ..*remote }, config, longest_message);
        if agreed.is_err() {
            self.first_psn = own;
        }
        agreed
    }

    /// Requesting half, if it takes requests.
    #[inline]
    pub(crate) fn requester(&mut self) -> Option<&mut Requester> {
        let ready = self.state == QueuePairState::ReadyToSend;
        self.connection.as_mut().filter(|_| ready).map(|connection| &mut connection.requester)
    }

    /// Time at which [`handle_timeout`](Self::handle_timeout) is due.
    #[inline]
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.connection.as_ref().and_then(|connection| connection.requester.poll_timeout())
    }

    /// Whether [`transmit`](Self::transmit) has a frame.
    #[inline]
    pub(crate) fn wants_to_transmit(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| {
            connection.responder.wants_to_transmit() || connection.requester.wants_to_transmit()
        })
    }

    /// Writes one frame into `out`, answers before requests.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        regions: &Regions,
        sink: &mut Sink,
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(connection) = &mut self.connection else { return false };
        match connection.responder.transmit(regions, &mut connection.link, &mut sink.stats, out) {
            Ok(true) => return true,
            Ok(false) => {}
            Err(Failed) => {
                self.fail(sink);
                return true; // the NAK that says so
            }
        }
        connection.requester.transmit(now, &mut connection.link, out)
    }

    /// Takes a frame that is whole and addressed to this queue pair.
    #[inline]
    pub(crate) fn handle(
        &mut self,
        now: Instant,
        frame: &Frame<'_>,
        regions: &Regions,
        sink: &mut Sink,
    ) -> Result<(), DropReason> {
        if frame.bth.pkey | 0x8000 != DEFAULT_PKEY {
            return Err(DropReason::WrongPkey);
        }
        let Some(connection) = &mut self.connection else { return Err(DropReason::NotReady) };
        if frame.ipv4.source != connection.peer {
            return Err(DropReason::WrongPeer);
        }
        let is_response = frame.bth.opcode.is_rc_response();
        if self.state == QueuePairState::Error {
            if !is_response {
                connection.responder.repeat_refusal();
            }
            return Err(DropReason::NotReady);
        }
        let result = if is_response {
            connection.requester.handle(now, frame, sink)
        } else {
            let (queue_pair, receives) = (self.handle, &mut self.receives);
            connection.responder.handle(frame, &mut Means { queue_pair, regions, receives, sink })
        };
        match result? {
            Ok(()) => {}
            Err(Failed) => self.fail(sink),
        }
        Ok(())
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant, sink: &mut Sink) {
        if let Some(connection) = &mut self.connection
            && connection.requester.handle_timeout(now, sink) == Err(Failed)
        {
            self.fail(sink);
        }
    }

    /// Moves the queue pair to the error state and flushes the send queue. Answers not sent yet, a fatal NAK last
    /// among them, still go out.
    fn fail(&mut self, sink: &mut Sink) {
        if let Some(connection) = &mut self.connection {
            connection.requester.flush(None, sink);
        }
        self.receives.flush(self.handle, Failure::Flushed, sink);
        if self.state != QueuePairState::Error {
            self.state = QueuePairState::Error;
            sink.broken.push_back(self.handle);
            sink.stats.queue_pairs_failed += 1;
        }
    }

    /// Ends the queue pair: signalled requests complete as flushed, and its failure is not reported any more.
    pub(crate) fn close(mut self, sink: &mut Sink) {
        if let Some(connection) = &mut self.connection {
            connection.requester.abandon(sink);
        }
        self.receives.flush(self.handle, Failure::Flushed, sink);
        if self.state == QueuePairState::Error {
            sink.broken.retain(|&broken| broken != self.handle);
        }
    }
}
