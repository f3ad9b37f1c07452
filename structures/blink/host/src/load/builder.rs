//! Writes nodes and records, level by level from the leaves up.

use fatbtree_blink::layers::block_bytes;
use fatbtree_blink::node::{
    LINE, LeafBuilder, NewValue, NodeSpec, claim, next_version, offsets, write_internal,
};
use fatbtree_blink::record::{RecordPointer, next_record_version, published, record_bytes, write_record};
use fatbtree_blink::{GlobalAddress, KeyRange, TreeConfig, cut_keys, cut_nodes, nodes_from};

use super::cuts::Cuts;
use super::pairs::{Held, Pairs};
use super::plan::{Nodes, Plan, stride};

/// Low key and address of a node.
type Child = (u64, GlobalAddress);

pub(super) struct Builder<'r> {
    /// The region up to the first record.
    pub(super) nodes: &'r mut [u8],
    pub(super) records: Records<'r>,
    pub(super) config: TreeConfig,
}

/// Memory for records, one after the other.
pub(super) struct Records<'r> {
    pub(super) bytes: &'r mut [u8],
    /// Offset of it.
    pub(super) from: u64,
    /// Bytes of it that are used.
    pub(super) used: u64,
    pub(super) server: u16,
    /// The memory held something before: versions go on from there. Fresh memory is not read first.
    pub(super) refill: bool,
}

impl Records<'_> {
    fn write(&mut self, key: u64, length: u32, fill: impl FnOnce(&mut [u8])) -> RecordPointer {
        let address = GlobalAddress::new(self.server, self.from + self.used);
        let bytes = &mut self.bytes[self.used as usize..][..record_bytes(length) as usize];
        let version = if self.refill { next_record_version(bytes) } else { 1 };
        write_record(bytes, key, version, published(version), fill);
        if self.refill {
            // After the record its place is empty: a former node might lie there whole.
            let behind = self.used + u64::from(record_bytes(length))..self.used + stride(length);
            self.bytes[behind.start as usize..behind.end as usize].fill(0);
        }
        self.used += stride(length);
        RecordPointer { address, length, version }
    }
}

/// A layer to be written, and where its nodes lie.
struct Ground {
    layer: usize,
    config: TreeConfig,
    range: KeyRange,
    first_leaf: u64,
    /// Offset of the second leaf.
    leaves_from: u64,
    internal_from: u64,
    /// Offset of layer 1.
    layers_from: u64,
}

impl Builder<'_> {
    /// Writes everything; returns address and level of the root.
    pub(super) fn build<P: Pairs>(
        &mut self,
        plan: &Plan,
        range: KeyRange,
        pairs: &mut P,
    ) -> (GlobalAddress, u8) {
        let (leaf_bytes, internal_bytes) =
            (u64::from(self.config.leaf_bytes()), u64::from(self.config.internal_bytes()));
        let first_leaf = nodes_from(&self.config);
        let mut ground = Ground {
            layer: 0,
            config: pairs.tree(0, &self.config),
            range,
            first_leaf,
            leaves_from: first_leaf + leaf_bytes,
            internal_from: first_leaf + plan.layers[0].leaves * leaf_bytes,
            layers_from: plan.layers_from,
        };
        let root = self.layer(&ground, &plan.layers[0], pairs);
        (ground.range, ground.leaves_from, ground.internal_from) =
            (KeyRange::ALL, plan.layer_leaves_from, plan.layer_internal_from);
        for (layer, nodes) in plan.layers.iter().enumerate().skip(1) {
            ground.layer = layer;
            ground.config = pairs.tree(layer, &self.config);
            ground.first_leaf = block_of(&ground, layer);
            let root = self.layer(&ground, nodes, pairs);
            let leaf = self.address(ground.first_leaf);
            let head = pairs.head(layer, leaf, root);
            self.nodes[(ground.first_leaf + leaf_bytes) as usize..][..head.len()].copy_from_slice(&head);
            ground.leaves_from += (nodes.leaves - 1) * leaf_bytes;
            ground.internal_from += nodes.internal_nodes() * internal_bytes;
        }
        debug_assert_eq!(
            self.records.used, plan.record_bytes,
            "lengths are the same every time they are asked for"
        );
        root
    }

    fn address(&self, offset: u64) -> GlobalAddress {
        GlobalAddress::new(self.records.server, offset)
    }

    /// Writes the nodes of a layer, and its records; returns address and level of its root.
    fn layer<P: Pairs>(&mut self, ground: &Ground, nodes: &Nodes, pairs: &mut P) -> (GlobalAddress, u8) {
        let mut below = self.leaves(ground, nodes, pairs);
        let mut from = ground.internal_from;
        let mut level = 0;
        for &count in &nodes.internal {
            level += 1;
            below = self.internal_level(ground, level, from, count, &below);
            from += count * u64::from(ground.config.internal_bytes());
        }
        debug_assert_eq!(below.len(), 1, "the last level has one node, the root");
        (below.first().map_or(GlobalAddress::NULL, |(_, root)| *root), level)
    }

    fn spec(&self, ground: &Ground, level: u8, offset: u64, low: u64, next: Option<(u64, u64)>) -> NodeSpec {
        let size = ground.config.node_bytes(level) as usize;
        let version =
            if self.records.refill { next_version(&self.nodes[offset as usize..][..size]) } else { 1 };
        NodeSpec {
            address: self.address(offset),
            level,
            range: KeyRange { low, high: next.map(|(low, _)| low).or(ground.range.high) },
            sibling: next.map_or(GlobalAddress::NULL, |(_, offset)| self.address(offset)),
            version,
        }
    }

    /// Writes all leaves and records of a layer, in key order.
    fn leaves<P: Pairs>(&mut self, ground: &Ground, nodes: &Nodes, pairs: &mut P) -> Vec<Child> {
        let size = ground.config.leaf_bytes() as usize;
        let shape = *ground.config.leaf_shape();
        let mut built = Vec::with_capacity(nodes.leaves as usize);
        let mut low = ground.range.low;
        let count = pairs.words(ground.layer).len();
        let cuts = Cuts::new(count, nodes.leaves, ground.config.leaf_capacity());
        let mut from = 0;
        for index in 0..nodes.leaves {
            let cut = match shape.has_buckets() {
                true => nodes.bucket_cuts.get(index as usize).copied(),
                false => {
                    cuts.end_of(index, from).map(|(window, _)| cut_keys(pairs.words(ground.layer), window))
                }
            };
            let (to, next_low) = match cut {
                Some((to, separator)) => (to, Some(separator)),
                None => (count, None),
            };
            let leaf_at = |index: u64| match index.checked_sub(1) {
                None => ground.first_leaf,
                Some(before) => ground.leaves_from + before * size as u64,
            };
            let offset = leaf_at(index);
            let spec = self.spec(ground, 0, offset, low, next_low.map(|low| (low, leaf_at(index + 1))));
            let bytes = &mut self.nodes[offset as usize..][..size];
            let mut leaf = LeafBuilder::new(bytes, &shape, spec);
            for at in from..to {
                let word = pairs.words(ground.layer)[at];
                match pairs.held(ground.layer, at, &shape) {
                    Held::Inline => pairs.fill(ground.layer, at, leaf.push_inline(word)),
                    Held::Short(length) => {
                        pairs.fill(ground.layer, at, leaf.push_short(word, length as usize));
                    }
                    Held::Record(length) => {
                        let key = pairs.record_key(ground.layer, at);
                        let fill = |out: &mut [u8]| pairs.fill(ground.layer, at, out);
                        leaf.push_record(word, self.records.write(key, length, fill));
                    }
                    Held::Layer(layer) => {
                        let block = GlobalAddress::new(self.records.server, block_of(ground, layer));
                        leaf.push_value(word, NewValue::Layer(block));
                    }
                }
            }
            leaf.finish();
            claim(&ground.config, bytes);
            built.push((low, spec.address));
            (from, low) = (to, next_low.unwrap_or(low));
        }
        built
    }

    /// Writes one level of internal nodes over the nodes `below`.
    fn internal_level(
        &mut self,
        ground: &Ground,
        level: u8,
        from: u64,
        count: u64,
        below: &[Child],
    ) -> Vec<Child> {
        let config = &ground.config;
        let size = config.internal_bytes() as usize;
        let cuts = Cuts::new(below.len(), count, usize::from(config.fan_out()));
        let mut first = 0;
        (0..count)
            .map(|index| {
                let (end, next_low) = match cuts.end_of(index, first) {
                    Some((window, even)) => {
                        let (end, pivot) = cut_nodes(window, even, |at| below[at].0);
                        (end, Some(pivot))
                    }
                    None => (below.len(), None),
                };
                let children = &below[first..end];
                first = end;
                let low = children[0].0;
                let offset = from + index * size as u64;
                let spec =
                    self.spec(ground, level, offset, low, next_low.map(|low| (low, offset + size as u64)));
                let bytes = &mut self.nodes[offset as usize..][..size];
                write_internal(bytes, &spec, children, config.integrity());
                claim(config, bytes);
                (low, spec.address)
            })
            .collect()
    }
}

/// Offset of a layer below the first one: of its first leaf, and the head behind it.
fn block_of(ground: &Ground, layer: usize) -> u64 {
    ground.layers_from + (layer as u64 - 1) * u64::from(block_bytes(&ground.config))
}

/// Offsets at which a line can carry a version: in front, or at its end.
const VERSIONS: [usize; 2] = [offsets::VERSION, LINE - 1];

/// Forgets what lies in memory of a former generation: nothing of it is a node any more. Versions stay, for
/// later writers of nodes there.
pub(super) fn forget(memory: &mut [u8]) {
    for line in memory.as_chunks_mut::<LINE>().0 {
        if *line == [0; LINE] {
            continue; // perhaps never touched: it stays so
        }
        let node_version = offsets::NODE_VERSION..offsets::NODE_VERSION + 4;
        for (at, byte) in line.iter_mut().enumerate() {
            if !VERSIONS.contains(&at) && !node_version.contains(&at) {
                *byte = 0;
            }
        }
    }
}
