//! Loading programs ("SetForwardingPipelineConfig RPC").

use std::collections::BTreeMap;
use std::sync::Arc;

use fatbtree_p4runtime::v1::ForwardingPipelineConfig;

use super::mapping::{Mapping, TableMap};
use crate::{ActionCall, Entry, Pipeline, Program};

/// A program active, or saved for COMMIT.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) config: ForwardingPipelineConfig,
    pub(super) mapping: Mapping,
    /// Packed metadata of default entries that have some, by place of the table.
    default_cookies: BTreeMap<usize, Vec<u8>>,
}

impl Loaded {
    /// Checks that this switch can run a config. The message of an error says what it cannot.
    pub(super) fn verify(config: ForwardingPipelineConfig) -> Result<Self, String> {
        let json = std::str::from_utf8(&config.p4_device_config).map_err(|error| {
            format!("expected BMv2 JSON as p4_device_config, found bytes that are no text: {error}")
        })?;
        let program = Program::load(json).map_err(|error| error.to_string())?;
        Self::with_program(config, program)
    }

    /// Configuration with a program that is loaded already.
    pub(super) fn with_program(
        config: ForwardingPipelineConfig,
        program: Arc<Program>,
    ) -> Result<Self, String> {
        let p4info = config.p4info.clone().ok_or("expected a P4Info in the config, found none")?;
        let mapping = Mapping::new(p4info, program)?;
        Ok(Self { config, mapping, default_cookies: BTreeMap::new() })
    }

    /// Packed metadata of a table's default entry, empty when it has none.
    pub(super) fn default_cookie(&self, position: usize) -> &[u8] {
        self.default_cookies.get(&position).map_or(&[], Vec::as_slice)
    }

    pub(super) fn set_default_cookie(&mut self, position: usize, cookie: Option<Vec<u8>>) -> Option<Vec<u8>> {
        match cookie {
            Some(cookie) => self.default_cookies.insert(position, cookie),
            None => self.default_cookies.remove(&position),
        }
    }

    /// Whether this is the same config as `old`: then its state is this one's as it is.
    pub(super) fn is_the_same(&self, old: &Loaded) -> bool {
        Arc::ptr_eq(&self.mapping.program, &old.mapping.program) && self.config.p4info == old.config.p4info
    }

    /// Takes over the metadata of default entries from the same config.
    pub(super) fn take_default_cookies(&mut self, old: &mut Loaded) {
        self.default_cookies = std::mem::take(&mut old.default_cookies);
    }
}

/// A program that is ready to run: made off the switch's thread, because that takes long.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) loaded: Loaded,
    pub(super) pipeline: Pipeline,
}

impl Prepared {
    /// Checks that this switch can run a config, and compiles it. The message of an error says what it cannot.
    pub(super) fn new(config: ForwardingPipelineConfig, pipes: usize) -> Result<Self, String> {
        Self::of(Loaded::verify(config)?, pipes)
    }

    pub(super) fn of(loaded: Loaded, pipes: usize) -> Result<Self, String> {
        let program = &loaded.mapping.program;
        if let Some(register) = loaded.mapping.registers.first().filter(|_| pipes > 1) {
            return Err(format!(
                "register `{}`: this switch forwards packets in {pipes} threads, each of which would have cells of its own; start it with \
                 one thread to run this program",
                register.name
            ));
        }
        Ok(Self { pipeline: Pipeline::with_pipes(Arc::clone(program), pipes), loaded })
    }
}

/// State that is being carried over to another program ("RECONCILE_AND_COMMIT"), part by part.
///
/// These are entries with their counters, default actions, counter and register arrays by name, and multicast groups. State that the new
/// program cannot hold is an error, and nothing has changed then.
///
/// Packets go on meanwhile, with the old program. Their changes of state that was carried over already (counters, registers) are lost.
#[derive(Debug)]
pub(super) struct Carry {
    prepared: Prepared,
    /// Program that the state belongs to, by the control plane's count.
    pub(super) generation: u64,
    /// The table or array that it is at: tables first, then counters, then registers.
    object: usize,
    /// Position inside it.
    inside: u64,
}

/// Entries that are carried over in one go, about.
const ENTRIES: usize = 64;

/// Cells of an array that are carried over in one go.
const CELLS: u64 = 1 << 14;

impl Carry {
    pub(super) fn new(prepared: Prepared, generation: u64) -> Self {
        Self { prepared, generation, object: 0, inside: 0 }
    }

    /// The new program with its state, when all was carried over.
    pub(super) fn into_prepared(self) -> Prepared {
        self.prepared
    }

    /// Carries a part over; says whether it was the last.
    pub(super) fn go_on(&mut self, old: &Loaded, state: &Pipeline) -> Result<bool, String> {
        let Loaded { mapping, .. } = old;
        if self.object < mapping.tables.len() {
            return self.table(old, state, self.object).map(|()| false);
        }
        let at = self.object - mapping.tables.len();
        let Prepared { loaded: Loaded { mapping: new, .. }, pipeline: fresh } = &mut self.prepared;
        let end = if let Some(from) = mapping.counters.get(at) {
            let to = new.counters.iter().find(|to| to.name == from.name && to.size >= from.size);
            let to = to
                .ok_or_else(|| format!("counter `{}` is smaller or missing in the new program", from.name))?;
            for index in self.inside..from.size.min(self.inside + CELLS) {
                let value = state.counter(from.array, index);
                value
                    .and_then(|value| fresh.set_counter(to.array, index, value))
                    .map_err(|e| e.to_string())?;
            }
            from.size
        } else if let Some(from) = mapping.registers.get(at - mapping.counters.len()) {
            let fits = |size, bits| size >= from.size && bits >= from.bitwidth;
            let to = new.registers.iter().find(|to| to.name == from.name && fits(to.size, to.bitwidth));
            let to = to.ok_or_else(|| {
                format!("register `{}` is smaller or missing in the new program", from.name)
            })?;
            for index in self.inside..from.size.min(self.inside + CELLS) {
                let value = state.register(from.array, index);
                value
                    .and_then(|value| fresh.set_register(to.array, index, value))
                    .map_err(|e| e.to_string())?;
            }
            from.size
        } else {
            for (group, replicas) in state.multicast_groups() {
                fresh.set_multicast_group(group, replicas.to_vec());
            }
            return Ok(true);
        };
        self.inside += CELLS;
        if self.inside >= end {
            (self.object, self.inside) = (self.object + 1, 0);
        }
        Ok(false)
    }

    /// Carries a part of a table over; after the last entry, its default action.
    fn table(&mut self, old: &Loaded, state: &Pipeline, position: usize) -> Result<(), String> {
        let Prepared { loaded, pipeline: fresh } = &mut self.prepared;
        let (old_position, from) = (position, &old.mapping.tables[position]);
        let name = &from.info.name;
        let place = loaded.mapping.tables.iter().position(|to| to.info.name == *name);
        let Some(position) = place else {
            (self.object, self.inside) = (self.object + 1, 0);
            return match state.len(from.table) {
                0 => Ok(()),
                n => Err(format!("table `{name}` has {n} entries and is not in the new program")),
            };
        };
        let to = &loaded.mapping.tables[position];
        if !from.info.is_const {
            if state.len(from.table) != 0 && !same_key(from, to) {
                return Err(format!("table `{name}` has entries, and another key in the new program"));
            }
            let mut entries = Vec::new();
            let next = state.next_entries(from.table, self.inside, ENTRIES, &mut entries);
            for (entry, counter) in entries {
                let entry = carry(from, to, &entry)
                    .ok_or_else(|| format!("table `{name}`: an entry's action differs in the new program"))?;
                fresh.insert(to.table, &entry).map_err(|error| error.to_string())?;
                if from.info.direct_counter.is_some() && to.info.direct_counter.is_some() {
                    fresh
                        .set_direct_counter(to.table, &entry.key, entry.priority, counter)
                        .map_err(|error| error.to_string())?;
                }
            }
            if let Some(next) = next {
                self.inside = next;
                return Ok(());
            }
        }
        (self.object, self.inside) = (self.object + 1, 0);
        let call = state.default_action(from.table);
        let declared = &old.mapping.program.table_info(from.table).initial_default;
        if call != *declared
            && let Some(call) = call
        {
            let (action, params) = carry_action(from, to, call.action, &call.params)
                .ok_or_else(|| format!("table `{name}`: the default action differs in the new program"))?;
            fresh.set_default(to.table, Some(&ActionCall { action, params })).map_err(|e| e.to_string())?;
            let cookie = old.default_cookie(old_position).to_vec();
            loaded.set_default_cookie(position, Some(cookie).filter(|cookie| !cookie.is_empty()));
        }
        Ok(())
    }
}

fn same_key(from: &TableMap, to: &TableMap) -> bool {
    let shape = |map: &TableMap| -> Vec<_> {
        map.info.fields.iter().map(|field| (field.name.clone(), field.bitwidth, field.kind)).collect()
    };
    shape(from) == shape(to)
}

fn carry(from: &TableMap, to: &TableMap, entry: &Entry) -> Option<Entry> {
    let (action, params) = carry_action(from, to, entry.action, &entry.params)?;
    Some(Entry { action, params, ..entry.clone() })
}

fn carry_action(
    from: &TableMap,
    to: &TableMap,
    action: crate::ActionRef,
    params: &[u64],
) -> Option<(crate::ActionRef, Vec<u64>)> {
    let old = &from.info.actions[from.position_of(action)?].action;
    let position = to.info.actions.iter().position(|new| new.action.name == old.name)?;
    (to.info.actions[position].action.params == old.params).then(|| (to.actions[position], params.to_vec()))
}
