//! `tunnel.p4`: headers added, removed and copied; hashes, registers, truncation, `exit`, multicast.

use fatbtree_switch::{DropReason, MatchValue, Replica};

use crate::{Switch, TUNNEL};

fn inner(op: u8, a: u32, b: u32) -> Vec<u8> {
    let mut bytes = vec![op];
    bytes.extend(&a.to_be_bytes()[1..]);
    bytes.extend(b.to_be_bytes());
    bytes.extend((1..=16).collect::<Vec<u8>>()); // the wide field
    bytes
}

fn with_payload(headers: &[&[u8]]) -> Vec<u8> {
    [&headers.concat(), b"payload".as_slice()].concat()
}

#[test]
fn untouched_frames_pass_bit_for_bit() {
    let mut switch = Switch::new(TUNNEL);
    let frame = with_payload(&[&inner(99, 1, 2)]);
    assert_eq!(switch.one(0, &frame), Some((2, frame)));
}

#[test]
fn a_header_is_pushed_and_popped() {
    let mut switch = Switch::new(TUNNEL);
    switch.insert("ingress.flows", &[MatchValue::Exact(0x00_0abc)], "ingress.push", &[0x1234]);
    let frame = with_payload(&[&inner(1, 0xabc, 7)]);
    let tunnelled = with_payload(&[&[0xff, 0xff, 0x12, 0x34], &inner(1, 0xabc, 7)]);
    assert_eq!(switch.one(0, &frame).unwrap().1, tunnelled);
    let other = with_payload(&[&inner(1, 0xabd, 7)]);
    assert_eq!(switch.one(0, &other).unwrap().1, other);
    let tunnelled = with_payload(&[&[0xff, 0xff, 0x12, 0x34], &inner(0, 0xabc, 7)]);
    assert_eq!(switch.one(0, &tunnelled).unwrap().1, with_payload(&[&inner(0, 0xabc, 7)]));
}

#[test]
fn the_last_header_is_removed() {
    let mut switch = Switch::new(TUNNEL);
    let (outer, inner) = ([0xff, 0xff, 0x12, 0x34], inner(12, 5, 6));
    let expected = vec![(2, with_payload(&[&outer]))];
    assert_eq!(switch.all(0, &with_payload(&[&outer, &inner])), expected);
    assert_eq!(switch.all_given(0, &with_payload(&[&outer, &inner])), expected);
}

#[test]
fn a_header_is_copied_with_fields_that_nothing_reads() {
    let mut switch = Switch::new(TUNNEL);
    let frame = with_payload(&[&inner(2, 5, 0x0f0f_0f0f)]);
    let expected = with_payload(&[&inner(2, 5, 0x0f0f_0f0f), &inner(2, 5, 0xf0f0_f0f0)]);
    assert_eq!(switch.one(0, &frame).unwrap().1, expected);
}

#[test]
fn hashes_cover_their_fields_in_order() {
    let mut switch = Switch::new(TUNNEL);
    let frame = with_payload(&[&inner(3, 0x01_0203, 0x0405_0607)]);
    let sent = switch.one(0, &frame).unwrap().1;
    let crc = crc32(&[1, 2, 3, 4, 5, 6, 7, 7]);
    // crc16 of 01 02 03 is 0x6161 (CRC-16/ARC): base 10, modulo 100.
    let small = 10 + crc16(&[1, 2, 3]) % 100;
    assert_eq!(sent, with_payload(&[&inner(3, u32::from(small), crc)]));
}

/// The definitions, bit by bit.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &b| (0..8).fold(crc ^ u32::from(b), |crc, _| step(crc)))
}

fn crc16(bytes: &[u8]) -> u16 {
    let step = |crc: u16| if crc & 1 == 1 { crc >> 1 ^ 0xa001 } else { crc >> 1 };
    bytes.iter().fold(0, |crc, &b| (0..8).fold(crc ^ u16::from(b), |crc, _| step(crc)))
}

#[test]
fn registers_remember_and_indices_outside_are_ignored() {
    let mut switch = Switch::new(TUNNEL);
    let read = |sent: Option<(u16, Vec<u8>)>| sent.unwrap().1[4..8].to_vec();
    for count in 1..=3 {
        assert_eq!(read(switch.one(0, &with_payload(&[&inner(4, 0, 5)]))), [0, 0, 0, count]);
    }
    assert_eq!(read(switch.one(0, &with_payload(&[&inner(4, 0, 8)]))), [0, 0, 0, 1]);
    assert_eq!(read(switch.one(0, &with_payload(&[&inner(4, 0, 8)]))), [0, 0, 0, 1]);
    let register = switch.pipeline.program().register("ingress.seen").unwrap();
    assert_eq!(switch.pipeline.register(register, 5), Ok(3));
    switch.pipeline.set_register(register, 5, 0x1_0000_0041).unwrap();
    assert_eq!(read(switch.one(0, &with_payload(&[&inner(4, 0, 5)]))), [0, 0, 0, 0x42]);
    assert!(switch.pipeline.register(register, 8).is_err());
}

#[test]
fn truncation_and_exit() {
    let mut switch = Switch::new(TUNNEL);
    let frame = with_payload(&[&inner(5, 0, 0)]);
    assert_eq!(switch.one(0, &frame).unwrap().1, frame[..10]);
    let frame = with_payload(&[&inner(6, 0, 0)]);
    assert_eq!(switch.one(0, &frame), Some((3, frame)));
    let counter = switch.pipeline.program().counter("ingress.done").unwrap();
    assert_eq!(switch.pipeline.counter(counter, 1).unwrap().packets, 1, "`exit` skips the rest");
}

#[test]
fn a_header_made_anew_starts_from_zero() {
    let mut switch = Switch::new(TUNNEL);
    let frame = with_payload(&[&inner(7, 60, 0x8000_0003), &[0x55]]);
    let sent = switch.one(0, &frame).unwrap().1;
    // 60 |+| 200 saturates; 0x8000_0003 << 60 keeps its lowest bits in the top nibble.
    assert_eq!(sent, with_payload(&[&inner(7, 60, 0x3000_0000), &[255]]));
}

#[test]
fn a_header_removed_and_added_again_keeps_nothing() {
    let mut switch = Switch::new(TUNNEL);
    let mut expected = vec![9];
    expected.resize(24, 0);
    expected.extend(b"payload");
    assert_eq!(switch.one(0, &with_payload(&[&inner(9, 60, 3)])).unwrap().1, expected);
}

#[test]
fn the_packet_grows_by_the_headers_added() {
    let mut switch = Switch::new(TUNNEL);
    let frame = with_payload(&[&inner(10, 1, 0)]);
    let length = frame.len() as u32 + 4;
    let expected = with_payload(&[&[0xff, 0xff, 0, 0], &inner(10, 1, length)]);
    assert_eq!(switch.one(0, &frame).unwrap().1, expected);
}

#[test]
fn a_hash_over_no_range_is_its_base() {
    let mut switch = Switch::new(TUNNEL);
    for a in [1, 2, 0xffff] {
        assert_eq!(
            switch.one(0, &with_payload(&[&inner(11, a, 0)])).unwrap().1,
            with_payload(&[&inner(11, 10, 0)])
        );
    }
}

#[test]
fn a_multicast_group_makes_independent_copies() {
    let mut switch = Switch::new(TUNNEL);
    let frame = with_payload(&[&inner(8, 300, 0)]);
    assert_eq!(switch.all(0, &frame), []);
    assert_eq!(switch.pipeline.drops().count(DropReason::NoGroup), 1);
    let replica = |port, instance| Replica { port, instance };
    switch.pipeline.set_multicast_group(300, vec![replica(4, 1), replica(9, 2), replica(5, 3)]);
    let length = frame.len() as u32;
    let copy = |instance| with_payload(&[&inner(8, instance, length)]);
    assert_eq!(switch.all(0, &frame), [(4, copy(1)), (5, copy(3))]);
    assert_eq!(switch.pipeline.drops().count(DropReason::Egress), 1, "port 9 is closed in egress");
    switch.pipeline.set_multicast_group(300, Vec::new());
    assert_eq!(switch.pipeline.multicast_groups().count(), 0);
}
