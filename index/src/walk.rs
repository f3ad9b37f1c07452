//! The tree's own answer: a walk over plain memory, for snapshots and as the yardstick of tests.

use crate::address::GlobalAddress;
use crate::config::TreeConfig;
use crate::node::{EntryValue, InternalNode, LeafNode, Node, NodeFault};
use crate::plain::Memory;
use crate::record::{read_record, record_bytes};
use crate::super_root::Partition;

/// A node on the way from the root to a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathStep {
    /// Where the node lies.
    pub address: GlobalAddress,
    /// Its level; leaves are 0.
    pub level: u8,
}

/// A node that a walk over plain memory could not pass.
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
}

/// One partition's tree in plain memory that nobody writes to meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Tree<'m, M> {
    memory: &'m M,
    config: TreeConfig,
    root: PathStep,
}

impl<'m, M: Memory> Tree<'m, M> {
    /// The tree of `partition` in `memory`.
    pub fn new(memory: &'m M, config: &TreeConfig, partition: &Partition) -> Self {
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
    pub fn get(&self, key: u64) -> Result<Option<&'m [u8]>, WalkError> {
        let leaf = self.descend(key, |_| {})?;
        let address = leaf.header().address;
        match leaf.find(key).map_err(|fault| WalkError::Damaged { address, fault })? {
            None => Ok(None),
            Some(EntryValue::Inline(value)) => Ok(Some(value)),
            Some(EntryValue::Record { address, length }) => {
                let len = record_bytes(length);
                let bytes = self.memory.bytes(address, len).ok_or(WalkError::Outside { address, len })?;
                read_record(bytes, key, length)
                    .map(Some)
                    .map_err(|fault| WalkError::Damaged { address, fault })
            }
        }
    }

    /// Shows every internal node to `visit`: level by level from the root down, each level from left to right.
    ///
    /// # Errors
    /// When a node is damaged.
    pub fn for_each_internal(&self, mut visit: impl FnMut(&InternalNode<'m>)) -> Result<(), WalkError> {
        let mut leftmost = self.root;
        while leftmost.level > 0 {
            let mut next_level = None;
            let mut at = leftmost;
            loop {
                let Node::Internal(node) = self.node(at)? else {
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
    pub fn for_each_leaf(&self, mut visit: impl FnMut(&LeafNode<'m>)) -> Result<(), WalkError> {
        let mut at = self.root;
        while let Node::Internal(node) = self.node(at)? {
            at = PathStep { address: node.header().first_child, level: at.level - 1 };
        }
        while let Node::Leaf(leaf) = self.node(at)? {
            visit(&leaf);
            at.address = leaf.header().sibling;
            if at.address.is_null() {
                break;
            }
        }
        Ok(())
    }

    /// Reads and checks one node.
    ///
    /// # Errors
    /// When it is damaged, or not where or what it should be.
    pub fn node(&self, at: PathStep) -> Result<Node<'m>, WalkError> {
        let PathStep { address, level } = at;
        let len = self.config.node_bytes(level);
        let bytes = self.memory.bytes(address, len).ok_or(WalkError::Outside { address, len })?;
        let damaged = |fault| WalkError::Damaged { address, fault };
        let node = Node::read(&self.config, bytes).map_err(damaged)?;
        let header = node.header();
        if header.address != address {
            return Err(damaged(NodeFault::Address { found: header.address, expected: address }));
        }
        if header.level != level {
            return Err(damaged(NodeFault::Level { found: header.level, expected: level }));
        }
        Ok(node)
    }

    fn descend(&self, key: u64, mut passed: impl FnMut(PathStep)) -> Result<LeafNode<'m>, WalkError> {
        let mut at = self.root;
        loop {
            let node = self.node(at)?;
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
                Node::Leaf(leaf) => return Ok(leaf),
                Node::Internal(node) => {
                    at = PathStep { address: node.find(key).map_err(damaged)?, level: at.level - 1 };
                }
            }
        }
    }
}
