//! What a memory server says of itself.

use fatbtree_index::{Partition, TreeConfig};
use fatbtree_verbs::{Mtu, Region};

use crate::load::LoadCounts;

/// What a server holds and how to reach it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerInfo {
    /// Number, key range, root.
    pub partition: Partition,
    /// How often the region was filled; see [`Superblock`](fatbtree_index::Superblock).
    pub generation: u64,
    /// The tree's shape.
    pub config: TreeConfig,
    /// Keys, nodes, records, as they were loaded.
    pub counts: LoadCounts,
    /// The tree memory. Its first byte is address `server << 48`, so that pointers in the tree are addresses.
    pub tree: Region,
    /// Memory for locks, if the server has any.
    pub locks: Option<LockTable>,
    /// The server's device carries out masked atomics.
    pub masked_atomics: bool,
    /// The server's device reads and writes lines of 64 bytes whole.
    pub line_atomicity: bool,
    /// Largest path MTU the server does.
    pub path_mtu: Mtu,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
}

/// Memory for locks, zeroed.
///
/// Its first byte is address 0: ConnectX registers memory of the device from there and nowhere else (`ibv_reg_dm_mr` wants
/// `IBV_ACCESS_ZERO_BASED`), and what is registered under its own rkey cannot be taken for tree memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockTable {
    /// Where it is.
    pub region: Region,
    /// On the device itself, where atomics are fast (Sherman section 4.3), or in ordinary memory because the device has none.
    pub on_device: bool,
}
