//! Counters of both switches, by name.

use std::collections::BTreeMap;
use std::error::Error;

use fatbtree_controller::Tables;
use fatbtree_p4runtime::entry::counter_values;
use fatbtree_p4runtime::v1::{CounterEntry, Entity, entity};
use fatbtree_p4runtime::{EntryView, P4InfoIndex};

/// Packets by counter and index, and by entry.
pub(crate) type Counts = BTreeMap<String, u64>;

/// A read of every counter and of every table that has direct ones.
pub(crate) fn wanted(info: &P4InfoIndex) -> Vec<Entity> {
    let counters = info.counters().iter().map(|counter| {
        let all = CounterEntry { counter_id: counter.id, ..CounterEntry::default() };
        Entity { entity: Some(entity::Entity::CounterEntry(all)) }
    });
    let tables = info.tables().iter().filter(|table| table.direct_counter.is_some());
    counters.chain(tables.map(|table| table.read_all(true))).collect()
}

/// Extracts the counters from the entities that were read.
pub(crate) fn counts(
    info: &P4InfoIndex,
    tables: &Tables,
    read: Vec<Entity>,
) -> Result<Counts, Box<dyn Error>> {
    let mut counts = Counts::new();
    for entity in read {
        let (name, packets) = match entity.entity {
            Some(entity::Entity::CounterEntry(entry)) => {
                let counter =
                    info.counter_by_id(entry.counter_id).ok_or("a counter that is not in the P4Info")?;
                let index = entry.index.map_or(0, |index| index.index);
                let data = entry.data.as_ref().map_or(0, |data| counter_values(data).0);
                (format!("{}[{index}]", counter.name), data)
            }
            Some(entity::Entity::TableEntry(raw)) => {
                let table = info.table_by_id(raw.table_id).ok_or("a table that is not in the P4Info")?;
                let entry = tables.read(&raw)?;
                let packets = table.view(&raw).ok().as_ref().and_then(EntryView::counter).map_or(0, |c| c.0);
                (format!("{entry:?}"), packets)
            }
            _ => continue,
        };
        counts.insert(name, packets);
    }
    Ok(counts)
}
