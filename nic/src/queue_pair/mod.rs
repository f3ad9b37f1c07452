//! A queue pair of a reliable connection: its state machine, its addresses, and its two halves.
//!
//! ```text
//!          connect                                        fatal NAK either way,
//!  RESET ──▶ INIT ──▶ RTR (may respond) ──▶ RTS (may request) ──▶ ERR   retries exhausted
//! ```

mod requester;
mod responder;

pub(crate) use requester::{Request, Requester};
pub(crate) use responder::Responder;

use crate::completion::{BufferPool, Completion};
use crate::memory::Regions;
use crate::stats::{DropReason, NicStats};
use crate::time::Instant;
use crate::{CompletionStatus, Mtu, NicConfig, Psn, QpError};
use fatbtree_wire::{Bth, DEFAULT_PKEY, Extension, Flow, Frame, HeaderTemplate, Opcode};
use std::collections::VecDeque;
use std::fmt;
use std::net::Ipv4Addr;

/// The number of a queue pair: 24 bits; 0 and 1 belong to management.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueuePairNumber(pub u32);

impl fmt::Display for QueuePairNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Where a queue pair stands (IBTA volume 1, section 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueuePairState {
    /// Just made.
    Reset,
    /// Known to the NIC, without a peer.
    Init,
    /// Ready to receive: answers requests.
    ReadyToReceive,
    /// Ready to send: takes requests, too.
    ReadyToSend,
    /// Failed: flushed, silent. Destroy it and connect a new one.
    Error,
}

impl fmt::Display for QueuePairState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QueuePairState::Reset => "RESET",
            QueuePairState::Init => "INIT",
            QueuePairState::ReadyToReceive => "RTR",
            QueuePairState::ReadyToSend => "RTS",
            QueuePairState::Error => "ERR",
        })
    }
}

/// What one side of a connection tells the other out of band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// MAC address to send to.
    pub mac: [u8; 6],
    /// Address to send to.
    pub ip: Ipv4Addr,
    /// Queue pair to send to.
    pub qpn: QueuePairNumber,
    /// PSN of the first packet it will send, 24 bits.
    pub psn: u32,
    /// Path MTU it offers.
    pub mtu: Mtu,
    /// READs and atomics it takes at once.
    pub max_reads: usize,
}

/// Numbers that are random unless a test or a replay needs them fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct QueuePairOptions {
    /// Number of the queue pair, 2 to 2^24 - 1.
    pub qpn: Option<QueuePairNumber>,
    /// First PSN it will send.
    pub psn: Option<u32>,
    /// UDP source port.
    pub source_port: Option<u16>,
    /// IPv4 identification of the first frame it will send; it counts up.
    pub identification: Option<u16>,
}

/// Where queue pairs leave what concerns the whole NIC.
#[derive(Default)]
pub(crate) struct Sink {
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) buffers: BufferPool,
    pub(crate) stats: NicStats,
}

/// What both halves need to put a frame on the wire.
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
}

/// The queue pair has to go to the error state; completions have been made already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed;

pub(crate) struct QueuePair {
    pub(crate) number: QueuePairNumber,
    pub(crate) state: QueuePairState,
    pub(crate) first_psn: Psn,
    source_port: u16,
    identification: u16,
    connection: Option<Connection>,
    /// In the NIC's list of those with something to send.
    pub(crate) queued: bool,
    /// The deadline under which the NIC's timers have an entry.
    pub(crate) timer_entry: Option<Instant>,
}

/// What a queue pair has from RTR on.
struct Connection {
    peer: Ipv4Addr,
    link: Link,
    requester: Requester,
    responder: Responder,
}

impl QueuePair {
    pub(crate) fn new(
        number: QueuePairNumber,
        first_psn: Psn,
        source_port: u16,
        identification: u16,
    ) -> QueuePair {
        QueuePair {
            number,
            state: QueuePairState::Reset,
            first_psn,
            source_port,
            identification,
            connection: None,
            queued: false,
            timer_entry: None,
        }
    }

    pub(crate) fn endpoint(&self, config: &NicConfig) -> Endpoint {
        Endpoint {
            mac: config.mac,
            ip: config.ip,
            qpn: self.number,
            psn: self.first_psn.value(),
            mtu: config.mtu,
            max_reads: config.max_outstanding_reads,
        }
    }

    /// From RESET through INIT and RTR to RTS.
    pub(crate) fn connect(&mut self, remote: &Endpoint, config: &NicConfig) -> Result<(), QpError> {
        let qpn = self.number;
        if self.state != QueuePairState::Reset {
            return Err(QpError::Transition {
                qpn,
                from: self.state,
                to: QueuePairState::Init,
                missing: "only a queue pair in RESET can be connected; make a new one",
            });
        }
        let wrong = |field, expected, found| Err(QpError::Endpoint { qpn, field, expected, found });
        if !(2..1 << 24).contains(&remote.qpn.0) {
            return wrong("queue pair number", "2 to 2^24 - 1", u64::from(remote.qpn.0));
        }
        if remote.psn >= 1 << 24 {
            return wrong("PSN", "24 bits", u64::from(remote.psn));
        }
        if remote.max_reads == 0 {
            return wrong("outstanding READs", "at least 1", 0);
        }
        self.state = QueuePairState::Init;
        let mtu = config.mtu.min(remote.mtu).bytes();
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
            link: Link { template, identification: self.identification, destination_qp: remote.qpn.0 },
            requester: Requester::new(qpn, self.first_psn, mtu, remote.max_reads, config),
            responder: Responder::new(Psn::new(remote.psn), mtu, config.max_outstanding_reads),
        });
        self.state = QueuePairState::ReadyToReceive;
        self.state = QueuePairState::ReadyToSend;
        Ok(())
    }

    /// The half that takes requests; there from RTR on.
    pub(crate) fn requester(&mut self) -> Option<&mut Requester> {
        self.connection.as_mut().map(|connection| &mut connection.requester)
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.connection.as_ref().and_then(|connection| connection.requester.deadline())
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
        regions: &mut Regions,
        sink: &mut Sink,
    ) -> Result<(), DropReason> {
        if frame.bth.pkey | 0x8000 != DEFAULT_PKEY {
            return Err(DropReason::WrongPkey);
        }
        let (Some(connection), QueuePairState::ReadyToReceive | QueuePairState::ReadyToSend) =
            (&mut self.connection, self.state)
        else {
            return Err(DropReason::NotReady);
        };
        if frame.ipv4.source != connection.peer {
            return Err(DropReason::WrongPeer);
        }
        let opcode = frame.bth.opcode;
        let result =
            if (Opcode::RC_RDMA_READ_RESPONSE_FIRST..=Opcode::RC_ATOMIC_ACKNOWLEDGE).contains(&opcode) {
                connection.requester.handle(now, frame, sink)
            } else {
                connection.responder.handle(frame, regions, &mut sink.stats)
            };
        match result {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Failed)) => {
                self.fail(sink);
                Ok(())
            }
            Err(reason) => Err(reason),
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant, sink: &mut Sink) {
        if let Some(connection) = &mut self.connection
            && connection.requester.handle_timeout(now, sink) == Err(Failed)
        {
            self.fail(sink);
        }
    }

    /// To the error state: what is left in the send queue is flushed. Answers not sent yet, a fatal NAK last among them, still go out.
    fn fail(&mut self, sink: &mut Sink) {
        if let Some(connection) = &mut self.connection {
            connection.requester.flush(None, CompletionStatus::WorkRequestFlushed, sink);
        }
        if self.state != QueuePairState::Error {
            self.state = QueuePairState::Error;
            sink.stats.queue_pairs_failed += 1;
        }
    }
}
