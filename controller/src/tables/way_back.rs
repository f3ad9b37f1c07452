//! `way_back`: from the second pass to a partition's memory server.

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};

use super::{TableError, arguments, narrow};

/// What is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// By which port the packet came back.
    pub loopback_port: u16,
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
    loopback_port: MatchFieldInfo,
    partition: MatchFieldInfo,
    forward: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo) -> Result<Self, LookupError> {
        Ok(Self {
            loopback_port: table.field("loopback_port")?.clone(),
            partition: table.field("partition")?.clone(),
            forward: table.action("forward")?.clone(),
            table: table.clone(),
        })
    }

    pub(super) fn entry(&self, key: Key, action: Option<Action>) -> Result<TableEntry, EntryError> {
        let entry = self.table.entry().exact(&self.loopback_port, key.loopback_port.into());
        let entry = entry.exact(&self.partition, key.partition.into());
        match action {
            None => entry,
            Some(Action { port }) => entry.action(&self.forward, &[port.into()]),
        }
        .build()
    }

    pub(super) fn read(&self, entry: &TableEntry) -> Result<(Key, Action), TableError> {
        let view = self.table.view(entry)?;
        let loopback_port = narrow(&self.table, view.exact(&self.loopback_port)?)?;
        let partition = narrow(&self.table, view.exact(&self.partition)?)?;
        let [port] = arguments(&self.table, entry, &self.forward)?;
        Ok((Key { loopback_port, partition }, Action { port: narrow(&self.table, port)? }))
    }
}
