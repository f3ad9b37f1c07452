//! `pivot_0` … `pivot_15` of a node set: epoch and node → the node's i-th pivot.

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};

use super::{NodeSet, TableError, arguments, narrow, numbered_action};

/// What is matched. Ordered so that `pivot_0`, which decides whether a node is there at all, stands apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The node set.
    pub set: NodeSet,
    /// Which pivot, 0 to 15: 0 is the node's low fence, i the low fence of child i.
    pub index: u8,
    /// Epoch.
    pub epoch: u8,
    /// Node, from 1.
    pub node_id: u16,
}

/// Compare the key with this pivot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action {
    /// The pivot.
    pub pivot: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    index: u8,
    epoch: MatchFieldInfo,
    node_id: MatchFieldInfo,
    compare_with: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo, index: u8) -> Result<Self, LookupError> {
        Ok(Self {
            index,
            epoch: table.field("epoch")?.clone(),
            node_id: table.field("node_id")?.clone(),
            compare_with: numbered_action(table, "compare_with", index)?,
            table: table.clone(),
        })
    }

    #[inline]
    pub(super) fn entry(&self, key: Key, action: Option<Action>) -> Result<TableEntry, EntryError> {
        let entry =
            self.table.entry().exact(&self.epoch, key.epoch.into()).exact(&self.node_id, key.node_id.into());
        match action {
            None => entry,
            Some(Action { pivot }) => entry.action(&self.compare_with, &[pivot]),
        }
        .build()
    }

    pub(super) fn read(&self, entry: &TableEntry, set: NodeSet) -> Result<(Key, Action), TableError> {
        let view = self.table.view(entry)?;
        let epoch = narrow(&self.table, view.exact(&self.epoch)?)?;
        let node_id = narrow(&self.table, view.exact(&self.node_id)?)?;
        let [pivot] = arguments(&self.table, entry, &self.compare_with)?;
        Ok((Key { set, index: self.index, epoch, node_id }, Action { pivot }))
    }
}
