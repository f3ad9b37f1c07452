//! `roce_connection`: a registered connection, at the client's edge switch → rkey, partition, root.

use std::fmt;
use std::net::Ipv4Addr;

use fatbtree_topology::MacAddress;

use super::declare::{Bytes, action, key};

key! {
    /// Key of an entry.
    pub struct Key {
        /// The client's port, as the device calls it.
        port: u16 = exact,
        /// Its MAC address.
        src_mac: MacAddress = exact,
        /// Its address.
        src_ip: Ipv4Addr = exact,
        /// The memory server.
        dst_ip: Ipv4Addr = exact,
        /// The server's queue pair, 24 bits.
        dest_qp: u32 as Bytes<3> = exact,
    }
    in ["roce_connection"]
}

action! {
    /// Admit the index read.
    pub struct Action = "admit" without Debug {
        /// The rkey of the server's tree region.
        rkey: u32,
        /// The server's partition.
        partition: u16,
        /// The partition's root: where the read ends when no switch knows better.
        root: u64,
        /// The UDP port of index packets between switches.
        udp_port: u16,
        /// The longest READ that is answered in one packet, in bytes.
        mtu: u16,
    }
}

impl fmt::Debug for Action {
    /// Without the rkey: it permits writing to the tree.
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
