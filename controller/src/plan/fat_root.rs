//! Which top nodes become the fat root: greedily those that bring most for what they take, starting at the super-root.
//!
//! The paper merges the most visited nodes (§III-B), as if all took the same. They do not: rows of TCAM are what ends a fat
//! root, and a node takes from none to four of them for each child, and of one slice or of all four. A node brings the visits that
//! are expected of it: each of them goes one level further at once. It takes what its children's ranges take more than its own did ([`Need`]), as a share of
//! the resource of which that is the largest share.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::favour::Favour;
use super::need::Need;
use super::ranges::RangeTables;
use super::{Budget, PlanError, SLICE_BITS, STAGES};
use crate::tables::NodeKind;
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
    /// Its level; leaves are 0.
    pub(super) level: u8,
}

impl Child {
    pub(super) fn kind(&self) -> NodeKind {
        match (self.node, self.level) {
            (NONE, 0) => NodeKind::Leaf,
            (NONE, _) => NodeKind::Undescribed,
            _ => NodeKind::Inner,
        }
    }
}

/// A fat root: its ranges and their tables, within the budget.
#[derive(Clone, Debug)]
pub(super) struct FatRoot {
    /// The nodes that are merged.
    pub(super) merged: Vec<u32>,
    /// Children in key order.
    pub(super) children: Vec<Child>,
    pub(super) tables: RangeTables,
}

/// The fat root for these visits of each node.
pub(super) fn build(
    tree: &Tree,
    visits: &[f64],
    favour: &Favour,
    budget: &Budget,
) -> Result<FatRoot, PlanError> {
    let mut merged = merge(tree, visits, favour, budget);
    loop {
        let children = children(tree, &merged);
        let lows: Vec<u64> = children.iter().map(|child| child.low).collect();
        let mut tables = RangeTables::build(&lows, SLICE_BITS, STAGES);
        let placed = budget
            .place(&mut tables)
            .and_then(|()| budget.check_ranges(children.len(), &tables, budget.range_match));
        match placed {
            Ok(()) => return Ok(FatRoot { merged, children, tables }),
            // Merging kept within it: what is too much is the super-root. Were it not so, less would do.
            Err(error) if merged.pop().is_none() => return Err(error),
            Err(_) => {}
        }
    }
}

/// A node that may be merged next.
struct Candidate {
    /// Its gain: visits and, where these are equal, leaves below it.
    visits: f64,
    is_held: bool,
    leaves: u64,
    /// Its share of the scarcest resource, in [`WHOLE`]ths.
    share: u64,
    node: u32,
    /// First key that is sent to it.
    low: u64,
    need: Need,
}

/// A resource in full, for whole numbers: what takes less than a part in so many of it takes one part.
const WHOLE: u64 = 1 << 32;

impl Candidate {
    fn new(tree: &Tree, visits: &[f64], favour: &Favour, budget: &Budget, node: u32, low: u64) -> Self {
        // The first child takes what the node's range begins with, as in `children`.
        let pivots = tree.children(node).iter().skip(1).map(|child| child.low);
        let lows: Vec<u64> = std::iter::once(low).chain(pivots).collect();
        let need = Need::of_cutting(&lows, tree.node(node).high.checked_add(1), budget.range_match);
        let share = budget.largest_share(&need, WHOLE).max(1);
        let is_held = favour.in_fat_root(node);
        let visits = Favour::of_held(is_held, visits[node as usize]);
        Self { visits, is_held, leaves: tree.node(node).leaves, share, node, low, need }
    }
}

impl Ord for Candidate {
    /// What brings more for what it takes is greater; then what is nearer to the root, or to key 0.
    fn cmp(&self, other: &Self) -> Ordering {
        let ratio = |at: &Self, brings: f64| brings / at.share as f64;
        let compare =
            |brings: fn(&Self) -> f64| ratio(self, brings(self)).total_cmp(&ratio(other, brings(other)));
        compare(|at| at.visits)
            .then_with(|| self.is_held.cmp(&other.is_held))
            .then_with(|| compare(|at| at.leaves as f64))
            .then_with(|| Reverse(self.node).cmp(&Reverse(other.node)))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

/// The nodes to be merged.
///
/// A node that takes more than is left is passed by: another one may still fit. A node whose children are on another server stays
/// whole, for the fat root would send the read to the wrong memory.
fn merge(tree: &Tree, visits: &[f64], favour: &Favour, budget: &Budget) -> Vec<u32> {
    let candidate = |node, low| Candidate::new(tree, visits, favour, budget, node, low);
    let partitions = tree.partitions();
    let mut queue: BinaryHeap<_> =
        partitions.iter().filter(|p| p.node != NONE).map(|p| candidate(p.node, p.low)).collect();
    let lows: Vec<u64> = partitions.iter().map(|p| p.low).collect();
    let mut taken = Need::of_all(&lows, budget.range_match);
    let mut merged = Vec::new();
    while let Some(Candidate { node, low, need, .. }) = queue.pop() {
        let more = taken.plus(&need);
        if !tree.node(node).local || !budget.holds(&more) {
            continue;
        }
        taken = more;
        merged.push(node);
        for (at, child) in tree.children(node).iter().enumerate().filter(|(_, child)| child.node != NONE) {
            queue.push(candidate(child.node, if at == 0 { low } else { child.low }));
        }
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
            level: partition.level,
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
                let level = tree.node(child.node).level.saturating_sub(1);
                stack.push(Child { low, address: below.address, partition: index, node: below.node, level });
            }
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frequency::Frequencies;
    use crate::plan::RangeMatch;
    use crate::program::Target;
    use crate::test_support::arb_tops;
    use fatbtree_blink::{GlobalAddress, KeyRange, Partition, TopNode, TreeTop};
    use proptest::prelude::*;

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
            reads: Default::default(),
        };
        let tree = Tree::new(&[top]).unwrap();
        let samples = [(1, 10), (7, 20), (8, 10), (12, 2), (14, 15), (17, 3)];
        let frequencies = Frequencies::from_weighted(&tree, &samples);
        let budget = Budget { fat_root_ranges: 10, ..Budget::bmv2() };
        let FatRoot { children, tables, .. } =
            build(&tree, frequencies.expected(), &Favour::default(), &budget).unwrap();
        let lows: Vec<u64> = children.iter().map(|child| child.low).collect();
        assert_eq!(
            lows,
            [0, 7, 8, 9, 10, 11, 13, 14, 15, 16],
            "k7 k8 k9 k10 k11 k13 k14 k15 k16 are the pivots"
        );
        assert_eq!(children[0].address, 20, "the less visited side stays one child");
        assert_eq!(tables.entries_per_stage::<4>()[3], 10);
    }

    /// An inner node that does not fit its parent is not described, and no leaf either; a root may be a leaf.
    #[test]
    fn a_child_without_a_node_is_a_leaf_only_if_its_level_says_so() {
        let node =
            |address, level, children: &[(u64, u64)]| TopNode { address, level, children: children.to_vec() };
        let top = |id: u16, low, root_level, nodes: Vec<TopNode>| {
            let range = KeyRange { low, high: None };
            let root = GlobalAddress(u64::from(id) << 48 | 10);
            TreeTop { partition: Partition { id, range, root, root_level }, nodes, reads: Default::default() }
        };
        // Of the root's children one was read before it was split: it has a key of its sibling.
        let tops = [
            top(
                0,
                0,
                2,
                vec![
                    node(10, 2, &[(0, 20), (50, 21)]),
                    node(20, 1, &[(0, 100), (60, 101)]),
                    node(21, 1, &[(50, 102), (80, 103)]),
                ],
            ),
            top(1, 1000, 0, vec![]),
        ];
        let tree = Tree::new(&tops).unwrap();
        let frequencies = Frequencies::from_weighted(&tree, &[]);
        let kinds = |fat_root_ranges: usize| -> Vec<NodeKind> {
            let budget = Budget { fat_root_ranges, ..Budget::bmv2() };
            let fat_root = build(&tree, frequencies.expected(), &Favour::default(), &budget).unwrap();
            fat_root.children.iter().map(Child::kind).collect()
        };
        use NodeKind::{Inner, Leaf, Undescribed};
        assert_eq!(kinds(2), [Inner, Leaf], "the roots");
        assert_eq!(kinds(3), [Undescribed, Inner, Leaf]);
        assert_eq!(kinds(4), [Undescribed, Leaf, Leaf, Leaf]);
    }

    /// Two nodes that cannot both be merged: one with more visits and long pivots, one with fewer and short pivots.
    #[test]
    fn what_brings_more_for_its_rows_goes_first() {
        let node =
            |address, level, children: &[(u64, u64)]| TopNode { address, level, children: children.to_vec() };
        let top = TreeTop {
            partition: Partition { id: 0, range: KeyRange::ALL, root: GlobalAddress(10), root_level: 2 },
            nodes: vec![
                node(10, 2, &[(0, 20), (0x8000 << 48, 21)]),
                node(20, 1, &[(0, 30), (0x0001_0002_0003_0004, 31), (0x0002_0002_0003_0004, 32)]),
                node(21, 1, &[(0x8000 << 48, 33), (0x9000 << 48, 34), (0xa000 << 48, 35)]),
            ],
            reads: Default::default(),
        };
        let tree = Tree::new(&[top]).unwrap();
        let frequencies = Frequencies::from_weighted(&tree, &[(1, 10), (0x8000 << 48, 8)]);
        let lows = |rows: usize| {
            let budget = Budget {
                stage_rows: Some([rows, 6, 6, 4]),
                live_epochs: 1,
                ..Budget::compiled(Target::Tofino1)
            };
            let FatRoot { children, tables, .. } =
                build(&tree, frequencies.expected(), &Favour::default(), &budget).unwrap();
            (children.len(), tables.rows_per_stage::<STAGES>(budget.range_match))
        };
        assert_eq!(lows(5), (4, [4, 0, 0, 0]), "two more rows for 8 visits");
        assert_eq!(lows(7), (6, [7, 6, 6, 4]), "and three, besides others, for 10");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The fat root is full, and no fuller than it may be, by what its tables take.
        #[test]
        fn nothing_that_is_left_would_fit(
            tops in arb_tops(), samples in prop::collection::vec((any::<u64>(), 0u64..9), 0..100),
            ranges in 4usize..100, entries in 8usize..200, rows in prop::array::uniform4(8usize..160), exact in any::<bool>(),
        ) {
            let tree = Tree::new(&tops).unwrap();
            let frequencies = Frequencies::from_weighted(&tree, &samples);
            let range_match = if exact { RangeMatch::Exact } else { RangeMatch::OneSided };
            let budget = Budget {
                fat_root_ranges: ranges, stage_entries: entries, stage_rows: Some(rows), range_match, live_epochs: 1,
                ..Budget::bmv2()
            };
            let fat_root = build(&tree, frequencies.expected(), &Favour::default(), &budget);
            let Ok(FatRoot { children: found, tables, .. }) = fat_root else { return Ok(()) };
            let lows: Vec<u64> = found.iter().map(|child| child.low).collect();
            prop_assert!(budget.check_ranges(lows.len(), &tables, range_match).is_ok());
            for (at, child) in found.iter().enumerate().filter(|(_, child)| child.node != NONE) {
                if !tree.node(child.node).local {
                    continue;
                }
                let mut more = lows.clone();
                more.splice(at + 1..at + 1, tree.children(child.node).iter().skip(1).map(|child| child.low));
                let tables = RangeTables::build(&more, SLICE_BITS, STAGES);
                let need = Need::of_tables(more.len(), &tables, range_match);
                prop_assert!(!budget.holds(&need), "node {:#x} would fit", child.address);
            }
        }
    }
}
