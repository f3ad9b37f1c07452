//! Random tops of trees, and the tree's own answer.

use proptest::prelude::*;

use fatbtree_blink::{GlobalAddress, KeyRange, Partition, TopNode, TreeTop};

/// Consistent tops of 1 to 4 partitions (ids not in key order) with trees of up to 4 levels, some nodes wider than
/// a switch can hold, some keys at the very ends of the key space.
pub(crate) fn arb_tops() -> impl Strategy<Value = Vec<TreeTop>> {
    let key = prop_oneof![
        any::<u64>(),
        0u64..100_000,
        (0u64..1000).prop_map(|k| u64::MAX - k),
        (0u64..70_000).prop_map(|k| k << 32)
    ];
    let shape = (1usize..=4, prop::collection::vec(1usize..20, 200), 2u64..200);
    (prop::collection::btree_set(key, 1..400), shape).prop_map(|(keys, (partitions, widths, gap))| {
        let keys: Vec<u64> = keys.into_iter().collect();
        let per = keys.len().div_ceil(partitions);
        let tops = keys.chunks(per).enumerate().map(|(n, leaves)| {
            let id = [2, 0, 7, 65535][n];
            let mut top = top(id, if n == 0 { 0 } else { leaves[0] }, leaves, &widths[n * 50..]);
            scatter(&mut top, gap);
            top
        });
        tops.collect()
    })
}

/// Leaves a gap after so many nodes: siblings on both sides of it lie at other distances than the rest.
fn scatter(top: &mut TreeTop, gap: u64) {
    let moved = |address: u64| address + 64 * ((address >> 6 & 0xffff) / gap);
    top.partition.root = GlobalAddress(moved(top.partition.root.raw()));
    for node in &mut top.nodes {
        node.address = moved(node.address);
        node.children.iter_mut().for_each(|(_, address)| *address = moved(*address));
    }
}

/// A tree whose leaves begin at `leaves` (the first at `low`), fan-outs taken from `widths` in turn.
pub(crate) fn top(id: u16, low: u64, leaves: &[u64], widths: &[usize]) -> TreeTop {
    let mut address = u64::from(id) << 48;
    let mut fresh = || {
        address += 64;
        address
    };
    let mut level: Vec<(u64, u64)> = leaves.iter().map(|key| (*key, fresh())).collect();
    level[0].0 = low;
    let mut nodes = Vec::new();
    let mut widths = widths.iter().cycle();
    let mut height = 0;
    while level.len() > 1 || height == 0 && leaves.len() > 1 {
        height += 1;
        let mut above = Vec::new();
        let mut rest = level.as_slice();
        while !rest.is_empty() {
            // At least two, or the tree would never end.
            let width = (*widths.next().expect("cycles")).max(2).min(rest.len());
            let (children, more) = rest.split_at(width);
            let node = TopNode { address: fresh(), level: height, children: children.to_vec() };
            above.push((node.low(), node.address));
            nodes.push(node);
            rest = more;
        }
        level = above;
    }
    let range = KeyRange { low, high: None };
    let partition = Partition { id, range, root: GlobalAddress(level[0].1), root_level: height };
    TreeTop { partition, nodes, reads: Default::default() }
}

/// Addresses from the root of the key's partition to its leaf, by the plainest possible walk.
pub(crate) fn naive_path(tops: &[TreeTop], key: u64) -> Vec<u64> {
    let low = |top: &&TreeTop| top.partition.range.low;
    let first = tops.iter().min_by_key(low).unwrap();
    let top = tops.iter().filter(|top| low(top) <= key).max_by_key(low).unwrap_or(first);
    let mut path = vec![top.partition.root.raw()];
    while let Some(node) = top.nodes.iter().find(|node| node.address == *path.last().unwrap()) {
        let child =
            node.children.iter().skip(1).rev().find(|(pivot, _)| *pivot <= key).unwrap_or(&node.children[0]);
        path.push(child.1);
    }
    path
}
