//! Frames with UDP datagrams, whatever their bytes.

use std::net::SocketAddrV4;

use fatbtree_wire::{Ethernet, UdpFrame};
use proptest::prelude::*;

fn address() -> impl Strategy<Value = SocketAddrV4> {
    (any::<[u8; 4]>(), any::<u16>()).prop_map(|(ip, port)| SocketAddrV4::new(ip.into(), port))
}

proptest! {
    #[test]
    fn what_is_written_is_read_again_and_no_damage_goes_unnoticed(
        macs in any::<[[u8; 6]; 2]>(), source in address(), destination in address(),
        payload in prop::collection::vec(any::<u8>(), 0..300), padding in 0..30usize, flip in any::<prop::sample::Index>(),
    ) {
        let [to, from] = macs;
        let ethernet = Ethernet { destination: to, source: from };
        let sent = UdpFrame { ethernet, source, destination, payload: &payload };
        let mut frame = vec![7; 3];
        sent.emit(&mut frame);
        // The same as another library writes, which has its own checksums.
        let mut expected = Vec::new();
        let ip = etherparse::Ipv4Header {
            dont_fragment: true,
            ..etherparse::Ipv4Header::new(0, 64, etherparse::IpNumber::UDP, source.ip().octets(), destination.ip().octets()).unwrap()
        };
        etherparse::PacketBuilder::ethernet2(from, to)
            .ip(etherparse::IpHeaders::Ipv4(ip, Default::default()))
            .udp(source.port(), destination.port())
            .write(&mut expected, &payload)
            .unwrap();
        prop_assert_eq!(&frame, &expected);
        prop_assert_ne!(&frame[40..42], [0, 0], "switches lead nothing without a checksum");

        let whole = frame.len();
        frame.resize(whole + padding, 0);
        prop_assert_eq!(UdpFrame::parse(&frame).unwrap(), sent);
        // Behind the link header: whatever bit it is.
        let bit = flip.index((whole - 14) * 8) + 14 * 8;
        frame[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(UdpFrame::parse(&frame).is_err(), "bit {} is another", bit);
    }

    #[test]
    fn whatever_comes_is_read_or_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..120), plausible in any::<bool>(),
    ) {
        let mut bytes = bytes;
        if plausible && bytes.len() >= 34 {
            bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
            bytes[23] = 17;
        }
        let _ = UdpFrame::parse(&bytes);
    }
}

#[test]
fn a_datagram_without_a_checksum_is_taken() {
    let [source, destination] = ["10.0.0.1:1", "10.0.0.2:2"].map(|text| text.parse().unwrap());
    let ethernet = Ethernet { destination: [1; 6], source: [2; 6] };
    let mut frame = Vec::new();
    UdpFrame { ethernet, source, destination, payload: b"datagram" }.emit(&mut frame);
    frame[40..42].fill(0);
    assert_eq!(UdpFrame::parse(&frame).unwrap().payload, b"datagram");
}
