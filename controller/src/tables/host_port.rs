//! `host_port`: the addresses of the host behind a port: packets that leave there are addressed to its card, and queries to it.

use std::net::Ipv4Addr;

use fatbtree_topology::MacAddress;

use super::declare::{action, key};

key! {
    /// Key of an entry.
    pub struct Key {
        /// The egress port.
        port: u16 = exact "egress_port",
    }
    in ["host_port"]
}

action! {
    /// Address the packet to the host.
    pub struct Action = "address_to" {
        /// Its MAC address.
        mac: MacAddress,
        /// Its IPv4 address.
        ip: Ipv4Addr,
    }
}
