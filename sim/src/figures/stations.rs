//! The simulator's table of times with stations: where requests wait for each other.
//!
//! ```text
//!   client's card            wire              server's card
//!   [requests]─[out link]────────────────────►[requests]─[bucket of an atomic]─ memory
//!                        ◄──────────[out link]
//! ```

use std::collections::BTreeMap;

use fatbtree_verbs::time::{Duration, Instant};
use rustc_hash::FxHashMap;

use crate::world::{Kind, MachineId, Random, Sending, ServiceTimes, Serving, Timing, Work};

/// Addresses whose lowest 12 bits are the same share a bucket (Sherman section 3.2.2, after Kalia et al., USENIX ATC 2016).
const BUCKET: u64 = 0xfff;

/// [`ServiceTimes`] with four places where a request waits for those before it. All durations are those of the table.
///
/// * A card takes one request after the other, [`request`](ServiceTimes::request) each. Requests that it sends and
///   requests that it answers wait in separate queues.
/// * A link carries one message after the other: what a client writes, and what a server answers READs with,
///   [`line`](ServiceTimes::line) for each 64 bytes. The other direction is not modelled: a switch's buffers take it.
/// * Atomics whose addresses fall into one bucket wait for each other: each for the memory's answer over PCIe
///   ([`pcie_read`](ServiceTimes::pcie_read)), or the card's own memory
///   ([`device_memory`](ServiceTimes::device_memory)). The write back over PCIe does not hold the bucket here,
///   because an atomic that changes nothing has none. Under contention most atomics are of that kind, so this favours
///   FG+.
#[derive(Debug)]
pub(super) struct Stations {
    table: ServiceTimes,
    cards: BTreeMap<MachineId, Card>,
}

/// Time at which each place of a card is free.
#[derive(Debug, Default)]
struct Card {
    sends: Instant,
    serves: Instant,
    out: Instant,
    buckets: FxHashMap<u64, Instant>,
}

impl Stations {
    pub(super) fn new(table: ServiceTimes) -> Self {
        Self { table, cards: BTreeMap::new() }
    }

    fn payload(&self, bytes: u32) -> Duration {
        self.table.line * u64::from(bytes.div_ceil(64))
    }
}

/// Occupies a place for `span` as soon as it is free, and returns the time at which that begins.
fn take(free: &mut Instant, from: Instant, span: Duration) -> Instant {
    let begins = from.max(*free);
    *free = begins + span;
    begins
}

impl Timing for Stations {
    fn send(&mut self, now: Instant, work: &Work, random: &mut Random) -> Sending {
        let payload = if work.kind == Kind::Write { self.payload(work.bytes) } else { Duration::ZERO };
        let card = self.cards.entry(work.from).or_default();
        let begins = take(&mut card.sends, now, self.table.request);
        let Sending { left, passes, arrives } = self.table.send(begins, work, random);
        let ready = Instant::from_nanos(left.as_nanos() - payload.as_nanos());
        let waits = take(&mut card.out, ready, payload) - ready;
        Sending { left: left + waits, passes: passes + waits, arrives: arrives + waits }
    }

    fn serve(&mut self, earliest: Instant, work: &Work, random: &mut Random) -> Serving {
        let card = self.cards.entry(work.to).or_default();
        // One that waits for its queue pair does not hold up the others.
        let begins = take(&mut card.serves, work.arrived, self.table.request).max(earliest);
        if work.kind != Kind::Atomic {
            return self.table.serve(begins, work, random);
        }
        // The two kinds of memory have units of their own.
        let place = (work.address & BUCKET) << 1 | u64::from(work.device_memory);
        let free = card.buckets.entry(place).or_default();
        let serving = self.table.serve(begins.max(*free), work, random);
        *free = serving.begins;
        serving
    }

    fn answer(&mut self, now: Instant, work: &Work, random: &mut Random) -> Instant {
        let payload = if work.kind == Kind::Read { self.payload(work.bytes) } else { Duration::ZERO };
        let card = self.cards.entry(work.to).or_default();
        let begins = take(&mut card.out, now, payload);
        self.table.answer(begins, work, random)
    }
}
