//! `loopback_port`: by which port an index packet passes a switch a second time, by its path number.

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};

use super::{TableError, arguments, narrow};

/// What is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The packet's path number, 0 to 63.
    pub path: u8,
}

/// Forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action {
    /// The port, in loopback mode.
    pub port: u16,
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    path: MatchFieldInfo,
    forward: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo) -> Result<Self, LookupError> {
        let (path, forward) = (table.field("path")?.clone(), table.action("forward")?.clone());
        Ok(Self { path, forward, table: table.clone() })
    }

    pub(super) fn entry(&self, key: Key, action: Option<Action>) -> Result<TableEntry, EntryError> {
        let entry = self.table.entry().exact(&self.path, key.path.into());
        match action {
            None => entry,
            Some(Action { port }) => entry.action(&self.forward, &[port.into()]),
        }
        .build()
    }

    pub(super) fn read(&self, entry: &TableEntry) -> Result<(Key, Action), TableError> {
        let path = narrow(&self.table, self.table.view(entry)?.exact(&self.path)?)?;
        let [port] = arguments(&self.table, entry, &self.forward)?;
        Ok((Key { path }, Action { port: narrow(&self.table, port)? }))
    }
}
