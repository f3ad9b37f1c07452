//! The snapshot as one tree under the super-root, flat and in breadth-first order.

use std::collections::BTreeMap;

use crate::snapshot::{Node, Snapshot};

/// Branches of a node that a switch can hold (paper §III-A).
pub const MAX_BRANCHES: usize = 16;

/// No node: a leaf, or an inner node that the snapshot does not describe.
pub(crate) const NONE: u32 = u32::MAX;

/// A snapshot that no plan can be made from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// There is no partition.
    #[error("the snapshot has no partition; ask at least one memory server for its tree")]
    Empty,
    /// Two partitions have the same id.
    #[error("partition {id} is in the snapshot twice; ask each memory server once")]
    TwicePartition {
        /// The id.
        id: u16,
    },
    /// Two partitions begin at the same key.
    #[error(
        "partitions {first} and {second} both begin at key {low:#x}; key ranges of partitions must not overlap"
    )]
    Overlap {
        /// One of them.
        first: u16,
        /// The other.
        second: u16,
        /// Their low key.
        low: u64,
    },
    /// A root lies on another server.
    #[error("partition {id}: expected a root on server {id}, found address {root:#x} on server {}", root >> 48)]
    ForeignRoot {
        /// The partition.
        id: u16,
        /// The address.
        root: u64,
    },
    /// A node's pivots are not in order.
    #[error(
        "partition {id}, node {address:#x}: pivot {position} is not above the one before it ({previous:#x}); the node is damaged"
    )]
    Unordered {
        /// The partition.
        id: u16,
        /// The node.
        address: u64,
        /// Which pivot.
        position: usize,
        /// The pivot before it, or the low fence.
        previous: u64,
    },
    /// An inner node without children.
    #[error(
        "partition {id}, node {address:#x}: an inner node of level {level} without children; the node is damaged"
    )]
    Childless {
        /// The partition.
        id: u16,
        /// The node.
        address: u64,
        /// Its level.
        level: u8,
    },
    /// A node is there twice.
    #[error("partition {id}, node {address:#x} is in the snapshot twice")]
    TwiceNode {
        /// The partition.
        id: u16,
        /// The node.
        address: u64,
    },
}

/// One inner node that can be reached from its partition's root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeNode {
    pub(crate) address: u64,
    /// Index into [`Tree::partitions`].
    pub(crate) partition: u16,
    pub(crate) level: u8,
    /// Low fence, as the node says.
    pub(crate) low: u64,
    /// Last key that descends to it.
    pub(crate) high: u64,
    first_child: u32,
    child_count: u32,
    /// Whether switches may point to its children: all lie on the partition's own server.
    pub(crate) local: bool,
    /// Leaves (or undescribed nodes) below it.
    pub(crate) leaves: u64,
}

/// One child of an inner node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeChild {
    pub(crate) low: u64,
    pub(crate) address: u64,
    /// Its own node, or [`NONE`].
    pub(crate) node: u32,
}

/// One child of the super-root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreePartition {
    pub(crate) id: u16,
    pub(crate) low: u64,
    pub(crate) high: u64,
    pub(crate) root: u64,
    pub(crate) node: u32,
}

/// The tree that planning works on.
///
/// Nodes that no path from a root leads to are left out, and so are children whose node does not fit its parent (another
/// level or low fence: a split was under way); such a child is treated as a leaf: it is never cached, but may be landed on.
#[derive(Clone, Debug)]
pub struct Tree {
    partitions: Vec<TreePartition>,
    nodes: Vec<TreeNode>,
    children: Vec<TreeChild>,
}

impl Tree {
    /// Builds the tree.
    ///
    /// # Errors
    /// A snapshot that is damaged rather than merely out of date: see [`SnapshotError`].
    pub fn new(snapshot: &Snapshot) -> Result<Self, SnapshotError> {
        let mut order: Vec<usize> = (0..snapshot.partitions.len()).collect();
        order.sort_by_key(|n| (snapshot.partitions[*n].low, snapshot.partitions[*n].id));
        if order.is_empty() {
            return Err(SnapshotError::Empty);
        }
        let mut ids = std::collections::BTreeSet::new();
        if let Some(twice) = snapshot.partitions.iter().find(|p| !ids.insert(p.id)) {
            return Err(SnapshotError::TwicePartition { id: twice.id });
        }
        let mut tree =
            Self { partitions: Vec::with_capacity(order.len()), nodes: Vec::new(), children: Vec::new() };
        for (n, source) in order.iter().map(|n| &snapshot.partitions[*n]).enumerate() {
            let next = order.get(n + 1).map(|next| &snapshot.partitions[*next]);
            if let Some(next) = next.filter(|next| next.low == source.low) {
                return Err(SnapshotError::Overlap { first: source.id, second: next.id, low: source.low });
            }
            if source.root >> 48 != u64::from(source.id) {
                return Err(SnapshotError::ForeignRoot { id: source.id, root: source.root });
            }
            // Keys below the first partition have to go somewhere: to its leftmost leaf, as in any B+tree.
            let low = if n == 0 { 0 } else { source.low };
            let high = next.map_or(u64::MAX, |next| next.low - 1);
            let mut by_address = BTreeMap::new();
            for node in &source.nodes {
                if by_address.insert(node.address, node).is_some() {
                    return Err(SnapshotError::TwiceNode { id: source.id, address: node.address });
                }
                check(source.id, node)?;
            }
            let index = u16::try_from(n).expect("partition ids are 16 bits and unique");
            let node = by_address.remove(&source.root).map_or(NONE, |root| {
                let first = tree.push(index, source.id, root, high);
                tree.walk(first, source.id, &mut by_address);
                first
            });
            tree.partitions.push(TreePartition { id: source.id, low, high, root: source.root, node });
        }
        tree.count_leaves();
        Ok(tree)
    }

    fn push(&mut self, partition: u16, id: u16, node: &Node, high: u64) -> u32 {
        let index = u32::try_from(self.nodes.len()).expect("a snapshot has fewer than 2^32 nodes");
        let first_child =
            u32::try_from(self.children.len()).expect("a snapshot has fewer than 2^32 children");
        let lows = std::iter::once(node.low).chain(node.children.iter().skip(1).map(|child| child.0));
        self.children.extend(lows.zip(&node.children).map(|(low, child)| TreeChild {
            low,
            address: child.1,
            node: NONE,
        }));
        self.nodes.push(TreeNode {
            address: node.address,
            partition,
            level: node.level,
            low: node.low,
            high,
            first_child,
            child_count: u32::try_from(node.children.len()).expect("a node has fewer than 2^32 children"),
            local: node.children.iter().all(|child| child.1 >> 48 == u64::from(id)),
            leaves: 0,
        });
        index
    }

    /// Breadth first from `next`; takes what it reaches out of `by_address`, so nothing is reached twice.
    fn walk(&mut self, mut next: u32, id: u16, by_address: &mut BTreeMap<u64, &Node>) {
        while (next as usize) < self.nodes.len() {
            let TreeNode { partition, level, high, .. } = self.nodes[next as usize];
            let children = self.child_range(next);
            for at in children.clone() {
                let TreeChild { low, address, .. } = self.children[at];
                if by_address.get(&address).is_some_and(|node| node.level + 1 == level && node.low == low) {
                    let node = by_address.remove(&address).expect("looked up just now");
                    let child_high = if at + 1 < children.end { self.children[at + 1].low - 1 } else { high };
                    self.children[at].node = self.push(partition, id, node, child_high);
                }
            }
            next += 1;
        }
    }

    fn count_leaves(&mut self) {
        for n in (0..self.nodes.len()).rev() {
            let below = |child: &TreeChild| self.nodes.get(child.node as usize).map_or(1, |node| node.leaves);
            self.nodes[n].leaves = self.children[self.child_range(n as u32)].iter().map(below).sum();
        }
    }

    fn child_range(&self, node: u32) -> std::ops::Range<usize> {
        let node = &self.nodes[node as usize];
        node.first_child as usize..(node.first_child + node.child_count) as usize
    }

    pub(crate) fn partitions(&self) -> &[TreePartition] {
        &self.partitions
    }

    #[cfg(test)]
    pub(crate) fn nodes(&self) -> &[TreeNode] {
        &self.nodes
    }

    pub(crate) fn node(&self, node: u32) -> &TreeNode {
        &self.nodes[node as usize]
    }

    pub(crate) fn children(&self, node: u32) -> &[TreeChild] {
        &self.children[self.child_range(node)]
    }

    /// Whether a node set may hold this node.
    pub(crate) fn cacheable(&self, node: u32) -> bool {
        self.node(node).local && self.children(node).len() <= MAX_BRANCHES
    }

    /// Inner nodes that planning can see.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Leaves (or undescribed inner nodes) below them.
    pub fn leaf_count(&self) -> usize {
        self.children.iter().filter(|child| child.node == NONE).count()
    }
}

fn check(id: u16, node: &Node) -> Result<(), SnapshotError> {
    let &Node { address, level, low, ref children } = node;
    if children.is_empty() {
        return Err(SnapshotError::Childless { id, address, level });
    }
    let mut previous = low;
    for (position, (pivot, _)) in children.iter().enumerate().skip(1) {
        if *pivot <= previous {
            return Err(SnapshotError::Unordered { id, address, position, previous });
        }
        previous = *pivot;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Partition;

    fn partition(id: u16, low: u64) -> Partition {
        let server = u64::from(id) << 48;
        let node = |address, level, low, children: &[(u64, u64)]| Node {
            address: server + address,
            level,
            low,
            children: children.iter().map(|(pivot, address)| (*pivot, server + address)).collect(),
        };
        Partition {
            id,
            root: server + 64,
            low,
            nodes: vec![
                node(192, 1, low + 50, &[(0, 1), (low + 70, 2), (low + 80, 3)]),
                node(64, 2, low, &[(low, 128), (low + 50, 192)]),
                node(128, 1, low, &[(low, 4)]),
            ],
        }
    }

    #[test]
    fn flat_and_in_order() {
        let snapshot = Snapshot { partitions: vec![partition(7, 1000), partition(3, 0)] };
        let tree = Tree::new(&snapshot).unwrap();
        assert_eq!((tree.node_count(), tree.leaf_count()), (6, 8));
        let spans: Vec<_> = tree.nodes().iter().map(|n| (n.low, n.high, n.leaves)).collect();
        assert_eq!(
            spans,
            [
                (0, 999, 4),
                (0, 49, 1),
                (50, 999, 3),
                (1000, u64::MAX, 4),
                (1000, 1049, 1),
                (1050, u64::MAX, 3)
            ]
        );
        let partitions: Vec<_> = tree.partitions().iter().map(|p| (p.id, p.low, p.high)).collect();
        assert_eq!(partitions, [(3, 0, 999), (7, 1000, u64::MAX)]);
        assert_eq!(
            tree.children(2).iter().map(|c| c.low).collect::<Vec<_>>(),
            [50, 70, 80],
            "first pivot is not read"
        );
    }

    #[test]
    fn a_torn_snapshot_is_used_as_far_as_it_fits() {
        let mut snapshot = Snapshot { partitions: vec![partition(0, 0)] };
        snapshot.partitions[0].nodes[0].low = 51; // the child was split since
        assert_eq!(Tree::new(&snapshot).unwrap().node_count(), 2);
        snapshot.partitions[0].nodes[2].level = 3;
        assert_eq!(Tree::new(&snapshot).unwrap().node_count(), 1);
        snapshot.partitions[0].root = 8; // a leaf, or a new root that is not in the snapshot yet
        let tree = Tree::new(&snapshot).unwrap();
        assert_eq!((tree.node_count(), tree.partitions()[0].node), (0, NONE));
    }

    #[test]
    fn a_child_on_another_server_is_never_cached() {
        let mut snapshot = Snapshot { partitions: vec![partition(0, 0)] };
        snapshot.partitions[0].nodes[0].children[2].1 |= 9 << 48;
        let tree = Tree::new(&snapshot).unwrap();
        assert!(tree.cacheable(0) && tree.cacheable(1) && !tree.cacheable(2));
    }

    #[test]
    fn damage_is_refused_with_its_place() {
        let refuse = |change: &dyn Fn(&mut Snapshot)| {
            let mut snapshot = Snapshot { partitions: vec![partition(0, 0), partition(1, 500)] };
            change(&mut snapshot);
            Tree::new(&snapshot).unwrap_err()
        };
        assert_eq!(refuse(&|s| s.partitions.clear()), SnapshotError::Empty);
        assert_eq!(refuse(&|s| s.partitions[1].id = 0), SnapshotError::TwicePartition { id: 0 });
        assert_eq!(
            refuse(&|s| s.partitions[1].low = 0),
            SnapshotError::Overlap { first: 0, second: 1, low: 0 }
        );
        assert_eq!(refuse(&|s| s.partitions[1].root = 64), SnapshotError::ForeignRoot { id: 1, root: 64 });
        assert!(matches!(
            refuse(&|s| s.partitions[0].nodes[0].children[2].0 = 70),
            SnapshotError::Unordered { position: 2, .. }
        ));
        assert!(matches!(
            refuse(&|s| s.partitions[0].nodes[0].children.clear()),
            SnapshotError::Childless { .. }
        ));
        assert!(matches!(
            refuse(&|s| s.partitions[0].nodes[0].address = 64),
            SnapshotError::TwiceNode { address: 64, .. }
        ));
    }
}
