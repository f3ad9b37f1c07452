//! `run` of a node set: the distance of siblings, and which of them → how far it lies behind the first one. The same for all epochs.

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};

use super::{NodeSet, TableError, arguments, narrow};

/// The unit of distances between siblings.
pub const STRIDE_BYTES: u64 = 64;

/// What is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The node set.
    pub set: NodeSet,
    /// Distance of siblings in units of [`STRIDE_BYTES`], from 1.
    pub stride: u8,
    /// Which child, 0 to 15.
    pub branch: u8,
}

/// Go on with this child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action {
    /// Bytes from the first child.
    pub distance: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    stride: MatchFieldInfo,
    branch: MatchFieldInfo,
    descend_by: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo) -> Result<Self, LookupError> {
        Ok(Self {
            stride: table.field("stride")?.clone(),
            branch: table.field("branch")?.clone(),
            descend_by: table.action("descend_by")?.clone(),
            table: table.clone(),
        })
    }

    pub(super) fn entry(&self, key: Key, action: Option<Action>) -> Result<TableEntry, EntryError> {
        let entry =
            self.table.entry().exact(&self.stride, key.stride.into()).exact(&self.branch, key.branch.into());
        match action {
            None => entry,
            Some(Action { distance }) => entry.action(&self.descend_by, &[distance.into()]),
        }
        .build()
    }

    pub(super) fn read(&self, entry: &TableEntry, set: NodeSet) -> Result<(Key, Action), TableError> {
        let view = self.table.view(entry)?;
        let stride = narrow(&self.table, view.exact(&self.stride)?)?;
        let branch = narrow(&self.table, view.exact(&self.branch)?)?;
        let [distance] = arguments(&self.table, entry, &self.descend_by)?;
        Ok((Key { set, stride, branch }, Action { distance: narrow(&self.table, distance)? }))
    }
}
