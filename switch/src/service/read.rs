//! Reading entities, with wildcards ("Read RPC", "Wildcard Reads").

use fatbtree_p4runtime::bytestring;
use fatbtree_p4runtime::tonic::Code;
use fatbtree_p4runtime::v1::{self, Entity, P4Data, ReadResponse, TableEntry, entity, p4_data};

use super::config::Loaded;
use super::convert::{decode_key, encode_action, encode_default, encode_entry, encode_key, unpack_metadata};
use super::mapping::TableMap;
use super::multicast;
use super::refusal::Refusal;
use super::write::{cells, entity_name, unknown_table};
use crate::{CounterData, Entry, Pipeline};

/// Entities per part of an answer: some 100 KB, well below the 4 MB that clients accept by default.
const PART: usize = 1000;

/// Answers, cut into parts.
#[derive(Debug, Default)]
pub(super) struct Parts {
    parts: Vec<ReadResponse>,
}

impl Parts {
    fn push(&mut self, entity: entity::Entity) {
        let entity = Entity { entity: Some(entity) };
        match self.parts.last_mut() {
            Some(part) if part.entities.len() < PART => part.entities.push(entity),
            _ => {
                let mut entities = Vec::with_capacity(16);
                entities.push(entity);
                self.parts.push(ReadResponse { entities });
            }
        }
    }

    pub(super) fn into_inner(self) -> Vec<ReadResponse> {
        self.parts
    }
}

/// A program and its state, to read from.
pub(super) struct Reader<'a> {
    pub(super) loaded: &'a Loaded,
    pub(super) pipeline: &'a Pipeline,
}

impl Reader<'_> {
    pub(super) fn read(&self, request: &Entity, parts: &mut Parts) -> Result<(), Refusal> {
        use entity::Entity;
        match request.entity.as_ref() {
            Some(Entity::TableEntry(filter)) => self.table_entries(filter, parts),
            Some(Entity::DirectCounterEntry(filter)) => self.direct_counters(filter, parts),
            Some(Entity::CounterEntry(filter)) => self.counters(filter, parts),
            Some(Entity::RegisterEntry(filter)) => self.registers(filter, parts),
            Some(Entity::PacketReplicationEngineEntry(filter)) => {
                multicast::read(self.pipeline, filter, |entry| {
                    parts.push(Entity::PacketReplicationEngineEntry(entry));
                })
            }
            // The program was checked to have none of these, so a wildcard finds nothing.
            Some(Entity::ExternEntry(filter)) if filter.extern_id == 0 => Ok(()),
            Some(Entity::ActionProfileMember(filter)) if filter.action_profile_id == 0 => Ok(()),
            Some(Entity::ActionProfileGroup(filter)) if filter.action_profile_id == 0 => Ok(()),
            Some(Entity::ValueSetEntry(filter)) if filter.value_set_id == 0 => Ok(()),
            Some(Entity::DigestEntry(filter)) if filter.digest_id == 0 => Ok(()),
            Some(Entity::MeterEntry(filter)) if filter.meter_id == 0 && !self.loaded.mapping.has_meters => {
                Ok(())
            }
            Some(Entity::DirectMeterEntry(_)) if !self.loaded.mapping.has_meters => Ok(()),
            Some(other) => Err(Refusal::unimplemented(format!(
                "this switch serves table entries, counters, registers and multicast groups, found {}",
                entity_name(other)
            ))),
            None => Err(Refusal::invalid("expected an entity to read, found none")),
        }
    }

    fn tables(&self, table_id: u32) -> Result<Vec<(usize, &TableMap)>, Refusal> {
        let tables = &self.loaded.mapping.tables;
        if table_id == 0 {
            return Ok(tables.iter().enumerate().collect());
        }
        let position = self.loaded.mapping.position(table_id).ok_or_else(|| unknown_table(table_id))?;
        Ok(vec![(position, &tables[position])])
    }

    fn table_entries(&self, filter: &TableEntry, parts: &mut Parts) -> Result<(), Refusal> {
        let tables = self.tables(filter.table_id)?;
        if filter.table_id == 0 && !filter.r#match.is_empty() {
            return Err(Refusal::invalid(
                "expected a table id beside a key, found 0: a key belongs to a table",
            ));
        }
        for (position, map) in tables {
            if filter.is_default_action {
                let entry = self.default_entry(position, map);
                parts.push(entity::Entity::TableEntry(entry));
                continue;
            }
            for (entry, counter) in self.select(map, filter)? {
                let mut message = encode_entry(map, &entry);
                if filter.counter_data.is_some() && map.info.direct_counter.is_some() {
                    message.counter_data = Some(counter_message(counter));
                }
                parts.push(entity::Entity::TableEntry(message));
            }
        }
        Ok(())
    }

    fn default_entry(&self, position: usize, map: &TableMap) -> TableEntry {
        let (controller_metadata, metadata) = unpack_metadata(self.loaded.default_cookie(position));
        #[allow(deprecated, reason = "the old cookie must come back as it was written")]
        TableEntry {
            table_id: map.info.id,
            is_default_action: true,
            action: encode_default(map, self.pipeline.default_action(map.table).as_ref()),
            controller_metadata,
            metadata: metadata.to_vec(),
            is_const: map.info.const_default_action.is_some(),
            ..TableEntry::default()
        }
    }

    /// The entries a filter selects. Every set field of the filter has to agree.
    fn select(&self, map: &TableMap, filter: &TableEntry) -> Result<Vec<(Entry, CounterData)>, Refusal> {
        let mut key = Vec::new();
        if !filter.r#match.is_empty() {
            decode_key(map, &self.loaded.mapping.program, &filter.r#match, &mut key)?;
        }
        let agrees = |entry: &Entry| {
            let (cookie, metadata) = unpack_metadata(&entry.metadata);
            #[allow(deprecated, reason = "old clients filter by the old cookie")]
            let wanted_cookie = filter.controller_metadata;
            (filter.priority == 0 || entry.priority == filter.priority)
                && (wanted_cookie == 0 || cookie == wanted_cookie)
                && (filter.metadata.is_empty() || metadata == filter.metadata)
                && wanted_action(filter).is_none_or(|id| {
                    map.position_of(entry.action).is_some_and(|place| map.info.actions[place].action.id == id)
                })
        };
        if !key.is_empty() && (filter.priority != 0 || !map.info.needs_priority) {
            // The key is complete: no need to look at the others.
            return match self.pipeline.get(map.table, &key, filter.priority) {
                Ok(entry) => {
                    let counter = self.pipeline.direct_counter(map.table, &key, filter.priority);
                    Ok(agrees(&entry).then(|| (entry, counter.unwrap_or_default())).into_iter().collect())
                }
                Err(crate::TableError::NoSuchEntry { .. }) => Ok(Vec::new()),
                Err(error) => Err(error.into()),
            };
        }
        let wanted = encode_key(map, &key); // compare canonical forms, "don't care" has several inside
        Ok(self
            .pipeline
            .entries(map.table)
            .filter(|(entry, _)| (key.is_empty() || encode_key(map, &entry.key) == wanted) && agrees(entry))
            .collect())
    }

    fn direct_counters(&self, filter: &v1::DirectCounterEntry, parts: &mut Parts) -> Result<(), Refusal> {
        let wildcard = TableEntry::default();
        let filter = filter.table_entry.as_ref().unwrap_or(&wildcard);
        for (_, map) in self.tables(filter.table_id)? {
            if map.info.direct_counter.is_none() {
                if filter.table_id == 0 {
                    continue;
                }
                return Err(Refusal::invalid(format!("table `{}` has no direct counter", map.info.name)));
            }
            let selected = self.select(map, filter)?;
            if selected.is_empty() && !filter.r#match.is_empty() {
                let message = format!("table `{}` has no entry with this key and priority", map.info.name);
                return Err(Refusal::new(Code::NotFound, message));
            }
            for (entry, counter) in selected {
                let table_entry = TableEntry {
                    table_id: map.info.id,
                    r#match: encode_key(map, &entry.key),
                    action: encode_action(map, entry.action, &entry.params),
                    priority: entry.priority,
                    ..TableEntry::default()
                };
                parts.push(entity::Entity::DirectCounterEntry(v1::DirectCounterEntry {
                    table_entry: Some(table_entry),
                    data: Some(counter_message(counter)),
                }));
            }
        }
        Ok(())
    }

    fn counters(&self, filter: &v1::CounterEntry, parts: &mut Parts) -> Result<(), Refusal> {
        let arrays = &self.loaded.mapping.counters;
        let selected: Vec<_> = arrays.iter().filter(|map| [0, map.id].contains(&filter.counter_id)).collect();
        if selected.is_empty() && filter.counter_id != 0 {
            let message = format!("expected a counter of the program, found id {}", filter.counter_id);
            return Err(Refusal::invalid(message));
        }
        for map in selected {
            let index = filter.index.as_ref().filter(|_| filter.counter_id != 0);
            for cell in cells("counter", &map.name, map.size, index)? {
                parts.push(entity::Entity::CounterEntry(v1::CounterEntry {
                    counter_id: map.id,
                    index: Some(v1::Index { index: cell as i64 }), // below the array's size
                    data: Some(counter_message(self.pipeline.counter(map.array, cell)?)),
                }));
            }
        }
        Ok(())
    }

    fn registers(&self, filter: &v1::RegisterEntry, parts: &mut Parts) -> Result<(), Refusal> {
        let arrays = &self.loaded.mapping.registers;
        let selected: Vec<_> =
            arrays.iter().filter(|map| [0, map.id].contains(&filter.register_id)).collect();
        if selected.is_empty() && filter.register_id != 0 {
            let message = format!("expected a register of the program, found id {}", filter.register_id);
            return Err(Refusal::invalid(message));
        }
        for map in selected {
            let index = filter.index.as_ref().filter(|_| filter.register_id != 0);
            for cell in cells("register", &map.name, map.size, index)? {
                let value = bytestring::encode(self.pipeline.register(map.array, cell)?);
                parts.push(entity::Entity::RegisterEntry(v1::RegisterEntry {
                    register_id: map.id,
                    index: Some(v1::Index { index: cell as i64 }), // below the array's size
                    data: Some(P4Data { data: Some(p4_data::Data::Bitstring(value)) }),
                }));
            }
        }
        Ok(())
    }
}

fn wanted_action(filter: &TableEntry) -> Option<u32> {
    match filter.action.as_ref()?.r#type.as_ref()? {
        v1::table_action::Type::Action(action) if action.action_id != 0 => Some(action.action_id),
        _ => None,
    }
}

fn counter_message(data: CounterData) -> v1::CounterData {
    let clamp = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    v1::CounterData { packet_count: clamp(data.packets), byte_count: clamp(data.bytes) }
}
