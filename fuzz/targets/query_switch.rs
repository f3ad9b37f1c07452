//! Whatever frame comes, switches go on, compiled and interpreted alike; a query keeps its length, and its checksum stays right or wrong.
#![no_main]

use std::cell::RefCell;
use std::net::SocketAddrV4;

use fatbtree_fuzz::Input;
use fatbtree_fuzz::switches::{STEP, Switches};
use fatbtree_switch::service::CPU_PORT;
use fatbtree_topology::{HostId, Peer, SwitchId};
use fatbtree_wire::query::{DIRECT_QUERY_UDP_PORT, Op, QUERY_UDP_PORT, Query, QueryHeader};
use fatbtree_wire::{Ethernet, UdpFrame};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static SWITCHES: RefCell<Switches> = RefCell::new(Switches::new());
}

/// Switches that a frame passes: no more than its time to live lets it. What only another switch may say is believed where it comes by a
/// port without a host, so one that is forged there may go to and fro until then.
const HOPS: usize = 256;
/// Of a port's number, in v1model.
const PORT_BITS: u16 = 0x1ff;

fuzz_target!(
    init: SWITCHES.with(|_| ()),
    |bytes: &[u8]| {
        SWITCHES.with_borrow_mut(|switches| {
            let mut input = Input::new(bytes);
            let from = switches.host(input.below(256)).id;
            let at = match input.below(8) {
                // By whatever port, between switches too.
                0 => (SwitchId(input.below(switches.network.switches().len()) as u32), input.short()),
                _ => switches.port_of(from),
            };
            let frame = match input.below(8) {
                0 => input.bytes(4096).to_vec(),
                _ => draw(switches, from, &mut input),
            };
            pass(switches, at, frame);
        });
    }
);

/// A query with some of its bytes overwritten, before its checksums are made or afterwards.
fn draw(switches: &Switches, from: HostId, input: &mut Input<'_>) -> Vec<u8> {
    let from = switches.network.host(from).clone();
    let to = switches.host(input.below(256));
    let key = match input.below(2) {
        0 => input.number(),
        _ => STEP * u64::from(input.short() % 4000),
    };
    let mut header = QueryHeader::request(Op::ALL[input.below(Op::ALL.len())], key, 1, input.number());
    header.walk.path = input.byte() & 63;
    header.address = input.number();
    let port = [QUERY_UDP_PORT, QUERY_UDP_PORT, DIRECT_QUERY_UDP_PORT, input.short()][input.below(4)];
    let most = input.below(256);
    let part = input.bytes(most);
    header.total = part.len() as u32;
    let mut payload = [&header.to_bytes()[..], part].concat();
    input.overwrite(&mut payload);
    let mut frame = Vec::new();
    UdpFrame {
        ethernet: Ethernet { destination: to.mac.0, source: from.mac.0 },
        source: SocketAddrV4::new(from.ip, 40_000),
        destination: SocketAddrV4::new(to.ip, port),
        payload: &payload,
    }
    .emit(&mut frame);
    input.overwrite(&mut frame);
    // Bytes after the packet, as Ethernet may have; or none, and the end is missing.
    match input.below(4) {
        0 => frame.extend_from_slice(&[0; 40][..input.below(40)]),
        1 => frame.truncate(frame.len() - input.below(frame.len())),
        _ => {}
    }
    frame
}

fn pass(switches: &mut Switches, mut at: (SwitchId, u16), mut frame: Vec<u8>) {
    for _ in 0..HOPS {
        let (switch, port) = at;
        let sent = switches.hop(switch, port, &frame);
        assert!(sent.len() <= 1, "one frame, or none: nothing of this program is sent to many");
        let Some((out, found)) = sent.into_iter().next() else { return };
        // What the controller sends has a header of its own in front.
        if port & PORT_BITS != CPU_PORT {
            compare(&frame, &found);
        }
        match switches.network.peer(switch, out) {
            Some(Peer::Switch { switch, port }) => at = (switch, port),
            _ => return,
        }
        frame = found;
    }
    panic!("a frame has no end");
}

/// What a switch has sent for what came.
fn compare(came: &[u8], sent: &[u8]) {
    let Some(sums) = checksums(came) else { return };
    assert_eq!(came.len(), sent.len(), "a query has another length");
    let found = checksums(sent).expect("it is still one");
    assert_eq!(sums, found, "whether IPv4's and UDP's checksums are right");
    let [before, after] = [came, sent].map(|frame| Query::parse(&frame[HEADERS..]).ok());
    // Where it goes and how far it was led may change, and nothing else.
    if let (Some(before), Some(after)) = (before, after) {
        let same = QueryHeader { walk: before.header.walk, address: before.header.address, ..after.header };
        assert_eq!((same, after.part), (before.header, before.part));
        assert_eq!(after.header.walk.key, before.header.walk.key);
    }
}

/// Ethernet, IPv4 and UDP.
const HEADERS: usize = 14 + 20 + 8;

/// Of a UDP datagram for the query's port, in an IPv4 packet without options that is no fragment: whether IPv4's and UDP's checksums
/// are right; none there is as good as right.
fn checksums(frame: &[u8]) -> Option<(bool, bool)> {
    let short = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    let is_query = short(12)? == 0x0800
        && frame.get(14) == Some(&0x45)
        && frame.get(23) == Some(&17)
        // (the first bit is the mark between switches)
        && short(20)? & 0x3fff == 0
        && short(36)? == QUERY_UDP_PORT;
    let (total, udp) = (usize::from(short(16)?), usize::from(short(38)?));
    if !is_query || total != udp + 20 || udp < 8 || frame.len() < 14 + total {
        return None;
    }
    let datagram = &frame[34..34 + udp];
    let pseudo = sum(&frame[26..34]) + 17 + udp as u64;
    let is_right = short(40)? == 0 || fold(pseudo + sum(datagram)) == 0xffff;
    Some((fold(sum(&frame[14..34])) == 0xffff, is_right))
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|word| u64::from(word[0]) << 8 | u64::from(word.get(1).copied().unwrap_or(0))).sum()
}

fn fold(sum: u64) -> u64 {
    let mut sum = sum;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}
