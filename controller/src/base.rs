//! Entries that every switch needs before any plan: routes, the ways up and down for index packets, the last hop, trusted ports, and its hosts'
//! neighbours.

use std::collections::{BTreeMap, BTreeSet};

use fatbtree_topology::{Cluster, Host, Network, Outages, PATHS, Peer, Routing, SwitchId};

use crate::plan::Placement;
use crate::tables::{
    Change, Entry, core_route, host_port, ipv4_route, last_hop, loopback_port, neighbor, partition_route,
    traffic_class, trunk_port, way_back,
};

/// The base entries of one switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// All but the default action of `core_route`; in key order.
    pub entries: Vec<Entry>,
    /// The default action of `core_route`.
    pub core_route: core_route::Action,
}

impl Base {
    /// Changes that bring an empty switch to these entries.
    ///
    /// A switch that holds the fat root is told to descend into the empty epoch 0, never to do nothing: an index packet must stop climbing
    /// there even before the first plan, or it would climb from the next switch down again and again until its TTL is used up.
    pub fn changes(&self) -> impl Iterator<Item = Change> + '_ {
        let entries = self.entries.iter().map(|entry| Change::Insert(*entry));
        entries.chain([Change::CoreRoute(self.core_route)])
    }
}

/// The base of every switch of a cluster when nothing is down, in its devices' own port numbers.
pub fn cluster_base(cluster: &Cluster) -> BTreeMap<SwitchId, Base> {
    cluster_base_during(cluster, &Outages::none(), &BTreeSet::new())
}

/// Base entries while something is down. Switches that are `unready` get no index packets to look up in their fat root, while others are there.
pub fn cluster_base_during(
    cluster: &Cluster,
    outages: &Outages,
    unready: &BTreeSet<SwitchId>,
) -> BTreeMap<SwitchId, Base> {
    let routing = cluster.tree().routing(outages, &cluster.ends(), unready);
    let mut bases = bases(&routing, &Placement::of(cluster), cluster.in_flight_port());
    for (switch, base) in &mut bases {
        let device = |port: &mut u16| *port = cluster.device_port(*switch, *port);
        for entry in &mut base.entries {
            match entry {
                Entry::Ipv4Route(_, action) => device(&mut action.port),
                Entry::PartitionRoute(_, action) => device(&mut action.port),
                Entry::LastHop(key, _) => device(&mut key.port),
                Entry::CoreRoute(_, action) => device(&mut action.port),
                Entry::TrunkPort(key, _) => device(&mut key.port),
                Entry::HostPort(key, _) => device(&mut key.port),
                Entry::WayBack(_, action) => device(&mut action.port),
                Entry::Neighbor(_, neighbor::Action::Host { port, .. }) if *port != neighbor::ELSEWHERE => {
                    device(port);
                }
                _ => {}
            }
        }
        base.entries.sort_unstable();
    }
    bases
}

/// The base of every switch of the network when nothing is down, in the network's port numbers.
pub fn base(topology: &Network, placement: &Placement, in_flight_port: u16) -> BTreeMap<SwitchId, Base> {
    bases(&Routing::undisturbed(topology), placement, in_flight_port)
}

fn bases(routing: &Routing<'_>, placement: &Placement, in_flight_port: u16) -> BTreeMap<SwitchId, Base> {
    let base = |switch| base_of(routing, placement, in_flight_port, switch);
    routing.network().switches().iter().map(|switch| (switch.id, base(switch.id))).collect()
}

fn base_of(routing: &Routing<'_>, placement: &Placement, in_flight_port: u16, switch: SwitchId) -> Base {
    let network = routing.network();
    let mut entries = Vec::new();
    for route in routing.routes(switch) {
        let key = ipv4_route::Key { prefix: route.prefix };
        entries.push(Entry::Ipv4Route(key, ipv4_route::Action { port: route.port }));
    }
    if network.carries_index(switch) {
        for (partition, host) in placement.iter() {
            if let Some(port) = routing.down_port(switch, host) {
                let key = partition_route::Key { partition };
                entries.push(Entry::PartitionRoute(key, partition_route::Action { port }));
            }
        }
    }
    for (port, peer) in network.ports(switch) {
        match peer {
            Peer::Host(host) => {
                let Host { mac, ip, .. } = *network.host(host);
                entries.push(Entry::LastHop(last_hop::Key { port }, last_hop::Action { in_flight_port }));
                entries.push(Entry::HostPort(host_port::Key { port }, host_port::Action { mac, ip }));
            }
            Peer::Switch { .. } => {
                entries.push(Entry::TrunkPort(trunk_port::Key { port }, trunk_port::Action));
            }
        }
    }
    for path in 0..PATHS {
        if let Some(port) = routing.climb(switch, path) {
            entries.push(Entry::CoreRoute(core_route::Key { path }, core_route::Climb { port }));
        }
    }
    entries.extend(second_pass(routing, placement, switch));
    entries.extend(neighbors(network, switch));
    entries.extend(CLASSES.map(|(dscp, class)| {
        Entry::TrafficClass(traffic_class::Key { dscp }, traffic_class::Action { class })
    }));
    entries.sort_unstable();
    let core_route = if network.is_root(switch) {
        core_route::Action::Descend { epoch: 0, sub_table: 0 }
    } else {
        core_route::Action::NoAction
    };
    Base { entries, core_route }
}

/// There and back by a folded switch's ports in loopback mode, over which paths are spread.
fn second_pass(routing: &Routing<'_>, placement: &Placement, switch: SwitchId) -> Vec<Entry> {
    let ports = routing.network().loopback_ports();
    let there = (0..PATHS).zip(ports.iter().cycle()).map(|(path, port)| {
        Entry::LoopbackPort(loopback_port::Key { path }, loopback_port::Action { port: *port })
    });
    let back = placement.iter().flat_map(|(partition, host)| {
        let port = routing.down_port(switch, host);
        ports.iter().zip(std::iter::repeat(port)).filter_map(move |(loopback_port, port)| {
            let key = way_back::Key { loopback_port: *loopback_port, partition };
            Some(Entry::WayBack(key, way_back::Action { port: port? }))
        })
    });
    there.chain(back).collect()
}

/// Code points and their queues, as RoCE is usually deployed: its packets in a queue that loses none (PFC), and notifications of congestion
/// before all others.
const CLASSES: [(u8, u8); 2] = [(26, 3), (48, 6)];

/// Owners of addresses, where there are hosts to tell: all hosts, and the switch itself.
fn neighbors(topology: &Network, switch: SwitchId) -> Vec<Entry> {
    let this = topology.switch(switch);
    if !this.role.has_hosts() {
        return Vec::new();
    }
    let here = |host| topology.edge_of(host).id == switch;
    let this_switch = neighbor::Action::ThisSwitch { mac: this.mac() };
    let hosts = topology.hosts().iter().map(|host| {
        let port = if here(host.id) { host.index } else { neighbor::ELSEWHERE };
        Entry::Neighbor(neighbor::Key { ip: host.ip }, neighbor::Action::Host { mac: host.mac, port })
    });
    hosts.chain([Entry::Neighbor(neighbor::Key { ip: this.ip }, this_switch)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fatbtree_topology::{Cores, HostId, IN_FLIGHT_PORT, Prefix};

    /// Follows an index packet by the tables alone.
    fn walk(
        topology: &Network,
        bases: &BTreeMap<SwitchId, Base>,
        from: HostId,
        partition: u16,
        path_number: u8,
    ) -> Vec<SwitchId> {
        let (mut at, mut climbing) = (topology.edge_of(from).id, true);
        let mut path = Vec::new();
        loop {
            path.push(at);
            assert!(path.len() <= 9, "loops");
            let base = &bases[&at];
            let down = base.entries.iter().find_map(|entry| match entry {
                Entry::PartitionRoute(key, action) if key.partition == partition => Some(action.port),
                _ => None,
            });
            let up = base.entries.iter().find_map(|entry| match entry {
                Entry::CoreRoute(key, action) if key.path == path_number => Some(action.port),
                _ => None,
            });
            let port = match base.core_route {
                _ if climbing && up.is_some() => up.expect("just seen"),
                core_route::Action::Descend { epoch: 0, sub_table: 0 } => {
                    climbing = false;
                    down.expect("a fat root knows every partition")
                }
                _ => down.expect("only switches above the partition are passed"),
            };
            match topology.peer(at, port).expect("a wired port") {
                Peer::Switch { switch, .. } => at = switch,
                Peer::Host(_) => {
                    let strip = Entry::LastHop(
                        last_hop::Key { port },
                        last_hop::Action { in_flight_port: IN_FLIGHT_PORT },
                    );
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
        let networks = [
            Network::one_core(4),
            Network::fat_tree(4, Cores::All),
            Network::fat_tree(4, Cores::Chosen(2)),
            Network::leaf_spine(3, 3, 6),
            Network::pair(8),
            Network::single(16),
            Network::folded(16, vec![128, 132]),
        ];
        let hosts = |topology: &Network, hosts: [usize; 3]| -> Placement {
            let named = [4, 9, 1].into_iter().zip(hosts).map(|(id, at)| (id, topology.hosts()[at].id));
            named.collect()
        };
        for topology in networks.map(Result::unwrap) {
            for placement in [hosts(&topology, [0, 1, 2]), hosts(&topology, [0, 15, 2])] {
                let (bases, routing) =
                    (base(&topology, &placement, IN_FLIGHT_PORT), Routing::undisturbed(&topology));
                for host in topology.hosts() {
                    for (partition, to) in placement.iter() {
                        for path in [0, 1, 5, 63] {
                            let hops = routing.index_path(host.id, to, path).unwrap();
                            let expected: Vec<_> = hops.iter().map(|hop| hop.switch).collect();
                            assert_eq!(walk(&topology, &bases, host.id, partition, path), expected);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn routes_go_round_what_is_down() {
        let (_, text) = Cluster::examples()[2];
        let cluster = Cluster::from_toml(text).unwrap();
        let id = |name| cluster.tree().switch_by_name(name).unwrap().id;
        let outages = Outages { switches: [id("spine-0")].into(), ..Outages::none() };
        let bases = cluster_base_during(&cluster, &outages, &BTreeSet::new());
        let leaf = &bases[&id("leaf-0")];
        let up = |entry: &&Entry| matches!(entry, Entry::CoreRoute(_, core_route::Climb { port: 3 }));
        assert_eq!(leaf.entries.iter().filter(up).count(), 64, "all climb to spine-1");
        let key = ipv4_route::Key { prefix: Prefix::new([0, 0, 0, 0].into(), 0) };
        assert!(leaf.entries.contains(&Entry::Ipv4Route(key, ipv4_route::Action { port: 3 })));
        let unready = cluster_base_during(&cluster, &Outages::none(), &[id("spine-0")].into());
        assert_eq!(unready[&id("leaf-0")].entries.iter().filter(up).count(), 64);
        assert!(unready[&id("leaf-0")].entries != leaf.entries, "ordinary packets still go there");
    }
}
