//! `trunk_port`: ports that lead to other switches; the others lead to hosts, and index packets that come from there are forged.

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};

use super::{TableError, arguments, narrow};

/// What is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The ingress port.
    pub port: u16,
}

/// Believe what comes from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action;

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    port: MatchFieldInfo,
    trunk: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo) -> Result<Self, LookupError> {
        let (port, trunk) = (table.field("port")?.clone(), table.action("trunk")?.clone());
        Ok(Self { port, trunk, table: table.clone() })
    }

    pub(super) fn entry(&self, key: Key, action: Option<Action>) -> Result<TableEntry, EntryError> {
        let entry = self.table.entry().exact(&self.port, key.port.into());
        match action {
            None => entry,
            Some(Action) => entry.action(&self.trunk, &[]),
        }
        .build()
    }

    pub(super) fn read(&self, entry: &TableEntry) -> Result<(Key, Action), TableError> {
        let port = narrow(&self.table, self.table.view(entry)?.exact(&self.port)?)?;
        let [] = arguments(&self.table, entry, &self.trunk)?;
        Ok((Key { port }, Action))
    }
}
