//! `child` of a node set: epoch, node and branch → where the child lies, and its node id.

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
    /// Node, from 1.
    pub node_id: u16,
    /// Which child, 0 to 15.
    pub branch: u8,
}

/// Go on with this child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action {
    /// Its offset, 48 bits, in the memory server of its node.
    pub offset: u64,
    /// Its node id where it is cached further down, else 0.
    pub node_id: u16,
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    epoch: MatchFieldInfo,
    node_id: MatchFieldInfo,
    branch: MatchFieldInfo,
    descend_to: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo) -> Result<Self, LookupError> {
        Ok(Self {
            epoch: table.field("epoch")?.clone(),
            node_id: table.field("node_id")?.clone(),
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
            .exact(&self.node_id, key.node_id.into())
            .exact(&self.branch, key.branch.into());
        match action {
            None => entry,
            Some(Action { offset, node_id }) => entry.action(&self.descend_to, &[offset, node_id.into()]),
        }
        .build()
    }

    pub(super) fn read(&self, entry: &TableEntry, set: NodeSet) -> Result<(Key, Action), TableError> {
        let view = self.table.view(entry)?;
        let epoch = narrow(&self.table, view.exact(&self.epoch)?)?;
        let node_id = narrow(&self.table, view.exact(&self.node_id)?)?;
        let branch = narrow(&self.table, view.exact(&self.branch)?)?;
        let [offset, child] = arguments(&self.table, entry, &self.descend_to)?;
        Ok((Key { set, epoch, node_id, branch }, Action { offset, node_id: narrow(&self.table, child)? }))
    }
}
