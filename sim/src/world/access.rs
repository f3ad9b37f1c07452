//! Accesses to memory, line by line over virtual time.
//!
//! ```text
//!   WRITE  |--2----0--1---3--|                each line at its own moment between begin and end
//!   READ        |-0--3-1----2--|              sees lines 0 and 1 new, 2 and 3 … as their moments fall
//!   READ                           |------|   nothing else is near: read whole at its end
//! ```
//!
//! The moments follow from a number that each access draws when it begins. They are only worked out when two accesses
//! to the same bytes overlap in time and one of them writes. Then each of the shared lines becomes an event.
//! Otherwise no machine can tell when a line was touched, and all are touched at the end.

use std::sync::Arc;

use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{Memory, Operation};
use rand::{Rng, SeedableRng};
use rand_xoshiro::SplitMix64;

use super::MachineId;
use super::events::{Event, Events, Place};
use super::options::Tearing;
use super::pool::Pool;

/// A memory that accesses go to.
#[derive(Debug)]
pub(super) struct Accessed {
    pub(super) memory: Arc<Memory>,
    /// The accesses that have not ended.
    open: Vec<Open>,
}

/// Data of an access that decide whether another one meets it. These lie side by side, because each new
/// access is compared with all of them.
#[derive(Clone, Copy, Debug)]
struct Open {
    number: u32,
    writes: bool,
    /// Bytes.
    from: u64,
    to: u64,
    begins: Instant,
    ends: Instant,
}

impl Open {
    /// The bytes that both touch, where one of them writes and their times overlap. `self` is the older one.
    fn meets(&self, other: &Open) -> Option<(u64, u64)> {
        // One that ends at the very moment when a later one begins is over: its place is earlier.
        let apart_in_time = self.ends <= other.begins || other.ends < self.begins;
        let (from, to) = (self.from.max(other.from), self.to.min(other.to));
        (!apart_in_time && from < to && (self.writes || other.writes)).then_some((from, to))
    }
}

/// Effect of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Deed {
    /// No access: an answer only.
    #[default]
    None,
    Read,
    Write,
    /// An atomic, executed at one moment, the end.
    Atomic(Operation<'static>),
}

/// Reasons for which no answer comes, or another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Verdict {
    #[default]
    Good,
    /// The responder refuses.
    Refused(fatbtree_verbs::Failure),
    /// The request is not complete, or the responder is gone.
    Silent,
}

/// One READ, WRITE or atomic at a responder, from its beginning until its answer has arrived.
#[derive(Debug, Default)]
pub(super) struct Access {
    /// The requester's queue pair, and which of its requests it is.
    pub(super) requester: u32,
    pub(super) number: u64,
    pub(super) responder: u32,
    /// The machine that carries it out.
    pub(super) host: MachineId,
    pub(super) rkey: u32,
    pub(super) on_device: bool,
    pub(super) deed: Deed,
    pub(super) verdict: Verdict,
    memory: usize,
    offset: u64,
    /// Bytes of 64 or 8 that are touched at once.
    unit: u64,
    /// The bytes read, or to be written.
    pub(super) data: Vec<u8>,
    /// Offset of `data` in its message.
    pub(super) from: u32,
    /// Value that an atomic found.
    pub(super) found: u64,
    begins: Instant,
    ends: Instant,
    pub(super) answers: Instant,
    order: u64,
    /// The number that all moments follow from.
    draw: u64,
    any_order: bool,
    at_once: bool,
    /// The lines' moments, once they were worked out.
    touches: Vec<Touch>,
    open: bool,
    /// Whether the access has ended, and its answer waits for those of earlier requests.
    pub(super) ended: bool,
}

#[derive(Clone, Copy, Debug)]
struct Touch {
    at: Instant,
    state: TouchState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TouchState {
    /// Touched at the end, or when it matters.
    Open,
    /// Touched by an event.
    Scheduled,
    Done,
}

/// Fate of accesses under way when they are ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// The accesses are finished at once. A card that has accepted a packet writes it to its end, even if the queue
    /// pair breaks. It checks a packet whole before it writes the first byte of it, and hands all of it to the bus.
    Finish,
    /// Lines whose moment has passed stay touched, the others are never touched: the card itself is gone.
    Break,
}

/// Time and manner in which an access is to touch memory.
pub(super) struct Plan {
    pub(super) memory: usize,
    pub(super) offset: u64,
    pub(super) unit: u64,
    pub(super) begins: Instant,
    pub(super) ends: Instant,
    pub(super) draw: u64,
}

/// All memories and the accesses to them.
#[derive(Debug, Default)]
pub(super) struct Accesses {
    pub(super) list: Pool<Access>,
    memories: Vec<Accessed>,
    pub(super) every_touch_an_event: bool,
    /// Accesses that fell into the same time and bytes as another, one of them writing.
    pub(super) overlapped: u64,
}

impl Access {
    fn len(&self) -> u64 {
        match self.deed {
            Deed::Atomic(_) => 8,
            Deed::None | Deed::Read | Deed::Write => self.data.len() as u64,
        }
    }

    /// Whether memory may still be touched.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    fn writes(&self) -> bool {
        matches!(self.deed, Deed::Write | Deed::Atomic(_))
    }

    fn end(&self) -> u64 {
        self.offset + self.len()
    }

    /// Units that the bytes from `from` to `to` lie in, counted from the access's first.
    fn units(&self, from: u64, to: u64) -> std::ops::Range<usize> {
        let first = self.offset / self.unit;
        (from / self.unit - first) as usize..(to.div_ceil(self.unit) - first) as usize
    }

    /// The bytes of a unit, counted from the access's first byte.
    fn bytes_of(&self, unit: usize) -> std::ops::Range<usize> {
        let start = (self.offset / self.unit + unit as u64) * self.unit;
        let (from, to) = (start.max(self.offset), (start + self.unit).min(self.end()));
        (from - self.offset) as usize..(to - self.offset) as usize
    }

    fn place(&self, at: Instant) -> Place {
        Place { at, order: self.order }
    }

    /// Works out when each line is touched.
    fn work_out(&mut self) {
        if !self.touches.is_empty() {
            return;
        }
        let count = self.units(self.offset, self.end()).len() as u64;
        let span = (self.ends - self.begins).as_nanos();
        let mut draw = SplitMix64::seed_from_u64(self.draw);
        let moment = |place: u64, draw: &mut SplitMix64| {
            // The `place`th of `count` equal parts of the time.
            let within = span * place / count..=span * (place + 1) / count;
            let width = within.end() - within.start();
            self.begins + fatbtree_verbs::time::Duration::from_nanos(within.start() + below(draw, width + 1))
        };
        let touch = |at| Touch { at, state: TouchState::Open };
        if self.at_once {
            self.touches.extend((0..count).map(|_| touch(self.ends)));
            return;
        }
        self.touches.extend((0..count).map(|place| touch(moment(place, &mut draw))));
        if self.any_order {
            for last in (1..count).rev() {
                self.touches.swap(last as usize, below(&mut draw, last + 1) as usize);
            }
        }
    }

    /// Touches some bytes now.
    fn touch(&mut self, memory: &Memory, bytes: std::ops::Range<usize>) {
        const INSIDE: &str = "bounds were checked when the access began";
        let offset = self.offset + bytes.start as u64;
        match self.deed {
            Deed::None => {}
            Deed::Read => memory.read(offset, &mut self.data[bytes]).expect(INSIDE),
            Deed::Write => memory.write(offset, &self.data[bytes]).expect(INSIDE),
            Deed::Atomic(operation) => {
                let change = |found| operation.apply(found).unwrap_or(found);
                self.found = memory.update(offset, change).expect(INSIDE);
            }
        }
    }
}

impl Accesses {
    /// The number of a memory; the same memory has one number, however often it is registered.
    pub(super) fn memory(&mut self, memory: &Arc<Memory>) -> usize {
        let known = self.memories.iter().position(|known| Arc::ptr_eq(&known.memory, memory));
        known.unwrap_or_else(|| {
            self.memories.push(Accessed { memory: Arc::clone(memory), open: Vec::new() });
            self.memories.len() - 1
        })
    }

    /// A memory by its number.
    pub(super) fn contents(&self, memory: usize) -> &Memory {
        &self.memories[memory].memory
    }

    pub(super) fn len_of(&self, memory: usize) -> u64 {
        self.memories[memory].memory.len()
    }

    /// Begins an access that was taken from the list and has its deed, its data and its answer's address. `now` is the place of
    /// what happens now.
    pub(super) fn begin(
        &mut self,
        number: u32,
        plan: &Plan,
        tearing: &Tearing,
        now: Place,
        events: &mut Events,
    ) {
        let place = events.place(plan.ends);
        let access = &mut self.list[number];
        (access.memory, access.offset, access.unit) = (plan.memory, plan.offset, plan.unit);
        (access.begins, access.ends, access.order) = (plan.begins, plan.ends, place.order);
        access.draw = plan.draw;
        let mut draw = SplitMix64::seed_from_u64(plan.draw ^ 0x5851_f42d);
        access.any_order = below(&mut draw, 10_000) < u64::from(tearing.any_order);
        access.at_once = tearing.at_once;
        access.touches.clear();
        access.open = true;
        events.push_at(place, Event::End { access: number });
        if access.len() == 0 {
            return;
        }
        let this = Open {
            number,
            writes: access.writes(),
            from: access.offset,
            to: access.end(),
            begins: access.begins,
            ends: access.ends,
        };
        let mut met = false;
        let mut open = std::mem::take(&mut self.memories[plan.memory].open);
        for other in &open {
            if let Some((from, to)) = other.meets(&this) {
                met = true;
                self.schedule(other.number, from, to, now, events);
                self.schedule(number, from, to, now, events);
            }
        }
        open.push(this);
        self.memories[plan.memory].open = open;
        self.overlapped += u64::from(met);
        if self.every_touch_an_event {
            self.schedule(number, this.from, this.to, now, events);
        }
    }

    /// Makes events of the touches of some bytes; those whose moment has passed are made up for.
    fn schedule(&mut self, number: u32, from: u64, to: u64, now: Place, events: &mut Events) {
        let Self { list, memories, .. } = self;
        let access = &mut list[number];
        access.work_out();
        for unit in access.units(from, to) {
            let Touch { at, state } = access.touches[unit];
            if state != TouchState::Open {
                continue;
            }
            let place = access.place(at);
            access.touches[unit].state = if place <= now {
                let bytes = access.bytes_of(unit);
                access.touch(&memories[access.memory].memory, bytes);
                TouchState::Done
            } else {
                events.push_at(place, Event::Touch { access: number, unit: unit as u32 });
                TouchState::Scheduled
            };
        }
    }

    /// An event of [`schedule`](Self::schedule) has come.
    pub(super) fn touch(&mut self, number: u32, unit: u32) {
        let access = &mut self.list[number];
        if access.open {
            let bytes = access.bytes_of(unit as usize);
            access.touches[unit as usize].state = TouchState::Done;
            access.touch(&self.memories[access.memory].memory, bytes);
        }
    }

    /// The end of an access: touches what is left. Nothing happens if it was cut off before.
    pub(super) fn end(&mut self, number: u32) {
        let access = &mut self.list[number];
        if !std::mem::take(&mut access.open) {
            return;
        }
        let accessed = &mut self.memories[access.memory];
        if access.touches.is_empty() {
            if access.len() > 0 {
                access.touch(&accessed.memory, 0..access.len() as usize);
            }
        } else {
            for unit in 0..access.touches.len() {
                if access.touches[unit].state == TouchState::Open {
                    let bytes = access.bytes_of(unit);
                    access.touch(&accessed.memory, bytes);
                }
            }
        }
        if let Some(at) = accessed.open.iter().position(|open| open.number == number) {
            accessed.open.swap_remove(at);
        }
    }

    /// Brings memory to its present state for its owner, which reads or writes it past the network.
    pub(super) fn settle(&mut self, now: Place) {
        for memory in 0..self.memories.len() {
            let open = std::mem::take(&mut self.memories[memory].open);
            open.iter().for_each(|open| self.catch_up(open.number, now));
            self.memories[memory].open = open;
        }
    }

    /// Touches every line whose moment has passed.
    fn catch_up(&mut self, number: u32, now: Place) {
        let Self { list, memories, .. } = self;
        let access = &mut list[number];
        if access.place(access.begins) > now || access.len() == 0 {
            return;
        }
        access.work_out();
        for unit in 0..access.touches.len() {
            let Touch { at, state } = access.touches[unit];
            // One that is scheduled has its own event, which has been if its place is earlier.
            if state == TouchState::Open && access.place(at) <= now {
                let bytes = access.bytes_of(unit);
                access.touch(&memories[access.memory].memory, bytes);
                access.touches[unit].state = TouchState::Done;
            }
        }
    }

    /// Touches every line that was not touched yet, now.
    fn finish(&mut self, number: u32) {
        let Self { list, memories, .. } = self;
        let access = &mut list[number];
        access.work_out();
        for unit in 0..access.touches.len() {
            if access.touches[unit].state != TouchState::Done {
                let bytes = access.bytes_of(unit);
                access.touch(&memories[access.memory].memory, bytes);
                access.touches[unit].state = TouchState::Done;
            }
        }
    }

    /// Ends the open accesses that `which` holds for, before their time. Their answers are as `verdict` says.
    pub(super) fn cut_off(
        &mut self,
        now: Place,
        verdict: Verdict,
        begun: Begun,
        which: impl Fn(&Access) -> bool,
    ) {
        for memory in 0..self.memories.len() {
            let mut open = std::mem::take(&mut self.memories[memory].open);
            open.retain(|&Open { number, begins, .. }| {
                if !which(&self.list[number]) {
                    return true;
                }
                self.catch_up(number, now);
                if begun == Begun::Finish && begins <= now.at {
                    self.finish(number);
                }
                let access = &mut self.list[number];
                (access.open, access.verdict) = (false, verdict);
                false
            });
            self.memories[memory].open = open;
        }
    }
}

/// Draws a number below a bound, from a generator that is made for a few draws.
fn below(draw: &mut SplitMix64, bound: u64) -> u64 {
    ((u128::from(draw.next_u64()) * u128::from(bound)) >> 64) as u64
}
