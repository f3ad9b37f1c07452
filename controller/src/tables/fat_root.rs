//! `fat_root_0` … `fat_root_3`: sub-table and 16-bit slice of the key → next sub-table and the slice that it looks at, or a child.

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};

use super::{TableError, arguments, narrow, numbered_action};

/// What is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Stage, 0 to 3.
    pub stage: u8,
    /// Sub-table, unique over all live epochs. It may stand in several stages: where one has no entry for a slice, the next is asked.
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
    /// Go on in the next stages.
    NextTable {
        /// With this slice of the key, 1 to 3: bits 47..32, 31..16, 15..0. Lookups begin with slice 0, bits 63..48. It is at most the
        /// stage and one.
        slice: u8,
        /// And this sub-table.
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
    /// By the slice that they go on with, where there are more stages.
    next_slices: [Option<ActionInfo>; 4],
    land: ActionInfo,
}

/// The actions that go on, by slice; all go on from the first.
const NEXT_SLICES: [&str; 4] = ["first_slice", "second_slice", "third_slice", "last_slice"];

impl Table {
    pub(super) fn new(table: &TableInfo, stage: u8) -> Result<Self, LookupError> {
        let mut next_slices = [const { None }; 4];
        for (slice, name) in (0u8..).zip(NEXT_SLICES).skip(1) {
            if stage < 3 && slice <= stage + 1 {
                next_slices[usize::from(slice)] = Some(numbered_action(table, name, stage)?);
            }
        }
        Ok(Self {
            stage,
            sub_table: table.field("sub_table")?.clone(),
            slice: table.field("slice")?.clone(),
            next_slices,
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
            Some(Action::NextTable { slice, sub_table }) => {
                let next = self.next_slices.get(usize::from(slice)).and_then(Option::as_ref);
                let next = next.ok_or_else(|| EntryError::Shape {
                    table: self.table.name.clone(),
                    problem: format!(
                        "expected an action that goes on with a later slice, found slice {slice}"
                    ),
                })?;
                entry.action(next, &[sub_table.into()])
            }
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
        let id = view.action()?.map(|(action, _)| action.id);
        let mut next =
            (0u8..).zip(&self.next_slices).filter_map(|(slice, next)| Some((slice, next.as_ref()?)));
        let action = if let Some((slice, next)) = next.find(|(_, next)| Some(next.id) == id) {
            let [sub_table] = arguments(&self.table, entry, next)?;
            Action::NextTable { slice, sub_table: narrow(&self.table, sub_table)? }
        } else {
            let [address, partition, inner] = arguments(&self.table, entry, &self.land)?;
            Action::Land { address, partition: narrow(&self.table, partition)?, inner: inner != 0 }
        };
        Ok((key, action))
    }
}
