//! Start, cost and errors of an operation.

use crate::config::Keys;
use crate::node::NodeFault;
use crate::size_class;

use fatbtree_remote_memory::{BreakReason, CommonError, GlobalAddress, Shortage, SizeClass};

/// First step of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// At the root of the key's partition, with ordinary READs all the way.
    Root,
    /// With an index read: the switches choose the first node.
    IndexRead,
    /// At the lowest node for the key that the client's cache knows: the leaf, or a node below the top two levels. Otherwise at
    /// the root.
    Cached,
    /// At the leaf if the client's cache knows it; otherwise with an index read. So the cache fills with
    /// nodes that the switches do not hold: they lead past a level-1 node that they know, and only one that
    /// is read fills the cache.
    CachedOrIndexRead,
    /// At a node that the client knows from earlier. If the node has changed, the operation notices.
    Node {
        /// Last known address of the node.
        address: GlobalAddress,
        /// Its level.
        level: u8,
    },
}

/// Cost of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trips {
    /// Round trips that were waited for, whatever came of them.
    pub round_trips: u32,
    /// Reads of the same bytes again because they were torn.
    pub retries: u32,
    /// Walks begun again at the partition's root because a node failed its checks.
    pub restarts: u32,
    /// Walks begun again because the connection broke.
    pub breaks: u32,
    /// Steps to a right sibling.
    pub siblings_followed: u32,
    /// Tree nodes accepted, siblings included; records are not nodes.
    pub levels: u32,
    /// Layers below the first one that were entered, where keys are bytes.
    pub layers: u32,
    /// Level of the node on which the index read landed, if there was one and it was accepted.
    pub landed: Option<u8>,
    /// The index read landed on the record of the key, which was the answer.
    pub landed_on_record: bool,
    /// The answer lay where the client's entry cache said.
    pub speculated: bool,
}

/// Errors from an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OperationError {
    /// What any structure's operation may end with.
    #[error("key {key:#x}: {error}")]
    Common {
        /// The key.
        key: u64,
        /// The cause.
        error: CommonError,
    },
    /// Nothing that was read made sense, time after time.
    #[error(
        "gave up key {key:#x} after {restarts} restarts from root {root}; the last node was refused: {fault}. Unless other clients change it all \
         the time, the tree is damaged, and trying again is of no use: restore the folders of all memory servers from copies of one moment, or \
         load the tree again"
    )]
    GaveUp {
        /// The key.
        key: u64,
        /// The partition's root.
        root: GlobalAddress,
        /// Restarts made.
        restarts: u32,
        /// Fault for which the last node was refused.
        fault: NodeFault,
    },
    /// What a leaf's entry leads to was read several times, always the same and always wrong.
    #[error(
        "key {key:#x}: the tree is damaged at {at}: {fault}; trying again is of no use: restore the folders of all memory servers from copies \
         of one moment, or load the tree again"
    )]
    Damaged {
        /// The key.
        key: u64,
        /// Address of its record.
        at: GlobalAddress,
        /// The problem.
        fault: NodeFault,
    },
    /// Its connections broke too often.
    #[error(
        "key {key:#x}: the connection broke {breaks} times under this operation, last for {last}; allow more reconnects or see \
         why connections to the server fail"
    )]
    ConnectionBroke {
        /// The key.
        key: u64,
        /// Times it broke.
        breaks: u32,
        /// The last reason.
        last: BreakReason,
    },
    /// The server was started anew and has lost its tree.
    #[error(
        "key {key:#x}: memory server {server} has lost its tree: it was started again with an empty one; load it again, or say that this is \
         meant (fatbtree load --empty)"
    )]
    TreeLost {
        /// The key.
        key: u64,
        /// The server.
        server: u16,
    },
    /// The server has no memory left, or gives this client no more.
    #[error("key {key:#x}: memory server {server} gives no more memory for {}: {why}", size_class::name(*class))]
    NoMemory {
        /// The key.
        key: u64,
        /// The server.
        server: u16,
        /// Class of memory.
        class: SizeClass,
        /// Reason of the server.
        why: Shortage,
    },
    /// Another client holds a lock for very long.
    #[error(
        "key {key:#x}: another client holds the lock of a node for longer than this operation waits; if it has died, its lock is freed \
         when its session ends"
    )]
    Locked {
        /// The key.
        key: u64,
    },
    /// It may have been carried out or not.
    #[error(
        "key {key:#x}: the connection was lost while this was written ({last}), and with it the session: it may have been carried \
         out or not; read the key to find out"
    )]
    Unknown {
        /// The key.
        key: u64,
        /// Reason for which the connection broke.
        last: BreakReason,
    },
    /// The tree has keys of the other kind.
    #[error(
        "keys of this tree are {tree}, and this operation is for others: a tree of bytes takes byte strings (`.bytes()` in the library), one of \
         numbers 64-bit integers; `fatbtree load --key-type` loads one of the other kind"
    )]
    Keys {
        /// The tree's keys.
        tree: Keys,
    },
    /// A layer has gone while it was scanned. Scans begin again behind the last pair then.
    #[error("key {key:#x}: the layer of these keys at {layer} has gone while it was read")]
    NoLayer {
        /// The key of its entry in the first layer.
        key: u64,
        /// Address of the layer.
        layer: GlobalAddress,
    },
    /// A key of bytes is too long.
    #[error("a key of {found} bytes was given, the longest has {}", crate::layers::MAX_KEY_BYTES)]
    KeyBytes {
        /// Its first bytes.
        key: u64,
        /// Bytes given.
        found: usize,
    },
    /// The value does not go into this tree.
    #[error("key {key:#x}: a value of {found} bytes was given, this tree takes {expected}")]
    ValueSize {
        /// The key.
        key: u64,
        /// Bytes given.
        found: usize,
        /// Lengths that the tree accepts.
        expected: ValueBytes,
    },
}

/// Length of a tree's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueBytes {
    /// All the same.
    Exactly(u8),
    /// Any length up to this.
    UpTo(u32),
}

impl std::fmt::Display for ValueBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ValueBytes::Exactly(bytes) => write!(f, "exactly {bytes}"),
            ValueBytes::UpTo(bytes) => write!(f, "up to {bytes}"),
        }
    }
}
