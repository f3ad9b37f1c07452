//! Which top nodes become the fat root: greedily the most visited ones (paper §III-B), starting at the super-root.

use std::collections::BinaryHeap;

use super::ranges::RangeTables;
use super::{Budget, PlanError, SLICE_BITS, STAGES};
use crate::frequency::Frequencies;
use crate::tree::{NONE, Tree};

/// One range of the fat root: a child of a merged node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) low: u64,
    pub(super) address: u64,
    /// Index into the tree's partitions.
    pub(super) partition: u16,
    /// Its own node, or [`NONE`].
    pub(super) node: u32,
}

/// The ranges and their tables, within the budget.
///
/// First the order of merging without regard to TCAM, then the longest beginning of it whose tables fit: how many
/// rows a set of ranges needs shows only when the tables are built, and cutting ranges never needs fewer rows, so the
/// longest beginning can be searched by halves.
pub(super) fn build(
    tree: &Tree,
    frequencies: &Frequencies,
    budget: &Budget,
) -> Result<(Vec<Child>, RangeTables), PlanError> {
    let merged = order(tree, frequencies, budget.fat_root_ranges);
    let try_first = |count: usize| {
        let children = children(tree, &merged[..count]);
        let lows: Vec<u64> = children.iter().map(|child| child.low).collect();
        let tables = RangeTables::build(&lows, SLICE_BITS, STAGES);
        let fits = budget.check_ranges(children.len(), &tables);
        fits.map(|()| (children, tables))
    };
    if let Ok(whole) = try_first(merged.len()) {
        return Ok(whole);
    }
    let mut best = try_first(0)?;
    let (mut fits, mut too_many) = (0, merged.len());
    while too_many - fits > 1 {
        let middle = fits + (too_many - fits) / 2;
        match try_first(middle) {
            Ok(found) => (best, fits) = (found, middle),
            Err(_) => too_many = middle,
        }
    }
    Ok(best)
}

/// Nodes in the order in which they are merged, until nothing is left that keeps within `most` ranges.
///
/// A node that is too wide for the ranges left over is passed by: a smaller one may still fit. A node whose children are
/// on another server stays whole, for the fat root would send the read to the wrong memory.
fn order(tree: &Tree, frequencies: &Frequencies, most: usize) -> Vec<u32> {
    let ranked = |node: u32| (frequencies.rank(tree, node), node);
    let mut queue: BinaryHeap<_> =
        tree.partitions().iter().filter(|p| p.node != NONE).map(|p| ranked(p.node)).collect();
    let mut ranges = tree.partitions().len();
    let mut merged = Vec::new();
    while let Some((_, node)) = queue.pop() {
        let children = tree.children(node);
        if !tree.node(node).local || ranges + children.len() - 1 > most {
            continue;
        }
        ranges += children.len() - 1;
        merged.push(node);
        queue.extend(children.iter().filter(|child| child.node != NONE).map(|child| ranked(child.node)));
    }
    merged
}

/// The children of the super-root and of `merged`, except those that are merged themselves; in key order.
fn children(tree: &Tree, merged: &[u32]) -> Vec<Child> {
    let mut is_merged = vec![false; tree.node_count()];
    for node in merged {
        is_merged[*node as usize] = true;
    }
    let mut result = Vec::new();
    let mut stack = Vec::new();
    for (index, partition) in tree.partitions().iter().enumerate() {
        let index = u16::try_from(index).expect("partition ids are 16 bits and unique");
        stack.push(Child {
            low: partition.low,
            address: partition.root,
            partition: index,
            node: partition.node,
        });
        while let Some(child) = stack.pop() {
            if child.node == NONE || !is_merged[child.node as usize] {
                result.push(child);
                continue;
            }
            for (at, below) in tree.children(child.node).iter().enumerate().rev() {
                // The first child takes what its parent's range begins with: a partition's root may have its low
                // fence above the keys that are sent to it.
                let low = if at == 0 { child.low } else { below.low };
                stack.push(Child { low, address: below.address, partition: index, node: below.node });
            }
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use fatbtree_index::{GlobalAddress, KeyRange, Partition, TopNode, TreeTop};

    /// The tree of Figure 4(i), as far as its text goes: the four most visited nodes give nine pivots.
    #[test]
    fn merges_the_most_visited_nodes_like_figure_4() {
        let node =
            |address, level, children: &[(u64, u64)]| TopNode { address, level, children: children.to_vec() };
        // {k7}; {k3,k5} and {k11,k13,k16}; below: k<3, k3, k5 | {k8,k9,k10}, {k12}, {k14,k15}, {k17}
        let top = TreeTop {
            partition: Partition { id: 0, range: KeyRange::ALL, root: GlobalAddress(10), root_level: 3 },
            nodes: vec![
                node(10, 3, &[(0, 20), (7, 21)]),
                node(20, 2, &[(0, 30), (3, 31), (5, 32)]),
                node(21, 2, &[(7, 33), (11, 34), (13, 35), (16, 36)]),
                node(33, 1, &[(7, 100), (8, 101), (9, 102), (10, 103)]),
                node(34, 1, &[(11, 104), (12, 105)]),
                node(35, 1, &[(13, 106), (14, 107), (15, 108)]),
                node(36, 1, &[(16, 109), (17, 110)]),
            ],
        };
        let tree = Tree::new(&[top]).unwrap();
        let samples = [(1, 10), (7, 20), (8, 10), (12, 2), (14, 15), (17, 3)];
        let frequencies = Frequencies::from_weighted(&tree, &samples);
        let budget = Budget { fat_root_ranges: 10, ..Budget::bmv2() };
        let (children, tables) = build(&tree, &frequencies, &budget).unwrap();
        let lows: Vec<u64> = children.iter().map(|child| child.low).collect();
        assert_eq!(
            lows,
            [0, 7, 8, 9, 10, 11, 13, 14, 15, 16],
            "k7 k8 k9 k10 k11 k13 k14 k15 k16 are the pivots"
        );
        assert_eq!(children[0].address, 20, "the less visited side stays one child");
        assert_eq!(tables.entries_per_stage::<4>()[3], 10);
    }
}
