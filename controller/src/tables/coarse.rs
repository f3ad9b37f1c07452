//! `coarse` and `coarse_whole` of a node set: epoch and a node's address → which quarter of it, where its children lie, and its slot.
//! An entry here is what makes a node *there*.

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
    /// Whether it is in `coarse_whole`: as its action's [`Last`] is.
    pub whole: bool,
    /// Epoch.
    pub epoch: u8,
    /// The node.
    pub address: u64,
}

/// Look for the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action {
    /// Last keys before the second, third and fourth quarter of the node.
    pub last: Last,
    /// What the rest of the node is called by in this set and epoch.
    pub slot: u16,
    /// Where the first child lies, 48 bits, in the memory server of the node; 0 if they are no run.
    pub first_child: u64,
    /// Distance of its children in units of [`STRIDE_BYTES`](super::run::STRIDE_BYTES); 0 if they are no run.
    pub stride: u8,
    /// Whether its children are inner nodes, which may be cached further on.
    pub inner: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    epoch: MatchFieldInfo,
    address: MatchFieldInfo,
    actions: Actions,
}

impl Table {
    pub(super) fn new(table: &TableInfo, whole: bool) -> Result<Self, LookupError> {
        Ok(Self {
            epoch: table.field("epoch")?.clone(),
            address: table.field("address")?.clone(),
            actions: Actions::new(table, "quarter", whole)?,
            table: table.clone(),
        })
    }

    #[inline]
    pub(super) fn entry(&self, key: Key, action: Option<Action>) -> Result<TableEntry, EntryError> {
        let entry = self.table.entry().exact(&self.epoch, key.epoch.into()).exact(&self.address, key.address);
        match action {
            None => entry,
            Some(Action { last, slot, first_child, stride, inner }) => {
                let [a, b, c] = last.values();
                let values = [a, b, c, slot.into(), first_child, stride.into(), inner.into()];
                entry.action(self.actions.of(&last), &values)
            }
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
        let address = narrow(&self.table, view.exact(&self.address)?)?;
        let (action, [a, b, c, slot, first_child, stride, inner]) = action_of(&self.table, entry)?;
        let last =
            self.actions.read(action, [a, b, c]).ok_or_else(|| TableError::foreign_action(&self.table))?;
        let action = Action {
            last,
            slot: narrow(&self.table, slot)?,
            first_child,
            stride: narrow(&self.table, stride)?,
            inner: inner != 0,
        };
        Ok((Key { set, whole, epoch, address }, action))
    }
}
