//! `neighbor`: the MAC address of each host, and of the switch itself, for ARP and for packets that were sent to a gateway.

use std::net::Ipv4Addr;

use fatbtree_p4runtime::index::{ActionInfo, MatchFieldInfo, TableInfo};
use fatbtree_p4runtime::v1::TableEntry;
use fatbtree_p4runtime::{EntryError, LookupError};
use fatbtree_topology::MacAddress;

use super::{TableError, action_of, narrow};

/// What is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The address that is sought.
    pub ip: Ipv4Addr,
}

/// Who has the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// A host.
    Host {
        /// Its MAC address.
        mac: MacAddress,
        /// Its port at this switch, [`ELSEWHERE`] where it is at another one: a host is not told about itself.
        port: u16,
    },
    /// The switch.
    ThisSwitch {
        /// Its MAC address.
        mac: MacAddress,
    },
}

/// The port of hosts that are at other switches.
pub const ELSEWHERE: u16 = 511;

#[derive(Clone, Debug)]
pub(super) struct Table {
    table: TableInfo,
    ip: MatchFieldInfo,
    host: ActionInfo,
    this_switch: ActionInfo,
}

impl Table {
    pub(super) fn new(table: &TableInfo) -> Result<Self, LookupError> {
        Ok(Self {
            ip: table.field("ip")?.clone(),
            host: table.action("host")?.clone(),
            this_switch: table.action("this_switch")?.clone(),
            table: table.clone(),
        })
    }

    pub(super) fn entry(&self, key: Key, action: Option<Action>) -> Result<TableEntry, EntryError> {
        let entry = self.table.entry().exact(&self.ip, u32::from(key.ip).into());
        match action {
            None => entry,
            Some(Action::Host { mac, port }) => entry.action(&self.host, &[number(mac), port.into()]),
            Some(Action::ThisSwitch { mac }) => entry.action(&self.this_switch, &[number(mac)]),
        }
        .build()
    }

    pub(super) fn read(&self, entry: &TableEntry) -> Result<(Key, Action), TableError> {
        let ip = Ipv4Addr::from(narrow::<u32>(&self.table, self.table.view(entry)?.exact(&self.ip)?)?);
        let host = super::arguments(&self.table, entry, &self.host);
        let action = if let Ok([mac, port]) = host {
            Action::Host { mac: address(mac), port: narrow(&self.table, port)? }
        } else {
            let (action, [mac]) = action_of(&self.table, entry)?;
            if action != self.this_switch.id {
                return Err(TableError::foreign_action(&self.table));
            }
            Action::ThisSwitch { mac: address(mac) }
        };
        Ok((Key { ip }, action))
    }
}

/// A MAC address as P4Runtime has it.
pub(super) fn number(mac: MacAddress) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// The other way round; a value that was read back has 48 bits.
pub(super) fn address(number: u64) -> MacAddress {
    let [_, _, a, b, c, d, e, f] = number.to_be_bytes();
    MacAddress([a, b, c, d, e, f])
}
