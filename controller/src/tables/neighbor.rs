//! `neighbor`: the MAC address of each host, and of the switch itself, for ARP and for packets that were sent to a gateway.

use std::net::Ipv4Addr;

use fatbtree_topology::MacAddress;

use super::declare::{action, key};

key! {
    /// Key of an entry.
    pub struct Key {
        /// The address that is sought.
        ip: Ipv4Addr = exact,
    }
    in ["neighbor"]
}

action! {
    /// The owner of the address.
    pub enum Action {
        /// A host.
        Host = "host" {
            /// Its MAC address.
            mac: MacAddress,
            /// Its port at this switch, [`ELSEWHERE`] where it is at another one: a host is not told about itself.
            port: u16,
        },
        /// The switch.
        ThisSwitch = "this_switch" {
            /// Its MAC address.
            mac: MacAddress,
        },
    }
}

/// The port of hosts that are at other switches.
pub const ELSEWHERE: u16 = 511;
