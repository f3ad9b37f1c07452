//! `trunk_port`: ports that lead to other switches; the others lead to hosts, and index packets that come from there are forged.

use super::declare::{action, key};

key! {
    /// Key of an entry.
    pub struct Key {
        /// The ingress port.
        port: u16 = exact,
    }
    in ["trunk_port"]
}

action! {
    /// Believe what comes from there.
    pub struct Action = "trunk";
}
