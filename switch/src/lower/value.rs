//! Intermediate values of expressions, with the knowledge of them before they are computed.

use crate::code::Slot;

/// An intermediate value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Val {
    pub(super) kind: Kind,
    /// The true value lies in this interval; `None`: only its low 64 bits are known.
    pub(super) range: Option<Range>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    Const(i128),
    /// The value's low 64 bits, two's complement, are in this slot.
    Slot(Slot),
    /// Slices side by side: their masks have no bit in common. Not computed yet.
    Bits(Vec<Slice>),
}

/// `slot.rotate_right(rot) & mask`, or of the complement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Slice {
    pub(super) slot: Slot,
    pub(super) rot: u8,
    pub(super) mask: u64,
    pub(super) not: bool,
}

/// Maximum number of slices that are worth carrying along; more are computed at once.
pub(super) const MAX_SLICES: usize = 8;

/// An interval of true values, both ends included.
pub(super) type Range = (i128, i128);

pub(super) const UNSIGNED: Range = (0, u64::MAX as i128);
pub(super) const SIGNED: Range = (i64::MIN as i128, i64::MAX as i128);

pub(super) fn within(range: Range, bounds: Range) -> bool {
    bounds.0 <= range.0 && range.1 <= bounds.1
}

/// Returns the interval if 64 bits can tell its values apart.
pub(super) fn representable(range: Range) -> Option<Range> {
    (within(range, UNSIGNED) || within(range, SIGNED)).then_some(range)
}

impl Val {
    pub(super) fn constant(value: i128) -> Self {
        Val { kind: Kind::Const(value), range: Some((value, value)) }
    }

    pub(super) fn slot(slot: Slot, range: Option<Range>) -> Self {
        Val { kind: Kind::Slot(slot), range }
    }

    /// The true value, where it is a constant.
    pub(super) fn as_const(&self) -> Option<i128> {
        match self.kind {
            Kind::Const(value) if self.range.is_some() => Some(value),
            _ => None,
        }
    }

    /// Whether this is a boolean or a number 0 or 1.
    pub(super) fn is_bit(&self) -> bool {
        self.range.is_some_and(|r| within(r, (0, 1)))
    }

    /// The low 64 bits as slices; `None` for constants.
    pub(super) fn slices(&self) -> Option<Vec<Slice>> {
        match &self.kind {
            Kind::Const(_) => None,
            Kind::Bits(slices) => Some(slices.clone()),
            Kind::Slot(slot) => {
                let mask = match self.range {
                    Some((low, high)) if low >= 0 && high <= UNSIGNED.1 => bits_up_to(high),
                    _ => u64::MAX,
                };
                Some(vec![Slice { slot: *slot, rot: 0, mask, not: false }])
            }
        }
    }

    /// The one slice that it is, not complemented.
    pub(super) fn one_slice(&self) -> Option<Slice> {
        match self.slices()?.as_slice() {
            [slice] if !slice.not => Some(*slice),
            _ => None,
        }
    }

    pub(super) fn bits(slices: Vec<Slice>, range: Option<Range>) -> Self {
        Val { kind: Kind::Bits(slices), range }
    }
}

/// All bits that numbers of 0 to `high` have.
pub(super) fn bits_up_to(high: i128) -> u64 {
    match 128 - high.leading_zeros() {
        0 => 0,
        count => u64::MAX >> (64 - count.min(64)),
    }
}

/// The highest number that these slices can make.
pub(super) fn top(slices: &[Slice]) -> i128 {
    i128::from(slices.iter().fold(0, |all, s| all | s.mask))
}

/// `left | right` where no bit can be set in both: slices side by side.
pub(super) fn beside(left: &Val, right: &Val) -> Option<Val> {
    let (Some((0.., l)), Some((0.., r))) = (left.range, right.range) else { return None };
    let mut slices = left.slices()?;
    let others = right.slices()?;
    let used = |slices: &[Slice]| slices.iter().fold(0, |all, s| all | s.mask);
    if used(&slices) & used(&others) != 0 || slices.len() + others.len() > MAX_SLICES {
        return None;
    }
    slices.extend(others);
    let range = both_unsigned((0, l), (0, r)).map(|high| (0, high.min(top(&slices))));
    Some(Val::bits(slices, range))
}

/// The slot, if this is a slot with its bytes in reverse, and the shift that cuts off the bytes that a short field
/// does not have.
pub(super) fn as_swap(slices: &[Slice]) -> Option<(Slot, u8)> {
    let slot = slices.first()?.slot;
    let count = u8::try_from(slices.len()).ok().filter(|c| [2, 4, 8].contains(c))?;
    let shift = 64 - 8 * count;
    for byte in 0..count {
        // Byte `byte` of the result, counted from the lowest, is byte `count - 1 - byte` of the slot.
        let rot = (8 * (count - 1 - byte)).wrapping_sub(8 * byte) & 63;
        let mask = 0xff << (8 * byte);
        if !slices.contains(&Slice { slot, rot, mask, not: false }) {
            return None;
        }
    }
    Some((slot, shift))
}

/// Constant folding in unbounded arithmetic; `None` where it would not fit.
pub(super) fn fold(op: &str, l: i128, r: i128) -> Option<i128> {
    let value = match op {
        "+" => l + r,
        "-" => l - r,
        "*" => l.checked_mul(r)?,
        "&" => l & r,
        "|" => l | r,
        "^" => l ^ r,
        "<<" => l.checked_mul(1i128.checked_shl(u32::try_from(r).ok()?).filter(|&p| p > 0)?)?,
        ">>" => l >> u32::try_from(r).ok()?.min(127),
        _ => return None,
    };
    // Wider constants stay within what addition and masking can take.
    (value.unsigned_abs() < 1 << 100).then_some(value)
}

pub(super) fn product(l: Range, r: Range) -> Option<Range> {
    let mut low = i128::MAX;
    let mut high = i128::MIN;
    for a in [l.0, l.1] {
        for b in [r.0, r.1] {
            let p = a.checked_mul(b)?;
            low = low.min(p);
            high = high.max(p);
        }
    }
    Some((low, high))
}

/// All bits that either of two non-negative operands may have, for bitwise operations.
pub(super) fn both_unsigned(l: Range, r: Range) -> Option<i128> {
    if l.0 < 0 || r.0 < 0 {
        return None;
    }
    let bits = 128 - l.1.max(r.1).leading_zeros();
    Some(if bits >= 127 { i128::MAX } else { (1 << bits) - 1 })
}
