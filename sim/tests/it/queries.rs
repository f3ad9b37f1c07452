//! Queries on their way through switches: the tables that lead index reads tell a query where to begin, and its server.

use crate::common;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use common::{Bench, Passing, Setup};
use fatbtree_controller::Budget;
use fatbtree_topology::{Cores, Host, HostId, Network as Topology, Peer};
use fatbtree_wire::query::{ANY_PARTITION, Op, QUERY_UDP_PORT, Query, QueryHeader};
use fatbtree_wire::{IndexFlags, IndexHeader};
use proptest::prelude::*;

/// Bytes before UDP's payload.
const HEADERS: usize = 14 + 20 + 8;

/// A UDP datagram to memory servers' port, with checksums that are right.
fn datagram(from: &Host, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    etherparse::PacketBuilder::ethernet2(from.mac.0, [2, 0, 0, 0, 0, 99])
        .ipv4(from.ip.octets(), to.octets(), 64)
        .udp(40_000, QUERY_UDP_PORT)
        .write(&mut frame, payload)
        .unwrap();
    frame
}

/// Whether IPv4's and UDP's checksums are right. (By hand: the mark of packets in flight is a bit that libraries take for 0.)
fn is_whole(frame: &[u8]) -> bool {
    let header =
        frame[14..34].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum::<u32>();
    let (ipv4, payload) = etherparse::Ipv4Header::from_slice(&frame[14..]).unwrap();
    let (udp, payload) = etherparse::UdpHeader::from_slice(payload).unwrap();
    (header & 0xffff) + (header >> 16) == 0xffff
        && udp.checksum == udp.calc_checksum_ipv4(&ipv4, payload).unwrap()
}

fn is_in_flight(frame: &[u8]) -> bool {
    frame[20] & 0x80 != 0
}

fn destination(frame: &[u8]) -> Ipv4Addr {
    Ipv4Addr::from(<[u8; 4]>::try_from(&frame[30..34]).unwrap())
}

fn networks() -> impl Strategy<Value = Topology> {
    let all = [
        Topology::one_core(4),
        Topology::fat_tree(4, Cores::All),
        Topology::leaf_spine(3, 2, 3),
        Topology::pair(5),
        Topology::single(8),
        Topology::folded(8, Vec::new()),
    ];
    prop::sample::select(all.map(Result::unwrap).to_vec())
}

fn keys() -> impl Strategy<Value = BTreeSet<u64>> {
    prop::collection::btree_set(prop_oneof![any::<u64>(), 0..5_000u64], 200..1500)
}

fn budget() -> impl Strategy<Value = Budget> {
    (4..60usize, prop::array::uniform10(0..30usize)).prop_map(|(fat_root_ranges, set_nodes)| Budget {
        fat_root_ranges,
        set_nodes,
        ..Budget::bmv2()
    })
}

/// Values that a client, or a forger, may put into the fields that switches write.
fn forged() -> impl Strategy<Value = (IndexHeader, u64)> {
    let anything = (any::<[u8; 4]>(), any::<u16>(), any::<u64>()).prop_map(|(bytes, partition, address)| {
        let [flags, epoch, levels, slice] = bytes;
        (
            IndexHeader {
                flags: IndexFlags(flags),
                epoch,
                levels,
                partition,
                slice,
                ..IndexHeader::default()
            },
            address,
        )
    });
    prop_oneof![2 => Just((IndexHeader::default(), 0)), 1 => anything]
}

fn bench(
    network: Topology,
    keys: BTreeSet<u64>,
    servers: u16,
    budget: Option<Budget>,
    client: usize,
) -> Bench {
    let mut hosts: Vec<HostId> = network.hosts().iter().map(|host| host.id).collect();
    let client = hosts.remove((7 * client) % hosts.len());
    let on: Vec<HostId> = (0..usize::from(servers)).map(|n| hosts[2 * n % hosts.len()]).collect();
    Bench::within(network, on, client, &Setup { keys, servers, budget, registered: false })
}

fn arrives(hops: &[Passing]) -> (HostId, &[u8]) {
    let last = hops.last().expect("the first switch forwards it");
    let Peer::Host(host) = last.at else { panic!("it ends inside of the network") };
    (host, &last.frame)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn queries_arrive_where_their_keys_are(
        network in networks(), keys in keys(), servers in 1..=4u16, budget in prop::option::weighted(0.85, budget()),
        client in 0..4usize, (walk, address) in forged(), path in 0..64u8, to in any::<prop::sample::Index>(),
        payload in prop::collection::vec(any::<u8>(), 0..40), damage in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let asked: Vec<u64> = keys.iter().flat_map(|key| [*key, key.wrapping_add(1)]).collect();
        let mut bench = bench(network, keys, servers, budget, client);
        let client = bench.network.tree().host(bench.client_host).clone();
        let sent_to = *to.get(&bench.server_hosts);
        for key in asked {
            let mut header = QueryHeader::request(Op::Get, key, 0, 7);
            header.walk = IndexHeader { key, path, ..walk };
            (header.address, header.total) = (address, payload.len() as u32);
            let server = bench.network.tree().host(sent_to).clone();
            let mut frame = datagram(&client, server.ip, &[&header.to_bytes()[..], &payload].concat());
            prop_assert!(is_whole(&frame));
            // Behind what a switch looks at: a flipped bit stays flipped, and the checksum says so.
            if let Some(at) = damage {
                let at = HEADERS + 32 + at.index(frame.len() - HEADERS - 32);
                frame[at] ^= 1;
            }
            let hops = bench.hops(bench.client_host, &frame);
            let (host, arrived) = arrives(&hops);
            prop_assert_eq!(is_whole(arrived), damage.is_none());
            for hop in &hops[..hops.len() - 1] {
                prop_assert!(is_in_flight(&hop.frame), "between switches");
                prop_assert_eq!(is_whole(&hop.frame), damage.is_none());
            }
            prop_assert!(!is_in_flight(arrived));

            // Where the plan leads it: to the server of the key, whatever its destination was.
            let landing = bench.plan.as_ref().map(|plan| plan.resolve(key)).filter(|landing| landing.levels > 0);
            let partition = bench.roots.partition_of(key).id;
            let expected = if landing.is_some() { bench.server_hosts[usize::from(partition)] } else { sent_to };
            prop_assert_eq!(host, expected);
            let expected = bench.network.tree().host(expected);
            prop_assert_eq!((destination(arrived), &arrived[..6]), (expected.ip, &expected.mac.0[..]));
            let walk = IndexHeader::parse(arrived[HEADERS..HEADERS + 16].try_into().unwrap()).unwrap();
            prop_assert_eq!((walk.key, walk.path, walk.slice), (key, path, 0), "a query has no slice");
            let address = u64::from_be_bytes(arrived[HEADERS + 16..HEADERS + 24].try_into().unwrap());
            match landing {
                Some(landing) => {
                    prop_assert_eq!((walk.partition, address), (partition, landing.address));
                    prop_assert_eq!(usize::from(walk.levels), usize::from(landing.levels));
                }
                None => prop_assert_eq!((walk.partition, address), (ANY_PARTITION, 0)),
            }
            prop_assert_eq!(&arrived[HEADERS + 24..], &frame[HEADERS + 24..], "the rest is the client's");
            if damage.is_none() {
                prop_assert_eq!(Query::parse(&arrived[HEADERS..]).unwrap().part, &payload[..]);
            }
        }
    }

    /// Datagrams that are no query, or that have no checksum which a switch could keep right.
    #[test]
    fn others_on_that_port_pass_as_they_are(
        network in networks(), payload in prop::collection::vec(any::<u8>(), 0..200), has_checksum in any::<bool>(),
    ) {
        let mut bench = bench(network, (0..3000).collect(), 2, Some(Budget::bmv2()), 1);
        let client = bench.network.tree().host(bench.client_host).clone();
        let server = bench.network.tree().host(bench.server_hosts[1]).clone();
        let mut frame = datagram(&client, server.ip, &payload);
        if !has_checksum {
            frame[40..42].fill(0);
        } else if payload.len() >= QueryHeader::LEN {
            // Long enough, but of another version.
            frame = datagram(&client, server.ip, &[&[payload[0] | 0x80], &payload[1..]].concat());
        }
        let hops = bench.hops(bench.client_host, &frame);
        let (host, arrived) = arrives(&hops);
        prop_assert_eq!(host, bench.server_hosts[1]);
        prop_assert_eq!(&arrived[34..], &frame[34..]);
        prop_assert!(!is_in_flight(arrived));
    }
}
