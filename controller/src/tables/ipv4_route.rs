//! `ipv4_route`: ordinary routing by longest prefix.

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};
use fatbtree_topology::Prefix;

use super::{TableError, arguments, narrow};

/// What is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Destinations.
    pub prefix: Prefix,
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
    dst_ip: MatchFieldInfo,
    forward: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo) -> Result<Self, LookupError> {
        let (dst_ip, forward) = (table.field("dst_ip")?.clone(), table.action("forward")?.clone());
        Ok(Self { dst_ip, forward, table: table.clone() })
    }

    pub(super) fn entry(&self, key: Key, action: Option<Action>) -> Result<TableEntry, EntryError> {
        let (address, len) = (u32::from(key.prefix.address()), key.prefix.len());
        let entry = self.table.entry().lpm(&self.dst_ip, address.into(), len.into());
        match action {
            None => entry,
            Some(Action { port }) => entry.action(&self.forward, &[port.into()]),
        }
        .build()
    }

    pub(super) fn read(&self, entry: &TableEntry) -> Result<(Key, Action), TableError> {
        let (address, len) = self.table.view(entry)?.lpm(&self.dst_ip)?;
        let address = narrow::<u32>(&self.table, address)?;
        let prefix = Prefix::new(address.into(), narrow(&self.table, u128::from(len))?);
        let [port] = arguments(&self.table, entry, &self.forward)?;
        Ok((Key { prefix }, Action { port: narrow(&self.table, port)? }))
    }
}
