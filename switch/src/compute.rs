//! Operations that only compute: from slots to a slot.

use crate::bits::{clamp, low_bits, shift_left, shift_right};
use crate::code::{Op, Slot, Words};

/// Runs an operation of this kind. One of another kind does nothing.
#[inline(always)]
pub(crate) fn compute(slots: &mut Words, op: &Op) {
    let slice = |value: u64, rot: u8, mask: u64| value.rotate_right(rot.into()) & mask;
    match *op {
        Op::Mov { dst, a } => set(slots, dst, get(slots, a)),
        Op::Slice { dst, a, rot, mask } => set(slots, dst, slice(get(slots, a), rot, mask)),
        Op::SliceNot { dst, a, rot, mask } => set(slots, dst, slice(!get(slots, a), rot, mask)),
        Op::Swap { dst, a, shift } => set(slots, dst, get(slots, a).swap_bytes() >> (shift & 63)),
        Op::Join { dst, a, b, a_rot, b_rot, b_not, a_mask, b_mask } => {
            let b = get(slots, b) ^ u64::from(b_not).wrapping_neg();
            set(slots, dst, slice(get(slots, a), a_rot, a_mask) | slice(b, b_rot, b_mask));
        }
        Op::XorSlices { dst, a, b, a_rot, b_rot, a_mask, b_mask } => {
            let (a, b) = (slice(get(slots, a), a_rot, a_mask), slice(get(slots, b), b_rot, b_mask));
            set(slots, dst, a ^ b);
        }
        Op::AddSlices { dst, a, b, a_rot, b_rot, width, a_mask, b_mask } => {
            let (a, b) = (slice(get(slots, a), a_rot, a_mask), slice(get(slots, b), b_rot, b_mask));
            set(slots, dst, low_bits(a.wrapping_add(b), width));
        }
        Op::SubSlices { dst, a, b, a_rot, b_rot, width, a_mask, b_mask } => {
            let (a, b) = (slice(get(slots, a), a_rot, a_mask), slice(get(slots, b), b_rot, b_mask));
            set(slots, dst, low_bits(a.wrapping_sub(b), width));
        }
        Op::Add { dst, a, b, mask } => set(slots, dst, get(slots, a).wrapping_add(get(slots, b)) & mask),
        Op::Sub { dst, a, b, mask } => set(slots, dst, get(slots, a).wrapping_sub(get(slots, b)) & mask),
        Op::Mul { dst, a, b, mask } => set(slots, dst, get(slots, a).wrapping_mul(get(slots, b)) & mask),
        Op::Div { dst, a, b, mask } => {
            set(slots, dst, get(slots, a).checked_div(get(slots, b)).unwrap_or(0) & mask);
        }
        Op::Rem { dst, a, b, mask } => {
            set(slots, dst, get(slots, a).checked_rem(get(slots, b)).unwrap_or(0) & mask);
        }
        Op::And { dst, a, b, mask } => set(slots, dst, get(slots, a) & get(slots, b) & mask),
        Op::Or { dst, a, b, mask } => set(slots, dst, (get(slots, a) | get(slots, b)) & mask),
        Op::Xor { dst, a, b, mask } => set(slots, dst, (get(slots, a) ^ get(slots, b)) & mask),
        Op::Not { dst, a, mask } => set(slots, dst, !get(slots, a) & mask),
        Op::Shl { dst, a, b, mask } => set(slots, dst, shift_left(get(slots, a), get(slots, b)) & mask),
        Op::Shr { dst, a, b, mask } => set(slots, dst, shift_right(get(slots, a), get(slots, b)) & mask),
        Op::Sar { dst, a, b, mask } => {
            let by = get(slots, b).min(63);
            set(slots, dst, (get(slots, a) as i64 >> by) as u64 & mask);
        }
        Op::SignExtend { dst, a, width } => {
            let unused = 64 - u32::from(width);
            set(slots, dst, ((get(slots, a) << unused) as i64 >> unused) as u64);
        }
        Op::AddSaturating { dst, a, b, mask } => {
            set(slots, dst, get(slots, a).saturating_add(get(slots, b)).min(mask));
        }
        Op::SubSaturating { dst, a, b } => set(slots, dst, get(slots, a).saturating_sub(get(slots, b))),
        Op::Clamp { dst, a, width, signed } => set(slots, dst, clamp(get(slots, a) as i64, width, signed)),
        Op::Eq { dst, a, b } => set(slots, dst, u64::from(get(slots, a) == get(slots, b))),
        Op::Ne { dst, a, b } => set(slots, dst, u64::from(get(slots, a) != get(slots, b))),
        Op::Lt { dst, a, b } => set(slots, dst, u64::from(get(slots, a) < get(slots, b))),
        Op::Le { dst, a, b } => set(slots, dst, u64::from(get(slots, a) <= get(slots, b))),
        Op::LtSigned { dst, a, b } => {
            set(slots, dst, u64::from((get(slots, a) as i64) < get(slots, b) as i64));
        }
        Op::LeSigned { dst, a, b } => {
            set(slots, dst, u64::from(get(slots, a) as i64 <= get(slots, b) as i64));
        }
        Op::Choose { dst, cond, a, b } => {
            let from = if get(slots, cond) != 0 { a } else { b };
            set(slots, dst, get(slots, from));
        }
        _ => {}
    }
}

#[inline(always)]
pub(crate) fn get(slots: &Words, slot: Slot) -> u64 {
    slots[usize::from(slot)]
}

#[inline(always)]
pub(crate) fn set(slots: &mut Words, slot: Slot, value: u64) {
    slots[usize::from(slot)] = value;
}
