//! The measuring loop: slots that do one operation after the other, and what they have done in a window.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use fatbtree_remote_memory::Attempts;
use fatbtree_sim::world::{Machine, Random, random};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_workload::measure::LatencyHistogram;

use crate::card::Usage;
use crate::column::{
    ATTEMPTS, BATCH, BUS, IN_QUEUE_PAIRS, IN_REGISTERS, MEMORY_BYTES, MISSED, MOPS, NAME, OFF, OPERATIONS,
    P50, P90, P99, PAPER, READ_TRIPS, SLOWEST, THREADS, WRITE_TRIPS,
};
use crate::table::Row;

/// An operation that has ended, with its round trips.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Done {
    Write(u32),
    Read(u32),
    /// A transaction that ended without a commit: it is counted, and its latency is not.
    Aborted,
}

/// What the tasks of all clients share.
#[derive(Default)]
pub(crate) struct Meter {
    measures: Cell<bool>,
    slots: RefCell<Vec<Slot>>,
    tally: RefCell<Tally>,
    wrong: RefCell<Option<String>>,
}

/// Operations of a client that follow each other.
struct Slot {
    client: usize,
    /// Begin of the present one; later than now while the slot rests.
    begun: Instant,
    done: u64,
}

/// What all slots have done in a window.
#[derive(Clone, Default)]
pub(crate) struct Tally {
    pub(crate) writes: u64,
    pub(crate) write_trips: u64,
    pub(crate) reads: u64,
    pub(crate) read_trips: u64,
    pub(crate) aborted: u64,
    /// Operations of each client.
    pub(crate) done: Vec<u64>,
    /// Operations that have not ended when the window does count with the time that they have taken so far.
    pub(crate) latencies: LatencyHistogram,
}

/// What was measured in a window.
pub(crate) struct Measured {
    pub(crate) tally: Tally,
    pub(crate) window: Duration,
    /// Of the first client's card.
    pub(crate) usage: Usage,
    /// Time for which the busiest bucket of atomics of all servers was busy.
    pub(crate) busiest_bucket: Duration,
    /// Attempts at locks or slots of all clients, since they began.
    pub(crate) attempts: Attempts,
}

impl Tally {
    /// Operations that did what they were for.
    pub(crate) fn operations(&self) -> u64 {
        self.writes + self.reads
    }

    /// A quantile of the latencies, in µs.
    pub(crate) fn us(&self, quantile: f64) -> f64 {
        self.latencies.quantile_ns(quantile) as f64 / 1_000.0
    }
}

impl Meter {
    /// Notes what must never be. It ends the run.
    pub(crate) fn fail(&self, why: String) {
        self.wrong.borrow_mut().get_or_insert(why);
    }

    /// Says what was wrong first.
    pub(crate) fn nothing_wrong(&self) -> Result<(), String> {
        self.wrong.take().map_or(Ok(()), Err)
    }

    /// A new slot of a client.
    fn slot(&self, client: usize, now: Instant) -> usize {
        let mut slots = self.slots.borrow_mut();
        slots.push(Slot { client, begun: now, done: 0 });
        slots.len() - 1
    }

    /// Notes when the present operation of a slot begins.
    pub(crate) fn begin(&self, slot: usize, at: Instant) {
        self.slots.borrow_mut()[slot].begun = at;
    }

    /// Keeps a client busy by slots which do one operation after the other. Each has a stream of random numbers, from `first` on. `begin`
    /// makes a slot's operations.
    pub(crate) fn occupy<O: AsyncFnMut() -> Result<Done, String> + 'static>(
        self: &Rc<Self>,
        (client, machine): (usize, &Machine),
        slots: u32,
        (seed, first): (u64, u64),
        begin: impl Fn(usize, Random) -> O,
    ) {
        for stream in 0..u64::from(slots) {
            let draw = random(seed, first + client as u64 * 1_000 + stream);
            let slot = self.slot(client, machine.now());
            drop(machine.spawn(Rc::clone(self).keep_busy(slot, machine.clone(), begin(slot, draw))));
        }
    }

    /// Does one operation after the other in a slot.
    async fn keep_busy(
        self: Rc<Self>,
        slot: usize,
        machine: Machine,
        mut operate: impl AsyncFnMut() -> Result<Done, String>,
    ) {
        loop {
            self.begin(slot, machine.now());
            match operate().await {
                Ok(done) => self.note(slot, machine.now(), done),
                Err(why) => return self.fail(why),
            }
        }
    }

    fn note(&self, slot: usize, now: Instant, done: Done) {
        if !self.measures.get() {
            return;
        }
        let (slot, tally) = (&mut self.slots.borrow_mut()[slot], &mut *self.tally.borrow_mut());
        let (count, sum, trips) = match done {
            Done::Write(trips) => (&mut tally.writes, &mut tally.write_trips, trips),
            Done::Read(trips) => (&mut tally.reads, &mut tally.read_trips, trips),
            Done::Aborted => return tally.aborted += 1,
        };
        *count += 1;
        *sum += u64::from(trips);
        slot.done += 1;
        tally.latencies.record((now - slot.begun).as_nanos());
    }

    /// Counts from now on.
    pub(crate) fn begin_window(&self) {
        self.measures.set(true);
    }

    /// What so many clients have done by now.
    ///
    /// # Errors
    /// What was wrong first.
    pub(crate) fn end_window(&self, clients: usize, now: Instant) -> Result<Tally, String> {
        self.nothing_wrong()?;
        let (slots, mut tally) = (self.slots.borrow(), self.tally.take());
        tally.done = vec![0; clients];
        for slot in slots.iter() {
            tally.done[slot.client] += slot.done;
            // Those that rest have none under way.
            if slot.begun <= now {
                tally.latencies.record((now - slot.begun).as_nanos());
            }
        }
        Ok(tally)
    }
}

impl Measured {
    /// Millions of so many operations or requests in a second.
    pub(crate) fn mops(&self, operations: u64) -> f64 {
        operations as f64 * 1e3 / self.window.as_nanos() as f64
    }

    /// Millions of requests of the first client in a second.
    pub(crate) fn request_mops(&self) -> f64 {
        self.mops(self.usage.requests)
    }

    /// What all indexes have in common.
    pub(crate) fn of_operations(&self, name: &str) -> Row {
        let tally = &self.tally;
        Row::default().saying(NAME, name).with([
            (OPERATIONS, tally.operations() as f64),
            (MOPS, self.mops(tally.operations())),
            (P50, tally.us(0.5)),
            (P90, tally.us(0.9)),
            (P99, tally.us(0.99)),
            (WRITE_TRIPS, per(tally.write_trips, tally.writes)),
            (READ_TRIPS, per(tally.read_trips, tally.reads)),
        ])
    }

    /// What so many threads and their card have done and spent, with the paper's millions of operations a second; 0: it has none.
    pub(crate) fn of_threads(&self, name: &str, threads: u32, batch: u32, mops: f64, paper: f64) -> Row {
        let Self { usage, window, .. } = self;
        let requests = usage.requests.max(1) as f64;
        let of_thread = |span| percent(span, *window) / f64::from(threads);
        let off = (paper > 0.0).then(|| (OFF, 100.0 * (mops / paper - 1.0)));
        Row::default().saying(NAME, name).with(off).with([
            (THREADS, threads.into()),
            (BATCH, batch.into()),
            (MOPS, mops),
            (PAPER, paper),
            (SLOWEST, slowest_percent(&self.tally.done)),
            (ATTEMPTS, self.attempts.quantile(0.999) as f64),
            (IN_REGISTERS, of_thread(usage.in_registers)),
            (IN_QUEUE_PAIRS, of_thread(usage.in_queue_pairs)),
            (BUS, percent(usage.bus_up, *window)),
            (MISSED, 100.0 * usage.missed / requests),
            (MEMORY_BYTES, usage.memory_bytes as f64 / requests),
        ])
    }
}

/// A sum by what it is of; 0 of nothing.
pub(crate) fn per(sum: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { sum as f64 / of as f64 }
}

/// Part of a window, in percent.
pub(crate) fn percent(span: Duration, window: Duration) -> f64 {
    100.0 * span.as_nanos() as f64 / window.as_nanos() as f64
}

/// The least of some threads' counts, in percent of their mean. 100 is fair; 0 is starvation.
fn slowest_percent(counts: &[u64]) -> f64 {
    let (least, sum) = (counts.iter().copied().min().unwrap_or(0), counts.iter().sum::<u64>());
    100.0 * least as f64 * counts.len() as f64 / sum.max(1) as f64
}
