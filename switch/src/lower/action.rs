//! Action bodies, and the primitives they are made of.

use crate::code::{ActionCode, Op, Slot};
use crate::entry::ActionRef;
use crate::error::LoadError;
use crate::hash::{Algorithm, CalculationCode, InputPart};
use crate::json::{Action, Primitive, Value};

use super::{Label, Lowering, fits_u16, malformed, unknown, unsupported};

/// `standard_metadata.egress_spec` of a packet to drop, BMv2's default.
pub(crate) const DROP_PORT: u64 = 511;

impl Lowering<'_> {
    /// Lowers all actions that tables may run, in the order of the document.
    pub(super) fn all_actions(&mut self) -> Result<(), LoadError> {
        let document = self.document;
        fits_u16("actions", document.actions.len())?;
        for action in &document.actions {
            let info = Self::new_action_info(action)?;
            let base = self.layout.parameters(info.params.len())?;
            self.params =
                info.params.iter().enumerate().map(|(at, p)| (base + at as Slot, p.width)).collect();
            let start = self.here();
            self.barrier = self.code.len();
            let end = self.label();
            self.body(action, end)?;
            self.bind(end);
            self.emit(Op::Return);
            self.params.clear();
            let reference = ActionRef(self.actions.len() as u16);
            if self.action_ids.insert(action.id, reference).is_some() {
                return Err(malformed(
                    "program",
                    "actions with different ids",
                    &format!("id {} twice", action.id),
                ));
            }
            self.action_code.push(ActionCode { start, param_base: base, params: info.params.len() as u16 });
            self.actions.push(info);
        }
        Ok(())
    }

    /// Lowers an action's body; `end` is bound after it by the caller.
    pub(super) fn body(&mut self, action: &Action, end: Label) -> Result<(), LoadError> {
        let place = format!("action `{}`", action.name);
        // Offsets of jumps count primitives.
        let starts: Vec<Label> = action.primitives.iter().map(|_| self.label()).collect();
        let target =
            |offset: usize| if offset == starts.len() { Some(end) } else { starts.get(offset).copied() };
        let mut jumped_to = vec![false; starts.len() + 1];
        for primitive in action.primitives.iter().filter(|p| p.op.starts_with("_jump")) {
            let offset = jump_offset(primitive, &place)?;
            *jumped_to.get_mut(offset).ok_or_else(|| bad_jump(&place, offset))? = true;
        }
        let mut touched = 0;
        for (at, primitive) in action.primitives.iter().enumerate() {
            if jumped_to[at] {
                self.bind(starts[at]);
                touched = 0;
            }
            match primitive.op.as_str() {
                "_jump" => {
                    let offset = jump_offset(primitive, &place)?;
                    let to = target(offset).ok_or_else(|| bad_jump(&place, offset))?;
                    self.emit(Op::Jump { to });
                }
                "_jump_if_zero" => {
                    let offset = jump_offset(primitive, &place)?;
                    let to = target(offset).ok_or_else(|| bad_jump(&place, offset))?;
                    let cond = primitive.parameters[0].parse(&place)?;
                    if offset > at {
                        self.branch(&cond, to, &place)?;
                    } else {
                        // Backwards: by way of an unconditional jump, which counts rounds.
                        let (back, on) = (self.label(), self.label());
                        self.branch(&cond, back, &place)?;
                        self.emit(Op::Jump { to: on });
                        self.bind(back);
                        self.emit(Op::Jump { to });
                        self.bind(on);
                    }
                    touched = 0;
                }
                _ => self.primitive(primitive, &mut touched, &place)?,
            }
            self.layout.release();
        }
        Ok(())
    }

    /// Lowers one primitive. `touched` holds the headers already marked as written on the way here.
    pub(super) fn primitive(
        &mut self,
        primitive: &Primitive,
        touched: &mut u64,
        place: &str,
    ) -> Result<(), LoadError> {
        let mut values = Vec::with_capacity(primitive.parameters.len());
        for raw in &primitive.parameters {
            values.push(raw.parse(place)?);
        }
        match (primitive.op.as_str(), values.as_slice()) {
            ("no_op" | "log_msg", _) => {}
            ("assign", [Value::Field(header, field), value]) => {
                self.assign_field(header, field, value, touched, place)?;
            }
            ("assign_header", [Value::Header(dst), Value::Header(src)]) => {
                self.assign_header(dst, src, place)?
            }
            ("add_header", [Value::Header(header)]) => {
                let header = self.layout.header(header, place)?;
                self.emit(Op::AddHeader { header });
            }
            ("remove_header", [Value::Header(header)]) => {
                let header = self.layout.header(header, place)?;
                self.emit(Op::RemoveHeader { header });
            }
            ("mark_to_drop", [Value::Header(metadata)]) => {
                let drop = Value::Const { value: i128::from(DROP_PORT), bits: None };
                self.assign_field(metadata, "egress_spec", &drop, touched, place)?;
                if let Some(dst) = self.layout.optional(metadata, "mcast_grp")? {
                    let a = self.layout.constant(0)?;
                    self.emit(Op::Mov { dst, a });
                }
            }
            ("count", [Value::Counter(name), index]) => {
                let counter = self.counters.iter().position(|c| c.name == *name);
                let counter = counter.ok_or_else(|| unknown(place, "counter", name))? as u16;
                let index = self.number(index, place)?;
                self.emit(Op::Count { counter, index });
            }
            ("register_read", [Value::Field(header, field), Value::Register(name), index]) => {
                let register = self.register(name, place)?;
                let index = self.number(index, place)?;
                let cell = self.registers[usize::from(register)].width;
                self.compute(header, field, touched, place, cell, |dst| Op::ReadRegister {
                    dst,
                    register,
                    index,
                })?;
            }
            ("register_write", [Value::Register(name), index, value]) => {
                let register = self.register(name, place)?;
                let index = self.number(index, place)?;
                let a = self.layout.temporary()?;
                let width = self.registers[usize::from(register)].width;
                self.assign(a, width, value, place)?;
                self.emit(Op::WriteRegister { register, index, a });
            }
            (
                "modify_field_with_hash_based_offset",
                [Value::Field(header, field), base, Value::Calculation(name), size],
            ) => {
                let &calculation =
                    self.calculation_names.get(name).ok_or_else(|| unknown(place, "calculation", name))?;
                let bits = self.calculations[usize::from(calculation)].bits();
                let in_full =
                    |size: &Value| matches!(size, Value::Const { value, .. } if *value >= 1 << bits);
                if matches!(base, Value::Const { value: 0, .. }) && in_full(size) {
                    let op = |dst| Op::Calculate { dst, calculation };
                    self.compute(header, field, touched, place, bits, op)?;
                } else {
                    let base = self.number(base, place)?;
                    let size = self.number(size, place)?;
                    let op = |dst| Op::Hash { dst, calculation, base, size };
                    self.compute(header, field, touched, place, 64, op)?;
                }
            }
            ("modify_field_rng_uniform", [Value::Field(header, field), low, high]) => {
                let low = self.number(low, place)?;
                let high = self.number(high, place)?;
                self.compute(header, field, touched, place, 64, |dst| Op::Random { dst, low, high })?;
            }
            ("truncate", [length]) => {
                let a = self.number(length, place)?;
                self.emit(Op::Truncate { a });
            }
            ("assert" | "assume", [cond]) => {
                let a = self.number(cond, place)?;
                self.emit(Op::Assert { a });
            }
            ("exit", []) => self.emit(Op::End),
            // Known primitives with operands that are not: say which.
            (
                op @ ("assign"
                | "assign_header"
                | "add_header"
                | "remove_header"
                | "mark_to_drop"
                | "count"
                | "register_read"
                | "register_write"
                | "modify_field_with_hash_based_offset"
                | "modify_field_rng_uniform"
                | "truncate"
                | "assert"
                | "assume"
                | "exit"),
                values,
            ) => {
                return Err(unsupported(place, &format!("primitive `{op}` with operands {values:?}")));
            }
            (op, _) => return Err(unsupported(place, &format!("primitive `{op}`"))),
        }
        Ok(())
    }

    pub(super) fn assign_field(
        &mut self,
        header: &str,
        field: &str,
        value: &Value,
        touched: &mut u64,
        place: &str,
    ) -> Result<(), LoadError> {
        let parts = self.layout.parts(header, field);
        if parts.len() > 1 {
            return self.assign_wide((header, field), &parts, value, touched, place);
        }
        let (at, flag) = self.layout.write(header, field, place)?;
        self.assign(at.slot, at.width, value, place)?;
        self.touch(flag, touched);
        Ok(())
    }

    /// Assigns a field of more than 64 bits: a constant, or another field of the same width.
    fn assign_wide(
        &mut self,
        (header, field): (&str, &str),
        parts: &[String],
        value: &Value,
        touched: &mut u64,
        place: &str,
    ) -> Result<(), LoadError> {
        let from = match value {
            Value::Field(header, field) => self.layout.parts(header, field),
            _ => Vec::new(),
        };
        for (at, part) in parts.iter().enumerate() {
            let part_value = match value {
                Value::Const { value, .. } if *value >= 0 => {
                    Value::Const { value: if at + 1 == parts.len() { *value } else { 0 }, bits: None }
                }
                Value::Field(header, _) if from.len() == parts.len() => {
                    Value::Field(header.clone(), from[at].clone())
                }
                _ => {
                    let what =
                        format!("an assignment to `{header}.{field}`, of more than 64 bits, that is no copy");
                    return Err(unsupported(place, &what));
                }
            };
            self.assign_field(header, part, &part_value, touched, place)?;
        }
        Ok(())
    }

    /// Emits an operation that computes up to `bits` bits into a field.
    fn compute(
        &mut self,
        header: &str,
        field: &str,
        touched: &mut u64,
        place: &str,
        bits: u16,
        op: impl FnOnce(Slot) -> Op,
    ) -> Result<(), LoadError> {
        let (at, flag) = self.layout.write(header, field, place)?;
        if at.width >= bits {
            self.emit(op(at.slot));
        } else {
            let a = self.layout.temporary()?;
            self.emit(op(a));
            self.emit(Op::Slice { dst: at.slot, a, rot: 0, mask: crate::table::ones(at.width) });
        }
        self.touch(flag, touched);
        Ok(())
    }

    fn touch(&mut self, flag: u64, touched: &mut u64) {
        if flag & !*touched != 0 {
            *touched |= flag;
            self.emit(Op::Touch { headers: flag });
        }
    }

    fn assign_header(&mut self, dst: &str, src: &str, place: &str) -> Result<(), LoadError> {
        if self.layout.is_metadata(dst) && self.layout.is_metadata(src) {
            for field in self.layout.field_names(dst, place)? {
                let value = Value::Field(src.to_owned(), field.clone());
                self.assign_field(dst, &field, &value, &mut 0, place)?;
                self.layout.release();
            }
            return Ok(());
        }
        let (dst, src) = (self.layout.header(dst, place)?, self.layout.header(src, place)?);
        let copy = self.layout.copy(dst, src);
        self.emit(Op::CopyHeader { copy });
        Ok(())
    }

    fn register(&self, name: &str, place: &str) -> Result<u16, LoadError> {
        let found = self.registers.iter().position(|r| r.name == name);
        found.map(|at| at as u16).ok_or_else(|| unknown(place, "register", name))
    }

    /// Lowers all named calculations.
    pub(super) fn all_calculations(&mut self) -> Result<(), LoadError> {
        let document = self.document;
        fits_u16("calculations", document.calculations.len())?;
        for calculation in &document.calculations {
            let place = format!("calculation `{}`", calculation.name);
            let algorithm = Algorithm::named(&calculation.algo)
                .ok_or_else(|| unsupported(&place, &format!("algorithm `{}`", calculation.algo)))?;
            let mut parts = Vec::new();
            let mut payload = false;
            for raw in &calculation.input {
                if payload {
                    return Err(unsupported(&place, "input after the payload"));
                }
                match raw.parse(&place)? {
                    Value::Payload => payload = true,
                    Value::Header(header) => {
                        for field in self.layout.field_names(&header, &place)? {
                            parts.push(self.input_field(&header, &field, &place)?);
                        }
                    }
                    Value::Field(header, field) => {
                        for part in self.layout.parts(&header, &field) {
                            parts.push(self.input_field(&header, &part, &place)?);
                        }
                    }
                    Value::Const { value, bits: Some(width) } if value >= 0 && width > 0 => {
                        let slot = self.layout.constant(value as u64)?;
                        parts.push(InputPart { slot, width: u32::from(width), valid: None });
                    }
                    other => return Err(unsupported(&place, &format!("input {other:?}"))),
                }
            }
            self.calculation_names.insert(calculation.name.clone(), self.calculations.len() as u16);
            self.calculations.push(CalculationCode::new(algorithm, parts, payload));
        }
        Ok(())
    }

    fn input_field(&mut self, header: &str, field: &str, place: &str) -> Result<InputPart, LoadError> {
        let at = self.layout.read(header, field, place)?;
        let valid =
            if self.layout.is_metadata(header) { None } else { Some(self.layout.valid(header, place)?) };
        Ok(InputPart { slot: at.slot, width: u32::from(at.width), valid })
    }
}

fn jump_offset(primitive: &Primitive, place: &str) -> Result<usize, LoadError> {
    let at = if primitive.op == "_jump" { 0 } else { 1 };
    let raw = primitive.parameters.get(at).filter(|_| primitive.parameters.len() == at + 1);
    match raw.map(|raw| raw.parse(place)).transpose()? {
        Some(Value::Const { value, .. }) if value >= 0 => Ok(usize::try_from(value).unwrap_or(usize::MAX)),
        other => Err(malformed(
            place,
            &format!("`{}` with a constant offset", primitive.op),
            &format!("{other:?}"),
        )),
    }
}

fn bad_jump(place: &str, offset: usize) -> LoadError {
    malformed(place, "jumps to primitives of the action", &format!("a jump to {offset}"))
}
