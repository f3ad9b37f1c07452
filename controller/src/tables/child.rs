//! `child` of a node set: epoch, slot and branch → where the child lies, for nodes whose children are no [run](super::run).

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};

use super::{NodeSet, TableError, arguments, narrow};

/// What is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The node set.
    pub set: NodeSet,
    /// Epoch.
    pub epoch: u8,
    /// The node.
    pub slot: u16,
    /// Which child, 0 to 15.
    pub branch: u8,
}

/// Go on with this child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action {
    /// Its offset, 48 bits, in the memory server of its node.
    pub offset: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    epoch: MatchFieldInfo,
    slot: MatchFieldInfo,
    branch: MatchFieldInfo,
    descend_to: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo) -> Result<Self, LookupError> {
        Ok(Self {
            epoch: table.field("epoch")?.clone(),
            slot: table.field("slot")?.clone(),
            branch: table.field("branch")?.clone(),
            descend_to: table.action("descend_to")?.clone(),
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
            .exact(&self.branch, key.branch.into());
        match action {
            None => entry,
            Some(Action { offset }) => entry.action(&self.descend_to, &[offset]),
        }
        .build()
    }

    pub(super) fn read(&self, entry: &TableEntry, set: NodeSet) -> Result<(Key, Action), TableError> {
        let view = self.table.view(entry)?;
        let epoch = narrow(&self.table, view.exact(&self.epoch)?)?;
        let slot = narrow(&self.table, view.exact(&self.slot)?)?;
        let branch = narrow(&self.table, view.exact(&self.branch)?)?;
        let [offset] = arguments(&self.table, entry, &self.descend_to)?;
        Ok((Key { set, epoch, slot, branch }, Action { offset }))
    }
}
