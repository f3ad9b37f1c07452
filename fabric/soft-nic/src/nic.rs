//! The NIC, and the contract by which it is driven. Its interface for the owner is in `device`.

use crate::NicConfig;
use crate::connections::{Manager, Timing};
use crate::memory::Regions;
use crate::queue_pair::{LONGEST_MESSAGE, Sink};
use crate::stats::{DropReason, NicStats};
use crate::table::Table;
use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{BufferPool, QueuePairNumber};
use fatbtree_wire::Frame;
use fatbtree_wire::cm::MANAGEMENT_QUEUE_PAIR;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::{fmt, io};

/// Frames of queue pairs for which a datagram waits at most.
const DATAGRAM_WAITS: u32 = 64;

/// A software RoCEv2 NIC without input or output of its own.
///
/// For its owner it is a [`Device`](fatbtree_verbs::Device) and [`Verbs`](fatbtree_verbs::Verbs); for its driver it has methods of
/// three kinds:
///
/// - *getters* ([`stats`](Self::stats), [`poll_timeout`](Self::poll_timeout)) change nothing;
/// - *handlers* ([`handle_frame`](Self::handle_frame), [`handle_timeout`](Self::handle_timeout)) tell what happened outside;
/// - *polls* ([`poll_transmit`](Self::poll_transmit), and of the owner's `poll`, `poll_broken` and `poll_connection`) tell what to do outside.
///
/// # Driving it
///
/// After any call of the owner or handler, call `poll_transmit` until it returns false, then let the owner poll completions and
/// broken queue pairs, then sleep until [`poll_timeout`](Self::poll_timeout), a frame or a call. Time never goes back between calls. Calls
/// in another order are safe; answers just come later. With one seed and one sequence of calls the NIC does the same, bit
/// for bit.
///
/// **When the link is full**, stop calling `poll_transmit`, and go on when there is room: a frame is made when it is asked for, and
/// nothing that was not asked for is lost. A frame that was taken has to be sent, or it counts as lost on the way. Frames
/// that arrive meanwhile may be handed in; what the NIC keeps stays bounded, and beyond that it drops requests, which their senders
/// repeat ([`DropReason::ReplyQueueFull`]).
///
/// **What it keeps.** Per queue pair the send queue ([`NicConfig::send_queue`]), and answers that wait to be sent: twice the
/// agreed number of READs and atomics, and 32. However long a READ is, its answer takes one place: packets and their data are
/// made when they are polled, and queue pairs with something to send take turns, a packet each. For all queue pairs together
/// completions that wait ([`NicConfig::completion_queue`]), and a timer or two for each.
///
/// ```
/// use fatbtree_soft_nic::Nic;
/// use fatbtree_verbs::time::Instant;
/// use fatbtree_verbs::{Completion, Device, QueuePair, Verbs};
///
/// /// A place to put frames that may be full.
/// trait Port {
///     fn has_room(&self) -> bool;
///     fn send(&mut self, frame: &[u8]);
/// }
///
/// /// One turn of a driver's loop: returns when to come back at the latest. When the port had no room: when it has.
/// fn turn(
///     nic: &mut Nic,
///     now: Instant,
///     received: &[Vec<u8>],
///     port: &mut impl Port,
///     mut done: impl FnMut(Completion),
///     mut broken: impl FnMut(QueuePair),
/// ) -> Option<Instant> {
///     let mut out = Vec::new(); // a real driver keeps it
///     for frame in received {
///         nic.handle_frame(now, frame);
///         while port.has_room() && nic.poll_transmit(now, &mut out) {
///             port.send(&out);
///         }
///     }
///     if nic.poll_timeout().is_some_and(|deadline| deadline <= now) {
///         nic.handle_timeout(now);
///     }
///     while port.has_room() && nic.poll_transmit(now, &mut out) {
///         port.send(&out);
///     }
///     while let Some(completion) = nic.poll() {
///         done(completion);
///     }
///     while let Some(queue_pair) = nic.poll_broken() {
///         broken(queue_pair);
///     }
///     nic.poll_timeout()
/// }
/// ```
pub struct Nic {
    pub(crate) config: NicConfig,
    pub(crate) rng: ChaCha8Rng,
    pub(crate) regions: Regions,
    pub(crate) table: Table,
    pub(crate) buffers: BufferPool,
    /// Bytes of the longest READ and WRITE.
    pub(crate) longest_message: u64,
    pub(crate) sink: Sink,
    pub(crate) manager: Manager,
    /// Datagrams of queue pair 1 that were sent.
    pub(crate) datagrams: u32,
    /// Frames of queue pairs that were sent while a datagram waited.
    pub(crate) passed_by: u32,
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic")
            .field("config", &self.config)
            .field("stats", self.stats())
            .finish_non_exhaustive()
    }
}

impl Nic {
    /// Creates a NIC with buffers of its own; rkeys, PSNs, queue pair numbers and ports are drawn from `seed`.
    ///
    /// # Errors
    /// When the operating system gives no memory for the buffers.
    pub fn new(config: NicConfig, seed: u64) -> io::Result<Nic> {
        let buffers = BufferPool::new(&config.buffers)?;
        Ok(Nic::with_buffers(config, seed, buffers))
    }

    /// Creates a NIC with buffers that it may share with others; [`NicConfig::buffers`] is then ignored.
    pub fn with_buffers(config: NicConfig, seed: u64, buffers: BufferPool) -> Nic {
        Nic {
            rng: ChaCha8Rng::seed_from_u64(seed),
            regions: Regions::new(config.device_memory),
            table: Table::new(config.queue_pairs),
            longest_message: buffers.largest().min(LONGEST_MESSAGE),
            buffers,
            sink: Sink::default(),
            manager: Manager::new(Timing {
                timeout: config.cm_timeout,
                retries: config.cm_retries,
                ack_timeout: config.ack_timeout,
                retry_count: config.retry_count,
                mtu: config.mtu,
                ttl: config.ttl,
            }),
            datagrams: 0,
            passed_by: 0,
            config,
        }
    }

    /// Configuration of the NIC.
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// Buffers for the results of READs.
    pub fn buffers(&self) -> &BufferPool {
        &self.buffers
    }

    /// Counters of the NIC.
    pub fn stats(&self) -> &NicStats {
        &self.sink.stats
    }

    /// Number of connections that the Communication Manager keeps, those included that are asked for or have ended lately.
    pub fn connections(&self) -> usize {
        self.manager.len()
    }

    /// Takes a received frame. A frame that is foreign, damaged or not for a queue pair of this NIC is counted by
    /// reason and dropped.
    pub fn handle_frame(&mut self, now: Instant, frame: &[u8]) {
        self.sink.stats.frames_received += 1;
        self.sink.stats.bytes_received += frame.len() as u64;
        if let Err(reason) = self.try_handle(now, frame) {
            self.sink.stats.drop(reason);
        }
    }

    #[inline]
    fn try_handle(&mut self, now: Instant, frame: &[u8]) -> Result<(), DropReason> {
        // By reference: the parsed frame is large, and moving it costs more than a lookup.
        let parsed = Frame::parse(frame);
        let frame = match &parsed {
            Ok(frame) => frame,
            Err(error) if error.is_foreign() => return Err(DropReason::Foreign),
            Err(_) => return Err(DropReason::Malformed),
        };
        if frame.index.is_some() {
            return Err(DropReason::IndexHeader);
        }
        if frame.ethernet.destination != self.config.mac {
            return Err(DropReason::WrongMac);
        }
        if frame.ipv4.destination != self.config.ip {
            return Err(DropReason::WrongIp);
        }
        if frame.icrc != frame.expected_icrc() {
            return Err(DropReason::BadIcrc);
        }
        if frame.bth.destination_qp == MANAGEMENT_QUEUE_PAIR {
            return self.handle_datagram(now, frame);
        }
        let number = QueuePairNumber(frame.bth.destination_qp);
        let (regions, sink) = (&self.regions, &mut self.sink);
        let handled = self.table.with_number(number, |core| core.handle(now, frame, regions, sink));
        self.table.settle();
        handled.ok_or(DropReason::UnknownQueuePair)?
    }

    /// Writes the next frame to send into `out` (cleared first) and returns true, or returns false when there is none.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        let is_there = self.next_frame(now, out);
        if is_there {
            self.sink.stats.frames_sent += 1;
            self.sink.stats.bytes_sent += out.len() as u64;
        } else {
            out.clear();
        }
        is_there
    }

    #[inline]
    fn next_frame(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        let has_datagrams = self.manager.wants_to_transmit();
        // Queue pairs may have frames without end.
        if has_datagrams && self.passed_by >= DATAGRAM_WAITS && self.transmit_datagram(now, out) {
            return true;
        }
        loop {
            let (regions, sink) = (&self.regions, &mut self.sink);
            match self.table.with_next_ready(|core| core.transmit(now, regions, sink, out)) {
                Some(true) => {
                    self.passed_by += u32::from(has_datagrams);
                    return true;
                }
                Some(false) => {} // it had something to send, and was answered meanwhile
                // Last, so that what is acknowledged is so before the connection ends.
                None => return has_datagrams && self.transmit_datagram(now, out),
            }
        }
    }

    /// Latest time to call [`handle_timeout`](Self::handle_timeout); `None` when nothing is outstanding.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let queue_pairs = self.table.earliest().map(|(at, _)| at);
        [queue_pairs, self.manager.poll_timeout()].into_iter().flatten().min()
    }

    /// Does what is due at `now`; calling it early does nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.manager.handle_timeout(now);
        while let Some((at, handle)) = self.table.earliest()
            && at <= now
        {
            let sink = &mut self.sink;
            self.table.with(handle, |core| core.handle_timeout(now, sink));
            self.table.settle();
            if self.table.earliest() == Some((at, handle)) {
                break; // a timeout of zero is due again at once: leave it to the next call
            }
        }
    }
}
