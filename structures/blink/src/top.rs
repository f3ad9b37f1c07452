//! The top of a tree as a value, as the planner of switch caches needs it; and how a server reads it from a tree that
//! others write to.

use std::collections::BTreeSet;

use crate::config::{LeafKind, TreeConfig};
use crate::node::{BUCKET_BYTES, InternalNode, Node};
use crate::super_root::Partition;
use crate::walk::{LevelWalk, PathStep, Regions, Tree, WalkError};

/// All internal nodes of one partition's tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeTop {
    /// Partition number, key range, root address and level.
    pub partition: Partition,
    /// Level by level from the root down, each level from left to right. Empty when the root is a leaf.
    pub nodes: Vec<TopNode>,
    /// Bytes that lookups read.
    pub reads: LookupBytes,
}

/// Bytes that a lookup reads of a node on its way. 0: not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LookupBytes {
    /// Of an inner node: all of it.
    pub inner: u32,
    /// Of the leaf: all of it, or the key's bucket.
    pub leaf: u32,
}

impl LookupBytes {
    /// Those of a tree of this shape.
    #[must_use]
    pub const fn of(config: &TreeConfig) -> Self {
        let leaf = match config.leaves() {
            LeafKind::Plain => config.leaf_bytes(),
            LeafKind::Buckets => BUCKET_BYTES,
        };
        Self { inner: config.internal_bytes(), leaf }
    }
}

/// One internal node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopNode {
    /// Its address.
    pub address: u64,
    /// Its level, 1 or more.
    pub level: u8,
    /// Low key and address of each child, ascending. The first low key is the node's low fence.
    pub children: Vec<(u64, u64)>,
}

impl TopNode {
    /// The lowest key of the node.
    #[must_use]
    pub fn low(&self) -> u64 {
        self.children.first().map_or(0, |(low, _)| *low)
    }
}

/// Reads the top of a tree that others may write to, some nodes at a time.
///
/// Each level is followed by siblings from its leftmost node, so that what splits move to the right is met. A node that is
/// torn is read again. Nodes are read one after another: two of them may show the tree at two moments. A planner lives with
/// that, as switches do: what does not fit its parent is not cached. A child that was split after its parent was read is
/// listed, and after it its right half, which the parent does not know.
///
/// A reader that has failed has met a node that is gone, or damaged for good: the caller reads the root from the region's
/// [`Superblock`](crate::Superblock) and begins anew with another reader.
#[derive(Debug)]
pub struct TopReader {
    config: TreeConfig,
    partition: Partition,
    nodes: Vec<TopNode>,
    /// Addresses in `nodes`: memory that becomes another node meanwhile is listed once.
    seen: BTreeSet<u64>,
    walk: LevelWalk,
    /// Times in a row that the same node was not to be read.
    failures: u32,
    limit: usize,
}

/// Times that the same node is read before it is given up.
const TRIES: u32 = 64;

impl TopReader {
    /// Creates a reader that takes at most `limit` nodes. Writers decide the number of nodes, and must not
    /// decide how much memory the reader takes. `partition` names a root, or a former root; the caller reads
    /// it from the region's [`Superblock`](crate::Superblock).
    #[must_use]
    pub fn new(config: &TreeConfig, partition: &Partition, limit: usize) -> Self {
        let at = PathStep { address: partition.root, level: partition.root_level };
        Self {
            config: *config,
            partition: *partition,
            nodes: Vec::new(),
            seen: BTreeSet::new(),
            walk: LevelWalk::new(at),
            failures: 0,
            limit,
        }
    }

    /// Reads up to `budget` nodes. `Some` when the top is complete; the reader has nothing more to give then.
    /// `None` also when a node was torn: its writer is given time.
    ///
    /// # Errors
    /// When a node stays damaged however often it is read, or there are more nodes than the limit.
    pub fn read(&mut self, memory: &Regions, budget: usize) -> Result<Option<TreeTop>, WalkError> {
        for _ in 0..budget {
            if self.walk.at.level == 0 {
                let nodes = std::mem::take(&mut self.nodes);
                let reads = LookupBytes::of(&self.config);
                return Ok(Some(TreeTop { partition: self.partition, nodes, reads }));
            }
            match self.walk.read(&Tree::new(memory, &self.config, &self.partition)) {
                Ok(bytes) => {
                    self.failures = 0;
                    if let Node::Internal(node) = bytes.node(&self.config) {
                        self.take(&node)?;
                    }
                }
                Err(error) => {
                    self.failures += 1;
                    return if self.failures < TRIES { Ok(None) } else { Err(error) };
                }
            }
        }
        Ok(None)
    }

    fn take(&mut self, node: &InternalNode<'_>) -> Result<(), WalkError> {
        let header = node.header();
        if self.seen.insert(header.address.raw()) {
            if self.nodes.len() >= self.limit {
                return Err(WalkError::TooMany { limit: self.limit });
            }
            self.nodes.push(TopNode {
                address: header.address.raw(),
                level: header.level,
                children: node.children().map(|(pivot, child)| (pivot, child.raw())).collect(),
            });
        }
        self.walk.go_on(node);
        Ok(())
    }
}
