//! Parser states. A state that cannot go on (a frame too short, a failed `verify`) ends the parser with
//! `parser_error` set, and the packet goes on to ingress, as on BMv2.

use std::collections::BTreeMap;

use crate::code::{Op, Pc, SelectCode};
use crate::entry::MatchKind;
use crate::error::LoadError;
use crate::json::{ParseState, ParserOp, Primitive, RawValue, Value, hex_words};
use crate::table::scan::ScanKey;

use super::{Label, Lowering, fits_u16, malformed, unknown, unsupported};

impl Lowering<'_> {
    /// Lowers the program's one parser; returns its entry point.
    pub(super) fn all_parsers(&mut self) -> Result<Pc, LoadError> {
        let document = self.document;
        let parser = match document.parsers.as_slice() {
            [parser] => parser,
            [] => return Err(malformed("program", "a parser", "none")),
            [_, second, ..] => {
                return Err(unsupported("program", &format!("parser `{}` beside another", second.name)));
            }
        };
        let accept = self.label();
        let mut states = BTreeMap::new();
        for state in &parser.parse_states {
            let label = self.label();
            states.insert(state.name.as_str(), label);
        }
        let place = format!("parser `{}`", parser.name);
        let find = |name: &Option<String>| match name {
            None => Ok(accept),
            Some(name) => states.get(name.as_str()).copied().ok_or_else(|| unknown(&place, "state", name)),
        };
        let start = self.here();
        let init = find(&parser.init_state)?;
        self.emit(Op::Jump { to: init });
        for state in &parser.parse_states {
            self.bind(states[state.name.as_str()]);
            let place = format!("parser state `{}`", state.name);
            for op in &state.parser_ops {
                self.parser_op(op, &place)?;
                self.layout.release();
            }
            self.transitions(state, &find, accept, &place)?;
        }
        self.bind(accept);
        self.emit(Op::End);
        Ok(start)
    }

    fn parser_op(&mut self, op: &ParserOp, place: &str) -> Result<(), LoadError> {
        let what = format!("parser operation `{}`", op.op);
        if op.op == "primitive" {
            let [json] = op.parameters.as_slice() else {
                return Err(malformed(
                    place,
                    "one primitive",
                    &format!("{} parameters", op.parameters.len()),
                ));
            };
            let primitive: Primitive = serde_json::from_value(json.clone())
                .map_err(|e| malformed(place, "a primitive", &format!("{json} ({e})")))?;
            return self.primitive(&primitive, &mut 0, place);
        }
        let mut values = Vec::new();
        for json in &op.parameters {
            let raw: RawValue = serde_json::from_value(json.clone())
                .map_err(|e| malformed(place, "a type-value object", &format!("{json} ({e})")))?;
            values.push(raw.parse(place)?);
        }
        match (op.op.as_str(), values.as_slice()) {
            ("extract", [Value::Header(header)]) => {
                let header = self.layout.header(header, place)?;
                self.emit(Op::Extract { header });
            }
            ("set", [Value::Field(header, field), value]) => {
                self.assign_field(header, field, value, &mut 0, place)?;
            }
            ("advance", [distance]) => {
                let a = self.number(distance, place)?;
                self.emit(Op::Advance { a });
            }
            ("verify", [cond, error]) => {
                let a = self.number(cond, place)?;
                let error = self.number(error, place)?;
                self.layout.optional("standard_metadata", "parser_error")?;
                self.emit(Op::Verify { a, error });
            }
            _ => return Err(unsupported(place, &format!("{what} with operands {values:?}"))),
        }
        Ok(())
    }

    fn transitions(
        &mut self,
        state: &ParseState,
        find: &dyn Fn(&Option<String>) -> Result<Label, LoadError>,
        accept: Label,
        place: &str,
    ) -> Result<(), LoadError> {
        let mut fields = Vec::new();
        for raw in &state.transition_key {
            let value = raw.parse(place)?;
            let width = match &value {
                Value::Field(header, field) => self.layout.read(header, field, place)?.width,
                Value::Lookahead(_, width) => *width,
                other => return Err(unsupported(place, &format!("a select on {other:?}"))),
            };
            fields.push((MatchKind::Ternary, self.number(&value, place)?, width));
        }
        let key = ScanKey::new(&fields);
        let bytes: Vec<usize> = fields.iter().map(|f| usize::from(f.2.div_ceil(8))).collect();
        let mut select = SelectCode { key, words: Vec::new(), to: Vec::new(), otherwise: accept };
        for transition in &state.transitions {
            let next = find(&transition.next_state)?;
            let kind = match (&transition.r#type, transition.value.as_deref()) {
                (None, Some("default")) => "default",
                (None, _) => "hexstr",
                (Some(kind), _) => kind,
            };
            match (kind, transition.value.as_deref()) {
                ("default", _) => {
                    select.otherwise = next;
                    break; // later ones are never reached
                }
                ("hexstr", Some(text)) => {
                    let words = |text: &str| {
                        let expected = format!("{} bytes in hexadecimal", bytes.iter().sum::<usize>());
                        hex_words(text, &bytes).ok_or_else(|| malformed(place, &expected, text))
                    };
                    let values = words(text)?;
                    let masks = match &transition.mask {
                        Some(mask) => words(mask)?,
                        None => vec![u64::MAX; values.len()],
                    };
                    let pairs: Vec<(u64, u64)> = values
                        .iter()
                        .zip(&masks)
                        .zip(&fields)
                        .map(|((&value, &mask), &(_, _, width))| {
                            (value & mask, mask & crate::table::ones(width))
                        })
                        .collect();
                    // A value with bits that its field does not have never matches.
                    if pairs.iter().all(|&(value, mask)| value & !mask == 0) {
                        select.key.pack_entry(&pairs, &mut select.words);
                        select.to.push(next);
                    }
                }
                (kind, _) => return Err(unsupported(place, &format!("transition of type `{kind}`"))),
            }
        }
        if select.to.is_empty() {
            self.emit(Op::Jump { to: select.otherwise });
        } else {
            fits_u16("parser states", self.selects.len() + 1)?;
            self.emit(Op::Select { select: self.selects.len() as u16 });
            self.selects.push(select);
        }
        self.layout.release();
        Ok(())
    }
}
