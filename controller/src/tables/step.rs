//! `coarse` and `fine` of a node set, the two steps in which a node is searched: epoch and node, in the second step also
//! the quarter → the last keys before three of four parts.

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};

use super::{NodeSet, TableError, arguments, narrow};

/// The tables' names, in the order of [`Key::step`].
pub(super) const NAMES: [&str; 2] = ["coarse", "fine"];
const ACTIONS: [&str; 2] = ["compare_quarters", "compare_children"];

/// What is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The node set.
    pub set: NodeSet,
    /// Epoch.
    pub epoch: u8,
    /// Node, from 1.
    pub node_id: u16,
    /// `None` in `coarse`, whose entry is what makes a node *there*; in `fine` the quarter of the node, 0 to 3.
    pub quarter: Option<u8>,
}

impl Key {
    /// 0 for `coarse`, 1 for `fine`.
    pub(super) fn step(self) -> usize {
        usize::from(self.quarter.is_some())
    }
}

/// Compare the key with these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action {
    /// Last keys before the second, third and fourth quarter of the node, or child of the quarter.
    pub last: [u64; 3],
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    epoch: MatchFieldInfo,
    node_id: MatchFieldInfo,
    /// In `fine`.
    quarter: Option<MatchFieldInfo>,
    compare: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo, step: usize) -> Result<Self, LookupError> {
        let fine = NAMES[step] == "fine";
        Ok(Self {
            epoch: table.field("epoch")?.clone(),
            node_id: table.field("node_id")?.clone(),
            quarter: if fine { Some(table.field("quarter")?.clone()) } else { None },
            compare: table.action(ACTIONS[step])?.clone(),
            table: table.clone(),
        })
    }

    #[inline]
    pub(super) fn entry(&self, key: Key, action: Option<Action>) -> Result<TableEntry, EntryError> {
        let mut entry =
            self.table.entry().exact(&self.epoch, key.epoch.into()).exact(&self.node_id, key.node_id.into());
        if let (Some(field), Some(quarter)) = (&self.quarter, key.quarter) {
            entry = entry.exact(field, quarter.into());
        }
        match action {
            None => entry,
            Some(Action { last }) => entry.action(&self.compare, &last),
        }
        .build()
    }

    pub(super) fn read(&self, entry: &TableEntry, set: NodeSet) -> Result<(Key, Action), TableError> {
        let view = self.table.view(entry)?;
        let epoch = narrow(&self.table, view.exact(&self.epoch)?)?;
        let node_id = narrow(&self.table, view.exact(&self.node_id)?)?;
        let quarter = match &self.quarter {
            Some(field) => Some(narrow(&self.table, view.exact(field)?)?),
            None => None,
        };
        let last = arguments(&self.table, entry, &self.compare)?;
        Ok((Key { set, epoch, node_id, quarter }, Action { last }))
    }
}
