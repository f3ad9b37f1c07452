//! Tests of all kinds of networks: cables, names, and paths of packets, whatever is down.

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::route::look_up;
use crate::*;

fn networks() -> Vec<Network> {
    let mut all = vec![
        Network::single(1).unwrap(),
        Network::single(5).unwrap(),
        Network::folded(5, vec![128]).unwrap(),
        Network::pair(1).unwrap(),
        Network::pair(3).unwrap(),
    ];
    for (leaves, spines, hosts) in [(1, 1, 1), (2, 1, 2), (3, 2, 2), (4, 5, 3)] {
        all.push(Network::leaf_spine(leaves, spines, hosts).unwrap());
    }
    for k in [2, 4, 6] {
        all.push(Network::fat_tree(k, Cores::All).unwrap());
        for core in 0..(k / 2) * (k / 2) {
            all.push(Network::fat_tree(k, Cores::One(core)).unwrap());
            all.push(Network::fat_tree(k, Cores::Chosen(core)).unwrap());
        }
    }
    all
}

#[test]
fn counts_are_those_of_al_fares_and_of_the_paper() {
    let counts = |network: &Network| (network.switches().len(), network.hosts().len(), network.links().len());
    let tree = |k, cores| Network::fat_tree(k, cores).unwrap();
    assert_eq!(counts(&tree(4, Cores::All)), (20, 16, 48));
    assert_eq!(counts(&Network::one_core(4).unwrap()), (13, 16, 28));
    assert_eq!(counts(&tree(2, Cores::All)), (5, 2, 6));
    assert_eq!(tree(48, Cores::All).hosts().len(), 27_648);
    assert_eq!(Network::one_core(MAX_K).unwrap().hosts().len(), 254 * 127 * 127);
    assert_eq!((tree(4, Cores::All).roots().len(), tree(4, Cores::Chosen(3)).roots().len()), (4, 1));
}

#[test]
fn bad_k_and_core_are_refused_with_reason() {
    for k in [1, 3, 5, 255] {
        assert_eq!(Network::fat_tree(k, Cores::All), Err(TopologyError::OddK { k }));
    }
    for k in [0, 256, 65_534] {
        assert_eq!(Network::one_core(k), Err(TopologyError::KOutOfRange { k }));
    }
    assert!(Network::one_core(5).unwrap_err().to_string().contains("odd"));
    let error = Network::fat_tree(4, Cores::One(4)).unwrap_err();
    assert_eq!(error.to_string(), "core 4 does not exist: a FatTree with k = 4 has cores 0 to 3");
}

#[test]
fn every_cable_has_two_ends_that_agree() {
    for network in networks() {
        let mut hosts = BTreeSet::new();
        for s in network.switches() {
            for (port, peer) in network.ports(s.id) {
                assert!(port < network.port_count(s.id));
                match peer {
                    Peer::Switch { switch, port: theirs } => {
                        assert_eq!(network.peer(switch, theirs), Some(Peer::Switch { switch: s.id, port }));
                        assert_ne!(network.switch(switch).tier, s.tier);
                    }
                    Peer::Host(host) => {
                        assert!(hosts.insert(host));
                        assert_eq!((network.edge_of(host).id, network.host(host).index), (s.id, port));
                    }
                }
            }
            assert_eq!(network.peer(s.id, network.port_count(s.id)), None);
            assert_eq!(network.peer(s.id, u16::MAX), None);
        }
        assert_eq!(hosts.len(), network.hosts().len());
        let ends: usize = network.switches().iter().map(|s| network.ports(s.id).count()).sum();
        assert_eq!(2 * network.links().len() - hosts.len(), ends, "every cable once");
    }
}

#[test]
fn cables_are_numbered_as_they_always_were() {
    let network = Network::one_core(4).unwrap();
    let ends = |link: &Link| match link.lower {
        Peer::Switch { switch, port } => format!(
            "{}.{} {}.{port}",
            network.switch(link.upper).name(),
            link.port,
            network.switch(switch).name()
        ),
        Peer::Host(host) => {
            format!("{}.{} {}", network.switch(link.upper).name(), link.port, network.host(host).name())
        }
    };
    let links: Vec<String> = network.links().iter().map(ends).collect();
    assert_eq!(links[..2], ["core-0.0 agg-0-0.2", "core-0.1 agg-1-0.2"]);
    assert_eq!(links[4..6], ["agg-0-0.0 edge-0-0.2", "agg-0-0.1 edge-0-1.2"]);
    assert_eq!(links[26..], ["edge-3-1.0 host-3-1-0", "edge-3-1.1 host-3-1-1"]);
}

#[test]
fn names_and_ids_find_their_way_back() {
    for network in networks() {
        for s in network.switches() {
            assert_eq!(network.switch_by_name(&s.name()).map(|s| s.id), Some(s.id));
            assert_eq!(network.switch(s.id), s);
        }
        for h in network.hosts() {
            assert_eq!(network.host_by_name(&h.name()).map(|h| h.id), Some(h.id));
            assert_eq!(network.host_by_ip(h.ip).map(|h| h.id), Some(h.id));
        }
        for bad in
            ["", "core", "core-", "core-99999", "core-00", "agg-0", "host-0-00", "edge-0-x", "host-0-0-99"]
        {
            assert!(network.switch_by_name(bad).is_none() && network.host_by_name(bad).is_none(), "{bad}");
        }
    }
}

#[test]
fn addresses_follow_the_scheme_and_are_unique() {
    let tree = Network::fat_tree(4, Cores::All).unwrap();
    let ip = |name: &str| tree.switch_by_name(name).unwrap().ip.to_string();
    assert_eq!(
        ["core-0", "core-3", "agg-2-1", "edge-2-1"].map(ip),
        ["10.4.1.1", "10.4.2.2", "10.2.3.1", "10.2.1.1"]
    );
    let host = tree.host_by_name("host-2-1-0").unwrap();
    assert_eq!(
        (host.ip.to_string().as_str(), host.mac.to_string().as_str()),
        ("10.2.1.2", "02:00:0a:02:01:02")
    );
    for network in networks() {
        let (hosts, switches) = (network.hosts(), network.switches());
        let ips: BTreeSet<_> = hosts.iter().map(|h| h.ip).chain(switches.iter().map(|s| s.ip)).collect();
        let macs: BTreeSet<_> = hosts.iter().map(|h| h.mac).chain(switches.iter().map(Switch::mac)).collect();
        assert_eq!((ips.len(), macs.len()), (hosts.len() + switches.len(), hosts.len() + switches.len()));
    }
}

#[test]
fn routes_are_few_and_as_expected() {
    let text = |network: &Network, name: &str| {
        let routes = network.routes(network.switch_by_name(name).unwrap().id);
        routes.iter().map(|r| format!("{}>{}", r.prefix, r.port)).collect::<Vec<_>>().join(" ")
    };
    let tree = Network::one_core(4).unwrap();
    assert_eq!(text(&tree, "core-0"), "10.0.0.0/16>0 10.1.0.0/16>1 10.2.0.0/16>2 10.3.0.0/16>3");
    assert_eq!(text(&tree, "agg-1-0"), "0.0.0.0/0>2 10.1.0.0/24>0 10.1.1.0/24>1");
    assert_eq!(text(&tree, "edge-1-1"), "0.0.0.0/0>2 10.1.1.2/32>0 10.1.1.3/32>1");
    let pair = Network::pair(1).unwrap();
    assert_eq!(text(&pair, "switch-0"), "10.1.0.0/24>1 10.0.0.2/32>0");
    assert_eq!(text(&pair, "switch-1"), "0.0.0.0/0>1 10.1.0.2/32>0");
    let full = Network::fat_tree(4, Cores::All).unwrap();
    assert_eq!(
        ["agg-1-0", "edge-1-1"].map(|name| text(&full, name)[..11].to_owned()),
        ["0.0.0.0/0>3", "0.0.0.0/0>3"]
    );
}

#[test]
fn packets_take_the_ways_they_should() {
    let tree = Network::one_core(4).unwrap();
    let names = |network: &Network, hops: Option<Vec<Hop>>| {
        hops.unwrap().iter().map(|h| network.switch(h.switch).name()).collect::<Vec<_>>().join(" ")
    };
    let way = |network: &Network, a: &str, b: &str| {
        let host = |name| network.host_by_name(name).unwrap().id;
        let routing = Routing::undisturbed(network);
        [routing.ordinary_path(host(a), host(b)), routing.index_path(host(a), host(b), 1)]
            .map(|hops| names(network, hops))
    };
    let up_and_down = "edge-0-0 agg-0-0 core-0 agg-0-0 edge-0-0".to_owned();
    assert_eq!(way(&tree, "host-0-0-0", "host-0-0-1"), ["edge-0-0".to_owned(), up_and_down]);
    assert_eq!(way(&tree, "host-0-0-0", "host-0-1-1")[0], "edge-0-0 agg-0-0 edge-0-1");
    assert_eq!(way(&tree, "host-0-0-0", "host-3-1-1")[0], "edge-0-0 agg-0-0 core-0 agg-3-0 edge-3-1");
    let pair = Network::pair(2).unwrap();
    assert_eq!(way(&pair, "host-1-0", "host-1-1"), ["switch-1", "switch-1 switch-0 switch-1"]);
    assert_eq!(way(&pair, "host-0-0", "host-0-1"), ["switch-0", "switch-0"]);
    let leaves = Network::leaf_spine(2, 2, 2).unwrap();
    assert_eq!(way(&leaves, "host-0-0", "host-0-1"), ["leaf-0", "leaf-0 spine-1 leaf-0"]);
}

#[test]
fn the_full_network_spreads_packets_over_cores() {
    let network = Network::fat_tree(4, Cores::All).unwrap();
    let routing = Routing::undisturbed(&network);
    let (mut ordinary, mut index) = (BTreeSet::new(), BTreeSet::new());
    for a in network.hosts() {
        for b in network.hosts().iter().filter(|b| b.pod != a.pod) {
            ordinary.insert(routing.ordinary_path(a.id, b.id).unwrap()[2].switch);
            index.extend((0..PATHS).map(|path| routing.index_path(a.id, b.id, path).unwrap()[2].switch));
        }
    }
    assert_eq!((ordinary.len(), index.len()), (4, 4));
    for root in network.roots() {
        assert_eq!((0..PATHS).filter(|path| routing.root_of(*path) == Some(*root)).count(), 16, "evenly");
    }
}

#[test]
fn sets_on_the_way_are_those_of_roles() {
    let text = |network: &Network, host: &str| {
        let groups = network.sets_to(network.host_by_name(host).unwrap().id);
        let one = |group: &SetGroup| {
            let names: Vec<String> = group.switches.iter().map(|id| network.switch(*id).name()).collect();
            format!("{} {:?}: {}", group.role, group.set, names.join(" "))
        };
        groups.iter().map(one).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(text(&Network::single(1).unwrap(), "host-0-0"), "single A: switch-0; single B: switch-0");
    let pair = Network::pair(1).unwrap();
    assert_eq!(text(&pair, "host-0-0"), "single A: switch-0; single B: switch-0");
    let folded = Network::folded(1, vec![128]).unwrap();
    assert_eq!(text(&folded, "host-0-0"), "folded A: switch-0; folded B: switch-0; folded C: switch-0");
    assert_eq!(
        text(&pair, "host-1-0"),
        "single A: switch-0; single B: switch-0; edge A: switch-1; edge B: switch-1"
    );
    assert_eq!(
        text(&Network::leaf_spine(2, 2, 1).unwrap(), "host-1-0"),
        "core A: spine-0 spine-1; edge A: leaf-1; edge B: leaf-1"
    );
    assert_eq!(
        text(&Network::fat_tree(4, Cores::Chosen(2)).unwrap(), "host-1-0-0"),
        "core A: core-2; aggregation A: agg-1-1; aggregation B: agg-1-1; edge A: edge-1-0; edge B: edge-1-0"
    );
    assert_eq!(
        text(&Network::fat_tree(4, Cores::All).unwrap(), "host-1-0-0"),
        "core A: core-0 core-1 core-2 core-3; aggregation A: agg-1-0 agg-1-1; aggregation B: agg-1-0 agg-1-1; \
         edge A: edge-1-0; edge B: edge-1-0"
    );
}

/// Packets cross the sets in the order in which they are listed, and no others' switches but their own way up.
#[test]
fn index_packets_cross_the_sets_that_are_listed() {
    for network in networks() {
        let routing = Routing::undisturbed(&network);
        for a in network.hosts() {
            for b in network.hosts() {
                let groups = network.sets_to(b.id);
                for path in [0, 1, 7, 63] {
                    let hops = routing.index_path(a.id, b.id, path).unwrap();
                    let turn = hops.iter().position(|hop| network.is_root(hop.switch)).unwrap();
                    let down: Vec<SwitchId> = hops[turn..].iter().map(|hop| hop.switch).collect();
                    let mut crossed = Vec::new();
                    for switch in down {
                        crossed.extend(groups.iter().filter(|group| group.switches.contains(&switch)));
                    }
                    assert_eq!(crossed, groups.iter().collect::<Vec<_>>());
                }
            }
        }
    }
}

fn name(network: &Network, name: &str) -> SwitchId {
    network.switch_by_name(name).unwrap().id
}

#[test]
fn fat_roots_are_used_where_they_reach_everybody() {
    let network = Network::leaf_spine(3, 3, 2).unwrap();
    let host = |name: &str| network.host_by_name(name).unwrap().id;
    let ends = Ends::new(&network, [host("host-0-0"), host("host-1-0")], [host("host-2-0")]);
    let [first, second, third] = ["spine-0", "spine-1", "spine-2"].map(|spine| name(&network, spine));
    let used = |outages: &Outages, unready: &[SwitchId]| {
        network.routing(outages, &ends, &unready.iter().copied().collect()).roots().to_vec()
    };
    let link = |spine: SwitchId, leaf: u16| Outages { links: [(spine, leaf)].into(), ..Outages::none() };
    assert_eq!(used(&Outages::none(), &[]), [first, second, third]);
    assert_eq!(used(&Outages { switches: [second].into(), ..Outages::none() }, &[]), [first, third]);
    assert_eq!(used(&link(first, 1), &[]), [second, third], "a memory server's switch");
    assert_eq!(used(&link(third, 2), &[]), [first, second], "a client's switch");
    let leaf = name(&network, "leaf-1");
    assert_eq!(
        used(&Outages { links: [(leaf, 3)].into(), ..Outages::none() }, &[]),
        [first, third],
        "its other end"
    );
    let gone = Outages { switches: [leaf].into(), ..Outages::none() };
    assert_eq!(used(&gone, &[]), [first, second, third], "no other would reach it");
    assert_eq!(used(&Outages::none(), &[first]), [second, third], "it does not hold the plan yet");
    assert_eq!(used(&Outages { switches: [second, third].into(), ..Outages::none() }, &[first]), [first]);
    assert_eq!(used(&Outages { switches: [first, second, third].into(), ..Outages::none() }, &[]), []);
}

#[test]
fn what_is_not_plugged_in_is_not_there() {
    let mut network = Network::leaf_spine(2, 2, 2).unwrap();
    let leaf = name(&network, "leaf-1");
    network.unplug(leaf, 1);
    network.unplug(leaf, 2);
    let gone = network.host_by_name("host-1-1").unwrap().id;
    assert!(!network.is_plugged_in(gone));
    assert_eq!((network.links().len(), network.peer(name(&network, "spine-0"), 1)), (6, None));
    let ends = Ends::new(&network, [network.host_by_name("host-1-0").unwrap().id], []);
    let routing = network.routing(&Outages::none(), &ends, &BTreeSet::new());
    assert_eq!(routing.roots(), [name(&network, "spine-1")]);
    assert!(network.hosts().iter().all(|host| routing.index_path(host.id, gone, 3).is_none()));
    check_all_pairs(&network, &routing);
}

/// Follows the tables, switch by switch: every packet arrives that can, and none goes round in a circle.
fn check_all_pairs(network: &Network, routing: &Routing<'_>) {
    let tables: Vec<_> = network.switches().iter().map(|s| routing.routes(s.id)).collect();
    let hosts: Vec<&Host> = network.hosts().iter().filter(|host| network.is_plugged_in(host.id)).collect();
    let connected = |a: &Host, b: &Host| {
        let (mut seen, mut next) = (BTreeSet::from([a.edge]), vec![a.edge]);
        while let Some(switch) = next.pop() {
            for (_, peer) in network.ports(switch).filter(|(port, _)| routing.carries(switch, *port)) {
                let Peer::Switch { switch, .. } = peer else { continue };
                next.extend(seen.insert(switch).then_some(switch));
            }
        }
        routing.carries(a.edge, a.index) && routing.carries(b.edge, b.index) && seen.contains(&b.edge)
    };
    for a in &hosts {
        for b in &hosts {
            let (mut at, mut hops, mut arrived) = (a.edge, Vec::new(), false);
            while let Some(port) = look_up(&tables[at.0 as usize], b.ip) {
                hops.push((at, port));
                assert!(hops.len() <= 2 * network.switches().len(), "{} to {} loops", a.name(), b.name());
                match network.peer(at, port).filter(|_| routing.carries(at, port)) {
                    Some(Peer::Switch { switch, .. }) => at = switch,
                    Some(Peer::Host(host)) => {
                        assert_eq!(host, b.id);
                        arrived = true;
                        break;
                    }
                    None => break,
                }
            }
            let arrived = arrived && routing.carries(a.edge, a.index);
            assert_eq!(arrived, connected(a, b), "{} to {}: {hops:?}", a.name(), b.name());
            let path = routing.ordinary_path(a.id, b.id);
            let path = path.map(|path| path.iter().map(|h| (h.switch, h.out_port)).collect::<Vec<_>>());
            assert_eq!(path, arrived.then_some(hops), "path and tables agree");
        }
    }
}

/// Every index packet that arrives has climbed to one fat root, and gone down from there.
fn check_index_paths(network: &Network, routing: &Routing<'_>) {
    for path in [0, 1, 2, 3, 31, 63] {
        for a in network.hosts() {
            for b in network.hosts() {
                let Some(hops) = routing.index_path(a.id, b.id, path) else { continue };
                let tier = |hop: &Hop| network.switch(hop.switch).tier;
                let turn = hops.iter().position(|hop| network.is_root(hop.switch)).unwrap();
                assert_eq!(Some(hops[turn].switch), routing.root_of(path));
                assert!(hops[..=turn].is_sorted_by(|a, b| tier(a) < tier(b)));
                assert!(hops[turn..].is_sorted_by(|a, b| tier(a) > tier(b)));
                let last = hops[hops.len() - 1];
                assert_eq!(network.peer(last.switch, last.out_port), Some(Peer::Host(b.id)));
                for pair in hops.windows(2) {
                    let wired = Peer::Switch { switch: pair[1].switch, port: pair[1].in_port };
                    assert_eq!(network.peer(pair[0].switch, pair[0].out_port), Some(wired));
                }
            }
        }
    }
}

#[test]
fn everybody_is_reached_when_nothing_is_down() {
    for network in networks() {
        let routing = Routing::undisturbed(&network);
        check_all_pairs(&network, &routing);
        check_index_paths(&network, &routing);
        assert_eq!(routing.roots(), network.roots());
        for a in network.hosts() {
            let arrives = |b: &Host| (0..PATHS).all(|path| routing.index_path(a.id, b.id, path).is_some());
            assert!(network.hosts().iter().all(arrives));
        }
    }
}

#[test]
fn an_overridden_address_is_reached_from_everywhere() {
    let mut network = Network::fat_tree(4, Cores::All).unwrap();
    let host = network.host_by_name("host-2-1-0").unwrap().id;
    // An address inside another pod's prefix: the /32 must win over 10.0.0.0/16.
    network.set_host_address(host, [10, 0, 0, 99].into(), MacAddress([2, 0, 0, 0, 0, 1]));
    check_all_pairs(&network, &Routing::undisturbed(&network));
}

fn arb_network() -> impl Strategy<Value = Network> {
    prop_oneof![
        (1..5u16).prop_map(|hosts| Network::single(hosts).unwrap()),
        (1..4u16).prop_map(|hosts| Network::pair(hosts).unwrap()),
        (1..6u16, 1..5u16, 1..3u16)
            .prop_map(|(leaves, spines, hosts)| Network::leaf_spine(leaves, spines, hosts).unwrap()),
        (1..4u16, any::<u16>(), 0..3u8).prop_map(|(half, core, cores)| {
            let core = core % (half * half);
            let cores = [Cores::All, Cores::Chosen(core), Cores::One(core)][usize::from(cores)];
            Network::fat_tree(2 * half, cores).unwrap()
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Every connected host is reached, whatever is down, unplugged or readdressed, and nothing loops.
    #[test]
    fn whoever_is_connected_is_reached(
        mut network in arb_network(),
        switches in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        links in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..5),
        unplugged in prop::collection::vec(any::<prop::sample::Index>(), 0..2),
        readdressed in prop::option::of(any::<prop::sample::Index>()),
    ) {
        if let Some(host) = readdressed {
            let host = host.get(network.hosts()).id;
            let pod = network.hosts()[0].pod;
            network.set_host_address(host, [10, pod as u8, 0, 222].into(), MacAddress([2, 0, 0, 0, 0, 1]));
        }
        for link in unplugged {
            let links = network.links();
            if !links.is_empty() {
                let Link { upper, port, .. } = *link.get(&links);
                network.unplug(upper, port);
            }
        }
        let mut outages = Outages::none();
        outages.switches.extend(switches.iter().map(|at| at.get(network.switches()).id));
        let all = network.links();
        for (at, lower) in links.iter().filter(|_| !all.is_empty()) {
            let link = at.get(&all);
            outages.links.insert(match link.lower {
                Peer::Switch { switch, port } if *lower => (switch, port),
                _ => (link.upper, link.port),
            });
        }
        let everybody = || network.hosts().iter().map(|host| host.id);
        let ends = Ends::new(&network, everybody(), everybody());
        let routing = network.routing(&outages, &ends, &BTreeSet::new());
        check_all_pairs(&network, &routing);
        check_index_paths(&network, &routing);
        // Index packets arrive wherever the fat root of their path is above both ends.
        for a in network.hosts() {
            for b in network.hosts() {
                for path in 0..4 {
                    let leads = |root| routing.is_below(a.edge, root) && routing.is_above(root, b.edge);
                    let have_cables = routing.carries(a.edge, a.index) && routing.carries(b.edge, b.index);
                    let arrives = have_cables && routing.root_of(path).is_some_and(leads);
                    prop_assert_eq!(routing.index_path(a.id, b.id, path).is_some(), arrives);
                }
            }
        }
    }
}
