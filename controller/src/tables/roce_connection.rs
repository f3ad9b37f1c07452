//! `roce_connection`: a registered connection, at the client's edge switch → rkey, partition, root.

use std::fmt;
use std::net::Ipv4Addr;

use fatbtree_topology::MacAddress;

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};

use super::neighbor::{address, number};
use super::{TableError, arguments, narrow};

/// What is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The client's port, as the device calls it.
    pub port: u16,
    /// Its MAC address.
    pub src_mac: MacAddress,
    /// Its address.
    pub src_ip: Ipv4Addr,
    /// The memory server.
    pub dst_ip: Ipv4Addr,
    /// The server's queue pair, 24 bits.
    pub dest_qp: u32,
}

/// Admit the index read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action {
    /// The rkey of the server's tree region.
    pub rkey: u32,
    /// The server's partition.
    pub partition: u16,
    /// The partition's root: where the read ends when no switch knows better.
    pub root: u64,
    /// The UDP port of index packets between switches.
    pub udp_port: u16,
    /// The longest READ that is answered in one packet, in bytes.
    pub mtu: u16,
}

impl fmt::Debug for Action {
    /// Without the rkey: who knows it can write to the tree.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { partition, root, udp_port, mtu, rkey: _ } = self;
        f.debug_struct("Action")
            .field("partition", partition)
            .field("root", root)
            .field("udp_port", udp_port)
            .field("mtu", mtu)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    port: MatchFieldInfo,
    src_mac: MatchFieldInfo,
    src_ip: MatchFieldInfo,
    dst_ip: MatchFieldInfo,
    dest_qp: MatchFieldInfo,
    admit: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo) -> Result<Self, LookupError> {
        Ok(Self {
            port: table.field("port")?.clone(),
            src_mac: table.field("src_mac")?.clone(),
            src_ip: table.field("src_ip")?.clone(),
            dst_ip: table.field("dst_ip")?.clone(),
            dest_qp: table.field("dest_qp")?.clone(),
            admit: table.action("admit")?.clone(),
            table: table.clone(),
        })
    }

    pub(super) fn entry(&self, key: Key, action: Option<Action>) -> Result<TableEntry, EntryError> {
        let entry = self
            .table
            .entry()
            .exact(&self.port, key.port.into())
            .exact(&self.src_mac, number(key.src_mac))
            .exact(&self.src_ip, u32::from(key.src_ip).into())
            .exact(&self.dst_ip, u32::from(key.dst_ip).into())
            .exact(&self.dest_qp, key.dest_qp.into());
        match action {
            None => entry,
            Some(Action { rkey, partition, root, udp_port, mtu }) => {
                entry.action(&self.admit, &[rkey.into(), partition.into(), root, udp_port.into(), mtu.into()])
            }
        }
        .build()
    }

    pub(super) fn read(&self, entry: &TableEntry) -> Result<(Key, Action), TableError> {
        let view = self.table.view(entry)?;
        let key = Key {
            port: narrow(&self.table, view.exact(&self.port)?)?,
            src_mac: address(narrow(&self.table, view.exact(&self.src_mac)?)?),
            src_ip: Ipv4Addr::from(narrow::<u32>(&self.table, view.exact(&self.src_ip)?)?),
            dst_ip: Ipv4Addr::from(narrow::<u32>(&self.table, view.exact(&self.dst_ip)?)?),
            dest_qp: narrow(&self.table, view.exact(&self.dest_qp)?)?,
        };
        let [rkey, partition, root, udp_port, mtu] = arguments(&self.table, entry, &self.admit)?;
        let action = Action {
            rkey: narrow(&self.table, rkey)?,
            partition: narrow(&self.table, partition)?,
            root,
            udp_port: narrow(&self.table, udp_port)?,
            mtu: narrow(&self.table, mtu)?,
        };
        Ok((key, action))
    }
}
