//! `router.p4`: LPM, TTL and checksum, counters, `switch` on the action that ran.

use fatbtree_switch::{CounterData, DropReason, MatchValue};

use crate::{ROUTER, Switch, internet_checksum, ipv4_frame};

const ROUTE: &str = "ingress.route";
const NEXT_HOP: &str = "ingress.next_hop";

fn prefix(value: u32, prefix_len: u16) -> [MatchValue; 1] {
    [MatchValue::Lpm { value: u64::from(value), prefix_len }]
}

fn router() -> Switch {
    let mut switch = Switch::new(ROUTER);
    switch.insert(ROUTE, &prefix(0x0a00_0000, 8), "ingress.to_next_hop", &[1]);
    switch.insert(ROUTE, &prefix(0x0a01_0000, 16), "ingress.to_next_hop", &[2]);
    switch.insert(ROUTE, &prefix(0x0a01_0200, 24), "ingress.drop", &[]);
    switch.insert(ROUTE, &prefix(0, 0), "ingress.to_next_hop", &[3]);
    for hop in 1..=2 {
        let params = [0x0200_0000_0100 + hop, 0x0200_0000_0200 + hop, 10 + hop];
        switch.insert(NEXT_HOP, &[MatchValue::Exact(hop)], "ingress.rewrite", &params);
    }
    switch
}

#[test]
fn a_packet_is_rewritten_and_sent_to_its_next_hop() {
    let mut switch = router();
    let frame = ipv4_frame(0x0102_0304, 0x0a01_0109, 64, 17, b"payload");
    let (port, sent) = switch.one(1, &frame).unwrap();
    assert_eq!(port, 12);
    assert_eq!(sent.len(), frame.len());
    assert_eq!(sent[..6], [2, 0, 0, 0, 2, 2]);
    assert_eq!(sent[6..12], [2, 0, 0, 0, 1, 2]);
    assert_eq!(sent[22], 63);
    assert_eq!(internet_checksum(&sent[14..34]), 0, "the header sums to zero with its checksum");
    let mut rest = frame.clone();
    rest[..12].copy_from_slice(&sent[..12]);
    rest[22] = sent[22];
    rest[24..26].copy_from_slice(&sent[24..26]);
    assert_eq!(sent, rest, "nothing else has changed");
}

#[test]
fn the_longest_prefix_wins_and_misses_drop() {
    let mut switch = router();
    let mut port_of = |dst| switch.one(1, &ipv4_frame(1, dst, 9, 6, &[])).map(|sent| sent.0);
    assert_eq!(port_of(0x0a02_0101), Some(11));
    assert_eq!(port_of(0x0a01_0101), Some(12));
    assert_eq!(port_of(0x0a01_0201), None); // its prefix says drop
    assert_eq!(port_of(0x0b00_0001), None); // next hop 3 has no entry
    assert_eq!(switch.pipeline.drops().count(DropReason::Ingress), 2);
}

#[test]
fn routes_change_while_packets_pass() {
    let mut switch = router();
    let frame = ipv4_frame(1, 0x0a01_0101, 9, 6, &[]);
    let route = switch.table(ROUTE);
    switch.pipeline.delete(route, &prefix(0x0a01_0000, 16), 0).unwrap();
    assert_eq!(switch.one(1, &frame).unwrap().0, 11);
    let (_, entry) = switch.entry(ROUTE, &prefix(0x0a00_0000, 8), "ingress.to_next_hop", &[2]);
    switch.pipeline.modify(route, &entry).unwrap();
    assert_eq!(switch.one(1, &frame).unwrap().0, 12);
    switch.pipeline.clear_table(route).unwrap();
    assert!(switch.one(1, &frame).is_none());
    let action = switch.pipeline.program().table_action(route, "ingress.to_next_hop").unwrap();
    let call = fatbtree_switch::ActionCall { action, params: vec![1] };
    switch.pipeline.set_default(route, Some(&call)).unwrap();
    assert_eq!(switch.pipeline.default_action(route), Some(call));
    assert_eq!(switch.one(1, &frame).unwrap().0, 11);
    switch.pipeline.set_default(route, None).unwrap();
    assert!(switch.one(1, &frame).is_none());
}

#[test]
fn what_is_wrong_with_a_packet_reaches_the_program() {
    let mut switch = router();
    let good = ipv4_frame(1, 0x0a01_0101, 2, 6, b"x");
    assert!(switch.one(1, &good).is_some());
    let mut bad_sum = good.clone();
    bad_sum[25] ^= 1;
    assert!(switch.one(1, &bad_sum).is_none());
    let expired = ipv4_frame(1, 0x0a01_0101, 1, 6, b"x");
    assert!(switch.one(1, &expired).is_none());
    let mut version = good.clone();
    version[14] = 0x55;
    let sum = internet_checksum(&[&version[14..24], &[0, 0], &version[26..34]].concat());
    version[24..26].copy_from_slice(&sum.to_be_bytes());
    assert!(switch.one(1, &version).is_none(), "`verify` fails in the parser");
    assert!(switch.one(1, &good[..33]).is_none(), "too short for its header");
    assert!(switch.one(1, &[]).is_none());
    assert_eq!(switch.pipeline.drops().count(DropReason::Ingress), 5);
}

#[test]
fn counters_count_packets_and_bytes() {
    let mut switch = router();
    let frame = ipv4_frame(1, 0x0a01_0101, 64, 6, &[0; 66]);
    for _ in 0..3 {
        switch.one(1, &frame);
    }
    let expected = CounterData { packets: 3, bytes: 300 };
    let route = switch.table(ROUTE);
    let key = prefix(0x0a01_0000, 16);
    assert_eq!(switch.pipeline.direct_counter(route, &key, 0), Ok(expected));
    let counter = switch.pipeline.program().counter("ingress.next_hops").unwrap();
    assert_eq!(switch.pipeline.counter(counter, 2), Ok(expected));
    assert_eq!(switch.pipeline.counter(counter, 1), Ok(CounterData::default()));
    let counted: u64 = switch.pipeline.entries(route).map(|(_, counter)| counter.packets).sum();
    assert_eq!(counted, 3);

    // A new action keeps the count, a new entry starts at zero.
    let (_, entry) = switch.entry(ROUTE, &key, "ingress.drop", &[]);
    switch.pipeline.modify(route, &entry).unwrap();
    assert_eq!(switch.pipeline.direct_counter(route, &key, 0), Ok(expected));
    switch.pipeline.delete(route, &key, 0).unwrap();
    switch.pipeline.insert(route, &entry).unwrap();
    assert_eq!(switch.pipeline.direct_counter(route, &key, 0), Ok(CounterData::default()));
    switch.pipeline.set_counter(counter, 2, CounterData::default()).unwrap();
    assert_eq!(switch.pipeline.counter(counter, 2), Ok(CounterData::default()));
}
