//! Leaves of a radix tree as the planner takes them: as the leaves of a tree with 16 branches.
//!
//! ```text
//!   root ── 41 ── [00 leaf, 1c leaf, 39 leaf, …]          the index: nodes of up to 256 entries
//!
//!   level 2          ┌───────┴───────┐
//!   level 1     [00, 1c, 39]   [58, 70, 9a, c1]           for the switches: pivots and addresses of leaves
//! ```
//!
//! Nodes of this tree lie nowhere. Each is called by the address of a leaf below it: a read that goes no further
//! than that node ends at a leaf beside the key's, whose parent leads on.

use std::collections::BTreeSet;

use fatbtree_blink::{GlobalAddress, KeyRange, Partition, TopNode, TreeTop};
use fatbtree_dolphin::host::Place;

/// Branches of a node that a switch can hold.
const BRANCHES: usize = fatbtree_controller::MAX_BRANCHES;

/// A node that is being made: its first key, its address, and the leaves below it.
struct Made {
    low: u64,
    address: u64,
    leaves: std::ops::Range<usize>,
}

/// The tree over one server's leaves, which have the keys from `low` on. `None`: there are no leaves.
pub(super) fn top(server: u16, low: u64, places: &[Place]) -> Option<TreeTop> {
    let first_low = |at: usize| if at == 0 { low } else { places[at].low };
    let leaf = |at: usize| places[at].leaf.raw();
    let mut taken = BTreeSet::new();
    // An address that no other node has. There is one leaf or more for each node of the lowest level.
    let mut name = |leaves: &std::ops::Range<usize>, level: u8| {
        let own = leaves.clone().map(leaf).find(|address| taken.insert(*address));
        own.unwrap_or_else(|| leaf(leaves.start) + 64 * u64::from(level))
    };
    let (mut nodes, mut row) = (Vec::new(), Vec::new());
    // Leaves of one node of the index lie together, so that a read beside the key's leaf finds its parent.
    let mut at = 0;
    for of_one in places.chunk_by(|one, other| one.node == other.node) {
        for leaves in even(at..at + of_one.len()) {
            let (low, address) = (first_low(leaves.start), name(&leaves, 1));
            let children = leaves.clone().map(|at| (first_low(at), leaf(at))).collect();
            nodes.push(TopNode { address, level: 1, children });
            row.push(Made { low, address, leaves });
        }
        at += of_one.len();
    }
    let mut level = 1;
    while row.len() > 1 {
        level += 1;
        let mut above = Vec::new();
        for children in even(0..row.len()) {
            let children = &row[children];
            let leaves = children[0].leaves.start..children[children.len() - 1].leaves.end;
            let (low, address) = (children[0].low, name(&leaves, level));
            let children = children.iter().map(|child| (child.low, child.address)).collect();
            nodes.push(TopNode { address, level, children });
            above.push(Made { low, address, leaves });
        }
        row = above;
    }
    let root = GlobalAddress(row.first()?.address);
    // From the root down.
    nodes.sort_by_key(|node| (std::cmp::Reverse(node.level), node.children[0].0));
    let range = KeyRange { low, high: None };
    Some(TreeTop {
        partition: Partition { id: server, range, root, root_level: level },
        nodes,
        reads: Default::default(),
    })
}

/// Cuts a range into as few parts of up to 16 as will do, of about one size.
fn even(range: std::ops::Range<usize>) -> impl Iterator<Item = std::ops::Range<usize>> {
    let parts = range.len().div_ceil(BRANCHES);
    let bound = move |part: usize| range.start + part * range.len() / parts.max(1);
    (0..parts).map(move |part| bound(part)..bound(part + 1))
}

#[cfg(test)]
mod tests {
    use fatbtree_controller::{Budget, Frequencies, Placement, Plan, Tree};
    use fatbtree_topology::Network;

    use super::*;

    #[test]
    fn a_plan_with_room_leads_each_key_to_its_leaf() {
        let place = |at: u64| {
            let (leaf, node) =
                (GlobalAddress::new(0, 64 * (at + 1)), GlobalAddress::new(0, (1 << 20) | (at / 21)));
            Place { low: at * 10, high: at * 10 + 9, leaf, node }
        };
        let places: Vec<Place> = (0..3_000).map(place).collect();
        let top = top(0, 0, &places).unwrap();
        let names: BTreeSet<u64> = top.nodes.iter().map(|node| node.address).collect();
        assert_eq!(names.len(), top.nodes.len(), "each has an address of its own");
        assert!(top.nodes.iter().all(|node| node.children.len() <= BRANCHES));
        // 21 leaves of one node: two nodes of 10 and 11.
        assert_eq!(top.nodes.iter().filter(|node| node.level == 1).count(), 2 * 3_000_usize.div_ceil(21));
        let tree = Tree::new(&[top]).unwrap();
        let network = Network::pair(1).unwrap();
        let placement: Placement = [(0, network.hosts().last().unwrap().id)].into_iter().collect();
        let plan =
            Plan::new(&network, &placement, &tree, &Frequencies::none(&tree), &Budget::bmv2(), 1).unwrap();
        for key in 0..30_000 {
            assert_eq!(plan.resolve(key).address, places[key as usize / 10].leaf.raw(), "{key}");
        }
    }
}
