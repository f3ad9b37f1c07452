//! `run` of a node set: the distance of siblings, and which of them → how far it lies after the first one. The same for all epochs.

use super::NodeSet;
use super::declare::{action, key, of_each_set};

/// The unit of distances between siblings.
pub const STRIDE_BYTES: u64 = 64;

key! {
    /// Key of an entry.
    pub struct Key {
        /// Distance of siblings in units of [`STRIDE_BYTES`], from 1.
        stride: u8 = exact,
        /// Which child, 0 to 15.
        branch: u8 = exact,
    }
    in of_each_set!["run"], by {
        /// The node set.
        set: NodeSet,
    }
}

action! {
    /// Go on with this child.
    pub struct Action = "descend_by" {
        /// Bytes from the first child.
        distance: u32,
    }
}
