//! Operations on the packet: headers, counters, registers, calculations. One at a time.

use rand_xoshiro::rand_core::Rng;

use crate::bits::{load, load_field, scale};
use crate::code::{Op, Words};
use crate::compute::{compute, get, set};
use crate::machine::{NOWHERE, Packet, State};
use crate::output::DropReason;
use crate::program::Code;

/// Continuation of a packet after an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// The next operation.
    On,
    /// The next phase: the parser, or a control, has ended.
    EndPhase,
    /// None: the packet is dropped.
    Stop,
}

impl Packet {
    /// Runs an operation that does not itself choose where to continue.
    pub(crate) fn step(
        &mut self,
        slots: &mut Words,
        code: &Code,
        state: &mut State,
        frame: &[u8],
        op: &Op,
    ) -> Flow {
        match *op {
            Op::Extract { header } => {
                if !self.extract(slots, code, frame, usize::from(header)) {
                    parser_error(slots, code, code.packet_too_short);
                    return Flow::EndPhase;
                }
            }
            Op::Lookahead { dst, offset, width } => {
                let first = self.cursor * 8 + offset as usize;
                if first + usize::from(width) > frame.len() * 8 {
                    parser_error(slots, code, code.packet_too_short);
                    return Flow::EndPhase;
                }
                set(slots, dst, load(frame, first, width));
            }
            Op::Advance { a } => {
                let to = (self.cursor as u64).saturating_add(get(slots, a) / 8);
                if to > frame.len() as u64 {
                    parser_error(slots, code, code.packet_too_short);
                    return Flow::EndPhase;
                }
                self.cursor = to as usize;
            }
            Op::Verify { a, error } => {
                if get(slots, a) == 0 {
                    parser_error(slots, code, get(slots, error));
                    return Flow::EndPhase;
                }
            }
            Op::AddHeader { header } => {
                let layout = &code.headers[usize::from(header)];
                if get(slots, layout.valid) == 0 {
                    set(slots, layout.valid, 1);
                    self.length += layout.len as i64;
                    self.origins[usize::from(header) % 64] = NOWHERE;
                    for field in &layout.loads {
                        set(slots, field.slot, 0);
                    }
                }
            }
            Op::RemoveHeader { header } => {
                let layout = &code.headers[usize::from(header)];
                if get(slots, layout.valid) != 0 {
                    set(slots, layout.valid, 0);
                    self.length -= layout.len as i64;
                }
            }
            Op::CopyHeader { copy } => {
                let copy = &code.copies[usize::from(copy)];
                let (dst, src) = (usize::from(copy.dst), usize::from(copy.src));
                let valid = get(slots, code.headers[src].valid);
                set(slots, code.headers[dst].valid, valid);
                if valid != 0 {
                    for &(to, from) in &copy.fields {
                        set(slots, to, get(slots, from));
                    }
                    self.origins[dst % 64] = self.origins[src % 64];
                    self.touched |= 1 << (dst % 64);
                }
            }
            Op::Touch { headers } => self.touched |= headers,

            Op::Count { counter, index } => {
                let cells = &mut state.counters[usize::from(counter)];
                let at = usize::try_from(get(slots, index)).unwrap_or(usize::MAX);
                // BMv2 ignores indices outside the array, too.
                if let Some([packets, bytes]) = cells.get_mut(at) {
                    *packets += 1;
                    *bytes += frame.len() as u64;
                }
            }
            Op::ReadRegister { dst, register, index } => {
                let cells = &state.registers[usize::from(register)];
                let at = usize::try_from(get(slots, index)).unwrap_or(usize::MAX);
                set(slots, dst, cells.get(at).copied().unwrap_or(0));
            }
            Op::WriteRegister { register, index, a } => {
                let cells = &mut state.registers[usize::from(register)];
                let at = usize::try_from(get(slots, index)).unwrap_or(usize::MAX);
                if let Some(cell) = cells.get_mut(at) {
                    *cell = get(slots, a);
                }
            }
            Op::Hash { dst, calculation, base, size } => {
                let hash = self.calculate(slots, code, frame, calculation);
                let size = get(slots, size).max(1);
                let rest = if size.is_power_of_two() { hash & (size - 1) } else { hash % size };
                set(slots, dst, rest.wrapping_add(get(slots, base)));
            }
            Op::Calculate { dst, calculation } => {
                let value = self.calculate(slots, code, frame, calculation);
                set(slots, dst, value);
            }
            Op::Assert { a } => {
                if get(slots, a) == 0 {
                    self.fault = Some(DropReason::Assert);
                    return Flow::Stop;
                }
            }
            Op::Truncate { a } => self.truncate = usize::try_from(get(slots, a)).unwrap_or(usize::MAX),
            Op::Random { dst, low, high } => {
                let (low, high) = (get(slots, low), get(slots, high));
                // BMv2 leaves the field alone when the bounds are the wrong way round.
                if let Some(span) = high.checked_sub(low) {
                    set(slots, dst, low + scale(state.random.next_u64(), span));
                }
            }
            _ => compute(slots, op),
        }
        Flow::On
    }

    fn extract(&mut self, slots: &mut Words, code: &Code, frame: &[u8], header: usize) -> bool {
        let layout = &code.headers[header];
        let at = self.cursor;
        let Some(bytes) = frame.get(at..).filter(|rest| rest.len() >= layout.len) else {
            return false;
        };
        for field in &layout.loads {
            set(slots, field.slot, load_field(bytes, *field));
        }
        set(slots, layout.valid, 1);
        self.origins[header % 64] = at as u32;
        self.touched &= !(1 << (header % 64));
        self.cursor = at + layout.len;
        true
    }

    fn calculate(&mut self, slots: &Words, code: &Code, frame: &[u8], calculation: u16) -> u64 {
        let rest = &frame[self.cursor..];
        code.calculations[usize::from(calculation)].run(slots, rest, &mut self.scratch)
    }
}

fn parser_error(slots: &mut Words, code: &Code, error: u64) {
    if let Some(slot) = code.metadata.parser_error {
        set(slots, slot, error);
    }
}
