//! IPv4 routes per switch: prefixes down, one deterministic way up.

use std::net::Ipv4Addr;

use crate::address::Prefix;
use crate::fat_tree::{Cores, FatTree, Host, HostId, Peer, Role, Switch, SwitchId};

/// One longest-prefix-match route.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Route {
    /// Destinations.
    pub prefix: Prefix,
    /// Port they leave by.
    pub port: u16,
}

impl FatTree {
    /// The routes of one switch, longest prefixes last.
    ///
    /// Down: a core has 10.pod.0.0/16 per pod, an aggregation switch 10.pod.edge.0/24 per edge switch, an edge switch a
    /// /32 per host. Up: one default route; edge switch e uses aggregation switch e mod k/2, and an aggregation switch
    /// in pod p its uplink p mod k/2, so load is spread over the cores but a destination's path never changes (RC queue
    /// pairs want their packets in order). With [`Cores::One`] there is only one way up.
    ///
    /// A host whose address was overridden has a /32 in every switch that would send it elsewhere.
    pub fn routes(&self, switch: SwitchId) -> Vec<Route> {
        let s = self.switch(switch);
        let mut routes = Vec::new();
        if let Some(port) = self.ordinary_up_port(s) {
            routes.push(Route { prefix: Prefix::new([0, 0, 0, 0].into(), 0), port });
        }
        let octet = |n: u16| u8::try_from(n).expect("k <= 254 keeps every octet below 256");
        match s.role {
            Role::Core => routes.extend(
                (0..self.k())
                    .map(|pod| Route { prefix: Prefix::new([10, octet(pod), 0, 0].into(), 16), port: pod }),
            ),
            Role::Aggregation => routes.extend((0..self.half()).map(|edge| Route {
                prefix: Prefix::new([10, octet(s.pod), octet(edge), 0].into(), 24),
                port: edge,
            })),
            Role::Edge => {}
        }
        routes.extend(self.ports(switch).filter_map(|(port, peer)| match peer {
            Peer::Host(host) => Some(Route { prefix: Prefix::new(self.host(host).ip, 32), port }),
            Peer::Switch { .. } => None,
        }));
        for host in self.readdressed().map(|host| self.host(host)) {
            let port = self.ordinary_port(s, host);
            if look_up(&routes, host.ip) != Some(port) {
                routes.push(Route { prefix: Prefix::new(host.ip, 32), port });
            }
        }
        routes
    }

    /// The port by which an index packet climbs from `switch` towards S_c; `None` in S_c itself and in switches that
    /// index packets never pass.
    pub fn climb_port(&self, switch: SwitchId) -> Option<u16> {
        let s = self.switch(switch);
        let (half, core) = (self.half(), self.chosen_core().index);
        match s.role {
            Role::Edge => Some(half + core / half),
            Role::Aggregation if self.is_on_spine(switch) => Some(half + core % half),
            Role::Aggregation | Role::Core => None,
        }
    }

    /// The port that leads *down* from `switch` to `host`; `None` when the host is not below it.
    pub fn down_port(&self, switch: SwitchId, host: HostId) -> Option<u16> {
        let (s, host) = (self.switch(switch), self.host(host));
        match s.role {
            Role::Core => Some(host.pod),
            Role::Aggregation => (s.pod == host.pod).then_some(host.edge),
            Role::Edge => ((s.pod, s.index) == (host.pod, host.edge)).then_some(host.index),
        }
    }

    /// The switch that `port` of `switch` leads to.
    pub(crate) fn next_switch(&self, switch: SwitchId, port: u16) -> Option<(SwitchId, u16)> {
        match self.peer(switch, port)? {
            Peer::Switch { switch, port } => Some((switch, port)),
            Peer::Host(_) => None,
        }
    }

    pub(crate) fn ordinary_port(&self, s: &Switch, host: &Host) -> u16 {
        self.down_port(s.id, host.id)
            .or_else(|| self.ordinary_up_port(s))
            .expect("a core switch reaches every host by going down")
    }

    fn ordinary_up_port(&self, s: &Switch) -> Option<u16> {
        let half = self.half();
        match (self.cores(), s.role) {
            (_, Role::Core) => None,
            (Cores::One, _) => self.climb_port(s.id),
            (Cores::All, Role::Edge) => Some(half + s.index % half),
            (Cores::All, Role::Aggregation) => Some(half + s.pod % half),
        }
    }
}

/// What a switch does with the table: the longest prefix wins.
fn look_up(routes: &[Route], ip: Ipv4Addr) -> Option<u16> {
    routes.iter().filter(|r| r.prefix.contains(ip)).max_by_key(|r| r.prefix.len()).map(|r| r.port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::MacAddress;

    fn check_all_pairs(tree: &FatTree) {
        let tables: Vec<_> = tree.switches().iter().map(|s| tree.routes(s.id)).collect();
        for a in tree.hosts() {
            for b in tree.hosts() {
                let mut at = tree.edge_of(a.id).id;
                let mut hops = Vec::new();
                loop {
                    let port = look_up(&tables[at.0 as usize], b.ip).expect("every table has a route");
                    hops.push((at, port));
                    assert!(hops.len() <= 5, "{} to {} loops", a.name(), b.name());
                    match tree.peer(at, port).expect("routes use wired ports") {
                        Peer::Switch { switch, .. } => at = switch,
                        Peer::Host(host) => {
                            assert_eq!(host, b.id);
                            break;
                        }
                    }
                }
                let path: Vec<_> =
                    tree.ordinary_path(a.id, b.id).iter().map(|h| (h.switch, h.out_port)).collect();
                assert_eq!(path, hops, "path and tables agree");
            }
        }
    }

    #[test]
    fn tables_lead_every_host_to_every_host() {
        for k in [2, 4, 6] {
            check_all_pairs(&FatTree::new(k).unwrap());
            for core in 0..(k / 2) * (k / 2) {
                check_all_pairs(&FatTree::build(k, Cores::One, core).unwrap());
            }
        }
    }

    #[test]
    fn an_overridden_address_is_reached_from_everywhere() {
        let mut tree = FatTree::new(4).unwrap();
        let host = tree.host_by_name("host-2-1-0").unwrap().id;
        // An address inside another pod's prefix: the /32 must win over 10.0.0.0/16.
        tree.set_host_address(host, Ipv4Addr::new(10, 0, 0, 99), MacAddress([2, 0, 0, 0, 0, 1]));
        check_all_pairs(&tree);
    }

    #[test]
    fn routes_are_few_and_as_expected() {
        let tree = FatTree::spine(4).unwrap();
        let text = |name: &str| {
            let routes = tree.routes(tree.switch_by_name(name).unwrap().id);
            routes.iter().map(|r| format!("{}>{}", r.prefix, r.port)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(text("core-0"), "10.0.0.0/16>0 10.1.0.0/16>1 10.2.0.0/16>2 10.3.0.0/16>3");
        assert_eq!(text("agg-1-0"), "0.0.0.0/0>2 10.1.0.0/24>0 10.1.1.0/24>1");
        assert_eq!(text("edge-1-1"), "0.0.0.0/0>2 10.1.1.2/32>0 10.1.1.3/32>1");
    }
}
