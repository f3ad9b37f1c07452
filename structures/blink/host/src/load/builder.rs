//! Writes nodes and records, level by level from the leaves up.

use fatbtree_blink::node::{LINE, LeafBuilder, NodeSpec, next_version, offsets, write_internal};
use fatbtree_blink::record::{RecordPointer, next_record_version, published, record_bytes, write_record};
use fatbtree_blink::{GlobalAddress, KeyRange, SUPERBLOCK_BYTES, TreeConfig, cut_keys, cut_nodes};

use super::cuts::Cuts;
use super::plan::{Plan, stride};
use crate::values::ValueSource;

/// Low key and address of a node.
type Child = (u64, GlobalAddress);

pub(super) struct Builder<'r> {
    /// The region up to the first record.
    pub(super) nodes: &'r mut [u8],
    pub(super) server: u16,
    pub(super) range: KeyRange,
    pub(super) config: TreeConfig,
    /// The memory held something before: versions go on from there. Fresh memory is not read first.
    pub(super) refill: bool,
}

impl Builder<'_> {
    /// Writes everything; returns address and level of the root.
    pub(super) fn build<S: ValueSource>(
        &mut self,
        plan: &Plan,
        keys: &[u64],
        values: &mut S,
        records: &mut [u8],
    ) -> (GlobalAddress, u8) {
        let mut below = self.leaves(plan, keys, values, records);
        let mut from = u64::from(SUPERBLOCK_BYTES) + plan.leaves * u64::from(self.config.leaf_bytes());
        let mut level = 0;
        for &count in &plan.internal {
            level += 1;
            below = self.internal_level(level, from, count, &below);
            from += count * u64::from(self.config.internal_bytes());
        }
        debug_assert_eq!(below.len(), 1, "the last level has one node, the root");
        (below.first().map_or(GlobalAddress::NULL, |(_, root)| *root), level)
    }

    fn spec(&self, level: u8, offset: u64, low: u64, next_low: Option<u64>) -> NodeSpec {
        let size = u64::from(self.config.node_bytes(level));
        let version =
            if self.refill { next_version(&self.nodes[offset as usize..][..size as usize]) } else { 1 };
        NodeSpec {
            address: GlobalAddress::new(self.server, offset),
            level,
            range: KeyRange { low, high: next_low.or(self.range.high) },
            sibling: next_low.map_or(GlobalAddress::NULL, |_| GlobalAddress::new(self.server, offset + size)),
            version,
        }
    }

    /// Writes all leaves and records, in key order.
    fn leaves<S: ValueSource>(
        &mut self,
        plan: &Plan,
        keys: &[u64],
        values: &mut S,
        records: &mut [u8],
    ) -> Vec<Child> {
        let size = self.config.leaf_bytes() as usize;
        let shape = *self.config.leaf_shape();
        let mut built = Vec::with_capacity(plan.leaves as usize);
        let mut record_at = 0_u64;
        let mut low = self.range.low;
        let cuts = Cuts::new(keys.len(), plan.leaves, self.config.leaf_capacity());
        let mut from = 0;
        for index in 0..plan.leaves {
            let cut = match shape.has_buckets() {
                true => plan.bucket_cuts.get(index as usize).copied(),
                false => cuts.end_of(index, from).map(|(window, _)| cut_keys(keys, window)),
            };
            let (to, next_low) = match cut {
                Some((to, separator)) => (to, Some(separator)),
                None => (keys.len(), None),
            };
            let offset = u64::from(SUPERBLOCK_BYTES) + index * size as u64;
            let spec = self.spec(0, offset, low, next_low);
            let mut leaf = LeafBuilder::new(&mut self.nodes[offset as usize..][..size], &shape, spec);
            for &key in &keys[from..to] {
                if !shape.has_records() {
                    values.fill(key, leaf.push_inline(key));
                    continue;
                }
                let length = values.length(key);
                if shape.holds(length as usize) {
                    values.fill(key, leaf.push_short(key, length as usize));
                } else {
                    let address = GlobalAddress::new(self.server, plan.records_from + record_at);
                    let bytes = &mut records[record_at as usize..][..record_bytes(length) as usize];
                    let version = if self.refill { next_record_version(bytes) } else { 1 };
                    leaf.push_record(key, RecordPointer { address, length, version });
                    write_record(bytes, key, version, published(version), |value| values.fill(key, value));
                    if self.refill {
                        // After the record its place is empty: a former node might lie there whole.
                        let behind = record_at + u64::from(record_bytes(length))..record_at + stride(length);
                        records[behind.start as usize..behind.end as usize].fill(0);
                    }
                    record_at += stride(length);
                }
            }
            leaf.finish();
            built.push((low, spec.address));
            (from, low) = (to, next_low.unwrap_or(low));
        }
        debug_assert_eq!(record_at, plan.record_bytes, "lengths are the same every time they are asked for");
        built
    }

    /// Writes one level of internal nodes over the nodes `below`.
    fn internal_level(&mut self, level: u8, from: u64, count: u64, below: &[Child]) -> Vec<Child> {
        let size = self.config.internal_bytes() as usize;
        let cuts = Cuts::new(below.len(), count, usize::from(self.config.fan_out()));
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
                let spec = self.spec(level, offset, low, next_low);
                let bytes = &mut self.nodes[offset as usize..][..size];
                write_internal(bytes, &spec, children, self.config.integrity());
                (low, spec.address)
            })
            .collect()
    }
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
