//! `coarse` of a node set: epoch and node → the last keys before children 4, 8 and 12.

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};

use super::{NodeSet, TableError, arguments, narrow};

/// What is matched. An entry of this table is what makes a node *there*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The node set.
    pub set: NodeSet,
    /// Epoch.
    pub epoch: u8,
    /// Node, from 1.
    pub node_id: u16,
}

/// Compare the key with these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action {
    /// Last keys before the second, third and fourth quarter of the node.
    pub last: [u64; 3],
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    epoch: MatchFieldInfo,
    node_id: MatchFieldInfo,
    compare_quarters: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo) -> Result<Self, LookupError> {
        Ok(Self {
            epoch: table.field("epoch")?.clone(),
            node_id: table.field("node_id")?.clone(),
            compare_quarters: table.action("compare_quarters")?.clone(),
            table: table.clone(),
        })
    }

    #[inline]
    pub(super) fn entry(&self, key: Key, action: Option<Action>) -> Result<TableEntry, EntryError> {
        let entry =
            self.table.entry().exact(&self.epoch, key.epoch.into()).exact(&self.node_id, key.node_id.into());
        match action {
            None => entry,
            Some(Action { last }) => entry.action(&self.compare_quarters, &last),
        }
        .build()
    }

    pub(super) fn read(&self, entry: &TableEntry, set: NodeSet) -> Result<(Key, Action), TableError> {
        let view = self.table.view(entry)?;
        let epoch = narrow(&self.table, view.exact(&self.epoch)?)?;
        let node_id = narrow(&self.table, view.exact(&self.node_id)?)?;
        let last = arguments(&self.table, entry, &self.compare_quarters)?;
        Ok((Key { set, epoch, node_id }, Action { last }))
    }
}
