//! The top of a tree, as the planner of switch caches needs it.

use fatbtree_index::plain::Regions;
use fatbtree_index::{Partition, Tree, TreeConfig, WalkError};

use crate::load::LoadedTree;

/// All internal nodes of one partition's tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeSnapshot {
    /// Partition number, key range, root address and level.
    pub partition: Partition,
    /// Level by level from the root down, each level from left to right. Empty when the root is a leaf.
    pub nodes: Vec<SnapshotNode>,
}

/// One internal node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotNode {
    /// Where it lies.
    pub address: u64,
    /// Its level, 1 or more.
    pub level: u8,
    /// Low key and address of each child, ascending. The first low key is the node's low fence.
    pub children: Vec<(u64, u64)>,
}

impl SnapshotNode {
    /// The lowest key of the node.
    #[must_use]
    pub fn low(&self) -> u64 {
        self.children.first().map_or(0, |(low, _)| *low)
    }
}

impl TreeSnapshot {
    /// Reads the internal nodes of a tree nobody writes to meanwhile.
    ///
    /// # Errors
    /// When a node is damaged.
    pub fn of(config: &TreeConfig, partition: &Partition, region: &[u8]) -> Result<Self, WalkError> {
        let memory = Regions::new([(partition.root.server(), region)]);
        let mut nodes = vec![];
        Tree::new(&memory, config, partition).for_each_internal(|node| {
            nodes.push(SnapshotNode {
                address: node.header().address.raw(),
                level: node.header().level,
                children: node.children().map(|(pivot, child)| (pivot, child.raw())).collect(),
            });
        })?;
        Ok(Self { partition: *partition, nodes })
    }
}

impl LoadedTree {
    /// The top of the tree.
    ///
    /// # Errors
    /// When a node is damaged, which a tree just loaded is not.
    pub fn snapshot(&self) -> Result<TreeSnapshot, WalkError> {
        TreeSnapshot::of(&self.config, &self.partition, &self.region)
    }
}
