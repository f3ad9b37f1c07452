//! IPv4 routes per switch: prefixes down, one deterministic way up, and longer prefixes round what is down.

use std::net::Ipv4Addr;

use crate::address::Prefix;
use crate::network::{HostId, Network, Peer, SwitchId};
use crate::routing::Routing;

/// One longest-prefix-match route.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Route {
    /// Destinations.
    pub prefix: Prefix,
    /// Port they leave by.
    pub port: u16,
}

impl Network {
    /// The routes of one switch when nothing is down; see [`Routing::routes`].
    ///
    /// # Panics
    /// When the id is another network's.
    pub fn routes(&self, switch: SwitchId) -> Vec<Route> {
        Routing::undisturbed(self).routes(switch)
    }
}

impl Routing<'_> {
    /// The routes of one switch, longest prefixes last.
    ///
    /// Down: one prefix for all that is behind a port (10.pod.0.0/16 in a core switch of a fat tree, 10.pod.edge.0/24 in an
    /// aggregation switch), a /32 per host. Up: one default route, another one in each switch, so load is spread over the switches
    /// above, but a destination's path never changes (RC queue pairs want their packets in order).
    ///
    /// A host whose address was overridden has a /32 in every switch that would send its packets elsewhere, and so has a host that is
    /// reached
    /// another way because something is down. The further addresses of a host with several clients have one prefix. A route whose cable is down stays: packets to unreachable hosts end there, or pass if the
    /// cable
    /// was taken for dead by mistake.
    ///
    /// # Panics
    /// When the id is another network's.
    pub fn routes(&self, switch: SwitchId) -> Vec<Route> {
        let network = self.network();
        let up = self.way_up(switch).map(|port| Route { prefix: Prefix::new([0, 0, 0, 0].into(), 0), port });
        let mut routes: Vec<Route> = up.into_iter().chain(network.of(switch).down.iter().copied()).collect();
        routes.extend(network.ports(switch).filter_map(|(port, peer)| match peer {
            Peer::Host(host) => Some(Route { prefix: Prefix::new(network.host(host).ip, 32), port }),
            Peer::Switch { .. } => None,
        }));
        let elsewhere = |host: &HostId| network.host(*host).edge != switch;
        let mut exception = |host: HostId, port: Option<u16>| {
            let ip = network.host(host).ip;
            if let Some(port) = port.filter(|port| look_up(&routes, ip) != Some(*port)) {
                routes.retain(|route| route.prefix != Prefix::new(ip, 32));
                routes.push(Route { prefix: Prefix::new(ip, 32), port });
            }
        };
        if self.is_disturbed() {
            let all = network.hosts().iter().map(|host| host.id).filter(elsewhere);
            for host in all.filter(|host| network.is_plugged_in(*host)) {
                // One that cannot be reached goes where it always went, and ends there: by its prefix, or else in spite of it.
                let own = network.is_readdressed(host);
                let usual = || self.usual_port(switch, host).filter(|_| own);
                exception(host, self.ordinary_port(switch, host).or_else(usual));
            }
        } else {
            for host in network.readdressed().filter(elsewhere) {
                exception(host, self.usual_port(switch, host));
            }
        }
        for (host, prefix) in network.blocks() {
            let usual = || self.usual_port(switch, host);
            let port = self.ordinary_port(switch, host).or_else(usual);
            if let Some(port) = port.filter(|port| look_up(&routes, prefix.address()) != Some(*port)) {
                routes.push(Route { prefix, port });
            }
        }
        routes
    }
}

/// Port that the switch chooses from its table: the longest prefix wins.
pub(crate) fn look_up(routes: &[Route], ip: Ipv4Addr) -> Option<u16> {
    routes.iter().filter(|r| r.prefix.contains(ip)).max_by_key(|r| r.prefix.len()).map(|r| r.port)
}
