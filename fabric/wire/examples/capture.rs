//! Writes a capture file with what only Fat-B+Tree speaks: an index read as the client sends it, in flight, and as the server gets it; then
//! queries and their answers. For Wireshark with `scripts/fatbtree.lua`, and for the interop lab, which compares what it says.
//!
//! `cargo run -p fatbtree-wire --example capture -- FILE.pcap`

use std::fs::File;
use std::net::Ipv4Addr;
use std::time::Duration;

use etherparse::PacketBuilder;
use fatbtree_wire::query::{Op, QUERY_UDP_PORT, QueryHeader, Status, datagram, parts, records};
use fatbtree_wire::{Bth, Extension, Flow, HeaderTemplate, IndexFlags, IndexHeader, Opcode, Reth, hops};
use pcap_file::pcap::{PcapPacket, PcapWriter};

const CLIENT: ([u8; 6], Ipv4Addr) = ([2, 0, 0, 0, 0, 1], Ipv4Addr::new(10, 0, 0, 2));
const SERVER: ([u8; 6], Ipv4Addr) = ([2, 0, 0, 0, 0, 2], Ipv4Addr::new(10, 3, 1, 2));
const KEY: u64 = 0x0123_4567_89ab_cdef;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).ok_or("usage: capture FILE.pcap")?;
    let mut writer = PcapWriter::new(File::create(file)?)?;
    for (number, frame) in (0..).zip(index_read().into_iter().chain(queries()?)) {
        let len = u32::try_from(frame.len())?;
        writer.write_packet(&PcapPacket::new(Duration::from_micros(number), len, &frame))?;
    }
    Ok(())
}

/// At the client, after the first hop, after a node set, and at the server.
fn index_read() -> Vec<Vec<u8>> {
    let flow = Flow {
        source_mac: CLIENT.0,
        destination_mac: SERVER.0,
        source_ip: CLIENT.1,
        destination_ip: SERVER.1,
        source_port: 0xc121,
        ..Flow::default()
    };
    let bth = Bth { ack_request: true, ..Bth::new(Opcode::RC_RDMA_READ_REQUEST, 0x11, 7) };
    let mut frame = Vec::new();
    // The slice of a leaf from line 2 on, and no record.
    let reth = Reth { va: KEY, rkey: 2 << 3 | 1, length: 512 };
    HeaderTemplate::new(&flow).emit(&mut frame, 77, &bth, &Extension::Reth(reth), &[]);
    let mut all = vec![frame.clone()];
    let index =
        IndexHeader { flags: IndexFlags::CLIMBING, partition: 3, path: 9, key: KEY, ..Default::default() };
    hops::admit(&mut frame, &index, 0x0003_0000_0000_1000, 0xdead_1001);
    all.push(frame.clone());
    hops::step(&mut frame, |header, va, _| {
        *header = IndexHeader { flags: IndexFlags::LEAF, epoch: 2, levels: 2, ..*header };
        *va = 0x0003_0000_0004_2400;
    });
    all.push(frame.clone());
    hops::strip(&mut frame);
    all.push(frame);
    all
}

/// A get and its answer, a put in two parts and what it is told, a scan and two records.
fn queries() -> Result<Vec<Vec<u8>>, Box<dyn std::error::Error>> {
    let mut all = Vec::new();
    let mut send = |is_request: bool, header: &QueryHeader, payload: &[u8]| {
        for (header, part) in parts(header, payload, 16) {
            let datagram = datagram(&header, part);
            let ((mac, ip), (to_mac, to_ip)) = if is_request { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
            let (port, to_port) =
                if is_request { (40_000, QUERY_UDP_PORT) } else { (QUERY_UDP_PORT, 40_000) };
            let packet = PacketBuilder::ethernet2(mac, to_mac)
                .ipv4(ip.octets(), to_ip.octets(), 64)
                .udp(port, to_port);
            let mut frame = Vec::with_capacity(packet.size(datagram.len()));
            packet.write(&mut frame, &datagram)?;
            all.push(frame);
        }
        Ok::<_, Box<dyn std::error::Error>>(())
    };
    let get = QueryHeader::request(Op::Get, KEY, 0, 1);
    let led = IndexHeader { flags: IndexFlags::INNER, epoch: 2, levels: 2, partition: 3, ..get.walk };
    send(true, &QueryHeader { walk: led, address: 0x0003_0000_0004_2400, ..get }, &[])?;
    send(false, &get.response(Status::Done), b"a value")?;
    let put = QueryHeader::request(Op::Put, KEY, 0xc11e, 2);
    send(true, &put, b"a value that is longer")?;
    send(false, &QueryHeader { range_end: 0xc00c, ..put.response(Status::NotOpen) }, &[])?;
    let scan = QueryHeader::request(Op::Scan, KEY, 0, 3);
    send(true, &QueryHeader { range_end: KEY + 9, limit: 10, ..scan }, &[])?;
    let mut found = Vec::new();
    records::push(&mut found, KEY, b"one");
    send(false, &QueryHeader { limit: 1, ..scan.response(Status::Done) }, &found)?;
    Ok(all)
}
