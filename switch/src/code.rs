//! The compact form that programs are lowered to: three-address operations over one flat array of `u64`.
//!
//! ```text
//! slots   0 ........ state ........ | .... free .... | temporaries, parameters, constants .... 2047
//!         fields and validity bits,                    constants are written once, when the
//!         zero at the start of a packet                pipeline is made
//! ```
//!
//! Every value is the field's bits, zero-extended; masks are part of the operation that computes it.
//! Parser, checksums, ingress and egress are one array of [`Op`]s with four entry points. There are no
//! names, no look-ups by name and no allocation left in it.

use crate::table::scan::ScanKey;

/// Index of a slot.
pub(crate) type Slot = u16;

/// Number of slots; a power of two, so that indexing needs no bounds check.
pub(crate) const SLOTS: usize = 2048;

/// The flat array.
#[derive(Debug, Clone)]
pub(crate) struct Slots(Box<[u64; SLOTS]>);

impl Default for Slots {
    fn default() -> Self {
        Slots(Box::new([0; SLOTS]))
    }
}

impl Slots {
    #[inline(always)]
    pub(crate) fn get(&self, slot: Slot) -> u64 {
        self.0[usize::from(slot) % SLOTS]
    }

    #[inline(always)]
    pub(crate) fn set(&mut self, slot: Slot, value: u64) {
        self.0[usize::from(slot) % SLOTS] = value;
    }

    /// Zeroes the state, slots 0 to `len`.
    #[inline]
    pub(crate) fn reset(&mut self, len: usize) {
        self.0[..len].fill(0);
    }
}

/// Position in the code. While code is being made, jump targets are label numbers.
pub(crate) type Pc = u32;

/// One operation. `dst`, `a`, `b` are slots; results are cut by `mask`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Mov {
        dst: Slot,
        a: Slot,
        mask: u64,
    },
    Add {
        dst: Slot,
        a: Slot,
        b: Slot,
        mask: u64,
    },
    Sub {
        dst: Slot,
        a: Slot,
        b: Slot,
        mask: u64,
    },
    Mul {
        dst: Slot,
        a: Slot,
        b: Slot,
        mask: u64,
    },
    /// Division by zero gives 0 (P4 leaves it undefined, BMv2 aborts).
    Div {
        dst: Slot,
        a: Slot,
        b: Slot,
        mask: u64,
    },
    /// Remainder by zero gives 0.
    Rem {
        dst: Slot,
        a: Slot,
        b: Slot,
        mask: u64,
    },
    And {
        dst: Slot,
        a: Slot,
        b: Slot,
        mask: u64,
    },
    Or {
        dst: Slot,
        a: Slot,
        b: Slot,
        mask: u64,
    },
    Xor {
        dst: Slot,
        a: Slot,
        b: Slot,
        mask: u64,
    },
    Not {
        dst: Slot,
        a: Slot,
        mask: u64,
    },
    /// Shifts by 64 and more give 0.
    Shl {
        dst: Slot,
        a: Slot,
        b: Slot,
        mask: u64,
    },
    Shr {
        dst: Slot,
        a: Slot,
        b: Slot,
        mask: u64,
    },
    /// Arithmetic shift of a value sign-extended to 64 bits.
    Sar {
        dst: Slot,
        a: Slot,
        b: Slot,
        mask: u64,
    },
    ShlBy {
        dst: Slot,
        a: Slot,
        by: u16,
        mask: u64,
    },
    ShrBy {
        dst: Slot,
        a: Slot,
        by: u16,
        mask: u64,
    },
    /// Sign-extends the low `width` bits to 64.
    SignExtend {
        dst: Slot,
        a: Slot,
        width: u16,
    },
    /// `min(a + b, mask)`
    AddSaturating {
        dst: Slot,
        a: Slot,
        b: Slot,
        mask: u64,
    },
    /// `max(a - b, 0)`
    SubSaturating {
        dst: Slot,
        a: Slot,
        b: Slot,
    },
    /// Clamps a signed 64-bit value to `width` bits, signed or not.
    Clamp {
        dst: Slot,
        a: Slot,
        width: u16,
        signed: bool,
    },
    Eq {
        dst: Slot,
        a: Slot,
        b: Slot,
    },
    Ne {
        dst: Slot,
        a: Slot,
        b: Slot,
    },
    Lt {
        dst: Slot,
        a: Slot,
        b: Slot,
    },
    Le {
        dst: Slot,
        a: Slot,
        b: Slot,
    },
    LtSigned {
        dst: Slot,
        a: Slot,
        b: Slot,
    },
    LeSigned {
        dst: Slot,
        a: Slot,
        b: Slot,
    },
    /// `dst = if cond { a } else { b }`
    Choose {
        dst: Slot,
        cond: Slot,
        a: Slot,
        b: Slot,
    },

    Jump {
        to: Pc,
    },
    /// A jump backwards: costs one round of the packet's budget.
    Loop {
        to: Pc,
    },
    JumpIf {
        a: Slot,
        to: Pc,
    },
    JumpUnless {
        a: Slot,
        to: Pc,
    },
    JumpEq {
        a: Slot,
        b: Slot,
        to: Pc,
    },
    JumpNe {
        a: Slot,
        b: Slot,
        to: Pc,
    },
    JumpLt {
        a: Slot,
        b: Slot,
        to: Pc,
    },
    JumpLe {
        a: Slot,
        b: Slot,
        to: Pc,
    },
    /// Looks the packet up and runs the action of the entry found, or the default action.
    Apply {
        table: u16,
    },
    /// After `Apply`: jumps when nothing was found.
    JumpMiss {
        to: Pc,
    },
    /// After `Apply`: continues where the table's list says for the action that ran.
    Switch {
        table: u16,
    },
    /// End of an action.
    Return,
    /// End of the parser or of a control; also P4's `exit`.
    End,

    /// Takes a header from the frame.
    Extract {
        header: u16,
    },
    /// Reads bits ahead of the parser's position.
    Lookahead {
        dst: Slot,
        offset: u32,
        width: u16,
    },
    /// Skips this many bits (a multiple of 8).
    Advance {
        a: Slot,
    },
    /// Ends the parser with error `error` unless `a`.
    Verify {
        a: Slot,
        error: Slot,
    },
    /// Continues in the parser state that the list says.
    Select {
        select: u16,
    },
    AddHeader {
        header: u16,
    },
    RemoveHeader {
        header: u16,
    },
    CopyHeader {
        copy: u16,
    },
    /// Fields of these headers have been written.
    Touch {
        headers: u64,
    },

    Count {
        counter: u16,
        index: Slot,
    },
    ReadRegister {
        dst: Slot,
        register: u16,
        index: Slot,
    },
    WriteRegister {
        register: u16,
        index: Slot,
        a: Slot,
    },
    /// `dst = calculation mod size + base`, size 0 counting as 1 (as BMv2 does)
    Hash {
        dst: Slot,
        calculation: u16,
        base: Slot,
        size: Slot,
    },
    /// `dst = calculation`
    Calculate {
        dst: Slot,
        calculation: u16,
    },
    /// Drops the packet unless `a`.
    Assert {
        a: Slot,
    },
    /// Cuts the outgoing frame to this many bytes.
    Truncate {
        a: Slot,
    },
    /// A number of `low ..= high`, evenly distributed.
    Random {
        dst: Slot,
        low: Slot,
        high: Slot,
    },
}

impl Op {
    /// The destination and mask of an operation that computes a masked value, for folding what follows into it.
    pub(crate) fn result(&mut self) -> Option<(&mut Slot, &mut u64)> {
        match self {
            Op::Mov { dst, mask, .. }
            | Op::Add { dst, mask, .. }
            | Op::Sub { dst, mask, .. }
            | Op::Mul { dst, mask, .. }
            | Op::Div { dst, mask, .. }
            | Op::Rem { dst, mask, .. }
            | Op::And { dst, mask, .. }
            | Op::Or { dst, mask, .. }
            | Op::Xor { dst, mask, .. }
            | Op::Not { dst, mask, .. }
            | Op::Shl { dst, mask, .. }
            | Op::Shr { dst, mask, .. }
            | Op::Sar { dst, mask, .. }
            | Op::ShlBy { dst, mask, .. }
            | Op::ShrBy { dst, mask, .. } => Some((dst, mask)),
            _ => None,
        }
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
            | Op::JumpMiss { to } => Some(to),
            _ => None,
        }
    }
}

/// How to read one field of a header from the frame, or write it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FieldAt {
    pub(crate) slot: Slot,
    /// Bit offset in the header.
    pub(crate) bit: u32,
    pub(crate) width: u16,
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
    /// Where each case continues.
    pub(crate) to: Vec<Pc>,
    /// Where to continue when no case matches.
    pub(crate) otherwise: Pc,
}

/// An action as a table runs it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ActionCode {
    pub(crate) start: Pc,
    /// Where its parameters go: consecutive slots.
    pub(crate) param_base: Slot,
    pub(crate) params: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_stay_small() {
        assert!(size_of::<Op>() <= 16, "{}", size_of::<Op>());
    }
}
