//! Paths of packets, whatever is down.
//!
//! *Index packets* climb to one of the switches that hold the fat root, and go down from there; which one is up to their path number,
//! so all packets of one number keep their order. *Ordinary packets* take a shortest way; which of several is up to their destination.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::network::{HostId, Network, Peer, SwitchId};
use crate::outages::Outages;

/// Number of path numbers: the first hop gives each index packet one, from 0 to 63, by its connection.
pub const PATHS: u8 = 64;

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

/// Senders and receivers of index packets: a fat root is used where it reaches them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ends {
    /// Switches of memory servers.
    servers: BTreeSet<SwitchId>,
    /// Switches of clients.
    clients: BTreeSet<SwitchId>,
}

impl Ends {
    /// Ends at the switches of these memory servers and clients.
    ///
    /// # Panics
    /// When a host is another network's.
    pub fn new(
        network: &Network,
        servers: impl IntoIterator<Item = HostId>,
        clients: impl IntoIterator<Item = HostId>,
    ) -> Self {
        let edge = |host: HostId| network.edge_of(host).id;
        Self {
            servers: servers.into_iter().map(edge).collect(),
            clients: clients.into_iter().map(edge).collect(),
        }
    }
}

/// Paths of packets in a network of which something may be down.
#[derive(Clone, Debug)]
pub struct Routing<'a> {
    network: &'a Network,
    outages: Outages,
    /// Switches whose fat root is used.
    roots: Vec<SwitchId>,
    /// Number of cables from each switch to each switch with hosts; `None` where nothing is down.
    distances: Option<BTreeMap<SwitchId, Vec<u32>>>,
}

impl Network {
    /// Paths through the network during these outages, for these ends. Switches that are `unready` get no index packets to look up while
    /// others are there.
    ///
    /// A switch with the fat root is used when it is up and has the best connections over cables that are up. It must reach the most
    /// switches of
    /// memory servers; among equals, the most switches of clients must reach it.
    pub fn routing(&self, outages: &Outages, ends: &Ends, unready: &BTreeSet<SwitchId>) -> Routing<'_> {
        let mut routing = Routing::undisturbed(self);
        routing.outages = outages.clone();
        if routing.is_disturbed() {
            let edges = self.switches().iter().filter(|switch| switch.role.has_hosts());
            routing.distances =
                Some(edges.map(|switch| (switch.id, distances(self, outages, switch.id))).collect());
        }
        routing.roots = routing.usable_roots(ends, unready);
        routing
    }
}

impl<'a> Routing<'a> {
    /// Routing while everything that is wired is up.
    pub fn undisturbed(network: &'a Network) -> Self {
        if network.is_unplugged() {
            let mut routing = Self { network, outages: Outages::none(), roots: Vec::new(), distances: None };
            let edges = network.switches().iter().filter(|switch| switch.role.has_hosts());
            let none = Outages::none();
            routing.distances =
                Some(edges.map(|switch| (switch.id, distances(network, &none, switch.id))).collect());
            routing.roots = routing.usable_roots(&Ends::default(), &BTreeSet::new());
            return routing;
        }
        Self { network, outages: Outages::none(), roots: network.roots().to_vec(), distances: None }
    }

    /// The network.
    pub fn network(&self) -> &'a Network {
        self.network
    }

    /// The switches whose fat root is used, ascending: path p belongs to number p mod their count.
    pub fn roots(&self) -> &[SwitchId] {
        &self.roots
    }

    /// The switch at which index packets with this path number turn round; `None` if no fat root can be reached.
    pub fn root_of(&self, path: u8) -> Option<SwitchId> {
        let at = usize::from(path % PATHS).checked_rem(self.roots.len())?;
        self.roots.get(at).copied()
    }

    /// The port by which an index packet with this path number climbs from `switch`.
    ///
    /// `None` if the switch holds the fat root, or no way leads up to the fat root of this path.
    ///
    /// # Panics
    /// When the id is another network's.
    pub fn climb(&self, switch: SwitchId, path: u8) -> Option<u16> {
        let root = self.root_of(path)?;
        if self.network.is_root(switch) {
            return None;
        }
        self.port_up(switch, root)
    }

    /// The port that leads *down* from `switch` to `host`; `None` when the host is not below it, or something on the way is down.
    ///
    /// # Panics
    /// When an id is another network's.
    pub fn down_port(&self, switch: SwitchId, host: HostId) -> Option<u16> {
        let port = self.port_down(switch, host)?;
        match self.peer(switch, port)? {
            Peer::Host(found) => (found == host).then_some(port),
            Peer::Switch { switch, .. } => self.down_port(switch, host).map(|_| port),
        }
    }

    /// The port by which ordinary packets to `host` leave `switch`; `None` if the host's switch cannot be reached.
    ///
    /// # Panics
    /// When an id is another network's.
    pub fn ordinary_port(&self, switch: SwitchId, host: HostId) -> Option<u16> {
        let target = self.network.host(host);
        if target.edge == switch {
            return Some(target.index);
        }
        let first = self.usual_port(switch, host)?;
        let Some(distances) = &self.distances else { return Some(first) };
        let to = |switch: SwitchId| distances[&target.edge][switch.0 as usize];
        let here = to(switch);
        if here == UNREACHABLE {
            return None;
        }
        let is_nearer = |port: &u16| match self.peer(switch, *port) {
            Some(Peer::Switch { switch, .. }) => to(switch) < here,
            _ => false,
        };
        if is_nearer(&first) {
            return Some(first);
        }
        let ports: Vec<u16> = self.network.ports(switch).map(|(port, _)| port).filter(is_nearer).collect();
        ports.get((host.0 as usize).checked_rem(ports.len())?).copied()
    }

    /// The path of an index packet: first hop, up to a fat root *even when the server is nearer*, and down. `None` if it does not arrive.
    ///
    /// A switch may be there twice (client and server in one pod or on one switch).
    ///
    /// # Panics
    /// When an id is another network's.
    pub fn index_path(&self, from: HostId, to: HostId, path: u8) -> Option<Vec<Hop>> {
        let mut climbing = true;
        self.walk(from, to, |routing, switch| {
            climbing &= !routing.network.is_root(switch);
            if climbing { routing.climb(switch, path) } else { routing.down_port(switch, to) }
        })
    }

    /// The path of every other packet, as the tables of [`routes`](Self::routes) lead it. `None` if it does not arrive.
    ///
    /// # Panics
    /// When an id is another network's.
    pub fn ordinary_path(&self, from: HostId, to: HostId) -> Option<Vec<Hop>> {
        self.walk(from, to, |routing, switch| routing.ordinary_port(switch, to))
    }

    fn walk(
        &self,
        from: HostId,
        to: HostId,
        mut port_at: impl FnMut(&Self, SwitchId) -> Option<u16>,
    ) -> Option<Vec<Hop>> {
        let mut hops = Vec::with_capacity(5);
        let (mut switch, mut in_port) = (self.network.edge_of(from).id, self.network.host(from).index);
        self.peer(switch, in_port)?;
        while hops.len() <= 2 * self.network.switches().len() {
            let out_port = port_at(self, switch)?;
            hops.push(Hop { switch, in_port, out_port });
            match self.peer(switch, out_port)? {
                Peer::Switch { switch: next, port } => (switch, in_port) = (next, port),
                Peer::Host(host) => return (host == to).then_some(hops),
            }
        }
        None
    }

    // ---- one step ----

    /// Whether anything is down or not wired.
    pub(crate) fn is_disturbed(&self) -> bool {
        self.distances.is_some() || !self.outages.is_empty()
    }

    pub(crate) fn carries(&self, switch: SwitchId, port: u16) -> bool {
        self.outages.carries(self.network, switch, port)
    }

    /// The other end of a port, if packets arrive there.
    fn peer(&self, switch: SwitchId, port: u16) -> Option<Peer> {
        self.network.peer(switch, port).filter(|_| self.carries(switch, port))
    }

    /// Port by which ordinary packets go up: the switch's own one, or the next one that is up.
    pub(crate) fn way_up(&self, switch: SwitchId) -> Option<u16> {
        let up = &self.network.of(switch).up;
        up.iter().find(|port| self.carries(switch, **port)).or_else(|| up.first()).copied()
    }

    /// Port by which ordinary packets to a host leave where nothing is in their way.
    pub(crate) fn usual_port(&self, switch: SwitchId, host: HostId) -> Option<u16> {
        self.port_down(switch, host).or_else(|| self.way_up(switch))
    }

    /// Port that leads down to a host, if the host is below, whatever is down.
    fn port_down(&self, switch: SwitchId, host: HostId) -> Option<u16> {
        let found = self.network.host(host);
        if found.edge == switch {
            return Some(found.index);
        }
        let ip = self.network.default_ip(host);
        self.network.of(switch).down.iter().find(|route| route.prefix.contains(ip)).map(|route| route.port)
    }

    /// Port by which a way leads up to `root`.
    fn port_up(&self, switch: SwitchId, root: SwitchId) -> Option<u16> {
        let leads_there = |port: &u16| match self.peer(switch, *port) {
            Some(Peer::Switch { switch: above, .. }) => self.is_below(above, root),
            _ => false,
        };
        let mut up = self.network.of(switch).up.clone();
        up.sort_unstable();
        up.into_iter().find(leads_there)
    }

    /// Whether `root` can be reached from `switch` by going up only.
    pub(crate) fn is_below(&self, switch: SwitchId, root: SwitchId) -> bool {
        if switch == root {
            return !self.outages.switches.contains(&root);
        }
        self.network.switch(switch).tier < self.network.switch(root).tier
            && self.port_up(switch, root).is_some()
    }

    /// Whether a switch with hosts can be reached from `switch` by going down only.
    pub(crate) fn is_above(&self, switch: SwitchId, edge: SwitchId) -> bool {
        if switch == edge {
            return !self.outages.switches.contains(&edge);
        }
        let ip = self.network.switch(edge).ip;
        let port = self.network.of(switch).down.iter().find(|route| route.prefix.contains(ip));
        port.is_some_and(|route| match self.peer(switch, route.port) {
            Some(Peer::Switch { switch, .. }) => self.is_above(switch, edge),
            _ => false,
        })
    }

    fn usable_roots(&self, ends: &Ends, unready: &BTreeSet<SwitchId>) -> Vec<SwitchId> {
        let up = self.network.roots().iter().copied().filter(|root| !self.outages.switches.contains(root));
        let (ready, others): (Vec<SwitchId>, Vec<SwitchId>) = up.partition(|root| !unready.contains(root));
        let candidates = if ready.is_empty() { others } else { ready };
        let reached = |root: SwitchId| {
            let servers = ends.servers.iter().filter(|edge| self.is_above(root, **edge)).count();
            let clients = ends.clients.iter().filter(|edge| self.is_below(**edge, root)).count();
            (servers, clients)
        };
        let reached: Vec<_> = candidates.into_iter().map(|root| (reached(root), root)).collect();
        let most = reached.iter().map(|(reached, _)| *reached).max();
        reached.into_iter().filter(|(reached, _)| Some(*reached) == most).map(|(_, root)| root).collect()
    }
}

const UNREACHABLE: u32 = u32::MAX;

/// Number of cables to `edge` over what is up, by switch.
fn distances(network: &Network, outages: &Outages, edge: SwitchId) -> Vec<u32> {
    let mut distances = vec![UNREACHABLE; network.switches().len()];
    let mut next = VecDeque::new();
    if !outages.switches.contains(&edge) {
        distances[edge.0 as usize] = 0;
        next.push_back(edge);
    }
    while let Some(switch) = next.pop_front() {
        let away = distances[switch.0 as usize] + 1;
        for (port, peer) in network.ports(switch) {
            let Peer::Switch { switch: to, .. } = peer else { continue };
            let distance = &mut distances[to.0 as usize];
            if *distance == UNREACHABLE && outages.carries(network, switch, port) {
                *distance = away;
                next.push_back(to);
            }
        }
    }
    distances
}
