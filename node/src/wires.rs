//! From the cluster file's wires to ports.

use fatbtree_port::PortSpec;
use fatbtree_topology::{Cluster, HostId, SwitchId, Wire};

use crate::NodeError;

fn spec(wire: Wire) -> PortSpec {
    match wire {
        Wire::Udp { local, remote } => PortSpec::Udp { local, remote },
        Wire::Packet(interface) => PortSpec::Packet(interface),
        Wire::Dpdk(device) => PortSpec::Dpdk(device),
    }
}

/// The ports of a switch, each with the number by which the switch's program knows it.
///
/// # Errors
/// When the cluster file does not say where one of them is.
pub fn switch_ports(cluster: &Cluster, switch: SwitchId) -> Result<Vec<(u16, PortSpec)>, NodeError> {
    let wires = cluster.switch_wires(switch)?.into_iter();
    Ok(wires.map(|(port, wire)| (cluster.device_port(switch, port), spec(wire))).collect())
}

/// The port of a host.
///
/// # Errors
/// When the cluster file does not say where it is.
pub fn host_port(cluster: &Cluster, host: HostId) -> Result<PortSpec, NodeError> {
    Ok(spec(cluster.host_wire(host)?))
}
