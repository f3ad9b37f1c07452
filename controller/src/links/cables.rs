//! Watched and dead cables and switches, by the numbers that programs have for ports; the network has others.

use std::collections::BTreeSet;

use fatbtree_topology::{Cluster, Peer, SwitchId};

/// Switch and port of a cable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CableEnd {
    /// The switch.
    pub switch: SwitchId,
    /// The number by which its program knows the port.
    pub port: u16,
}

/// A cable between two switches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cable {
    /// One end.
    pub a: CableEnd,
    /// The other.
    pub b: CableEnd,
}

/// Dead cables and switches.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outages {
    /// Switches that cannot be told of anything.
    pub switches: BTreeSet<SwitchId>,
    /// Cables that do not carry frames both ways, as they were given to the monitor.
    pub cables: BTreeSet<Cable>,
}

/// The cables between a cluster's switches.
pub fn cables(cluster: &Cluster) -> Vec<Cable> {
    let end = |switch, port| CableEnd { switch, port: cluster.device_port(switch, port) };
    let cables = cluster.tree().links().into_iter().filter_map(|link| match link.lower {
        Peer::Switch { switch, port } => Some(Cable { a: end(link.upper, link.port), b: end(switch, port) }),
        Peer::Host(_) => None,
    });
    cables.collect()
}

impl Outages {
    /// Outages with the network's numbers of the ports.
    pub fn in_network(&self, cluster: &Cluster) -> fatbtree_topology::Outages {
        let port_of = |end: CableEnd| {
            let mut ports = cluster.tree().ports(end.switch).map(|(port, _)| port);
            let port = ports.find(|port| cluster.device_port(end.switch, *port) == end.port)?;
            Some((end.switch, port))
        };
        let links = self.cables.iter().filter_map(|cable| port_of(cable.a)).collect();
        fatbtree_topology::Outages { switches: self.switches.clone(), links }
    }
}
