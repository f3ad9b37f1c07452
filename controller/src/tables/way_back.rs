//! `way_back`: from the second pass to a partition's memory server.

use super::declare::{action, key};

key! {
    /// Key of an entry.
    pub struct Key {
        /// Port by which the packet came back.
        loopback_port: u16 = exact,
        /// The partition.
        partition: u16 = exact,
    }
    in ["way_back"]
}

action! {
    /// Forward.
    pub struct Action = "forward" {
        /// The port.
        port: u16,
    }
}
