//! Hosts with a range of UDP ports, of which each client process takes one.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use std::net::{Ipv4Addr, SocketAddr};

use fatbtree_topology::{Cluster, HostId, Route, Wire};

/// Two memory servers and two clients in a fat tree with one core switch, with these lines for hosts.
fn file(hosts: &str) -> String {
    format!(
        "[network]\nk = 4\n[wires]\nfirst_port = 12000\n[[memory_server]]\nhost = \"host-0-0-0\"\ngrpc = \"localhost:1\"\n\
         [[memory_server]]\nhost = \"host-2-1-1\"\ngrpc = \"localhost:2\"\n[[client]]\nhost = \"host-1-0-0\"\n[[client]]\nhost = \"host-1-1-0\"\n{hosts}"
    )
}

fn host(name: &str, wire: &str) -> String {
    format!("[[host]]\nname = \"{name}\"\nwire = \"{wire}\"\n")
}

fn udp(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn client(cluster: &Cluster, n: usize) -> HostId {
    cluster.clients()[n].host
}

#[test]
fn each_seat_has_an_address_and_a_port() {
    let lines =
        [host("host-1-0-0", "udp:127.0.0.1:20000-20999"), host("host-1-1-0", "udp:127.0.0.2:7000-7002")];
    let cluster = Cluster::from_toml(&file(&lines.concat())).unwrap();
    let (first, second, tree) = (client(&cluster, 0), client(&cluster, 1), cluster.tree());
    assert_eq!(
        (cluster.seats(first), cluster.seats(second), cluster.seats(cluster.servers()[0].host)),
        (1000, 3, 1)
    );
    let Wire::Udp { remote: switch, .. } = cluster.host_wire(first).unwrap() else { panic!("a UDP port") };
    for (n, ip, port) in [(0, "10.1.0.2", 20_000), (1, "172.16.0.1", 20_001), (999, "172.16.3.231", 20_999)] {
        let seat = cluster.seat(first, n).unwrap();
        assert_eq!((seat.host.ip.to_string().as_str(), seat.host.mac), (ip, tree.host(first).mac));
        assert_eq!(seat.wire, Wire::Udp { local: udp(&format!("127.0.0.1:{port}")), remote: switch });
        assert_eq!(tree.host_by_ip(seat.host.ip).map(|host| host.id), Some(first));
    }
    // Blocks do not overlap, and hold no address that no seat has.
    assert_eq!(cluster.seat(second, 2).unwrap().host.ip, Ipv4Addr::new(172, 16, 4, 2));
    for stranger in
        [[172, 16, 0, 0], [172, 16, 3, 232], [172, 16, 4, 0], [172, 16, 4, 3], [172, 15, 255, 255]]
    {
        assert_eq!(tree.host_by_ip(stranger.into()), None, "{stranger:?}");
    }
    let edge = tree.edge_of(first).id;
    let wires = cluster.switch_wires(edge).unwrap();
    let Wire::Shared { local, clients } = &wires[0].1 else { panic!("{:?}", wires[0]) };
    assert_eq!((*local, clients.len()), (switch, 1000));
    assert_eq!(clients[7], (Ipv4Addr::new(172, 16, 0, 7), udp("127.0.0.1:20007")));
    // The wire of the other host there is as it was.
    assert!(matches!(wires[1].1, Wire::Udp { .. }));
}

#[test]
fn packets_to_every_seat_arrive_from_everywhere() {
    let cluster = Cluster::from_toml(&file(&host("host-1-0-0", "udp:127.0.0.1:20000-20099"))).unwrap();
    let (tree, host) = (cluster.tree(), client(&cluster, 0));
    let port_for = |routes: &[Route], ip: Ipv4Addr| {
        let found = routes.iter().filter(|route| route.prefix.contains(ip));
        found.max_by_key(|route| route.prefix.len()).map(|route| route.port)
    };
    for switch in tree.switches() {
        let routes = tree.routes(switch.id);
        let own = port_for(&routes, tree.host(host).ip);
        for n in [1, 50, 99] {
            assert_eq!(port_for(&routes, tree.address(host, n)), own, "{}", switch.name());
        }
    }
}

#[test]
fn ranges_that_cannot_be() {
    let refused = |lines: &str, reason: &str| {
        let error = Cluster::from_toml(&file(lines)).unwrap_err().to_string();
        assert!(
            error.contains("host[0].wire: ") && error.contains(reason),
            "expected {reason:?} in: {error}"
        );
    };
    for bad in ["20000-19999", "20000-", "-20000", "20000-24096", "0-7", "20000-20010-20020", "20000-65536"] {
        refused(&host("host-1-0-0", &format!("udp:127.0.0.1:{bad}")), "udp:ADDRESS:FIRST-LAST");
    }
    refused(&host("host-0-0-0", "udp:127.0.0.1:20000-20010"), "host-0-0-0 has no [[client]]");
    // The rule gives other ends ports of the range.
    refused(&host("host-1-0-0", "udp:127.0.0.1:11990-12001"), "clash of wires: UDP port 127.0.0.1:12000");
    let clash = host("host-1-0-0", "udp:127.0.0.1:20000-20010")
        + "[[host]]\nname = \"host-2-1-1\"\nip = \"172.16.0.5\"\n";
    refused(
        &clash,
        "172.16.0.5 already belongs to host-2-1-1, and the range of this wire needs 172.16.0.0/28",
    );
    // A switch's end is one port.
    let switch = file(
        "[[switch]]\nname = \"core-0\"\nwires = [\"udp:127.0.0.1:7000-7001\", \"udp\", \"udp\", \"udp\"]\n",
    );
    assert!(Cluster::from_toml(&switch).unwrap_err().to_string().contains("expected \"udp\""));
    // A range of one port is that port.
    let one = Cluster::from_toml(&file(&host("host-1-0-0", "udp:127.0.0.1:20000-20000"))).unwrap();
    assert_eq!(one.seats(client(&one, 0)), 1);
}
