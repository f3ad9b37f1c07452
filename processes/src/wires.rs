//! From the cluster file's wires to ports, and a free seat for a client.

use std::io;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use fatbtree_port::{OpenError, PortSpec};
use fatbtree_topology::{Cluster, Host, HostId, SwitchId, Wire};

use crate::NodeError;

fn spec(wire: Wire) -> PortSpec {
    match wire {
        Wire::Udp { local, remote } => PortSpec::Udp { local, remote },
        Wire::Shared { local, clients } => PortSpec::SharedUdp { local, clients: clients.into() },
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

/// The port of a host; that of the first client where several have seats.
///
/// # Errors
/// When the cluster file does not say where it is.
pub fn host_port(cluster: &Cluster, host: HostId) -> Result<PortSpec, NodeError> {
    Ok(spec(cluster.host_wire(host)?))
}

/// Seat at which this process tries to begin: clients of one process do not try each other's.
static NEXT: AtomicU16 = AtomicU16::new(0);

/// Time between two looks for a free seat.
const PAUSE: Duration = Duration::from_millis(10);

/// Opens a client at a free seat of its host: `open` is given the host with the seat's address, and the seat's port. A host has one seat, or
/// as many as the cluster file gives it UDP ports (`wire = "udp:ADDRESS:FIRST-LAST"`).
///
/// While all are taken it waits, as long as `patience` lasts: a client that was dropped, or a process that ends, frees its seat soon.
///
/// # Errors
/// When no seat is free in that time, the cluster file does not say where the wire is, or `open` fails for another reason.
pub fn at_free_seat<T>(
    cluster: &Cluster,
    host: HostId,
    patience: Duration,
    mut open: impl FnMut(Host, PortSpec) -> Result<T, NodeError>,
) -> Result<T, NodeError> {
    let began = Instant::now();
    let seats = cluster.seats(host);
    loop {
        let first = NEXT.fetch_add(1, Ordering::Relaxed);
        for n in 0..seats {
            let seat = cluster.seat(host, (first % seats + n) % seats)?;
            let port = spec(seat.wire);
            let PortSpec::Udp { local, .. } = &port else { return open(seat.host, port) };
            // Opening a client takes much longer than this question. Another process may still be quicker in between.
            if UdpSocket::bind(local).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse) {
                continue;
            }
            match open(seat.host, port) {
                Err(NodeError::Port(OpenError::Udp { source, .. }))
                    if source.kind() == io::ErrorKind::AddrInUse => {}
                opened => return opened,
            }
        }
        if began.elapsed() >= patience {
            break;
        }
        std::thread::sleep(PAUSE.min(patience));
    }
    let (first, last) = (cluster.seat(host, 0)?.wire, cluster.seat(host, seats - 1)?.wire);
    let place = |wire| match wire {
        Wire::Udp { local, .. } => local.to_string(),
        _ => String::new(),
    };
    let host = cluster.tree().host(host).name();
    Err(NodeError::NoSeat { host, seats, first: place(first), last: place(last), waited: patience })
}
