//! The way of a packet through the network.

use crate::fat_tree::{FatTree, HostId, Role, SwitchId};

/// One switch on a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hop {
    /// The switch.
    pub switch: SwitchId,
    /// Port the packet comes in by.
    pub in_port: u16,
    /// Port it leaves by.
    pub out_port: u16,
}

impl FatTree {
    /// The way of an index packet: first hop, up to S_c *even when the server is nearer*, and down.
    ///
    /// Always five switches; a switch may be there twice (client and server in one pod or on one edge switch).
    pub fn index_path(&self, from: HostId, to: HostId) -> Vec<Hop> {
        let mut climbing = true;
        self.walk(from, |tree, switch| {
            climbing &= tree.chosen_core().id != switch;
            let port = if climbing { tree.climb_port(switch) } else { tree.down_port(switch, to) };
            port.expect("index packets only pass switches of the spine, and S_c is above every host")
        })
    }

    /// The way of every other packet, by the tables of [`FatTree::routes`]: one, three or five switches.
    pub fn ordinary_path(&self, from: HostId, to: HostId) -> Vec<Hop> {
        self.walk(from, |tree, switch| tree.ordinary_port(tree.switch(switch), tree.host(to)))
    }

    fn walk(&self, from: HostId, mut port_at: impl FnMut(&Self, SwitchId) -> u16) -> Vec<Hop> {
        let mut hops = Vec::with_capacity(5);
        let mut next = Some((self.edge_of(from).id, self.host(from).index));
        while let Some((switch, in_port)) = next {
            let out_port = port_at(self, switch);
            hops.push(Hop { switch, in_port, out_port });
            next = self.next_switch(switch, out_port);
        }
        debug_assert!(hops.last().is_some_and(|hop| self.switch(hop.switch).role == Role::Edge));
        hops
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fat_tree::{Cores, Peer};

    fn names(tree: &FatTree, hops: &[Hop]) -> String {
        hops.iter().map(|h| tree.switch(h.switch).name()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn index_packets_always_turn_round_at_the_chosen_core() {
        for tree in
            [FatTree::new(4).unwrap(), FatTree::spine(6).unwrap(), FatTree::build(6, Cores::All, 5).unwrap()]
        {
            for a in tree.hosts() {
                for b in tree.hosts() {
                    let path = tree.index_path(a.id, b.id);
                    assert_eq!(path.len(), 5);
                    assert_eq!(path[2].switch, tree.chosen_core().id);
                    assert!(path.iter().all(|hop| tree.is_on_spine(hop.switch)));
                    let last = path[4];
                    assert_eq!(tree.peer(last.switch, last.out_port), Some(Peer::Host(b.id)));
                    for pair in path.windows(2) {
                        let wired = Peer::Switch { switch: pair[1].switch, port: pair[1].in_port };
                        assert_eq!(tree.peer(pair[0].switch, pair[0].out_port), Some(wired));
                    }
                }
            }
        }
    }

    #[test]
    fn ordinary_packets_take_the_short_way() {
        let tree = FatTree::spine(4).unwrap();
        let host = |name| tree.host_by_name(name).unwrap().id;
        let way = |a, b| names(&tree, &tree.ordinary_path(host(a), host(b)));
        assert_eq!(way("host-0-0-0", "host-0-0-1"), "edge-0-0");
        assert_eq!(way("host-0-0-0", "host-0-1-1"), "edge-0-0 agg-0-0 edge-0-1");
        assert_eq!(way("host-0-0-0", "host-3-1-1"), "edge-0-0 agg-0-0 core-0 agg-3-0 edge-3-1");
        let index = tree.index_path(host("host-0-0-0"), host("host-0-0-1"));
        assert_eq!(names(&tree, &index), "edge-0-0 agg-0-0 core-0 agg-0-0 edge-0-0");
    }

    #[test]
    fn the_full_network_spreads_ordinary_packets_over_cores() {
        let tree = FatTree::new(4).unwrap();
        let mut cores = std::collections::BTreeSet::new();
        for a in tree.hosts() {
            for b in tree.hosts().iter().filter(|b| b.pod != a.pod) {
                cores.insert(tree.ordinary_path(a.id, b.id)[2].switch);
            }
        }
        assert_eq!(cores.len(), 4);
    }
}
