//! A loaded program: its description for control software, and the lowered form that pipelines run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::code::{ActionCode, ConstCall, ConstTable, CopyCode, HeaderCode, Op, Pc, SelectCode, Slot};
use crate::entry::{ActionCall, ActionRef, CounterRef, MatchKind, RegisterRef, TableRef};
use crate::error::LoadError;
use crate::hash::CalculationCode;
use crate::json::Document;
use crate::table::KeyPart;
use crate::table::row::Shape;
use crate::table::scan::ScanKey;
use crate::table::store::Pair;

/// One key field of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyField {
    /// The control plane's name, for example `hdr.ipv4.dst_addr`.
    pub name: String,
    /// Way in which it is matched.
    pub kind: MatchKind,
    /// Width in bits, 1 to 64.
    pub width: u16,
}

/// A table as control software sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableInfo {
    /// Fully qualified name, the same as in P4Info.
    pub name: String,
    /// Id in the JSON (not the P4Info id).
    pub id: u32,
    /// Key fields in order; empty for a keyless table.
    pub key: Vec<KeyField>,
    /// The actions entries may use.
    pub actions: Vec<ActionRef>,
    /// Entries it can hold.
    pub max_size: usize,
    /// Whether entries have priorities: some field is ternary, range or optional.
    pub has_priority: bool,
    /// Whether the entries are part of the program and cannot be changed.
    pub const_entries: bool,
    /// Whether the default action is part of the program and cannot be changed.
    pub const_default: bool,
    /// The default action as the program declares it; `None`: a miss does nothing.
    pub initial_default: Option<ActionCall>,
    /// Name of the direct counter, if one is attached.
    pub direct_counter: Option<String>,
}

/// A parameter of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamInfo {
    /// Its P4 name.
    pub name: String,
    /// Width in bits, 1 to 64.
    pub width: u16,
}

/// An action as control software sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionInfo {
    /// Fully qualified name, the same as in P4Info.
    pub name: String,
    /// Id in the JSON (not the P4Info id).
    pub id: u32,
    /// Parameters in order.
    pub params: Vec<ParamInfo>,
}

/// A counter or register array as control software sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayInfo {
    /// Fully qualified name, the same as in P4Info.
    pub name: String,
    /// Id in the JSON (not the P4Info id).
    pub id: u32,
    /// Number of cells.
    pub size: usize,
    /// Width of a register's cell in bits; 64 for counters.
    pub width: u16,
}

/// A BMv2 program, lowered once and shared by all pipelines that run it.
#[derive(Debug)]
pub struct Program {
    pub(crate) tables: Vec<TableInfo>,
    pub(crate) actions: Vec<ActionInfo>,
    pub(crate) counters: Vec<ArrayInfo>,
    pub(crate) registers: Vec<ArrayInfo>,
    pub(crate) table_names: BTreeMap<String, TableRef>,
    pub(crate) code: Code,
}

/// Const entries of a table: key, priority, action.
pub(crate) type Entries = Vec<(Box<[Pair]>, i32, ActionCall)>;

/// The lowered form: see [`crate::code`].
#[derive(Debug)]
pub(crate) struct Code {
    pub(crate) ops: Vec<Op>,
    pub(crate) parser: Pc,
    pub(crate) verify: Pc,
    pub(crate) ingress: Pc,
    pub(crate) egress: Pc,
    pub(crate) update: Pc,
    /// Entry points that run before a packet's port is known, and after; only those that lead to something.
    pub(crate) before: Vec<Pc>,
    pub(crate) after: Vec<Pc>,
    pub(crate) headers: Vec<HeaderCode>,
    pub(crate) copies: Vec<CopyCode>,
    /// Headers in the order they are sent.
    pub(crate) deparser: Vec<u16>,
    pub(crate) selects: Vec<SelectCode>,
    pub(crate) calculations: Vec<CalculationCode>,
    /// Tables by [`TableRef`], as `entries` are.
    pub(crate) tables: Vec<TableCode>,
    pub(crate) const_tables: Vec<ConstTable>,
    pub(crate) entries: Vec<Entries>,
    /// Number of slots to zero for each packet.
    pub(crate) state: usize,
    pub(crate) constants: Vec<(Slot, u64)>,
    pub(crate) metadata: StandardMetadata,
    pub(crate) no_error: u64,
    pub(crate) packet_too_short: u64,
}

/// Lookup of a table, and the code that may follow.
#[derive(Debug)]
pub(crate) struct TableCode {
    pub(crate) kind: TableKind,
    /// Actions in the order of [`TableInfo::actions`].
    pub(crate) actions: Vec<ActionCode>,
    pub(crate) shape: Shape,
    /// Code of a miss, where it is part of the program.
    pub(crate) miss: Option<ConstCall>,
    /// Continuation after each action; empty where it is the same for all.
    pub(crate) next: Vec<Pc>,
    pub(crate) next_without_action: Pc,
}

impl TableCode {
    /// An action as this table runs it; `info` is the same table's.
    pub(crate) fn const_call(&self, info: &TableInfo, call: &ActionCall) -> Option<ConstCall> {
        let position = info.actions.iter().position(|&action| action == call.action)?;
        Some(ConstCall { position, code: self.actions[position], params: call.params.clone().into() })
    }
}

/// The structure that finds a table's entries.
#[derive(Debug)]
pub(crate) enum TableKind {
    /// No key: always the default action.
    Keyless,
    /// Exact fields that fit a packed key.
    Exact { parts: Box<[KeyPart]> },
    /// Exact fields and one prefix.
    Lpm { parts: Box<[KeyPart]> },
    /// Exact fields (`parts`, at key positions `exact`) and one range (`slot`, at position `range`).
    Range { parts: Box<[KeyPart]>, exact: Box<[usize]>, range: usize, slot: Slot },
    /// Anything else.
    Scan { key: ScanKey },
}

/// Slots of v1model's standard metadata; `None` where the program does not use a field.
#[derive(Debug)]
pub(crate) struct StandardMetadata {
    pub(crate) egress_spec: Slot,
    pub(crate) ingress_port: Option<Slot>,
    pub(crate) egress_port: Option<Slot>,
    pub(crate) packet_length: Option<Slot>,
    pub(crate) parser_error: Option<Slot>,
    pub(crate) ingress_timestamp: Option<Slot>,
    pub(crate) egress_timestamp: Option<Slot>,
    pub(crate) enqueue_timestamp: Option<Slot>,
    pub(crate) multicast_group: Option<Slot>,
    pub(crate) egress_rid: Option<Slot>,
    pub(crate) instance_type: Option<Slot>,
}

fn lower(json: &str) -> Result<Program, LoadError> {
    let document: Document = serde_json::from_str(json).map_err(|e| LoadError::Json(e.to_string()))?;
    crate::lower::lower(&document)
}

impl Program {
    /// Loads the JSON that `p4c-bm2-ss` writes. The same text gives the same program as long as it is in use: switches
    /// of one process run one copy of the code, which then stays in the processor's caches.
    ///
    /// # Errors
    /// [`LoadError`] names the first thing that is damaged or that this switch does not run.
    pub fn load(json: &str) -> Result<Arc<Program>, LoadError> {
        static LOADED: Mutex<Vec<(Box<str>, Weak<Program>)>> = Mutex::new(Vec::new());
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|(_, program)| program.strong_count() > 0);
        let known = loaded.iter().find(|(text, _)| **text == *json);
        if let Some(program) = known.and_then(|(_, program)| program.upgrade()) {
            return Ok(program);
        }
        let program = Arc::new(lower(json)?);
        loaded.push((json.into(), Arc::downgrade(&program)));
        Ok(program)
    }

    /// All tables, in the order of the JSON; [`TableRef::index`] is the position.
    pub fn tables(&self) -> &[TableInfo] {
        &self.tables
    }

    /// All actions, in the order of the JSON; [`ActionRef::index`] is the position.
    pub fn actions(&self) -> &[ActionInfo] {
        &self.actions
    }

    /// All indirect counter arrays.
    pub fn counters(&self) -> &[ArrayInfo] {
        &self.counters
    }

    /// All register arrays.
    pub fn registers(&self) -> &[ArrayInfo] {
        &self.registers
    }

    /// The table with this fully qualified name.
    pub fn table(&self, name: &str) -> Option<TableRef> {
        self.table_names.get(name).copied()
    }

    /// Description of a table.
    ///
    /// # Panics
    /// If `table` came from another program that has more tables.
    pub fn table_info(&self, table: TableRef) -> &TableInfo {
        &self.tables[table.index()]
    }

    pub(crate) fn kind(&self, table: TableRef) -> &TableKind {
        &self.code.tables[table.index()].kind
    }

    /// The action of this name *in this table*.
    pub fn table_action(&self, table: TableRef, name: &str) -> Option<ActionRef> {
        let info = self.tables.get(table.index())?;
        info.actions.iter().copied().find(|&a| self.actions[a.index()].name == name)
    }

    /// Description of an action.
    ///
    /// # Panics
    /// If `action` came from another program that has more actions.
    pub fn action_info(&self, action: ActionRef) -> &ActionInfo {
        &self.actions[action.index()]
    }

    /// The indirect counter array with this fully qualified name.
    pub fn counter(&self, name: &str) -> Option<CounterRef> {
        let index = self.counters.iter().position(|c| c.name == name)?;
        Some(CounterRef(u16::try_from(index).ok()?))
    }

    /// The register array with this fully qualified name.
    pub fn register(&self, name: &str) -> Option<RegisterRef> {
        let index = self.registers.iter().position(|r| r.name == name)?;
        Some(RegisterRef(u16::try_from(index).ok()?))
    }
}
