//! The plan in software: where does a key resolve?

use std::collections::HashMap;

use fatbtree_topology::SwitchId;

use super::{CachedChild, CachedNode, FatRootRange, Plan};
use crate::tables::NodeKind;

/// Node at which an index read for a key ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Address of the node it reads.
    pub address: u64,
    /// The partition, by the plan.
    pub partition: u16,
    /// Levels that the network walked, as the index header counts them: 1 for the fat root and 1 for each node set that
    /// led on.
    pub levels: u8,
    /// Kind of the node. Reads of a slice begin at the slice in a leaf alone.
    pub kind: NodeKind,
}

/// Positions in [`Plan::nodes`] by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index(HashMap<u64, u32>);

impl Index {
    pub(super) fn of(nodes: &[CachedNode]) -> Self {
        Self((0..).zip(nodes).map(|(position, node)| (node.address, position)).collect())
    }

    pub(super) fn position(&self, address: u64) -> Option<usize> {
        self.0.get(&address).map(|position| *position as usize)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Step of a key in one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WayPoint {
    /// None: the fat root; otherwise a node set, by its position in [`Plan::groups`].
    pub group: Option<u16>,
    /// First key of the child that was found.
    pub low: u64,
    /// First key of the one after it; none at the end of the keys.
    pub next: Option<u64>,
    /// The child.
    pub address: u64,
    /// Whether it is cached further on.
    pub cached: bool,
}

impl Plan {
    /// The way of an index read for `key`, table by table; the last one says where it ends.
    pub fn way(&self, key: u64) -> Vec<WayPoint> {
        let at = self.range_of(key);
        let FatRootRange { low, address, .. } = self.fat_root[at];
        let mut next = self.fat_root.get(at + 1).map(|next| next.low);
        let cached = |address| self.index.position(address).is_some();
        let mut way = vec![WayPoint { group: None, low, next, address, cached: cached(address) }];
        for position in self.nodes_of(key) {
            let node = &self.nodes[position];
            let at = node.branch(key);
            let CachedChild { low, address } = node.children[at];
            next = node.children.get(at + 1).map(|next| next.low).or(next);
            way.push(WayPoint { group: Some(node.group), low, next, address, cached: cached(address) });
        }
        way
    }

    /// The name of a table on the way, and the switches that hold it.
    pub fn place(&self, point: &WayPoint) -> (String, &[SwitchId]) {
        match point.group.and_then(|group| self.groups.get(usize::from(group))) {
            Some(group) => (group.name(), &group.switches),
            None => ("fat root".to_owned(), &self.roots),
        }
    }

    /// Whether this node set is the last one on the way to a partition.
    pub fn is_last(&self, point: &WayPoint, partition: u16) -> bool {
        let planned = self.partitions.iter().find(|planned| planned.id == partition);
        point.group.is_some() && planned.is_some_and(|planned| planned.groups.last() == point.group.as_ref())
    }

    /// Where an index read for `key` ends when every switch holds this plan, and the client's connection is to the
    /// key's partition.
    pub fn resolve(&self, key: u64) -> Resolved {
        let FatRootRange { address, partition, kind, .. } = self.fat_root[self.range_of(key)];
        self.nodes_of(key).fold(Resolved { address, partition, levels: 1, kind }, |landing, position| {
            let node = &self.nodes[position];
            let address = node.children[node.branch(key)].address;
            Resolved { address, levels: landing.levels + 1, kind: node.child_kind(), ..landing }
        })
    }

    /// The range of the fat root that a key is in.
    pub(super) fn range_of(&self, key: u64) -> usize {
        let after = self.fat_root.partition_point(|range| range.low <= key);
        after.checked_sub(1).expect("the first range begins at key 0")
    }

    /// Positions of the cached nodes on a key's way, in its order.
    pub(super) fn nodes_of(&self, key: u64) -> impl Iterator<Item = usize> + '_ {
        let range = &self.fat_root[self.range_of(key)];
        let first = Some(range.address).filter(|_| range.kind == NodeKind::Inner);
        std::iter::successors(first.and_then(|address| self.index.position(address)), move |position| {
            let node = &self.nodes[*position];
            // Packets pass sets once, in the order of groups.
            let next = self.index.position(node.children[node.branch(key)].address)?;
            (self.nodes[next].group > node.group).then_some(next)
        })
    }
}

impl CachedNode {
    /// Kind of the node's children.
    pub(super) fn child_kind(&self) -> NodeKind {
        if self.level > 1 { NodeKind::Inner } else { NodeKind::Leaf }
    }

    /// Which child a key belongs to. A key comes to a node because it is in the node's range: none is below the first child.
    pub(super) fn branch(&self, key: u64) -> usize {
        self.children.partition_point(|child| child.low <= key).saturating_sub(1)
    }
}
