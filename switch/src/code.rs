//! The compact form that programs are lowered to: three-address operations over one flat array of `u64`.
//!
//! ```text
//! slots   0 ........ state ........ | .... free .... | temporaries, parameters, constants ... 65535
//!         fields and validity bits,                    constants are written once, when the
//!         zero at the start of a packet                pipeline is made
//! ```
//!
//! Every value is the field's bits, zero-extended; masks are part of the operation that computes it.
//! Parser, checksums, ingress and egress are one array of [`Op`]s with four entry points. There are no
//! names, no lookups by name and no allocation left in it.

use crate::table::scan::{ScanKey, first_masked};
use crate::table::{KeyPart, ones};

/// Index of a slot.
pub(crate) type Slot = u16;

/// Number of slots: as many as a [`Slot`] can name, so that indexing needs no check. Only the pages in use are
/// ever touched.
pub(crate) const SLOTS: usize = 1 << 16;

/// The flat array.
pub(crate) type Words = [u64; SLOTS];

/// The flat array, owned.
#[derive(Debug, Clone)]
pub(crate) struct Slots(Box<Words>);

impl Default for Slots {
    fn default() -> Self {
        let zeroed = vec![0u64; SLOTS].into_boxed_slice();
        Slots(zeroed.try_into().expect("the length is the array's"))
    }
}

impl Slots {
    pub(crate) fn words(&self) -> &Words {
        &self.0
    }

    pub(crate) fn words_mut(&mut self) -> &mut Words {
        &mut self.0
    }

    pub(crate) fn get(&self, slot: Slot) -> u64 {
        self.words()[usize::from(slot)]
    }

    pub(crate) fn set(&mut self, slot: Slot, value: u64) {
        self.0[usize::from(slot)] = value;
    }

    /// Zeroes the state, slots 0 to `len`.
    #[inline]
    pub(crate) fn reset(&mut self, len: usize) {
        // In pieces that the C library zeroes with wide stores; for more it falls back on a slower instruction.
        for piece in self.0[..len].chunks_mut(128) {
            piece.fill(0);
        }
    }
}

/// Position in the code. While code is being made, jump targets are label numbers.
pub(crate) type Pc = u32;

/// One operation. `dst`, `a`, `b` are slots; results are cut by `mask`, or to `width` bits.
///
/// Slices, concatenations and insertions of bits, which P4 programs are full of, are not computed step by step:
/// an operand `rot`, `mask` is the slot's value rotated right and masked, which is any shifted slice of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[rustfmt::skip] // a line for each operation
pub(crate) enum Op {
    Mov { dst: Slot, a: Slot },
    Slice { dst: Slot, a: Slot, rot: u8, mask: u64 },
    /// The slice of the complement.
    SliceNot { dst: Slot, a: Slot, rot: u8, mask: u64 },
    /// Bytes in reverse, shifted right.
    Swap { dst: Slot, a: Slot, shift: u8 },
    /// Two slices side by side, the second one of the complement if `b_not`.
    Join { dst: Slot, a: Slot, b: Slot, a_rot: u8, b_rot: u8, b_not: bool, a_mask: u64, b_mask: u64 },
    XorSlices { dst: Slot, a: Slot, b: Slot, a_rot: u8, b_rot: u8, a_mask: u64, b_mask: u64 },
    AddSlices { dst: Slot, a: Slot, b: Slot, a_rot: u8, b_rot: u8, width: u8, a_mask: u64, b_mask: u64 },
    SubSlices { dst: Slot, a: Slot, b: Slot, a_rot: u8, b_rot: u8, width: u8, a_mask: u64, b_mask: u64 },
    Add { dst: Slot, a: Slot, b: Slot, mask: u64 },
    Sub { dst: Slot, a: Slot, b: Slot, mask: u64 },
    Mul { dst: Slot, a: Slot, b: Slot, mask: u64 },
    /// Division by zero gives 0 (P4 leaves it undefined, BMv2 aborts).
    Div { dst: Slot, a: Slot, b: Slot, mask: u64 },
    /// Remainder by zero gives 0.
    Rem { dst: Slot, a: Slot, b: Slot, mask: u64 },
    And { dst: Slot, a: Slot, b: Slot, mask: u64 },
    Or { dst: Slot, a: Slot, b: Slot, mask: u64 },
    Xor { dst: Slot, a: Slot, b: Slot, mask: u64 },
    Not { dst: Slot, a: Slot, mask: u64 },
    /// Shifts by 64 and more give 0.
    Shl { dst: Slot, a: Slot, b: Slot, mask: u64 },
    Shr { dst: Slot, a: Slot, b: Slot, mask: u64 },
    /// Arithmetic shift of a value sign-extended to 64 bits.
    Sar { dst: Slot, a: Slot, b: Slot, mask: u64 },
    /// Sign-extends the low `width` bits to 64.
    SignExtend { dst: Slot, a: Slot, width: u16 },
    /// `min(a + b, mask)`
    AddSaturating { dst: Slot, a: Slot, b: Slot, mask: u64 },
    /// `max(a - b, 0)`
    SubSaturating { dst: Slot, a: Slot, b: Slot },
    /// Clamps a signed 64-bit value to `width` bits, signed or not.
    Clamp { dst: Slot, a: Slot, width: u16, signed: bool },
    Eq { dst: Slot, a: Slot, b: Slot },
    Ne { dst: Slot, a: Slot, b: Slot },
    Lt { dst: Slot, a: Slot, b: Slot },
    Le { dst: Slot, a: Slot, b: Slot },
    LtSigned { dst: Slot, a: Slot, b: Slot },
    LeSigned { dst: Slot, a: Slot, b: Slot },
    /// `dst = if cond { a } else { b }`
    Choose { dst: Slot, cond: Slot, a: Slot, b: Slot },

    Jump { to: Pc },
    /// Jump backwards, which costs one round of the packet's budget.
    Loop { to: Pc },
    JumpIf { a: Slot, to: Pc },
    JumpUnless { a: Slot, to: Pc },
    JumpEq { a: Slot, b: Slot, to: Pc },
    JumpNe { a: Slot, b: Slot, to: Pc },
    JumpLt { a: Slot, b: Slot, to: Pc },
    JumpLe { a: Slot, b: Slot, to: Pc },
    /// Looks the packet up and runs the action of the entry found, or the default action.
    Apply { table: u16 },
    /// Looks a table up whose usual action, at position `action` of its list, stands right after. Continues there if
    /// that action is to run; otherwise runs the other action, if any, and continues at `skip`.
    ApplyInto { table: u16, action: u16, skip: Pc },
    /// `Apply` for a table that is part of the program: const entries, const default action.
    ApplyConst { table: u16 },
    /// After `Apply`: jumps when nothing was found.
    JumpMiss { to: Pc },
    /// After `Apply`: continues where the table's list says for the action that ran.
    Switch { table: u16 },
    /// End of an action.
    Return,
    /// End of the parser or of a control; also P4's `exit`.
    End,

    /// Takes a header from the frame.
    Extract { header: u16 },
    /// Reads bits ahead of the parser's position.
    Lookahead { dst: Slot, offset: u32, width: u16 },
    /// Skips this many bits (a multiple of 8).
    Advance { a: Slot },
    /// Ends the parser with error `error` unless `a`.
    Verify { a: Slot, error: Slot },
    /// Continues in the parser state that the list says.
    Select { select: u16 },
    AddHeader { header: u16 },
    RemoveHeader { header: u16 },
    CopyHeader { copy: u16 },
    /// Fields of these headers have been written.
    Touch { headers: u64 },

    Count { counter: u16, index: Slot },
    ReadRegister { dst: Slot, register: u16, index: Slot },
    WriteRegister { register: u16, index: Slot, a: Slot },
    /// `dst = calculation mod size + base`, size 0 counting as 1 (as BMv2 does)
    Hash { dst: Slot, calculation: u16, base: Slot, size: Slot },
    /// `dst = calculation`
    Calculate { dst: Slot, calculation: u16 },
    /// Drops the packet unless `a`.
    Assert { a: Slot },
    /// Cuts the outgoing frame to this many bytes.
    Truncate { a: Slot },
    /// A number of `low ..= high`, evenly distributed.
    Random { dst: Slot, low: Slot, high: Slot },
}

impl Op {
    /// Cuts the result to `mask`, if the operation can.
    pub(crate) fn cut(&mut self, to: u64) -> bool {
        match self {
            Op::Slice { mask, .. }
            | Op::SliceNot { mask, .. }
            | Op::Add { mask, .. }
            | Op::Sub { mask, .. }
            | Op::Mul { mask, .. }
            | Op::Div { mask, .. }
            | Op::Rem { mask, .. }
            | Op::And { mask, .. }
            | Op::Or { mask, .. }
            | Op::Xor { mask, .. }
            | Op::Not { mask, .. }
            | Op::Shl { mask, .. }
            | Op::Shr { mask, .. }
            | Op::Sar { mask, .. } => *mask &= to,
            Op::Join { a_mask, b_mask, .. } | Op::XorSlices { a_mask, b_mask, .. } => {
                *a_mask &= to;
                *b_mask &= to;
            }
            Op::AddSlices { width, .. } | Op::SubSlices { width, .. } if to & to.wrapping_add(1) == 0 => {
                *width = (*width).min(to.count_ones() as u8);
            }
            _ => return false,
        }
        true
    }

    /// Slot of the result, if there is one.
    pub(crate) fn dst(&mut self) -> Option<&mut Slot> {
        match self {
            Op::Mov { dst, .. }
            | Op::Slice { dst, .. }
            | Op::SliceNot { dst, .. }
            | Op::Swap { dst, .. }
            | Op::Join { dst, .. }
            | Op::XorSlices { dst, .. }
            | Op::AddSlices { dst, .. }
            | Op::SubSlices { dst, .. }
            | Op::Add { dst, .. }
            | Op::Sub { dst, .. }
            | Op::Mul { dst, .. }
            | Op::Div { dst, .. }
            | Op::Rem { dst, .. }
            | Op::And { dst, .. }
            | Op::Or { dst, .. }
            | Op::Xor { dst, .. }
            | Op::Not { dst, .. }
            | Op::Shl { dst, .. }
            | Op::Shr { dst, .. }
            | Op::Sar { dst, .. }
            | Op::SignExtend { dst, .. }
            | Op::AddSaturating { dst, .. }
            | Op::SubSaturating { dst, .. }
            | Op::Clamp { dst, .. }
            | Op::Eq { dst, .. }
            | Op::Ne { dst, .. }
            | Op::Lt { dst, .. }
            | Op::Le { dst, .. }
            | Op::LtSigned { dst, .. }
            | Op::LeSigned { dst, .. }
            | Op::Choose { dst, .. }
            | Op::Lookahead { dst, .. }
            | Op::ReadRegister { dst, .. }
            | Op::Hash { dst, .. }
            | Op::Calculate { dst, .. }
            | Op::Random { dst, .. } => Some(dst),
            _ => None,
        }
    }

    /// Slots that the operation reads itself. The slots read by tables, headers, calculations and selects are listed there.
    pub(crate) fn reads(self) -> [Option<Slot>; 3] {
        match self {
            Op::Mov { a, .. }
            | Op::Slice { a, .. }
            | Op::SliceNot { a, .. }
            | Op::Swap { a, .. }
            | Op::Not { a, .. }
            | Op::SignExtend { a, .. }
            | Op::Clamp { a, .. }
            | Op::JumpIf { a, .. }
            | Op::JumpUnless { a, .. }
            | Op::Advance { a }
            | Op::Assert { a }
            | Op::Truncate { a } => [Some(a), None, None],
            Op::Join { a, b, .. }
            | Op::XorSlices { a, b, .. }
            | Op::AddSlices { a, b, .. }
            | Op::SubSlices { a, b, .. }
            | Op::Add { a, b, .. }
            | Op::Sub { a, b, .. }
            | Op::Mul { a, b, .. }
            | Op::Div { a, b, .. }
            | Op::Rem { a, b, .. }
            | Op::And { a, b, .. }
            | Op::Or { a, b, .. }
            | Op::Xor { a, b, .. }
            | Op::Shl { a, b, .. }
            | Op::Shr { a, b, .. }
            | Op::Sar { a, b, .. }
            | Op::AddSaturating { a, b, .. }
            | Op::SubSaturating { a, b, .. }
            | Op::Eq { a, b, .. }
            | Op::Ne { a, b, .. }
            | Op::Lt { a, b, .. }
            | Op::Le { a, b, .. }
            | Op::LtSigned { a, b, .. }
            | Op::LeSigned { a, b, .. }
            | Op::JumpEq { a, b, .. }
            | Op::JumpNe { a, b, .. }
            | Op::JumpLt { a, b, .. }
            | Op::JumpLe { a, b, .. } => [Some(a), Some(b), None],
            Op::Choose { cond, a, b, .. } => [Some(cond), Some(a), Some(b)],
            Op::Verify { a, error } => [Some(a), Some(error), None],
            Op::Count { index, .. } | Op::ReadRegister { index, .. } => [Some(index), None, None],
            Op::WriteRegister { index, a, .. } => [Some(index), Some(a), None],
            Op::Hash { base, size, .. } => [Some(base), Some(size), None],
            Op::Random { low, high, .. } => [Some(low), Some(high), None],
            Op::Jump { .. }
            | Op::Loop { .. }
            | Op::Apply { .. }
            | Op::ApplyInto { .. }
            | Op::ApplyConst { .. }
            | Op::JumpMiss { .. }
            | Op::Switch { .. }
            | Op::Return
            | Op::End
            | Op::Extract { .. }
            | Op::Lookahead { .. }
            | Op::Select { .. }
            | Op::AddHeader { .. }
            | Op::RemoveHeader { .. }
            | Op::CopyHeader { .. }
            | Op::Touch { .. }
            | Op::Calculate { .. } => [None; 3],
        }
    }

    /// Whether the operation does nothing but choose where to continue.
    pub(crate) fn is_jump(mut self) -> bool {
        self.target().is_some() && !matches!(self, Op::ApplyInto { .. })
    }

    /// The jump target, if it has one.
    pub(crate) fn target(&mut self) -> Option<&mut Pc> {
        match self {
            Op::Jump { to }
            | Op::Loop { to }
            | Op::JumpIf { to, .. }
            | Op::JumpUnless { to, .. }
            | Op::JumpEq { to, .. }
            | Op::JumpNe { to, .. }
            | Op::JumpLt { to, .. }
            | Op::JumpLe { to, .. }
            | Op::JumpMiss { to }
            | Op::ApplyInto { skip: to, .. } => Some(to),
            _ => None,
        }
    }
}

/// Place of one field of a header in the frame, for reading and writing it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FieldAt {
    pub(crate) slot: Slot,
    /// Byte of the header where it begins.
    pub(crate) byte: u32,
    /// Bits of that byte before it.
    pub(crate) skip: u8,
    /// Bits, 1 to 64.
    pub(crate) width: u8,
}

impl FieldAt {
    pub(crate) fn new(slot: Slot, bit: u32, width: u16) -> Self {
        FieldAt { slot, byte: bit / 8, skip: (bit % 8) as u8, width: width as u8 }
    }
}

/// Source of a field of a packed key of 64 bits: a slot's value, rotated right and masked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) slot: Slot,
    pub(crate) rot: u8,
    pub(crate) mask: u64,
}

impl Part {
    pub(crate) fn of(part: &KeyPart) -> Self {
        Part { slot: part.slot, rot: (64 - part.shift) % 64, mask: ones(part.width) << part.shift }
    }
}

/// A table that is part of the program.
#[derive(Debug, Clone)]
pub(crate) struct ConstTable {
    pub(crate) parts: Box<[Part]>,
    /// Value and mask of each entry, best first.
    pub(crate) words: Box<[(u64, u64)]>,
    /// Code of each entry, and at the end of a miss.
    pub(crate) calls: Box<[ConstCall]>,
}

impl ConstTable {
    /// Code for the packet, and whether it is an entry's.
    #[inline]
    pub(crate) fn look_up(&self, slots: &Words) -> (bool, Option<&ConstCall>) {
        let part = |p: &Part| slots[usize::from(p.slot)].rotate_right(p.rot.into()) & p.mask;
        let word = self.parts.iter().fold(0, |word, p| word | part(p));
        match first_masked(word, &self.words) {
            Some(found) => (true, self.calls.get(found)),
            None => (false, self.calls.last()),
        }
    }
}

/// An action and its parameters.
#[derive(Debug, Clone)]
pub(crate) struct ConstCall {
    /// Position in the table's list; `usize::MAX`: no action.
    pub(crate) position: usize,
    pub(crate) code: ActionCode,
    pub(crate) params: Box<[u64]>,
}

/// A header instance that packets carry.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeaderCode {
    pub(crate) valid: Slot,
    /// Length in bytes.
    pub(crate) len: usize,
    /// Fields that the program uses.
    pub(crate) loads: Vec<FieldAt>,
    /// Fields that the program may write.
    pub(crate) stores: Vec<FieldAt>,
}

/// A header assignment: `dst = src`.
#[derive(Debug, Clone)]
pub(crate) struct CopyCode {
    pub(crate) dst: u16,
    pub(crate) src: u16,
    /// Slots, destination first.
    pub(crate) fields: Vec<(Slot, Slot)>,
}

/// A parser state's select.
#[derive(Debug, Clone)]
pub(crate) struct SelectCode {
    pub(crate) key: ScanKey,
    /// Value and mask of each case, packed by `key`.
    pub(crate) words: Vec<(u64, u64)>,
    /// Continuation of each case.
    pub(crate) to: Vec<Pc>,
    /// Continuation when no case matches.
    pub(crate) otherwise: Pc,
}

/// An action as a table runs it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ActionCode {
    pub(crate) start: Pc,
    /// First of the consecutive slots of its parameters.
    pub(crate) param_base: Slot,
    pub(crate) params: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_stay_small() {
        assert!(size_of::<Op>() <= 32, "{}", size_of::<Op>());
    }
}
