//! Applying updates ("Write RPC").

use fatbtree_p4runtime::tonic::Code;
use fatbtree_p4runtime::v1::{self, P4Data, TableEntry, entity::Entity, p4_data, update::Type};

use super::config::Loaded;
use super::convert::{Place, decode_action, decode_key, pack_metadata};
use super::multicast;
use super::refusal::Refusal;
use crate::{
    ActionCall, ActionRef, CounterData, CounterRef, Entry, MatchValue, Pipeline, RegisterRef, Replica,
    TableRef,
};

/// Buffers that live through a batch, so that an update does not allocate.
#[derive(Debug)]
pub(super) struct Scratch {
    entry: Entry,
}

impl Default for Scratch {
    fn default() -> Self {
        Self { entry: Entry::new(Vec::new(), ActionRef(0), Vec::new()) }
    }
}

/// Change that takes an update back.
#[derive(Debug)]
pub(super) enum Undo {
    Delete { table: TableRef, key: Vec<MatchValue>, priority: i32 },
    Insert { table: TableRef, entry: Entry, counter: Option<CounterData> },
    Modify { table: TableRef, entry: Entry, counter: Option<CounterData> },
    Default { position: usize, table: TableRef, call: Option<ActionCall>, cookie: Option<Vec<u8>> },
    DirectCounter { table: TableRef, key: Vec<MatchValue>, priority: i32, data: CounterData },
    Counter { counter: CounterRef, index: u64, data: CounterData },
    Register { register: RegisterRef, index: u64, value: u64 },
    Multicast { group: u16, replicas: Vec<Replica> },
}

/// The program, its tables and the buffers for one batch.
pub(super) struct Writer<'a> {
    pub(super) loaded: &'a mut Loaded,
    pub(super) pipeline: &'a mut Pipeline,
    pub(super) scratch: &'a mut Scratch,
    /// Changes that take the batch back; `None` if that is never needed.
    pub(super) undo: Option<Vec<Undo>>,
}

impl Writer<'_> {
    /// Applies one update, or changes nothing.
    pub(super) fn apply(&mut self, update: &v1::Update) -> Result<(), Refusal> {
        let kind = match Type::try_from(update.r#type) {
            Ok(kind @ (Type::Insert | Type::Modify | Type::Delete)) => kind,
            _ => {
                return Err(Refusal::invalid(format!(
                    "expected an update of type INSERT (1), MODIFY (2) or DELETE (3), found {}",
                    update.r#type
                )));
            }
        };
        match update.entity.as_ref().and_then(|entity| entity.entity.as_ref()) {
            Some(Entity::TableEntry(entry)) if entry.is_default_action => self.default_entry(kind, entry),
            Some(Entity::TableEntry(entry)) => self.table_entry(kind, entry),
            Some(Entity::DirectCounterEntry(entry)) => self.direct_counter(kind, entry),
            Some(Entity::CounterEntry(entry)) => self.counter(kind, entry),
            Some(Entity::RegisterEntry(entry)) => self.register(kind, entry),
            Some(Entity::PacketReplicationEngineEntry(entry)) => {
                let (group, replicas) = multicast::write(self.pipeline, kind, entry)?;
                if let Some(undo) = &mut self.undo {
                    undo.push(Undo::Multicast { group, replicas });
                }
                Ok(())
            }
            Some(other) => Err(Refusal::unimplemented(format!(
                "this switch serves table entries, counters, registers and multicast groups, found {}",
                entity_name(other)
            ))),
            None => Err(Refusal::invalid("expected an entity, found none")),
        }
    }

    /// Takes back everything since the writer was made, last change first.
    pub(super) fn roll_back(&mut self) {
        for step in self.undo.take().into_iter().flatten().rev() {
            let pipeline = &mut *self.pipeline;
            let undone = match step {
                Undo::Delete { table, key, priority } => pipeline.delete(table, &key, priority),
                Undo::Insert { table, entry, counter } => {
                    pipeline.insert(table, &entry).and_then(|()| restore(pipeline, table, &entry, counter))
                }
                Undo::Modify { table, entry, counter } => {
                    pipeline.modify(table, &entry).and_then(|()| restore(pipeline, table, &entry, counter))
                }
                Undo::Default { position, table, call, cookie } => {
                    self.loaded.set_default_cookie(position, cookie);
                    pipeline.set_default(table, call.as_ref())
                }
                Undo::DirectCounter { table, key, priority, data } => {
                    pipeline.set_direct_counter(table, &key, priority, data)
                }
                Undo::Counter { counter, index, data } => pipeline.set_counter(counter, index, data),
                Undo::Register { register, index, value } => pipeline.set_register(register, index, value),
                Undo::Multicast { group, replicas } => {
                    pipeline.set_multicast_group(group, replicas);
                    Ok(())
                }
            };
            if let Err(error) = undone {
                // The state a step leaves behind is the one it found, so taking steps back in reverse order succeeds.
                tracing::error!(%error, "an update could not be taken back");
            }
        }
    }

    fn table(&self, table_id: u32) -> Result<usize, Refusal> {
        self.loaded.mapping.position(table_id).ok_or_else(|| unknown_table(table_id))
    }

    fn table_entry(&mut self, kind: Type, entry: &TableEntry) -> Result<(), Refusal> {
        let position = self.table(entry.table_id)?;
        let Self { loaded, pipeline, scratch, undo } = self;
        let map = &loaded.mapping.tables[position];
        let name = &map.info.name;
        let scratch = &mut scratch.entry;
        if entry.is_const {
            return Err(Refusal::invalid(format!(
                "table `{name}`: is_const is for the switch to set, found true"
            )));
        }
        if kind == Type::Insert && map.info.fields.is_empty() {
            return Err(Refusal::invalid(format!(
                "table `{name}` has no key and therefore no entries: MODIFY its default action instead"
            )));
        }
        decode_key(map, &loaded.mapping.program, &entry.r#match, &mut scratch.key)?;
        scratch.priority = entry.priority;
        let table = map.table;
        if kind == Type::Delete {
            // Only the key counts.
            let old = match undo {
                Some(_) => Some(snapshot(pipeline, table, &scratch.key, entry.priority)?),
                None => None,
            };
            pipeline.delete(table, &scratch.key, entry.priority)?;
            if let (Some(undo), Some((entry, counter))) = (undo, old) {
                undo.push(Undo::Insert { table, entry, counter });
            }
            return Ok(());
        }
        check_direct_resources(
            map.info.direct_meter.is_some(),
            map.info.direct_counter.is_some(),
            name,
            entry,
        )?;
        let counter = entry.counter_data.as_ref().map(counter_from).transpose()?;
        pack_metadata(entry, &mut scratch.metadata)?;
        if kind == Type::Insert {
            let action = entry.action.as_ref().ok_or_else(|| {
                Refusal::invalid(format!("table `{name}`: expected an action in an INSERT, found none"))
            })?;
            scratch.action = decode_action(map, Place::Entry, action, &mut scratch.params)?;
            pipeline.insert(table, scratch)?;
            if let Some(undo) = undo {
                undo.push(Undo::Delete { table, key: scratch.key.clone(), priority: scratch.priority });
            }
        } else {
            let old = match (&undo, &entry.action) {
                (None, Some(_)) => None,
                _ => Some(snapshot(pipeline, table, &scratch.key, entry.priority)?),
            };
            match &entry.action {
                Some(action) => {
                    scratch.action = decode_action(map, Place::Entry, action, &mut scratch.params)?;
                    pipeline.modify(table, scratch)?;
                }
                // Without an action the entry keeps its own; a const entry may change its counter this way.
                None if map.info.is_const => {}
                None => {
                    if let Some((old, _)) = &old {
                        scratch.action = old.action;
                        scratch.params.clone_from(&old.params);
                        pipeline.modify(table, scratch)?;
                    }
                }
            }
            if let (Some(undo), Some((entry, old_counter))) = (undo, old) {
                undo.push(match map.info.is_const {
                    true => Undo::DirectCounter {
                        table,
                        key: entry.key,
                        priority: entry.priority,
                        data: old_counter.unwrap_or_default(),
                    },
                    false => Undo::Modify { table, entry, counter: counter.and(old_counter) },
                });
            }
        }
        if let Some(data) = counter {
            pipeline.set_direct_counter(table, &scratch.key, scratch.priority, data)?;
        }
        Ok(())
    }

    /// Writes a default entry ("Default Entry").
    fn default_entry(&mut self, kind: Type, entry: &TableEntry) -> Result<(), Refusal> {
        let position = self.table(entry.table_id)?;
        let Self { loaded, pipeline, scratch, undo } = self;
        let map = &loaded.mapping.tables[position];
        let (name, table) = (&map.info.name, map.table);
        let scratch = &mut scratch.entry;
        let bad = |problem: String| Refusal::invalid(format!("table `{name}`, default entry: {problem}"));
        if kind != Type::Modify {
            return Err(bad("expected MODIFY, for there always is one, found INSERT or DELETE".to_owned()));
        }
        if !entry.r#match.is_empty() || entry.priority != 0 {
            let (fields, priority) = (entry.r#match.len(), entry.priority);
            return Err(bad(format!(
                "expected neither key nor priority, found {fields} fields and priority {priority}"
            )));
        }
        if entry.is_const {
            return Err(bad("is_const is for the switch to set, found true".to_owned()));
        }
        if map.info.const_default_action.is_some() {
            return Err(Refusal::new(
                Code::PermissionDenied,
                format!("table `{name}` has a const default action: it cannot be changed at run time"),
            ));
        }
        if entry.counter_data.is_some() || entry.meter_config.is_some() || entry.meter_counter_data.is_some()
        {
            let refusal = bad("this switch keeps no counter or meter for misses".to_owned());
            return Err(Refusal { code: Code::Unimplemented, ..refusal });
        }
        let call = match &entry.action {
            Some(action) => {
                let action = decode_action(map, Place::Default, action, &mut scratch.params)?;
                Some(ActionCall { action, params: scratch.params.clone() })
            }
            None => None, // back to what the program declares
        };
        let mut cookie = Vec::new();
        if call.is_some() {
            pack_metadata(entry, &mut cookie)?;
        }
        let old = undo.is_some().then(|| pipeline.default_action(table));
        pipeline.set_default(table, call.as_ref())?;
        let old_cookie =
            loaded.set_default_cookie(position, Some(cookie).filter(|cookie| !cookie.is_empty()));
        if let (Some(undo), Some(call)) = (undo, old) {
            undo.push(Undo::Default { position, table, call, cookie: old_cookie });
        }
        Ok(())
    }

    /// Writes a direct counter ("DirectCounterEntry").
    fn direct_counter(&mut self, kind: Type, entry: &v1::DirectCounterEntry) -> Result<(), Refusal> {
        only_modify(kind, "a direct counter")?;
        let key = entry.table_entry.as_ref().ok_or_else(|| {
            Refusal::invalid("expected the table entry that the direct counter belongs to, found none")
        })?;
        let position = self.table(key.table_id)?;
        let Self { loaded, pipeline, scratch, undo } = self;
        let map = &loaded.mapping.tables[position];
        let scratch = &mut scratch.entry;
        decode_key(map, &loaded.mapping.program, &key.r#match, &mut scratch.key)?;
        let old = pipeline.direct_counter(map.table, &scratch.key, key.priority)?;
        let Some(data) = &entry.data else { return Ok(()) };
        pipeline.set_direct_counter(map.table, &scratch.key, key.priority, counter_from(data)?)?;
        if let Some(undo) = undo {
            let (table, key, priority) = (map.table, scratch.key.clone(), key.priority);
            undo.push(Undo::DirectCounter { table, key, priority, data: old });
        }
        Ok(())
    }

    /// Writes cells of a counter ("CounterEntry").
    fn counter(&mut self, kind: Type, entry: &v1::CounterEntry) -> Result<(), Refusal> {
        only_modify(kind, "a counter")?;
        let Self { loaded, pipeline, undo, .. } = self;
        let map = loaded.mapping.counters.iter().find(|map| map.id == entry.counter_id).ok_or_else(|| {
            Refusal::invalid(format!("expected a counter of the program, found id {}", entry.counter_id))
        })?;
        let cells = cells("counter", &map.name, map.size, entry.index.as_ref())?;
        let Some(data) = &entry.data else { return Ok(()) };
        let data = counter_from(data)?;
        for index in cells {
            let old = pipeline.counter(map.array, index)?;
            pipeline.set_counter(map.array, index, data)?;
            if let Some(undo) = undo {
                undo.push(Undo::Counter { counter: map.array, index, data: old });
            }
        }
        Ok(())
    }

    /// Writes cells of a register ("RegisterEntry") of bit<W>, W up to 64.
    fn register(&mut self, kind: Type, entry: &v1::RegisterEntry) -> Result<(), Refusal> {
        only_modify(kind, "a register")?;
        let Self { loaded, pipeline, undo, .. } = self;
        let map =
            loaded.mapping.registers.iter().find(|map| map.id == entry.register_id).ok_or_else(|| {
                Refusal::invalid(format!(
                    "expected a register of the program, found id {}",
                    entry.register_id
                ))
            })?;
        let cells = cells("register", &map.name, map.size, entry.index.as_ref())?;
        let value = match &entry.data {
            Some(P4Data { data: Some(p4_data::Data::Bitstring(bytes)) }) => {
                fatbtree_p4runtime::bytestring::decode(bytes, map.bitwidth).map_err(|error| {
                    Refusal::new(Code::OutOfRange, format!("register `{}`: {error}", map.name))
                })?
            }
            _ => return Err(Refusal::invalid(format!("register `{}`: expected a bit string", map.name))),
        };
        for index in cells {
            let old = pipeline.register(map.array, index)?;
            pipeline.set_register(map.array, index, value as u64)?; // at most 64 bits by the engine's own limit
            if let Some(undo) = undo {
                undo.push(Undo::Register { register: map.array, index, value: old });
            }
        }
        Ok(())
    }
}

fn restore(
    pipeline: &mut Pipeline,
    table: TableRef,
    entry: &Entry,
    counter: Option<CounterData>,
) -> Result<(), crate::TableError> {
    match counter {
        Some(data) => pipeline.set_direct_counter(table, &entry.key, entry.priority, data),
        None => Ok(()),
    }
}

/// An entry and its counter as they are now.
fn snapshot(
    pipeline: &Pipeline,
    table: TableRef,
    key: &[MatchValue],
    priority: i32,
) -> Result<(Entry, Option<CounterData>), Refusal> {
    let entry = pipeline.get(table, key, priority)?;
    Ok((entry, pipeline.direct_counter(table, key, priority).ok()))
}

fn check_direct_resources(
    has_meter: bool,
    has_counter: bool,
    table: &str,
    entry: &TableEntry,
) -> Result<(), Refusal> {
    if entry.meter_config.is_some() || entry.meter_counter_data.is_some() {
        return Err(match has_meter {
            true => Refusal::unimplemented(format!("table `{table}`: this switch does not configure meters")),
            false => Refusal::invalid(format!("table `{table}` has no direct meter, found a meter_config")),
        });
    }
    if entry.counter_data.is_some() && !has_counter {
        return Err(Refusal::invalid(format!("table `{table}` has no direct counter, found counter_data")));
    }
    if entry.idle_timeout_ns != 0 {
        let found = entry.idle_timeout_ns;
        return Err(Refusal::invalid(format!(
            "table `{table}` has no idle timeout: expected idle_timeout_ns 0, found {found}"
        )));
    }
    Ok(())
}

fn only_modify(kind: Type, what: &str) -> Result<(), Refusal> {
    match kind {
        Type::Modify => Ok(()),
        other => Err(Refusal::invalid(format!(
            "expected MODIFY for {what}, for it always exists, found {}",
            other.as_str_name()
        ))),
    }
}

/// The cells an index names: one, or all when it is unset.
pub(super) fn cells(
    kind: &str,
    name: &str,
    size: u64,
    index: Option<&v1::Index>,
) -> Result<std::ops::Range<u64>, Refusal> {
    let Some(v1::Index { index }) = index else { return Ok(0..size) };
    let cell = u64::try_from(*index)
        .map_err(|_| Refusal::invalid(format!("{kind} `{name}`: expected an index from 0, found {index}")))?;
    if cell >= size {
        let message = format!("{kind} `{name}`: expected an index below {size}, found {cell}");
        return Err(Refusal::new(Code::OutOfRange, message));
    }
    Ok(cell..cell + 1)
}

pub(super) fn unknown_table(table_id: u32) -> Refusal {
    Refusal::invalid(format!(
        "expected a table of the running program, found table id {table_id} ({table_id:#010x}): take ids from its P4Info"
    ))
}

fn counter_from(data: &v1::CounterData) -> Result<CounterData, Refusal> {
    match (u64::try_from(data.packet_count), u64::try_from(data.byte_count)) {
        (Ok(packets), Ok(bytes)) => Ok(CounterData { packets, bytes }),
        _ => Err(Refusal::invalid(format!(
            "expected counts from 0, found {} packets and {} bytes",
            data.packet_count, data.byte_count
        ))),
    }
}

/// Name of an entity's kind, for messages.
pub(super) fn entity_name(entity: &Entity) -> &'static str {
    match entity {
        Entity::ExternEntry(_) => "an extern entry",
        Entity::TableEntry(_) => "a table entry",
        Entity::ActionProfileMember(_) => "an action profile member",
        Entity::ActionProfileGroup(_) => "an action profile group",
        Entity::MeterEntry(_) => "a meter entry",
        Entity::DirectMeterEntry(_) => "a direct meter entry",
        Entity::CounterEntry(_) => "a counter entry",
        Entity::DirectCounterEntry(_) => "a direct counter entry",
        Entity::PacketReplicationEngineEntry(_) => "a multicast group or clone session",
        Entity::ValueSetEntry(_) => "a value set",
        Entity::RegisterEntry(_) => "a register entry",
        Entity::DigestEntry(_) => "a digest entry",
    }
}
