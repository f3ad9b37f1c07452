//! Operations that only move bits about: a result slot, and a value made of one or two operands.
//!
//! Most of a program is made of them. Alone, each is an operation like any other. In a row, they are [`Move`]s: one formula
//! for all of them, without a branch, so that a row costs one dispatch and what the processor cannot foresee happens once.

use crate::bits::low_bits;
use crate::code::{Op, Slot, Words};
use crate::table::ones;

/// Result slot and operand slots; operations with one operand name it twice. `None`: the operation is of another kind.
#[inline(always)]
fn operands(op: &Op) -> Option<[Slot; 3]> {
    Some(match *op {
        Op::Mov { dst, a }
        | Op::Slice { dst, a, .. }
        | Op::SliceNot { dst, a, .. }
        | Op::Swap { dst, a, .. } => [dst, a, a],
        Op::Join { dst, a, b, .. }
        | Op::XorSlices { dst, a, b, .. }
        | Op::AddSlices { dst, a, b, .. }
        | Op::SubSlices { dst, a, b, .. } => [dst, a, b],
        _ => return None,
    })
}

/// What the operation makes of its operands' values.
#[inline(always)]
fn evaluate(op: &Op, a: u64, b: u64) -> u64 {
    let slice = |value: u64, rot: u8, mask: u64| value.rotate_right(rot.into()) & mask;
    match *op {
        Op::Slice { rot, mask, .. } => slice(a, rot, mask),
        Op::SliceNot { rot, mask, .. } => slice(!a, rot, mask),
        Op::Swap { shift, .. } => a.swap_bytes() >> (shift & 63),
        Op::Join { a_rot, b_rot, b_not, a_mask, b_mask, .. } => {
            let flip = u64::from(b_not).wrapping_neg();
            slice(a, a_rot, a_mask) | slice(b ^ flip, b_rot, b_mask)
        }
        Op::XorSlices { a_rot, b_rot, a_mask, b_mask, .. } => {
            slice(a, a_rot, a_mask) ^ slice(b, b_rot, b_mask)
        }
        Op::AddSlices { a_rot, b_rot, width, a_mask, b_mask, .. } => {
            low_bits(slice(a, a_rot, a_mask).wrapping_add(slice(b, b_rot, b_mask)), width)
        }
        Op::SubSlices { a_rot, b_rot, width, a_mask, b_mask, .. } => {
            low_bits(slice(a, a_rot, a_mask).wrapping_sub(slice(b, b_rot, b_mask)), width)
        }
        _ => a,
    }
}

/// Runs an operation of this kind; `false`: it is of another.
#[inline(always)]
pub(crate) fn run(slots: &mut Words, op: &Op) -> bool {
    let Some([dst, a, b]) = operands(op) else { return false };
    slots[usize::from(dst)] = evaluate(op, slots[usize::from(a)], slots[usize::from(b)]);
    true
}

/// `dst = (A ± B) & out` or `(A ^ B) & out`, where A and B are masked and rotated slots or their complements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Move {
    dst: Slot,
    a: Slot,
    b: Slot,
    a_rot: u8,
    b_rot: u8,
    a_mask: u64,
    b_mask: u64,
    out: u64,
    flags: Flags,
}

/// Each is 0 or -1: as a word, no bits or all bits.
#[derive(Debug, Clone, Copy)]
struct Flags {
    a_not: i8,
    b_not: i8,
    subtract: i8,
    xor: i8,
}

const PLAIN: Flags = Flags { a_not: 0, b_not: 0, subtract: 0, xor: 0 };
const A_NOT: Flags = Flags { a_not: -1, ..PLAIN };
const B_NOT: Flags = Flags { b_not: -1, ..PLAIN };
const SUBTRACT: Flags = Flags { subtract: -1, ..PLAIN };
const XOR: Flags = Flags { xor: -1, ..PLAIN };

impl Move {
    /// The same as this operation, if it can be said so.
    pub(crate) fn of(op: &Op) -> Option<Self> {
        const ALL: u64 = u64::MAX;
        let one = |dst, a, a_rot, a_mask, flags| {
            Some(Move { dst, a, b: a, a_rot, b_rot: 0, a_mask, b_mask: 0, out: ALL, flags })
        };
        let whole = |dst, a, b, out, flags| {
            Some(Move { dst, a, b, a_rot: 0, b_rot: 0, a_mask: ALL, b_mask: ALL, out, flags })
        };
        match *op {
            Op::Mov { dst, a } => one(dst, a, 0, ALL, PLAIN),
            Op::Slice { dst, a, rot, mask } => one(dst, a, rot, mask, PLAIN),
            Op::SliceNot { dst, a, rot, mask } => one(dst, a, rot, mask, A_NOT),
            Op::Not { dst, a, mask } => one(dst, a, 0, mask, A_NOT),
            Op::Add { dst, a, b, mask } => whole(dst, a, b, mask, PLAIN),
            Op::Sub { dst, a, b, mask } => whole(dst, a, b, mask, SUBTRACT),
            Op::Xor { dst, a, b, mask } => whole(dst, a, b, mask, XOR),
            // Side by side, the sum is the union.
            Op::Join { dst, a, b, a_rot, b_rot, b_not, a_mask, b_mask } if a_mask & b_mask == 0 => {
                let flags = if b_not { B_NOT } else { PLAIN };
                Some(Move { dst, a, b, a_rot, b_rot, a_mask, b_mask, out: ALL, flags })
            }
            Op::XorSlices { dst, a, b, a_rot, b_rot, a_mask, b_mask } => {
                Some(Move { dst, a, b, a_rot, b_rot, a_mask, b_mask, out: ALL, flags: XOR })
            }
            Op::AddSlices { dst, a, b, a_rot, b_rot, width, a_mask, b_mask } => {
                Some(Move { dst, a, b, a_rot, b_rot, a_mask, b_mask, out: ones(width.into()), flags: PLAIN })
            }
            Op::SubSlices { dst, a, b, a_rot, b_rot, width, a_mask, b_mask } => Some(Move {
                dst,
                a,
                b,
                a_rot,
                b_rot,
                a_mask,
                b_mask,
                out: ones(width.into()),
                flags: SUBTRACT,
            }),
            _ => None,
        }
    }

    #[inline(always)]
    pub(crate) fn run(&self, slots: &mut Words) {
        let Flags { a_not, b_not, subtract, xor } = self.flags;
        let a = (slots[usize::from(self.a)] ^ a_not as u64).rotate_right(self.a_rot.into()) & self.a_mask;
        let b = (slots[usize::from(self.b)] ^ b_not as u64).rotate_right(self.b_rot.into()) & self.b_mask;
        // -b is !b + 1; and a ^ b is a + b without the carries, which are where both have a bit.
        let minus = subtract as u64;
        let sum = a.wrapping_add((b ^ minus).wrapping_sub(minus));
        let carries = ((a & b) << 1) & xor as u64;
        slots[usize::from(self.dst)] = sum.wrapping_sub(carries) & self.out;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::code::Slots;

    fn op() -> impl Strategy<Value = Op> {
        (0..9u8, 0..4u16, 0..4u16, 0..4u16, 0..64u8, 0..64u8, any::<u64>(), any::<u64>(), 1..=64u8).prop_map(
            |(kind, dst, a, b, a_rot, b_rot, mask, cut, width)| match kind {
                0 => Op::Mov { dst, a },
                1 => Op::Slice { dst, a, rot: a_rot, mask },
                2 => Op::SliceNot { dst, a, rot: a_rot, mask },
                3 => Op::Join {
                    dst,
                    a,
                    b,
                    a_rot,
                    b_rot,
                    b_not: width > 32,
                    a_mask: mask & cut,
                    b_mask: mask & !cut,
                },
                4 => Op::XorSlices { dst, a, b, a_rot, b_rot, a_mask: mask, b_mask: cut },
                5 => Op::AddSlices { dst, a, b, a_rot, b_rot, width, a_mask: mask, b_mask: cut },
                6 => Op::SubSlices { dst, a, b, a_rot, b_rot, width, a_mask: mask, b_mask: cut },
                7 => Op::Join { dst, a, b, a_rot, b_rot, b_not: true, a_mask: !mask, b_mask: mask },
                _ => Op::Swap { dst, a, shift: a_rot },
            },
        )
    }

    proptest! {
        /// A row of moves does what its operations do one by one.
        #[test]
        fn a_row_is_its_operations(ops in prop::collection::vec(op(), 1..20), values in any::<[u64; 4]>()) {
            let (mut one, mut row) = (Slots::default(), Slots::default());
            for (slot, &value) in (0..).zip(&values) {
                one.set(slot, value);
                row.set(slot, value);
            }
            for op in &ops {
                prop_assert!(run(one.words_mut(), op));
                match Move::of(op) {
                    Some(step) => step.run(row.words_mut()),
                    None => {
                        let swapped = matches!(op, Op::Swap { .. }) && run(row.words_mut(), op);
                        prop_assert!(swapped);
                    }
                }
                for slot in 0..4 {
                    prop_assert_eq!(one.get(slot), row.get(slot), "{:?}", op);
                }
            }
        }

        /// Whole words: as Rust has them.
        #[test]
        fn whole_words(a in any::<u64>(), b in any::<u64>(), mask in any::<u64>()) {
            let expected = [
                (Op::Add { dst: 2, a: 0, b: 1, mask }, a.wrapping_add(b) & mask),
                (Op::Sub { dst: 2, a: 0, b: 1, mask }, a.wrapping_sub(b) & mask),
                (Op::Xor { dst: 2, a: 0, b: 1, mask }, (a ^ b) & mask),
                (Op::Not { dst: 2, a: 0, mask }, !a & mask),
            ];
            for (op, expected) in expected {
                let mut slots = Slots::default();
                slots.set(0, a);
                slots.set(1, b);
                Move::of(&op).unwrap().run(slots.words_mut());
                prop_assert_eq!(slots.get(2), expected, "{:?}", op);
            }
        }
    }
}
