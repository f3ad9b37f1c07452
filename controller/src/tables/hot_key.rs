//! `hot_key`: a key that is asked for often, at the client's edge switch → where its record lies, or its leaf. The same for all epochs.

use std::net::Ipv4Addr;

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};

use super::{TableError, arguments, narrow};

/// What is matched. Reads that ask for a node (rkey 1) have no entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The memory server.
    pub dst_ip: Ipv4Addr,
    /// The key of the tree.
    pub key: u64,
}

/// Go there at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action {
    /// The record, or the leaf.
    pub address: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    dst_ip: MatchFieldInfo,
    key: MatchFieldInfo,
    wants_node: MatchFieldInfo,
    go_to: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo) -> Result<Self, LookupError> {
        Ok(Self {
            dst_ip: table.field("dst_ip")?.clone(),
            key: table.field("key")?.clone(),
            wants_node: table.field("wants_node")?.clone(),
            go_to: table.action("go_to")?.clone(),
            table: table.clone(),
        })
    }

    pub(super) fn entry(&self, key: Key, action: Option<Action>) -> Result<TableEntry, EntryError> {
        let entry = self
            .table
            .entry()
            .exact(&self.dst_ip, u32::from(key.dst_ip).into())
            .exact(&self.key, key.key)
            .exact(&self.wants_node, 0);
        match action {
            None => entry,
            Some(Action { address }) => entry.action(&self.go_to, &[address]),
        }
        .build()
    }

    pub(super) fn read(&self, entry: &TableEntry) -> Result<(Key, Action), TableError> {
        let view = self.table.view(entry)?;
        if view.exact(&self.wants_node)? != 0 {
            return Err(TableError::foreign_action(&self.table));
        }
        let dst_ip = Ipv4Addr::from(narrow::<u32>(&self.table, view.exact(&self.dst_ip)?)?);
        let key = narrow(&self.table, view.exact(&self.key)?)?;
        let [address] = arguments(&self.table, entry, &self.go_to)?;
        Ok((Key { dst_ip, key }, Action { address }))
    }
}
