//! Every kind of bad cluster file is refused with line, column, field and reason (docs/src/invariants.md "Bad input"), and good ones are read.

use std::collections::BTreeMap;

use fatbtree_topology::{
    Cluster, ClusterProblem as Problem, Cores, KeyKind, Kind, MacAddress, Named, NoWire, Peer, Role, Wire,
};

const GOOD: &str = r#"[network]
k = 4

[[memory_server]]
host = "host-0-0-0"
grpc = "localhost:1"

[[memory_server]]
host = "host-2-1-1"
grpc = "localhost:2"

[[client]]
host = "host-1-0-0"
"#;

/// Refuses `text`: the rendered error begins with the place and field, and contains the reason.
#[track_caller]
fn refused(text: &str, place_and_field: &str, reason: &str) -> Problem {
    let error = Cluster::from_toml(text).expect_err("must be refused");
    let message = error.to_string();
    assert!(message.starts_with(place_and_field), "expected {place_and_field:?} first in: {message}");
    assert!(message.contains(reason), "expected {reason:?} in: {message}");
    error.problem
}

fn good_but(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from:?} is not in the file");
    GOOD.replacen(from, to, 1)
}

#[test]
fn a_good_file_is_read() {
    let cluster = Cluster::from_toml(GOOD).unwrap();
    assert_eq!(cluster.tree().kind(), Kind::FatTree { k: 4, cores: Cores::One(0) });
    assert_eq!(cluster.tree().roots(), [cluster.tree().switch_by_name("core-0").unwrap().id]);
    let parts: Vec<_> = cluster.servers().iter().map(|s| (s.partition, s.low, s.high)).collect();
    assert_eq!(parts, [(0, 0, (1 << 63) - 1), (1, 1 << 63, u64::MAX)], "divided evenly");
    assert_eq!(cluster.server_of_key((1 << 63) - 1).partition, 0);
    assert_eq!(cluster.server_of_key(1 << 63).partition, 1);
    assert_eq!(cluster.clients()[0].name, "host-1-0-0");
    let core = cluster.p4runtime(cluster.tree().roots()[0]);
    assert_eq!((core.address.as_str(), core.device_id), ("127.0.0.1:9559", 1));
}

#[test]
fn the_example_file_is_read_whole() {
    let cluster = Cluster::example();
    assert_eq!(cluster.tree().switches().len(), 13);
    assert_eq!(cluster.servers().len(), 4);
    assert_eq!(cluster.server(3).map(|s| (s.low, s.high)), Some((0xc000_0000_0000_0000, u64::MAX)));
    assert_eq!(cluster.server_of_key(0x7fff_ffff_ffff_ffff).partition, 1);
    assert_eq!(cluster.server_of_key(u64::MAX).partition, 3);
    assert_eq!(cluster.clients()[1].name, "loader");
    let loader = cluster.tree().host(cluster.clients()[1].host);
    assert_eq!(
        (loader.ip.to_string().as_str(), loader.mac),
        ("10.2.1.200", MacAddress([2, 0, 10, 2, 1, 0xc8]))
    );
}

#[test]
fn lows_may_come_in_any_order_and_spelling() {
    let text = "[network]\nk = 2\n[[memory_server]]\nhost = 'host-1-0-0'\ngrpc = 'localhost:1'\nlow = '1_000'\npartition = 7\n\
                [[memory_server]]\nhost = 'host-0-0-0'\ngrpc = 'localhost:2'\nlow = 0\nhigh = '0x3e7'\npartition = 3\n";
    let cluster = Cluster::from_toml(text).unwrap();
    let parts: Vec<_> = cluster.servers().iter().map(|s| (s.partition, s.low, s.high)).collect();
    assert_eq!(parts, [(3, 0, 999), (7, 1000, u64::MAX)]);
}

#[test]
fn what_is_not_toml_or_unknown() {
    refused("[network\nk = 4", "line 1, column 9", "");
    refused(
        &good_but("k = 4", "k = 4\nspeed = 100"),
        "line 3, column 1, network.speed",
        "unknown field `speed`",
    );
    refused(
        &good_but("grpc = \"localhost:2\"", "grpc = \"localhost:2\"\nport = 3"),
        "line 11, column 1, memory_server[1].port",
        "unknown",
    );
    refused(&good_but("[[client]]", "[[clinet]]"), "line 12, column 3, clinet[0]", "unknown field `clinet`");
    refused(&good_but("k = 4", "k = \"four\""), "line 2, column 5, network.k", "expected i64");
    refused(
        &good_but("k = 4", "k = 4\ncores = \"some\""),
        "line 3, column 9, network.cores",
        "unknown variant `some`",
    );
    refused(
        &good_but("grpc = \"localhost:1\"\n", ""),
        "line 4, column 1, memory_server[0]",
        "missing field `grpc`",
    );
    refused("", "line 1, column 1", "missing field `network`");
}

#[test]
fn an_impossible_network() {
    refused(&good_but("k = 4", "k = 5"), "line 2, column 5, network.k", "k = 5 is odd");
    refused(&good_but("k = 4", "k = 0"), "line 2, column 5, network.k", "from 2 to 254");
    refused(&good_but("k = 4", "k = 256"), "line 2, column 5, network.k", "from 2 to 254");
    refused(&good_but("k = 4", "k = -4"), "line 2, column 5, network.k", "-4 is out of range");
    refused(&good_but("k = 4", "k = 4\ncore = 4"), "line 3, column 8, network.core", "cores 0 to 3");
    refused(&good_but("k = 4", "k = 4\ncore = -1"), "line 3, column 8, network.core", "out of range");
}

#[test]
fn unknown_names() {
    refused(
        &good_but("host-2-1-1", "host-2-1-2"),
        "line 9, column 8, memory_server[1].host",
        "host-0-0-0 to host-3-1-1",
    );
    refused(&good_but("host-1-0-0", "nobody"), "line 13, column 8, client[0].host", "no host \"nobody\"");
    let host = format!("{GOOD}[[host]]\nname = \"host-4-0-0\"\n");
    refused(&host, "line 15, column 8, host[0].name", "no host");
    let switch = format!("{GOOD}[[switch]]\nname = \"agg-0-1\"\n");
    refused(&switch, "line 15, column 8, switch[0].name", "core-0 to edge-3-1");
}

#[test]
fn two_roles_on_a_host() {
    let problem = refused(
        &good_but("host-1-0-0", "host-0-0-0"),
        "line 13, column 8, client[0].host",
        "host-0-0-0 is already a memory server (line 5)",
    );
    assert!(matches!(problem, Problem::TwoRoles { .. }));
    refused(
        &good_but("host-2-1-1", "host-0-0-0"),
        "line 9, column 8, memory_server[1].host",
        "already a memory server",
    );
    let twice = format!("{GOOD}[[client]]\nhost = \"host-1-0-0\"\n");
    refused(&twice, "line 15, column 8, client[1].host", "already a client (line 13)");
}

#[test]
fn described_twice() {
    let host = format!("{GOOD}[[host]]\nname = \"host-0-1-0\"\n[[host]]\nname = \"host-0-1-0\"\n");
    refused(&host, "line 17, column 8, host[1].name", "already described in line 15");
    let switch = format!("{GOOD}[[switch]]\nname = \"core-0\"\n[[switch]]\nname = \"core-0\"\n");
    refused(&switch, "line 17, column 8, switch[1].name", "already described in line 15");
    refused(
        &good_but("grpc = \"localhost:2\"", "grpc = \"localhost:2\"\npartition = 0"),
        "line 11, column 13, memory_server[1].partition",
        "partition 0 is already described in line 5",
    );
    let name = format!("{GOOD}[[client]]\nhost = \"host-1-0-1\"\nname = \"host-1-0-0\"\n");
    refused(&name, "line 16, column 8, client[1].name", "already described in line 13");
}

#[test]
fn bad_and_clashing_addresses() {
    let host = |line: &str| format!("{GOOD}[[host]]\nname = \"host-1-1-1\"\n{line}\n");
    refused(
        &host("ip = \"10.0.0.2\""),
        "line 16, column 6, host[0].ip",
        "10.0.0.2 already belongs to host-0-0-0",
    );
    refused(
        &host("mac = \"02:00:0a:00:00:02\""),
        "line 16, column 7, host[0].mac",
        "already belongs to host-0-0-0",
    );
    for bad in ["10.0.0", "0.0.0.0", "224.0.0.1", "255.255.255.255", "127.0.0.1", "::1"] {
        refused(
            &host(&format!("ip = \"{bad}\"")),
            "line 16, column 6, host[0].ip",
            "expected a unicast IPv4 address",
        );
    }
    for bad in ["01:00:5e:00:00:01", "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "02-00-00-00-00-01"] {
        refused(
            &host(&format!("mac = \"{bad}\"")),
            "line 16, column 7, host[0].mac",
            "expected a unicast MAC address",
        );
    }
    // Two hosts may swap their addresses: a clash is judged when all overrides are applied.
    let swap = format!(
        "{GOOD}[[host]]\nname = \"host-0-0-0\"\nip = \"10.0.0.3\"\n[[host]]\nname = \"host-0-0-1\"\nip = \"10.0.0.2\"\n"
    );
    assert!(Cluster::from_toml(&swap).is_ok());
}

#[test]
fn bad_and_clashing_endpoints() {
    for bad in ["a", "a:", "localhost:0", "localhost:65536", ":1", "http://localhost:1", "::1:5", "a b:1"] {
        let text = good_but("\"localhost:2\"", &format!("\"{bad}\""));
        refused(&text, "line 10, column 8, memory_server[1].grpc", "expected host:port");
    }
    assert!(Cluster::from_toml(&good_but("\"localhost:2\"", "\"[::1]:5\"")).is_ok());
    refused(
        &good_but("localhost:2", "localhost:1"),
        "line 10, column 8, memory_server[1].grpc",
        "already partition 0's memory server's",
    );
    refused(
        &good_but("localhost:2", "127.0.0.1:9559"),
        "line 10, column 8, memory_server[1].grpc",
        "already core-0's",
    );
    let switch = |lines: &str| format!("{GOOD}[[switch]]\nname = \"agg-0-0\"\n{lines}\n");
    refused(
        &switch("p4runtime = \"127.0.0.1:9559\"\ndevice_id = 1"),
        "line 16, column 13, switch[0].p4runtime",
        "core-0's",
    );
    let shared = Cluster::from_toml(&switch("p4runtime = \"127.0.0.1:9559\"")).unwrap();
    let agg = shared.tree().switch_by_name("agg-0-0").unwrap().id;
    assert_eq!(
        (shared.p4runtime(agg).address.as_str(), shared.p4runtime(agg).device_id),
        ("127.0.0.1:9559", 2)
    );
    refused(&switch("device_id = -1"), "line 16, column 13, switch[0].device_id", "out of range");

    let named = Cluster::from_toml(&switch("ports = [132, 140, 148, 156]")).unwrap();
    let first = named.tree().switch_by_name("agg-0-0").unwrap().id;
    assert_eq!([0, 3].map(|port| named.device_port(first, port)), [132, 156]);
    assert_eq!(named.device_port(named.tree().switches()[0].id, 3), 3, "the others' ports are their numbers");
    let place = "line 16, column 9, switch[0].ports";
    refused(&switch("ports = [132, 140]"), place, "2 numbers");
    refused(&switch("ports = [1, 2, 3, 512]"), "line 16, column 19, switch[0].ports[3]", "512");
    refused(&switch("ports = [1, 2, 1, 3]"), "line 16, column 16, switch[0].ports[2]", "not there twice");
    let ports = format!("{GOOD}[p4runtime]\nfirst_port = 65530\n");
    refused(&ports, "line 15, column 14, p4runtime.first_port", "port 65536");
    refused(&ports.replace("65530", "0"), "line 15, column 14, p4runtime.first_port", "out of range");
    refused(
        &format!("{GOOD}[p4runtime]\nhost = \"a:b\"\n"),
        "line 15, column 8, p4runtime.host",
        "expected host:port",
    );
}

#[test]
fn partitions_that_do_not_tile() {
    let parts = |first: &str, second: &str| {
        good_but("grpc = \"localhost:1\"", &format!("grpc = \"localhost:1\"\n{first}"))
            .replace("grpc = \"localhost:2\"", &format!("grpc = \"localhost:2\"\n{second}"))
    };
    let problem = refused(
        &parts("low = 0\nhigh = 500", "low = 500"),
        "line 13, column 7, memory_server[1].low",
        "partition 1 begins at key 0x1f4, but partition 0 (line 7) holds keys up to 0x1f4",
    );
    assert!(matches!(problem, Problem::Overlap { .. }));
    refused(
        &parts("low = 0", "low = 0"),
        "line 12, column 7, memory_server[1].low",
        "overlapping partitions",
    );
    refused(
        &parts("low = 0\nhigh = '0xffff_ffff_ffff_ffff'", "low = 9"),
        "line 13, column 7",
        "overlapping partitions",
    );
    refused(
        &parts("low = 0\nhigh = 500", "low = 502"),
        "line 8, column 8, memory_server[0].high",
        "keys 0x1f5 to 0x1f5",
    );
    refused(&parts("low = 1", "low = 2"), "line 7, column 7, memory_server[0].low", "keys 0x0 to 0x0");
    refused(
        &parts("low = 0", "low = 5\nhigh = 9"),
        "line 13, column 8, memory_server[1].high",
        "keys 0xa to 0xffffffffffffffff",
    );
    refused(
        &parts("low = 0", "low = 5\nhigh = 4"),
        "line 13, column 8, memory_server[1].high",
        "ends at key 0x4",
    );
    refused(&parts("low = 0", ""), "line 10, column 8, memory_server[1].low", "no low key");
    for bad in ["-1", "\"0x1_0000_0000_0000_0000\"", "\"key\"", "\"0x+1\"", "\"\""] {
        refused(
            &parts("low = 0", &format!("low = {bad}")),
            "line 12, column 7, memory_server[1].low",
            "expected a 64-bit key",
        );
    }
    refused(&parts("low = 0", "low = 1.5"), "line 12, column 7, memory_server[1].low", "a 64-bit key");
    refused(&parts("partition = 65536", ""), "line 7, column 13, memory_server[0].partition", "out of range");
    refused("[network]\nk = 4\n", "line 3, column 1, memory_server", "at least one");
}

#[test]
fn borders_between_keys_of_bytes_are_text() {
    let text = |keys: &str, first: &str, second: &str| {
        let of = |low: &str| format!("grpc = \"localhost:1\"\n{low}");
        let text = good_but("grpc = \"localhost:1\"", &of(first));
        format!("keys = {keys}\n{}", text.replace("localhost:2\"", &format!("localhost:2\"\n{second}")))
    };
    let cluster =
        |first: &str, second: &str| Cluster::from_toml(&text("'bytes'", first, second)).expect("good");
    let lows = |cluster: &Cluster| cluster.servers().iter().map(|server| server.low).collect::<Vec<_>>();
    for (second, word) in [
        ("low = 'm'", 0x6d << 56),
        ("low = '4711'", 0x3437_3131 << 32),
        ("low = '0xc3a9ff'", 0xc3a9ff << 40),
        ("low = 'user:471'", 0x7573_6572_3a34_3731),
    ] {
        for first in ["low = ''", "low = 0"] {
            let cluster = cluster(first, second);
            assert_eq!((cluster.keys(), lows(&cluster)), (KeyKind::Bytes, vec![0, word]), "{second}");
        }
    }
    assert_eq!(lows(&cluster("", "")), [0, 1 << 63], "divided evenly");
    let shown = fatbtree_topology::render_text(&cluster("low = 0", "low = 'user:471'"));
    assert!(shown.contains("keys from \"\" to before \"user:471\", gRPC"), "{shown}");
    assert!(shown.contains("keys from \"user:471\", gRPC"), "{shown}");
    let shown = fatbtree_topology::render_text(&cluster("", ""));
    assert!(shown.contains("keys from 0x80, gRPC"), "{shown}");
    assert_eq!(Cluster::from_toml(&text("'numbers'", "", "")).expect("good").keys(), KeyKind::Numbers);
    for bad in ["1", "-1", "'user:4711'", "\"a\\u0000\"", "'0x6'", "'0x+6'", "'0xmm'", "'0x00'"] {
        let text = text("'bytes'", "low = ''", &format!("low = {bad}"));
        refused(&text, "line 13, column 7, memory_server[1].low", "expected the first bytes of a key");
    }
    let high = text("'bytes'", "low = ''\nhigh = 'l'", "low = 'm'");
    refused(&high, "line 9, column 8, memory_server[0].high", "ends before the first key of the next");
    for structure in ["dolphin", "dtx"] {
        let text = format!("structure = '{structure}'\n{}", text("'bytes'", "", ""));
        refused(&text, "line 2, column 8, keys", &format!("structure = \"{structure}\" has numbers"));
    }
    refused(&text("'names'", "", ""), "line 1, column 8, keys", "names");
}

#[test]
fn the_controller_has_an_address_of_its_own() {
    let with = |address: &str| format!("{GOOD}[controller]\ngrpc = \"{address}\"\n");
    assert_eq!(Cluster::from_toml(GOOD).unwrap().controller(), None);
    assert_eq!(Cluster::from_toml(&with("localhost:3")).unwrap().controller(), Some("localhost:3"));
    refused(&with("c"), "line 15, column 8, controller.grpc", "host:port");
    refused(&with("localhost:1"), "line 15, column 8, controller.grpc", "localhost:1");
    refused(
        &with("localhost:3").replace("grpc = \"localhost:3\"", "grcp = \"localhost:3\""),
        "line 15, column 1, controller",
        "grcp",
    );
    let standby = |addresses: &str| format!("{}standby = {addresses}\n", with("localhost:3"));
    let cluster = Cluster::from_toml(&standby("[\"localhost:4\", \"localhost:5\"]")).unwrap();
    assert_eq!(cluster.controller(), Some("localhost:3"));
    assert_eq!(cluster.controllers(), ["localhost:3", "localhost:4", "localhost:5"]);
    refused(&standby("[\"localhost:3\"]"), "line 16, column 12, controller.standby", "localhost:3");
    refused(&standby("[\"c\"]"), "line 16, column 12, controller.standby", "host:port");
}

#[test]
fn queries_have_an_address_of_their_own() {
    let with =
        |query: &str| GOOD.replace("\"localhost:1\"", &format!("\"localhost:1\"\nquery = \"{query}\""));
    assert_eq!(Cluster::from_toml(GOOD).unwrap().servers()[0].query, None);
    let cluster = Cluster::from_toml(&with("localhost:4793")).unwrap();
    let found: Vec<_> = cluster.servers().iter().map(|server| server.query.as_deref()).collect();
    assert_eq!(found, [Some("localhost:4793"), None]);
    refused(&with("q"), "line 7, column 9, memory_server[0].query", "host:port");
    refused(&with("localhost:2"), "line 11, column 8, memory_server[1].grpc", "localhost:2");
}

const WIRED: &str = "[wires]\nfirst_port = 12000\n";

#[test]
fn both_ends_of_every_wire_find_each_other() {
    // A client's host with a port for each of its seats has as many ends: see `seats.rs`.
    let (with_rule, _) = Cluster::local_toml().split_once("[[host]]").unwrap();
    for text in
        [with_rule.to_owned(), format!("{GOOD}{WIRED}"), format!("{WIRED}{GOOD}").replace("k = 4", "k = 6")]
    {
        let cluster = Cluster::from_toml(&text).unwrap();
        let tree = cluster.tree();
        // Where every end receives, and where its peer sends.
        let mut ends = BTreeMap::new();
        let mut add = |end: String, wire: &Wire| {
            let Wire::Udp { local, remote } = wire else { panic!("{wire:?}") };
            assert!(ends.insert(*local, (end, *remote)).is_none(), "{local} twice");
        };
        for switch in tree.switches() {
            for (port, wire) in cluster.switch_wires(switch.id).unwrap() {
                add(format!("{}.{port}", switch.name()), &wire);
            }
        }
        for host in tree.hosts() {
            add(host.name(), &cluster.host_wire(host.id).unwrap());
        }
        assert_eq!(ends.len(), 2 * tree.links().len());
        assert_eq!(
            ends.keys().next_back().unwrap().port(),
            11_999 + ends.len() as u16,
            "no port is left out"
        );
        for link in tree.links() {
            let end = |switch, port| format!("{}.{port}", tree.switch(switch).name());
            let lower = match link.lower {
                Peer::Switch { switch, port } => end(switch, port),
                Peer::Host(host) => tree.host(host).name(),
            };
            let (local, (_, remote)) =
                ends.iter().find(|(_, (name, _))| *name == end(link.upper, link.port)).unwrap();
            assert_eq!(ends[remote], (lower, *local));
        }
    }
}

#[test]
fn wires_may_be_elsewhere() {
    let text = format!(
        "{GOOD}{WIRED}host = \"10.9.0.1\"\n[[switch]]\nname = \"core-0\"\nmachine = \"10.9.0.2\"\n\
         wires = [\"udp\", \"udp:10.9.0.3:7000\", \"packet:eth1\", \"udp\"]\n\
         [[host]]\nname = \"host-0-0-0\"\nwire = \"packet:eth0\"\n"
    );
    let cluster = Cluster::from_toml(&text).unwrap();
    let id = |name| cluster.tree().switch_by_name(name).unwrap().id;
    let udp = |local: &str, remote: &str| Wire::Udp {
        local: local.parse().unwrap(),
        remote: remote.parse().unwrap(),
    };
    assert_eq!(
        cluster.switch_wires(id("core-0")).unwrap(),
        [
            (0, udp("10.9.0.2:12000", "10.9.0.1:12001")),
            (1, udp("10.9.0.3:7000", "10.9.0.1:12003")),
            (2, Wire::Packet("eth1".into())),
            (3, udp("10.9.0.2:12006", "10.9.0.1:12007")),
        ]
    );
    assert_eq!(cluster.switch_wires(id("agg-1-0")).unwrap()[2].1, udp("10.9.0.1:12003", "10.9.0.3:7000"));
    // The interfaces' peers are no processes that could be reached by UDP.
    let mixed = cluster.switch_wires(id("agg-2-0")).unwrap_err();
    assert_eq!(
        mixed.to_string(),
        "agg-2-0's port 2 is a UDP port, but the other end of its wire, core-0's port 2, is the network interface eth1: name an interface or a DPDK device for both or for none"
    );
    assert!(cluster.switch_wires(id("edge-0-0")).is_err());
    let server = cluster.servers()[0].host;
    assert_eq!(cluster.host_wire(server), Ok(Wire::Packet("eth0".into())));
    let none = Cluster::from_toml(GOOD).unwrap();
    assert_eq!(none.host_wire(server), Err(NoWire::NotDescribed));
}

#[test]
fn wires_that_cannot_be() {
    let section = |rest: &str| format!("{GOOD}{WIRED}{rest}");
    let switch = |rest: &str| section(&format!("[[switch]]\nname = \"core-0\"\n{rest}\n"));
    refused(
        &switch("wires = [\"udp:127.0.0.1:12001\", \"udp\", \"udp\", \"udp\"]"),
        "line 18, column 10, switch[0].wires[0]",
        "clash of wires: UDP port 127.0.0.1:12001 is already agg-0-0's port 2",
    );
    refused(
        &switch("wires = [\"packet:a\", \"packet:b\", \"packet:a\", \"udp\"]"),
        "line 18, column 34, switch[0].wires[2]",
        "clash of wires: interface a of 127.0.0.1 is already core-0's port 0",
    );
    refused(&switch("wires = [\"udp\"]"), "line 18, column 9, switch[0].wires", "1 wires is out of range");
    refused(&switch("wires = [1]"), "line 18, column 10, switch[0].wires", "string");
    for bad in ["tcp:1", "udp:", "udp:127.0.0.1:0", "udp:host:1", "packet:"] {
        let text = switch(&format!("wires = [\"{bad}\", \"udp\", \"udp\", \"udp\"]"));
        refused(&text, "line 18, column 10, switch[0].wires[0]", "packet:INTERFACE");
    }
    refused(&switch("machine = \"0.0.0.0\""), "line 18, column 11, switch[0].machine", "an IP address");
    refused(&section("host = \"name\""), "line 16, column 8, wires.host", "an IP address");
    refused(
        &section("").replace("12000", "65500"),
        "line 15, column 14, wires.first_port",
        "65500, with 28 wires",
    );
    refused(&section("").replace("12000", "0"), "line 15, column 14, wires.first_port", "out of range");
    refused(
        &format!("{GOOD}[[host]]\nname = \"host-0-0-0\"\nwire = \"packet:eth0\"\n"),
        "line 16, column 8, host[0].wire",
        "no section [wires]",
    );
}

#[test]
fn roles_have_names() {
    let cluster = Cluster::from_toml(Cluster::local_toml()).unwrap();
    for name in ["left", "host-0-0-0"] {
        assert!(matches!(cluster.named(name), Some(Named::MemoryServer(server)) if server.partition == 0));
    }
    assert!(matches!(cluster.named("client"), Some(Named::Client(_))));
    assert!(matches!(cluster.named("agg-1-0"), Some(Named::Switch(switch)) if switch.pod == 1));
    assert_eq!(cluster.named("host-3-1-1"), None, "no role is there");
    let server = |name: &str| {
        good_but("grpc = \"localhost:2\"", &format!("grpc = \"localhost:2\"\nname = \"{name}\""))
    };
    refused(&server("core-0"), "line 11, column 8, memory_server[1].name", "no switch and no other host");
    refused(&server("host-0-0-1"), "line 11, column 8, memory_server[1].name", "no switch and no other host");
    let text = server("one").replace("grpc = \"localhost:1\"", "grpc = \"localhost:1\"\nname = \"one\"");
    refused(&text, "line 12, column 8, memory_server[1].name", "\"one\" is already described in line 7");
}

#[test]
fn channels_off_loopback_need_trust() {
    for place in ["10.9.0.1:1", "switch.example:1", "0.0.0.0:1", "[2001:db8::1]:1"] {
        let text = good_but("localhost:1", place);
        let problem = refused(&text, "line 6, column 8, memory_server[0].grpc", "[trust]");
        assert_eq!(problem, Problem::Untrusted { address: place.to_owned() });
        let trusted = |trust: &str| Cluster::from_toml(&format!("[trust]\n{trust}\n{text}"));
        let certified = trusted("folder = \"keys\"").expect("it names certificates");
        assert_eq!(certified.certificates(), Some(std::path::Path::new("keys")));
        let words = trusted("plaintext = \"I trust everybody on this network\"").expect("the words");
        assert_eq!(words.certificates(), None);
    }
    // Queries bear keys where there are certificates. Otherwise the file must say that they need none.
    let query = good_but("\"localhost:1\"", "\"localhost:1\"\nquery = \"10.9.0.1:4793\"");
    let trusted = |trust: &str| Cluster::from_toml(&format!("[trust]\n{trust}\n{query}"));
    assert!(!trusted("folder = \"keys\"").expect("they bear keys").query_open());
    assert!(trusted("folder = \"keys\"\nquery_open = true").expect("it is meant").query_open());
    const WORDS: &str = "plaintext = \"I trust everybody on this network\"";
    assert!(trusted(&format!("{WORDS}\nquery_open = true")).expect("it is meant").query_open());
    let open = refused(
        &format!("[trust]\n{WORDS}\n{query}"),
        "line 2, column 13, trust.plaintext",
        "query_open = true",
    );
    assert_eq!(open, Problem::OpenQueries { address: "10.9.0.1:4793".to_owned() });
    for (trust, place) in
        [("", "line 1, column 1, trust"), ("plaintext = \"yes\"", "line 2, column 13, trust.plaintext")]
    {
        refused(&format!("[trust]\n{trust}\n{GOOD}"), place, "expected one of");
    }
    let named = good_but("grpc = \"localhost:2\"", "grpc = \"localhost:2\"\nname = \"Two\"");
    refused(&format!("[trust]\nfolder = \"keys\"\n{named}"), "line 2, column 10, trust.folder", "\"Two\"");
}

#[test]
fn metrics_have_ports_by_rule() {
    let with = |metrics: &str| format!("{GOOD}[metrics]\n{metrics}\n");
    let cluster = Cluster::from_toml(&with("first_port = 7000")).unwrap();
    let switches = cluster.tree().switches().len();
    assert_eq!(cluster.metrics("core-0"), Some("127.0.0.1:7000"));
    let after = |n: usize| format!("127.0.0.1:{}", 7000 + switches + n);
    for (n, server) in cluster.servers().iter().enumerate() {
        assert_eq!(cluster.metrics(&server.name), Some(after(n).as_str()));
    }
    assert_eq!(cluster.metrics("controller"), Some(after(cluster.servers().len()).as_str()));
    assert_eq!(cluster.metrics("nobody"), None);
    assert_eq!(Cluster::from_toml(GOOD).unwrap().metrics("core-0"), None);
    refused(&with("first_port = 9559"), "line 15, column 14, metrics.first_port", "address clash");
    refused(&with("first_port = 0"), "line 15, column 14, metrics.first_port", "out of range");
    refused(&with("first_port = 65535"), "line 15, column 14, metrics.first_port", "port 65536");
}

/// A file with this section `[network]`, whose only server is on this host.
fn of_kind(network: &str, host: &str) -> String {
    format!("[network]\n{network}\n[[memory_server]]\nhost = \"{host}\"\ngrpc = \"localhost:1\"\n")
}

#[test]
fn networks_of_every_kind_are_read() {
    let network = |network, host| Cluster::from_toml(&of_kind(network, host)).unwrap().tree().clone();
    let single = network("kind = \"single\"\nhosts = 3", "host-0-2");
    assert_eq!((single.kind(), single.hosts().len()), (Kind::Single, 3));
    let pair = network("kind = \"pair\"\nhosts = 2", "host-1-1");
    assert_eq!((pair.kind(), pair.hosts().len()), (Kind::Pair, 4));
    let leaves = network("kind = \"leaf-spine\"\nleaves = 3\nspines = 2\nhosts = 4", "host-2-3");
    assert_eq!((leaves.kind(), leaves.roots().len()), (Kind::LeafSpine { leaves: 3, spines: 2 }, 2));
    let roots = |text| network(text, "host-0-0-0").roots().len();
    assert_eq!((roots("k = 4"), roots("kind = \"fat-tree\"\nk = 4\ncores = \"all\"")), (1, 4));
    assert_eq!(
        roots("k = 4\ncores = \"all\"\ncore = 2"),
        1,
        "S_c of the paper, and the other cores beside it"
    );
    for (kind, text) in Cluster::examples() {
        let cluster = Cluster::from_toml(text).unwrap();
        assert_eq!(cluster.tree().kind().name(), kind);
        assert_eq!((cluster.servers().len(), cluster.clients().len()), (2, 1), "{kind}");
        assert!(cluster.switch_wires(cluster.tree().roots()[0]).is_ok(), "{kind}");
    }
}

#[test]
fn settings_of_another_kind_are_refused() {
    let refused = |network: &str, place: &str, reason: &str| {
        refused(&of_kind(network, "host-0-0"), place, reason);
    };
    refused("kind = \"ring\"", "line 2, column 8, network.kind", "unknown variant `ring`");
    refused(
        "kind = \"single\"\nhosts = 2\nk = 4",
        "line 4, column 5, network.k",
        "kind \"single\" has no `k`",
    );
    refused(
        "hosts = 2\nk = 4",
        "line 2, column 9, network.hosts",
        "kind \"fat-tree\" has no `hosts`: it has k, cores and core",
    );
    refused(
        "kind = \"pair\"\nhosts = 2\ncores = \"all\"",
        "line 4, column 9, network.cores",
        "has no `cores`",
    );
    refused("kind = \"pair\"", "line 1, column 1, network.hosts", "missing field `hosts`");
    refused(
        "kind = \"leaf-spine\"\nleaves = 2\nhosts = 2",
        "line 1, column 1, network.spines",
        "missing field",
    );
    refused(
        "kind = \"leaf-spine\"\nleaves = 256\nspines = 1\nhosts = 2",
        "line 3, column 10, network.leaves",
        "1 to 255",
    );
    refused("kind = \"single\"\nhosts = 0", "line 3, column 9, network.hosts", "0 hosts: expected 1 to 253");
    refused("kind = \"single\"\nhosts = -1", "line 3, column 9, network.hosts", "-1 is out of range");
}

#[test]
fn ports_that_are_left_out_are_not_wired() {
    let text = |ports: &str, host: &str| {
        let network = "kind = \"leaf-spine\"\nleaves = 2\nspines = 2\nhosts = 2";
        format!("{}[[switch]]\nname = \"leaf-1\"\nports = {ports}\n", of_kind(network, host))
    };
    let cluster = Cluster::from_toml(&text("{ 0 = 132, 3 = 148 }", "host-1-0")).unwrap();
    let leaf = cluster.tree().switch_by_name("leaf-1").unwrap().id;
    assert_eq!(cluster.tree().ports(leaf).map(|(port, _)| port).collect::<Vec<_>>(), [0, 3]);
    assert_eq!([0, 3].map(|port| cluster.device_port(leaf, port)), [132, 148]);
    let spine = cluster.tree().switch_by_name("spine-0").unwrap().id;
    assert_eq!(cluster.tree().ports(spine).count(), 1, "the other end of a cable that is not there");
    let problem = refused(
        &text("{ 0 = 132, 3 = 148 }", "host-1-1"),
        "line 7, column 8, memory_server[0].host",
        "host-1-1 is not there: port 1 of leaf-1",
    );
    assert!(matches!(problem, Problem::NotWired { port: 1, .. }));
    let bad = |ports: &str, column: usize, field: &str, reason: &str| {
        let place = format!("line 11, column {column}, switch[0].ports{field}");
        refused(&text(ports, "host-0-0"), &place, reason);
    };
    bad("{ 4 = 1 }", 11, ".4", "the number of one of the switch's ports");
    bad("{ 00 = 1 }", 11, ".00", "the number of one of the switch's ports");
    bad("{ 0 = 510 }", 15, ".0", "a device port from 0 to 509");
    bad("{ 0 = 1, 1 = 1 }", 22, ".1", "not there twice");
    bad("[1, 2, 3]", 9, "", "or, where not all are wired, a table");
    bad("3", 9, "", "device ports: a list");
}

#[test]
fn a_second_pass_has_pipes_of_its_own() {
    let text = |ports: &str, switch: &str| {
        let network = format!("kind = \"single\"\nhosts = 2\nloopback_ports = {ports}");
        format!("{}{switch}\n", of_kind(&network, "host-0-0"))
    };
    let switch = "[[switch]]\nname = \"switch-0\"\nports = { 0 = 132, 1 = 140 }";
    for (ports, switch) in [("[128, 255]", ""), ("[0, 300]", switch)] {
        let cluster = Cluster::from_toml(&text(ports, switch)).unwrap();
        assert_eq!(cluster.tree().switches()[0].role, Role::Folded);
        assert_eq!(format!("{:?}", cluster.tree().loopback_ports()), ports);
        let adapted = cluster.in_one_pass();
        assert_eq!(adapted.tree().switches()[0].role, Role::Folded, "with all its node sets");
        assert!(adapted.tree().loopback_ports().is_empty());
    }
    let bad = |ports: &str, switch: &str, column: usize, field: &str, reason: &str| {
        let place = format!("line 4, column {column}, network.loopback_ports{field}");
        refused(&text(ports, switch), &place, reason)
    };
    bad("[]", "", 18, "", "0 ports is out of range: expected 1 to 16");
    bad("[128, 128]", "", 24, "[1]", "not there twice");
    bad("[510]", "", 19, "[0]", "0 to 509");
    bad("[-1]", "", 19, "[0]", "-1");
    let problem =
        bad("[128, 7]", "", 24, "[1]", "device port 0 of switch-0 is in pipe 0 (ports 0 to 127) as well");
    assert!(matches!(problem, Problem::HostInSecondPipe { port: 0, pipe: 0, .. }));
    bad("[4, 130]", switch, 22, "[1]", "device port 132 of switch-0 is in pipe 1 (ports 128 to 255) as well");
    let pair = of_kind("kind = \"pair\"\nhosts = 2\nloopback_ports = [128]", "host-0-0");
    refused(&pair, "line 4, column 18, network.loopback_ports", "a network of kind \"pair\" has no");
}

#[test]
fn index_packets_have_a_udp_port() {
    let port = |line: &str| Cluster::from_toml(&good_but("k = 4", &format!("k = 4\n{line}")));
    assert_eq!(port("").unwrap().in_flight_port(), 4792);
    assert_eq!(port("in_flight_port = 6000").unwrap().in_flight_port(), 6000);
    for bad in ["0", "4791", "4793", "4794", "65536", "-1"] {
        let text = good_but("k = 4", &format!("k = 4\nin_flight_port = {bad}"));
        refused(&text, "line 3, column 18, network.in_flight_port", "neither 4791");
    }
}

/// Whether a text sets something, in a comment or not: `first_port = 1`, `[wires]`.
fn sets(text: &str, word: &str) -> bool {
    let is_whole = |before: &str| !before.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    let (setting, section) = (format!("{word} = "), format!("[{word}]"));
    text.contains(&section) || text.match_indices(&setting).any(|(at, _)| is_whole(&text[..at]))
}

#[test]
fn the_example_of_a_testbed_has_every_setting() {
    // The words as the parser has them.
    let shapes = include_str!("../src/cluster/file.rs").lines();
    let fields = shapes.filter_map(|line| line.trim().strip_prefix("pub(super) ")?.split_once(": "));
    let words: Vec<&str> = fields.map(|(word, _)| word).filter(|word| !word.contains([' ', '('])).collect();
    assert!(words.len() > 40 && words.contains(&"standby"), "{words:?}");
    let of_other_kinds = ["hosts", "leaves", "spines", "loopback_ports"];
    for word in words {
        let others = || Cluster::examples().into_iter().any(|(_, text)| sets(text, word));
        let is_explained = match of_other_kinds.contains(&word) {
            true => others() && Cluster::example_toml().contains(word),
            false => sets(Cluster::example_toml(), word),
        };
        assert!(is_explained, "{word}");
    }
}

/// The line without the `# ` before a setting.
fn active(line: &str) -> &str {
    let Some(setting) = line.strip_prefix("# ") else { return line };
    let is_word = |word: &str| word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let sets = setting.starts_with('[') || setting.split_once(" = ").is_some_and(|(word, _)| is_word(word));
    if sets { setting } else { line }
}

#[test]
fn what_examples_have_commented_out_is_right() {
    let all = Cluster::examples().into_iter().chain([("testbed", Cluster::example_toml())]);
    for (name, text) in all {
        let text = text.lines().map(active).collect::<Vec<_>>().join("\n");
        let cluster = Cluster::from_toml(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(cluster.controllers(), ["127.0.0.1:9690", "127.0.0.1:9691"], "{name}");
    }
}
