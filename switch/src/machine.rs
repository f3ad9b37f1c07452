//! The machine that runs lowered code on one packet at a time.

use crate::code::{FieldAt, Op, Pc, Slots};
use crate::entry::CounterData;
use crate::output::DropReason;
use crate::program::{Code, TableKind};
use crate::table::exact::Group;
use crate::table::lpm::Lpm;
use crate::table::range::Ranges;
use crate::table::scan::Scan;
use crate::table::store::Store;
use crate::table::{NONE, ones};

/// Rounds of loops (parser states and loops in actions) that one packet may take.
const BUDGET: u32 = 10_000;

/// Where a header that was not taken from the frame lies.
const NOWHERE: u32 = u32::MAX;

/// What a pipeline owns beside the machine: contents of tables, counters and registers.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) groups: Vec<Group>,
    pub(crate) tables: Vec<TableState>,
    pub(crate) counters: Vec<Vec<CounterData>>,
    pub(crate) registers: Vec<Vec<u64>>,
}

/// A table's contents.
#[derive(Debug)]
pub(crate) struct TableState {
    /// Action + 1 (0: none) and parameters.
    pub(crate) default: Vec<u64>,
    pub(crate) len: usize,
    pub(crate) body: Body,
    /// By row; empty when the table has no direct counter.
    pub(crate) counters: Vec<CounterData>,
}

/// Where a table's entries are.
#[derive(Debug)]
pub(crate) enum Body {
    Keyless,
    /// In the group's rows.
    Exact,
    Lpm(Store, Lpm),
    Range(Store, Ranges),
    Scan(Store, Scan),
}

/// The state of one packet.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) slots: Slots,
    /// Where each header lies in the frame, or [`NOWHERE`].
    origins: [u32; 64],
    /// Headers whose fields may differ from the frame.
    touched: u64,
    /// The parser's position in bytes.
    cursor: usize,
    /// Length of the packet with headers added and removed.
    pub(crate) length: i64,
    fuel: u32,
    hit: bool,
    /// Position of the action that ran last in its table's list.
    action: usize,
    return_to: Pc,
    pub(crate) fault: Option<DropReason>,
    truncate: usize,
    scratch: Vec<u8>,
    /// Where each header goes in the outgoing frame, while it is being made.
    placed: Vec<(u16, usize)>,
    random: u64,
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
        Machine {
            slots,
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
            placed: Vec::new(),
            random: 0,
        }
    }

    /// Keeps the packet's state as it is, to come back to it for each copy of a multicast.
    pub(crate) fn save(&self, code: &Code) -> Saved {
        let slots = (0..code.state as u16).map(|slot| self.slots.get(slot)).collect();
        let (touched, length, truncate) = (self.touched, self.length, self.truncate);
        Saved { slots, origins: self.origins, touched, length, truncate }
    }

    pub(crate) fn restore(&mut self, saved: &Saved) {
        for (slot, &value) in (0..).zip(&saved.slots) {
            self.slots.set(slot, value);
        }
        self.origins = saved.origins;
        self.touched = saved.touched;
        self.length = saved.length;
        self.truncate = saved.truncate;
    }

    pub(crate) fn seed(&mut self, seed: u64) {
        self.random = seed;
    }

    /// A new packet of this length.
    pub(crate) fn reset(&mut self, code: &Code, frame: &[u8]) {
        self.slots.reset(code.state);
        self.touched = 0;
        self.cursor = 0;
        self.length = frame.len() as i64;
        self.fuel = BUDGET;
        self.fault = None;
        self.truncate = usize::MAX;
    }

    /// Runs from `pc` to the end of the parser or control.
    #[inline(never)]
    pub(crate) fn run(&mut self, code: &Code, state: &mut State, frame: &[u8], pc: Pc) {
        let mut pc = pc as usize;
        let ops = code.ops.as_slice();
        while let Some(&op) = ops.get(pc) {
            pc += 1;
            match op {
                Op::Mov { dst, a, mask } => self.slots.set(dst, self.slots.get(a) & mask),
                Op::Add { dst, a, b, mask } => {
                    self.slots.set(dst, self.slots.get(a).wrapping_add(self.slots.get(b)) & mask);
                }
                Op::Sub { dst, a, b, mask } => {
                    self.slots.set(dst, self.slots.get(a).wrapping_sub(self.slots.get(b)) & mask);
                }
                Op::Mul { dst, a, b, mask } => {
                    self.slots.set(dst, self.slots.get(a).wrapping_mul(self.slots.get(b)) & mask);
                }
                Op::Div { dst, a, b, mask } => {
                    self.slots.set(dst, self.slots.get(a).checked_div(self.slots.get(b)).unwrap_or(0) & mask);
                }
                Op::Rem { dst, a, b, mask } => {
                    self.slots.set(dst, self.slots.get(a).checked_rem(self.slots.get(b)).unwrap_or(0) & mask);
                }
                Op::And { dst, a, b, mask } => {
                    self.slots.set(dst, self.slots.get(a) & self.slots.get(b) & mask)
                }
                Op::Or { dst, a, b, mask } => {
                    self.slots.set(dst, (self.slots.get(a) | self.slots.get(b)) & mask)
                }
                Op::Xor { dst, a, b, mask } => {
                    self.slots.set(dst, (self.slots.get(a) ^ self.slots.get(b)) & mask)
                }
                Op::Not { dst, a, mask } => self.slots.set(dst, !self.slots.get(a) & mask),
                Op::Shl { dst, a, b, mask } => {
                    self.slots.set(dst, shift_left(self.slots.get(a), self.slots.get(b)) & mask);
                }
                Op::Shr { dst, a, b, mask } => {
                    self.slots.set(dst, shift_right(self.slots.get(a), self.slots.get(b)) & mask);
                }
                Op::Sar { dst, a, b, mask } => {
                    let by = self.slots.get(b).min(63);
                    self.slots.set(dst, (self.slots.get(a) as i64 >> by) as u64 & mask);
                }
                Op::ShlBy { dst, a, by, mask } => {
                    self.slots.set(dst, shift_left(self.slots.get(a), u64::from(by)) & mask);
                }
                Op::ShrBy { dst, a, by, mask } => {
                    self.slots.set(dst, shift_right(self.slots.get(a), u64::from(by)) & mask);
                }
                Op::SignExtend { dst, a, width } => {
                    let unused = 64 - u32::from(width);
                    self.slots.set(dst, ((self.slots.get(a) << unused) as i64 >> unused) as u64);
                }
                Op::AddSaturating { dst, a, b, mask } => {
                    self.slots.set(dst, self.slots.get(a).saturating_add(self.slots.get(b)).min(mask));
                }
                Op::SubSaturating { dst, a, b } => {
                    self.slots.set(dst, self.slots.get(a).saturating_sub(self.slots.get(b)));
                }
                Op::Clamp { dst, a, width, signed } => {
                    self.slots.set(dst, clamp(self.slots.get(a) as i64, width, signed));
                }
                Op::Eq { dst, a, b } => {
                    self.slots.set(dst, u64::from(self.slots.get(a) == self.slots.get(b)))
                }
                Op::Ne { dst, a, b } => {
                    self.slots.set(dst, u64::from(self.slots.get(a) != self.slots.get(b)))
                }
                Op::Lt { dst, a, b } => self.slots.set(dst, u64::from(self.slots.get(a) < self.slots.get(b))),
                Op::Le { dst, a, b } => {
                    self.slots.set(dst, u64::from(self.slots.get(a) <= self.slots.get(b)))
                }
                Op::LtSigned { dst, a, b } => {
                    self.slots.set(dst, u64::from((self.slots.get(a) as i64) < self.slots.get(b) as i64));
                }
                Op::LeSigned { dst, a, b } => {
                    self.slots.set(dst, u64::from(self.slots.get(a) as i64 <= self.slots.get(b) as i64));
                }
                Op::Choose { dst, cond, a, b } => {
                    let from = if self.slots.get(cond) != 0 { a } else { b };
                    self.slots.set(dst, self.slots.get(from));
                }

                Op::Jump { to } => pc = to as usize,
                Op::Loop { to } => {
                    if !self.burn() {
                        return;
                    }
                    pc = to as usize;
                }
                Op::JumpIf { a, to } => {
                    if self.slots.get(a) != 0 {
                        pc = to as usize;
                    }
                }
                Op::JumpUnless { a, to } => {
                    if self.slots.get(a) == 0 {
                        pc = to as usize;
                    }
                }
                Op::JumpEq { a, b, to } => {
                    if self.slots.get(a) == self.slots.get(b) {
                        pc = to as usize;
                    }
                }
                Op::JumpNe { a, b, to } => {
                    if self.slots.get(a) != self.slots.get(b) {
                        pc = to as usize;
                    }
                }
                Op::JumpLt { a, b, to } => {
                    if self.slots.get(a) < self.slots.get(b) {
                        pc = to as usize;
                    }
                }
                Op::JumpLe { a, b, to } => {
                    if self.slots.get(a) <= self.slots.get(b) {
                        pc = to as usize;
                    }
                }
                Op::Apply { table } => {
                    if let Some(start) = self.apply(code, state, frame.len(), usize::from(table)) {
                        self.return_to = pc as Pc;
                        pc = start as usize;
                    }
                }
                Op::JumpMiss { to } => {
                    if !self.hit {
                        pc = to as usize;
                    }
                }
                Op::Switch { table } => {
                    let table = &code.tables[usize::from(table)];
                    pc = table.next.get(self.action).copied().unwrap_or(table.next_without_action) as usize;
                }
                Op::Return => pc = self.return_to as usize,
                Op::End => return,

                Op::Extract { header } => {
                    if !self.extract(code, frame, usize::from(header)) {
                        self.parser_error(code, code.packet_too_short);
                        return;
                    }
                }
                Op::Lookahead { dst, offset, width } => {
                    let first = self.cursor * 8 + offset as usize;
                    if first + usize::from(width) > frame.len() * 8 {
                        self.parser_error(code, code.packet_too_short);
                        return;
                    }
                    self.slots.set(dst, load(frame, first, width));
                }
                Op::Advance { a } => {
                    let to = self.cursor as u64 + self.slots.get(a) / 8;
                    if to > frame.len() as u64 {
                        self.parser_error(code, code.packet_too_short);
                        return;
                    }
                    self.cursor = to as usize;
                }
                Op::Verify { a, error } => {
                    if self.slots.get(a) == 0 {
                        self.parser_error(code, self.slots.get(error));
                        return;
                    }
                }
                Op::Select { select } => {
                    if !self.burn() {
                        return;
                    }
                    let select = &code.selects[usize::from(select)];
                    let found = select.key.first_match(&select.words, &[], &self.slots);
                    pc = found.map_or(select.otherwise, |at| select.to[at]) as usize;
                }
                Op::AddHeader { header } => {
                    let layout = &code.headers[usize::from(header)];
                    if self.slots.get(layout.valid) == 0 {
                        self.slots.set(layout.valid, 1);
                        self.length += layout.len as i64;
                        self.origins[usize::from(header) % 64] = NOWHERE;
                        for field in &layout.loads {
                            self.slots.set(field.slot, 0);
                        }
                    }
                }
                Op::RemoveHeader { header } => {
                    let layout = &code.headers[usize::from(header)];
                    if self.slots.get(layout.valid) != 0 {
                        self.slots.set(layout.valid, 0);
                        self.length -= layout.len as i64;
                    }
                }
                Op::CopyHeader { copy } => {
                    let copy = &code.copies[usize::from(copy)];
                    let (dst, src) = (usize::from(copy.dst), usize::from(copy.src));
                    let valid = self.slots.get(code.headers[src].valid);
                    self.slots.set(code.headers[dst].valid, valid);
                    if valid != 0 {
                        for &(to, from) in &copy.fields {
                            self.slots.set(to, self.slots.get(from));
                        }
                        self.origins[dst % 64] = self.origins[src % 64];
                        self.touched |= 1 << (dst % 64);
                    }
                }
                Op::Touch { headers } => self.touched |= headers,

                Op::Count { counter, index } => {
                    let cells = &mut state.counters[usize::from(counter)];
                    let at = usize::try_from(self.slots.get(index)).unwrap_or(usize::MAX);
                    // BMv2 ignores indices outside the array, too.
                    if let Some(cell) = cells.get_mut(at) {
                        cell.packets += 1;
                        cell.bytes += frame.len() as u64;
                    }
                }
                Op::ReadRegister { dst, register, index } => {
                    let cells = &state.registers[usize::from(register)];
                    let at = usize::try_from(self.slots.get(index)).unwrap_or(usize::MAX);
                    self.slots.set(dst, cells.get(at).copied().unwrap_or(0));
                }
                Op::WriteRegister { register, index, a } => {
                    let cells = &mut state.registers[usize::from(register)];
                    let at = usize::try_from(self.slots.get(index)).unwrap_or(usize::MAX);
                    if let Some(cell) = cells.get_mut(at) {
                        *cell = self.slots.get(a);
                    }
                }
                Op::Hash { dst, calculation, base, size } => {
                    let hash = self.calculate(code, frame, calculation);
                    let size = self.slots.get(size).max(1);
                    let rest = if size.is_power_of_two() { hash & (size - 1) } else { hash % size };
                    self.slots.set(dst, rest.wrapping_add(self.slots.get(base)));
                }
                Op::Calculate { dst, calculation } => {
                    let value = self.calculate(code, frame, calculation);
                    self.slots.set(dst, value);
                }
                Op::Assert { a } => {
                    if self.slots.get(a) == 0 {
                        self.fault = Some(DropReason::Assert);
                        return;
                    }
                }
                Op::Truncate { a } => {
                    self.truncate = usize::try_from(self.slots.get(a)).unwrap_or(usize::MAX)
                }
                Op::Random { dst, low, high } => {
                    let (low, high) = (self.slots.get(low), self.slots.get(high));
                    // BMv2 leaves the field alone when the bounds are the wrong way round.
                    if let Some(span) = high.checked_sub(low) {
                        let value = low + scale(self.next_random(), span);
                        self.slots.set(dst, value);
                    }
                }
            }
        }
    }

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

    fn parser_error(&mut self, code: &Code, error: u64) {
        if let Some(slot) = code.metadata.parser_error {
            self.slots.set(slot, error);
        }
    }

    /// Looks a table up and loads the parameters of what was found; returns where its action starts.
    #[inline]
    fn apply(&mut self, code: &Code, state: &mut State, bytes: usize, table: usize) -> Option<Pc> {
        let lowered = &code.tables[table];
        let contents = &mut state.tables[table];
        let (row, words) = match (&lowered.kind, &mut contents.body) {
            (TableKind::Exact { group, offset }, _) => {
                let at = usize::from(*group);
                let group = &mut state.groups[at];
                match group.look_up(&code.groups[at].parts, &self.slots) {
                    NONE => (NONE, contents.default.as_slice()),
                    row => match group.entry(row, *offset, lowered.words) {
                        [0, ..] => (NONE, contents.default.as_slice()),
                        words => (row, words),
                    },
                }
            }
            (TableKind::Lpm { parts }, Body::Lpm(store, lpm)) => match lpm.look_up(parts, &self.slots) {
                NONE => (NONE, contents.default.as_slice()),
                row => (row, store.words(row)),
            },
            (TableKind::Range { parts, slot, .. }, Body::Range(store, ranges)) => {
                match ranges.look_up(parts, *slot, &self.slots, store) {
                    NONE => (NONE, contents.default.as_slice()),
                    row => (row, store.words(row)),
                }
            }
            (TableKind::Scan { key }, Body::Scan(store, scan)) => match scan.look_up(key, &self.slots, store)
            {
                NONE => (NONE, contents.default.as_slice()),
                row => (row, store.words(row)),
            },
            _ => (NONE, contents.default.as_slice()),
        };
        self.hit = row != NONE;
        if self.hit
            && let Some(counter) = contents.counters.get_mut(row as usize)
        {
            counter.packets += 1;
            counter.bytes += bytes as u64;
        }
        let (&head, params) = words.split_first()?;
        self.action = (head as usize).wrapping_sub(1);
        let action = lowered.actions.get(self.action)?;
        for (at, &value) in (0..action.params).zip(params) {
            self.slots.set(action.param_base + at, value);
        }
        Some(action.start)
    }

    fn extract(&mut self, code: &Code, frame: &[u8], header: usize) -> bool {
        let layout = &code.headers[header];
        let at = self.cursor;
        let Some(bytes) = frame.get(at..).filter(|rest| rest.len() >= layout.len) else {
            return false;
        };
        for field in &layout.loads {
            self.slots.set(field.slot, load(bytes, field.bit as usize, field.width));
        }
        self.slots.set(layout.valid, 1);
        self.origins[header % 64] = at as u32;
        self.touched &= !(1 << (header % 64));
        self.cursor = at + layout.len;
        true
    }

    fn calculate(&mut self, code: &Code, frame: &[u8], calculation: u16) -> u64 {
        let rest = &frame[self.cursor..];
        code.calculations[usize::from(calculation)].run(&self.slots, rest, &mut self.scratch)
    }

    /// Appends the outgoing frame: valid headers in the deparser's order, then what the parser did not take.
    ///
    /// Headers that stand in the output as they stood in the frame, one behind the other, are copied in one go
    /// together with the payload; then fields that may have changed are written over the copy.
    pub(crate) fn deparse(&mut self, code: &Code, frame: &[u8], out: &mut Vec<u8>) {
        let begin = out.len();
        // A stretch of the frame that is still to be copied.
        let mut run = 0..0;
        self.placed.clear();
        let mut position = begin;
        for &header in &code.deparser {
            let layout = &code.headers[usize::from(header)];
            if self.slots.get(layout.valid) == 0 {
                continue;
            }
            let at = usize::from(header) % 64;
            let origin = self.origins[at];
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
            if origin == NOWHERE || self.touched & (1 << at) != 0 {
                self.placed.push((header, position));
            }
            position += layout.len;
        }
        if run.end == self.cursor && !run.is_empty() {
            run.end = frame.len();
            out.extend_from_slice(&frame[run]);
        } else {
            out.extend_from_slice(&frame[run]);
            out.extend_from_slice(&frame[self.cursor..]);
        }
        for &(header, position) in &self.placed {
            let layout = &code.headers[usize::from(header)];
            let bytes = &mut out[position..position + layout.len];
            for field in &layout.stores {
                store(bytes, *field, self.slots.get(field.slot));
            }
        }
        out.truncate(begin.saturating_add(self.truncate));
    }

    /// SplitMix64: enough for P4's `random`, and the same everywhere.
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Maps a random number to `0..=span`.
fn scale(random: u64, span: u64) -> u64 {
    match span.checked_add(1) {
        Some(count) => ((u128::from(random) * u128::from(count)) >> 64) as u64,
        None => random,
    }
}

fn shift_left(value: u64, by: u64) -> u64 {
    if by < 64 { value << by } else { 0 }
}

fn shift_right(value: u64, by: u64) -> u64 {
    if by < 64 { value >> by } else { 0 }
}

fn clamp(value: i64, width: u16, signed: bool) -> u64 {
    let value = i128::from(value);
    let (low, high) = match signed {
        true => (-(1i128 << (width - 1)), (1i128 << (width - 1)) - 1),
        false => (0, i128::from(ones(width))),
    };
    value.clamp(low, high) as u64
}

/// Reads `width` bits at bit `first` of `bytes`, which must reach that far.
#[inline]
fn load(bytes: &[u8], first: usize, width: u16) -> u64 {
    let (at, skip) = (first / 8, first as u32 % 8);
    let width = u32::from(width);
    if let Some(word) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>)
        && skip + width <= 64
    {
        return (u64::from_be_bytes(*word) << skip) >> (64 - width);
    }
    // Near the end of the frame, or spread over nine bytes.
    let count = (skip + width).div_ceil(8) as usize;
    let word = bytes[at..at + count].iter().fold(0u128, |word, &byte| word << 8 | u128::from(byte));
    (word >> (count as u32 * 8 - skip - width)) as u64 & ones(width as u16)
}

/// Writes a field's bits into its header.
#[inline]
fn store(header: &mut [u8], field: FieldAt, value: u64) {
    let (at, skip) = ((field.bit / 8) as usize, field.bit % 8);
    let width = u32::from(field.width);
    if skip == 0 && width % 8 == 0 {
        let count = (width / 8) as usize;
        header[at..at + count].copy_from_slice(&value.to_be_bytes()[8 - count..]);
        return;
    }
    let count = (skip + width).div_ceil(8) as usize;
    let unused = count as u32 * 8 - skip - width;
    let mask = u128::from(ones(field.width)) << unused;
    let bytes = &mut header[at..at + count];
    let word = bytes.iter().fold(0u128, |word, &byte| word << 8 | u128::from(byte));
    let word = (word & !mask) | (u128::from(value) << unused & mask);
    bytes.copy_from_slice(&word.to_be_bytes()[16 - count..]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Bit by bit, as the definition has it.
        #[test]
        fn fields_are_read_and_written_in_place(
            bytes in prop::collection::vec(any::<u8>(), 9..24),
            first in 0..64u32,
            width in 1..=64u16,
            value in any::<u64>(),
        ) {
            let end = first + u32::from(width);
            prop_assume!(end as usize <= bytes.len() * 8);
            let bit = |bytes: &[u8], at: u32| u64::from(bytes[at as usize / 8] >> (7 - at % 8) & 1);
            let expected = (first..end).fold(0, |v, at| v << 1 | bit(&bytes, at));
            prop_assert_eq!(load(&bytes, first as usize, width), expected);

            let mut written = bytes.clone();
            store(&mut written, FieldAt { slot: 0, bit: first, width }, value & ones(width));
            for at in 0..bytes.len() as u32 * 8 {
                let expected = if (first..end).contains(&at) { value >> (end - 1 - at) & 1 } else { bit(&bytes, at) };
                prop_assert_eq!(bit(&written, at), expected, "bit {}", at);
            }
        }
    }

    #[test]
    fn random_numbers_stay_in_their_span() {
        assert_eq!(scale(u64::MAX, 9), 9);
        assert_eq!(scale(0, 9), 0);
        assert_eq!(scale(u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn clamping_keeps_to_the_width() {
        assert_eq!(clamp(300, 8, false), 255);
        assert_eq!(clamp(-3, 8, false), 0);
        assert_eq!(clamp(-300, 8, true) as i64, -128);
        assert_eq!(clamp(300, 8, true), 127);
    }
}
