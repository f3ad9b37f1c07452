//! `partition_route`: the way down to a partition's memory server.

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};

use super::{TableError, arguments, narrow};

/// What is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The partition.
    pub partition: u16,
}

/// Forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action {
    /// The port.
    pub port: u16,
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    partition: MatchFieldInfo,
    forward: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo) -> Result<Self, LookupError> {
        let (partition, forward) = (table.field("partition")?.clone(), table.action("forward")?.clone());
        Ok(Self { partition, forward, table: table.clone() })
    }

    pub(super) fn entry(&self, key: Key, action: Option<Action>) -> Result<TableEntry, EntryError> {
        let entry = self.table.entry().exact(&self.partition, key.partition.into());
        match action {
            None => entry,
            Some(Action { port }) => entry.action(&self.forward, &[port.into()]),
        }
        .build()
    }

    pub(super) fn read(&self, entry: &TableEntry) -> Result<(Key, Action), TableError> {
        let partition = narrow(&self.table, self.table.view(entry)?.exact(&self.partition)?)?;
        let [port] = arguments(&self.table, entry, &self.forward)?;
        Ok((Key { partition }, Action { port: narrow(&self.table, port)? }))
    }
}
