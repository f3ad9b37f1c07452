//! What the planner is given: the tops of the trees, as the memory servers report them.

use serde::{Deserialize, Serialize};

/// The inner nodes of every partition's tree at about one moment.
///
/// It need not be consistent: writers go on while it is taken, and [`crate::Tree`] leaves out what does not fit together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The partitions, in any order.
    pub partitions: Vec<Partition>,
}

/// One memory server's tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// Partition id = server number = the high 16 bits of every address in the tree.
    pub id: u16,
    /// Address of the root. A tree of one leaf has its root not among `nodes`.
    pub root: u64,
    /// First key of the partition; its last is the one before the next partition's first.
    pub low: u64,
    /// Inner nodes in any order, as many levels from the top as the server likes to send.
    pub nodes: Vec<Node>,
}

/// One inner node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its address.
    pub address: u64,
    /// Its level; leaves are level 0, so this is at least 1.
    pub level: u8,
    /// Its low fence: the first key that belongs to it.
    pub low: u64,
    /// `(pivot, address)` of each child in key order; the pivot is the child's low fence. The first child begins at
    /// `low`, so its pivot is not read.
    pub children: Vec<(u64, u64)>,
}
