//! A modelled cluster of RDMA cards: where requests, threads and bytes wait for each other.
//!
//! ```text
//!   thread ─[queue pair's lock]─[register's lock]─┐                 client's card          server's card
//!   thread ─[queue pair's lock]─[register's lock]─┴─doorbell─[requests]─[out]── wire ──[in]─[requests]─[bus]─ memory
//!      ▲                                                                                        └[bucket of an atomic]
//!      └──── poll ──[bus, and what the cache of work requests has lost]──[in]── wire ──[out]─────────────┘
//! ```
//!
//! * [`Calibration`]: the constants of a published cluster, each with its evidence.
//! * [`Resources`]: which threads share queue pairs and doorbell registers.
//! * [`Cluster`]: the model, as a [`Timing`] of a world.
//!
//! A machine of the world is a thread if [`Cluster::threads`] says so. Threads share a card. Any other machine stands for a process whose threads
//! never wait for each other: it posts one chain as quickly as a thread does, and many at once.

mod atomics;
mod calibration;
mod doorbell;
mod pcie;
mod places;
mod processor;
mod station;
mod usage;
mod wire;
mod wqe_cache;

use std::cell::RefCell;
use std::rc::Rc;

use fatbtree_verbs::time::{Duration, Instant};
use rand::RngExt as _;
use rustc_hash::FxHashMap;

use self::atomics::Buckets;
pub(crate) use self::calibration::Calibration;
use self::doorbell::Lock;
pub(crate) use self::doorbell::Resources;
use self::pcie::{Bus, COMPLETION, WORK_REQUEST};
use self::places::Places;
use self::station::Station;
pub(crate) use self::usage::Usage;
use self::wire::Link;
use fatbtree_sim::world::{Kind, MachineId, Posting, Random, Sending, Serving, Timing, Work};

/// The model of a cluster; clones are the same cluster, so that one can be a world's [`Timing`] and another be asked.
#[derive(Clone, Debug)]
pub(crate) struct Cluster(Rc<RefCell<State>>);

#[derive(Debug)]
struct State {
    calibration: Calibration,
    /// Switches between any two machines.
    switches: u32,
    cards: Vec<Card>,
    /// By number of the machine.
    seats: Vec<Option<Seat>>,
}

/// A machine's place at a card.
#[derive(Clone, Copy, Debug)]
struct Seat {
    card: usize,
    /// Number among the machines of the card.
    place: usize,
    /// Whether it is a thread; otherwise it is a process.
    is_thread: bool,
}

#[derive(Debug, Default)]
struct Card {
    sends: Station,
    serves: Station,
    bus: Bus,
    link: Link,
    buckets: Buckets,
    /// Time of a WRITE in the cache of work requests.
    writes: Station,
    places: Places,
    resources: Resources,
    /// All threads.
    seats: u32,
    /// Those that are at work, of which each slows the others.
    threads: u32,
    /// Machines that the threads are connected to, each with queue pairs of its own, in the order in which they were connected.
    peers: Vec<MachineId>,
    /// Times at which threads end what they do for themselves, by place.
    working: FxHashMap<usize, Instant>,
    registers: FxHashMap<u32, Lock>,
    /// By number of the peer and of the queue pair there.
    queue_pairs: FxHashMap<(u32, u32), Lock>,
    usage: Usage,
}

impl Cluster {
    /// A cluster of these constants, with so many switches between any two machines.
    #[must_use]
    pub(crate) fn new(calibration: Calibration, switches: u32) -> Self {
        Self(Rc::new(RefCell::new(State { calibration, switches, cards: Vec::new(), seats: Vec::new() })))
    }

    /// Makes machines the threads of one client, which share a card and, as `resources` says, queue pairs and registers.
    pub(crate) fn threads(&self, machines: impl IntoIterator<Item = MachineId>, resources: Resources) {
        let mut state = self.0.borrow_mut();
        let number = state.cards.len();
        let mut card = Card { resources, ..Card::default() };
        for machine in machines {
            *state.seat_mut(machine) = Some(Seat { card: number, place: card.places.add(), is_thread: true });
            card.seats += 1;
        }
        card.threads = card.seats;
        state.cards.push(card);
    }

    /// Gives a machine the card of another one: a server in loopback.
    pub(crate) fn share_card(&self, machine: MachineId, of: MachineId) {
        let mut state = self.0.borrow_mut();
        let card = state.card_of(of);
        let place = state.cards[card].places.add();
        *state.seat_mut(machine) = Some(Seat { card, place, is_thread: false });
    }

    /// Says how many of a client's threads are at work from now on: the fewer, the faster each of them is.
    pub(crate) fn set_working(&self, client: MachineId, threads: u32) {
        let mut state = self.0.borrow_mut();
        let card = state.card_of(client);
        state.cards[card].threads = threads;
    }

    /// Lets a thread do something for itself as soon as it can; returns the end. It posts nothing before that.
    pub(crate) fn work(&self, now: Instant, thread: MachineId, span: Duration) -> Instant {
        let mut state = self.0.borrow_mut();
        let Seat { card, place, .. } = state.seat(thread);
        let slowness = state.calibration.processor.slowness(state.cards[card].threads);
        let free = state.cards[card].working.entry(place).or_default();
        *free = now.max(*free) + span * slowness / 1_000;
        *free
    }

    /// Totals of a machine's card since the beginning.
    #[must_use]
    pub(crate) fn usage(&self, machine: MachineId) -> Usage {
        let mut state = self.0.borrow_mut();
        let card = state.card_of(machine);
        let card = &state.cards[card];
        Usage {
            bus_up: card.bus.up.busy().rounded(),
            bus_down: card.bus.down.busy().rounded(),
            busiest_bucket: card.buckets.busiest(),
            ..card.usage
        }
    }
}

impl Card {
    /// Number of a machine among those that the threads are connected to.
    fn peer(&mut self, machine: MachineId) -> u32 {
        let known = self.peers.iter().position(|&peer| peer == machine);
        known.unwrap_or_else(|| {
            self.peers.push(machine);
            self.peers.len() - 1
        }) as u32
    }
}

impl State {
    fn seat_mut(&mut self, machine: MachineId) -> &mut Option<Seat> {
        let at = machine.0 as usize;
        if self.seats.len() <= at {
            self.seats.resize(at + 1, None);
        }
        &mut self.seats[at]
    }

    fn seat(&mut self, machine: MachineId) -> Seat {
        if let Some(seat) = *self.seat_mut(machine) {
            return seat;
        }
        let mut card = Card::default();
        let seat = Seat { card: self.cards.len(), place: card.places.add(), is_thread: false };
        self.cards.push(card);
        *self.seat_mut(machine) = Some(seat);
        seat
    }

    fn card_of(&mut self, machine: MachineId) -> usize {
        self.seat(machine).card
    }

    fn vary(&self, span: Duration, random: &mut Random) -> Duration {
        let most = span.as_nanos() * self.calibration.jitter / 100;
        let nanos = span.as_nanos() - most;
        Duration::from_nanos(nanos + random.random_range(0..=2 * most))
    }
}

impl Timing for Cluster {
    fn begin(&mut self, now: Instant, posting: &Posting) -> Instant {
        self.0.borrow_mut().begin(now, posting)
    }

    fn post(&mut self, now: Instant, posting: &Posting, random: &mut Random) -> Instant {
        self.0.borrow_mut().post(now, posting, random)
    }

    fn send(&mut self, now: Instant, work: &Work, random: &mut Random) -> Sending {
        self.0.borrow_mut().send(now, work, random)
    }

    fn serve(&mut self, earliest: Instant, work: &Work, random: &mut Random) -> Serving {
        self.0.borrow_mut().serve(earliest, work, random)
    }

    fn answer(&mut self, now: Instant, work: &Work, random: &mut Random) -> Instant {
        self.0.borrow_mut().answer(now, work, random)
    }

    fn complete(&mut self, now: Instant, work: &Work) -> Instant {
        self.0.borrow_mut().complete(now, work)
    }

    fn freed(&mut self, machine: MachineId, requests: u32) {
        let mut state = self.0.borrow_mut();
        let Seat { card, place, .. } = state.seat(machine);
        state.cards[card].places.free(place, requests);
    }
}

impl State {
    /// A thread begins with a chain when it has done what it does for itself. From then on it is busy with the chain.
    fn begin(&mut self, now: Instant, posting: &Posting) -> Instant {
        let Seat { card, place, .. } = self.seat(posting.from);
        let span = self.span(card, posting.requests);
        let Some(free) = self.cards[card].working.get_mut(&place) else { return now };
        let begin = now.max(*free);
        *free = begin + span;
        begin
    }

    /// Time of a thread for a chain, if it waits for nothing.
    fn span(&self, card: usize, requests: u32) -> Duration {
        let processor = self.calibration.processor;
        processor.request * processor.slowness(self.cards[card].threads) / 1_000 * u64::from(requests)
    }

    /// A thread prepares its chain, and rings one doorbell for it.
    fn post(&mut self, now: Instant, posting: &Posting, random: &mut Random) -> Instant {
        let Seat { card, place, is_thread } = self.seat(posting.from);
        let processor = self.calibration.processor;
        self.cards[card].places.post(now, place, posting.requests);
        // Any number of threads post for a process at once.
        if !is_thread {
            return now;
        }
        let slowness = processor.slowness(self.cards[card].threads);
        let all = self.vary(processor.request * slowness / 1_000, random) * u64::from(posting.requests);
        let planned = now + self.span(card, posting.requests);
        let card = &mut self.cards[card];
        let peer = card.peer(posting.to);
        card.usage.doorbells += 1;
        let (thread, ring) = (place as u32, processor.ring * slowness / 1_000);
        let mut at = now + all.saturating_sub(ring);
        let mut holds_until = at;
        let queue_pair = card.resources.queue_pair(thread);
        let mut queue_pair = queue_pair.map(|pair| card.queue_pairs.entry((peer, pair)).or_default());
        if let Some(lock) = &mut queue_pair {
            let (threads, free) = lock.come(thread, at);
            card.usage.in_queue_pairs = card.usage.in_queue_pairs + (free - at);
            at = free;
            if threads > 1 {
                holds_until = at + doorbell::queue_pair_hold(threads);
            }
        }
        let register = card.resources.register(thread, peer, card.seats);
        let rung = match register.map(|register| card.registers.entry(register).or_default()) {
            Some(lock) => {
                let (threads, free) = lock.come(thread, at);
                card.usage.in_registers = card.usage.in_registers + (free - at);
                let hold = if threads > 1 { doorbell::register_hold(threads) } else { ring };
                lock.release(free + hold);
                free + hold
            }
            None => at + ring,
        };
        let rung = rung.max(holds_until);
        if let Some(lock) = queue_pair {
            lock.release(rung);
        }
        card.usage.posting = card.usage.posting + (rung - now);
        if let Some(free) = card.working.get_mut(&place) {
            // What it was given to do meanwhile is later by the wait.
            *free = (*free + (rung - planned)).max(rung);
        }
        rung
    }

    fn send(&mut self, now: Instant, work: &Work, random: &mut Random) -> Sending {
        let calibration = self.calibration;
        let (pcie, wire) = (calibration.pcie, calibration.wire);
        let Seat { card, is_thread, .. } = self.seat(work.from);
        let mut latency = if work.doorbell { calibration.doorbell } else { Duration::ZERO };
        if work.doorbell && !is_thread {
            latency = latency + calibration.processor.request;
        }
        if work.follows {
            latency = latency + calibration.follows;
        }
        let mut bytes = pcie.packed(WORK_REQUEST);
        if work.kind == Kind::Write && work.bytes > calibration.inline {
            bytes += pcie.packed(work.bytes.into());
            latency = latency + pcie.read;
        }
        let (latency, way) = (self.vary(latency, random), self.vary(wire.way(self.switches), random));
        let card = &mut self.cards[card];
        let fetched = card.bus.down.serve(now, pcie.time(bytes));
        let sent = card.sends.serve(now, calibration.request).max(fetched);
        let left = card.link.out.serve(sent, wire.request(work.kind, work.bytes)) + latency;
        Sending { left, passes: left + way / 2, arrives: left + way }
    }

    fn serve(&mut self, earliest: Instant, work: &Work, random: &mut Random) -> Serving {
        let calibration = self.calibration;
        let pcie = calibration.pcie;
        let number = self.card_of(work.to);
        let (read, write) = (self.vary(pcie.read, random), self.vary(pcie.write, random));
        let card = &mut self.cards[number];
        // One that waits for its queue pair does not hold up the others.
        let arrived = card.link.into.serve(work.arrived, calibration.wire.request(work.kind, work.bytes));
        let begins = card.serves.serve(arrived, calibration.request);
        let bytes = u64::from(work.bytes);
        match work.kind {
            Kind::Read => {
                card.bus.up.serve(arrived, pcie.time(pcie.packed(0)));
                let fetched = card.bus.down.serve(arrived, pcie.time(pcie.packed(bytes)));
                let begins = begins.max(earliest) + read / 2;
                let ends = begins.max(fetched + read / 2);
                Serving { begins, ends, answers: ends + read / 2 }
            }
            Kind::Write => {
                let sent = card.bus.up.serve(arrived, pcie.time(pcie.packed(bytes)));
                let begins = begins.max(earliest) + write;
                let ends = begins.max(sent + write);
                Serving { begins, ends, answers: ends }
            }
            Kind::Atomic => {
                let begins = begins.max(earliest);
                let on_card = work.device_memory;
                let span = if on_card { calibration.card_atomic } else { calibration.host_atomic };
                let ends = card.buckets.occupy(on_card, work.address, begins, span);
                if on_card {
                    return Serving { begins: ends, ends, answers: ends };
                }
                card.bus.up.serve(arrived, pcie.time(pcie.packed(0)));
                card.bus.down.serve(arrived, pcie.time(pcie.packed(bytes)));
                Serving { begins: ends, ends, answers: ends + read.saturating_sub(span) }
            }
        }
    }

    fn answer(&mut self, now: Instant, work: &Work, random: &mut Random) -> Instant {
        let calibration = self.calibration;
        let (pcie, wire) = (calibration.pcie, calibration.wire);
        let number = self.card_of(work.to);
        let way = self.vary(wire.way(self.switches), random);
        let card = &mut self.cards[number];
        // An atomic that changes nothing writes nothing back.
        if work.changed && !work.device_memory {
            card.bus.up.serve(now, pcie.time(pcie.packed(work.bytes.into())));
        }
        card.link.out.serve(now, wire.answer(work.kind, work.bytes)) + way
    }

    fn complete(&mut self, now: Instant, work: &Work) -> Instant {
        let calibration = self.calibration;
        let (pcie, processor) = (calibration.pcie, calibration.processor);
        let number = self.card_of(work.from);
        let card = &mut self.cards[number];
        let come = card.link.into.serve(now, calibration.wire.answer(work.kind, work.bytes));
        let misses = calibration.cache.misses(work.kind, card.places.used());
        let result = if work.kind == Kind::Write { 0 } else { pcie.packed(work.bytes.into()) };
        let completion = if work.signalled { pcie.packed(COMPLETION) } else { 0 };
        let mut span = pcie.time(result + completion);
        let mut written = come;
        if work.kind == Kind::Write {
            written = card.writes.serve(come, calibration.cache.stall(Kind::Write, misses));
        } else {
            span = span + calibration.cache.stall(work.kind, misses);
        }
        let fetched = (calibration.cache.miss_bytes as f64 * misses) as u64;
        card.bus.down.serve(come, pcie.time(fetched));
        written = card.bus.up.serve(come, span).max(written);
        card.usage.requests += 1;
        card.usage.missed += misses;
        card.usage.memory_bytes +=
            u64::from(work.bytes) + if work.signalled { COMPLETION } else { 0 } + fetched;
        let wake = processor.wake * processor.slowness(card.threads) / 1_000;
        written + calibration.completion + wake
    }
}

#[cfg(test)]
mod tests;
