//! `fine` and `fine_whole` of a node set: epoch, slot and quarter of a node → which child of the quarter.

use fatbtree_p4runtime::index::{MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};

use super::pivots::{Actions, Last};
use super::{NodeSet, TableError, action_of, narrow};

/// What is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The node set.
    pub set: NodeSet,
    /// Whether it is in `fine_whole`: as its action's [`Last`] is.
    pub whole: bool,
    /// Epoch.
    pub epoch: u8,
    /// The node.
    pub slot: u16,
    /// The quarter, 0 to 3.
    pub quarter: u8,
}

/// Compare the key with these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action {
    /// Last keys before the second, third and fourth child of the quarter.
    pub last: Last,
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    epoch: MatchFieldInfo,
    slot: MatchFieldInfo,
    quarter: MatchFieldInfo,
    actions: Actions,
}

impl Table {
    pub(super) fn new(table: &TableInfo, whole: bool) -> Result<Self, LookupError> {
        Ok(Self {
            epoch: table.field("epoch")?.clone(),
            slot: table.field("slot")?.clone(),
            quarter: table.field("quarter")?.clone(),
            actions: Actions::new(table, "child", whole)?,
            table: table.clone(),
        })
    }

    #[inline]
    pub(super) fn entry(&self, key: Key, action: Option<Action>) -> Result<TableEntry, EntryError> {
        let entry = self
            .table
            .entry()
            .exact(&self.epoch, key.epoch.into())
            .exact(&self.slot, key.slot.into())
            .exact(&self.quarter, key.quarter.into());
        match action {
            None => entry,
            Some(Action { last }) => entry.action(self.actions.of(&last), &last.values()),
        }
        .build()
    }

    pub(super) fn read(
        &self,
        entry: &TableEntry,
        set: NodeSet,
        whole: bool,
    ) -> Result<(Key, Action), TableError> {
        let view = self.table.view(entry)?;
        let epoch = narrow(&self.table, view.exact(&self.epoch)?)?;
        let slot = narrow(&self.table, view.exact(&self.slot)?)?;
        let quarter = narrow(&self.table, view.exact(&self.quarter)?)?;
        let (action, values) = action_of(&self.table, entry)?;
        let last =
            self.actions.read(action, values).ok_or_else(|| TableError::foreign_action(&self.table))?;
        Ok((Key { set, whole, epoch, slot, quarter }, Action { last }))
    }
}
