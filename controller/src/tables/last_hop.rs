//! `last_hop`: ports that lead to hosts, where index packets become ordinary READs again.

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};

use super::{TableError, arguments, narrow};

/// What is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The egress port.
    pub port: u16,
}

/// Take the index header off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action;

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    port: MatchFieldInfo,
    strip: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo) -> Result<Self, LookupError> {
        let (port, strip) = (table.field("egress_port")?.clone(), table.action("strip")?.clone());
        Ok(Self { port, strip, table: table.clone() })
    }

    pub(super) fn entry(&self, key: Key, action: Option<Action>) -> Result<TableEntry, EntryError> {
        let entry = self.table.entry().exact(&self.port, key.port.into());
        match action {
            None => entry,
            Some(Action) => entry.action(&self.strip, &[]),
        }
        .build()
    }

    pub(super) fn read(&self, entry: &TableEntry) -> Result<(Key, Action), TableError> {
        let port = narrow(&self.table, self.table.view(entry)?.exact(&self.port)?)?;
        let [] = arguments(&self.table, entry, &self.strip)?;
        Ok((Key { port }, Action))
    }
}
