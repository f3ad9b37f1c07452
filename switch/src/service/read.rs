//! Reading entities, with wildcards ("Read RPC", "Wildcard Reads"), part by part.

use fatbtree_p4runtime::bytestring;
use fatbtree_p4runtime::status::batch_status;
use fatbtree_p4runtime::tonic::{Code, Status};
use fatbtree_p4runtime::v1::{self, Entity, P4Data, ReadResponse, TableEntry, entity, p4_data};

use super::config::Loaded;
use super::convert::{decode_key, encode_action, encode_default, encode_entry, encode_key, unpack_metadata};
use super::mapping::TableMap;
use super::multicast;
use super::refusal::Refusal;
use super::write::{cells, entity_name, unknown_table};
use crate::{CounterData, Entry, Pipeline};

/// Entities in a part of an answer, about: a fifth of a millisecond's work, and some 10 KB.
const PART: usize = 128;

/// A read that is under way. It keeps only its position, and no copy of a table that changes meanwhile.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) request: v1::ReadRequest,
    /// Program that the read began with, by the control plane's count.
    pub(super) generation: Option<u64>,
    /// Index of the present entity of the request.
    entity: usize,
    place: Place,
    /// Errors by entity; filled from the first error on.
    errors: Vec<v1::Error>,
}

/// Progress of a read of one entity.
#[derive(Debug, Default)]
struct Place {
    /// The table or array, by its position among those that are asked for.
    object: usize,
    /// Position inside it.
    inside: u64,
    /// Whether something was found in it.
    found: bool,
}

impl Place {
    fn next_object(&mut self) {
        *self = Self { object: self.object + 1, ..Self::default() };
    }
}

/// A part of an answer.
struct Part {
    entities: Vec<Entity>,
    /// Remaining work budget, in entities returned plus places scanned.
    left: usize,
}

impl Part {
    fn push(&mut self, entity: entity::Entity) {
        self.entities.push(Entity { entity: Some(entity) });
        self.work(1);
    }

    fn work(&mut self, done: usize) {
        self.left = self.left.saturating_sub(done);
    }
}

impl Reading {
    pub(super) fn new(request: v1::ReadRequest) -> Self {
        Self { request, ..Self::default() }
    }

    /// Reads the next part. Also returns the result of the read, if that was the last part.
    pub(super) fn go_on(&mut self, reader: &Reader<'_>) -> (ReadResponse, Option<Result<(), Status>>) {
        let mut part = Part { entities: Vec::new(), left: PART };
        while let Some(entity) = self.request.entities.get(self.entity) {
            if part.left == 0 {
                return (ReadResponse { entities: part.entities }, None);
            }
            match reader.read(entity, &mut self.place, &mut part) {
                Ok(false) => continue,
                Ok(true) if self.errors.is_empty() => {}
                Ok(true) => self.errors.push(v1::Error::default()),
                Err(refusal) => {
                    self.errors.resize_with(self.entity, v1::Error::default);
                    self.errors.push(refusal.into_error());
                }
            }
            self.place = Place::default();
            self.entity += 1;
            part.work(1);
        }
        let end = if self.errors.is_empty() { Ok(()) } else { Err(batch_status("Read", &self.errors)) };
        (ReadResponse { entities: part.entities }, Some(end))
    }
}

/// A program and its state, to read from.
pub(super) struct Reader<'a> {
    pub(super) loaded: &'a Loaded,
    pub(super) pipeline: &'a Pipeline,
}

impl Reader<'_> {
    /// Continues to read; returns whether this entity's end is reached.
    fn read(&self, request: &Entity, place: &mut Place, part: &mut Part) -> Result<bool, Refusal> {
        use entity::Entity;
        match request.entity.as_ref() {
            Some(Entity::TableEntry(filter)) => self.table_entries(filter, place, part),
            Some(Entity::DirectCounterEntry(filter)) => self.direct_counters(filter, place, part),
            Some(Entity::CounterEntry(filter)) => self.counters(filter, place, part),
            Some(Entity::RegisterEntry(filter)) => self.registers(filter, place, part),
            Some(Entity::PacketReplicationEngineEntry(filter)) => {
                let next = multicast::read(self.pipeline, filter, place.inside, |entry, replicas| {
                    part.push(Entity::PacketReplicationEngineEntry(entry));
                    part.work(replicas / 4);
                    part.left > 0
                })?;
                place.inside = next.unwrap_or_default();
                Ok(next.is_none())
            }
            // The program was checked to have none of these, so a wildcard finds nothing.
            Some(Entity::ExternEntry(filter)) if filter.extern_id == 0 => Ok(true),
            Some(Entity::ActionProfileMember(filter)) if filter.action_profile_id == 0 => Ok(true),
            Some(Entity::ActionProfileGroup(filter)) if filter.action_profile_id == 0 => Ok(true),
            Some(Entity::ValueSetEntry(filter)) if filter.value_set_id == 0 => Ok(true),
            Some(Entity::DigestEntry(filter)) if filter.digest_id == 0 => Ok(true),
            Some(Entity::MeterEntry(filter)) if filter.meter_id == 0 && !self.loaded.mapping.has_meters => {
                Ok(true)
            }
            Some(Entity::DirectMeterEntry(_)) if !self.loaded.mapping.has_meters => Ok(true),
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

    fn table_entries(
        &self,
        filter: &TableEntry,
        place: &mut Place,
        part: &mut Part,
    ) -> Result<bool, Refusal> {
        let tables = self.tables(filter.table_id)?;
        if filter.table_id == 0 && !filter.r#match.is_empty() {
            return Err(Refusal::invalid(
                "expected a table id beside a key, found 0: a key belongs to a table",
            ));
        }
        while let Some(&(position, map)) = tables.get(place.object) {
            if part.left == 0 {
                return Ok(false);
            }
            if filter.is_default_action {
                let entry = self.default_entry(position, map);
                part.push(entity::Entity::TableEntry(entry));
                place.next_object();
                continue;
            }
            self.select(map, filter, place, part, |entry, counter| {
                let mut message = encode_entry(map, &entry);
                if filter.counter_data.is_some() && map.info.direct_counter.is_some() {
                    message.counter_data = Some(counter_message(counter));
                }
                entity::Entity::TableEntry(message)
            })?;
        }
        Ok(true)
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

    /// Reads the next entries of a table that a filter selects, as messages: every set field of the filter has to agree. After the last
    /// entry, goes to the next table, and returns whether an entry was found.
    fn select(
        &self,
        map: &TableMap,
        filter: &TableEntry,
        place: &mut Place,
        part: &mut Part,
        message: impl Fn(Entry, CounterData) -> entity::Entity,
    ) -> Result<Option<bool>, Refusal> {
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
            part.work(1);
            place.next_object();
            return match self.pipeline.get(map.table, &key, filter.priority) {
                Ok(entry) => {
                    let counter = self.pipeline.direct_counter(map.table, &key, filter.priority);
                    let agrees = agrees(&entry);
                    if agrees {
                        part.push(message(entry, counter.unwrap_or_default()));
                    }
                    Ok(Some(agrees))
                }
                Err(crate::TableError::NoSuchEntry { .. }) => Ok(Some(false)),
                Err(error) => Err(error.into()),
            };
        }
        let wanted = encode_key(map, &key); // compare canonical forms, "don't care" has several inside
        let mut entries = Vec::new();
        let next = self.pipeline.next_entries(map.table, place.inside, part.left, &mut entries);
        part.work(1 + entries.len());
        for (entry, counter) in entries {
            if (key.is_empty() || encode_key(map, &entry.key) == wanted) && agrees(&entry) {
                place.found = true;
                part.entities.push(Entity { entity: Some(message(entry, counter)) });
            }
        }
        match next {
            Some(inside) => {
                place.inside = inside;
                // A read that finds little has scanned many places.
                part.work(PART / 4);
                Ok(None)
            }
            None => {
                let found = place.found;
                place.next_object();
                Ok(Some(found))
            }
        }
    }

    fn direct_counters(
        &self,
        filter: &v1::DirectCounterEntry,
        place: &mut Place,
        part: &mut Part,
    ) -> Result<bool, Refusal> {
        let wildcard = TableEntry::default();
        let filter = filter.table_entry.as_ref().unwrap_or(&wildcard);
        let tables = self.tables(filter.table_id)?;
        while let Some(&(_, map)) = tables.get(place.object) {
            if part.left == 0 {
                return Ok(false);
            }
            if map.info.direct_counter.is_none() {
                if filter.table_id == 0 {
                    place.next_object();
                    continue;
                }
                return Err(Refusal::invalid(format!("table `{}` has no direct counter", map.info.name)));
            }
            let found = self.select(map, filter, place, part, |entry, counter| {
                let table_entry = TableEntry {
                    table_id: map.info.id,
                    r#match: encode_key(map, &entry.key),
                    action: encode_action(map, entry.action, &entry.params),
                    priority: entry.priority,
                    ..TableEntry::default()
                };
                entity::Entity::DirectCounterEntry(v1::DirectCounterEntry {
                    table_entry: Some(table_entry),
                    data: Some(counter_message(counter)),
                })
            })?;
            if found == Some(false) && !filter.r#match.is_empty() {
                let message = format!("table `{}` has no entry with this key and priority", map.info.name);
                return Err(Refusal::new(Code::NotFound, message));
            }
        }
        Ok(true)
    }

    fn counters(
        &self,
        filter: &v1::CounterEntry,
        place: &mut Place,
        part: &mut Part,
    ) -> Result<bool, Refusal> {
        let arrays = &self.loaded.mapping.counters;
        let selected: Vec<_> = arrays.iter().filter(|map| [0, map.id].contains(&filter.counter_id)).collect();
        if selected.is_empty() && filter.counter_id != 0 {
            let message = format!("expected a counter of the program, found id {}", filter.counter_id);
            return Err(Refusal::invalid(message));
        }
        while let Some(map) = selected.get(place.object) {
            let index = filter.index.as_ref().filter(|_| filter.counter_id != 0);
            for cell in cells("counter", &map.name, map.size, index)?.skip(place.inside as usize) {
                if part.left == 0 {
                    return Ok(false);
                }
                place.inside += 1;
                part.push(entity::Entity::CounterEntry(v1::CounterEntry {
                    counter_id: map.id,
                    index: Some(v1::Index { index: cell as i64 }), // below the array's size
                    data: Some(counter_message(self.pipeline.counter(map.array, cell)?)),
                }));
            }
            place.next_object();
        }
        Ok(true)
    }

    fn registers(
        &self,
        filter: &v1::RegisterEntry,
        place: &mut Place,
        part: &mut Part,
    ) -> Result<bool, Refusal> {
        let arrays = &self.loaded.mapping.registers;
        let selected: Vec<_> =
            arrays.iter().filter(|map| [0, map.id].contains(&filter.register_id)).collect();
        if selected.is_empty() && filter.register_id != 0 {
            let message = format!("expected a register of the program, found id {}", filter.register_id);
            return Err(Refusal::invalid(message));
        }
        while let Some(map) = selected.get(place.object) {
            let index = filter.index.as_ref().filter(|_| filter.register_id != 0);
            for cell in cells("register", &map.name, map.size, index)?.skip(place.inside as usize) {
                if part.left == 0 {
                    return Ok(false);
                }
                place.inside += 1;
                let value = bytestring::encode(self.pipeline.register(map.array, cell)?);
                part.push(entity::Entity::RegisterEntry(v1::RegisterEntry {
                    register_id: map.id,
                    index: Some(v1::Index { index: cell as i64 }), // below the array's size
                    data: Some(P4Data { data: Some(p4_data::Data::Bitstring(value)) }),
                }));
            }
            place.next_object();
        }
        Ok(true)
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
