//! Controls: tables, conditionals and the flow between them; and checksums.
//!
//! The flow of a control becomes straight-line code wherever it can: a node's successor is laid out right
//! after it. p4c wraps each statement outside a table into a *dummy table*, keyless and with a constant
//! default action; these are not looked up at all, their action stands in the flow.

use std::collections::{BTreeMap, BTreeSet};

use crate::code::{ActionCode, Op, Pc, Slot};
use crate::entry::{ActionCall, ActionRef, MatchKind};
use crate::error::LoadError;
use crate::json::{Action, Conditional, Table, Value, hex_u64};
use crate::program::{Entries, KeyField, TableCode, TableInfo, TableKind};
use crate::table::row::Shape;
use crate::table::scan::ScanKey;
use crate::table::{ones, pack_parts};

use super::{Label, Lowering, fits_u16, malformed, unknown, unsupported};

impl<'a> Lowering<'a> {
    /// Lowers the tables themselves; their places in the flow come later.
    pub(super) fn all_tables(&mut self) -> Result<(), LoadError> {
        let document = self.document;
        for pipeline in &document.pipelines {
            for table in &pipeline.tables {
                self.table(table)?;
            }
        }
        fits_u16("tables", self.tables.len())
    }

    fn table(&mut self, table: &Table) -> Result<(), LoadError> {
        let place = format!("table `{}`", table.name);
        if table.r#type != "simple" {
            return Err(unsupported(&place, &format!("implementation `{}`", table.r#type)));
        }
        if table.support_timeout {
            return Err(unsupported(&place, "ageing (support_timeout)"));
        }
        if let Some(meter) = &table.direct_meters {
            return Err(unsupported(&place, &format!("direct meter `{meter}`")));
        }
        let mut fields = Vec::new();
        let mut key = Vec::new();
        for part in &table.key {
            let (kind, header, field) = match (part.match_type.as_str(), &part.target) {
                ("valid", serde_json::Value::String(header)) => {
                    (MatchKind::Exact, header.clone(), "$valid$".into())
                }
                (kind, target) => {
                    let pair: (String, String) = serde_json::from_value(target.clone())
                        .map_err(|_| malformed(&place, "a key of [header, field]", &target.to_string()))?;
                    let kind = match kind {
                        "exact" => MatchKind::Exact,
                        "lpm" => MatchKind::Lpm,
                        "ternary" | "optional" => MatchKind::Ternary,
                        "range" => MatchKind::Range,
                        other => return Err(unsupported(&place, &format!("match kind `{other}`"))),
                    };
                    (kind, pair.0, pair.1)
                }
            };
            let at = self.layout.read(&header, &field, &place)?;
            let name = part.name.clone().unwrap_or_else(|| format!("{header}.{field}"));
            if let Some(mask) = &part.mask
                && hex_u64(mask, at.width, &place)? != ones(at.width)
            {
                let what =
                    format!("key field `{name}` under a mask (copy the bits to a variable and match that)");
                return Err(unsupported(&place, &what));
            }
            key.push((kind, at.slot, at.width));
            fields.push(KeyField { name, kind, width: at.width });
        }
        if fields.iter().filter(|f| f.kind == MatchKind::Lpm).count() > 1 {
            return Err(unsupported(&place, "more than one LPM field"));
        }
        let has_priority = fields.iter().any(|f| matches!(f.kind, MatchKind::Ternary | MatchKind::Range));

        let mut actions = Vec::new();
        for id in &table.action_ids {
            let action =
                *self.action_ids.get(id).ok_or_else(|| unknown(&place, "action id", &id.to_string()))?;
            actions.push(action);
        }
        let code: Vec<ActionCode> = actions.iter().map(|a| self.action_code[a.index()]).collect();
        let entry = 1 + code.iter().map(|a| usize::from(a.params)).max().unwrap_or(0);

        let default = table.default_entry.as_ref();
        let initial_default = match default {
            Some(entry) => Some(self.call(&actions, entry.action_id, &entry.action_data, &place)?),
            None => None,
        };
        let entries = match &table.entries {
            None => None,
            Some(list) => Some(self.const_entries(list, &fields, &actions, &place)?),
        };
        let counter = self.document.counter_arrays.iter();
        let mut counter = counter.filter(|c| c.is_direct && c.binding.as_ref() == Some(&table.name));
        self.table_code.push(TableCode {
            kind: kind_of(&key),
            next: Vec::new(),
            next_without_action: 0,
            actions: code,
            shape: Shape { entry, counted: table.with_counters },
            miss: None,
        });
        self.tables.push(TableInfo {
            name: table.name.clone(),
            id: table.id,
            key: fields,
            actions,
            max_size: table.max_size,
            has_priority,
            const_entries: entries.is_some(),
            const_default: default.is_some_and(|d| d.action_const || d.action_entry_const),
            initial_default,
            direct_counter: if table.with_counters { counter.next().map(|c| c.name.clone()) } else { None },
        });
        self.entries.push(entries.unwrap_or_default());
        Ok(())
    }

    fn call(
        &self,
        actions: &[ActionRef],
        id: u32,
        data: &[String],
        place: &str,
    ) -> Result<ActionCall, LoadError> {
        let listed = self.action_ids.get(&id).filter(|a| actions.contains(a));
        let &action = listed.ok_or_else(|| unknown(place, "action id among the table's", &id.to_string()))?;
        let info = &self.actions[action.index()];
        if info.params.len() != data.len() {
            let expected = format!("{} parameters of action `{}`", info.params.len(), info.name);
            return Err(malformed(place, &expected, &data.len().to_string()));
        }
        let params = info.params.iter().zip(data).map(|(p, text)| hex_u64(text, p.width, place));
        Ok(ActionCall { action, params: params.collect::<Result<_, _>>()? })
    }

    /// Const entries in the form the stores have, priorities turned round: in the JSON the smaller number wins.
    fn const_entries(
        &self,
        list: &[crate::json::ConstEntry],
        fields: &[KeyField],
        actions: &[ActionRef],
        place: &str,
    ) -> Result<Entries, LoadError> {
        let last = list.iter().map(|e| e.priority).max().unwrap_or(0);
        let has_priority = fields.iter().any(|f| matches!(f.kind, MatchKind::Ternary | MatchKind::Range));
        let mut entries = Vec::new();
        for entry in list {
            if entry.match_key.len() != fields.len() {
                let expected = format!("{} key fields in a const entry", fields.len());
                return Err(malformed(place, &expected, &entry.match_key.len().to_string()));
            }
            let mut pairs = Vec::new();
            for (field, key) in fields.iter().zip(&entry.match_key) {
                let missing = || malformed(place, "a complete const entry", &format!("{key:?}"));
                let hex =
                    |text: &Option<String>| hex_u64(text.as_deref().ok_or_else(missing)?, field.width, place);
                let value = || match &key.key {
                    Some(serde_json::Value::String(text)) => hex_u64(text, field.width, place),
                    Some(serde_json::Value::Bool(value)) => Ok(u64::from(*value)),
                    _ => Err(missing()),
                };
                let kind = if key.match_type == "valid" { "exact" } else { key.match_type.as_str() };
                if kind != field.kind.name() {
                    return Err(malformed(place, &format!("match kind `{}`", field.kind.name()), kind));
                }
                pairs.push(match field.kind {
                    MatchKind::Exact => (value()?, ones(field.width)),
                    MatchKind::Ternary => {
                        let mask = hex(&key.mask)?;
                        (value()? & mask, mask)
                    }
                    MatchKind::Lpm => {
                        let length = key.prefix_length.filter(|&l| l <= field.width).ok_or_else(missing)?;
                        let mask = ones(field.width) & !ones(field.width - length);
                        (value()? & mask, mask)
                    }
                    MatchKind::Range => (hex(&key.start)?, hex(&key.end)?),
                });
            }
            let priority = match has_priority {
                false => 0,
                true => i32::try_from(last - entry.priority + 1)
                    .map_err(|_| malformed(place, "priorities of 31 bits", &entry.priority.to_string()))?,
            };
            let call =
                self.call(actions, entry.action_entry.action_id, &entry.action_entry.action_data, place)?;
            entries.push((pairs.into_boxed_slice(), priority, call));
        }
        Ok(entries)
    }

    /// Lowers a control's flow; returns its entry point.
    pub(super) fn control(&mut self, name: &str) -> Result<Pc, LoadError> {
        let document = self.document;
        let mut pipelines = document.pipelines.iter().filter(|p| p.name == name);
        let pipeline =
            pipelines.next().ok_or_else(|| malformed("program", &format!("control `{name}`"), "none"))?;
        if pipelines.next().is_some() {
            return Err(malformed("program", &format!("one control `{name}`"), "two"));
        }
        let mut flow = Flow { nodes: BTreeMap::new(), place: format!("control `{name}`"), end: self.label() };
        for table in &pipeline.tables {
            let label = self.label();
            flow.add(&table.name, Node::Table(table), label)?;
        }
        for conditional in &pipeline.conditionals {
            let label = self.label();
            flow.add(&conditional.name, Node::Conditional(conditional), label)?;
        }
        flow.refuse_cycles(pipeline.init_table.as_deref())?;

        let start = self.here();
        self.barrier = self.code.len();
        let mut pending = vec![pipeline.init_table.as_deref()];
        while let Some(next) = pending.pop() {
            // Lay out a chain until it ends or joins what is there.
            let mut next = match next {
                Some(name) if self.is_bound(flow.label(Some(name))?) => continue,
                next => next,
            };
            let mut first = true;
            while let Some(name) = next {
                let label = flow.label(Some(name))?;
                if self.is_bound(label) && !first {
                    self.emit(Op::Jump { to: label });
                    break;
                }
                first = false;
                self.bind(label);
                next = self.node(&flow, name, &mut pending)?;
            }
            if next.is_none() {
                self.emit(Op::End);
            }
        }
        self.bind(flow.end);
        self.emit(Op::End);
        Ok(start)
    }

    /// Lowers one node; returns the node that follows right after it. Nodes that follow elsewhere go to `pending`.
    fn node<'d>(
        &mut self,
        flow: &Flow<'d>,
        name: &str,
        pending: &mut Vec<Option<&'d str>>,
    ) -> Result<Option<&'d str>, LoadError> {
        match flow.node(name)? {
            Node::Conditional(conditional) => {
                let place = format!("condition `{}`", conditional.name);
                let no = flow.label(conditional.false_next.as_deref())?;
                let cond = conditional.expression.parse(&place)?;
                self.branch(&cond, no, &place)?;
                pending.push(conditional.false_next.as_deref());
                Ok(conditional.true_next.as_deref())
            }
            Node::Table(table) => self.apply(flow, table, pending),
        }
    }

    fn apply<'d>(
        &mut self,
        flow: &Flow<'d>,
        table: &'d Table,
        pending: &mut Vec<Option<&'d str>>,
    ) -> Result<Option<&'d str>, LoadError> {
        let found = self.tables.iter().position(|t| t.name == table.name);
        let at = found.ok_or_else(|| unknown(&flow.place, "table", &table.name))?;
        let info = self.tables[at].clone();
        let next_of = |action: &str| match table.next_tables.get(action) {
            Some(next) => next.as_deref(),
            None => table.base_default_next.as_deref(),
        };
        let by_hit = ["__HIT__", "__MISS__"].map(|which| table.next_tables.get(which).map(Option::as_deref));
        if let (true, true, false, Some(call)) =
            (info.key.is_empty(), info.const_default, table.with_counters, &info.initial_default)
        {
            let action = &self.document.actions[call.action.index()];
            let next = by_hit[1].unwrap_or_else(|| next_of(&action.name));
            self.inline(action, call)?;
            return Ok(next);
        }
        match self.usual_action(at) {
            Some((position, action)) => self.apply_into(at, position, action)?,
            None => self.emit(Op::Apply { table: at as u16 }),
        }
        if by_hit[0].is_some() || by_hit[1].is_some() {
            let otherwise = table.base_default_next.as_deref();
            let (hit, miss) = (by_hit[0].unwrap_or(otherwise), by_hit[1].unwrap_or(otherwise));
            if hit != miss {
                self.emit(Op::JumpMiss { to: flow.label(miss)? });
                pending.push(miss);
            }
            return Ok(hit);
        }
        let nexts: Vec<Option<&str>> =
            info.actions.iter().map(|a| next_of(&self.actions[a.index()].name)).collect();
        let without = table.base_default_next.as_deref();
        let first = nexts.first().copied().unwrap_or(without);
        let may_run_nothing = info.initial_default.is_none();
        if nexts.iter().all(|&n| n == first) && (!may_run_nothing || without == first) {
            return Ok(first);
        }
        self.emit(Op::Switch { table: at as u16 });
        let labels = nexts.iter().map(|&n| flow.label(n)).collect::<Result<Vec<_>, _>>()?;
        let code = &mut self.table_code[at];
        code.next = labels;
        code.next_without_action = flow.label(without)?;
        pending.extend(nexts.iter().chain([&without]).filter(|n| **n != first));
        Ok(first)
    }

    /// The only action of an exact table without counter that does anything, and its position in the list.
    fn usual_action(&self, table: usize) -> Option<(usize, &'a Action)> {
        let TableCode { kind, shape, .. } = &self.table_code[table];
        if !matches!(kind, TableKind::Exact { .. }) || shape.counted {
            return None;
        }
        let document = self.document;
        let actions = self.tables[table].actions.iter().map(|a| &document.actions[a.index()]);
        let mut busy = actions.enumerate().filter(|(_, action)| !action.primitives.is_empty());
        let first = busy.next()?;
        let ends = first.1.primitives.iter().any(|p| p.op == "exit");
        (busy.next().is_none() && !ends).then_some(first)
    }

    /// Looks a table up, with its usual action right after.
    fn apply_into(&mut self, table: usize, position: usize, action: &Action) -> Result<(), LoadError> {
        let code = self.table_code[table].actions[position];
        let skip = self.label();
        self.emit(Op::ApplyInto { table: table as u16, action: position as u16, skip });
        self.params.clear();
        for (at, param) in (0..).zip(&action.runtime_data) {
            self.params.push((code.param_base + at, param.bitwidth));
        }
        self.barrier = self.code.len();
        self.body(action, skip)?;
        self.bind(skip);
        self.params.clear();
        Ok(())
    }

    /// Lowers the action of a dummy table, in the flow.
    fn inline(&mut self, action: &crate::json::Action, call: &ActionCall) -> Result<(), LoadError> {
        let code = self.action_code[call.action.index()];
        self.params.clear();
        for ((param, &value), at) in action.runtime_data.iter().zip(&call.params).zip(0..) {
            let (dst, a) = (code.param_base + at, self.layout.constant(value)?);
            self.emit(Op::Mov { dst, a });
            self.params.push((dst, param.bitwidth));
        }
        let end = self.label();
        let before = self.barrier;
        self.barrier = self.code.len();
        self.body(action, end)?;
        // Binding keeps later folding out of the body only if something jumps to its end.
        let jumps = action.primitives.iter().any(|p| p.op.starts_with("_jump"));
        let barrier = if jumps { self.code.len() } else { self.barrier.max(before) };
        self.bind(end);
        self.barrier = barrier;
        self.params.clear();
        Ok(())
    }

    /// Lowers the checksums to verify, or to update; returns the entry point.
    pub(super) fn checksums(&mut self, verify: bool) -> Result<Pc, LoadError> {
        let document = self.document;
        let start = self.here();
        self.barrier = self.code.len();
        for checksum in &document.checksums {
            let place = format!("checksum `{}`", checksum.name);
            if checksum.r#type != "generic" {
                return Err(unsupported(&place, &format!("type `{}`", checksum.r#type)));
            }
            if !(if verify { checksum.verify } else { checksum.update }) {
                continue;
            }
            let &calculation = self
                .calculation_names
                .get(&checksum.calculation)
                .ok_or_else(|| unknown(&place, "calculation", &checksum.calculation))?;
            let skip = self.label();
            if let Some(cond) = &checksum.if_cond {
                let cond = cond.parse(&place)?;
                self.branch(&cond, skip, &place)?;
            }
            let (header, field) = &checksum.target;
            let dst = self.layout.temporary()?;
            self.emit(Op::Calculate { dst, calculation });
            if verify {
                let at = self.layout.read(header, field, &place)?;
                self.emit(Op::JumpEq { a: dst, b: at.slot, to: skip });
                let one = Value::Const { value: 1, bits: None };
                self.assign_field("standard_metadata", "checksum_error", &one, &mut 0, &place)?;
            } else {
                let (at, flag) = self.layout.write(header, field, &place)?;
                self.emit(Op::Slice { dst: at.slot, a: dst, rot: 0, mask: ones(at.width) });
                self.emit(Op::Touch { headers: flag });
            }
            self.bind(skip);
            self.layout.release();
        }
        self.emit(Op::End);
        Ok(start)
    }
}

/// The structure for a key of these kinds, slots and widths.
fn kind_of(key: &[(MatchKind, Slot, u16)]) -> TableKind {
    let count = |kind| key.iter().filter(|k| k.0 == kind).count();
    let (exact, lpm, range) = (count(MatchKind::Exact), count(MatchKind::Lpm), count(MatchKind::Range));
    let pack = |range: Option<usize>| {
        let fields = key.iter().enumerate().filter(|&(at, _)| Some(at) != range);
        pack_parts(&fields.map(|(_, &(_, slot, width))| (slot, width)).collect::<Vec<_>>())
    };
    let scan = || TableKind::Scan { key: ScanKey::new(key) };
    match key.iter().position(|k| k.0 == MatchKind::Range) {
        None if key.is_empty() => TableKind::Keyless,
        None if exact == key.len() => pack(None).map_or_else(scan, |parts| TableKind::Exact { parts }),
        None if lpm == 1 && exact + 1 == key.len() => {
            pack(None).map_or_else(scan, |parts| TableKind::Lpm { parts })
        }
        Some(at) if range == 1 && exact + 1 == key.len() => {
            let exact = (0..key.len()).filter(|&other| other != at).collect();
            let slot = key[at].1;
            pack(Some(at)).map_or_else(scan, |parts| TableKind::Range { parts, exact, range: at, slot })
        }
        _ => scan(),
    }
}

enum Node<'d> {
    Table(&'d Table),
    Conditional(&'d Conditional),
}

/// A control's nodes by name.
struct Flow<'d> {
    nodes: BTreeMap<&'d str, (Node<'d>, Label)>,
    place: String,
    end: Label,
}

impl<'d> Flow<'d> {
    fn add(&mut self, name: &'d str, node: Node<'d>, label: Label) -> Result<(), LoadError> {
        match self.nodes.insert(name, (node, label)) {
            None => Ok(()),
            Some(_) => Err(malformed(&self.place, "nodes with different names", &format!("two `{name}`"))),
        }
    }

    fn node(&self, name: &str) -> Result<&Node<'d>, LoadError> {
        self.nodes.get(name).map(|n| &n.0).ok_or_else(|| unknown(&self.place, "table or condition", name))
    }

    fn label(&self, name: Option<&str>) -> Result<Label, LoadError> {
        match name {
            None => Ok(self.end),
            Some(name) => match self.nodes.get(name) {
                Some((_, label)) => Ok(*label),
                None => Err(unknown(&self.place, "table or condition", name)),
            },
        }
    }

    /// Refuses a control with loops. P4 controls have none, but a packet would never leave the loop of a damaged file.
    fn refuse_cycles(&self, start: Option<&'d str>) -> Result<(), LoadError> {
        let mut done = BTreeSet::new();
        let mut open = BTreeSet::new();
        // `true` closes a node.
        let mut work: Vec<(&str, bool)> = start.iter().map(|&s| (s, false)).collect();
        while let Some((name, close)) = work.pop() {
            if close {
                open.remove(name);
                done.insert(name);
                continue;
            }
            if done.contains(name) {
                continue;
            }
            if !open.insert(name) {
                return Err(malformed(
                    &self.place,
                    "a flow without cycles",
                    &format!("one through `{name}`"),
                ));
            }
            work.push((name, true));
            let nexts: Vec<Option<&str>> = match self.node(name)? {
                Node::Conditional(c) => vec![c.true_next.as_deref(), c.false_next.as_deref()],
                Node::Table(t) => t
                    .next_tables
                    .values()
                    .map(Option::as_deref)
                    .chain([t.base_default_next.as_deref()])
                    .collect(),
            };
            work.extend(nexts.into_iter().flatten().filter(|n| !done.contains(n)).map(|n| (n, false)));
        }
        Ok(())
    }
}
