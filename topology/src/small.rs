//! Smaller networks than a fat tree: one switch, two, or leaves and spines.
//!
//! ```text
//!   switch-0          switch-0 ── switch-1          spine-0   spine-1
//!   ┌──┼──┐           ┌──┴──┐     ┌──┴──┐             │  ╲   ╱  │
//!  host-0-0 …        host-0-0 …  host-1-0 …         leaf-0     leaf-1
//!                                                    ┌┴┐        ┌┴┐
//!                                                  host-0-0 …  host-1-0 …
//! ```

use std::net::Ipv4Addr;

use crate::address::Prefix;
use crate::error::TopologyError;
use crate::network::{Kind, Network, Role, SwitchId};

/// Maximum number of hosts of a switch: its prefix 10.S.0.0/24 has no more addresses.
pub const MAX_HOSTS: u16 = 253;
/// Maximum number of leaves: their prefixes are 10.0.0.0/24 to 10.254.0.0/24.
pub const MAX_LEAVES: u16 = 255;
/// Maximum number of spines: their addresses are 10.255.0.1 to 10.255.254.1, and a leaf has no more than 512 ports.
pub const MAX_SPINES: u16 = 255;

impl Network {
    /// One switch, `switch-0`, that is everything at once; its hosts are on ports 0 to `hosts` - 1.
    ///
    /// # Errors
    /// Not 1 to [`MAX_HOSTS`] hosts.
    pub fn single(hosts: u16) -> Result<Self, TopologyError> {
        let mut network = Self::empty(Kind::Single);
        within("hosts", hosts, MAX_HOSTS)?;
        network.add_with_hosts(Role::Single, "switch", (0, 0), (hosts, hosts));
        network.roots = vec![SwitchId(0)];
        network.finish(|_| 0);
        Ok(network)
    }

    /// One switch in which index packets pass three node sets. A chip needs a second pass for that: `loopback_ports` are ports of its device
    /// in loopback mode, in pipes of their own. Hosts as with [`single`](Self::single).
    ///
    /// # Errors
    /// Not 1 to [`MAX_HOSTS`] hosts.
    pub fn folded(hosts: u16, loopback_ports: Vec<u16>) -> Result<Self, TopologyError> {
        let mut network = Self::single(hosts)?;
        network.switches[0].role = Role::Folded;
        network.loopback_ports = loopback_ports;
        Ok(network)
    }

    /// Two switches with hosts on ports 0 to `hosts` - 1 of each, and a cable between the ports behind. `switch-0` holds the fat root.
    ///
    /// # Errors
    /// Not 1 to [`MAX_HOSTS`] hosts.
    pub fn pair(hosts: u16) -> Result<Self, TopologyError> {
        let mut network = Self::empty(Kind::Pair);
        within("hosts", hosts, MAX_HOSTS)?;
        let root = network.add_with_hosts(Role::Single, "switch", (0, 1), (hosts, hosts + 1));
        let other = network.add_with_hosts(Role::Edge, "switch", (1, 0), (hosts, hosts + 1));
        network.connect((root, hosts), (other, hosts), prefix(1));
        network.roots = vec![root];
        network.finish(|_| 0);
        Ok(network)
    }

    /// Leaves with hosts on ports 0 to `hosts` - 1, and spines that each hold the fat root: port p of a spine leads to leaf p, port
    /// `hosts` + s of a leaf to spine s. Ordinary packets of leaf l go up by spine l mod `spines`.
    ///
    /// # Errors
    /// Not 1 to [`MAX_LEAVES`] leaves, [`MAX_SPINES`] spines, [`MAX_HOSTS`] hosts.
    pub fn leaf_spine(leaves: u16, spines: u16, hosts: u16) -> Result<Self, TopologyError> {
        let mut network = Self::empty(Kind::LeafSpine { leaves, spines });
        within("leaves", leaves, MAX_LEAVES)?;
        within("spines", spines, MAX_SPINES)?;
        within("hosts", hosts, MAX_HOSTS)?;
        for number in 0..spines {
            let ip = Ipv4Addr::new(10, 255, octet(number), 1);
            let id = network.add_switch(Role::Core, 1, format!("spine-{number}"), ip, leaves);
            network.switches[id.0 as usize].index = number;
        }
        for number in 0..leaves {
            let leaf = network.add_with_hosts(Role::Edge, "leaf", (number, 0), (hosts, hosts + spines));
            for spine in 0..spines {
                let upper = (SwitchId(spine.into()), number);
                network.connect(upper, (leaf, hosts + spine), prefix(number));
            }
        }
        network.roots = (0..spines).map(|spine| SwitchId(spine.into())).collect();
        network.finish(|switch| switch.pod);
        Ok(network)
    }

    /// Adds switch number `number`, with this many hosts and ports.
    fn add_with_hosts(
        &mut self,
        role: Role,
        what: &str,
        (number, tier): (u16, u8),
        (hosts, ports): (u16, u16),
    ) -> SwitchId {
        let ip = Ipv4Addr::new(10, octet(number), 0, 1);
        let id = self.add_switch(role, tier, format!("{what}-{number}"), ip, ports);
        self.switches[id.0 as usize].pod = number;
        self.add_hosts(id, hosts, None);
        id
    }
}

/// Prefix of all hosts below switch `number`.
fn prefix(number: u16) -> Prefix {
    Prefix::new(Ipv4Addr::new(10, octet(number), 0, 0), 24)
}

fn octet(number: u16) -> u8 {
    u8::try_from(number).expect("at most 255 switches of a kind")
}

fn within(what: &'static str, found: u16, most: u16) -> Result<(), TopologyError> {
    if (1..=most).contains(&found) { Ok(()) } else { Err(TopologyError::OutOfRange { what, found, most }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Peer;

    fn text(network: &Network, name: &str) -> String {
        let id = network.switch_by_name(name).unwrap().id;
        let peer = |peer| match peer {
            Peer::Switch { switch, port } => format!("{}.{port}", network.switch(switch).name()),
            Peer::Host(host) => network.host(host).name(),
        };
        network.ports(id).map(|(port, to)| format!("{port}:{}", peer(to))).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn wires_are_as_described() {
        let single = Network::single(2).unwrap();
        assert_eq!(text(&single, "switch-0"), "0:host-0-0 1:host-0-1");
        let pair = Network::pair(2).unwrap();
        assert_eq!(text(&pair, "switch-0"), "0:host-0-0 1:host-0-1 2:switch-1.2");
        assert_eq!(text(&pair, "switch-1"), "0:host-1-0 1:host-1-1 2:switch-0.2");
        let leaves = Network::leaf_spine(3, 2, 1).unwrap();
        assert_eq!(text(&leaves, "spine-1"), "0:leaf-0.2 1:leaf-1.2 2:leaf-2.2");
        assert_eq!(text(&leaves, "leaf-2"), "0:host-2-0 1:spine-0.2 2:spine-1.2");
        let names = |network: &Network| network.roots().iter().map(|id| network.switch(*id).name()).collect();
        let roots: [Vec<String>; 3] = [&single, &pair, &leaves].map(names);
        assert_eq!(roots, [vec!["switch-0"], vec!["switch-0"], vec!["spine-0", "spine-1"]]);
    }

    #[test]
    fn addresses_are_as_described() {
        let leaves = Network::leaf_spine(255, 255, 253).unwrap();
        let (last, spine) =
            (leaves.host_by_name("host-254-252").unwrap(), leaves.switch_by_name("spine-254"));
        assert_eq!((last.ip, leaves.edge_of(last.id).ip), ([10, 254, 0, 254].into(), [10, 254, 0, 1].into()));
        let spine = spine.unwrap();
        assert_eq!(
            (spine.ip, spine.mac().to_string().as_str()),
            ([10, 255, 254, 1].into(), "02:00:0a:ff:fe:01")
        );
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let error = |result: Result<Network, TopologyError>| result.unwrap_err().to_string();
        assert_eq!(error(Network::single(0)), "0 hosts: expected 1 to 253");
        assert_eq!(error(Network::pair(254)), "254 hosts: expected 1 to 253");
        assert_eq!(error(Network::leaf_spine(256, 1, 1)), "256 leaves: expected 1 to 255");
        assert_eq!(error(Network::leaf_spine(1, 0, 1)), "0 spines: expected 1 to 255");
    }
}
