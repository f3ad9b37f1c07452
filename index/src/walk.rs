//! The tree where it lies: a walk over memory at hand, for snapshots and as the yardstick of tests.

use std::sync::Arc;

use fatbtree_verbs::Memory;

use crate::address::GlobalAddress;
use crate::config::{MAX_PATH_MTU, TreeConfig};
use crate::node::{EntryValue, InternalNode, LeafNode, Node, NodeFault};
use crate::record::{RECORD_HEAD, RecordHead, RecordPointer, read_record, record_bytes};
use crate::super_root::Partition;

/// The memory of several servers; each server's begins at its offset 0.
#[derive(Clone, Debug, Default)]
pub struct Regions {
    regions: Vec<(u16, Arc<Memory>)>,
}

impl Regions {
    /// Regions and the servers they belong to.
    pub fn new(regions: impl IntoIterator<Item = (u16, Arc<Memory>)>) -> Self {
        Self { regions: regions.into_iter().collect() }
    }

    /// All regions.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &Arc<Memory>)> {
        self.regions.iter().map(|(server, memory)| (*server, memory))
    }

    /// Copies the bytes at `address`, if all of them exist.
    ///
    /// # Errors
    /// When they do not.
    pub fn read(&self, address: GlobalAddress, into: &mut [u8]) -> Result<(), WalkError> {
        let region = self.regions.iter().find(|(server, _)| *server == address.server());
        let read = region.is_some_and(|(_, memory)| memory.read(address.offset(), into).is_ok());
        if read { Ok(()) } else { Err(WalkError::Outside { address, len: into.len() as u32 }) }
    }
}

/// A node on the way from the root to a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathStep {
    /// Where the node lies.
    pub address: GlobalAddress,
    /// Its level; leaves are 0.
    pub level: u8,
}

/// What a leaf has of a key.
enum Entry {
    Inline(Vec<u8>),
    Record(RecordPointer),
}

/// A node that a walk over memory at hand could not pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WalkError {
    /// The address lies outside of the memory.
    #[error("{len} bytes at {address} lie outside of the memory")]
    Outside {
        /// The address.
        address: GlobalAddress,
        /// Bytes wanted.
        len: u32,
    },
    /// The node or record there is not the one expected.
    #[error("tree damaged at {address}: {fault}")]
    Damaged {
        /// The address.
        address: GlobalAddress,
        /// What is wrong.
        fault: NodeFault,
    },
    /// The tree has more internal nodes than whoever reads them takes.
    #[error("the tree has more than {limit} internal nodes: allow more, or look for siblings without end")]
    TooMany {
        /// Nodes that would have been taken.
        limit: usize,
    },
}

/// The bytes of one node, copied.
pub struct NodeBytes {
    bytes: [u8; MAX_PATH_MTU as usize],
    len: usize,
}

impl std::fmt::Debug for NodeBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NodeBytes({})", self.len)
    }
}

impl NodeBytes {
    /// The node, which was checked when it was copied.
    #[must_use]
    pub fn node(&self, config: &TreeConfig) -> Node<'_> {
        Node::of_checked(config, &self.bytes[..self.len])
    }
}

/// One partition's tree where it lies. It takes each node once as it is: in a tree that others write to, a node may be torn,
/// and siblings lead to what splits have moved.
#[derive(Clone, Copy, Debug)]
pub struct Tree<'m> {
    memory: &'m Regions,
    config: TreeConfig,
    root: PathStep,
}

impl<'m> Tree<'m> {
    /// The tree of `partition` in `memory`.
    #[must_use]
    pub fn new(memory: &'m Regions, config: &TreeConfig, partition: &Partition) -> Self {
        let root = PathStep { address: partition.root, level: partition.root_level };
        Self { memory, config: *config, root }
    }

    /// All nodes from the root to the leaf responsible for `key`, siblings passed on the way included.
    ///
    /// # Errors
    /// When a node on the way is damaged.
    pub fn find_node_path(&self, key: u64) -> Result<Vec<PathStep>, WalkError> {
        let mut path = vec![];
        self.descend(key, |step| path.push(step))?;
        Ok(path)
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// When a node on the way, or the record, is damaged.
    pub fn get(&self, key: u64) -> Result<Option<Vec<u8>>, WalkError> {
        match self.entry_of(key)? {
            None => Ok(None),
            Some(Entry::Inline(value)) => Ok(Some(value)),
            Some(Entry::Record(pointer)) => {
                let mut record = vec![0; record_bytes(pointer.length) as usize];
                let address = pointer.address;
                self.memory.read(address, &mut record)?;
                let value = read_record(&record, key, pointer);
                value.map(|value| Some(value.to_vec())).map_err(|fault| WalkError::Damaged { address, fault })
            }
        }
    }

    /// Where the record of `key` lies, for switches that lead index reads there; none where values are in line, where the key is not
    /// there, and where its record is not marked as the one that counts (its writer died, or is at work).
    ///
    /// # Errors
    /// When a node on the way is damaged.
    pub fn record_of(&self, key: u64) -> Result<Option<RecordPointer>, WalkError> {
        let Some(Entry::Record(pointer)) = self.entry_of(key)? else { return Ok(None) };
        let mut head = [0; RECORD_HEAD];
        self.memory.read(pointer.address, &mut head)?;
        Ok(RecordHead::parse(&head).is_published(key, pointer).then_some(pointer))
    }

    /// Where switches may lead index reads for `key`: to its record or, where values are in line, to its leaf. None where the key has
    /// no record that counts, or one that is longer than an index read.
    ///
    /// # Errors
    /// When a node on the way is damaged.
    pub fn place_of(&self, key: u64) -> Result<Option<GlobalAddress>, WalkError> {
        if self.config.leaf_shape().is_inline() {
            let mut leaf = None;
            self.descend(key, |step| leaf = Some(step.address))?;
            return Ok(leaf);
        }
        let fits = |pointer: &RecordPointer| record_bytes(pointer.length) <= self.config.max_node_bytes();
        Ok(self.record_of(key)?.filter(fits).map(|pointer| pointer.address))
    }

    /// What the key's leaf has of it.
    fn entry_of(&self, key: u64) -> Result<Option<Entry>, WalkError> {
        let bytes = self.descend(key, |_| {})?;
        let Node::Leaf(leaf) = bytes.node(&self.config) else {
            unreachable!("a descent ends at level 0, and only leaves are there")
        };
        let address = leaf.header().address;
        let found = leaf.find(key).map_err(|fault| WalkError::Damaged { address, fault })?;
        Ok(found.map(|value| match value {
            EntryValue::Inline(value) => Entry::Inline(value.to_vec()),
            EntryValue::Record(pointer) => Entry::Record(pointer),
        }))
    }

    /// Shows every internal node to `visit`: level by level from the root down, each level from left to right.
    ///
    /// # Errors
    /// When a node is damaged.
    pub fn for_each_internal(&self, mut visit: impl FnMut(&InternalNode<'_>)) -> Result<(), WalkError> {
        let mut leftmost = self.root;
        while leftmost.level > 0 {
            let mut next_level = None;
            let mut at = leftmost;
            loop {
                let bytes = self.node(at)?;
                let Node::Internal(node) = bytes.node(&self.config) else {
                    unreachable!("node() checks the level, and only level 0 is a leaf")
                };
                next_level = next_level.or(Some(node.header().first_child));
                visit(&node);
                at.address = node.header().sibling;
                if at.address.is_null() {
                    break;
                }
            }
            let address = next_level.unwrap_or(GlobalAddress::NULL);
            leftmost = PathStep { address, level: leftmost.level - 1 };
        }
        Ok(())
    }

    /// Shows every leaf to `visit`, from left to right.
    ///
    /// # Errors
    /// When a node is damaged.
    pub fn for_each_leaf(&self, mut visit: impl FnMut(&LeafNode<'_>)) -> Result<(), WalkError> {
        let mut at = self.root;
        loop {
            let bytes = self.node(at)?;
            match bytes.node(&self.config) {
                Node::Internal(node) => {
                    at = PathStep { address: node.header().first_child, level: at.level - 1 };
                }
                Node::Leaf(leaf) => {
                    visit(&leaf);
                    at.address = leaf.header().sibling;
                    if at.address.is_null() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Copies and checks one node.
    ///
    /// # Errors
    /// When it is damaged, or not where or what it should be.
    pub fn node(&self, at: PathStep) -> Result<NodeBytes, WalkError> {
        let PathStep { address, level } = at;
        let len = self.config.node_bytes(level) as usize;
        let mut copy = NodeBytes { bytes: [0; MAX_PATH_MTU as usize], len };
        self.memory.read(address, &mut copy.bytes[..len])?;
        let damaged = |fault| WalkError::Damaged { address, fault };
        let header = *Node::read(&self.config, &copy.bytes[..len]).map_err(damaged)?.header();
        if header.address != address {
            return Err(damaged(NodeFault::Address { found: header.address, expected: address }));
        }
        if header.level != level {
            return Err(damaged(NodeFault::Level { found: header.level, expected: level }));
        }
        Ok(copy)
    }

    fn descend(&self, key: u64, mut passed: impl FnMut(PathStep)) -> Result<NodeBytes, WalkError> {
        let mut at = self.root;
        loop {
            let bytes = self.node(at)?;
            let node = bytes.node(&self.config);
            let damaged = |fault| WalkError::Damaged { address: at.address, fault };
            let header = node.header();
            let range = header.range();
            passed(at);
            if key < range.low {
                return Err(damaged(NodeFault::KeyLeft { low: range.low }));
            }
            if range.is_below(key) {
                if header.sibling.is_null() {
                    return Err(damaged(NodeFault::NoSibling { high: header.high }));
                }
                at.address = header.sibling;
                continue;
            }
            match node {
                Node::Leaf(_) => return Ok(bytes),
                Node::Internal(node) => {
                    at = PathStep { address: node.find(key).map_err(damaged)?, level: at.level - 1 };
                }
            }
        }
    }
}
