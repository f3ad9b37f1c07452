//! Operations that only move bits about: a result slot, and a value made of one or two operands.
//!
//! Most of a program is made of them, and the machine runs them in two ways: one by one, and in a row, as the action of a
//! const table. This is the one place that says what they compute.

use crate::bits::low_bits;
use crate::code::{Op, Slot, Words};

/// Result slot and operand slots; operations with one operand name it twice. `None`: the operation is of another kind.
#[inline(always)]
pub(crate) fn operands(op: &Op) -> Option<[Slot; 3]> {
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
pub(crate) fn evaluate(op: &Op, a: u64, b: u64) -> u64 {
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
