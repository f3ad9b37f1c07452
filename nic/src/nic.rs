//! The NIC: queue pairs, memory regions, and the contract by which they are driven.

use crate::completion::Completion;
use crate::memory::{Access, MemoryRegion, Regions};
use crate::queue_pair::{
    Endpoint, QueuePair, QueuePairNumber, QueuePairOptions, QueuePairState, Request, Sink,
};
use crate::stats::{DropReason, NicStats};
use crate::time::Instant;
use crate::timers::{Entry, Slot, Timers};
use crate::{NicConfig, PostError, Psn, QpError};
use fatbtree_wire::Frame;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::collections::VecDeque;

/// A software RoCEv2 NIC without input or output of its own.
///
/// Its methods are of four kinds:
///
/// - *getters* ([`memory`](Self::memory), [`state`](Self::state), [`stats`](Self::stats), [`poll_timeout`](Self::poll_timeout)) change nothing;
/// - *mutators* (`create_…`, `connect`, `post_…`, `register_…`) are the application's wishes;
/// - *handlers* ([`handle_frame`](Self::handle_frame), [`handle_timeout`](Self::handle_timeout)) tell what happened outside;
/// - *polls* ([`poll_transmit`](Self::poll_transmit), [`poll_completion`](Self::poll_completion)) tell what to do outside.
///
/// # Driving it
///
/// After any mutator or handler, call `poll_transmit` until it returns false, then `poll_completion` until it returns `None`, then
/// sleep until [`poll_timeout`](Self::poll_timeout), a frame or a wish. Time never goes back between calls. Calls in another order are
/// safe; answers just come later. With one seed and one sequence of calls the NIC does the same, bit for bit.
///
/// ```
/// use fatbtree_nic::time::Instant;
/// use fatbtree_nic::{Completion, Nic};
///
/// /// One turn of a driver's loop: returns when to come back at the latest.
/// fn turn(
///     nic: &mut Nic,
///     now: Instant,
///     received: &[Vec<u8>],
///     mut send: impl FnMut(&[u8]),
///     mut done: impl FnMut(&Completion),
/// ) -> Option<Instant> {
///     let mut out = Vec::new(); // a real driver keeps it
///     for frame in received {
///         nic.handle_frame(now, frame);
///         while nic.poll_transmit(now, &mut out) {
///             send(&out);
///         }
///     }
///     if nic.poll_timeout().is_some_and(|deadline| deadline <= now) {
///         nic.handle_timeout(now);
///     }
///     while nic.poll_transmit(now, &mut out) {
///         send(&out);
///     }
///     while let Some(completion) = nic.poll_completion() {
///         done(&completion);
///         nic.recycle(completion.data);
///     }
///     nic.poll_timeout()
/// }
/// ```
pub struct Nic {
    config: NicConfig,
    rng: ChaCha8Rng,
    regions: Regions,
    /// By the low 16 bits of their numbers: finding a queue pair is one index.
    slots: Vec<Option<Box<QueuePair>>>,
    free_slots: Vec<Slot>,
    /// Slots of queue pairs with something to send, each at most once: they take turns.
    ready: VecDeque<Slot>,
    timers: Timers,
    sink: Sink,
}

const SLOT_BITS: u32 = 16;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

/// Numbers 0 and 1 belong to management.
const FIRST_SLOT: Slot = 2;

impl Nic {
    /// A NIC; rkeys, PSNs, queue pair numbers and ports are drawn from `seed`.
    pub fn new(config: NicConfig, seed: u64) -> Nic {
        Nic {
            config,
            rng: ChaCha8Rng::seed_from_u64(seed),
            regions: Regions::default(),
            slots: (0..FIRST_SLOT).map(|_| None).collect(),
            free_slots: Vec::new(),
            ready: VecDeque::new(),
            timers: Timers::default(),
            sink: Sink::default(),
        }
    }

    /// What it was told when it was made.
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// What it has counted.
    pub fn stats(&self) -> &NicStats {
        &self.sink.stats
    }

    /// Lets remote queue pairs use `memory`, whose first byte they address as `iova`, under a random rkey.
    pub fn register_memory(
        &mut self,
        iova: u64,
        memory: impl Into<Box<[u8]>>,
        access: Access,
    ) -> MemoryRegion {
        let rng = &mut self.rng;
        self.regions.register(iova, memory.into(), access, || rng.next_u32())
    }

    /// As [`register_memory`](Self::register_memory) under an rkey of your choice, as tests and replays need; `None` when it is 0 or
    /// taken.
    pub fn register_memory_with_rkey(
        &mut self,
        rkey: u32,
        iova: u64,
        memory: impl Into<Box<[u8]>>,
        access: Access,
    ) -> Option<MemoryRegion> {
        let free = rkey != 0 && self.regions.bytes(rkey).is_none();
        free.then(|| self.regions.register(iova, memory.into(), access, || rkey))
    }

    /// Takes a region back; requests that name it from now on are refused.
    pub fn deregister_memory(&mut self, rkey: u32) -> Option<Box<[u8]>> {
        self.regions.deregister(rkey)
    }

    /// The bytes of a region.
    pub fn memory(&self, rkey: u32) -> Option<&[u8]> {
        self.regions.bytes(rkey)
    }

    /// The bytes of a region, to write.
    pub fn memory_mut(&mut self, rkey: u32) -> Option<&mut [u8]> {
        self.regions.bytes_mut(rkey)
    }

    /// Makes a queue pair with random numbers.
    ///
    /// # Panics
    ///
    /// When the NIC has 65,534 of them already; use [`create_queue_pair_with`](Self::create_queue_pair_with) to get an error instead.
    pub fn create_queue_pair(&mut self) -> QueuePairNumber {
        self.create_queue_pair_with(QueuePairOptions::default())
            .expect("a NIC has at most 65,534 queue pairs: destroy those that are not used")
    }

    /// Makes a queue pair with numbers of your choice, as tests and replays need; the rest is random.
    pub fn create_queue_pair_with(&mut self, options: QueuePairOptions) -> Result<QueuePairNumber, QpError> {
        let number = match options.qpn {
            Some(qpn) => self.claim(qpn)?,
            None => self.draw_number()?,
        };
        let random = self.rng.next_u64();
        let psn = options.psn.unwrap_or(random as u32);
        let port = options.source_port.unwrap_or(0xc000 | (random >> 32) as u16);
        let identification = options.identification.unwrap_or((random >> 48) as u16);
        let queue_pair = QueuePair::new(number, Psn::new(psn), port, identification);
        self.slots[(number.0 & SLOT_MASK) as usize] = Some(Box::new(queue_pair));
        Ok(number)
    }

    /// A slot, and random upper bits: a number that is used again hardly ever meets frames for its former owner.
    fn draw_number(&mut self) -> Result<QueuePairNumber, QpError> {
        let slot = loop {
            match self.free_slots.pop() {
                // Claimed by number since it was freed.
                Some(slot) if self.slots[slot as usize].is_some() => continue,
                Some(slot) => break slot,
                None if self.slots.len() <= SLOT_MASK as usize => {
                    self.slots.push(None);
                    break self.slots.len() as Slot - 1;
                }
                None => {
                    let qpn = QueuePairNumber(self.slots.len() as u32);
                    return Err(QpError::Number { qpn, found: "beyond the most queue pairs a NIC has" });
                }
            }
        };
        Ok(QueuePairNumber(self.rng.next_u32() << SLOT_BITS & 0xff_0000 | slot))
    }

    fn claim(&mut self, qpn: QueuePairNumber) -> Result<QueuePairNumber, QpError> {
        let slot = qpn.0 & SLOT_MASK;
        if qpn.0 >= 1 << 24 || slot < FIRST_SLOT {
            return Err(QpError::Number { qpn, found: "outside of the range" });
        }
        while self.slots.len() <= slot as usize {
            self.free_slots.push(self.slots.len() as Slot);
            self.slots.push(None);
        }
        if self.slots[slot as usize].is_some() {
            return Err(QpError::Number { qpn, found: "taken (its low 16 bits are)" });
        }
        Ok(qpn)
    }

    /// What the other side of a connection has to know of this queue pair.
    pub fn local_endpoint(&self, qpn: QueuePairNumber) -> Result<Endpoint, QpError> {
        let queue_pair = get(&self.slots, qpn).ok_or(QpError::Unknown { qpn })?;
        Ok(queue_pair.endpoint(&self.config))
    }

    /// Where the queue pair stands; `None` when there is none.
    pub fn state(&self, qpn: QueuePairNumber) -> Option<QueuePairState> {
        get(&self.slots, qpn).map(|queue_pair| queue_pair.state)
    }

    /// Connects a new queue pair to `remote`: to RTS.
    pub fn connect(&mut self, qpn: QueuePairNumber, remote: Endpoint) -> Result<(), QpError> {
        let queue_pair = get_mut(&mut self.slots, qpn).ok_or(QpError::Unknown { qpn })?;
        queue_pair.connect(&remote, &self.config)
    }

    /// Forgets a queue pair. Requests that are not complete never will be.
    pub fn destroy_queue_pair(&mut self, qpn: QueuePairNumber) -> Result<(), QpError> {
        get(&self.slots, qpn).ok_or(QpError::Unknown { qpn })?;
        let slot = qpn.0 & SLOT_MASK;
        self.slots[slot as usize] = None;
        self.free_slots.push(slot);
        self.settle();
        Ok(())
    }

    /// Asks for `len` bytes at `remote_va` under `rkey`; they come with the completion. `remote_va` and `rkey` travel as they are:
    /// an index read has the key and 0 there.
    pub fn post_read(
        &mut self,
        now: Instant,
        qpn: QueuePairNumber,
        wr_id: u64,
        remote_va: u64,
        rkey: u32,
        len: u32,
    ) -> Result<(), PostError> {
        self.post(now, qpn, wr_id, remote_va, rkey, Request::Read { length: len })
    }

    /// Writes `data` to `remote_va` under `rkey`.
    pub fn post_write(
        &mut self,
        now: Instant,
        qpn: QueuePairNumber,
        wr_id: u64,
        remote_va: u64,
        rkey: u32,
        data: &[u8],
    ) -> Result<(), PostError> {
        self.post(now, qpn, wr_id, remote_va, rkey, Request::Write { data })
    }

    /// Compares the 64 bits at `remote_va` with `compare` and, if equal, stores `swap`. The completion says what was there.
    #[expect(clippy::too_many_arguments, reason = "the operands of the verb")]
    pub fn post_compare_swap(
        &mut self,
        now: Instant,
        qpn: QueuePairNumber,
        wr_id: u64,
        remote_va: u64,
        rkey: u32,
        compare: u64,
        swap: u64,
    ) -> Result<(), PostError> {
        self.post(now, qpn, wr_id, remote_va, rkey, Request::CompareSwap { compare, swap })
    }

    /// Adds `add` to the 64 bits at `remote_va`, wrapping. The completion says what was there.
    pub fn post_fetch_add(
        &mut self,
        now: Instant,
        qpn: QueuePairNumber,
        wr_id: u64,
        remote_va: u64,
        rkey: u32,
        add: u64,
    ) -> Result<(), PostError> {
        self.post(now, qpn, wr_id, remote_va, rkey, Request::FetchAdd { add })
    }

    fn post(
        &mut self,
        _now: Instant,
        qpn: QueuePairNumber,
        wr_id: u64,
        remote_va: u64,
        rkey: u32,
        request: Request<'_>,
    ) -> Result<(), PostError> {
        let queue_pair = get_mut(&mut self.slots, qpn).ok_or(PostError::Unknown { qpn })?;
        let state = queue_pair.state;
        match queue_pair.requester() {
            Some(requester) if state == QueuePairState::ReadyToSend => {
                requester.post(wr_id, remote_va, rkey, request, &mut self.sink)?;
            }
            _ => return Err(PostError::State { qpn, state }),
        }
        queue(queue_pair, &mut self.ready);
        Ok(())
    }

    /// Takes a received frame. What is foreign, damaged or not for a queue pair of this NIC is counted by reason and dropped.
    pub fn handle_frame(&mut self, now: Instant, frame: &[u8]) {
        self.sink.stats.frames_received += 1;
        self.sink.stats.bytes_received += frame.len() as u64;
        if let Err(reason) = self.try_handle(now, frame) {
            self.sink.stats.drop(reason);
        }
    }

    #[inline]
    fn try_handle(&mut self, now: Instant, frame: &[u8]) -> Result<(), DropReason> {
        let frame = Frame::parse(frame)
            .map_err(|error| if error.is_foreign() { DropReason::Foreign } else { DropReason::Malformed })?;
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
        let qpn = QueuePairNumber(frame.bth.destination_qp);
        let queue_pair = get_mut(&mut self.slots, qpn).ok_or(DropReason::UnknownQueuePair)?;
        let result = queue_pair.handle(now, &frame, &mut self.regions, &mut self.sink);
        queue(queue_pair, &mut self.ready);
        let (slot, deadline) = (qpn.0 & SLOT_MASK, queue_pair.deadline());
        self.timers.arm(slot, deadline, &mut queue_pair.timer_entry);
        self.settle();
        result
    }

    /// Writes the next frame to send into `out` (cleared first) and returns true, or returns false when there is none.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        while let Some(slot) = self.ready.pop_front() {
            let Some(queue_pair) = self.slots[slot as usize].as_deref_mut() else { continue };
            queue_pair.queued = false;
            let sent = queue_pair.transmit(now, &self.regions, &mut self.sink, out);
            queue(queue_pair, &mut self.ready);
            let deadline = queue_pair.deadline();
            self.timers.arm(slot, deadline, &mut queue_pair.timer_entry);
            if sent {
                self.sink.stats.frames_sent += 1;
                self.sink.stats.bytes_sent += out.len() as u64;
                return true;
            }
        }
        out.clear();
        false
    }

    /// The next request that ended.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.sink.completions.pop_front()
    }

    /// Gives a completion's buffer back, so that the next READ needs no new one.
    pub fn recycle(&mut self, data: Vec<u8>) {
        self.sink.buffers.give(data);
    }

    /// When [`handle_timeout`](Self::handle_timeout) has to be called at the latest; `None` when nothing is outstanding.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.earliest().map(|(at, _)| at)
    }

    /// Does what is due at `now`; calling it early does nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((at, slot)) = self.timers.earliest()
            && at <= now
        {
            if let Some(queue_pair) = self.slots[slot as usize].as_deref_mut() {
                queue_pair.handle_timeout(now, &mut self.sink);
                queue(queue_pair, &mut self.ready);
                let deadline = queue_pair.deadline();
                self.timers.arm(slot, deadline, &mut queue_pair.timer_entry);
            }
            self.settle();
            if self.timers.earliest() == Some((at, slot)) {
                break; // a timeout of zero is due again at once: leave it to the next call
            }
        }
    }

    fn settle(&mut self) {
        let slots = &mut self.slots;
        self.timers.settle(|slot, at| match slots.get_mut(slot as usize).and_then(Option::as_deref_mut) {
            Some(queue_pair) if queue_pair.timer_entry == Some(at) => {
                let deadline = queue_pair.deadline();
                if deadline == Some(at) {
                    return Entry::Exact;
                }
                queue_pair.timer_entry = deadline;
                deadline.map_or(Entry::Gone, Entry::Moved)
            }
            _ => Entry::Gone,
        });
    }
}

/// Finds a queue pair by its number: one index, one comparison.
#[inline]
fn get(slots: &[Option<Box<QueuePair>>], qpn: QueuePairNumber) -> Option<&QueuePair> {
    let queue_pair = slots.get((qpn.0 & SLOT_MASK) as usize)?.as_deref()?;
    (queue_pair.number == qpn).then_some(queue_pair)
}

#[inline]
fn get_mut(slots: &mut [Option<Box<QueuePair>>], qpn: QueuePairNumber) -> Option<&mut QueuePair> {
    let queue_pair = slots.get_mut((qpn.0 & SLOT_MASK) as usize)?.as_deref_mut()?;
    (queue_pair.number == qpn).then_some(queue_pair)
}

/// Lists the queue pair among those with something to send, if it has and is not.
#[inline]
fn queue(queue_pair: &mut QueuePair, ready: &mut VecDeque<Slot>) {
    if !queue_pair.queued && queue_pair.wants_to_transmit() {
        queue_pair.queued = true;
        ready.push_back(queue_pair.number.0 & SLOT_MASK);
    }
}
