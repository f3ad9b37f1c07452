//! Expressions to operations.
//!
//! BMv2 computes with unbounded integers and cuts when it stores; we have 64 bits. The two agree wherever p4c
//! cuts in time, which it does after every operation on `bit<W>`. So that nothing is taken on trust, every
//! intermediate value carries the interval it lies in: an operation that needs the true value (a comparison, a
//! right shift) of something known only modulo 2^64 is refused when the program is loaded.

use crate::code::{Op, Slot};
use crate::error::LoadError;
use crate::json::{Expr, Value};
use crate::table::ones;

use super::{Label, Lowering, malformed, unsupported};

/// An intermediate value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Val {
    kind: Kind,
    /// The true value lies in this interval; `None`: only its low 64 bits are known.
    range: Option<(i128, i128)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Const(i128),
    /// The value's low 64 bits, two's complement, are in this slot.
    Slot(Slot),
}

const UNSIGNED: (i128, i128) = (0, u64::MAX as i128);
const SIGNED: (i128, i128) = (i64::MIN as i128, i64::MAX as i128);

fn within(range: (i128, i128), bounds: (i128, i128)) -> bool {
    bounds.0 <= range.0 && range.1 <= bounds.1
}

/// 64 bits can tell the values of such an interval apart.
fn representable(range: (i128, i128)) -> Option<(i128, i128)> {
    (within(range, UNSIGNED) || within(range, SIGNED)).then_some(range)
}

impl Val {
    fn constant(value: i128) -> Self {
        Val { kind: Kind::Const(value), range: Some((value, value)) }
    }

    fn slot(slot: Slot, range: Option<(i128, i128)>) -> Self {
        Val { kind: Kind::Slot(slot), range }
    }

    fn as_const(self) -> Option<i128> {
        match self.kind {
            Kind::Const(value) => Some(value),
            Kind::Slot(_) => None,
        }
    }

    /// A boolean or a number 0 or 1.
    fn is_bit(self) -> bool {
        self.range.is_some_and(|r| within(r, (0, 1)))
    }
}

/// Does one unsigned or one signed comparison give the true answer?
enum Order {
    Unsigned,
    Signed,
}

impl Lowering<'_> {
    /// The slot that holds a value.
    pub(crate) fn in_slot(&mut self, value: Val) -> Result<Slot, LoadError> {
        match value.kind {
            Kind::Const(value) => self.layout.constant(value as u64),
            Kind::Slot(slot) => Ok(slot),
        }
    }

    /// Lowers an operand that must be a non-negative number of at most 64 bits.
    pub(crate) fn number(&mut self, value: &Value, place: &str) -> Result<Slot, LoadError> {
        let value = self.expression(value, place)?;
        self.exact(value, UNSIGNED, "a number", place)?;
        self.in_slot(value)
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
        let needs_cut = !value.range.is_some_and(|r| within(r, (0, i128::from(mask))));
        if let Kind::Slot(slot) = value.kind
            && self.layout.is_temporary(slot)
            && let Some(last) = self.last_op()
        {
            // Compute straight into the destination.
            if let Some((to, cut)) = last.result()
                && *to == slot
            {
                *to = dst;
                *cut &= if needs_cut { mask } else { u64::MAX };
                return Ok(());
            }
            if let Op::Eq { dst: to, .. }
            | Op::Ne { dst: to, .. }
            | Op::Lt { dst: to, .. }
            | Op::Le { dst: to, .. }
            | Op::LtSigned { dst: to, .. }
            | Op::LeSigned { dst: to, .. } = last
                && *to == slot
            {
                *to = dst;
                return Ok(());
            }
        }
        let a = match value.kind {
            Kind::Const(value) => self.layout.constant(value as u64 & mask)?,
            Kind::Slot(slot) => slot,
        };
        self.emit(Op::Mov { dst, a, mask: if needs_cut { mask } else { u64::MAX } });
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
                    let (yes, second) = (self.label(), self.label());
                    self.branch(left, second, place)?;
                    self.emit(Op::Jump { to: yes });
                    self.bind(second);
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
        self.exact(value, UNSIGNED, "a condition", place)?;
        match value.kind {
            Kind::Const(0) => self.emit(Op::Jump { to: no }),
            Kind::Const(_) => {}
            Kind::Slot(a) => self.emit(Op::JumpUnless { a, to: no }),
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
                ("and" | "or", ..) => {
                    let yes = self.label();
                    self.branch(cond, yes, place)?;
                    self.emit(Op::Jump { to: no });
                    self.bind(yes);
                    return Ok(());
                }
                _ => {}
            }
        }
        let value = self.expression(cond, place)?;
        self.exact(value, UNSIGNED, "a condition", place)?;
        match value.kind {
            Kind::Const(0) => {}
            Kind::Const(_) => self.emit(Op::Jump { to: no }),
            Kind::Slot(a) => self.emit(Op::JumpIf { a, to: no }),
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
        let order = self.order(left, right, op, place)?;
        let (a, b) = (self.in_slot(left)?, self.in_slot(right)?);
        // The jump is taken when the comparison does not hold.
        let jump = match (op, order) {
            ("==", _) => Op::JumpNe { a, b, to: no },
            ("!=", _) => Op::JumpEq { a, b, to: no },
            ("<", Order::Unsigned) => Op::JumpLe { a: b, b: a, to: no },
            (">", Order::Unsigned) => Op::JumpLe { a, b, to: no },
            ("<=", Order::Unsigned) => Op::JumpLt { a: b, b: a, to: no },
            (">=", Order::Unsigned) => Op::JumpLt { a, b, to: no },
            _ => {
                let held = self.compare(op, left, right, place)?;
                let a = self.in_slot(held)?;
                Op::JumpUnless { a, to: no }
            }
        };
        self.emit(jump);
        self.layout.release();
        Ok(())
    }

    /// Lowers an expression.
    pub(crate) fn expression(&mut self, value: &Value, place: &str) -> Result<Val, LoadError> {
        match value {
            Value::Const { value, .. } => Ok(Val::constant(*value)),
            Value::Bool(value) => Ok(Val::constant(i128::from(*value))),
            Value::Field(header, field) => {
                let at = self.layout.read(header, field, place)?;
                if at.signed {
                    return self.sign_extend(Val::slot(at.slot, None), at.width);
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
                return self.compare("!=", value, Val::constant(0), place);
            }
            "b2d" | "valid" => return self.expression(right, place),
            "not" => {
                let value = self.expression(right, place)?;
                return self.compare("==", value, Val::constant(0), place);
            }
            "~" => {
                let value = self.expression(right, place)?;
                if let Some(c) = value.as_const() {
                    return Ok(Val::constant(!c));
                }
                let a = self.in_slot(value)?;
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
                "-" => self.arithmetic("-", Val::constant(0), value, place),
                "+" => Ok(value),
                _ => Err(unsupported(place, &format!("operation `{op}`"))),
            };
        };
        match op {
            "two_comp_mod" => {
                let width = self.width(right, place)?;
                let value = self.expression(left, place)?;
                self.sign_extend(value, width)
            }
            "usat_cast" | "sat_cast" => self.saturate(op, left, right, place),
            "==" | "!=" | "<" | ">" | "<=" | ">=" => {
                let (left, right) = (self.expression(left, place)?, self.expression(right, place)?);
                self.compare(op, left, right, place)
            }
            "and" | "or" => {
                let (left, right) = (self.expression(left, place)?, self.expression(right, place)?);
                self.arithmetic(if op == "and" { "&" } else { "|" }, left, right, place)
            }
            "+" | "-" | "*" | "/" | "%" | "&" | "|" | "^" | "<<" | ">>" => {
                let (left, right) = (self.expression(left, place)?, self.expression(right, place)?);
                self.arithmetic(op, left, right, place)
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
        self.exact(cond, UNSIGNED, "a condition", place)?;
        let (cond, a, b) = (self.in_slot(cond)?, self.in_slot(yes)?, self.in_slot(no)?);
        let dst = self.layout.temporary()?;
        self.emit(Op::Choose { dst, cond, a, b });
        let range = yes.range.zip(no.range).map(|(y, n)| (y.0.min(n.0), y.1.max(n.1)));
        Ok(Val::slot(dst, range.and_then(representable)))
    }

    fn arithmetic(&mut self, op: &str, left: Val, right: Val, place: &str) -> Result<Val, LoadError> {
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
            "<<" | ">>" => {
                if let Some(by) = right.as_const() {
                    return self.shift_by(op, left, by, place);
                }
                self.exact(right, UNSIGNED, "a shift's distance", place)?;
            }
            _ => {}
        }
        let pair = left.range.zip(right.range);
        let combine = |f: fn((i128, i128), (i128, i128)) -> Option<(i128, i128)>| {
            pair.and_then(|(l, r)| f(l, r)).and_then(representable)
        };
        let (a, b) = (self.in_slot(left)?, self.in_slot(right)?);
        let dst = self.layout.temporary()?;
        let mask = u64::MAX;
        let (code, range) = match op {
            "+" => (Op::Add { dst, a, b, mask }, combine(|l, r| Some((l.0 + r.0, l.1 + r.1)))),
            "-" => (Op::Sub { dst, a, b, mask }, combine(|l, r| Some((l.0 - r.1, l.1 - r.0)))),
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
            "^" => (Op::Xor { dst, a, b, mask }, combine(|l, r| both_unsigned(l, r).map(|m| (0, m)))),
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

    /// `value & mask`, folded into the operation that computed `value` where that is possible.
    fn mask(&mut self, value: Val, mask: u64) -> Result<Val, LoadError> {
        if value.range.is_some_and(|r| within(r, (0, i128::from(mask)))) && (mask & mask.wrapping_add(1)) == 0
        {
            return Ok(value); // all ones, and the value has no other bits
        }
        let high = value.range.filter(|r| r.0 >= 0).map_or(i128::from(mask), |r| r.1.min(i128::from(mask)));
        let range = Some((0, high));
        let a = self.in_slot(value)?;
        if self.layout.is_temporary(a)
            && let Some((dst, cut)) = self.last_op().and_then(Op::result)
            && *dst == a
        {
            *cut &= mask;
            return Ok(Val::slot(a, range));
        }
        let dst = self.layout.temporary()?;
        self.emit(Op::Mov { dst, a, mask });
        Ok(Val::slot(dst, range))
    }

    fn shift_by(&mut self, op: &str, left: Val, by: i128, place: &str) -> Result<Val, LoadError> {
        if by < 0 {
            return Err(malformed(place, "a shift by 0 or more", &by.to_string()));
        }
        if by == 0 {
            return Ok(left);
        }
        let by = u16::try_from(by).unwrap_or(u16::MAX).min(64);
        let a = self.in_slot(left)?;
        let dst = self.layout.temporary()?;
        if op == "<<" {
            let range = left.range.filter(|_| by < 64).map(|(low, high)| (low << by, high << by));
            self.emit(Op::ShlBy { dst, a, by, mask: u64::MAX });
            return Ok(Val::slot(dst, range.and_then(representable)));
        }
        let range = self.exact_any(left, "a right shift's operand", place)?;
        if range.0 < 0 {
            let b = self.layout.constant(u64::from(by))?;
            self.emit(Op::Sar { dst, a, b, mask: u64::MAX });
        } else {
            self.emit(Op::ShrBy { dst, a, by, mask: u64::MAX });
        }
        Ok(Val::slot(dst, Some((range.0 >> by, range.1 >> by))))
    }

    fn compare(&mut self, op: &str, left: Val, right: Val, place: &str) -> Result<Val, LoadError> {
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

    fn order(&self, left: Val, right: Val, op: &str, place: &str) -> Result<Order, LoadError> {
        let ranges = left.range.zip(right.range).map(|(l, r)| (l.0.min(r.0), l.1.max(r.1)));
        match ranges {
            Some(range) if within(range, UNSIGNED) => Ok(Order::Unsigned),
            Some(range) if within(range, SIGNED) => Ok(Order::Signed),
            _ => Err(unsupported(place, &format!("`{op}` of numbers that need more than 64 bits"))),
        }
    }

    fn exact(&self, value: Val, bounds: (i128, i128), what: &str, place: &str) -> Result<(), LoadError> {
        if value.range.is_some_and(|r| within(r, bounds)) {
            Ok(())
        } else {
            Err(unsupported(place, &format!("{what} that may need more than 64 bits or be negative")))
        }
    }

    fn exact_any(&self, value: Val, what: &str, place: &str) -> Result<(i128, i128), LoadError> {
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

    fn sign_extend(&mut self, value: Val, width: u16) -> Result<Val, LoadError> {
        let range = (-(1i128 << (width - 1)), (1i128 << (width - 1)) - 1);
        if value.range.is_some_and(|r| within(r, range)) {
            return Ok(value);
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
            self.exact(l, UNSIGNED, "a saturating operand", place)?;
            self.exact(r, UNSIGNED, "a saturating operand", place)?;
            let (a, b) = (self.in_slot(l)?, self.in_slot(r)?);
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
        self.exact(value, SIGNED, "a saturating operand", place)?;
        let a = self.in_slot(value)?;
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

/// Constant folding in unbounded arithmetic; `None` where it would not fit.
fn fold(op: &str, l: i128, r: i128) -> Option<i128> {
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

fn product(l: (i128, i128), r: (i128, i128)) -> Option<(i128, i128)> {
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

/// For bitwise operations on non-negative operands: all bits that either may have.
fn both_unsigned(l: (i128, i128), r: (i128, i128)) -> Option<i128> {
    if l.0 < 0 || r.0 < 0 {
        return None;
    }
    let bits = 128 - l.1.max(r.1).leading_zeros();
    Some(if bits >= 127 { i128::MAX } else { (1 << bits) - 1 })
}
