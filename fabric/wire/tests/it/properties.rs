//! Any bytes at all, and any frame at all.
use fatbtree_wire::{
    Bth, Ethernet, Extension, Flow, Frame, Header, HeaderTemplate, IndexFlags, IndexHeader, Opcode, hops,
    icrc,
};
use proptest::prelude::*;
use std::net::Ipv4Addr;

fn a_frame() -> impl Strategy<Value = Vec<u8>> {
    let addresses = (any::<[u8; 6]>(), any::<[u8; 6]>(), any::<u32>(), any::<u32>(), any::<u16>());
    let ip = (any::<u8>(), any::<u8>(), any::<u16>());
    let bth =
        (0..Opcode::KNOWN.len() + 3, any::<u8>(), any::<u16>(), any::<u32>(), any::<u32>(), any::<u16>());
    let extension = prop::collection::vec(any::<u8>(), Extension::MAX_LEN);
    let body = (extension, prop::collection::vec(any::<u8>(), 0..300));
    (addresses, ip, bth, body).prop_map(|(addresses, ip, bth, (extension, payload))| {
        let template = HeaderTemplate::new(&Flow {
            source_mac: addresses.0,
            destination_mac: addresses.1,
            source_ip: Ipv4Addr::from_bits(addresses.2),
            destination_ip: Ipv4Addr::from_bits(addresses.3),
            source_port: addresses.4,
            tos: ip.0,
            ttl: ip.1,
        });
        let opcode = Opcode::KNOWN
            .get(bth.0)
            .copied()
            .unwrap_or_else(|| Opcode(0xf0 + (bth.0 - Opcode::KNOWN.len()) as u8));
        let header = Bth {
            solicited: bth.1 & 1 != 0,
            migration: bth.1 & 2 != 0,
            ack_request: bth.1 & 4 != 0,
            resv8a: bth.1,
            resv7: bth.1 >> 1,
            pkey: bth.2,
            ..Bth::new(opcode, bth.3, bth.4)
        };
        let extension = Extension::parse(opcode, &extension, 0).unwrap();
        let mut out = Vec::new();
        template.emit(&mut out, ip.2, &header, &extension, &payload);
        out
    })
}

fn an_index_frame() -> impl Strategy<Value = Vec<u8>> {
    let header = (any::<u8>(), any::<u8>(), any::<u8>(), any::<u16>(), any::<u16>(), any::<u64>());
    let rkeys = (any::<u8>(), any::<u32>());
    (a_frame(), header, any::<u64>(), rkeys).prop_map(|(frame, header, root, (target, rkey))| {
        let parsed = Frame::parse(&frame).unwrap();
        let template = HeaderTemplate::new(&Flow {
            source_mac: parsed.ethernet.source,
            source_ip: parsed.ipv4.source,
            ..Flow::default()
        });
        let bth = Bth { opcode: Opcode::RC_RDMA_READ_REQUEST, ..parsed.bth };
        let reth = fatbtree_wire::Reth { va: header.5, rkey: target.into(), length: 512 };
        let mut out = Vec::new();
        template.emit(&mut out, parsed.ipv4.identification, &bth, &Extension::Reth(reth), &[]);
        let index = IndexHeader {
            flags: IndexFlags(header.0),
            epoch: header.1,
            levels: header.2,
            partition: header.3,
            path: header.4 as u8,
            slice: (header.4 >> 8) as u8,
            key: header.5,
        };
        assert!(hops::admit(&mut out, &index, root, rkey));
        out
    })
}

fn no_panic(bytes: &[u8]) {
    if let Ok(frame) = Frame::parse(bytes) {
        frame.expected_icrc();
        let mut out = Vec::new();
        frame.emit(&mut out);
        assert_eq!(out, frame.bytes());
    }
    icrc::full(bytes);
    icrc::in_flight(bytes);
    hops::strip(&mut bytes.to_vec());
    hops::step(&mut bytes.to_vec(), |_, _, _| ());
    hops::admit(&mut bytes.to_vec(), &IndexHeader::default(), 1, 2);
}

fn repair_ipv4_checksum(frame: &mut [u8]) {
    let mut sum = 0u32;
    for i in (14..34).step_by(2).filter(|&i| i != 24) {
        sum += u32::from(u16::from_be_bytes([frame[i], frame[i + 1]]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// Every IPv4 length, with a right checksum and a UDP length that agrees with it, on every kind of packet: lengths that lie are refused
/// without a panic.
#[test]
fn lengths_that_lie_are_refused() {
    for &opcode in Opcode::KNOWN {
        let extension = Extension::parse(opcode, &[0; Extension::MAX_LEN], 0).unwrap();
        let mut good = Vec::new();
        HeaderTemplate::new(&Flow::default()).emit(
            &mut good,
            1,
            &Bth::new(opcode, 2, 3),
            &extension,
            &[7; 9],
        );
        for total_len in 0..good.len() as u16 + 5 {
            let mut frame = good.clone();
            frame[16..18].copy_from_slice(&total_len.to_be_bytes());
            frame[38..40].copy_from_slice(&total_len.wrapping_sub(20).to_be_bytes());
            repair_ipv4_checksum(&mut frame);
            no_panic(&frame);
            let parsed = Frame::parse(&frame);
            assert_eq!(
                parsed.is_ok_and(|parsed| parsed.bytes() == good),
                frame == good,
                "{opcode}, {total_len}"
            );
            if total_len < 28 || usize::from(total_len) > good.len() - 14 {
                assert_eq!(parsed.unwrap_err().header(), Header::Ipv4, "{opcode}, {total_len}");
            }
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        no_panic(&bytes);
    }

    /// Good frames, cut and damaged, with the checksum repaired so that the damage gets past it.
    #[test]
    fn no_damaged_frame_panics(frame in prop_oneof![a_frame(), an_index_frame()],
                               damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
                               cut in any::<prop::sample::Index>(), cuts: bool, repair: bool) {
        let mut bytes = frame;
        for (at, xor) in damage {
            let at = at.index(bytes.len());
            bytes[at] ^= xor;
        }
        if cuts {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        if repair && bytes.len() >= 34 {
            repair_ipv4_checksum(&mut bytes);
        }
        no_panic(&bytes);
    }

    #[test]
    fn print_after_parse_is_identity(frame in prop_oneof![a_frame(), an_index_frame()], trailing in 0usize..20) {
        let mut padded = frame.clone();
        padded.resize(frame.len() + trailing, 0xee);
        let parsed = Frame::parse(&padded).unwrap();
        prop_assert_eq!(parsed.icrc, parsed.expected_icrc());
        prop_assert_eq!(parsed.bytes(), &frame[..]);
        let mut out = Vec::new();
        parsed.emit(&mut out);
        prop_assert_eq!(&out, &frame);
        // And the other way round: what was printed parses to the same fields.
        prop_assert_eq!(Frame::parse(&out), Ok(parsed));
    }

    #[test]
    fn every_cut_is_noticed(frame in prop_oneof![a_frame(), an_index_frame()], cut in any::<prop::sample::Index>()) {
        let cut = cut.index(frame.len());
        prop_assert!(Frame::parse(&frame[..cut]).is_err());
    }

    /// A UDP checksum other than 0 is verified.
    #[test]
    fn udp_checksum_is_verified(frame in a_frame(), wrong in 1u16..) {
        // etherparse builds the same datagram with a checksum.
        let ip = etherparse::Ipv4Header::from_slice(&frame[14..]).unwrap().0;
        let udp = etherparse::UdpHeader::from_slice(&frame[34..]).unwrap().0;
        let checksum = udp.calc_checksum_ipv4(&ip, &frame[42..]).unwrap();
        let mut bytes = frame.clone();
        bytes[40..42].copy_from_slice(&checksum.to_be_bytes());
        let parsed = Frame::parse(&bytes).unwrap();
        prop_assert_eq!(parsed.udp.checksum, checksum);
        prop_assert_eq!(parsed.icrc, parsed.expected_icrc());
        bytes[40..42].copy_from_slice(&(checksum ^ wrong).to_be_bytes());
        if checksum ^ wrong != 0 {
            prop_assert_eq!(Frame::parse(&bytes).unwrap_err().header(), Header::Udp);
        }
    }

    /// However many bytes the payload's owner appends, the frame is what its headers say; and nothing is sent when the owner fails.
    #[test]
    fn a_payload_appended_in_place_makes_the_same_frame(payload in prop::collection::vec(any::<u8>(), 0..300), appended in 0usize..310) {
        let template = HeaderTemplate::new(&Flow::default());
        let bth = Bth::new(Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, 2, 3);
        let append = |count: usize| {
            let bytes: Vec<u8> = payload.iter().copied().chain(std::iter::repeat(0xee)).take(count).collect();
            move |out: &mut Vec<u8>| {
                out.extend_from_slice(&bytes);
                Ok::<(), ()>(())
            }
        };
        let (mut whole, mut in_place) = (Vec::new(), vec![1; 7]);
        template.emit(&mut whole, 4, &bth, &Extension::None, &payload);
        template.emit_with(&mut in_place, 4, &bth, &Extension::None, payload.len(), append(payload.len())).unwrap();
        prop_assert_eq!(&whole, &in_place);

        template.emit_with(&mut in_place, 4, &bth, &Extension::None, payload.len(), append(appended)).unwrap();
        let parsed = Frame::parse(&in_place).unwrap();
        prop_assert_eq!(parsed.icrc, parsed.expected_icrc());
        let mut expected = payload[..appended.min(payload.len())].to_vec();
        expected.resize(payload.len(), 0);
        prop_assert_eq!(parsed.payload, &expected[..]);
        prop_assert!(parsed.padding.iter().all(|&byte| byte == 0));

        let failed = template.emit_with(&mut in_place, 4, &bth, &Extension::None, 9, |out| {
            out.push(1);
            Err("gone")
        });
        prop_assert_eq!((failed, in_place.len()), (Err("gone"), 0));
    }

    #[test]
    fn ethernet_addresses_are_where_they_belong(frame in a_frame()) {
        let expected = Ethernet {
            destination: frame[..6].try_into().unwrap(),
            source: frame[6..12].try_into().unwrap(),
        };
        prop_assert_eq!(Frame::parse(&frame).unwrap().ethernet, expected);
    }
}
