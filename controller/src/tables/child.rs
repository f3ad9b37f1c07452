//! `child` of a node set: epoch, slot and branch → where the child lies, for nodes whose children are no [run](super::run).

use super::NodeSet;
use super::declare::{Bytes, action, key, of_each_set};

key! {
    /// Key of an entry.
    pub struct Key {
        /// Epoch.
        epoch: u8 = exact,
        /// The node.
        slot: u16 = exact,
        /// Which child, 0 to 15.
        branch: u8 = exact,
    }
    in of_each_set!["child"], by {
        /// The node set.
        set: NodeSet,
    }
}

action! {
    /// Go on with this child.
    pub struct Action = "descend_to" {
        /// Its offset, 48 bits, in the memory server of its node.
        offset: u64 as Bytes<6>,
    }
}
