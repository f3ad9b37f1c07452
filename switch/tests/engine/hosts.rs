//! The project's own data plane, as hosts meet it: their neighbours, what passes untouched, and what is not believed.

use fatbtree_switch::MatchValue;

use crate::fatbtree::{CLIENT, CLIENT_MAC, CLIMBING, HOST, INNER, Index, LEAF, Read, SERVER, TRUNK, switch};
use crate::{Switch, internet_checksum, ipv4_frame};

const EXACT: fn(u64) -> MatchValue = MatchValue::Exact;
/// The switch itself.
const GATEWAY: u32 = 0x0a00_00fe;
const GATEWAY_MAC: u64 = 0x0200_0a00_00fe;
const SERVER_MAC: u64 = 0x0200_0a01_0001;
const SERVER_PORT: u16 = 4;
const ELSEWHERE: u64 = 511;
const CPU: u16 = 510;

/// Indices of `drops`.
const NOT_IP: usize = 1;
const IPV6: usize = 2;
const DAMAGED: usize = 3;
const OPTIONS: usize = 4;
const TTL: usize = 5;
const NO_ROUTE: usize = 6;
const FORGED: usize = 7;
const ARP: usize = 8;
const TO_SWITCH: usize = 9;
const REASONS: usize = 10;

/// A switch with the client at `HOST`, the server at another switch behind `SERVER_PORT`, and an address of its own.
fn edge() -> Switch {
    let mut edge = switch();
    let mut route = |ip: u32, port: u16| {
        let key = [MatchValue::Lpm { value: ip.into(), prefix_len: 32 }];
        edge.insert("ingress.forwarding.ipv4_route", &key, "ingress.forwarding.forward", &[port.into()]);
    };
    route(CLIENT, HOST);
    route(SERVER, SERVER_PORT);
    let mut neighbor = |ip: u32, action: &str, params: &[u64]| {
        let action = format!("ingress.host_port.{action}");
        edge.insert("ingress.host_port.neighbor", &[EXACT(ip.into())], &action, params);
    };
    neighbor(CLIENT, "host", &[CLIENT_MAC, HOST.into()]);
    neighbor(SERVER, "host", &[SERVER_MAC, ELSEWHERE]);
    neighbor(GATEWAY, "this_switch", &[GATEWAY_MAC]);
    let port = [EXACT(HOST.into())];
    edge.insert("egress.to_host.host_port", &port, "egress.to_host.address_to", &[CLIENT_MAC, CLIENT.into()]);
    edge
}

fn mac(number: u64) -> [u8; 6] {
    number.to_be_bytes()[2..].try_into().unwrap()
}

/// An ARP packet with this operation, of the client's.
fn arp(operation: u8, sender: u32, target: u32) -> Vec<u8> {
    let mut frame = [&[0xff; 6], &mac(CLIENT_MAC)[..], &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]].concat();
    frame.extend(mac(CLIENT_MAC));
    frame.extend(sender.to_be_bytes());
    frame.extend([0; 6]);
    frame.extend(target.to_be_bytes());
    frame.resize(60, 0);
    frame
}

/// The same with an 802.1Q tag: priority 5, VLAN 7.
fn tagged(frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, 0xa0, 7], &frame[12..]].concat()
}

/// Replaces a byte of the IPv4 header, and keeps the checksum right.
fn with_byte(mut frame: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    frame[at] = byte;
    frame[24..26].fill(0);
    let end = 14 + 4 * usize::from(frame[14] & 15);
    let sum = internet_checksum(&frame[14..end]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Packets that the switch has dropped, by reason.
fn drops(switch: &Switch) -> [u64; REASONS] {
    let drops = switch.pipeline.program().counter("ingress.drops").unwrap();
    std::array::from_fn(|reason| switch.pipeline.counter(drops, reason as u64).unwrap().packets)
}

/// The frame is dropped, for this reason alone; perhaps the controller gets a sample of it as it was.
fn dropped(switch: &mut Switch, port: u16, frame: &[u8], reason: usize) -> bool {
    let mut expected = drops(switch);
    expected[reason] += 1;
    let sample = switch.one(port, frame);
    assert_eq!(drops(switch), expected);
    if let Some((to, sample)) = &sample {
        let header = u16::from_be_bytes([sample[0], sample[1]]);
        assert_eq!((*to, header, usize::from(sample[2])), (CPU, port, reason));
        assert_eq!(&sample[3..], frame);
    }
    sample.is_some()
}

#[test]
fn arp_is_answered_for_hosts_and_for_the_switch() {
    let mut edge = edge();
    for (target, owner) in [(SERVER, SERVER_MAC), (GATEWAY, GATEWAY_MAC)] {
        let (port, answer) = edge.one(HOST, &arp(1, CLIENT, target)).unwrap();
        assert_eq!(port, HOST);
        assert_eq!((&answer[..6], &answer[6..12]), (&mac(CLIENT_MAC)[..], &mac(owner)[..]));
        assert_eq!(answer[12..22], [8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
        assert_eq!((&answer[22..28], &answer[28..32]), (&mac(owner)[..], &target.to_be_bytes()[..]));
        assert_eq!((&answer[32..38], &answer[38..42]), (&mac(CLIENT_MAC)[..], &CLIENT.to_be_bytes()[..]));
        assert_eq!(answer.len(), 60);
        let (_, in_vlan) = edge.one(HOST, &tagged(&arp(1, CLIENT, target))).unwrap();
        assert_eq!(in_vlan, tagged(&answer));
    }
    // A host that probes its own address, or announces it, must not receive an answer for itself.
    dropped(&mut edge, HOST, &arp(1, 0, CLIENT), ARP);
    dropped(&mut edge, HOST, &arp(1, CLIENT, CLIENT), ARP);
    // It receives answers of others: an address that is taken is found out.
    assert_eq!(edge.one(HOST, &arp(1, 0, SERVER)).unwrap().0, HOST);
    dropped(&mut edge, HOST, &arp(1, CLIENT, 0x0a09_0909), ARP);
    dropped(&mut edge, HOST, &arp(2, CLIENT, SERVER), ARP);
    dropped(&mut edge, TRUNK, &arp(1, CLIENT, SERVER), ARP);
    dropped(&mut edge, HOST, &arp(1, CLIENT, SERVER)[..30], DAMAGED);
    let mut of_another_kind = arp(1, CLIENT, SERVER);
    of_another_kind[15] = 6;
    dropped(&mut edge, HOST, &of_another_kind, ARP);
}

#[test]
fn the_switch_answers_echo_requests_to_itself() {
    let mut edge = edge();
    // Checksums with and without a carry, of any payload.
    for id in 0..=u16::MAX {
        let mut icmp = vec![8, 0, 0, 0];
        icmp.extend(id.to_be_bytes());
        icmp.extend(b"\x00\x01ping");
        let sum = internet_checksum(&icmp);
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        let (port, answer) = edge.one(HOST, &ipv4_frame(CLIENT, GATEWAY, 1, 1, &icmp)).unwrap();
        assert_eq!(port, HOST);
        assert_eq!((&answer[..6], &answer[6..12]), (&mac(CLIENT_MAC)[..], &mac(GATEWAY_MAC)[..]));
        assert_eq!(answer[26..34], [GATEWAY.to_be_bytes(), CLIENT.to_be_bytes()].concat());
        assert_eq!((internet_checksum(&answer[14..34]), internet_checksum(&answer[34..])), (0, 0), "{id}");
        assert_eq!((answer[22], answer[34], answer[35]), (64, 0, 0));
        assert_eq!(answer[38..], icmp[4..]);
    }
    dropped(&mut edge, HOST, &ipv4_frame(CLIENT, GATEWAY, 64, 17, &[0; 20]), TO_SWITCH);
    dropped(&mut edge, HOST, &ipv4_frame(CLIENT, GATEWAY, 64, 1, &[13, 0, 0, 0, 0, 0, 0, 0]), TO_SWITCH);
}

#[test]
fn a_packet_is_addressed_to_the_host_it_is_for_by_the_last_switch() {
    let mut edge = edge();
    let to_gateway = ipv4_frame(SERVER, CLIENT, 64, 6, b"tcp");
    let (port, sent) = edge.one(TRUNK, &to_gateway).unwrap();
    assert_eq!((port, &sent[..6], &sent[6..12]), (HOST, &mac(CLIENT_MAC)[..], &to_gateway[6..12]));
    let (_, in_vlan) = edge.one(TRUNK, &tagged(&to_gateway)).unwrap();
    assert_eq!(in_vlan, tagged(&sent));
    let away = ipv4_frame(CLIENT, SERVER, 64, 6, b"tcp");
    assert_eq!(edge.one(HOST, &away).unwrap().1[..12], away[..12]);
}

/// The network is one hop to its hosts.
#[test]
fn packets_arrive_whatever_their_hop_limit() {
    let mut edge = edge();
    for (ttl, left) in [(1, 16), (2, 16), (15, 16), (16, 15), (64, 63), (255, 254)] {
        let (_, sent) = edge.one(HOST, &ipv4_frame(CLIENT, SERVER, ttl, 6, b"tcp")).unwrap();
        assert_eq!((sent[22], internet_checksum(&sent[14..34])), (left, 0));
    }
    dropped(&mut edge, HOST, &ipv4_frame(CLIENT, SERVER, 0, 6, b"tcp"), TTL);
    // Between switches it ends loops.
    assert_eq!(edge.one(TRUNK, &ipv4_frame(SERVER, CLIENT, 2, 6, b"tcp")).unwrap().1[22], 1);
    dropped(&mut edge, TRUNK, &ipv4_frame(SERVER, CLIENT, 1, 6, b"tcp"), TTL);
}

#[test]
fn what_is_dropped_is_counted_by_reason() {
    let mut edge = edge();
    let frame = ipv4_frame(CLIENT, SERVER, 9, 6, b"tcp");
    dropped(&mut edge, HOST, &ipv4_frame(CLIENT, 5, 9, 6, b"tcp"), NO_ROUTE);
    dropped(&mut edge, HOST, &frame[..20], DAMAGED);
    let mut damaged = frame.clone();
    damaged[17] ^= 4;
    dropped(&mut edge, HOST, &damaged, DAMAGED);
    let ether_type = |kind: u16| [&frame[..12], &kind.to_be_bytes()[..], &frame[14..]].concat();
    dropped(&mut edge, HOST, &ether_type(0x86dd), IPV6);
    dropped(&mut edge, HOST, &tagged(&ether_type(0x86dd)), IPV6);
    dropped(&mut edge, HOST, &ether_type(0x8847), NOT_IP);
    dropped(&mut edge, HOST, &tagged(&tagged(&frame)), NOT_IP);
    let options = with_byte([&frame[..34], &[7, 4, 0, 0], &frame[34..]].concat(), 14, 0x46);
    dropped(&mut edge, HOST, &options, OPTIONS);
    // Fragments pass: they are no index packets, whatever is in them.
    let read = Read { index: None, va: 7, rkey: 0 }.frame(1);
    let refused = edge.pipeline.program().counter("ingress.first_hop.refused_index_reads").unwrap();
    for fragment in [with_byte(read.clone(), 20, 0x20), with_byte(read, 21, 5)] {
        assert_eq!(edge.one(HOST, &fragment).unwrap().0, SERVER_PORT);
        assert_eq!(edge.pipeline.counter(refused, 0).unwrap().packets, 0);
    }
    // The controller sees one of sixteen.
    let samples = (0..1600).filter(|_| dropped(&mut edge, HOST, &damaged, DAMAGED)).count();
    assert!((50..200).contains(&samples), "{samples}");
}

/// An index header from a host, with each combination of flags: nothing is walked or counted, and nothing leaves the switch.
#[test]
fn an_index_header_from_a_host_is_not_believed() {
    let mut edge = edge();
    edge.insert("ingress.forwarding.partition_route", &[EXACT(2)], "ingress.forwarding.forward", &[9]);
    let node = [EXACT(6), EXACT(0xa)];
    let form = "ingress.node_set_a.quarter_by_high";
    edge.insert("ingress.node_set_a.coarse", &node, form, &[1, 2, 3, 1, 64, 1, 0]);
    for flags in [0, CLIMBING, INNER, LEAF, CLIMBING | INNER | LEAF] {
        let index = Index { flags, epoch: 6, levels: 1, partition: 2, path: 3, slice: 0xf8, key: 7 };
        let forged = Read { index: Some(index), va: 0xa, rkey: 99 }.frame(1);
        dropped(&mut edge, HOST, &forged, FORGED);
        assert_eq!(edge.one(TRUNK, &forged).unwrap().0, 9);
        // A packet with only the in-flight mark is no index packet, whatever its port.
        dropped(&mut edge, HOST, &with_byte(forged.clone(), 23, 6), FORGED);
        dropped(&mut edge, TRUNK, &with_byte(forged.clone(), 23, 6), DAMAGED);
        // And what is merely sent to the port of index packets is a host's own affair.
        let foreign = with_byte(forged, 20, 0x40);
        for port in [HOST, TRUNK] {
            let (to, sent) = edge.one(port, &foreign).unwrap();
            assert_eq!((to, &sent[34..]), (SERVER_PORT, &foreign[34..]));
        }
    }
    let coarse = edge.table("ingress.node_set_a.coarse");
    let visits: u64 = edge.pipeline.entries(coarse).map(|(_, counter)| counter.packets).sum();
    assert_eq!(visits, 2, "those from the other switch that stood at the node");
}

#[test]
fn congestion_marks_and_queues() {
    let mut edge = edge();
    edge.insert("ingress.traffic_class", &[EXACT(26)], "ingress.assign", &[3]);
    for tos in [0, 1, 2, 3, 26 << 2 | 2] {
        let frame = with_byte(ipv4_frame(CLIENT, SERVER, 64, 6, b"tcp"), 15, tos);
        let (_, sent) = edge.one(HOST, &frame).unwrap();
        assert_eq!((sent[15], internet_checksum(&sent[14..34])), (tos, 0));
    }
}

/// Frames from the controller leave as they are; its probes come back from the next switch, and from no other
/// device.
#[test]
fn the_controller_talks_through_its_port() {
    let mut edge = edge();
    let probe = [&[1, 0x80, 0xc2, 0, 0, 0x0e, 2, 0, 0, 0, 0, 1, 0x88, 0xb5][..], b"probe"].concat();
    let out = [&TRUNK.to_be_bytes()[..], &probe].concat();
    assert_eq!(edge.one(CPU, &out), Some((TRUNK, probe.clone())));
    let (port, found) = edge.one(TRUNK, &probe).unwrap();
    assert_eq!((port, found), (CPU, [&TRUNK.to_be_bytes()[..], &[0], &probe].concat()));
    dropped(&mut edge, HOST, &probe, NOT_IP);
}

/// A frame too short for an EtherType has none: BMv2 would still find the one of the packet before in a header that it has not read.
#[test]
fn a_stump_behind_a_probe_is_no_probe() {
    let mut edge = edge();
    let probe = [&[1, 0x80, 0xc2, 0, 0, 0x0e, 2, 0, 0, 0, 0, 1, 0x88, 0xb5][..], b"probe"].concat();
    for length in 1..14 {
        assert_eq!(edge.one(TRUNK, &probe).unwrap().0, CPU);
        dropped(&mut edge, TRUNK, &probe[..length], DAMAGED);
    }
}
