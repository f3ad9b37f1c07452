//! A tree built by hand: full nodes, bottom up, in the region of one memory server.

use fatbtree_index::node::{LeafBuilder, NodeSpec, write_internal};
use fatbtree_index::record::{record_bytes, write_record};
use fatbtree_index::{GlobalAddress, KeyRange, Partition, TreeConfig, ValueLayout, value};

pub const SEED: u64 = 7;

/// Bytes of the value of a key, where values are kept out of line.
pub fn value_length(key: u64) -> u32 {
    (key % 90) as u32 + 8
}

/// The region of `server` and its partition. `keys` are ascending and lie in `range`.
pub fn build(config: &TreeConfig, server: u16, range: KeyRange, keys: &[u64]) -> (Vec<u8>, Partition) {
    let mut region = vec![0; 64];
    let per_leaf = config.leaf_capacity() / 2;
    let mut level = 0;
    // Low key and address of each node of the level below.
    let mut below: Vec<(u64, GlobalAddress)> = Vec::new();
    let chunks: Vec<&[u64]> = keys.chunks(per_leaf).collect();
    let lows: Vec<u64> =
        chunks.iter().enumerate().map(|(i, keys)| if i == 0 { range.low } else { keys[0] }).collect();
    let leaf_bytes = config.leaf_bytes() as usize;
    let mut records = Vec::new();
    if config.values() == ValueLayout::OutOfLine {
        let mut at = 64 + chunks.len() * leaf_bytes;
        for &key in keys {
            records.push(GlobalAddress::new(server, at as u64));
            at += (record_bytes(value_length(key)) as usize).next_multiple_of(8);
        }
        region.resize(at.next_multiple_of(64), 0);
        for (&key, address) in keys.iter().zip(&records) {
            let from = address.offset() as usize;
            let bytes = &mut region[from..from + record_bytes(value_length(key)) as usize];
            value::fill(key, SEED, write_record(bytes, key, 1));
        }
    } else {
        region.resize(64 + chunks.len() * leaf_bytes, 0);
    }
    for (i, keys) in chunks.iter().enumerate() {
        let offset = 64 + i * leaf_bytes;
        let spec = spec(server, 0, offset, &lows, i, range, leaf_bytes);
        let mut leaf = LeafBuilder::new(&mut region[offset..offset + leaf_bytes], config.leaf_shape(), spec);
        for (j, &key) in keys.iter().enumerate() {
            match config.values() {
                ValueLayout::Inline(_) => value::fill(key, SEED, leaf.push_inline(key)),
                ValueLayout::OutOfLine => leaf.push_record(key, records[i * per_leaf + j], value_length(key)),
            }
        }
        leaf.finish();
        below.push((lows[i], spec.address));
    }
    while below.len() > 1 {
        level += 1;
        let bytes = config.internal_bytes() as usize;
        let from = region.len();
        let groups: Vec<&[(u64, GlobalAddress)]> = below.chunks(usize::from(config.fan_out())).collect();
        let lows: Vec<u64> = groups.iter().map(|children| children[0].0).collect();
        region.resize(from + groups.len() * bytes, 0);
        let mut nodes = Vec::new();
        for (i, children) in groups.iter().enumerate() {
            let offset = from + i * bytes;
            let spec = spec(server, level, offset, &lows, i, range, bytes);
            write_internal(&mut region[offset..offset + bytes], &spec, children);
            nodes.push((lows[i], spec.address));
        }
        below = nodes;
    }
    // An index read asks for the larger kind of node, wherever it lands.
    region.resize(region.len() + config.max_node_bytes() as usize, 0);
    (region, Partition { id: server, range, root: below[0].1, root_level: level })
}

fn spec(
    server: u16,
    level: u8,
    offset: usize,
    lows: &[u64],
    i: usize,
    range: KeyRange,
    bytes: usize,
) -> NodeSpec {
    let next = lows.get(i + 1).copied();
    NodeSpec {
        address: GlobalAddress::new(server, offset as u64),
        level,
        range: KeyRange { low: lows[i], high: next.or(range.high) },
        sibling: match next {
            Some(_) => GlobalAddress::new(server, (offset + bytes) as u64),
            None => GlobalAddress::NULL,
        },
        version: 1,
    }
}
