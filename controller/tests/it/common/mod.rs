//! A small cluster with a plan.

use fatbtree_blink::{GlobalAddress, KeyRange, Partition, TopNode, TreeTop};
use fatbtree_controller::{Budget, Frequencies, Placement, Plan, Tree};
use fatbtree_topology::Cluster;

/// A tree of `leaves` leaves, `fanout` children per node.
pub(crate) fn top(id: u16, low: u64, leaves: u64, fanout: usize) -> TreeTop {
    let mut address = u64::from(id) << 48;
    let mut number = 0;
    // Now and then with a gap: siblings on both sides of it are no run.
    let mut fresh = || {
        number += 1;
        address += if number % 101 == 0 { 1024 } else { 512 };
        address
    };
    let mut level: Vec<(u64, u64)> = (0..leaves).map(|n| (low + n * 977, fresh())).collect();
    let (mut nodes, mut height) = (Vec::new(), 0);
    while level.len() > 1 {
        height += 1;
        let above = level.chunks(fanout).map(|children| {
            let node = TopNode { address: fresh(), level: height, children: children.to_vec() };
            let top = (node.low(), node.address);
            nodes.push(node);
            top
        });
        level = above.collect();
    }
    let range = KeyRange { low, high: None };
    let partition = Partition { id, range, root: GlobalAddress(level[0].1), root_level: height };
    TreeTop { partition, nodes, reads: Default::default() }
}

/// A plan for the cluster's servers, `leaves` leaves each.
pub(crate) fn plan(cluster: &Cluster, leaves: u64, budget: &Budget, samples: &[u64], epoch: u8) -> Plan {
    let tops: Vec<_> = cluster.servers().iter().map(|s| top(s.partition, s.low, leaves, 13)).collect();
    let tree = Tree::new(&tops).unwrap();
    let frequencies = Frequencies::from_keys(&tree, samples);
    Plan::new(cluster.tree(), &Placement::of(cluster), &tree, &frequencies, budget, epoch).unwrap()
}
