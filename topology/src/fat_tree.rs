//! The fat tree of k-port switches (Al-Fares et al., SIGCOMM 2008), all by arithmetic from k.
//!
//! ```text
//!                  core-0 … core-((k/2)²-1)
//!        ┌───────────────┼───────────────┬───────────────┐
//!     agg-0-0         agg-1-0         agg-2-0         agg-3-0
//!     ┌──┴──┐         ┌──┴──┐         ┌──┴──┐         ┌──┴──┐
//!  edge-0-0 edge-0-1  …                                 edge-3-1
//!   ┌┴┐      ┌┴┐                                          ┌┴┐
//!  host-0-0-0 …                                       host-3-1-1
//! ```

use std::net::Ipv4Addr;

use crate::address::Prefix;
use crate::error::TopologyError;
use crate::network::{Cores, Kind, Network, Role, SwitchId};

/// The largest k that the 10.pod.switch.host address scheme can number (10.k.x.y are the cores).
pub const MAX_K: u16 = 254;

impl Network {
    /// A fat tree: (k/2)² cores, k pods of k/2 aggregation and k/2 edge switches, k³/4 hosts.
    ///
    /// Ports are numbered 0..k. Core: port p leads to pod p. Aggregation: ports 0..k/2 lead to the pod's edge switches,
    /// k/2.. to cores. Edge: ports 0..k/2 lead to hosts, k/2.. to the pod's aggregation switches. With [`Cores::One`] the
    /// numbering stays that of the full network; ports whose peer does not exist are simply not wired. For k = 4 that
    /// leaves 13 switches of 20: 1 core, 4 aggregation, 8 edge.
    ///
    /// Ordinary packets of edge switch e go up by aggregation switch e mod k/2, those of aggregation switches in pod p by
    /// their uplink p mod k/2.
    ///
    /// # Errors
    /// k odd or not in 2..=[`MAX_K`]; no such core.
    pub fn fat_tree(k: u16, cores: Cores) -> Result<Self, TopologyError> {
        if k % 2 == 1 {
            return Err(TopologyError::OddK { k });
        }
        if !(2..=MAX_K).contains(&k) {
            return Err(TopologyError::KOutOfRange { k });
        }
        let half = k / 2;
        let core_count = half * half; // at most 127² < 2^16
        if let Some(core) = cores.chosen().filter(|core| *core >= core_count) {
            return Err(TopologyError::NoSuchCore { core, k, last: core_count - 1 });
        }
        let only = match cores {
            Cores::One(core) => Some(core),
            Cores::All | Cores::Chosen(_) => None,
        };
        let mut network = Self::empty(Kind::FatTree { k, cores });
        let octet = |n: u16| u8::try_from(n).expect("k <= 254 keeps every octet below 256");
        let ip = |a: u16, b: u16, c: u16| Ipv4Addr::new(10, octet(a), octet(b), octet(c));
        let mut add = |role, pod: u16, index: u16| {
            let (tier, name, ip) = match role {
                Role::Core => (2, format!("core-{index}"), ip(k, index / half + 1, index % half + 1)),
                Role::Aggregation => (1, format!("agg-{pod}-{index}"), ip(pod, half + index, 1)),
                Role::Edge | Role::Single | Role::Folded => {
                    (0, format!("edge-{pod}-{index}"), ip(pod, index, 1))
                }
            };
            let id = network.add_switch(role, tier, name, ip, k);
            let switch = &mut network.switches[id.0 as usize];
            (switch.pod, switch.index) = (pod, index);
            id
        };
        let is_there = |core: u16| only.is_none_or(|only| only == core);
        let core_numbers: Vec<u16> = (0..core_count).filter(|core| is_there(*core)).collect();
        let cores_by_number: Vec<(u16, SwitchId)> =
            core_numbers.iter().map(|core| (*core, add(Role::Core, 0, *core))).collect();
        let of_pod: Vec<u16> = (0..half).filter(|agg| only.is_none_or(|only| only / half == *agg)).collect();
        let aggregations: Vec<(u16, u16, SwitchId)> = (0..k)
            .flat_map(|pod| of_pod.iter().map(move |agg| (pod, *agg)))
            .map(|(pod, agg)| (pod, agg, add(Role::Aggregation, pod, agg)))
            .collect();
        let edges: Vec<(u16, u16, SwitchId)> = (0..k)
            .flat_map(|pod| (0..half).map(move |edge| (pod, edge)))
            .map(|(pod, edge)| (pod, edge, add(Role::Edge, pod, edge)))
            .collect();
        for (_, index, edge) in &edges {
            network.add_hosts(*edge, half, Some(*index));
        }
        for (pod, agg, aggregation) in &aggregations {
            for (core, id) in cores_by_number.iter().filter(|(core, _)| core / half == *agg) {
                let prefix = Prefix::new(ip(*pod, 0, 0), 16);
                network.connect((*id, *pod), (*aggregation, half + core % half), prefix);
            }
            let first = usize::from(*pod) * usize::from(half);
            for (_, number, edge) in &edges[first..first + usize::from(half)] {
                let prefix = Prefix::new(ip(*pod, *number, 0), 24);
                network.connect((*aggregation, *number), (*edge, half + agg), prefix);
            }
        }
        let roots =
            cores_by_number.iter().filter(|(core, _)| cores.chosen().is_none_or(|only| only == *core));
        network.roots = roots.map(|(_, id)| *id).collect();
        network.finish(|switch| if switch.role == Role::Edge { switch.index } else { switch.pod });
        Ok(network)
    }

    /// The paper's network: a fat tree with S_c = `core-0` alone, the k aggregation switches that link to it, all edge switches and hosts.
    ///
    /// # Errors
    /// k odd or not in 2..=[`MAX_K`].
    pub fn one_core(k: u16) -> Result<Self, TopologyError> {
        Self::fat_tree(k, Cores::One(0))
    }
}
