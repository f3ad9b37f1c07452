//! What every switch needs before any plan: routes, the ways up and down for index packets, the last hop.

use std::collections::BTreeMap;

use fatbtree_topology::{Cluster, Network, Peer, Routing, SwitchId};

use crate::plan::Placement;
use crate::tables::{Change, Entry, core_route, ipv4_route, last_hop, partition_route};

/// The base entries of one switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// `ipv4_route`, `partition_route`, `last_hop`; in key order.
    pub entries: Vec<Entry>,
    /// The default action of `core_route`.
    pub core_route: core_route::Action,
}

impl Base {
    /// As changes of an empty switch.
    ///
    /// S_c is told to descend into the empty epoch 0, never to do nothing: an index packet must stop climbing there
    /// even before the first plan, or it would climb from the next switch down again and again until its TTL is used up.
    pub fn changes(&self) -> impl Iterator<Item = Change> + '_ {
        let entries = self.entries.iter().map(|entry| Change::Insert(*entry));
        entries.chain([Change::CoreRoute(self.core_route)])
    }
}

/// The base of every switch of a cluster, in its devices' own port numbers.
pub fn cluster_base(cluster: &Cluster) -> BTreeMap<SwitchId, Base> {
    let mut bases = base(cluster.tree(), &Placement::of(cluster));
    for (switch, base) in &mut bases {
        let device = |port: &mut u16| *port = cluster.device_port(*switch, *port);
        if let core_route::Action::Climb { port } = &mut base.core_route {
            device(port);
        }
        for entry in &mut base.entries {
            match entry {
                Entry::Ipv4Route(_, action) => device(&mut action.port),
                Entry::PartitionRoute(_, action) => device(&mut action.port),
                Entry::LastHop(key, _) => device(&mut key.port),
                _ => {}
            }
        }
        base.entries.sort_unstable();
    }
    bases
}

/// The base of every switch of the network, in the network's port numbers.
pub fn base(topology: &Network, placement: &Placement) -> BTreeMap<SwitchId, Base> {
    topology.switches().iter().map(|switch| (switch.id, base_of(topology, placement, switch.id))).collect()
}

fn base_of(topology: &Network, placement: &Placement, switch: SwitchId) -> Base {
    let mut entries = Vec::new();
    for route in topology.routes(switch) {
        let key = ipv4_route::Key { prefix: route.prefix };
        entries.push(Entry::Ipv4Route(key, ipv4_route::Action { port: route.port }));
    }
    let routing = Routing::undisturbed(topology);
    if topology.carries_index(switch) {
        for (partition, host) in placement.iter() {
            if let Some(port) = routing.down_port(switch, host) {
                let key = partition_route::Key { partition };
                entries.push(Entry::PartitionRoute(key, partition_route::Action { port }));
            }
        }
    }
    for (port, peer) in topology.ports(switch) {
        if matches!(peer, Peer::Host(_)) {
            entries.push(Entry::LastHop(last_hop::Key { port }, last_hop::Action));
        }
    }
    entries.sort_unstable();
    let core_route = if topology.is_root(switch) {
        core_route::Action::Descend { epoch: 0, sub_table: 0 }
    } else {
        routing
            .climb(switch, 0)
            .map_or(core_route::Action::NoAction, |port| core_route::Action::Climb { port })
    };
    Base { entries, core_route }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fatbtree_topology::{Cores, HostId};

    /// Follows an index packet by the tables alone.
    fn walk(
        topology: &Network,
        bases: &BTreeMap<SwitchId, Base>,
        from: HostId,
        partition: u16,
    ) -> Vec<SwitchId> {
        let (mut at, mut climbing) = (topology.edge_of(from).id, true);
        let mut path = Vec::new();
        loop {
            path.push(at);
            assert!(path.len() <= 5, "loops");
            let base = &bases[&at];
            let down = base.entries.iter().find_map(|entry| match entry {
                Entry::PartitionRoute(key, action) if key.partition == partition => Some(action.port),
                _ => None,
            });
            let port = match base.core_route {
                core_route::Action::Climb { port } if climbing => port,
                core_route::Action::Descend { epoch: 0, sub_table: 0 } => {
                    climbing = false;
                    down.expect("S_c knows every partition")
                }
                _ => down.expect("only switches above the partition are passed"),
            };
            match topology.peer(at, port).expect("a wired port") {
                Peer::Switch { switch, .. } => at = switch,
                Peer::Host(_) => {
                    let strip = Entry::LastHop(last_hop::Key { port }, last_hop::Action);
                    assert!(base.entries.contains(&strip));
                    return path;
                }
            }
        }
    }

    #[test]
    fn devices_have_port_numbers_of_their_own() {
        let text = Cluster::example_toml().replace("# ports = [132", "ports = [132");
        let cluster = Cluster::from_toml(&text).unwrap();
        let (plain, device) = (cluster_base(&Cluster::example()), cluster_base(&cluster));
        let core = cluster.tree().switch_by_name("core-0").unwrap().id;
        for (switch, base) in &device {
            assert_eq!(*switch != core, *base == plain[switch]);
        }
        let ports = |base: &Base| -> Vec<u16> {
            base.entries
                .iter()
                .filter_map(|entry| match entry {
                    Entry::Ipv4Route(_, action) => Some(action.port),
                    Entry::PartitionRoute(_, action) => Some(action.port),
                    _ => None,
                })
                .collect()
        };
        let mapped: Vec<u16> = ports(&plain[&core]).iter().map(|port| 132 + 8 * port).collect();
        assert_eq!(ports(&device[&core]), mapped);
    }

    #[test]
    fn index_packets_climb_turn_and_go_down() {
        let example = Cluster::example();
        let scattered: Placement = [(4, "host-0-0-0"), (9, "host-3-1-1"), (1, "host-0-1-0")]
            .into_iter()
            .map(|(partition, name)| (partition, example.tree().host_by_name(name).unwrap().id))
            .collect();
        for topology in [Network::one_core(4).unwrap(), Network::fat_tree(4, Cores::All).unwrap()] {
            for placement in [Placement::of(&example), scattered.clone()] {
                let (bases, routing) = (base(&topology, &placement), Routing::undisturbed(&topology));
                for host in topology.hosts() {
                    for (partition, to) in placement.iter() {
                        let expected: Vec<_> = routing
                            .index_path(host.id, to, 0)
                            .unwrap()
                            .iter()
                            .map(|hop| hop.switch)
                            .collect();
                        assert_eq!(walk(&topology, &bases, host.id, partition), expected);
                    }
                }
            }
        }
    }
}
