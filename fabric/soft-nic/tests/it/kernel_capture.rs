//! The kernel's soft RoCE as the other side, by its captured frames: bit for bit, ICRC included.
use fatbtree_soft_nic::{Nic, NicConfig, QueuePairOptions};
use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{
    Access, Device, Endpoint, Memory, Mtu, Operation, Output, QueuePair, QueuePairNumber, Remote, Verbs,
    WorkRequest,
};
use fatbtree_wire::{Extension, Frame, Opcode};
use pcap_file::pcap::PcapReader;
use std::net::Ipv4Addr;

const CLIENT: ([u8; 6], Ipv4Addr) = ([0x52, 0x54, 0, 0, 0, 1], Ipv4Addr::new(10, 0, 0, 1));
const SERVER: ([u8; 6], Ipv4Addr) = ([0x52, 0x54, 0, 0, 0, 2], Ipv4Addr::new(10, 0, 0, 2));
const NUMBER: QueuePairNumber = QueuePairNumber(0x11);
const NOW: Instant = Instant::ZERO;

fn capture() -> Vec<Vec<u8>> {
    let bytes = include_bytes!("../../../wire/tests/data/rxe-read-1024.pcap");
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
) -> (Nic, QueuePair) {
    let mut nic = Nic::new(NicConfig::new(own.0, own.1), 1).unwrap();
    let first = Frame::parse(first).unwrap();
    let options = QueuePairOptions {
        number: Some(NUMBER),
        psn: Some(own_psn),
        source_port: Some(first.udp.source_port),
        identification: Some(first.ipv4.identification),
    };
    let queue_pair = nic.create_with(options).unwrap();
    let remote = Endpoint {
        mac: peer.0,
        ip: peer.1,
        queue_pair: NUMBER,
        psn: peer_psn,
        mtu: Mtu::B1024,
        responder_reads: 16,
        initiator_reads: 16,
    };
    nic.connect(queue_pair, &remote).unwrap();
    (nic, queue_pair)
}

#[test]
fn our_responder_answers_the_kernels_requests_as_the_kernel_did() {
    let frames = capture();
    let Extension::Reth(reth) = Frame::parse(&frames[0]).unwrap().extension else { panic!() };
    let psn = Frame::parse(&frames[0]).unwrap().bth.psn;
    let (mut nic, _) = stand_in(SERVER, CLIENT, 0, psn, &frames[1]);
    let memory = Memory::shared(1024).unwrap();
    nic.register_with_rkey(reth.rkey, &memory, reth.va, Access::READ).unwrap();
    let mut out = Vec::new();
    for pair in frames.chunks(2) {
        let [request, response] = pair else { panic!() };
        memory.write(0, Frame::parse(response).unwrap().payload).unwrap();
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
    let (mut nic, queue_pair) = stand_in(CLIENT, SERVER, psn, 0, &frames[0]);
    let mut out = Vec::new();
    for (tag, pair) in (0..).zip(frames.chunks(2)) {
        let [request, response] = pair else { panic!() };
        let from = Remote { address: reth.va, rkey: reth.rkey };
        let operation = Operation::Read { from, len: reth.length };
        nic.post(queue_pair, &[WorkRequest { tag, signalled: true, operation }]).unwrap();
        assert!(nic.poll_transmit(NOW, &mut out));
        assert_eq!(out, *request);
        nic.handle_frame(NOW, response);
        let done = nic.poll().unwrap();
        let Ok(Output::Read(bytes)) = done.result else { panic!("{done:?}") };
        assert_eq!((done.tag, &*bytes), (tag, Frame::parse(response).unwrap().payload));
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
