//! The tops of all partitions as one tree under the super-root, flat and in breadth-first order.

use std::collections::BTreeMap;

use fatbtree_blink::{LookupBytes, TopNode, TreeTop};

use crate::plan::{Pivots, stride};

/// Branches of a node that a switch can hold (paper §III-A).
pub const MAX_BRANCHES: usize = 16;

/// No node: a leaf, or an inner node that the snapshot does not describe.
pub(crate) const NONE: u32 = u32::MAX;

/// A snapshot that no plan can be made from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// No partition.
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
    /// A tree has keys of another partition.
    #[error(
        "partition {id}, node {address:#x}: pivot {pivot:#x} is outside of the partition's keys, {low:#x} to {high:#x}; the trees are of \
         different loads: ask again when all are loaded"
    )]
    OtherPartition {
        /// The partition.
        id: u16,
        /// The node.
        address: u64,
        /// Its pivot.
        pivot: u64,
        /// The partition's first key.
        low: u64,
        /// Its last key: the next partition begins after it.
        high: u64,
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
        /// The pivot before it.
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
    /// First and last key that descend to it.
    pub(crate) from: u64,
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
    /// Level of the root; 0 for a leaf.
    pub(crate) level: u8,
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
    /// Distances of siblings that most nodes have: those of nodes that were written one after the other.
    strides: Vec<u8>,
    /// Bytes that lookups read of nodes, in the partition where these are largest.
    reads: LookupBytes,
}

/// Distances of siblings that switches are told of: nodes have few sizes, but any two nodes have a distance.
const MAX_STRIDES: usize = 4;

impl Tree {
    /// Builds the tree from the tops of all partitions, in any order. They need not be of one moment: writers go on while
    /// they are read. The ends of their ranges are not used: each partition ends where the next one begins.
    ///
    /// # Errors
    /// A snapshot that is damaged rather than merely out of date: see [`SnapshotError`].
    pub fn new(tops: &[TreeTop]) -> Result<Self, SnapshotError> {
        let mut order: Vec<&TreeTop> = tops.iter().collect();
        order.sort_by_key(|top| (top.partition.range.low, top.partition.id));
        if order.is_empty() {
            return Err(SnapshotError::Empty);
        }
        let mut ids = std::collections::BTreeSet::new();
        if let Some(twice) = tops.iter().find(|top| !ids.insert(top.partition.id)) {
            return Err(SnapshotError::TwicePartition { id: twice.partition.id });
        }
        let partitions = Vec::with_capacity(order.len());
        let most = |of: fn(&LookupBytes) -> u32| tops.iter().map(|top| of(&top.reads)).max().unwrap_or(0);
        let reads = LookupBytes { inner: most(|reads| reads.inner), leaf: most(|reads| reads.leaf) };
        let mut tree =
            Self { partitions, nodes: Vec::new(), children: Vec::new(), strides: Vec::new(), reads };
        for (n, top) in order.iter().enumerate() {
            let (id, root) = (top.partition.id, top.partition.root.raw());
            let next = order.get(n + 1).map(|next| (next.partition.id, next.partition.range.low));
            let low = top.partition.range.low;
            if let Some((second, _)) = next.filter(|(_, next_low)| *next_low == low) {
                return Err(SnapshotError::Overlap { first: id, second, low });
            }
            if root >> 48 != u64::from(id) {
                return Err(SnapshotError::ForeignRoot { id, root });
            }
            // Keys below the first partition have to go somewhere: to its leftmost leaf, as in any B+tree.
            let low = if n == 0 { 0 } else { low };
            let high = next.map_or(u64::MAX, |(_, next_low)| next_low - 1);
            let mut by_address = BTreeMap::new();
            for node in &top.nodes {
                if by_address.insert(node.address, node).is_some() {
                    return Err(SnapshotError::TwiceNode { id, address: node.address });
                }
                check(id, node)?;
                // The first pivot of a node is where its keys begin; those of the leftmost ones do not matter.
                let mut pivots = node.children.iter().map(|(pivot, _)| *pivot).enumerate();
                let outside = |(at, pivot): &(usize, u64)| *pivot > high || *at > 0 && *pivot <= low;
                if let Some((_, pivot)) = pivots.find(outside) {
                    return Err(SnapshotError::OtherPartition {
                        id,
                        address: node.address,
                        pivot,
                        low,
                        high,
                    });
                }
            }
            let index = u16::try_from(n).expect("partition ids are 16 bits and unique");
            let node = by_address.remove(&root).map_or(NONE, |node| {
                let first = tree.push(index, id, node, (low, high));
                tree.walk(first, id, &mut by_address);
                first
            });
            let level = top.partition.root_level;
            tree.partitions.push(TreePartition { id, low, high, root, node, level });
        }
        tree.count_leaves();
        tree.strides = tree.common_strides();
        Ok(tree)
    }

    fn common_strides(&self) -> Vec<u8> {
        let mut counts: BTreeMap<u8, usize> = BTreeMap::new();
        for stride in (0..self.nodes.len()).filter_map(|node| self.own_stride(node as u32)) {
            *counts.entry(stride).or_default() += 1;
        }
        let mut strides: Vec<(usize, u8)> =
            counts.into_iter().map(|(stride, count)| (count, stride)).collect();
        strides.sort_unstable_by_key(|(count, stride)| (std::cmp::Reverse(*count), *stride));
        strides.into_iter().take(MAX_STRIDES).map(|(_, stride)| stride).collect()
    }

    fn own_stride(&self, node: u32) -> Option<u8> {
        stride(self.children(node).iter().map(|child| child.address))
    }

    /// The distance of a node's children, or 0 where they are no run of a distance that many have.
    pub(crate) fn stride(&self, node: u32) -> u8 {
        let is_common = |stride: &u8| self.strides.contains(stride);
        match self.children(node) {
            [_] => self.strides.first().copied().unwrap_or(0),
            _ => self.own_stride(node).filter(is_common).unwrap_or(0),
        }
    }

    fn push(&mut self, partition: u16, id: u16, node: &TopNode, (from, high): (u64, u64)) -> u32 {
        let index = u32::try_from(self.nodes.len()).expect("a snapshot has fewer than 2^32 nodes");
        let first_child =
            u32::try_from(self.children.len()).expect("a snapshot has fewer than 2^32 children");
        let child = |&(low, address): &(u64, u64)| TreeChild { low, address, node: NONE };
        self.children.extend(node.children.iter().map(child));
        self.nodes.push(TreeNode {
            address: node.address,
            partition,
            level: node.level,
            low: node.low(),
            from,
            high,
            first_child,
            child_count: u32::try_from(node.children.len()).expect("a node has fewer than 2^32 children"),
            local: node.children.iter().all(|child| child.1 >> 48 == u64::from(id)),
            leaves: 0,
        });
        index
    }

    /// Breadth first from `next`; takes what it reaches out of `by_address`, so nothing is reached twice.
    fn walk(&mut self, mut next: u32, id: u16, by_address: &mut BTreeMap<u64, &TopNode>) {
        while (next as usize) < self.nodes.len() {
            let TreeNode { partition, level, from, high, .. } = self.nodes[next as usize];
            let children = self.child_range(next);
            for at in children.clone() {
                let TreeChild { low, address, .. } = self.children[at];
                let child_high = if at + 1 < children.end { self.children[at + 1].low - 1 } else { high };
                // A child that was read before it was split has keys of its new sibling, too: then its ranges would overlap those.
                let ends_below =
                    |node: &TopNode| node.children.last().is_none_or(|(pivot, _)| *pivot <= child_high);
                let fits = |node: &&TopNode| {
                    level.checked_sub(1) == Some(node.level) && node.low() == low && ends_below(node)
                };
                if by_address.get(&address).is_some_and(fits)
                    && let Some(node) = by_address.remove(&address)
                {
                    let child_from = if at == children.start { from } else { low };
                    self.children[at].node = self.push(partition, id, node, (child_from, child_high));
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

    /// Bytes that lookups read of nodes.
    pub(crate) fn reads(&self) -> LookupBytes {
        self.reads
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

    /// Whether the way of a key from its partition's root down comes by this address, of an inner node or a leaf.
    pub(crate) fn leads_to(&self, key: u64, address: u64) -> bool {
        self.way(key).any(|at| at == address)
    }

    /// Nodes on the way of a key from this address down to the leaf, both of them read; if the way does not come by it, one more than from
    /// the root.
    pub(crate) fn trips(&self, key: u64, address: u64) -> u32 {
        let (mut all, mut from) = (0, None);
        for at in self.way(key) {
            if at == address {
                from = Some(all);
            }
            all += 1;
        }
        from.map_or(all + 1, |from| all - from)
    }

    /// The leaf of a key, as far as its parent knows.
    pub(crate) fn leaf_of(&self, key: u64) -> u64 {
        self.way(key).last().expect("a way has at least a root")
    }

    /// The partition that a key is in.
    pub fn partition_of(&self, key: u64) -> u16 {
        let after = self.partitions.partition_point(|partition| partition.low <= key);
        self.partitions[after.checked_sub(1).expect("the first partition begins at key 0")].id
    }

    /// Addresses on the way of a key from its partition's root down to the leaf.
    fn way(&self, key: u64) -> impl Iterator<Item = u64> + '_ {
        let after = self.partitions.partition_point(|partition| partition.low <= key);
        let partition = &self.partitions[after.checked_sub(1).expect("the first partition begins at key 0")];
        std::iter::successors(Some((partition.root, partition.node)), move |(_, node)| {
            let children = (*node != NONE).then(|| self.children(*node))?;
            // A key comes to a node because it is in the node's range: none is below the first child.
            let child = children.partition_point(|child| child.low <= key).saturating_sub(1);
            Some((children[child].address, children[child].node))
        })
        .map(|(at, _)| at)
    }

    /// Which part of the keys a node is searched by.
    pub(crate) fn pivots(&self, node: u32) -> Pivots {
        let TreeNode { from, high, .. } = *self.node(node);
        Pivots::of(from, high, self.children(node).iter().skip(1).map(|child| child.low))
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

fn check(id: u16, node: &TopNode) -> Result<(), SnapshotError> {
    let &TopNode { address, level, ref children } = node;
    let Some(&(mut previous, _)) = children.first() else {
        return Err(SnapshotError::Childless { id, address, level });
    };
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
    use fatbtree_blink::{GlobalAddress, KeyRange, Partition};

    /// The child was read before it was split, its parent after that: the plan ends at the child, and ranges tile the keys.
    #[test]
    fn a_child_with_keys_of_its_sibling_is_not_entered() {
        let node =
            |address, level, children: &[(u64, u64)]| TopNode { address, level, children: children.to_vec() };
        let of = |last: u64| {
            let nodes = vec![
                node(64, 2, &[(0, 128), (50, 192)]),
                node(128, 1, &[(0, 1), (last, 2)]),
                node(192, 1, &[(50, 3), (80, 4)]),
            ];
            let partition = Partition { id: 0, range: KeyRange::ALL, root: GlobalAddress(64), root_level: 2 };
            Tree::new(&[TreeTop { partition, nodes, reads: Default::default() }]).unwrap()
        };
        assert_eq!(of(49).nodes().len(), 3);
        assert_eq!(of(60).nodes().len(), 2);
        assert_eq!(
            of(60).children(0).iter().map(|child| child.node == NONE).collect::<Vec<_>>(),
            [true, false]
        );
    }

    fn top(id: u16, low: u64) -> TreeTop {
        let server = u64::from(id) << 48;
        let node = |address, level, children: &[(u64, u64)]| TopNode {
            address: server + address,
            level,
            children: children.iter().map(|(pivot, address)| (*pivot, server + address)).collect(),
        };
        let range = KeyRange { low, high: None };
        TreeTop {
            partition: Partition { id, range, root: GlobalAddress(server + 64), root_level: 2 },
            nodes: vec![
                node(192, 1, &[(low + 50, 1), (low + 70, 2), (low + 80, 3)]),
                node(64, 2, &[(low, 128), (low + 50, 192)]),
                node(128, 1, &[(low, 4)]),
            ],
            reads: Default::default(),
        }
    }

    #[test]
    fn flat_and_in_order() {
        let tree = Tree::new(&[top(7, 1000), top(3, 0)]).unwrap();
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
        assert_eq!(tree.children(2).iter().map(|c| c.low).collect::<Vec<_>>(), [50, 70, 80]);
    }

    #[test]
    fn few_distances_are_told_to_switches() {
        let leaves: Vec<u64> = (0..400).map(|n| n * 10).collect();
        let mut tops = [crate::test_support::top(0, 0, &leaves, &[2])];
        // Pairs, most of them side by side; every third pair lies at a distance of its own.
        let pairs = tops[0].nodes.iter_mut().filter(|node| node.level == 1);
        for (at, pair) in pairs.enumerate().filter(|(at, _)| at % 3 == 0) {
            pair.children[1].1 = pair.children[0].1 + 64 * (2 + at as u64);
        }
        let tree = Tree::new(&tops).unwrap();
        let strides: std::collections::BTreeSet<u8> =
            (0..tree.node_count() as u32).map(|node| tree.stride(node)).collect();
        assert!(
            strides.contains(&0) && strides.contains(&1) && strides.len() <= 1 + MAX_STRIDES,
            "{strides:?}"
        );
    }

    #[test]
    fn a_torn_snapshot_is_used_as_far_as_it_fits() {
        let mut tops = [top(0, 0)];
        tops[0].nodes[0].children[0].0 = 51; // another node lies there now
        assert_eq!(Tree::new(&tops).unwrap().node_count(), 2);
        for level in [0, 3, u8::MAX] {
            tops[0].nodes[2].level = level;
            assert_eq!(Tree::new(&tops).unwrap().node_count(), 1);
        }
        tops[0].partition.root = GlobalAddress(8); // a leaf, or a new root that is not in the snapshot yet
        let tree = Tree::new(&tops).unwrap();
        assert_eq!((tree.node_count(), tree.partitions()[0].node), (0, NONE));
    }

    #[test]
    fn a_child_on_another_server_is_never_cached() {
        let mut tops = [top(0, 0)];
        tops[0].nodes[0].children[2].1 |= 9 << 48;
        let tree = Tree::new(&tops).unwrap();
        assert!(tree.cacheable(0) && tree.cacheable(1) && !tree.cacheable(2));
    }

    #[test]
    fn damage_is_refused_with_its_place() {
        let refuse = |change: &dyn Fn(&mut [TreeTop])| {
            let mut tops = [top(0, 0), top(1, 500)];
            change(&mut tops);
            Tree::new(&tops).unwrap_err()
        };
        assert_eq!(Tree::new(&[]).unwrap_err(), SnapshotError::Empty);
        assert_eq!(refuse(&|tops| tops[1].partition.id = 0), SnapshotError::TwicePartition { id: 0 });
        assert_eq!(
            refuse(&|tops| tops[1].partition.range.low = 0),
            SnapshotError::Overlap { first: 0, second: 1, low: 0 }
        );
        // A server that was loaded anew with other borders, beside one that was not yet.
        let pivots =
            |top: &TreeTop| top.nodes.iter().flat_map(|node| node.children.iter().map(|child| child.0)).max();
        let last = pivots(&top(0, 0)).unwrap();
        assert!(matches!(
            refuse(&|tops| tops[1].partition.range.low = last),
            SnapshotError::OtherPartition { id: 0, pivot, high, .. } if pivot == last && high == last - 1
        ));
        let second = top(1, 500).nodes[0].children[1].0;
        assert!(matches!(
            refuse(&|tops| tops[1].partition.range.low = second),
            SnapshotError::OtherPartition { id: 1, pivot, low, .. } if pivot == second && low == second
        ));
        assert_eq!(
            refuse(&|tops| tops[1].partition.root = GlobalAddress(64)),
            SnapshotError::ForeignRoot { id: 1, root: 64 }
        );
        assert!(matches!(
            refuse(&|tops| tops[0].nodes[0].children[2].0 = 70),
            SnapshotError::Unordered { position: 2, .. }
        ));
        assert!(matches!(refuse(&|tops| tops[0].nodes[0].children.clear()), SnapshotError::Childless { .. }));
        assert!(matches!(
            refuse(&|tops| tops[0].nodes[0].address = 64),
            SnapshotError::TwiceNode { address: 64, .. }
        ));
    }
}
