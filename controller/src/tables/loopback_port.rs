//! `loopback_port`: by which port an index packet passes a switch a second time, by its path number.

use super::declare::{action, key};

key! {
    /// Key of an entry.
    pub struct Key {
        /// The packet's path number, 0 to 63.
        path: u8 = exact,
    }
    in ["loopback_port"]
}

action! {
    /// Forward.
    pub struct Action = "forward" {
        /// The port, in loopback mode.
        port: u16,
    }
}
