//! The network as a plain graph: switches, hosts, ports and cables, whatever kind it was built as.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;

use crate::address::{MacAddress, Prefix};
use crate::route::Route;

/// Core switches of a fat tree that exist, and those of them that hold the fat root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cores {
    /// All (k/2)² core switches, and each holds the fat root.
    All,
    /// All core switches, but only this one holds the fat root: S_c of the paper (§IV-A).
    Chosen(u16),
    /// Only this one, and in each pod only the aggregation switch that links to it (the paper's deployment).
    One(u16),
}

impl Cores {
    /// Core switch that alone holds the fat root; `None` if all do.
    pub fn chosen(self) -> Option<u16> {
        match self {
            Self::All => None,
            Self::Chosen(core) | Self::One(core) => Some(core),
        }
    }
}

/// Kind of a network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One switch.
    Single,
    /// Two switches with a cable between them, both with hosts.
    Pair,
    /// Leaves with hosts, and spines that are wired to every leaf.
    LeafSpine {
        /// Leaves.
        leaves: u16,
        /// Spines.
        spines: u16,
    },
    /// A FatTree of k-port switches.
    FatTree {
        /// Ports per switch.
        k: u16,
        /// Core switches that exist.
        cores: Cores,
    },
}

impl Kind {
    /// Name in cluster files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Pair => "pair",
            Self::LeafSpine { .. } => "leaf-spine",
            Self::FatTree { .. } => "fat-tree",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single => f.write_str("one switch"),
            Self::Pair => f.write_str("two switches"),
            Self::LeafSpine { leaves, spines } => {
                write!(f, "leaf-spine of {leaves} leaves and {spines} spines")
            }
            Self::FatTree { k, cores } => {
                let which = if matches!(cores, Cores::One(_)) { "one core" } else { "full" };
                write!(f, "FatTree k = {k} ({which})")
            }
        }
    }
}

/// Role of a switch for index packets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Top of the network: fat root and one node set. The spines of a leaf-spine network are cores.
    Core,
    /// Middle of the network: two node sets.
    Aggregation,
    /// Switch with hosts: first hop, two node sets, last hop. The leaves of a leaf-spine network are edges.
    Edge,
    /// Switch with all functions: first hop, fat root, two node sets, last hop.
    Single,
    /// Switch with all functions and three node sets: a chip passes index packets twice, by ports in loopback mode.
    Folded,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Core, Self::Aggregation, Self::Edge, Self::Single, Self::Folded];

    /// Its node sets, in the order of a packet's way.
    pub fn sets(self) -> &'static [NodeSet] {
        match self {
            Self::Core => &[NodeSet::A],
            Self::Aggregation | Self::Edge | Self::Single => &[NodeSet::A, NodeSet::B],
            Self::Folded => &NodeSet::ALL,
        }
    }

    /// Whether hosts hang on such a switch.
    pub fn has_hosts(self) -> bool {
        matches!(self, Self::Edge | Self::Single | Self::Folded)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Core => "core",
            Self::Aggregation => "aggregation",
            Self::Edge => "edge",
            Self::Single => "single",
            Self::Folded => "folded",
        })
    }
}

/// One of a switch's node sets, in the order of a packet's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum NodeSet {
    /// The first, `node_set_a`.
    A,
    /// The second, `node_set_b`.
    B,
    /// The third, `node_set_c`.
    C,
}

impl NodeSet {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::A, Self::B, Self::C];

    /// The name in P4: `node_set_a`.
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "node_set_a",
            Self::B => "node_set_b",
            Self::C => "node_set_c",
        }
    }
}

/// Index of a switch in [`Network::switches`]: from the top of the network down.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct SwitchId(pub u32);

/// Index of a host in [`Network::hosts`]: switch by switch, port by port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct HostId(pub u32);

/// One switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Switch {
    /// Its index in [`Network::switches`].
    pub id: SwitchId,
    /// Its role.
    pub role: Role,
    /// Height above the hosts; the lowest switches are at 0. Cables lead from one tier to another.
    pub tier: u8,
    /// The group of switches that it stands with: its pod, or its own number where it has hosts; 0 at the top of the network.
    pub pod: u16,
    /// Its number among the switches of its role in its pod (cores: in the network), as in a *full* FatTree.
    pub index: u16,
    /// Its own address, which no route needs: 10.pod.(edge | k/2 + agg).1 and cores 10.k.(j+1).(i+1) in a fat tree; otherwise
    /// 10.number.0.1, spines 10.255.number.1.
    pub ip: Ipv4Addr,
    pub(crate) name: String,
}

impl Switch {
    /// `core-0`, `agg-1-0`, `edge-1-0`; `spine-0`, `leaf-1`; `switch-0`.
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// Its own MAC address.
    pub fn mac(&self) -> MacAddress {
        MacAddress::of_ip(self.ip)
    }
}

/// One host (a NIC port below a switch).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Its index in [`Network::hosts`].
    pub id: HostId,
    /// Its pod: its switch's.
    pub pod: u16,
    /// The switch it hangs on.
    pub edge: SwitchId,
    /// Its number at that switch, and the switch's port it is on.
    pub index: u16,
    /// IPv4 address; by default 10.pod.edge.(index + 2) in a fat tree, otherwise 10.switch.0.(index + 2).
    pub ip: Ipv4Addr,
    /// MAC address; by default [`MacAddress::of_ip`] of the *default* IPv4 address.
    pub mac: MacAddress,
    /// The number of its switch in its pod, where names have one.
    pub(crate) edge_in_pod: Option<u16>,
}

impl Host {
    /// `host-1-0-0`: pod, edge switch, number, in a fat tree; `host-1-0`: switch, number, in other networks.
    pub fn name(&self) -> String {
        format!("host-{}", self.numbers())
    }

    /// The numbers of its name: `1-0-0`.
    pub(crate) fn numbers(&self) -> String {
        match self.edge_in_pod {
            Some(edge) => format!("{}-{edge}-{}", self.pod, self.index),
            None => format!("{}-{}", self.pod, self.index),
        }
    }
}

/// Other end of a switch port's cable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Peer {
    /// A port of another switch.
    Switch {
        /// The other switch.
        switch: SwitchId,
        /// Its port.
        port: u16,
    },
    /// A host's NIC.
    Host(HostId),
}

/// One cable, seen from its upper end (for a host's cable: from the switch).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Link {
    /// The upper switch.
    pub upper: SwitchId,
    /// Its port.
    pub port: u16,
    /// The lower end.
    pub lower: Peer,
}

/// The ports of a switch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ports {
    /// Ports of the switch, wired or not.
    pub(crate) count: u16,
    /// The other end of each port that is wired.
    pub(crate) peers: Vec<Option<Peer>>,
    /// Prefixes of everything below the switch, except its own hosts.
    pub(crate) down: Vec<Route>,
    /// Ports that lead up, the one for ordinary packets first.
    pub(crate) up: Vec<u16>,
}

/// A network of switches and hosts, and the switches that hold the fat root.
///
/// It is a plain graph, whatever it was built as: [`Network::single`], [`Network::pair`], [`Network::leaf_spine`], or
/// [`Network::fat_tree`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Network {
    pub(crate) kind: Kind,
    pub(crate) switches: Vec<Switch>,
    pub(crate) hosts: Vec<Host>,
    /// Ports by switch.
    pub(crate) ports: Vec<Ports>,
    pub(crate) roots: Vec<SwitchId>,
    pub(crate) loopback_ports: Vec<u16>,
    readdressed: BTreeSet<HostId>,
    /// Further addresses of hosts with several clients: a block, and the number of addresses, the host's own among them.
    shared: BTreeMap<HostId, (Prefix, u16)>,
    unplugged: bool,
}

impl Network {
    /// Network without switches.
    pub(crate) fn empty(kind: Kind) -> Self {
        Self {
            kind,
            switches: Vec::new(),
            hosts: Vec::new(),
            ports: Vec::new(),
            roots: Vec::new(),
            loopback_ports: Vec::new(),
            readdressed: BTreeSet::new(),
            shared: BTreeMap::new(),
            unplugged: false,
        }
    }

    /// Kind of network that it was built as.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// All switches, in [`SwitchId`] order.
    pub fn switches(&self) -> &[Switch] {
        &self.switches
    }

    /// All hosts, in [`HostId`] order. Some may be [unplugged](Self::unplug).
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The switches that hold the fat root, where index packets turn round.
    pub fn roots(&self) -> &[SwitchId] {
        &self.roots
    }

    /// Ports in loopback mode of a [folded](Role::Folded) switch's device, by which index packets pass it a second time. Empty if it needs
    /// no
    /// second pass.
    pub fn loopback_ports(&self) -> &[u16] {
        &self.loopback_ports
    }

    /// Whether a switch holds the fat root.
    pub fn is_root(&self, switch: SwitchId) -> bool {
        self.roots.contains(&switch)
    }

    /// The switch with this id.
    ///
    /// # Panics
    /// When the id is another network's and does not exist here.
    pub fn switch(&self, id: SwitchId) -> &Switch {
        &self.switches[id.0 as usize]
    }

    /// The host with this id.
    ///
    /// # Panics
    /// When the id is another network's and does not exist here.
    pub fn host(&self, id: HostId) -> &Host {
        &self.hosts[id.0 as usize]
    }

    /// The switch called `name`, such as `agg-1-0`.
    pub fn switch_by_name(&self, name: &str) -> Option<&Switch> {
        self.switches.iter().find(|switch| switch.name == name)
    }

    /// The host called `name`, such as `host-1-0-0`.
    pub fn host_by_name(&self, name: &str) -> Option<&Host> {
        let numbers = parse_numbers(name.strip_prefix("host-")?)?;
        self.hosts.iter().find(|host| match host.edge_in_pod {
            Some(edge) => numbers == [host.pod, edge, host.index],
            None => numbers == [host.pod, host.index],
        })
    }

    /// The host that owns this address.
    pub fn host_by_ip(&self, ip: Ipv4Addr) -> Option<&Host> {
        self.hosts.iter().find(|host| host.ip == ip).or_else(|| {
            let is_owner = |(_, (block, count)): &(&HostId, &(Prefix, u16))| {
                let number = u32::from(ip).wrapping_sub(u32::from(block.address()));
                (1..u32::from(*count)).contains(&number)
            };
            self.shared.iter().find(is_owner).map(|(host, _)| self.host(*host))
        })
    }

    /// Number of addresses of a host: 1, or one for each client that shares it.
    pub fn address_count(&self, host: HostId) -> u16 {
        self.shared.get(&host).map_or(1, |(_, count)| *count)
    }

    /// Address number `n` of a host; number 0 is its own. The MAC address is the same for all.
    ///
    /// # Panics
    /// When the id is another network's, or the host has fewer addresses.
    pub fn address(&self, host: HostId, n: u16) -> Ipv4Addr {
        match self.shared.get(&host) {
            _ if n == 0 => self.host(host).ip,
            Some((block, count)) if n < *count => Ipv4Addr::from(u32::from(block.address()) + u32::from(n)),
            _ => panic!("host {} has no address number {n}", self.host(host).name()),
        }
    }

    /// Gives a host `count` addresses: its own, and further ones in the block, from number 1 on. The block holds as many.
    pub(crate) fn share(&mut self, host: HostId, block: Prefix, count: u16) {
        self.shared.insert(host, (block, count));
    }

    /// Blocks of further addresses, and their hosts.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (HostId, Prefix)> + '_ {
        self.shared.iter().map(|(host, (block, _))| (*host, *block))
    }

    /// The switch that `host` hangs on.
    ///
    /// # Panics
    /// When the id is another network's and does not exist here.
    pub fn edge_of(&self, host: HostId) -> &Switch {
        self.switch(self.host(host).edge)
    }

    /// The other end of `port` of `switch`; `None` if it is not wired.
    pub fn peer(&self, switch: SwitchId, port: u16) -> Option<Peer> {
        self.of(switch).peers.get(usize::from(port)).copied().flatten()
    }

    /// Number of ports of a switch, wired or not: they are numbered from 0.
    pub fn port_count(&self, switch: SwitchId) -> u16 {
        self.of(switch).count
    }

    /// The wired ports of a switch, in order.
    pub fn ports(&self, switch: SwitchId) -> impl Iterator<Item = (u16, Peer)> + '_ {
        (0..).zip(&self.of(switch).peers).filter_map(|(port, peer)| Some((port, (*peer)?)))
    }

    pub(crate) fn of(&self, switch: SwitchId) -> &Ports {
        &self.ports[switch.0 as usize]
    }

    /// Every cable once, from the upper end, in switch and port order.
    pub fn links(&self) -> Vec<Link> {
        let mut links = Vec::new();
        for s in &self.switches {
            let is_below = |peer: &Peer| match peer {
                Peer::Switch { switch, .. } => self.switch(*switch).tier < s.tier,
                Peer::Host(_) => true,
            };
            let down = self.ports(s.id).filter(|(_, peer)| is_below(peer));
            links.extend(down.map(|(port, lower)| Link { upper: s.id, port, lower }));
        }
        links
    }

    /// Gives a host other addresses than the scheme's. [`crate::Cluster`] checks whether they clash.
    pub fn set_host_address(&mut self, host: HostId, ip: Ipv4Addr, mac: MacAddress) {
        let is_default = ip == self.default_ip(host);
        let h = &mut self.hosts[host.0 as usize];
        (h.ip, h.mac) = (ip, mac);
        if is_default {
            self.readdressed.remove(&host);
        } else {
            self.readdressed.insert(host);
        }
    }

    /// Address of a host by the scheme, derived from that of its switch.
    pub(crate) fn default_ip(&self, host: HostId) -> Ipv4Addr {
        let host = self.host(host);
        Ipv4Addr::from(u32::from(self.switch(host.edge).ip) + 1 + u32::from(host.index))
    }

    /// Hosts whose address is not the scheme's.
    pub(crate) fn readdressed(&self) -> impl Iterator<Item = HostId> + '_ {
        self.readdressed.iter().copied()
    }

    pub(crate) fn is_readdressed(&self, host: HostId) -> bool {
        self.readdressed.contains(&host)
    }

    /// Takes out the cable at a port for good: what is behind it cannot be reached that way, and a host there does not exist.
    pub fn unplug(&mut self, switch: SwitchId, port: u16) {
        let other = match self.peer(switch, port) {
            None => None,
            Some(Peer::Switch { switch, port }) => Some((switch, port)),
            Some(Peer::Host(_)) => None,
        };
        for (switch, port) in [(switch, port)].into_iter().chain(other) {
            if let Some(peer) = self.ports[switch.0 as usize].peers.get_mut(usize::from(port)) {
                *peer = None;
                self.unplugged = true;
            }
        }
    }

    /// Whether a host has a cable.
    pub fn is_plugged_in(&self, host: HostId) -> bool {
        let Host { edge, index, .. } = *self.host(host);
        self.peer(edge, index) == Some(Peer::Host(host))
    }

    /// Whether any cable was taken out.
    pub(crate) fn is_unplugged(&self) -> bool {
        self.unplugged
    }

    /// Whether index packets may pass this switch: it holds the fat root, or is below one that does.
    pub fn carries_index(&self, switch: SwitchId) -> bool {
        self.is_root(switch)
            || self.of(switch).up.iter().any(|port| match self.peer(switch, *port) {
                Some(Peer::Switch { switch, .. }) => self.carries_index(switch),
                _ => false,
            })
    }

    // ---- building ----

    pub(crate) fn add_switch(
        &mut self,
        role: Role,
        tier: u8,
        name: String,
        ip: Ipv4Addr,
        count: u16,
    ) -> SwitchId {
        let id = SwitchId(u32::try_from(self.switches.len()).expect("at most 127² + 254² switches"));
        self.switches.push(Switch { id, role, tier, pod: 0, index: 0, ip, name });
        self.ports.push(Ports { count, ..Ports::default() });
        id
    }

    /// Adds hosts on ports from 0 on.
    pub(crate) fn add_hosts(&mut self, edge: SwitchId, count: u16, edge_in_pod: Option<u16>) {
        for index in 0..count {
            let id = HostId(u32::try_from(self.hosts.len()).expect("at most 254 · 127² hosts"));
            let (pod, unset) = (self.switch(edge).pod, Ipv4Addr::UNSPECIFIED);
            self.hosts.push(Host {
                id,
                pod,
                edge,
                index,
                ip: unset,
                mac: MacAddress::of_ip(unset),
                edge_in_pod,
            });
            let ip = self.default_ip(id);
            let host = &mut self.hosts[id.0 as usize];
            (host.ip, host.mac) = (ip, MacAddress::of_ip(ip));
            self.wire(edge, index, Peer::Host(id));
        }
    }

    /// Adds a cable from `upper` down to `lower`, below which are the addresses of this prefix.
    pub(crate) fn connect(&mut self, upper: (SwitchId, u16), lower: (SwitchId, u16), prefix: Prefix) {
        self.wire(upper.0, upper.1, Peer::Switch { switch: lower.0, port: lower.1 });
        self.wire(lower.0, lower.1, Peer::Switch { switch: upper.0, port: upper.1 });
        self.ports[upper.0.0 as usize].down.push(Route { prefix, port: upper.1 });
        self.ports[lower.0.0 as usize].up.push(lower.1);
    }

    fn wire(&mut self, switch: SwitchId, port: u16, peer: Peer) {
        let peers = &mut self.ports[switch.0 as usize].peers;
        let at = usize::from(port);
        peers.resize(peers.len().max(at + 1), None);
        peers[at] = Some(peer);
    }

    /// Finishes a wired network: puts ports in order, and lets the ordinary packets of a switch go up by its n-th way.
    pub(crate) fn finish(&mut self, first_way_up: impl Fn(&Switch) -> u16) {
        for (ports, switch) in self.ports.iter_mut().zip(&self.switches) {
            ports.down.sort_unstable_by_key(|route| route.port);
            ports.up.sort_unstable();
            if !ports.up.is_empty() {
                let first = usize::from(first_way_up(switch)) % ports.up.len();
                ports.up.rotate_left(first);
            }
        }
    }
}

/// `1-0-0` → `[1, 0, 0]`; only the canonical spelling, so that a name means one thing.
fn parse_numbers(text: &str) -> Option<Vec<u16>> {
    text.split('-')
        .map(|part| {
            let n: u16 = part.parse().ok()?;
            (n.to_string() == part).then_some(n)
        })
        .collect()
}
