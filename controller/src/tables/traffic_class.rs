//! `traffic_class`: which queue packets of a code point (DSCP) wait in, so that RoCE's can be lossless.

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};

use super::{TableError, arguments, narrow};

/// What is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The code point, 0 to 63.
    pub dscp: u8,
}

/// Where they wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action {
    /// The queue, and the priority of flow control (PFC), 0 to 7.
    pub class: u8,
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    dscp: MatchFieldInfo,
    assign: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo) -> Result<Self, LookupError> {
        let (dscp, assign) = (table.field("dscp")?.clone(), table.action("assign")?.clone());
        Ok(Self { dscp, assign, table: table.clone() })
    }

    pub(super) fn entry(&self, key: Key, action: Option<Action>) -> Result<TableEntry, EntryError> {
        let entry = self.table.entry().exact(&self.dscp, key.dscp.into());
        match action {
            None => entry,
            Some(Action { class }) => entry.action(&self.assign, &[class.into()]),
        }
        .build()
    }

    pub(super) fn read(&self, entry: &TableEntry) -> Result<(Key, Action), TableError> {
        let dscp = narrow(&self.table, self.table.view(entry)?.exact(&self.dscp)?)?;
        let [class] = arguments(&self.table, entry, &self.assign)?;
        Ok((Key { dscp }, Action { class: narrow(&self.table, class)? }))
    }
}
