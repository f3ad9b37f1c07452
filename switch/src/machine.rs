//! The machine that runs lowered code on one packet at a time.

use rand_xoshiro::SplitMix64;

use crate::bits::store;
use crate::code::{ConstTable, HeaderCode, Op, Pc, Slots, Words};
use crate::compute::{get, set};
use crate::output::DropReason;
use crate::program::{Code, TableCode};
use crate::step::Flow;
use crate::table::contents::Contents;

/// Rounds of loops (parser states and loops in actions) that one packet may take.
const BUDGET: u32 = 10_000;

/// Origin of a header that was not taken from the frame.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// State of a pipeline beside the machine: contents of tables, counters and registers.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) tables: Vec<Contents>,
    /// Packets and bytes of each cell: zeroed pages, which take memory when they are used.
    pub(crate) counters: Vec<Vec<[u64; 2]>>,
    pub(crate) registers: Vec<Vec<u64>>,
    /// Source of P4's `random`: small and fast, and the same on every machine.
    pub(crate) random: SplitMix64,
}

/// A packet on its way, and the slots it is worked on in.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) slots: Slots,
    pub(crate) packet: Packet,
}

/// The state of one packet beside its fields.
#[derive(Debug)]
pub(crate) struct Packet {
    /// Offset of each header in the frame, or [`NOWHERE`].
    pub(crate) origins: [u32; 64],
    /// Headers whose fields may differ from the frame.
    pub(crate) touched: u64,
    /// The parser's position in bytes.
    pub(crate) cursor: usize,
    /// Length of the packet with headers added and removed.
    pub(crate) length: i64,
    pub(crate) fuel: u32,
    pub(crate) hit: bool,
    /// Position of the action that ran last in its table's list.
    pub(crate) action: usize,
    return_to: usize,
    pub(crate) fault: Option<DropReason>,
    pub(crate) truncate: usize,
    pub(crate) scratch: Vec<u8>,
}

/// A packet's state between ingress and egress.
#[derive(Debug)]
pub(crate) struct Saved {
    slots: Vec<u64>,
    origins: [u32; 64],
    touched: u64,
    length: i64,
    truncate: usize,
}

impl Machine {
    pub(crate) fn new(code: &Code) -> Self {
        let mut slots = Slots::default();
        for &(slot, value) in &code.constants {
            slots.set(slot, value);
        }
        let packet = Packet {
            origins: [NOWHERE; 64],
            touched: 0,
            cursor: 0,
            length: 0,
            fuel: BUDGET,
            hit: false,
            action: usize::MAX,
            return_to: 0,
            fault: None,
            truncate: usize::MAX,
            scratch: Vec::new(),
        };
        Machine { slots, packet }
    }

    /// Keeps the packet's state as it is, to come back to it for each copy of a multicast.
    pub(crate) fn save(&self, code: &Code) -> Saved {
        let slots = (0..code.state as u16).map(|slot| self.slots.get(slot)).collect();
        let Packet { origins, touched, length, truncate, .. } = self.packet;
        Saved { slots, origins, touched, length, truncate }
    }

    pub(crate) fn restore(&mut self, saved: &Saved) {
        for (slot, &value) in (0..).zip(&saved.slots) {
            self.slots.set(slot, value);
        }
        self.packet.origins = saved.origins;
        self.packet.touched = saved.touched;
        self.packet.length = saved.length;
        self.packet.truncate = saved.truncate;
    }

    /// A new packet of this length.
    pub(crate) fn reset(&mut self, code: &Code, frame: &[u8]) {
        self.slots.reset(code.state);
        let packet = &mut self.packet;
        packet.touched = 0;
        packet.cursor = 0;
        packet.length = frame.len() as i64;
        packet.fuel = BUDGET;
        packet.fault = None;
        packet.truncate = usize::MAX;
    }

    /// Runs the phases before a packet's port is known: parser, verify, ingress.
    pub(crate) fn run_before(&mut self, code: &Code, state: &mut State, frame: &[u8]) {
        self.run(code, state, frame, &code.before);
    }

    /// Runs the phases after a packet's port is known: egress and update.
    pub(crate) fn run_after(&mut self, code: &Code, state: &mut State, frame: &[u8]) {
        self.run(code, state, frame, &code.after);
    }

    /// Runs the parser, checksums and controls that begin at `phases`, one after the other.
    #[inline(never)]
    pub(crate) fn run(&mut self, code: &Code, state: &mut State, frame: &[u8], phases: &[Pc]) {
        let packet = &mut self.packet;
        let slots = self.slots.words_mut();
        let ops = code.ops.as_slice();
        let mut phases = phases.iter();
        let Some(&first) = phases.next() else { return };
        let mut pc = first as usize;
        // The end of one phase is the beginning of the next.
        macro_rules! end {
            () => {
                match phases.next() {
                    Some(&next) => {
                        pc = next as usize;
                        continue;
                    }
                    None => return,
                }
            };
        }
        while let Some(op) = ops.get(pc) {
            #[cfg(fuzzing)]
            crate::paths::ran(pc);
            pc += 1;
            match *op {
                Op::Jump { to } => pc = to as usize,
                Op::Loop { to } => {
                    if !packet.burn() {
                        return;
                    }
                    pc = to as usize;
                }
                Op::JumpIf { a, to } => {
                    if get(slots, a) != 0 {
                        pc = to as usize;
                    }
                }
                Op::JumpUnless { a, to } => {
                    if get(slots, a) == 0 {
                        pc = to as usize;
                    }
                }
                Op::JumpEq { a, b, to } => {
                    if get(slots, a) == get(slots, b) {
                        pc = to as usize;
                    }
                }
                Op::JumpNe { a, b, to } => {
                    if get(slots, a) != get(slots, b) {
                        pc = to as usize;
                    }
                }
                Op::JumpLt { a, b, to } => {
                    if get(slots, a) < get(slots, b) {
                        pc = to as usize;
                    }
                }
                Op::JumpLe { a, b, to } => {
                    if get(slots, a) <= get(slots, b) {
                        pc = to as usize;
                    }
                }
                Op::Apply { table } => {
                    if let Some(start) = packet.apply(slots, code, state, frame.len(), usize::from(table)) {
                        packet.return_to = pc;
                        pc = start as usize;
                    }
                }
                Op::ApplyInto { table, action, skip } => {
                    let start = packet.apply(slots, code, state, frame.len(), usize::from(table));
                    if start.is_none() || packet.action != usize::from(action) {
                        packet.return_to = skip as usize;
                        pc = start.unwrap_or(skip) as usize;
                    }
                }
                Op::ApplyConst { table } => {
                    if let Some(start) = packet.apply_const(slots, &code.const_tables[usize::from(table)]) {
                        packet.return_to = pc;
                        pc = start as usize;
                    }
                }
                Op::JumpMiss { to } => {
                    if !packet.hit {
                        pc = to as usize;
                    }
                }
                Op::Switch { table } => {
                    let table = &code.tables[usize::from(table)];
                    pc = table.next.get(packet.action).copied().unwrap_or(table.next_without_action) as usize;
                }
                Op::Return => pc = packet.return_to,
                Op::End => end!(),

                Op::Select { select } => {
                    if !packet.burn() {
                        return;
                    }
                    let select = &code.selects[usize::from(select)];
                    let found = select.key.first_match(&select.words, &[], slots);
                    pc = found.map_or(select.otherwise, |at| select.to[at]) as usize;
                }
                ref op => match packet.step(slots, code, state, frame, op) {
                    Flow::On => {}
                    Flow::EndPhase => end!(),
                    Flow::Stop => return,
                },
            }
        }
    }
}

impl Packet {
    fn burn(&mut self) -> bool {
        match self.fuel.checked_sub(1) {
            Some(fuel) => {
                self.fuel = fuel;
                true
            }
            None => {
                self.fault = Some(DropReason::Loop);
                false
            }
        }
    }

    /// Looks a table up and loads the parameters of what was found; returns where its action starts.
    pub(crate) fn apply(
        &mut self,
        slots: &mut Words,
        code: &Code,
        state: &mut State,
        bytes: usize,
        table: usize,
    ) -> Option<Pc> {
        let (hit, words) = state.tables[table].apply(&code.tables[table].kind, slots, bytes);
        self.hit = hit;
        self.call(slots, &code.tables[table], words)
    }

    /// Loads an entry's parameters; returns where its action starts.
    pub(crate) fn call(&mut self, slots: &mut Words, table: &TableCode, words: &[u64]) -> Option<Pc> {
        let (&head, params) = words.split_first()?;
        self.action = (head as usize).wrapping_sub(1);
        let action = table.actions.get(self.action)?;
        for (at, &value) in params.iter().take(usize::from(action.params)).enumerate() {
            set(slots, action.param_base.wrapping_add(at as u16), value);
        }
        Some(action.start)
    }

    /// [`apply`](Self::apply) for a table that is part of the program.
    #[inline]
    fn apply_const(&mut self, slots: &mut Words, table: &ConstTable) -> Option<Pc> {
        let (hit, call) = table.look_up(slots);
        self.hit = hit;
        let call = call?;
        self.action = call.position;
        // Values first: the slots of an action that has none begin where there is no number left to go on with.
        for (&value, at) in call.params.iter().zip(call.code.param_base..) {
            set(slots, at, value);
        }
        (call.position != usize::MAX).then_some(call.code.start)
    }
}

impl Machine {
    /// Appends the outgoing frame: valid headers in the deparser's order, then what the parser did not take.
    ///
    /// Headers that stand in the output as they stood in the frame, one after the other, are copied in one go
    /// together with the payload; then fields that may have changed are written over the copy.
    pub(crate) fn deparse(&self, code: &Code, frame: &[u8], out: &mut Vec<u8>) {
        let packet = &self.packet;
        let begin = out.len();
        // A stretch of the frame that is still to be copied.
        let mut run = 0..0;
        for (at, layout) in self.valid_headers(code) {
            let origin = packet.origins[at];
            let from = origin as usize;
            if origin == NOWHERE {
                out.extend_from_slice(&frame[run]);
                run = 0..0;
                out.resize(out.len() + layout.len, 0);
            } else if run.end == from && !run.is_empty() {
                run.end += layout.len;
            } else {
                out.extend_from_slice(&frame[run]);
                run = from..from + layout.len;
            }
        }
        if run.end == packet.cursor && !run.is_empty() {
            run.end = frame.len();
            out.extend_from_slice(&frame[run]);
        } else {
            out.extend_from_slice(&frame[run]);
            out.extend_from_slice(&frame[packet.cursor..]);
        }
        self.write_headers(code, &mut out[begin..]);
        out.truncate(begin.saturating_add(packet.truncate));
    }

    /// Makes the outgoing frame of the one that came in, in its own buffer. `false`, without any change, if more
    /// than one place between the headers differs.
    ///
    /// ```text
    /// came in     front | taken out | back and payload
    /// goes out    front | put in    | back and payload
    /// ```
    pub(crate) fn rewrite(&self, code: &Code, frame: &mut Vec<u8>) -> bool {
        let packet = &self.packet;
        let (mut front, mut put_in) = (0, 0);
        // The headers after: where the first one begins, where the last one ends.
        let mut back: Option<(usize, usize)> = None;
        for (at, layout) in self.valid_headers(code) {
            let origin = packet.origins[at];
            let (from, to) = (origin as usize, origin as usize + layout.len);
            match &mut back {
                None if origin == NOWHERE => put_in += layout.len,
                None if put_in == 0 && from == front => front = to,
                None if from >= front => back = Some((from, to)),
                Some((_, end)) if from == *end => *end = to,
                _ => return false,
            }
        }
        let (begin, end) = back.unwrap_or((packet.cursor, packet.cursor));
        if end != packet.cursor || begin < front {
            return false;
        }
        let (old, new) = (frame.len(), frame.len() + front + put_in - begin);
        if begin != front + put_in {
            frame.resize(old.max(new), 0);
            frame.copy_within(begin..old, front + put_in);
            frame.truncate(new);
        }
        frame[front..front + put_in].fill(0);
        self.write_headers(code, frame);
        frame.truncate(packet.truncate);
        true
    }

    /// Writes the fields that may differ from the frame that came in over the outgoing frame's headers, which are in their places.
    fn write_headers(&self, code: &Code, frame: &mut [u8]) {
        let mut position = 0;
        for (at, layout) in self.valid_headers(code) {
            if self.packet.touched & (1 << at) != 0 || self.packet.origins[at] == NOWHERE {
                let bytes = &mut frame[position..];
                layout.stores.iter().for_each(|field| store(bytes, *field, self.slots.get(field.slot)));
            }
            position += layout.len;
        }
    }

    /// The headers that go out, in order, each with its number.
    fn valid_headers<'a>(&'a self, code: &'a Code) -> impl Iterator<Item = (usize, &'a HeaderCode)> {
        let numbered = code.deparser.iter().map(|&at| (usize::from(at) % 64, &code.headers[usize::from(at)]));
        numbered.filter(|(_, layout)| self.slots.get(layout.valid) != 0)
    }
}
