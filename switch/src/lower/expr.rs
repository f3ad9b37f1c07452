//! Expressions to operations.
//!
//! BMv2 computes with unbounded integers and cuts when it stores; we have 64 bits. The two agree wherever p4c
//! cuts in time, which it does after every operation on `bit<W>`. To verify that, every intermediate value carries
//! the interval it lies in. An operation that needs the true value (a comparison, a right shift) of something known
//! only modulo 2^64 is refused when the program is loaded.

use crate::code::{Op, Slot};
use crate::error::LoadError;
use crate::json::{Expr, Value};
use crate::table::ones;

use super::value::{
    Kind, Range, SIGNED, Slice, UNSIGNED, Val, as_swap, beside, both_unsigned, fold, product, representable,
    within,
};
use super::{Label, Lowering, malformed, unsupported};

/// Kind of 64-bit comparison that gives the true answer.
enum Order {
    Unsigned,
    Signed,
}

impl Lowering<'_> {
    /// The slot that holds a value, computed now if it was not.
    fn in_slot(&mut self, value: &Val) -> Result<Slot, LoadError> {
        match &value.kind {
            Kind::Const(value) => self.layout.constant(*value as u64),
            Kind::Slot(slot) => Ok(*slot),
            Kind::Bits(slices) => {
                let dst = self.layout.temporary()?;
                self.join(dst, slices)?;
                Ok(dst)
            }
        }
    }

    /// Computes slices side by side into `dst`.
    fn join(&mut self, dst: Slot, slices: &[Slice]) -> Result<(), LoadError> {
        if let Some((a, shift)) = as_swap(slices) {
            self.emit(Op::Swap { dst, a, shift });
            return Ok(());
        }
        if let [Slice { slot: a, rot, mask, not }] = *slices {
            self.emit(if not { Op::SliceNot { dst, a, rot, mask } } else { Op::Slice { dst, a, rot, mask } });
            return Ok(());
        }
        let whole = |slot| Slice { slot, rot: 0, mask: u64::MAX, not: false };
        // The first of them must be plain: any will do, they do not overlap.
        let mut plain = slices.to_vec();
        plain.sort_by_key(|slice| slice.not);
        if let Some(first) = plain.first_mut().filter(|first| first.not) {
            let into = self.layout.temporary()?;
            self.emit(Op::SliceNot { dst: into, a: first.slot, rot: first.rot, mask: first.mask });
            *first = whole(into);
        }
        let Some((&first, rest)) = plain.split_first() else {
            let a = self.layout.constant(0)?;
            self.emit(Op::Mov { dst, a });
            return Ok(());
        };
        let mut left = first;
        for (at, &right) in rest.iter().enumerate() {
            // `dst` may be among the slots still to be read: only the last step writes it.
            let into = if at + 1 == rest.len() { dst } else { self.layout.temporary()? };
            self.emit(Op::Join {
                dst: into,
                a: left.slot,
                b: right.slot,
                a_rot: left.rot,
                b_rot: right.rot,
                b_not: right.not,
                a_mask: left.mask,
                b_mask: right.mask,
            });
            left = whole(into);
        }
        Ok(())
    }

    /// Lowers an operand that must be a non-negative number of at most 64 bits.
    pub(crate) fn number(&mut self, value: &Value, place: &str) -> Result<Slot, LoadError> {
        let value = self.expression(value, place)?;
        self.exact(&value, UNSIGNED, "a number", place)?;
        self.in_slot(&value)
    }

    /// Lowers `value` into `dst`, cut to `width` bits.
    pub(crate) fn assign(
        &mut self,
        dst: Slot,
        width: u16,
        value: &Value,
        place: &str,
    ) -> Result<(), LoadError> {
        let value = self.expression(value, place)?;
        let mask = ones(width);
        let fits = value.range.is_some_and(|r| within(r, (0, i128::from(mask))));
        match value.kind {
            Kind::Const(value) => {
                let a = self.layout.constant(value as u64 & mask)?;
                self.emit(Op::Mov { dst, a });
            }
            Kind::Bits(mut slices) => {
                slices.iter_mut().for_each(|s| s.mask &= mask);
                slices.retain(|s| s.mask != 0);
                self.join(dst, &slices)?;
            }
            Kind::Slot(slot) => {
                // Compute straight into the destination if the value has just been computed.
                if self.layout.is_temporary(slot)
                    && let Some(last) = self.last_op()
                    && last.dst().is_some_and(|d| *d == slot)
                    && (fits || last.cut(mask))
                {
                    if let Some(to) = last.dst() {
                        *to = dst;
                    }
                } else if fits {
                    self.emit(Op::Mov { dst, a: slot });
                } else {
                    self.emit(Op::Slice { dst, a: slot, rot: 0, mask });
                }
            }
        }
        Ok(())
    }

    /// Jumps to `no` unless the condition holds; falls through otherwise.
    pub(crate) fn branch(&mut self, cond: &Value, no: Label, place: &str) -> Result<(), LoadError> {
        if let Value::Expr(expr) = cond {
            let operands = (expr.left.as_ref(), expr.right.as_ref());
            match (expr.op.as_str(), operands) {
                ("and", (Some(left), Some(right))) => {
                    self.branch(left, no, place)?;
                    return self.branch(right, no, place);
                }
                ("or", (Some(left), Some(right))) => {
                    let yes = self.label();
                    self.branch_not(left, yes, place)?;
                    self.branch(right, no, place)?;
                    self.bind(yes);
                    return Ok(());
                }
                ("not", (None, Some(inner))) => return self.branch_not(inner, no, place),
                ("d2b" | "b2d", (None, Some(inner))) => return self.branch(inner, no, place),
                ("==" | "!=" | "<" | ">" | "<=" | ">=", (Some(left), Some(right))) => {
                    return self.branch_compare(&expr.op, left, right, no, place);
                }
                _ => {}
            }
        }
        let value = self.expression(cond, place)?;
        self.exact(&value, UNSIGNED, "a condition", place)?;
        match value.kind {
            Kind::Const(0) => self.emit(Op::Jump { to: no }),
            Kind::Const(_) => {}
            _ => {
                let a = self.in_slot(&value)?;
                self.emit(Op::JumpUnless { a, to: no });
            }
        }
        self.layout.release();
        Ok(())
    }

    /// Jumps to `no` if the condition holds; falls through otherwise.
    fn branch_not(&mut self, cond: &Value, no: Label, place: &str) -> Result<(), LoadError> {
        if let Value::Expr(expr) = cond {
            let opposite = match expr.op.as_str() {
                "==" => "!=",
                "!=" => "==",
                "<" => ">=",
                ">=" => "<",
                ">" => "<=",
                "<=" => ">",
                _ => "",
            };
            match (expr.op.as_str(), expr.left.as_ref(), expr.right.as_ref()) {
                ("d2b" | "b2d", None, Some(inner)) => return self.branch_not(inner, no, place),
                ("not", None, Some(inner)) => return self.branch(inner, no, place),
                (_, Some(left), Some(right)) if !opposite.is_empty() => {
                    return self.branch_compare(opposite, left, right, no, place);
                }
                ("and", Some(left), Some(right)) => {
                    let yes = self.label();
                    self.branch(left, yes, place)?;
                    self.branch_not(right, no, place)?;
                    self.bind(yes);
                    return Ok(());
                }
                ("or", Some(left), Some(right)) => {
                    self.branch_not(left, no, place)?;
                    return self.branch_not(right, no, place);
                }
                _ => {}
            }
        }
        let value = self.expression(cond, place)?;
        self.exact(&value, UNSIGNED, "a condition", place)?;
        match value.kind {
            Kind::Const(0) => {}
            Kind::Const(_) => self.emit(Op::Jump { to: no }),
            _ => {
                let a = self.in_slot(&value)?;
                self.emit(Op::JumpIf { a, to: no });
            }
        }
        self.layout.release();
        Ok(())
    }

    fn branch_compare(
        &mut self,
        op: &str,
        left: &Value,
        right: &Value,
        no: Label,
        place: &str,
    ) -> Result<(), LoadError> {
        let left = self.expression(left, place)?;
        let right = self.expression(right, place)?;
        let order = self.order(&left, &right, op, place)?;
        let (a, b) = (self.in_slot(&left)?, self.in_slot(&right)?);
        // The jump is taken when the comparison does not hold.
        let jump = match (op, order) {
            ("==", _) => Op::JumpNe { a, b, to: no },
            ("!=", _) => Op::JumpEq { a, b, to: no },
            ("<", Order::Unsigned) => Op::JumpLe { a: b, b: a, to: no },
            (">", Order::Unsigned) => Op::JumpLe { a, b, to: no },
            ("<=", Order::Unsigned) => Op::JumpLt { a: b, b: a, to: no },
            (">=", Order::Unsigned) => Op::JumpLt { a, b, to: no },
            _ => {
                let held = self.compare(op, &left, &right, place)?;
                let a = self.in_slot(&held)?;
                Op::JumpUnless { a, to: no }
            }
        };
        self.emit(jump);
        self.layout.release();
        Ok(())
    }

    /// Lowers an expression.
    fn expression(&mut self, value: &Value, place: &str) -> Result<Val, LoadError> {
        match value {
            Value::Const { value, .. } => Ok(Val::constant(*value)),
            Value::Bool(value) => Ok(Val::constant(i128::from(*value))),
            Value::Field(header, field) => {
                let at = self.layout.read(header, field, place)?;
                if at.signed {
                    return self.sign_extend(&Val::slot(at.slot, None), at.width);
                }
                Ok(Val::slot(at.slot, Some((0, i128::from(ones(at.width))))))
            }
            Value::Header(header) => Ok(Val::slot(self.layout.valid(header, place)?, Some((0, 1)))),
            Value::Param(index) => {
                let Some(&(slot, width)) = self.params.get(*index) else {
                    return Err(malformed(place, "a parameter of the action", &format!("number {index}")));
                };
                Ok(Val::slot(slot, Some((0, i128::from(ones(width))))))
            }
            Value::Lookahead(offset, width) => {
                if *width == 0 || *width > 64 {
                    return Err(unsupported(place, &format!("a lookahead of {width} bits (1 to 64 are)")));
                }
                let dst = self.layout.temporary()?;
                self.emit(Op::Lookahead { dst, offset: *offset, width: *width });
                Ok(Val::slot(dst, Some((0, i128::from(ones(*width))))))
            }
            Value::Expr(expr) => self.operation(expr, place),
            other => Err(unsupported(place, &format!("{other:?} as a number"))),
        }
    }

    fn operation(&mut self, expr: &Expr, place: &str) -> Result<Val, LoadError> {
        let op = expr.op.as_str();
        let right =
            expr.right.as_ref().ok_or_else(|| malformed(place, "a right operand", &format!("{expr:?}")))?;
        // Unary operations have only a right operand.
        match op {
            "d2b" => {
                let value = self.expression(right, place)?;
                if value.is_bit() {
                    return Ok(value);
                }
                return self.compare("!=", &value, &Val::constant(0), place);
            }
            "b2d" | "valid" => return self.expression(right, place),
            "not" => {
                let value = self.expression(right, place)?;
                return self.compare("==", &value, &Val::constant(0), place);
            }
            "~" => {
                let value = self.expression(right, place)?;
                if let Some(c) = value.as_const() {
                    return Ok(Val::constant(!c));
                }
                let a = self.in_slot(&value)?;
                let dst = self.layout.temporary()?;
                self.emit(Op::Not { dst, a, mask: u64::MAX });
                let range = value.range.map(|(low, high)| (!high, !low)).and_then(representable);
                return Ok(Val::slot(dst, range));
            }
            _ => {}
        }
        if op == "?" {
            return self.choose(expr, right, place);
        }
        let Some(left) = expr.left.as_ref() else {
            // Unary plus and minus.
            let value = self.expression(right, place)?;
            return match op {
                "-" => self.arithmetic("-", &Val::constant(0), &value, place),
                "+" => Ok(value),
                _ => Err(unsupported(place, &format!("operation `{op}`"))),
            };
        };
        match op {
            "two_comp_mod" => {
                let width = self.width(right, place)?;
                let value = self.expression(left, place)?;
                self.sign_extend(&value, width)
            }
            "usat_cast" | "sat_cast" => self.saturate(op, left, right, place),
            "==" | "!=" | "<" | ">" | "<=" | ">=" => {
                let (left, right) = (self.expression(left, place)?, self.expression(right, place)?);
                self.compare(op, &left, &right, place)
            }
            "and" | "or" => {
                let (left, right) = (self.expression(left, place)?, self.expression(right, place)?);
                self.arithmetic(if op == "and" { "&" } else { "|" }, &left, &right, place)
            }
            "+" | "-" | "*" | "/" | "%" | "&" | "|" | "^" | "<<" | ">>" => {
                if let ("&", Value::Expr(inner), Value::Const { value, .. }) = (op, left, right)
                    && let ("~", Some(inner)) = (inner.op.as_str(), inner.right.as_ref())
                    && let Some(value) = self.complement(inner, *value, place)?
                {
                    return Ok(value);
                }
                let (left, right) = (self.expression(left, place)?, self.expression(right, place)?);
                self.arithmetic(op, &left, &right, place)
            }
            _ => Err(unsupported(place, &format!("operation `{op}`"))),
        }
    }

    fn choose(&mut self, expr: &Expr, right: &Value, place: &str) -> Result<Val, LoadError> {
        let (Some(cond), Some(left)) = (expr.cond.as_ref(), expr.left.as_ref()) else {
            return Err(malformed(place, "`?` with three operands", &format!("{expr:?}")));
        };
        let cond = self.expression(cond, place)?;
        let (yes, no) = (self.expression(left, place)?, self.expression(right, place)?);
        if let Some(cond) = cond.as_const() {
            return Ok(if cond != 0 { yes } else { no });
        }
        self.exact(&cond, UNSIGNED, "a condition", place)?;
        let (cond, a, b) = (self.in_slot(&cond)?, self.in_slot(&yes)?, self.in_slot(&no)?);
        let dst = self.layout.temporary()?;
        self.emit(Op::Choose { dst, cond, a, b });
        let range = yes.range.zip(no.range).map(|(y, n)| (y.0.min(n.0), y.1.max(n.1)));
        Ok(Val::slot(dst, range.and_then(representable)))
    }

    /// `~inner & mask` of a slice, as the slice of the complement.
    fn complement(&mut self, inner: &Value, mask: i128, place: &str) -> Result<Option<Val>, LoadError> {
        let value = self.expression(inner, place)?;
        let Ok(mask) = u64::try_from(mask) else { return Ok(None) };
        Ok(match value.slices().as_deref() {
            // Outside its mask the slice is 0 and its complement 1: only bits inside are the slot's.
            Some([slice]) if mask & !slice.mask == 0 => {
                let slice = Slice { mask, not: !slice.not, ..*slice };
                Some(Val::bits(vec![slice], Some((0, i128::from(mask)))))
            }
            _ => None,
        })
    }

    fn arithmetic(&mut self, op: &str, left: &Val, right: &Val, place: &str) -> Result<Val, LoadError> {
        if let (Some(l), Some(r)) = (left.as_const(), right.as_const())
            && let Some(value) = fold(op, l, r)
        {
            return Ok(Val::constant(value));
        }
        match op {
            "&" => {
                if let Some(mask) = right.as_const().filter(|m| within((*m, *m), UNSIGNED)) {
                    return self.mask(left, mask as u64);
                }
                if let Some(mask) = left.as_const().filter(|m| within((*m, *m), UNSIGNED)) {
                    return self.mask(right, mask as u64);
                }
            }
            "|" => {
                if let Some(value) = beside(left, right) {
                    return Ok(value);
                }
            }
            "<<" | ">>" => {
                if let Some(by) = right.as_const() {
                    return self.shift_by(op, left, by, place);
                }
                self.exact(right, UNSIGNED, "a shift's distance", place)?;
            }
            _ => {}
        }
        let pair = left.range.zip(right.range);
        let combine =
            |f: fn(Range, Range) -> Option<Range>| pair.and_then(|(l, r)| f(l, r)).and_then(representable);
        let range = match op {
            "+" => combine(|l, r| Some((l.0 + r.0, l.1 + r.1))),
            "-" => combine(|l, r| Some((l.0 - r.1, l.1 - r.0))),
            "^" => combine(|l, r| both_unsigned(l, r).map(|m| (0, m))),
            _ => None,
        };
        if let ("+" | "-" | "^", Some(l), Some(r)) = (op, left.one_slice(), right.one_slice())
            && (matches!(left.kind, Kind::Bits(_)) || matches!(right.kind, Kind::Bits(_)))
        {
            let dst = self.layout.temporary()?;
            let (a, b, a_rot, b_rot, a_mask, b_mask) = (l.slot, r.slot, l.rot, r.rot, l.mask, r.mask);
            self.emit(match op {
                "+" => Op::AddSlices { dst, a, b, a_rot, b_rot, width: 64, a_mask, b_mask },
                "-" => Op::SubSlices { dst, a, b, a_rot, b_rot, width: 64, a_mask, b_mask },
                _ => Op::XorSlices { dst, a, b, a_rot, b_rot, a_mask, b_mask },
            });
            return Ok(Val::slot(dst, range));
        }
        let (a, b) = (self.in_slot(left)?, self.in_slot(right)?);
        let dst = self.layout.temporary()?;
        let mask = u64::MAX;
        let (code, range) = match op {
            "+" => (Op::Add { dst, a, b, mask }, range),
            "-" => (Op::Sub { dst, a, b, mask }, range),
            "^" => (Op::Xor { dst, a, b, mask }, range),
            "*" => (Op::Mul { dst, a, b, mask }, combine(product)),
            "/" | "%" => {
                self.exact(left, UNSIGNED, "a division's operand", place)?;
                self.exact(right, UNSIGNED, "a division's operand", place)?;
                let range = Some(UNSIGNED);
                if op == "/" {
                    (Op::Div { dst, a, b, mask }, range)
                } else {
                    (Op::Rem { dst, a, b, mask }, range)
                }
            }
            "&" => (Op::And { dst, a, b, mask }, combine(|l, r| both_unsigned(l, r).map(|m| (0, m)))),
            "|" => (Op::Or { dst, a, b, mask }, combine(|l, r| both_unsigned(l, r).map(|m| (0, m)))),
            "<<" => (Op::Shl { dst, a, b, mask }, None),
            ">>" => {
                let range = self.exact_any(left, "a right shift's operand", place)?;
                if range.0 >= 0 {
                    (Op::Shr { dst, a, b, mask }, Some((0, range.1)))
                } else {
                    (Op::Sar { dst, a, b, mask }, Some((range.0, range.1.max(-1))))
                }
            }
            _ => return Err(unsupported(place, &format!("operation `{op}`"))),
        };
        self.emit(code);
        Ok(Val::slot(dst, range))
    }

    /// `value & mask`: of the operation that has just computed `value` if it can, of its slices otherwise.
    fn mask(&mut self, value: &Val, mask: u64) -> Result<Val, LoadError> {
        if value.range.is_some_and(|r| within(r, (0, i128::from(mask)))) && mask & mask.wrapping_add(1) == 0 {
            return Ok(value.clone()); // all ones, and the value has no other bits
        }
        let high = value.range.filter(|r| r.0 >= 0).map_or(i128::from(mask), |r| r.1.min(i128::from(mask)));
        let range = Some((0, high));
        if let Kind::Slot(slot) = value.kind
            && self.layout.is_temporary(slot)
            && let Some(last) = self.last_op()
            && last.dst().is_some_and(|d| *d == slot)
            && last.cut(mask)
        {
            return Ok(Val::slot(slot, range));
        }
        match value.slices() {
            Some(mut slices) => {
                slices.iter_mut().for_each(|s| s.mask &= mask);
                slices.retain(|s| s.mask != 0);
                if slices.is_empty() {
                    return Ok(Val::constant(0));
                }
                Ok(Val::bits(slices, range))
            }
            // A constant beyond 64 bits, which folding left alone.
            None => {
                let a = self.in_slot(value)?;
                Ok(Val::bits(vec![Slice { slot: a, rot: 0, mask, not: false }], range))
            }
        }
    }

    fn shift_by(&mut self, op: &str, left: &Val, by: i128, place: &str) -> Result<Val, LoadError> {
        if by < 0 {
            return Err(malformed(place, "a shift by 0 or more", &by.to_string()));
        }
        if by == 0 {
            return Ok(left.clone());
        }
        let by = u16::try_from(by).unwrap_or(u16::MAX).min(64) as u8;
        let shifted = |to_left: bool| {
            let mut slices = left.slices()?;
            for slice in &mut slices {
                let (rot, mask) = match to_left {
                    true => (slice.rot.wrapping_sub(by), slice.mask.checked_shl(by.into())),
                    false => (slice.rot.wrapping_add(by), slice.mask.checked_shr(by.into())),
                };
                slice.rot = rot & 63;
                slice.mask = mask.unwrap_or(0);
            }
            slices.retain(|s| s.mask != 0);
            Some(slices)
        };
        let empty = |slices: &Vec<Slice>| slices.is_empty();
        if op == "<<" {
            let range = left.range.filter(|_| by < 64).map(|(low, high)| (low << by, high << by));
            return Ok(match shifted(true) {
                Some(slices) if !empty(&slices) => Val::bits(slices, range.and_then(representable)),
                _ => {
                    let value = left.as_const().map_or(0, |v| (v as u64).checked_shl(by.into()).unwrap_or(0));
                    Val { kind: Kind::Const(i128::from(value)), range: None }
                }
            });
        }
        let range = self.exact_any(left, "a right shift's operand", place)?;
        if range.0 >= 0 {
            return Ok(match shifted(false) {
                Some(slices) if !empty(&slices) => Val::bits(slices, Some((range.0 >> by, range.1 >> by))),
                _ => Val::constant(0),
            });
        }
        let a = self.in_slot(left)?;
        let dst = self.layout.temporary()?;
        let b = self.layout.constant(u64::from(by))?;
        self.emit(Op::Sar { dst, a, b, mask: u64::MAX });
        Ok(Val::slot(dst, Some((range.0 >> by, range.1 >> by))))
    }

    fn compare(&mut self, op: &str, left: &Val, right: &Val, place: &str) -> Result<Val, LoadError> {
        if let (Some(l), Some(r)) = (left.as_const(), right.as_const()) {
            let held = match op {
                "==" => l == r,
                "!=" => l != r,
                "<" => l < r,
                ">" => l > r,
                "<=" => l <= r,
                _ => l >= r,
            };
            return Ok(Val::constant(i128::from(held)));
        }
        let order = self.order(left, right, op, place)?;
        let (a, b) = (self.in_slot(left)?, self.in_slot(right)?);
        let dst = self.layout.temporary()?;
        self.emit(match (op, order) {
            ("==", _) => Op::Eq { dst, a, b },
            ("!=", _) => Op::Ne { dst, a, b },
            ("<", Order::Unsigned) => Op::Lt { dst, a, b },
            (">", Order::Unsigned) => Op::Lt { dst, a: b, b: a },
            ("<=", Order::Unsigned) => Op::Le { dst, a, b },
            (_, Order::Unsigned) => Op::Le { dst, a: b, b: a },
            ("<", Order::Signed) => Op::LtSigned { dst, a, b },
            (">", Order::Signed) => Op::LtSigned { dst, a: b, b: a },
            ("<=", Order::Signed) => Op::LeSigned { dst, a, b },
            (_, Order::Signed) => Op::LeSigned { dst, a: b, b: a },
        });
        Ok(Val::slot(dst, Some((0, 1))))
    }

    fn order(&self, left: &Val, right: &Val, op: &str, place: &str) -> Result<Order, LoadError> {
        let ranges = left.range.zip(right.range).map(|(l, r)| (l.0.min(r.0), l.1.max(r.1)));
        match ranges {
            Some(range) if within(range, UNSIGNED) => Ok(Order::Unsigned),
            Some(range) if within(range, SIGNED) => Ok(Order::Signed),
            _ => Err(unsupported(place, &format!("`{op}` of numbers that need more than 64 bits"))),
        }
    }

    fn exact(&self, value: &Val, bounds: Range, what: &str, place: &str) -> Result<(), LoadError> {
        if value.range.is_some_and(|r| within(r, bounds)) {
            Ok(())
        } else {
            Err(unsupported(place, &format!("{what} that may need more than 64 bits or be negative")))
        }
    }

    fn exact_any(&self, value: &Val, what: &str, place: &str) -> Result<Range, LoadError> {
        value.range.ok_or_else(|| unsupported(place, &format!("{what} that needs more than 64 bits")))
    }

    fn width(&self, value: &Value, place: &str) -> Result<u16, LoadError> {
        match value {
            Value::Const { value: 1..=64, .. } => match value {
                Value::Const { value, .. } => Ok(*value as u16),
                _ => Ok(64),
            },
            other => Err(malformed(place, "a width of 1 to 64 bits", &format!("{other:?}"))),
        }
    }

    fn sign_extend(&mut self, value: &Val, width: u16) -> Result<Val, LoadError> {
        let range = (-(1i128 << (width - 1)), (1i128 << (width - 1)) - 1);
        if value.range.is_some_and(|r| within(r, range)) {
            return Ok(value.clone());
        }
        let a = self.in_slot(value)?;
        let dst = self.layout.temporary()?;
        self.emit(Op::SignExtend { dst, a, width });
        Ok(Val::slot(dst, Some(range)))
    }

    fn saturate(&mut self, op: &str, left: &Value, right: &Value, place: &str) -> Result<Val, LoadError> {
        let width = self.width(right, place)?;
        // The only form that p4c makes: a sum or difference, cut to the range of its operands' type.
        if let (Value::Expr(inner), "usat_cast") = (left, op)
            && let ("+" | "-", Some(l), Some(r)) =
                (inner.op.as_str(), inner.left.as_ref(), inner.right.as_ref())
        {
            let (l, r) = (self.expression(l, place)?, self.expression(r, place)?);
            self.exact(&l, UNSIGNED, "a saturating operand", place)?;
            self.exact(&r, UNSIGNED, "a saturating operand", place)?;
            let (a, b) = (self.in_slot(&l)?, self.in_slot(&r)?);
            let dst = self.layout.temporary()?;
            let mask = ones(width);
            self.emit(match inner.op.as_str() {
                "+" => Op::AddSaturating { dst, a, b, mask },
                _ => Op::SubSaturating { dst, a, b },
            });
            return Ok(Val::slot(dst, Some((0, i128::from(mask)))));
        }
        let signed = op == "sat_cast";
        let value = self.expression(left, place)?;
        self.exact(&value, SIGNED, "a saturating operand", place)?;
        let a = self.in_slot(&value)?;
        let dst = self.layout.temporary()?;
        self.emit(Op::Clamp { dst, a, width, signed });
        let range = if signed {
            (-(1i128 << (width - 1)), (1i128 << (width - 1)) - 1)
        } else {
            (0, i128::from(ones(width)))
        };
        Ok(Val::slot(dst, Some(range)))
    }
}
