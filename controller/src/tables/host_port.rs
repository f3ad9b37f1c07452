//! `host_port`: the addresses of the host behind a port: packets that leave there are addressed to its card, and queries to it.

use std::net::Ipv4Addr;

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
    /// Its IPv4 address.
    pub ip: Ipv4Addr,
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
            Some(Action { mac, ip }) => entry.action(&self.address_to, &[number(mac), ip.to_bits().into()]),
        }
        .build()
    }

    pub(super) fn read(&self, entry: &TableEntry) -> Result<(Key, Action), TableError> {
        let port = narrow(&self.table, self.table.view(entry)?.exact(&self.port)?)?;
        let [mac, ip] = arguments(&self.table, entry, &self.address_to)?;
        Ok((Key { port }, Action { mac: address(mac), ip: Ipv4Addr::from(narrow::<u32>(&self.table, ip)?) }))
    }
}
