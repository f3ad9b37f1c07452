//! The node sets of a network, as a plan knows them: a list of groups, and for each memory server the ones on its way.
//!
//! ```text
//!   Network::sets_to(host)  for each memory server ──► Groups   every group once, those that are passed earlier first
//!                                                        │
//!                                                        └──► of each partition: its groups, in the order of a packet's way
//! ```
//!
//! A group is a node set in several switches that hold the same: all fat roots, all aggregation switches of a pod, or one edge switch.
//! Roles may fold into fewer switches: only this list knows how many sets there are on a way.

use std::collections::BTreeSet;

use fatbtree_topology::{HostId, Network, NodeSet, Role, SetGroup};

/// The groups of a network with memory servers on some hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Groups {
    /// Those that are passed earlier first; of equals, by their switches.
    pub(super) all: Vec<SetGroup>,
    /// Positions in `all` by server, ascending.
    pub(super) of_servers: Vec<Vec<u16>>,
}

impl Groups {
    pub(super) fn new(network: &Network, servers: impl IntoIterator<Item = HostId>) -> Self {
        let ways: Vec<Vec<SetGroup>> = servers.into_iter().map(|host| network.sets_to(host)).collect();
        let placed = |way: &Vec<SetGroup>| way.iter().cloned().enumerate().collect::<Vec<_>>();
        let all: Vec<(usize, SetGroup)> =
            ways.iter().flat_map(placed).collect::<BTreeSet<_>>().into_iter().collect();
        let position = |group: (usize, &SetGroup)| {
            let at = all.iter().position(|(at, other)| (*at, other) == group).expect("it was put there");
            u16::try_from(at).expect("groups are fewer than hosts of a network that a cluster file describes")
        };
        let of_servers = ways.iter().map(|way| way.iter().enumerate().map(position).collect()).collect();
        Self { of_servers, all: all.into_iter().map(|(_, group)| group).collect() }
    }
}

/// Kinds of groups, each once, in the order of a packet's way: the layers of the paper.
pub(super) fn layers(groups: &[SetGroup]) -> Vec<(Role, NodeSet)> {
    let mut layers: Vec<(Role, NodeSet)> = Vec::new();
    for SetGroup { role, set, .. } in groups {
        if !layers.contains(&(*role, *set)) {
            layers.push((*role, *set));
        }
    }
    layers
}
