//! Frames made by others: the kernel's soft RoCE and scapy.
use fatbtree_wire::{Extension, Frame, Opcode, icrc};
use pcap_file::pcap::PcapReader;

/// Every frame's ICRC verifies, it parses, and its fields print the same bytes.
fn check(name: &str, bytes: &[u8]) {
    let frame = Frame::parse(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(frame.icrc, frame.expected_icrc(), "{name}");
    assert_eq!(icrc::full(bytes), Some(frame.icrc), "{name}");
    let mut out = Vec::new();
    frame.emit(&mut out);
    assert_eq!(out, bytes, "{name}");
}

#[test]
fn scapy_vectors() {
    let text = include_str!("../data/scapy_icrc.txt");
    for line in text.lines() {
        let (name, hex) = line.split_once(' ').unwrap();
        let bytes: Vec<u8> =
            (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect();
        check(name, &bytes);
        let payload = Frame::parse(&bytes).unwrap().payload.len();
        if let Some(size) = name.strip_prefix("read_response_only_") {
            assert_eq!(payload, size.parse().unwrap(), "{name}");
        }
    }
    assert_eq!(text.lines().count(), 29);
}

#[test]
fn the_kernels_capture() {
    let mut reader = PcapReader::new(&include_bytes!("../data/rxe-read-1024.pcap")[..]).unwrap();
    let (mut requests, mut responses, mut foreign) = (0, 0, 0);
    while let Some(packet) = reader.next_packet() {
        let data = packet.unwrap().data;
        match Frame::parse(&data) {
            Err(error) => {
                assert!(error.is_foreign(), "{error}");
                foreign += 1;
            }
            Ok(frame) => {
                check("capture", &data);
                assert_eq!(frame.bth.destination_qp, 0x11);
                match frame.bth.opcode {
                    Opcode::RC_RDMA_READ_REQUEST => {
                        let Extension::Reth(reth) = frame.extension else { panic!("{frame:?}") };
                        assert_eq!((reth.rkey, reth.length), (0x2dd, 1024));
                        assert_eq!(frame.bth.psn, 0xe926ca + requests);
                        requests += 1;
                    }
                    Opcode::RC_RDMA_READ_RESPONSE_ONLY => {
                        assert_eq!(frame.payload.len(), 1024);
                        responses += 1;
                    }
                    other => panic!("{other}"),
                }
            }
        }
    }
    assert_eq!((requests, responses, foreign), (50, 50, 51));
}
