//! The tree where it lies: a walk over memory at hand, for snapshots and as the yardstick of tests.

use std::sync::Arc;

use fatbtree_remote_memory::record::{
    RECORD_HEAD, RecordFault, RecordHead, RecordPointer, read_record, record_bytes,
};
use fatbtree_remote_memory::{Check, GlobalAddress};
use fatbtree_verbs::Memory;

use crate::config::{MAX_PATH_MTU, TreeConfig};
use crate::limits::SIBLINGS;
use crate::node::{EntryValue, InternalNode, LeafNode, Node, NodeFault, NodeHeader};
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
    /// Address of the node.
    pub address: GlobalAddress,
    /// Its level; leaves are 0.
    pub level: u8,
}

/// Entry of a key in a leaf.
enum Entry {
    Inline(Vec<u8>),
    Record(RecordPointer),
    /// Keys of bytes share it.
    Layer,
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
        /// The problem.
        fault: NodeFault,
    },
    /// The tree has more nodes than the reader takes, or than its memory has room for.
    #[error("the tree has more than {limit} nodes: allow more, or look for siblings without end")]
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
            None | Some(Entry::Layer) => Ok(None),
            Some(Entry::Inline(value)) => Ok(Some(value)),
            Some(Entry::Record(pointer)) => {
                let mut record = vec![0; record_bytes(pointer.length) as usize];
                let address = pointer.address;
                self.memory.read(address, &mut record)?;
                let value = read_record(&record, key, pointer);
                let damaged = |fault: RecordFault| WalkError::Damaged { address, fault: fault.into() };
                value.map(|value| Some(value.to_vec())).map_err(damaged)
            }
        }
    }

    /// Address of the record of `key`, for switches that lead index reads there. `None` if values are in
    /// line, if the key is absent, or if its record is not marked as the one that counts (its writer died, or
    /// is at work).
    ///
    /// # Errors
    /// When a node on the way is damaged.
    pub fn record_of(&self, key: u64) -> Result<Option<RecordPointer>, WalkError> {
        self.published(key, self.entry_of(key)?)
    }

    /// The record that an entry leads to, if it is marked as the one that counts.
    fn published(&self, key: u64, entry: Option<Entry>) -> Result<Option<RecordPointer>, WalkError> {
        let Some(Entry::Record(pointer)) = entry else { return Ok(None) };
        let mut head = [0; RECORD_HEAD];
        self.memory.read(pointer.address, &mut head)?;
        Ok(RecordHead::parse(&head).is_published(key, pointer).then_some(pointer))
    }

    /// Address to which switches may lead index reads for `key`: its record or, where its value is in line, its
    /// leaf. `None` if the key has no record that counts, or one that is longer than an index read. Adds the
    /// nodes that were read to `nodes`, also where it fails: at most [`MAX_LEVEL`](crate::node::MAX_LEVEL)
    /// and some siblings.
    ///
    /// # Errors
    /// When a node on the way is damaged.
    pub fn place_of(&self, key: u64, nodes: &mut usize) -> Result<Option<GlobalAddress>, WalkError> {
        let mut leaf = None;
        let bytes = self.descend(key, |step| {
            *nodes += 1;
            leaf = Some(step.address);
        })?;
        if !self.config.leaf_shape().has_records() {
            return Ok(leaf);
        }
        let fits = |pointer: &RecordPointer| record_bytes(pointer.length) <= self.config.max_node_bytes();
        let entry = self.entry_in(&bytes, key)?;
        if let Some(Entry::Inline(_) | Entry::Layer) = entry {
            return Ok(leaf);
        }
        let record = self.published(key, entry)?;
        Ok(record.filter(fits).map(|pointer| pointer.address))
    }

    /// Entry of the key in its leaf.
    fn entry_of(&self, key: u64) -> Result<Option<Entry>, WalkError> {
        let leaf = self.descend(key, |_| {})?;
        self.entry_in(&leaf, key)
    }

    /// Entry of a key in a leaf.
    fn entry_in(&self, bytes: &NodeBytes, key: u64) -> Result<Option<Entry>, WalkError> {
        let Node::Leaf(leaf) = bytes.node(&self.config) else {
            unreachable!("a descent ends at level 0, and only leaves are there")
        };
        let address = leaf.header().address;
        let found = leaf.find(key).map_err(|fault| WalkError::Damaged { address, fault })?;
        Ok(found.map(|value| match value {
            EntryValue::Inline(value) => Entry::Inline(value.to_vec()),
            EntryValue::Record(pointer) => Entry::Record(pointer),
            EntryValue::Layer(_) => Entry::Layer,
        }))
    }

    /// Shows every internal node to `visit`: level by level from the root down, each level from left to right.
    ///
    /// # Errors
    /// When a node is damaged.
    pub fn for_each_internal(&self, mut visit: impl FnMut(&InternalNode<'_>)) -> Result<(), WalkError> {
        let mut level = LevelWalk::new(self.root);
        while level.at.level > 0 {
            let bytes = level.read(self)?;
            if let Node::Internal(node) = bytes.node(&self.config) {
                visit(&node);
                level.go_on(&node);
            }
        }
        Ok(())
    }

    /// Shows every leaf to `visit`, from left to right.
    ///
    /// # Errors
    /// When a node is damaged.
    pub fn for_each_leaf(&self, mut visit: impl FnMut(&LeafNode<'_>)) -> Result<(), WalkError> {
        let mut level = LevelWalk::new(self.root);
        loop {
            let bytes = level.read(self)?;
            match bytes.node(&self.config) {
                Node::Internal(node) => level.go_down(node.header().first_child),
                Node::Leaf(leaf) => {
                    visit(&leaf);
                    if !level.go_right(leaf.header()) {
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

    /// Nodes of a level that the memory has room for.
    fn most_nodes(&self, level: u8) -> usize {
        let node = u64::from(self.config.node_bytes(level));
        self.memory.iter().map(|(_, memory)| (memory.len() / node) as usize).sum()
    }

    fn descend(&self, key: u64, mut passed: impl FnMut(PathStep)) -> Result<NodeBytes, WalkError> {
        let (mut at, mut siblings) = (self.root, 0);
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
                let limited = siblings >= SIBLINGS && Check::SiblingChain.on();
                if limited || siblings as usize >= self.most_nodes(at.level) {
                    return Err(damaged(NodeFault::SiblingChain { followed: siblings }));
                }
                siblings += 1;
                at.address = header.sibling;
                continue;
            }
            match node {
                Node::Leaf(_) => return Ok(bytes),
                Node::Internal(node) => {
                    at = PathStep { address: node.find(key), level: at.level - 1 };
                }
            }
        }
    }
}

/// A walk along the levels of a tree, from the root down and each from left to right.
///
/// Each node must begin where the one before it ends. So a walk goes on to higher keys with each step, and
/// never round in a circle, whatever bytes lie there. As other clients may write during the walk, it takes no
/// more nodes of a level than the memory has room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LevelWalk {
    /// The node that comes next.
    pub(crate) at: PathStep,
    /// End of the node before it; `None` for the first one of a level.
    begins: Option<u64>,
    /// The leftmost node of the level below, as far as it is known.
    below: Option<GlobalAddress>,
    /// Nodes of this level that were passed.
    passed: usize,
}

impl LevelWalk {
    pub(crate) fn new(root: PathStep) -> Self {
        Self { at: root, begins: None, below: None, passed: 0 }
    }

    /// Copies and checks the node that comes next. The walk stays where it is.
    pub(crate) fn read(&self, tree: &Tree<'_>) -> Result<NodeBytes, WalkError> {
        let limit = tree.most_nodes(self.at.level);
        if self.passed >= limit {
            return Err(WalkError::TooMany { limit });
        }
        let bytes = tree.node(self.at)?;
        let found = bytes.node(&tree.config).header().low;
        match self.begins.filter(|expected| *expected != found && Check::LevelOrder.on()) {
            Some(expected) => {
                let fault = NodeFault::Neighbour { found, expected };
                Err(WalkError::Damaged { address: self.at.address, fault })
            }
            None => Ok(bytes),
        }
    }

    /// Goes on after an internal node: to its right neighbour, or to the level below.
    pub(crate) fn go_on(&mut self, node: &InternalNode<'_>) {
        let below = *self.below.get_or_insert(node.header().first_child);
        if !self.go_right(node.header()) {
            self.go_down(below);
        }
    }

    /// Goes on to the right neighbour of a node, if it has one.
    fn go_right(&mut self, header: &NodeHeader) -> bool {
        // The last node of a tree may name one while it is split.
        let end = header.range().high.filter(|_| !header.sibling.is_null());
        if end.is_some() {
            self.at.address = header.sibling;
            self.begins = end;
            self.passed += 1;
        }
        end.is_some()
    }

    /// Goes on to the leftmost node of the level below. Not from leaves.
    fn go_down(&mut self, leftmost: GlobalAddress) {
        *self = Self::new(PathStep { address: leftmost, level: self.at.level.saturating_sub(1) });
    }
}
