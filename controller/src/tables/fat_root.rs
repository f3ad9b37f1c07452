//! `fat_root_0` … `fat_root_3`: sub-table and 16-bit slice of the key → next sub-table, or a child.

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};

use super::{TableError, arguments, narrow, numbered_action};

/// What is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Stage, 0 to 3: the key's bits 63..48, 47..32, 31..16, 15..0.
    pub stage: u8,
    /// Sub-table, unique over all stages and live epochs.
    pub sub_table: u16,
    /// First value of the slice.
    pub low: u16,
    /// Last value of the slice.
    pub high: u16,
    /// Higher wins; all 1 where ranges do not overlap.
    pub priority: u16,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Go on in the next stage.
    NextTable {
        /// With this sub-table.
        sub_table: u16,
    },
    /// This child.
    Land {
        /// Its address.
        address: u64,
        /// Its partition.
        partition: u16,
        /// Whether it is an inner node, which may be cached further on.
        inner: bool,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    stage: u8,
    sub_table: MatchFieldInfo,
    slice: MatchFieldInfo,
    next_table: ActionInfo,
    land: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo, stage: u8) -> Result<Self, LookupError> {
        Ok(Self {
            stage,
            sub_table: table.field("sub_table")?.clone(),
            slice: table.field("slice")?.clone(),
            next_table: numbered_action(table, "next_table", stage)?,
            land: numbered_action(table, "land", stage)?,
            table: table.clone(),
        })
    }

    pub(super) fn entry(&self, key: Key, action: Option<Action>) -> Result<TableEntry, EntryError> {
        let entry = self
            .table
            .entry()
            .exact(&self.sub_table, key.sub_table.into())
            .range(&self.slice, key.low.into(), key.high.into())
            .priority(key.priority.into());
        match action {
            None => entry,
            Some(Action::NextTable { sub_table }) => entry.action(&self.next_table, &[sub_table.into()]),
            Some(Action::Land { address, partition, inner }) => {
                entry.action(&self.land, &[address, partition.into(), inner.into()])
            }
        }
        .build()
    }

    pub(super) fn read(&self, entry: &TableEntry) -> Result<(Key, Action), TableError> {
        let view = self.table.view(entry)?;
        let (low, high) = view.range(&self.slice)?;
        let key = Key {
            stage: self.stage,
            sub_table: narrow(&self.table, view.exact(&self.sub_table)?)?,
            low: narrow(&self.table, low)?,
            high: narrow(&self.table, high)?,
            priority: narrow(&self.table, u128::from(entry.priority.max(0).unsigned_abs()))?,
        };
        let next = view.action()?.is_some_and(|(action, _)| action.id == self.next_table.id);
        let action = if next {
            let [sub_table] = arguments(&self.table, entry, &self.next_table)?;
            Action::NextTable { sub_table: narrow(&self.table, sub_table)? }
        } else {
            let [address, partition, inner] = arguments(&self.table, entry, &self.land)?;
            Action::Land { address, partition: narrow(&self.table, partition)?, inner: inner != 0 }
        };
        Ok((key, action))
    }
}
