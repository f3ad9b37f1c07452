//! The kernel's soft RoCE as the other side, by its captured frames: bit for bit, ICRC included.
#![allow(clippy::unwrap_used)] // a test that unwraps nothing fails, as it should

use fatbtree_nic::time::Instant;
use fatbtree_nic::{
    Access, CompletionStatus, Endpoint, Mtu, Nic, NicConfig, QueuePairNumber, QueuePairOptions,
};
use fatbtree_wire::{Extension, Frame, Opcode};
use pcap_file::pcap::PcapReader;
use std::net::Ipv4Addr;

const CLIENT: ([u8; 6], Ipv4Addr) = ([0x52, 0x54, 0, 0, 0, 1], Ipv4Addr::new(10, 0, 0, 1));
const SERVER: ([u8; 6], Ipv4Addr) = ([0x52, 0x54, 0, 0, 0, 2], Ipv4Addr::new(10, 0, 0, 2));
const QPN: QueuePairNumber = QueuePairNumber(0x11);
const NOW: Instant = Instant::ZERO;

fn capture() -> Vec<Vec<u8>> {
    let bytes = include_bytes!("../../wire/tests/data/rxe-read-1024.pcap");
    let mut reader = PcapReader::new(&bytes[..]).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let data = packet.unwrap().data.into_owned();
        if Frame::parse(&data).is_ok() {
            frames.push(data);
        }
    }
    assert_eq!(frames.len(), 100);
    frames
}

/// A NIC that stands where `own` stood in the capture, and takes its numbers from the first frame it sent.
fn stand_in(
    own: ([u8; 6], Ipv4Addr),
    peer: ([u8; 6], Ipv4Addr),
    own_psn: u32,
    peer_psn: u32,
    first: &[u8],
) -> Nic {
    let mut nic = Nic::new(NicConfig::new(own.0, own.1), 1);
    let first = Frame::parse(first).unwrap();
    let options = QueuePairOptions {
        qpn: Some(QPN),
        psn: Some(own_psn),
        source_port: Some(first.udp.source_port),
        identification: Some(first.ipv4.identification),
    };
    nic.create_queue_pair_with(options).unwrap();
    let remote =
        Endpoint { mac: peer.0, ip: peer.1, qpn: QPN, psn: peer_psn, mtu: Mtu::B1024, max_reads: 16 };
    nic.connect(QPN, remote).unwrap();
    nic
}

#[test]
fn our_responder_answers_the_kernels_requests_as_the_kernel_did() {
    let frames = capture();
    let Extension::Reth(reth) = Frame::parse(&frames[0]).unwrap().extension else { panic!() };
    let psn = Frame::parse(&frames[0]).unwrap().bth.psn;
    let mut nic = stand_in(SERVER, CLIENT, 0, psn, &frames[1]);
    nic.register_memory_with_rkey(reth.rkey, reth.va, vec![0; 1024], Access::READ).unwrap();
    let mut out = Vec::new();
    for pair in frames.chunks(2) {
        let [request, response] = pair else { panic!() };
        let payload = Frame::parse(response).unwrap().payload;
        nic.memory_mut(reth.rkey).unwrap().copy_from_slice(payload);
        nic.handle_frame(NOW, request);
        assert!(nic.poll_transmit(NOW, &mut out), "{}", nic.stats());
        assert_eq!(out, *response);
        assert!(!nic.poll_transmit(NOW, &mut out));
    }
    assert_eq!(nic.stats().requests_executed, 50);
}

#[test]
fn our_requester_asks_as_the_kernel_did_and_takes_its_responses() {
    let frames = capture();
    let Extension::Reth(reth) = Frame::parse(&frames[0]).unwrap().extension else { panic!() };
    let psn = Frame::parse(&frames[0]).unwrap().bth.psn;
    let mut nic = stand_in(CLIENT, SERVER, psn, 0, &frames[0]);
    let mut out = Vec::new();
    for (id, pair) in frames.chunks(2).enumerate() {
        let [request, response] = pair else { panic!() };
        nic.post_read(NOW, QPN, id as u64, reth.va, reth.rkey, reth.length).unwrap();
        assert!(nic.poll_transmit(NOW, &mut out));
        assert_eq!(out, *request);
        nic.handle_frame(NOW, response);
        let done = nic.poll_completion().unwrap();
        assert_eq!((done.wr_id, done.status), (id as u64, CompletionStatus::Success));
        assert_eq!(done.data, Frame::parse(response).unwrap().payload);
        nic.recycle(done.data);
    }
    assert_eq!(nic.stats().dropped_total(), 0);
}

/// The capture has what this test says it has.
#[test]
fn the_capture_alternates_requests_and_responses() {
    for pair in capture().chunks(2) {
        assert_eq!(Frame::parse(&pair[0]).unwrap().bth.opcode, Opcode::RC_RDMA_READ_REQUEST);
        assert_eq!(Frame::parse(&pair[1]).unwrap().bth.opcode, Opcode::RC_RDMA_READ_RESPONSE_ONLY);
    }
}
