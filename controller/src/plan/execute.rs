//! The plan in software: where does a key land?

use fatbtree_topology::SwitchId;

use super::{CachedNode, FatRootRange, LAYERS, Plan, layer_of};

/// Where an index read for a key ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landing {
    /// Address of the node it reads.
    pub address: u64,
    /// The partition, by the plan.
    pub partition: u16,
    /// Levels that the network walked, as the index header counts them: 1 for the fat root and 1 for each node set that
    /// led on.
    pub levels: u8,
}

/// Where each partition's nodes of each layer begin in [`Plan::nodes`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// Partition ids, ascending, and for each layer the range of positions of its switch's nodes.
    partitions: Vec<(u16, [(usize, usize); LAYERS])>,
}

impl Index {
    pub(super) fn of(plan: &Plan) -> Self {
        let mut partitions: Vec<_> = plan
            .partitions
            .iter()
            .map(|partition| {
                let mut spans = [(0, 0); LAYERS];
                for (layer, span) in spans.iter_mut().enumerate() {
                    let home = (layer, partition.switches[layer]);
                    let start =
                        plan.nodes.partition_point(|node| (usize::from(node.layer), node.switch) < home);
                    let end =
                        plan.nodes.partition_point(|node| (usize::from(node.layer), node.switch) <= home);
                    *span = (start, end);
                }
                (partition.id, spans)
            })
            .collect();
        partitions.sort_unstable();
        Self { partitions }
    }

    /// Position in [`Plan::nodes`] of the node called `id` on the way to `partition`.
    pub(super) fn position(&self, nodes: &[CachedNode], partition: u16, id: u16) -> Option<usize> {
        if id == 0 {
            return None;
        }
        let at = self.partitions.binary_search_by_key(&partition, |(id, _)| *id).ok()?;
        let (start, end) = *self.partitions[at].1.get(layer_of(id))?;
        // Mostly ids follow each other.
        let set = &nodes[start..end];
        let guess = usize::from(id - set.first()?.id.min(id));
        if set.get(guess).is_some_and(|node| node.id == id) {
            return Some(start + guess);
        }
        set.binary_search_by_key(&id, |node| node.id).ok().map(|at| start + at)
    }
}

/// What one table does with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WayPoint {
    /// The switch.
    pub switch: SwitchId,
    /// None: the fat root; otherwise a layer, as in [`LAYER_NAMES`](super::LAYER_NAMES).
    pub layer: Option<u8>,
    /// First key of the child that was found.
    pub low: u64,
    /// First key of the one behind it; none at the end of the keys.
    pub next: Option<u64>,
    /// The child.
    pub address: u64,
    /// Its id where it is cached further on, else 0.
    pub node_id: u16,
}

impl Plan {
    /// The way of an index read for `key`, table by table; the last one says where it ends.
    pub fn way(&self, key: u64) -> Vec<WayPoint> {
        let at = self.fat_root.partition_point(|range| range.low <= key).saturating_sub(1);
        let range = &self.fat_root[at];
        let mut next = self.fat_root.get(at + 1).map(|next| next.low);
        let FatRootRange { low, address, node_id, partition, .. } = *range;
        let mut way = vec![WayPoint { switch: self.core, layer: None, low, next, address, node_id }];
        let mut id = node_id;
        while let Some(position) = self.index.position(&self.nodes, partition, id) {
            let node = &self.nodes[position];
            let at = node.children.partition_point(|child| child.low <= key).saturating_sub(1);
            let child = &node.children[at];
            next = node.children.get(at + 1).map(|next| next.low).or(next);
            let (switch, layer) = (node.switch, Some(node.layer));
            way.push(WayPoint {
                switch,
                layer,
                low: child.low,
                next,
                address: child.address,
                node_id: child.node_id,
            });
            id = child.node_id;
        }
        way
    }

    /// Where an index read for `key` ends when every switch holds this plan, and the client's connection is to the
    /// key's partition.
    pub fn land(&self, key: u64) -> Landing {
        let after = self.fat_root.partition_point(|range| range.low <= key);
        let range = &self.fat_root[after.checked_sub(1).expect("the first range begins at key 0")];
        let partition = range.partition;
        let (mut address, mut id, mut levels) = (range.address, range.node_id, 1);
        while let Some(position) = self.index.position(&self.nodes, partition, id) {
            let children = &self.nodes[position].children;
            // A key comes to a node because it is in the node's range: none is below the first child.
            let child = children.partition_point(|child| child.low <= key).saturating_sub(1);
            (address, id) = (children[child].address, children[child].node_id);
            levels += 1;
        }
        Landing { address, partition, levels }
    }
}
