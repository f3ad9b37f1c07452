//! The FatTree itself: switches, hosts, ports and links, all by arithmetic from k.

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;

use crate::address::MacAddress;

/// The largest k that the 10.pod.switch.host address scheme can number (10.k.x.y are the cores).
pub const MAX_K: u16 = 254;

/// Which of the (k/2)² core switches exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cores {
    /// Every one: the full FatTree, with k/2 aggregation switches in each pod.
    All,
    /// Only S_c, and in each pod only the aggregation switch that links to it (the paper's deployment, §IV-A).
    One,
}

/// The layer of a switch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// Top layer: one port to each pod.
    Core,
    /// Middle layer: k/2 ports down to its pod's edge switches, k/2 up to cores.
    Aggregation,
    /// Bottom layer: k/2 ports down to hosts, k/2 up to its pod's aggregation switches.
    Edge,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Core => "core",
            Self::Aggregation => "aggregation",
            Self::Edge => "edge",
        })
    }
}

/// Index of a switch in [`FatTree::switches`]: cores first, then aggregation, then edge switches, pod by pod.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct SwitchId(pub u32);

/// Index of a host in [`FatTree::hosts`]: pod by pod, edge by edge.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct HostId(pub u32);

/// One switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Switch {
    /// Its index in [`FatTree::switches`].
    pub id: SwitchId,
    /// Its layer.
    pub role: Role,
    /// Its pod; 0 for a core switch, which belongs to none.
    pub pod: u16,
    /// Its number among the switches of its role in its pod (cores: in the network), as in a *full* FatTree.
    pub index: u16,
    /// Its own address: 10.pod.(edge | k/2 + agg).1, cores 10.k.(j+1).(i+1). For people and logs; no route needs it.
    pub ip: Ipv4Addr,
}

impl Switch {
    /// `core-0`, `agg-1-0`, `edge-1-0`.
    pub fn name(&self) -> String {
        match self.role {
            Role::Core => format!("core-{}", self.index),
            Role::Aggregation => format!("agg-{}-{}", self.pod, self.index),
            Role::Edge => format!("edge-{}-{}", self.pod, self.index),
        }
    }
}

/// One host (a NIC port below an edge switch).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Its index in [`FatTree::hosts`].
    pub id: HostId,
    /// Its pod.
    pub pod: u16,
    /// Its edge switch's number in the pod.
    pub edge: u16,
    /// Its number at the edge switch, and the edge switch's port it is on.
    pub index: u16,
    /// IPv4 address; by default 10.pod.edge.(index + 2).
    pub ip: Ipv4Addr,
    /// MAC address; by default [`MacAddress::of_ip`] of the *default* IPv4 address.
    pub mac: MacAddress,
}

impl Host {
    /// `host-1-0-0`: pod, edge, index.
    pub fn name(&self) -> String {
        format!("host-{}-{}-{}", self.pod, self.edge, self.index)
    }
}

/// What a switch port is wired to.
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

/// One cable, seen from its upper end (for a host's cable: from the edge switch).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Link {
    /// The upper switch.
    pub upper: SwitchId,
    /// Its port.
    pub port: u16,
    /// The lower end.
    pub lower: Peer,
}

/// Why a network cannot be built.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TopologyError {
    /// k is odd.
    #[error(
        "k = {k} is odd: a FatTree wires half of every switch's ports up and half down; give an even k from 2 to {MAX_K}"
    )]
    OddK {
        /// What was asked for.
        k: u16,
    },
    /// k is out of range.
    #[error(
        "k = {k} is out of range: the address scheme 10.pod.switch.host has room for an even k from 2 to {MAX_K}"
    )]
    KOutOfRange {
        /// What was asked for.
        k: u16,
    },
    /// The chosen core does not exist.
    #[error("core {core} does not exist: a FatTree with k = {k} has cores 0 to {last}")]
    NoSuchCore {
        /// What was asked for.
        core: u32,
        /// The k.
        k: u16,
        /// The last core's number.
        last: u32,
    },
}

/// A FatTree of k-port switches with a chosen core switch S_c.
///
/// Ports are numbered 0..k. Core: port p leads to pod p. Aggregation: ports 0..k/2 lead to the pod's edge switches,
/// k/2.. to cores. Edge: ports 0..k/2 lead to hosts, k/2.. to the pod's aggregation switches. With [`Cores::One`] the
/// numbering stays that of the full network; ports whose peer does not exist are simply not wired.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FatTree {
    k: u16,
    cores: Cores,
    chosen: u16,
    switches: Vec<Switch>,
    hosts: Vec<Host>,
    readdressed: BTreeSet<HostId>,
}

impl FatTree {
    /// The full FatTree with S_c = `core-0`: (k/2)² cores, k pods of k/2 aggregation and k/2 edge switches, k³/4 hosts.
    ///
    /// # Errors
    /// k odd or not in 2..=[`MAX_K`].
    pub fn new(k: u16) -> Result<Self, TopologyError> {
        Self::build(k, Cores::All, 0)
    }

    /// The paper's network: only S_c = `core-0`, the k aggregation switches that link to it, all edge switches and hosts.
    ///
    /// For k = 4 these are 13 switches: 1 core, 4 aggregation, 8 edge.
    ///
    /// # Errors
    /// k odd or not in 2..=[`MAX_K`].
    pub fn spine(k: u16) -> Result<Self, TopologyError> {
        Self::build(k, Cores::One, 0)
    }

    /// A FatTree with the given cores and the given S_c (0..(k/2)²).
    ///
    /// # Errors
    /// k odd or not in 2..=[`MAX_K`]; no such core.
    pub fn build(k: u16, cores: Cores, chosen_core: u16) -> Result<Self, TopologyError> {
        if k % 2 == 1 {
            return Err(TopologyError::OddK { k });
        }
        if !(2..=MAX_K).contains(&k) {
            return Err(TopologyError::KOutOfRange { k });
        }
        let half = k / 2;
        let core_count = half * half; // at most 127² < 2^16
        if chosen_core >= core_count {
            return Err(TopologyError::NoSuchCore {
                core: chosen_core.into(),
                k,
                last: u32::from(core_count) - 1,
            });
        }
        let mut switches = Vec::new();
        let mut add = |role, pod: u16, index: u16, ip: [u16; 3]| {
            let octet = |n: u16| u8::try_from(n).expect("k <= 254 keeps every octet below 256");
            let id = SwitchId(u32::try_from(switches.len()).expect("at most 127² + 254² switches"));
            let ip = Ipv4Addr::new(10, octet(ip[0]), octet(ip[1]), octet(ip[2]));
            switches.push(Switch { id, role, pod, index, ip });
        };
        for core in 0..core_count {
            if cores == Cores::All || core == chosen_core {
                add(Role::Core, 0, core, [k, core / half + 1, core % half + 1]);
            }
        }
        for pod in 0..k {
            for agg in 0..half {
                if cores == Cores::All || agg == chosen_core / half {
                    add(Role::Aggregation, pod, agg, [pod, half + agg, 1]);
                }
            }
        }
        for pod in 0..k {
            for edge in 0..half {
                add(Role::Edge, pod, edge, [pod, edge, 1]);
            }
        }
        let mut hosts = Vec::new();
        for pod in 0..k {
            for edge in 0..half {
                for index in 0..half {
                    let ip = default_host_ip(pod, edge, index);
                    let id = HostId(u32::try_from(hosts.len()).expect("at most 254 · 127² hosts"));
                    hosts.push(Host { id, pod, edge, index, ip, mac: MacAddress::of_ip(ip) });
                }
            }
        }
        Ok(Self { k, cores, chosen: chosen_core, switches, hosts, readdressed: BTreeSet::new() })
    }

    /// Ports per switch.
    pub fn k(&self) -> u16 {
        self.k
    }

    /// k/2: edge switches per pod, hosts per edge switch.
    pub fn half(&self) -> u16 {
        self.k / 2
    }

    /// Which cores exist.
    pub fn cores(&self) -> Cores {
        self.cores
    }

    /// All switches, in [`SwitchId`] order.
    pub fn switches(&self) -> &[Switch] {
        &self.switches
    }

    /// All hosts, in [`HostId`] order.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
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
        let (role, numbers) = name.split_once('-')?;
        match (role, parse_numbers(numbers)?.as_slice()) {
            ("core", &[index]) => self.find_core(index),
            ("agg", &[pod, index]) => self.find_aggregation(pod, index),
            ("edge", &[pod, index]) => self.find_edge(pod, index),
            _ => None,
        }
    }

    /// The host called `name`, such as `host-1-0-0`.
    pub fn host_by_name(&self, name: &str) -> Option<&Host> {
        match *parse_numbers(name.strip_prefix("host-")?)?.as_slice() {
            [pod, edge, index] => self.find_host(pod, edge, index),
            _ => None,
        }
    }

    /// The host that owns this address.
    pub fn host_by_ip(&self, ip: Ipv4Addr) -> Option<&Host> {
        self.hosts.iter().find(|host| host.ip == ip)
    }

    /// S_c, where index packets turn round and the fat root is.
    pub fn chosen_core(&self) -> &Switch {
        self.find_core(self.chosen).expect("S_c exists in every network that build() accepts")
    }

    /// The aggregation switch of `pod` that links to S_c.
    ///
    /// # Panics
    /// When `pod` is not below k.
    pub fn spine_aggregation(&self, pod: u16) -> &Switch {
        self.find_aggregation(pod, self.chosen / self.half())
            .expect("every pod has an aggregation switch at S_c")
    }

    /// The edge switch that `host` hangs on.
    pub fn edge_of(&self, host: HostId) -> &Switch {
        let host = self.host(host);
        self.find_edge(host.pod, host.edge).expect("every host has its edge switch")
    }

    /// Whether index packets pass this switch: S_c, the aggregation switches that link to it, every edge switch.
    pub fn is_on_spine(&self, switch: SwitchId) -> bool {
        let switch = self.switch(switch);
        match switch.role {
            Role::Core => switch.index == self.chosen,
            Role::Aggregation => switch.index == self.chosen / self.half(),
            Role::Edge => true,
        }
    }

    /// What `port` of `switch` is wired to; `None` when nothing is.
    pub fn peer(&self, switch: SwitchId, port: u16) -> Option<Peer> {
        let half = self.half();
        let s = self.switch(switch);
        let to = |peer: Option<&Switch>, port| peer.map(|p| Peer::Switch { switch: p.id, port });
        match s.role {
            Role::Core => to(self.find_aggregation(port, s.index / half), half + s.index % half),
            Role::Aggregation if port < half => to(self.find_edge(s.pod, port), half + s.index),
            Role::Aggregation if port < self.k => to(self.find_core(s.index * half + (port - half)), s.pod),
            Role::Edge if port < half => self.find_host(s.pod, s.index, port).map(|h| Peer::Host(h.id)),
            Role::Edge if port < self.k => to(self.find_aggregation(s.pod, port - half), s.index),
            _ => None,
        }
    }

    /// The wired ports of a switch, in order.
    pub fn ports(&self, switch: SwitchId) -> impl Iterator<Item = (u16, Peer)> + '_ {
        (0..self.k).filter_map(move |port| Some((port, self.peer(switch, port)?)))
    }

    /// Every cable once, from the upper end, in switch and port order.
    pub fn links(&self) -> Vec<Link> {
        let mut links = Vec::new();
        for s in &self.switches {
            let down = if s.role == Role::Core { self.k } else { self.half() };
            for (port, lower) in self.ports(s.id).take_while(|(port, _)| *port < down) {
                links.push(Link { upper: s.id, port, lower });
            }
        }
        links
    }

    /// Gives a host other addresses than the scheme's. Whether they clash is [`crate::Cluster`]'s business.
    pub fn set_host_address(&mut self, host: HostId, ip: Ipv4Addr, mac: MacAddress) {
        let h = &mut self.hosts[host.0 as usize];
        (h.ip, h.mac) = (ip, mac);
        if ip == default_host_ip(h.pod, h.edge, h.index) {
            self.readdressed.remove(&host);
        } else {
            self.readdressed.insert(host);
        }
    }

    /// Hosts whose address is not the scheme's.
    pub(crate) fn readdressed(&self) -> impl Iterator<Item = HostId> + '_ {
        self.readdressed.iter().copied()
    }

    pub(crate) fn find_core(&self, index: u16) -> Option<&Switch> {
        let at = match self.cores {
            Cores::All => usize::from(index),
            Cores::One => usize::from(index.checked_sub(self.chosen)?),
        };
        self.switches.get(at).filter(|s| s.role == Role::Core && s.index == index)
    }

    pub(crate) fn find_aggregation(&self, pod: u16, index: u16) -> Option<&Switch> {
        let half = usize::from(self.half());
        let (cores, per_pod, offset) = match self.cores {
            Cores::All => (half * half, half, usize::from(index)),
            Cores::One => (1, 1, 0),
        };
        let found = self.switches.get(cores + usize::from(pod) * per_pod + offset);
        found.filter(|s| s.role == Role::Aggregation && s.pod == pod && s.index == index)
    }

    pub(crate) fn find_edge(&self, pod: u16, index: u16) -> Option<&Switch> {
        let half = usize::from(self.half());
        let edges = usize::from(self.k) * half;
        let at = self.switches.len() - edges + usize::from(pod) * half + usize::from(index);
        self.switches.get(at).filter(|s| s.role == Role::Edge && s.pod == pod && s.index == index)
    }

    fn find_host(&self, pod: u16, edge: u16, index: u16) -> Option<&Host> {
        let half = usize::from(self.half());
        let at = (usize::from(pod) * half + usize::from(edge)) * half + usize::from(index);
        self.hosts.get(at).filter(|h| h.pod == pod && h.edge == edge && h.index == index)
    }
}

fn default_host_ip(pod: u16, edge: u16, index: u16) -> Ipv4Addr {
    let octet = |n: u16| u8::try_from(n).expect("k <= 254 keeps every octet below 256");
    Ipv4Addr::new(10, octet(pod), octet(edge), octet(index + 2))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn networks() -> Vec<FatTree> {
        let mut all = Vec::new();
        for k in [2, 4, 6, 8, 16] {
            all.push(FatTree::new(k).unwrap());
            for core in 0..(k / 2) * (k / 2) {
                all.push(FatTree::build(k, Cores::One, core).unwrap());
            }
            all.push(FatTree::build(k, Cores::All, (k / 2) * (k / 2) - 1).unwrap());
        }
        all
    }

    #[test]
    fn counts_are_those_of_al_fares_and_of_the_paper() {
        let full = FatTree::new(4).unwrap();
        assert_eq!((full.switches().len(), full.hosts().len(), full.links().len()), (20, 16, 48));
        let spine = FatTree::spine(4).unwrap();
        assert_eq!((spine.switches().len(), spine.hosts().len(), spine.links().len()), (13, 16, 28));
        let two = FatTree::new(2).unwrap();
        assert_eq!((two.switches().len(), two.hosts().len(), two.links().len()), (5, 2, 6));
        assert_eq!(FatTree::new(48).unwrap().hosts().len(), 27_648);
        assert_eq!(FatTree::spine(MAX_K).unwrap().hosts().len(), 254 * 127 * 127);
    }

    #[test]
    fn bad_k_and_core_are_refused_with_reason() {
        for k in [1, 3, 5, 255] {
            assert_eq!(FatTree::new(k), Err(TopologyError::OddK { k }));
        }
        for k in [0, 256, 65_534] {
            assert_eq!(FatTree::spine(k), Err(TopologyError::KOutOfRange { k }));
        }
        assert!(FatTree::new(5).unwrap_err().to_string().contains("odd"));
        let error = FatTree::build(4, Cores::One, 4).unwrap_err();
        assert_eq!(error.to_string(), "core 4 does not exist: a FatTree with k = 4 has cores 0 to 3");
    }

    #[test]
    fn every_cable_has_two_ends_that_agree() {
        for tree in networks() {
            let mut hosts = BTreeSet::new();
            for s in tree.switches() {
                for (port, peer) in tree.ports(s.id) {
                    match peer {
                        Peer::Switch { switch, port: theirs } => {
                            assert_eq!(tree.peer(switch, theirs), Some(Peer::Switch { switch: s.id, port }));
                        }
                        Peer::Host(host) => {
                            assert!(hosts.insert(host));
                            assert_eq!((tree.edge_of(host).id, tree.host(host).index), (s.id, port));
                        }
                    }
                }
                assert_eq!(tree.peer(s.id, tree.k()), None);
                assert_eq!(tree.peer(s.id, u16::MAX), None);
            }
            assert_eq!(hosts.len(), tree.hosts().len());
        }
    }

    #[test]
    fn names_and_ids_find_their_way_back() {
        for tree in networks() {
            for s in tree.switches() {
                assert_eq!(tree.switch_by_name(&s.name()).map(|s| s.id), Some(s.id));
                assert_eq!(tree.switch(s.id), s);
            }
            for h in tree.hosts() {
                assert_eq!(tree.host_by_name(&h.name()).map(|h| h.id), Some(h.id));
                assert_eq!(tree.host_by_ip(h.ip).map(|h| h.id), Some(h.id));
            }
            for bad in [
                "",
                "core",
                "core-",
                "core-99999",
                "core-00",
                "agg-0",
                "agg-0-0-0",
                "host-0-0",
                "edge-0-x",
                "host-0-0-99",
            ] {
                assert!(tree.switch_by_name(bad).is_none() && tree.host_by_name(bad).is_none(), "{bad}");
            }
        }
    }

    #[test]
    fn addresses_follow_the_scheme_and_are_unique() {
        let tree = FatTree::new(4).unwrap();
        let ip = |name: &str| tree.switch_by_name(name).unwrap().ip.to_string();
        assert_eq!(ip("core-0"), "10.4.1.1");
        assert_eq!(ip("core-3"), "10.4.2.2");
        assert_eq!(ip("agg-2-1"), "10.2.3.1");
        assert_eq!(ip("edge-2-1"), "10.2.1.1");
        let host = tree.host_by_name("host-2-1-0").unwrap();
        assert_eq!(
            (host.ip.to_string().as_str(), host.mac.to_string().as_str()),
            ("10.2.1.2", "02:00:0a:02:01:02")
        );
        for tree in networks() {
            let ips: BTreeSet<_> =
                tree.hosts().iter().map(|h| h.ip).chain(tree.switches().iter().map(|s| s.ip)).collect();
            assert_eq!(ips.len(), tree.hosts().len() + tree.switches().len());
        }
    }

    #[test]
    fn spine_holds_exactly_the_switches_index_packets_pass() {
        for tree in networks() {
            let on = tree.switches().iter().filter(|s| tree.is_on_spine(s.id)).count();
            let (k, half) = (usize::from(tree.k()), usize::from(tree.half()));
            assert_eq!(on, 1 + k + k * half);

            for pod in 0..tree.k() {
                let core = Peer::Switch { switch: tree.chosen_core().id, port: pod };
                let agg = tree.spine_aggregation(pod);
                assert!(tree.ports(agg.id).any(|(_, peer)| peer == core));
            }
        }
    }
}
