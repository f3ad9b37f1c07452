//! The project's own data plane: what one switch does to an index packet, against the definitions.

use fatbtree_switch::{ActionCall, MatchValue};
use proptest::prelude::*;

use crate::tunnel::crc32;
use crate::{FATBTREE, Switch, internet_checksum, ipv4_frame};

const EXACT: fn(u64) -> MatchValue = MatchValue::Exact;

/// The header between UDP and BTH, as `Frame` carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Index {
    pub(crate) flags: u8,
    pub(crate) epoch: u8,
    pub(crate) levels: u8,
    pub(crate) partition: u16,
    pub(crate) path: u8,
    pub(crate) slice: u8,
    pub(crate) key: u64,
}

/// A READ request, with or without the index header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) index: Option<Index>,
    pub(crate) va: u64,
    pub(crate) rkey: u32,
}

pub(crate) const SERVER: u32 = 0x0a01_0001;
pub(crate) const CLIENT: u32 = 0x0a00_0001;
/// Source address of `ipv4_frame`.
pub(crate) const CLIENT_MAC: u64 = 0x0200_0000_0001;
const QP: u32 = 0x77;
/// The port of hosts here, and one that leads to another switch.
pub(crate) const HOST: u16 = 1;
pub(crate) const TRUNK: u16 = 2;
/// UDP ports of RoCE, and of index packets between switches.
const ROCE: u64 = 4791;
const IN_FLIGHT: u64 = 4792;
const MTU: u64 = 1024;
/// Flags of the index header.
pub(crate) const CLIMBING: u8 = 1;
pub(crate) const INNER: u8 = 2;
pub(crate) const LEAF: u8 = 4;
/// Version of the index header.
const VERSION: u8 = 4;
/// FECN and BECN in BTH, which the ICRC leaves out.
const CONGESTION: u8 = 0x80;

impl Index {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION, self.flags, self.epoch, self.levels];
        bytes.extend(self.partition.to_be_bytes());
        bytes.extend([self.path, self.slice]);
        bytes.extend(self.key.to_be_bytes());
        bytes
    }
}

impl Read {
    /// The frame, with `icrc` as the last four bytes, least significant first.
    pub(crate) fn frame(&self, icrc: u32) -> Vec<u8> {
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
        let mut frame = ipv4_frame(CLIENT, SERVER, 64, 17, &udp);
        if self.index.is_some() {
            // The mark of packets in flight.
            frame[20] |= 0x80;
            frame[24..26].fill(0);
            let sum = internet_checksum(&frame[14..34]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        frame
    }

    pub(crate) fn parse(frame: &[u8]) -> (Read, u32) {
        assert_eq!(internet_checksum(&frame[14..34]), 0);
        let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let with_index = frame[20] & 0x80 != 0;
        assert_eq!(frame.len(), if with_index { 90 } else { 74 });
        assert_eq!(word(36) >> 16, if with_index { IN_FLIGHT } else { ROCE } as u32);
        let reth = if with_index { 70 } else { 54 };
        let index = with_index.then(|| {
            let [version, flags, epoch, levels] = word(42).to_be_bytes();
            assert_eq!(version, VERSION);
            let [high, low, path, slice] = word(46).to_be_bytes();
            let partition = u16::from_be_bytes([high, low]);
            Index { flags, epoch, levels, partition, path, slice, key: long(50) }
        });
        (Read { index, va: long(reth), rkey: word(reth + 8) }, word(reth + 16).swap_bytes())
    }

    /// Bytes that the ICRC depends on, beside those that never change.
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

/// The way that the connection's packets take.
fn path() -> u8 {
    let connection = [&CLIENT.to_be_bytes()[..], &QP.to_be_bytes()[1..]].concat();
    crc32(&connection) as u8 & 63
}

/// Match values of `roce_connection`.
fn connection() -> [MatchValue; 5] {
    [u64::from(HOST), CLIENT_MAC, CLIENT.into(), SERVER.into(), QP.into()].map(EXACT)
}

/// Action parameters of `roce_connection`.
fn admit(rkey: u64, partition: u64, root: u64) -> [u64; 5] {
    [rkey, partition, root, IN_FLIGHT, MTU]
}

/// A switch with a port that leads to another one.
pub(crate) fn switch() -> Switch {
    let mut switch = Switch::new(FATBTREE);
    switch.insert("ingress.trunks.trunk_port", &[EXACT(TRUNK.into())], "ingress.trunks.trunk", &[]);
    switch
}

/// The climb goes this way.
fn climb(switch: &mut Switch, path: u8, port: u64) {
    let key = [EXACT(path.into())];
    switch.insert("ingress.climb.core_route", &key, "ingress.climb.climb", &[port]);
}

/// A switch that sends what is not an index read to the server by port 4.
fn first_switch() -> Switch {
    let mut first = switch();
    let route = [MatchValue::Lpm { value: u64::from(SERVER), prefix_len: 32 }];
    first.insert("ingress.forwarding.ipv4_route", &route, "ingress.forwarding.forward", &[4]);
    first
}

/// The server of partition 2 is at port 9.
fn last_switch() -> Switch {
    let mut last = switch();
    last.insert("ingress.forwarding.partition_route", &[EXACT(2)], "ingress.forwarding.forward", &[9]);
    let to_roce = ROCE.wrapping_sub(IN_FLIGHT) & 0xffff;
    last.insert("egress.last_hop.last_hop", &[EXACT(9)], "egress.last_hop.strip", &[to_roce]);
    last
}

/// Sends `read` and checks that what comes out is `expected`, with the ICRC mended.
fn check(switch: &mut Switch, read: Read, expected_port: u16, expected: Read) {
    let icrc = 0x1234_5678;
    let from = if read.index.is_some() { TRUNK } else { HOST };
    let (port, sent) = switch.one(from, &read.frame(icrc)).expect("dropped");
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

    let mut first = switch();
    first.insert("ingress.forwarding.ipv4_route", &plain_route, "ingress.forwarding.forward", &[4]);
    check(&mut first, ask, 4, ask); // not registered: passes unchanged, and is counted
    let counter = first.pipeline.program().counter("ingress.first_hop.refused_index_reads").unwrap();
    assert_eq!(first.pipeline.counter(counter, 0).unwrap().packets, 1);
    first.insert(
        "ingress.first_hop.roce_connection",
        &connection(),
        "ingress.first_hop.admit",
        &admit(99, 2, 0x2_0000_0000_0040),
    );
    let path = path();
    climb(&mut first, path, 7);
    let index = Index { flags: CLIMBING, epoch: 0, levels: 0, partition: 2, path, slice: 0, key: ask.va };
    let climbing = Read { index: Some(index), va: 0x2_0000_0000_0040, rkey: 99 };
    check(&mut first, ask, 7, climbing);

    let mut core = switch();
    core.insert("ingress.forwarding.partition_route", &[EXACT(2)], "ingress.forwarding.forward", &[3]);
    default_action(&mut core, "ingress.climb.core_route", "ingress.climb.descend", &[6, 20]);
    let range = |id, low, high| [EXACT(id), MatchValue::Range { low, high }];
    core.insert_at(
        1,
        "ingress.fat_root.fat_root_0",
        &range(20, 0xa000, 0xafff),
        "ingress.fat_root.second_slice_0",
        &[22],
    );
    core.insert_at(
        2,
        "ingress.fat_root.fat_root_0",
        &range(20, 0xb000, 0xffff),
        "ingress.fat_root.land_0",
        &[0xb, 2, 2],
    );
    core.insert_at(
        1,
        "ingress.fat_root.fat_root_1",
        &range(22, 0, 0xffff),
        "ingress.fat_root.land_1",
        &[0xa, 2, 1],
    );
    let landed = |address, flags| {
        let index = Index { flags, epoch: 6, levels: 1, ..index };
        Read { index: Some(index), va: address, rkey: 99 }
    };
    check(&mut core, climbing, 3, landed(0xa, INNER));
    let mut other_key = climbing;
    other_key.index = Some(Index { key: 0xffff_ffff_ffff_ffff, ..index });
    let mut expected = landed(0xb, LEAF);
    expected.index = expected.index.map(|i| Index { key: u64::MAX, ..i });
    check(&mut core, other_key, 3, expected);

    let mut last = last_switch();
    check(&mut last, landed(0xa, INNER), 9, Read { index: None, va: 0xa, rkey: 99 });
}

/// A stage without an entry for a slice leaves it to the next one: sub-tables of any slice stand in several stages.
#[test]
fn a_sub_table_stands_in_several_stages() {
    let mut core = switch();
    core.insert("ingress.forwarding.partition_route", &[EXACT(2)], "ingress.forwarding.forward", &[3]);
    default_action(&mut core, "ingress.climb.core_route", "ingress.climb.descend", &[6, 20]);
    let mut insert = |priority, stage: u64, id, low, high, action: &str, params: &[u64]| {
        let (table, action) =
            (format!("ingress.fat_root.fat_root_{stage}"), format!("ingress.fat_root.{action}_{stage}"));
        core.insert_at(priority, &table, &[EXACT(id), MatchValue::Range { low, high }], &action, params);
    };
    // The first slice is in all stages; what lies after another entry begins below it.
    insert(1, 0, 20, 0x2000, 0x2000, "second_slice", &[22]);
    insert(1, 0, 20, 0x2800, 0x2800, "second_slice", &[24]);
    insert(1, 0, 20, 0, 0x0fff, "land", &[0x10, 2, 0]);
    insert(2, 1, 20, 0, 0x1fff, "land", &[0x11, 2, 0]);
    insert(1, 1, 20, 0, 0x3fff, "land", &[0x12, 2, 0]);
    insert(1, 2, 20, 0, 0x7fff, "land", &[0x13, 2, 0]);
    insert(1, 3, 20, 0, 0xefff, "land", &[0x14, 2, 0]);
    // Of the second, one passes over a stage, and one leads to the third slice and to another sub-table of its own.
    insert(1, 1, 22, 0, 0x7fff, "land", &[0x20, 2, 0]);
    insert(1, 3, 22, 0, 0xffff, "land", &[0x21, 2, 0]);
    insert(1, 1, 24, 5, 5, "third_slice", &[26]);
    insert(1, 2, 24, 0, 0xffff, "second_slice", &[28]);
    insert(1, 3, 26, 0, 0x00ff, "land", &[0x30, 2, 0]);
    insert(1, 3, 28, 0x0100, 0x01ff, "land", &[0x31, 2, 0]);
    let index = Index { flags: CLIMBING, epoch: 0, levels: 0, partition: 2, path: path(), slice: 0, key: 0 };
    for (key, child) in [
        (0x0fff_ffff_ffff_ffff, Some(0x10)),
        (0x1000_0000_0000_0000, Some(0x11)),
        (0x2001_7777_0000_0000, Some(0x12)),
        (0x3fff_0000_0000_0000, Some(0x12)),
        (0x4000_0000_0000_0000, Some(0x13)),
        (0x8000_0000_0000_0000, Some(0x14)),
        (0xf000_0000_0000_0000, None),
        (0x2000_7fff_0000_0000, Some(0x20)),
        (0x2000_8000_0000_0000, Some(0x21)),
        (0x2800_0005_00ff_ffff, Some(0x30)),
        (0x2800_0005_0100_ffff, None),
        (0x2800_0101_0000_0000, Some(0x31)),
        (0x2800_0200_0101_0101, None),
    ] {
        let climbing = Read { index: Some(Index { key, ..index }), va: 0x40, rkey: 99 };
        let landed = Index { flags: 0, epoch: 6, levels: u8::from(child.is_some()), key, ..index };
        check(&mut core, climbing, 3, Read { index: Some(landed), va: child.unwrap_or(0x40), rkey: 99 });
    }
}

/// A connection is its client's: no other client is admitted on it, and READs whose response takes several
/// packets are not.
#[test]
fn others_and_long_reads_are_not_admitted() {
    let mut first = first_switch();
    let admit = admit(99, 2, 0x40);
    first.insert("ingress.first_hop.roce_connection", &connection(), "ingress.first_hop.admit", &admit);
    let counter = first.pipeline.program().counter("ingress.first_hop.refused_index_reads").unwrap();
    let mut refused = [0; 2];
    let mut ask = |port: u16, frame: &[u8], reason: Option<usize>| {
        let (_, sent) = first.one(port, frame).unwrap();
        assert_eq!(sent[34..] == frame[34..], reason.is_some(), "it passes as it is, or it is admitted");
        if let Some(reason) = reason {
            refused[reason] += 1;
        }
        let found = [0, 1].map(|reason| first.pipeline.counter(counter, reason).unwrap().packets);
        assert_eq!(found, refused);
    };
    let frame = Read { index: None, va: 7, rkey: 0 }.frame(1);
    ask(HOST, &frame, None);
    ask(HOST + 2, &frame, Some(0));
    let mut of_another_card = frame.clone();
    of_another_card[11] ^= 1;
    ask(HOST, &of_another_card, Some(0));
    for (length, reason) in [
        (0, None),
        (MTU, None),
        (MTU + 1, Some(1)),
        (0x7fff, Some(1)),
        (0x8000, Some(1)),
        (0xffff, Some(1)),
        (0x1_0000, Some(1)),
        (0x1_0000 | MTU, Some(1)),
        (u32::MAX.into(), Some(1)),
    ] {
        let mut read = frame.clone();
        read[66..70].copy_from_slice(&(length as u32).to_be_bytes());
        ask(HOST, &read, reason);
    }
    // From another switch it is not the first hop's matter any more.
    assert_eq!(first.one(TRUNK, &frame).unwrap().1[34..], frame[34..]);
    assert_eq!(first.pipeline.counter(counter, 0).unwrap().packets, 2);
}

/// A hot key's read goes where its entry says and does not climb, if its connection is registered and it does not want a node.
#[test]
fn a_hot_key_goes_straight_to_its_place() {
    let (key, root, record) = (0xabcd_0000_0000_0001, 0x2_0000_0000_0040, 0x2_0000_0123_4568);
    let ask = Read { index: None, va: key, rkey: 0 };
    let mut first = first_switch();
    climb(&mut first, path(), 7);
    let hot = [EXACT(u64::from(SERVER)), EXACT(key), EXACT(0)];
    first.insert("ingress.first_hop.hot_key", &hot, "ingress.first_hop.go_to", &[record, 0]);
    check(&mut first, ask, 4, ask); // not registered: it passes unchanged, whatever is hot
    let admit = admit(99, 2, root);
    first.insert("ingress.first_hop.roce_connection", &connection(), "ingress.first_hop.admit", &admit);

    let index = Index { flags: 0, epoch: 0, levels: 0, partition: 2, path: path(), slice: 0, key };
    let straight = Read { index: Some(index), va: record, rkey: 99 };
    check(&mut first, ask, 4, straight);
    let climbing = Read { index: Some(Index { flags: CLIMBING, ..index }), va: root, rkey: 99 };
    check(&mut first, Read { rkey: 1, ..ask }, 7, climbing); // it wants a node
    // A slice of a record is not wanted, whatever the rkey says: it is read as it is.
    let sliced = |read: Read| Read { index: read.index.map(|i| Index { slice: 0x98, ..i }), ..read };
    check(&mut first, Read { rkey: 0x98, ..ask }, 4, sliced(straight));
    check(&mut first, Read { rkey: 0x99, ..ask }, 7, sliced(climbing));
    let other = Read { va: key + 1, ..ask };
    let mut climbing = climbing;
    climbing.index = Some(Index { flags: CLIMBING, path: path(), key: key + 1, ..index });
    check(&mut first, other, 7, climbing);
    check(&mut first, Read { rkey: 256, ..ask }, 4, Read { rkey: 256, ..ask }); // an ordinary READ

    let mut last = last_switch();
    for read in [straight, sliced(straight)] {
        check(&mut last, read, 9, Read { index: None, va: record, rkey: 99 });
    }
}

/// Where a hot key's place is its leaf, the last hop leads to the slice.
#[test]
fn a_hot_key_in_a_leaf_is_read_by_its_slice() {
    let (key, leaf) = (0xabcd_0000_0000_0001, 0x2_0000_0123_4540);
    let mut first = first_switch();
    climb(&mut first, path(), 7);
    let hot = [EXACT(u64::from(SERVER)), EXACT(key), EXACT(0)];
    first.insert("ingress.first_hop.hot_key", &hot, "ingress.first_hop.go_to", &[leaf, 2]);
    let admit = admit(99, 2, 0x2_0000_0000_0040);
    first.insert("ingress.first_hop.roce_connection", &connection(), "ingress.first_hop.admit", &admit);
    let index = Index { flags: LEAF, epoch: 0, levels: 0, partition: 2, path: path(), slice: 0x98, key };
    let sliced = Read { index: Some(index), va: leaf, rkey: 99 };
    check(&mut first, Read { index: None, va: key, rkey: 0x98 }, 4, sliced);
    check(&mut last_switch(), sliced, 9, Read { index: None, va: leaf + 0x13 * 64, rkey: 99 });
}

/// All rkeys below 256 are index reads, and their upper five bits go along.
#[test]
fn the_first_hop_takes_the_slice_from_the_rkey() {
    let mut first = first_switch();
    let admit = admit(99, 2, 0x40);
    first.insert("ingress.first_hop.roce_connection", &connection(), "ingress.first_hop.admit", &admit);
    climb(&mut first, path(), 7);
    for rkey in (0..=256).chain([0x1_0000, 0x100_00f8, 0xffff_ffff]) {
        let ask = Read { index: None, va: 0xabcd, rkey };
        if rkey < 256 {
            let slice = rkey as u8 & 0xf8;
            let index = Index {
                flags: CLIMBING,
                epoch: 0,
                levels: 0,
                partition: 2,
                path: path(),
                slice,
                key: 0xabcd,
            };
            check(&mut first, ask, 7, Read { index: Some(index), va: 0x40, rkey: 99 });
        } else {
            check(&mut first, ask, 4, ask);
        }
    }
}

/// What the last hop makes of an address: the slice is added where the walk has ended at a leaf, whatever the other flags and the queue's
/// class are, and only to the low half.
#[test]
fn the_last_hop_goes_to_the_slice_of_a_leaf() {
    let mut last = last_switch();
    for flags in 0..=u8::MAX {
        for slice in [0, 0x08, 0x9d, 0xf8, 0xff] {
            for va in [0x2_0000_0000_0040, 0x2_0000_ffff_ffc0, u64::MAX] {
                let index = Index { flags, epoch: 6, levels: 1, partition: 2, path: 3, slice, key: 0xabcd };
                // Nothing is cached here, and what climbs still has no way.
                let low = va as u32;
                let low = match flags & LEAF {
                    0 => low,
                    _ => low.wrapping_add(64 * u32::from(slice >> 3)),
                };
                let expected = Read { index: None, va: va >> 32 << 32 | u64::from(low), rkey: 99 };
                check(&mut last, Read { index: Some(index), va, rkey: 99 }, 9, expected);
            }
        }
    }
}

/// Places of a node's children.
#[derive(Debug, Clone)]
enum Children {
    /// One after the other, this many times 64 bytes from one to the next.
    Run {
        first: u64,
        stride: u64,
    },
    Irregular(Vec<u64>),
}

/// A node of epoch 3, at most 16 children.
#[derive(Debug, Clone)]
struct Node {
    address: u64,
    slot: u64,
    /// All keys that come here.
    range: (u64, u64),
    /// The first keys of all children but the first.
    pivots: Vec<u64>,
    children: Children,
    /// Kind of the children: not known, inner nodes, or leaves.
    kind: u8,
}

impl Node {
    fn child_of(&self, key: u64) -> usize {
        self.pivots.partition_point(|&pivot| pivot <= key)
    }

    /// Address of a child, in this node's server.
    fn child_address(&self, child: usize) -> u64 {
        let offset = match &self.children {
            Children::Run { first, stride } => first + 64 * stride * child as u64,
            Children::Irregular(offsets) => offsets[child],
        };
        self.address >> 48 << 48 | offset
    }

    /// Writes all entries but those of the children that are `absent`. Where several forms of an entry would do, `choice` says
    /// which. Returns the table that counts the visits of this node.
    fn load(&self, switch: &mut Switch, set: char, absent: u16, choice: usize) -> String {
        let set = format!("ingress.node_set_{set}");
        let mut insert = |table: &str, key: &[u64], action: &str, params: &[u64]| {
            let key: Vec<_> = key.iter().copied().map(EXACT).collect();
            switch.insert(&format!("{set}.{table}"), &key, &format!("{set}.{action}"), params);
        };
        let (first, stride) = match self.children {
            Children::Run { first, stride } => (first, stride),
            Children::Irregular(_) => (0, 0),
        };
        let (form, lasts) = self.lasts(self.range, [4, 8, 12], choice);
        let coarse = if form == "whole" { "coarse_whole" } else { "coarse" };
        let node = [self.slot, first, stride, self.kind.into()];
        insert(coarse, &[3, self.address], &format!("quarter_by_{form}"), &[&lasts[..], &node].concat());
        for quarter in 0..4 {
            let begin = |branch: usize| branch.checked_sub(1).map(|i| self.pivots.get(i));
            let low = begin(4 * quarter).map_or(Some(self.range.0), |found| found.copied());
            let Some(low) = low else { break };
            let high = begin(4 * quarter + 4).flatten().map_or(self.range.1, |next| next - 1);
            let branches = [1, 2, 3].map(|branch| 4 * quarter + branch);
            let (form, lasts) = self.lasts((low, high), branches, choice + quarter + 1);
            let fine = if form == "whole" { "fine_whole" } else { "fine" };
            insert(fine, &[3, self.slot, quarter as u64], &format!("child_by_{form}"), &lasts);
        }
        for child in (0..=self.pivots.len()).filter(|child| absent >> child & 1 == 0) {
            let branch = child as u64;
            match &self.children {
                Children::Run { stride, .. } => {
                    insert("run", &[*stride, branch], "descend_by", &[64 * stride * branch]);
                }
                Children::Irregular(offsets) => {
                    insert("child", &[3, self.slot, branch], "descend_to", &[offsets[child]]);
                }
            }
        }
        format!("{set}.{coarse}")
    }

    /// The last keys before these branches, for a step to which keys of `range` come, in one of the forms that would do.
    fn lasts(&self, range: (u64, u64), branches: [usize; 3], choice: usize) -> (&'static str, [u64; 3]) {
        let lasts = branches.map(|branch| self.pivots.get(branch - 1).map_or(u64::MAX, |pivot| pivot - 1));
        let mut forms = vec![("whole", lasts)];
        if lasts.iter().all(|&last| last as u32 == u32::MAX) {
            forms.push(("high", lasts.map(|last| last >> 32)));
        }
        if range.0 >> 32 == range.1 >> 32 {
            forms.push(("low", lasts.map(|last| last & 0xffff_ffff)));
        }
        // Later ones cost a chip less.
        forms[(forms.len() - 1).saturating_sub(choice % 3)]
    }
}

const SERVER_OF_NODE: u64 = 0xabcd << 48;
const FOUR_GB: u64 = 1 << 32;

/// Keys and pivots that differ in one half only, or in the top bits, are the interesting ones.
const HALVES: [u64; 16] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xffff,
    0x3fff_ffff,
    0x7fff_fffe,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_0001,
    0x8000_ffff,
    0xc000_0000,
    0xffff_fff0,
    0xffff_fffe,
    0xffff_ffff,
];

/// Pivots that differ in their high halves alone, in their low halves alone, or in both; and the range of the node.
fn pivots() -> impl Strategy<Value = (Vec<u64>, (u64, u64))> {
    let half = || prop::sample::select(HALVES.to_vec());
    let pivots =
        |set: std::collections::BTreeSet<u64>, first| set.into_iter().filter(|&k| k > first).collect();
    let halves = move || prop::collection::btree_set(half(), 0..16);
    let wholes =
        prop::collection::btree_set((half(), half()).prop_map(|(high, low)| high << 32 | low), 0..16);
    prop_oneof![
        halves().prop_map(move |set| {
            (pivots(set.into_iter().map(|high| high << 32).collect(), 0), (0, u64::MAX))
        }),
        (half(), halves()).prop_map(move |(high, set)| {
            let range = (high << 32, high << 32 | 0xffff_ffff);
            (pivots(set.into_iter().map(|low| range.0 | low).collect(), range.0), range)
        }),
        wholes.prop_map(move |set| (pivots(set, 0), (0, u64::MAX))),
    ]
}

/// Runs that begin after a border of 4 GB, end before one, or lie anywhere between two; and children that lie anywhere.
fn children() -> impl Strategy<Value = Children> {
    let stride = || prop_oneof![1..=255u64, Just(1), Just(8), Just(255)];
    prop_oneof![
        (1..0x1_0000u64, stride()).prop_map(|(border, stride)| Children::Run {
            first: border * FOUR_GB - 16 * 64 * stride,
            stride
        }),
        (0..0x1_0000u64, stride())
            .prop_map(|(border, stride)| Children::Run { first: border * FOUR_GB, stride }),
        (0..0x1_0000u64, stride(), 0..FOUR_GB / 64 - 16 * 255)
            .prop_map(|(high, stride, low)| Children::Run { first: high * FOUR_GB + 64 * low, stride }),
        prop::collection::vec(0..1u64 << 48, 16).prop_map(Children::Irregular),
    ]
}

fn node() -> impl Strategy<Value = Node> {
    let address = prop_oneof![Just(SERVER_OF_NODE | 0x1240), any::<u64>()];
    let slot = prop_oneof![Just(0), Just(0xffff), 0..0x1_0000u64];
    (pivots(), children(), address, slot, 0..3u8).prop_map(
        |((pivots, range), children, address, slot, kind)| {
            let mut children = children;
            // To the border exactly, however many children there are.
            if let Children::Run { first, stride } = &mut children
                && *first % FOUR_GB == FOUR_GB - 16 * 64 * *stride
            {
                *first += (15 - pivots.len() as u64) * 64 * *stride;
            }
            Node { address, slot, range, pivots, children, kind }
        },
    )
}

/// A switch that sends partition 1 to port 5.
fn routed() -> Switch {
    let mut switch = switch();
    switch.insert("ingress.forwarding.partition_route", &[EXACT(1)], "ingress.forwarding.forward", &[5]);
    switch
}

/// An index read that stands at this address.
fn at(va: u64, key: u64) -> Read {
    let index = Index { flags: INNER, epoch: 3, levels: 4, partition: 1, path: 9, slice: 0xd5, key };
    Read { index: Some(index), va, rkey: 8 }
}

fn with_flags(read: Read, flags: u8) -> Read {
    Read { index: read.index.map(|index| Index { flags, ..index }), ..read }
}

/// One level further down.
fn below(read: Read, va: u64, kind: u8) -> Read {
    let index = read.index.map(|index| Index { flags: kind << 1, levels: index.levels + 1, ..index });
    Read { index, va, ..read }
}

fn counted(switch: &Switch, table: &str) -> u64 {
    let table = switch.table(table);
    switch.pipeline.entries(table).map(|(_, counter)| counter.packets).sum()
}

proptest! {
    /// Wherever the key lies, the packet goes on to the child whose range it is in.
    #[test]
    fn a_node_set_finds_the_child(
        node in node(),
        set in prop::sample::select(vec!['a', 'b']),
        absent in prop_oneof![Just(0u16), any::<u16>()],
        choice in 0..3usize,
        was_leaf in any::<bool>(),
        random in prop::collection::vec((any::<u64>(), 0..16usize, 0..16usize), 0..10),
    ) {
        let mut switch = routed();
        let table = node.load(&mut switch, set, absent, choice);
        let mut keys = vec![node.range.0, node.range.1];
        for pivot in &node.pivots {
            keys.extend([pivot - 1, *pivot, pivot.saturating_add(1).min(node.range.1)]);
        }
        for (key, high, low) in random {
            keys.extend([key, HALVES[high] << 32 | HALVES[low]].map(|key| key.clamp(node.range.0, node.range.1)));
        }
        for &key in &keys {
            // Whatever the packet says besides, the node decides.
            let read = with_flags(at(node.address, key), if was_leaf { INNER | LEAF } else { INNER });
            let child = node.child_of(key);
            // A child without an entry: the walk ends at the node, for every set to come as well.
            let expected = match absent >> child & 1 {
                0 => below(read, node.child_address(child), node.kind),
                _ => with_flags(read, 0),
            };
            check(&mut switch, read, 5, expected);
        }
        prop_assert_eq!(counted(&switch, &table), keys.len() as u64);
        for other in ["coarse", "coarse_whole"] {
            let other = format!("ingress.node_set_{set}.{other}");
            if other != table {
                prop_assert_eq!(counted(&switch, &other), 0);
            }
        }
    }

    /// Neither do packets for other nodes, whichever bit of address or epoch differs, nor those that no longer stand at an inner node.
    #[test]
    fn a_node_set_leaves_other_packets_alone(node in node(), choice in 0..3usize, bit in 0..72) {
        let mut switch = routed();
        let key = node.range.0;
        let tables = ['a', 'b'].map(|set| node.load(&mut switch, set, 0, choice));
        for flags in [0, LEAF] {
            let ended = with_flags(at(node.address, key), flags);
            check(&mut switch, ended, 5, ended);
        }
        let mut elsewhere = at(node.address, key);
        match bit {
            0..64 => elsewhere.va ^= 1 << bit,
            _ => elsewhere.index = elsewhere.index.map(|i| Index { epoch: 3 ^ 1 << (bit - 64), ..i }),
        }
        check(&mut switch, elsewhere, 5, elsewhere);
        for table in &tables {
            prop_assert_eq!(counted(&switch, table), 0);
        }
    }

    /// Nodes that lie together in one set, of all forms, do not disturb each other.
    #[test]
    fn nodes_share_a_set(nodes in prop::collection::vec(node(), 2..5), choice in 0..3usize) {
        let mut switch = routed();
        let nodes: Vec<Node> = (1..)
            .zip(nodes)
            .map(|(i, node)| {
                // Strides are not shared here: `load` would write an entry of `run` twice.
                let children = match node.children {
                    Children::Run { first, .. } => Children::Run { first: first / FOUR_GB * FOUR_GB, stride: 7 * i },
                    irregular => irregular,
                };
                Node { slot: i, address: node.address / 8 * 8 + i, children, ..node }
            })
            .collect();
        for node in &nodes {
            node.load(&mut switch, 'a', 0, choice);
        }
        for node in &nodes {
            for &key in node.pivots.iter().chain([&node.range.0, &node.range.1]) {
                let read = at(node.address, key);
                let expected = below(read, node.child_address(node.child_of(key)), node.kind);
                if nodes.iter().all(|other| other.address != expected.va) {
                    check(&mut switch, read, 5, expected);
                }
            }
        }
    }
}

/// A walk leads from a node of the first set to one of the second, and no further where its children are
/// leaves.
#[test]
fn a_packet_walks_down_both_sets() {
    let mut switch = routed();
    let upper = Node {
        address: SERVER_OF_NODE | 0x4000,
        slot: 7,
        range: (0, u64::MAX),
        pivots: vec![1 << 40, 1 << 41, 1 << 42],
        children: Children::Run { first: FOUR_GB - 4 * 512, stride: 8 },
        kind: 1,
    };
    let lower = Node {
        address: upper.child_address(3),
        slot: 7,
        range: (1 << 42, u64::MAX),
        pivots: vec![(1 << 42) + 5],
        children: Children::Irregular(vec![0x1_0000, 0x7_0000_0040]),
        kind: 2,
    };
    assert_eq!(lower.address & 0xffff_ffff, FOUR_GB - 512, "the last child ends at the border");
    let tables = [upper.load(&mut switch, 'a', 0, 0), lower.load(&mut switch, 'b', 0, 0)];
    for (key, child) in [(1 << 42, 0), ((1 << 42) + 5, 1)] {
        let read = at(upper.address, key);
        let expected = below(below(read, lower.address, 1), lower.child_address(child), 2);
        check(&mut switch, read, 5, expected);
    }
    // The other children of the upper node are not cached here: the packet may find them further on.
    let read = at(upper.address, 1 << 40);
    check(&mut switch, read, 5, below(read, upper.child_address(1), 1));
    assert_eq!(tables.map(|table| counted(&switch, &table)), [3, 2]);
}
