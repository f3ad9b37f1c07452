//! Lowering: from the JSON document to the compact form, once per program.
//!
//! ```text
//! layout    headers and fields -> slots
//! expr      expressions        -> operations, with proof that 64 bits suffice
//! action    action bodies      -> operations
//! parser    parser states      -> operations and selects
//! control   tables, conditionals, checksums -> operations and table descriptions
//! tidy      what only shows when everything is there
//! ```

mod action;
mod control;
mod expr;
mod layout;
mod originals;
mod parser;
mod tidy;
mod value;

use std::collections::BTreeMap;

use crate::code::{ActionCode, Op, Pc, SelectCode, Slot};
use crate::entry::{ActionRef, CounterData, TableRef};
use crate::error::LoadError;
use crate::hash::CalculationCode;
use crate::json::{Document, Named};
use crate::program::{
    ActionInfo, ArrayInfo, Code, Entries, ParamInfo, Program, StandardMetadata, TableCode, TableInfo,
};
use crate::table::contents::Contents;

pub(crate) use action::DROP_PORT;
use layout::Layout;

/// Bytes that a program's tables, counters and registers may take when they are full.
const MAX_MEMORY: u64 = 1 << 30;

/// A position in the code that is not known yet.
pub(crate) type Label = u32;

/// State of lowering a program.
pub(crate) struct Lowering<'a> {
    document: &'a Document,
    layout: Layout,
    code: Vec<Op>,
    labels: Vec<Option<Pc>>,
    /// Position before which operations must not be changed any more: something may jump to it.
    barrier: usize,
    /// Slot and width of the parameters of the action being lowered.
    params: Vec<(Slot, u16)>,
    selects: Vec<SelectCode>,
    calculations: Vec<CalculationCode>,
    calculation_names: BTreeMap<String, u16>,
    actions: Vec<ActionInfo>,
    action_code: Vec<ActionCode>,
    action_ids: BTreeMap<u32, ActionRef>,
    counters: Vec<ArrayInfo>,
    registers: Vec<ArrayInfo>,
    tables: Vec<TableInfo>,
    table_code: Vec<TableCode>,
    entries: Vec<Entries>,
}

/// Lowers a document.
pub(crate) fn lower(document: &Document) -> Result<Program, LoadError> {
    refuse_what_we_do_not_run(document)?;
    let lowering = Lowering {
        document,
        layout: Layout::new(document)?,
        code: Vec::new(),
        labels: Vec::new(),
        barrier: 0,
        params: Vec::new(),
        selects: Vec::new(),
        calculations: Vec::new(),
        calculation_names: BTreeMap::new(),
        actions: Vec::new(),
        action_code: Vec::new(),
        action_ids: BTreeMap::new(),
        counters: Vec::new(),
        registers: Vec::new(),
        tables: Vec::new(),
        table_code: Vec::new(),
        entries: Vec::new(),
    };
    lowering.program()
}

fn refuse_what_we_do_not_run(document: &Document) -> Result<(), LoadError> {
    if let Some(meta) = &document.meta
        && meta.version.0 != 2
    {
        return Err(LoadError::Version { major: meta.version.0, minor: meta.version.1 });
    }
    let refused: [(&str, &[Named]); 7] = [
        ("header stack", &document.header_stacks),
        ("header union", &document.header_unions),
        ("header union stack", &document.header_union_stacks),
        ("parser value set", &document.parse_vsets),
        ("meter", &document.meter_arrays),
        ("digest", &document.learn_lists),
        ("extern", &document.extern_instances),
    ];
    for (what, list) in refused {
        if let Some(first) = list.first() {
            return Err(unsupported("program", &format!("{what} `{}`", first.name)));
        }
    }
    for pipeline in &document.pipelines {
        let place = format!("control `{}`", pipeline.name);
        if let Some(first) = pipeline.action_profiles.first() {
            return Err(unsupported(&place, &format!("action profile `{}`", first.name)));
        }
        if let Some(first) = pipeline.action_calls.first() {
            return Err(unsupported(&place, &format!("action call `{}`", first.name)));
        }
        if !["ingress", "egress"].contains(&pipeline.name.as_str()) {
            return Err(unsupported(
                "program",
                &format!("control `{}` (v1model has ingress and egress)", pipeline.name),
            ));
        }
    }
    Ok(())
}

impl Lowering<'_> {
    fn program(mut self) -> Result<Program, LoadError> {
        let standard = "standard_metadata";
        let egress_spec = self.layout.optional(standard, "egress_spec")?.ok_or_else(|| {
            malformed("program", "v1model's standard_metadata with field egress_spec", "none")
        })?;
        self.arrays()?;
        self.all_calculations()?;
        self.all_actions()?;
        let parser = self.all_parsers()?;
        let verify = self.checksums(true)?;
        self.all_tables()?;
        let ingress = self.control("ingress")?;
        let egress = self.control("egress")?;
        let update = self.checksums(false)?;
        let deparser = self.deparser()?;
        self.resolve()?;
        let used = |field: &str| self.layout.if_used(standard, field);
        let metadata = StandardMetadata {
            egress_spec,
            ingress_port: used("ingress_port"),
            egress_port: used("egress_port"),
            packet_length: used("packet_length"),
            parser_error: used("parser_error"),
            ingress_timestamp: used("ingress_global_timestamp"),
            egress_timestamp: used("egress_global_timestamp"),
            enqueue_timestamp: used("enq_timestamp"),
            multicast_group: used("mcast_grp"),
            egress_rid: used("egress_rid"),
            instance_type: used("instance_type"),
        };
        let error = |name: &str, default: u64| {
            let found = self.document.errors.iter().find(|(n, _)| n == name);
            found.and_then(|(_, code)| u64::try_from(*code).ok()).unwrap_or(default)
        };
        let (no_error, packet_too_short) = (error("NoError", 0), error("PacketTooShort", 1));
        self.memory()?;
        let layout = self.layout.finish()?;
        let mut table_names = BTreeMap::new();
        for (at, table) in self.tables.iter().enumerate() {
            if table_names.insert(table.name.clone(), TableRef(at as u16)).is_some() {
                let found = format!("two tables `{}`", table.name);
                return Err(malformed("program", "tables with different names", &found));
            }
        }
        let mut code = Code {
            ops: self.code,
            parser,
            verify,
            ingress,
            egress,
            update,
            before: Vec::new(),
            after: Vec::new(),
            headers: layout.headers,
            copies: layout.copies,
            deparser,
            selects: self.selects,
            calculations: self.calculations,
            tables: self.table_code,
            const_tables: Vec::new(),
            entries: self.entries,
            state: layout.state,
            constants: layout.constants,
            metadata,
            no_error,
            packet_too_short,
        };
        tidy::tidy(&mut code, &self.tables);
        Ok(Program {
            tables: self.tables,
            actions: self.actions,
            counters: self.counters,
            registers: self.registers,
            table_names,
            code,
        })
    }

    fn arrays(&mut self) -> Result<(), LoadError> {
        for counter in self.document.counter_arrays.iter().filter(|c| !c.is_direct) {
            let place = format!("counter `{}`", counter.name);
            let size = counter.size.ok_or_else(|| malformed(&place, "a size", "none"))?;
            self.counters.push(ArrayInfo { name: counter.name.clone(), id: counter.id, size, width: 64 });
        }
        for register in &self.document.register_arrays {
            let (width, size) = (register.bitwidth, register.size);
            if width == 0 || width > 64 {
                let place = format!("register `{}`", register.name);
                return Err(unsupported(&place, &format!("a cell of {width} bits (1 to 64 are)")));
            }
            self.registers.push(ArrayInfo { name: register.name.clone(), id: register.id, size, width });
        }
        for (kind, count) in [("counters", self.counters.len()), ("registers", self.registers.len())] {
            fits_u16(kind, count)?;
        }
        Ok(())
    }

    /// Refuses a program whose full tables, counters and registers exceed the memory, before it is loaded.
    fn memory(&self) -> Result<(), LoadError> {
        let cells = |kind: &str, array: &ArrayInfo, bytes: usize| {
            (format!("{kind} `{}`", array.name), (bytes as u64).saturating_mul(array.size as u64))
        };
        let counters = self.counters.iter().map(|array| cells("counter", array, size_of::<CounterData>()));
        let registers = self.registers.iter().map(|array| cells("register", array, size_of::<u64>()));
        let tables = self.tables.iter().zip(&self.table_code).map(|(info, code)| {
            let place = format!("table `{}` of {} entries", info.name, info.max_size);
            (place, Contents::bytes(code, info.key.len(), info.max_size as u64))
        });
        let mut all = 0u64;
        for (place, bytes) in counters.chain(registers).chain(tables) {
            let (limit, what) = (MAX_MEMORY as usize, "bytes of memory");
            if bytes > MAX_MEMORY {
                return Err(LoadError::TooLarge { place, what, need: bytes as usize, limit });
            }
            all = all.saturating_add(bytes);
            if all > MAX_MEMORY {
                let place = format!("program, up to {place}");
                return Err(LoadError::TooLarge { place, what, need: all as usize, limit });
            }
        }
        Ok(())
    }

    fn deparser(&mut self) -> Result<Vec<u16>, LoadError> {
        let mut order = Vec::new();
        if self.document.deparsers.len() > 1 {
            return Err(unsupported(
                "program",
                &format!("deparser `{}` beside another", self.document.deparsers[1].name),
            ));
        }
        for deparser in &self.document.deparsers {
            let place = format!("deparser `{}`", deparser.name);
            if let Some(primitive) = deparser.primitives.first() {
                return Err(unsupported(&place, &format!("primitive `{}`", primitive.op)));
            }
            for header in &deparser.order {
                order.push(self.layout.header(header, &place)?);
            }
        }
        Ok(order)
    }

    pub(crate) fn emit(&mut self, op: Op) {
        self.code.push(op);
    }

    pub(crate) fn here(&self) -> Pc {
        self.code.len() as Pc
    }

    /// The last operation, if nothing can jump after it.
    pub(crate) fn last_op(&mut self) -> Option<&mut Op> {
        if self.code.len() > self.barrier { self.code.last_mut() } else { None }
    }

    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        (self.labels.len() - 1) as Label
    }

    /// Binds the label to the present position.
    pub(crate) fn bind(&mut self, label: Label) {
        self.labels[label as usize] = Some(self.here());
        self.barrier = self.code.len();
    }

    pub(crate) fn is_bound(&self, label: Label) -> bool {
        self.labels[label as usize].is_some()
    }

    /// Turns labels into positions, and jumps backwards into loops that cost budget.
    fn resolve(&mut self) -> Result<(), LoadError> {
        let labels = std::mem::take(&mut self.labels);
        let position = |label: Label| {
            labels
                .get(label as usize)
                .copied()
                .flatten()
                .ok_or_else(|| malformed("program", "every jump to lead somewhere", "one that does not"))
        };
        for at in 0..self.code.len() {
            if let Some(to) = self.code[at].target() {
                *to = position(*to)?;
            }
            if let Op::Jump { to } = self.code[at]
                && to as usize <= at
            {
                self.code[at] = Op::Loop { to };
            }
        }
        for select in &mut self.selects {
            for to in select.to.iter_mut().chain([&mut select.otherwise]) {
                *to = position(*to)?;
            }
        }
        for table in self.table_code.iter_mut().filter(|t| !t.next.is_empty()) {
            for to in table.next.iter_mut().chain([&mut table.next_without_action]) {
                *to = position(*to)?;
            }
        }
        Ok(())
    }

    fn new_action_info(action: &crate::json::Action) -> Result<ActionInfo, LoadError> {
        let mut params = Vec::new();
        for param in &action.runtime_data {
            if param.bitwidth == 0 || param.bitwidth > 64 {
                let what = format!("parameter `{}` of {} bits (1 to 64 are)", param.name, param.bitwidth);
                return Err(unsupported(&format!("action `{}`", action.name), &what));
            }
            params.push(ParamInfo { name: param.name.clone(), width: param.bitwidth });
        }
        Ok(ActionInfo { name: action.name.clone(), id: action.id, params })
    }
}

pub(crate) fn fits_u16(what: &'static str, count: usize) -> Result<(), LoadError> {
    let limit = usize::from(u16::MAX);
    if count < limit {
        Ok(())
    } else {
        Err(LoadError::TooLarge { place: "program".into(), what, need: count, limit })
    }
}

pub(crate) fn unsupported(place: &str, what: &str) -> LoadError {
    LoadError::Unsupported { place: place.to_owned(), what: what.to_owned() }
}

pub(crate) fn malformed(place: &str, expected: &str, found: &str) -> LoadError {
    LoadError::Malformed { place: place.to_owned(), expected: expected.to_owned(), found: found.to_owned() }
}

pub(crate) fn unknown(place: &str, kind: &'static str, name: &str) -> LoadError {
    LoadError::Unknown { place: place.to_owned(), kind, name: name.to_owned() }
}
