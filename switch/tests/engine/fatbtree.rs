//! The project's own data plane: what one switch does to an index packet, against the definitions.

use std::collections::BTreeMap;

use fatbtree_switch::{ActionCall, MatchValue};
use proptest::prelude::*;

use crate::tunnel::crc32;
use crate::{FATBTREE, Switch, internet_checksum, ipv4_frame};

const EXACT: fn(u64) -> MatchValue = MatchValue::Exact;

/// The header between UDP and BTH, as `Frame` carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Index {
    flags: u8,
    epoch: u8,
    levels: u8,
    partition: u16,
    node_id: u16,
    key: u64,
}

/// A READ request, with or without the index header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Read {
    index: Option<Index>,
    va: u64,
    rkey: u32,
}

const SERVER: u32 = 0x0a01_0001;
const CLIENT: u32 = 0x0a00_0001;
const QP: u32 = 0x77;
/// FECN and BECN in BTH, which the ICRC leaves out.
const CONGESTION: u8 = 0x80;

impl Index {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![1, self.flags, self.epoch, self.levels];
        bytes.extend(self.partition.to_be_bytes());
        bytes.extend(self.node_id.to_be_bytes());
        bytes.extend(self.key.to_be_bytes());
        bytes
    }
}

impl Read {
    /// The frame, with `icrc` as the last four bytes, least significant first.
    fn frame(&self, icrc: u32) -> Vec<u8> {
        let index = self.index.map_or(Vec::new(), |i| i.bytes());
        let mut udp = vec![0xc0, 0x01, 0x12, if index.is_empty() { 0xb7 } else { 0xb8 }];
        udp.extend((40 + index.len() as u16).to_be_bytes());
        udp.extend([0, 0]);
        udp.extend(&index);
        udp.extend([0x0c, 0, 0xff, 0xff, CONGESTION]);
        udp.extend(&QP.to_be_bytes()[1..]);
        udp.extend([0x80, 0, 0, 5]);
        udp.extend(self.va.to_be_bytes());
        udp.extend(self.rkey.to_be_bytes());
        udp.extend(512u32.to_be_bytes());
        udp.extend(icrc.to_le_bytes());
        ipv4_frame(CLIENT, SERVER, 64, 17, &udp)
    }

    fn parse(frame: &[u8]) -> (Read, u32) {
        assert_eq!(internet_checksum(&frame[14..34]), 0);
        let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let with_index = frame.len() == 14 + 20 + 56;
        let reth = if with_index { 70 } else { 54 };
        let index = with_index.then(|| {
            assert_eq!(word(42) >> 24, 1);
            let [_, flags, epoch, levels] = word(42).to_be_bytes();
            Index {
                flags,
                epoch,
                levels,
                partition: (word(46) >> 16) as u16,
                node_id: word(46) as u16,
                key: long(50),
            }
        });
        (Read { index, va: long(reth), rkey: word(reth + 8) }, word(reth + 16).swap_bytes())
    }

    /// What the ICRC depends on, beside what never changes.
    fn covered(&self) -> Vec<u8> {
        let mut bytes = match &self.index {
            Some(index) => [index.bytes(), vec![0x02, 0, 0, 0, 0, 1, CONGESTION]].concat(),
            None => vec![0; 23],
        };
        bytes.extend(self.va.to_be_bytes());
        bytes.extend(self.rkey.to_be_bytes());
        bytes.extend([0; 4]);
        bytes
    }

    /// `icrc` of this packet, turned into that of `other`.
    fn mend(&self, other: &Read, icrc: u32) -> u32 {
        icrc ^ crc32(&self.covered()) ^ crc32(&other.covered())
    }
}

/// Sends `read` and checks that what comes out is `expected`, with the ICRC mended.
fn check(switch: &mut Switch, read: Read, expected_port: u16, expected: Read) {
    let icrc = 0x1234_5678;
    let (port, sent) = switch.one(1, &read.frame(icrc)).expect("dropped");
    let (out, mended) = Read::parse(&sent);
    assert_eq!(out, expected);
    assert_eq!(port, expected_port);
    assert_eq!(mended, read.mend(&expected, icrc));
    assert_eq!(sent[22], 63);
}

fn default_action(switch: &mut Switch, table: &str, action: &str, params: &[u64]) {
    let table = switch.table(table);
    let action = switch.pipeline.program().table_action(table, action).unwrap();
    switch.pipeline.set_default(table, Some(&ActionCall { action, params: params.to_vec() })).unwrap();
}

#[test]
fn first_hop_core_and_last_hop() {
    let ask = Read { index: None, va: 0xabcd_0000_0000_0001, rkey: 0 };
    let plain_route = [MatchValue::Lpm { value: u64::from(SERVER), prefix_len: 32 }];
    let connection = [EXACT(u64::from(CLIENT)), EXACT(u64::from(SERVER)), EXACT(u64::from(QP))];

    let mut first = Switch::new(FATBTREE);
    first.insert("ingress.forwarding.ipv4_route", &plain_route, "ingress.forwarding.forward", &[4]);
    check(&mut first, ask, 4, ask); // not registered: passes unchanged, and is counted
    let counter = first.pipeline.program().counter("ingress.first_hop.unregistered_index_reads").unwrap();
    assert_eq!(first.pipeline.counter(counter, 0).unwrap().packets, 1);
    first.insert(
        "ingress.first_hop.roce_connection",
        &connection,
        "ingress.first_hop.admit",
        &[99, 2, 0x2_0000_0000_0040],
    );
    default_action(&mut first, "ingress.forwarding.core_route", "ingress.forwarding.climb", &[7]);
    let index = Index { flags: 1, epoch: 0, levels: 0, partition: 2, node_id: 0, key: ask.va };
    let climbing = Read { index: Some(index), va: 0x2_0000_0000_0040, rkey: 99 };
    check(&mut first, ask, 7, climbing);

    let mut core = Switch::new(FATBTREE);
    core.insert("ingress.forwarding.partition_route", &[EXACT(2)], "ingress.forwarding.forward", &[3]);
    default_action(&mut core, "ingress.forwarding.core_route", "ingress.forwarding.descend", &[6, 20]);
    let range = |id, low, high| [EXACT(id), MatchValue::Range { low, high }];
    core.insert_at(
        1,
        "ingress.fat_root.fat_root_0",
        &range(20, 0xa000, 0xafff),
        "ingress.fat_root.next_table_0",
        &[22],
    );
    core.insert_at(
        2,
        "ingress.fat_root.fat_root_0",
        &range(20, 0xb000, 0xffff),
        "ingress.fat_root.land_0",
        &[0xb, 2, 5],
    );
    core.insert_at(
        1,
        "ingress.fat_root.fat_root_1",
        &range(22, 0, 0xffff),
        "ingress.fat_root.land_1",
        &[0xa, 2, 4],
    );
    let landed = |address, node_id| {
        let index = Index { flags: 0, epoch: 6, levels: 1, node_id, ..index };
        Read { index: Some(index), va: address, rkey: 99 }
    };
    check(&mut core, climbing, 3, landed(0xa, 4));
    let mut other_key = climbing;
    other_key.index = Some(Index { key: 0xffff_ffff_ffff_ffff, ..index });
    let mut expected = landed(0xb, 5);
    expected.index = expected.index.map(|i| Index { key: u64::MAX, ..i });
    check(&mut core, other_key, 3, expected);

    let mut last = Switch::new(FATBTREE);
    last.insert("ingress.forwarding.partition_route", &[EXACT(2)], "ingress.forwarding.forward", &[9]);
    last.insert("egress.last_hop.last_hop", &[EXACT(9)], "egress.last_hop.strip", &[]);
    check(&mut last, landed(0xa, 4), 9, Read { index: None, va: 0xa, rkey: 99 });
}

#[test]
fn packets_that_are_no_index_reads_are_routed_or_dropped() {
    let mut switch = Switch::new(FATBTREE);
    let route = [MatchValue::Lpm { value: u64::from(SERVER), prefix_len: 32 }];
    switch.insert("ingress.forwarding.ipv4_route", &route, "ingress.forwarding.forward", &[4]);
    let drops = switch.pipeline.program().counter("ingress.drops").unwrap();
    let frame = ipv4_frame(CLIENT, SERVER, 9, 6, b"tcp");
    assert_eq!(switch.one(1, &frame).unwrap().0, 4);
    assert!(switch.one(1, &ipv4_frame(CLIENT, SERVER, 1, 6, b"tcp")).is_none());
    assert!(switch.one(1, &ipv4_frame(CLIENT, 5, 9, 6, b"tcp")).is_none());
    assert!(switch.one(1, &frame[..20]).is_none());
    let counts: Vec<u64> =
        (0..4).map(|reason| switch.pipeline.counter(drops, reason).unwrap().packets).collect();
    assert_eq!(counts, [1, 0, 1, 1]);
}

/// A cached node with children that begin at these keys, at most 16.
fn load_node(switch: &mut Switch, set: char, id: u64, pivots: &[u64]) {
    let set = format!("ingress.node_set_{set}");
    let last_before = |branch: usize| pivots.get(branch).map_or(u64::MAX, |pivot| pivot - 1);
    let mut insert = |table: &str, key: &[u64], action: &str, params: &[u64]| {
        let key: Vec<_> = [3, id].iter().chain(key).copied().map(EXACT).collect();
        switch.insert(&format!("{set}.{table}"), &key, &format!("{set}.{action}"), params);
    };
    insert("coarse", &[], "compare_quarters", &[4, 8, 12].map(last_before));
    for quarter in 0..4 {
        let last = [1, 2, 3].map(|child| last_before(4 * quarter + child));
        insert("fine", &[quarter as u64], "compare_children", &last);
    }
    for child in 0..pivots.len() {
        insert("child", &[child as u64], "descend_to", &[address(id, child), 100 + child as u64]);
    }
}

const SERVER_OF_NODE: u64 = 0xabcd << 48;

fn address(id: u64, child: usize) -> u64 {
    id << 20 | (child as u64) << 8
}

proptest! {
    /// Wherever the key lies, the packet goes on to the child whose range it is in. The comparison is made of 32-bit pieces: keys and pivots that differ in one half only, or
    /// in the top bits, are the interesting ones.
    #[test]
    fn a_node_set_finds_the_child(
        halves in prop::collection::btree_set((0..6usize, 0..6usize), 1..16),
        probes in prop::collection::vec((0..6usize, 0..6usize, -1..=1i64), 1..20),
        random in prop::collection::vec(any::<u64>(), 0..5),
        set in prop::bool::ANY,
    ) {
        const HALVES: [u64; 6] = [0, 1, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, 0xffff_ffff];
        let key = |(high, low): (usize, usize)| HALVES[high] << 32 | HALVES[low];
        // The first child's range begins where the node's does: here, at 0.
        let pivots: Vec<u64> = [0].into_iter().chain(halves.into_iter().map(key).filter(|&k| k > 0)).collect();
        let mut switch = Switch::new(FATBTREE);
        load_node(&mut switch, if set { 'a' } else { 'b' }, 9, &pivots);
        switch.insert("ingress.forwarding.partition_route", &[EXACT(1)], "ingress.forwarding.forward", &[5]);
        let near = probes.into_iter().map(|(high, low, by)| key((high, low)).wrapping_add_signed(by));
        let mut hits = BTreeMap::new();
        for key in near.chain(random) {
            let index = Index { flags: 0, epoch: 3, levels: 4, partition: 1, node_id: 9, key };
            let read = Read { index: Some(index), va: SERVER_OF_NODE | 0x55, rkey: 8 };
            let child = pivots.partition_point(|&pivot| pivot <= key) - 1;
            *hits.entry(child).or_insert(0u64) += 1;
            let index = Index { node_id: 100 + child as u16, levels: 5, ..index };
            // The server, the upper 16 bits of the address, stays.
            let expected = Read { index: Some(index), va: SERVER_OF_NODE | address(9, child), ..read };
            check(&mut switch, read, 5, expected);
        }
        let child = switch.table(if set { "ingress.node_set_a.child" } else { "ingress.node_set_b.child" });
        let counted: u64 = switch.pipeline.entries(child).map(|(_, counter)| counter.packets).sum();
        prop_assert_eq!(counted, hits.values().sum::<u64>());
    }
}
