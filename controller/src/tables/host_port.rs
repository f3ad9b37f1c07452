//! `host_port`: the MAC address of the host behind a port: packets that leave there are addressed to it.

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};
use fatbtree_topology::MacAddress;

use super::neighbor::{address, number};
use super::{TableError, arguments, narrow};

/// What is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The egress port.
    pub port: u16,
}

/// Address the packet to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action {
    /// Its MAC address.
    pub mac: MacAddress,
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    port: MatchFieldInfo,
    address_to: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo) -> Result<Self, LookupError> {
        let (port, address_to) = (table.field("egress_port")?.clone(), table.action("address_to")?.clone());
        Ok(Self { port, address_to, table: table.clone() })
    }

    pub(super) fn entry(&self, key: Key, action: Option<Action>) -> Result<TableEntry, EntryError> {
        let entry = self.table.entry().exact(&self.port, key.port.into());
        match action {
            None => entry,
            Some(Action { mac }) => entry.action(&self.address_to, &[number(mac)]),
        }
        .build()
    }

    pub(super) fn read(&self, entry: &TableEntry) -> Result<(Key, Action), TableError> {
        let port = narrow(&self.table, self.table.view(entry)?.exact(&self.port)?)?;
        let [mac] = arguments(&self.table, entry, &self.address_to)?;
        Ok((Key { port }, Action { mac: address(mac) }))
    }
}
