//! P4Info ids on one side, the engine's references on the other; made once per program.

use std::sync::Arc;

use fatbtree_p4runtime::config::P4Info;
use fatbtree_p4runtime::index::{self, P4InfoIndex};
use rustc_hash::FxHashMap;

use super::packet_io::Headers;
use crate::{ActionRef, CounterRef, MatchKind, Program, RegisterRef, TableRef};

/// One table: the control plane's view and the engine's, in step.
#[derive(Debug)]
pub(super) struct TableMap {
    pub(super) info: index::TableInfo,
    pub(super) table: TableRef,
    /// The engine's action for each of `info.actions`.
    pub(super) actions: Vec<ActionRef>,
}

impl TableMap {
    /// Place in `info.actions` of the engine's action.
    pub(super) fn position_of(&self, action: ActionRef) -> Option<usize> {
        self.actions.iter().position(|known| *known == action)
    }
}

/// An array that P4Info and the engine both know.
#[derive(Debug)]
pub(super) struct ArrayMap<R> {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) array: R,
    pub(super) size: u64,
    /// Width of a cell, bits.
    pub(super) bitwidth: u32,
}

/// A program with the names and ids a controller uses for it.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) program: Arc<Program>,
    pub(super) tables: Vec<TableMap>,
    pub(super) counters: Vec<ArrayMap<CounterRef>>,
    pub(super) registers: Vec<ArrayMap<RegisterRef>>,
    pub(super) has_meters: bool,
    /// Headers of packets from and to the controller.
    pub(super) headers: Headers,
    // Only looked into, never iterated: its order cannot be seen.
    table_by_id: FxHashMap<u32, usize>,
}

impl Mapping {
    /// Checks that the P4Info describes the program. The message of an error says where they differ.
    pub(super) fn new(p4info: P4Info, program: Arc<Program>) -> Result<Self, String> {
        let index = P4InfoIndex::new(p4info).map_err(|error| error.to_string())?;
        let tables =
            index.tables().iter().map(|info| map_table(info, &program)).collect::<Result<Vec<_>, _>>()?;
        let table_by_id = tables.iter().enumerate().map(|(place, map)| (map.info.id, place)).collect();
        let counters = index
            .counters()
            .iter()
            .map(|info| {
                let array = program.counter(&info.name).ok_or_else(|| missing("counter", &info.name))?;
                // The engine's own size: it is the one that bounds the index.
                let size = program.counters().iter().find(|known| known.name == info.name);
                let size = size.map_or(info.size, |known| known.size as u64);
                Ok(ArrayMap { id: info.id, name: info.name.clone(), array, size, bitwidth: 64 })
            })
            .collect::<Result<Vec<_>, String>>()?;
        let info = index.p4info();
        let registers = info
            .registers
            .iter()
            .filter_map(|register| register.preamble.as_ref())
            .map(|preamble| {
                let name = &preamble.name;
                let array = program.register(name).ok_or_else(|| missing("register", name))?;
                let known = program.registers().iter().find(|known| known.name == *name);
                let (size, bitwidth) =
                    known.map_or((0, 64), |known| (known.size as u64, u32::from(known.width)));
                Ok(ArrayMap { id: preamble.id, name: name.clone(), array, size, bitwidth })
            })
            .collect::<Result<Vec<_>, String>>()?;
        let has_meters = !(info.meters.is_empty() && info.direct_meters.is_empty());
        for (what, count) in [
            ("action profiles", info.action_profiles.len()),
            ("value sets", info.value_sets.len()),
            ("digests", info.digests.len()),
            ("externs", info.externs.len()),
        ] {
            if count != 0 {
                return Err(format!("the program has {what}, which this switch does not serve: remove them"));
            }
        }
        let headers = Headers::new(info)?;
        Ok(Self { program, tables, counters, registers, has_meters, headers, table_by_id })
    }

    pub(super) fn position(&self, table_id: u32) -> Option<usize> {
        self.table_by_id.get(&table_id).copied()
    }
}

fn missing(kind: &str, name: &str) -> String {
    format!("P4Info has {kind} `{name}`, the device config has not: take both from one run of p4c")
}

fn map_table(info: &index::TableInfo, program: &Program) -> Result<TableMap, String> {
    let name = &info.name;
    let table = program.table(name).ok_or_else(|| missing("table", name))?;
    let engine = program.table_info(table);
    let differs = |what: &str, p4info: String, config: String| {
        format!(
            "table `{name}`: {what} is {p4info} in P4Info and {config} in the device config: take both from one run \
             of p4c"
        )
    };
    if info.fields.len() != engine.key.len() {
        return Err(differs("the key's length", info.fields.len().to_string(), engine.key.len().to_string()));
    }
    for (field, known) in info.fields.iter().zip(&engine.key) {
        if field.bitwidth != u32::from(known.width) {
            let what = format!("the width of `{}`", field.name);
            return Err(differs(&what, field.bitwidth.to_string(), known.width.to_string()));
        }
        if !same_kind(field.kind, known.kind) {
            let what = format!("the match kind of `{}`", field.name);
            return Err(differs(&what, field.kind.to_string(), known.kind.name().to_owned()));
        }
    }
    let actions = info
        .actions
        .iter()
        .map(|entry| {
            let action_name = &entry.action.name;
            let action = program
                .table_action(table, action_name)
                .ok_or_else(|| missing(&format!("table `{name}`'s action"), action_name))?;
            let known = program.action_info(action);
            let widths = known.params.iter().map(|param| u32::from(param.width));
            if !widths.eq(entry.action.params.iter().map(|param| param.bitwidth)) {
                let p4info = format!("{:?}", entry.action.params);
                return Err(differs(
                    &format!("the parameter list of `{action_name}`"),
                    p4info,
                    format!("{:?}", known.params),
                ));
            }
            Ok(action)
        })
        .collect::<Result<_, String>>()?;
    Ok(TableMap { info: info.clone(), table, actions })
}

fn same_kind(p4info: index::MatchKind, engine: MatchKind) -> bool {
    matches!(
        (p4info, engine),
        (index::MatchKind::Exact, MatchKind::Exact)
            | (index::MatchKind::Lpm, MatchKind::Lpm)
            // BMv2 JSON writes optional fields as ternary ones. A key with a ternary or range field may also have its
            // LPM fields written as ternary.
            | (index::MatchKind::Ternary | index::MatchKind::Optional, MatchKind::Ternary)
            | (index::MatchKind::Lpm, MatchKind::Ternary)
            | (index::MatchKind::Range, MatchKind::Range)
    )
}
