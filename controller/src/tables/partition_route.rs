//! `partition_route`: the way down to a partition's memory server.

use super::declare::{action, key};

key! {
    /// Key of an entry.
    pub struct Key {
        /// The partition.
        partition: u16 = exact,
    }
    in ["partition_route"]
}

action! {
    /// Forward.
    pub struct Action = "forward" {
        /// The port.
        port: u16,
    }
}
