//! `last_hop`: ports that lead to hosts, where index packets become ordinary READs again.

use super::declare::{Number, action, key};

key! {
    /// Key of an entry.
    pub struct Key {
        /// The egress port.
        port: u16 = exact "egress_port",
    }
    in ["last_hop"]
}

action! {
    /// Take the index header off.
    pub struct Action = "strip" {
        /// The UDP port of index packets between switches: what is added to a packet's port leads from there to RoCE's.
        in_flight_port: u16 as ToRoce = "to_roce",
    }
}

/// UDP port of RoCEv2.
const ROCE: u16 = 4791;

/// The distance from a UDP port to RoCE's.
struct ToRoce;

impl Number<u16> for ToRoce {
    const BYTES: usize = 2;

    fn encode(port: u16) -> u64 {
        ROCE.wrapping_sub(port).into()
    }

    fn decode(to_roce: u64) -> Option<u16> {
        u16::try_from(to_roce).ok().map(|to_roce| ROCE.wrapping_sub(to_roce))
    }
}
