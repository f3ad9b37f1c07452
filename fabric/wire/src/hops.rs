//! Reference model, in software, of what switches do to an index read, field by field, for tests to compare with.
//!
//! ```text
//!  client ──READ va=key rkey<256▶ admit ──▶ step … step ──▶ strip ──READ va=node rkey──▶ memory server
//!            dst 4791            first hop   intermediate   last hop     dst 4791
//! ```
//!
//! Each function edits the frame in place (it must run from the Ethernet header to the end of the ICRC, without trailing
//! padding), mends the ICRC by difference and keeps the IPv4 checksum right by difference too (RFC 1624),
//! so that damage stays visible in both. They return `false`, and leave the frame alone, when it is not what the hop acts on.

use crate::icrc::InFlightDelta;
use crate::{
    Bth, ETHERNET_LEN, ICRC_LEN, IN_FLIGHT, INDEX_HEADER_VERSION, INDEX_UDP_PORT, IPV4_LEN, IndexFlags,
    IndexHeader, Opcode, PREFIX_LEN, ROCE_UDP_PORT, Reth,
};

const TOTAL_LEN_AT: usize = ETHERNET_LEN + 2;
const FLAGS_AT: usize = ETHERNET_LEN + 6;
const CHECKSUM_AT: usize = ETHERNET_LEN + 10;
const PORT_AT: usize = ETHERNET_LEN + IPV4_LEN + 2;
const UDP_LEN_AT: usize = ETHERNET_LEN + IPV4_LEN + 4;

/// Rkeys below this are index reads.
const INDEX_RKEYS: u32 = 1 << 8;

/// First hop: inserts `header` with the line of the slice that the rkey asks for, replaces the key in RETH by the root's address and the
/// rkey of index reads by the real one. Acts on READ requests to UDP port 4791 with an rkey below 256.
pub fn admit(frame: &mut Vec<u8>, header: &IndexHeader, root: u64, rkey: u32) -> bool {
    const LEN: usize = PREFIX_LEN + Bth::LEN + Reth::LEN + ICRC_LEN;
    if frame.len() != LEN
        || u16_at(frame, PORT_AT) != ROCE_UDP_PORT
        || frame[PREFIX_LEN] != Opcode::RC_RDMA_READ_REQUEST.0
    {
        return false;
    }
    let (old_va, old_rkey) = reth_at(frame, PREFIX_LEN + Bth::LEN);
    if old_rkey >= INDEX_RKEYS {
        return false;
    }
    let slice = header.slice & !IndexHeader::SLICE_LINE | old_rkey as u8 & IndexHeader::SLICE_LINE;
    let header = IndexHeader { slice, ..*header }.to_bytes();
    let Some(left_out) = InFlightDelta::left_out_of(frame, PREFIX_LEN) else { return false };
    let delta = InFlightDelta { index_header: header, left_out, va: old_va ^ root, rkey: old_rkey ^ rkey };
    write_reth(frame, PREFIX_LEN + Bth::LEN, root, rkey);
    frame.splice(PREFIX_LEN..PREFIX_LEN, header);
    put_u16(frame, PORT_AT, INDEX_UDP_PORT);
    mark(frame);
    lengthen(frame, IndexHeader::LEN as u16);
    mend(frame, &delta);
    true
}

/// Intermediate hop: `walk` edits the index header, the address and the rkey.
pub fn step(frame: &mut [u8], walk: impl FnOnce(&mut IndexHeader, &mut u64, &mut u32)) -> bool {
    let Some(old) = index_header(frame) else { return false };
    let Ok(mut header) = IndexHeader::parse(&old) else { return false };
    const RETH_AT: usize = PREFIX_LEN + IndexHeader::LEN + Bth::LEN;
    let (old_va, old_rkey) = reth_at(frame, RETH_AT);
    let (mut va, mut rkey) = (old_va, old_rkey);
    walk(&mut header, &mut va, &mut rkey);
    let new = header.to_bytes();
    let index_header = std::array::from_fn(|i| old[i] ^ new[i]);
    frame[PREFIX_LEN..PREFIX_LEN + IndexHeader::LEN].copy_from_slice(&new);
    write_reth(frame, RETH_AT, va, rkey);
    mend(frame, &InFlightDelta { index_header, left_out: [0; 7], va: old_va ^ va, rkey: old_rkey ^ rkey });
    true
}

/// Last hop: removes the index header, restores UDP port and lengths, and moves the address of a leaf to the slice.
pub fn strip(frame: &mut Vec<u8>) -> bool {
    let Some(index_header) = index_header(frame) else { return false };
    let Ok(header) = IndexHeader::parse(&index_header) else { return false };
    let Some(left_out) = InFlightDelta::left_out_of(frame, PREFIX_LEN + IndexHeader::LEN) else {
        return false;
    };
    frame.drain(PREFIX_LEN..PREFIX_LEN + IndexHeader::LEN);
    let (old_va, rkey) = reth_at(frame, PREFIX_LEN + Bth::LEN);
    let va = if header.flags.contains(IndexFlags::LEAF) { in_leaf(old_va, &header) } else { old_va };
    write_reth(frame, PREFIX_LEN + Bth::LEN, va, rkey);
    let delta = InFlightDelta { index_header, left_out, va: old_va ^ va, rkey: 0 };
    // Not simply the port of RoCE: a bit that was flipped on the way stays so.
    let to_roce = ROCE_UDP_PORT.wrapping_sub(INDEX_UDP_PORT);
    let port = u16_at(frame, PORT_AT).wrapping_add(to_roce);
    put_u16(frame, PORT_AT, port);
    mark(frame);
    lengthen(frame, (IndexHeader::LEN as u16).wrapping_neg());
    mend(frame, &delta);
    true
}

/// Address of the slice in a leaf. A node does not cross a border of 4 GB, so switches add to the low half alone.
fn in_leaf(leaf: u64, header: &IndexHeader) -> u64 {
    let low = (leaf as u32).wrapping_add(header.slice_offset().into());
    leaf >> 32 << 32 | u64::from(low)
}

/// The index header's bytes, if the frame has one of our version and is long enough for a READ request.
fn index_header(frame: &[u8]) -> Option<[u8; IndexHeader::LEN]> {
    const LEN: usize = PREFIX_LEN + IndexHeader::LEN + Bth::LEN + Reth::LEN + ICRC_LEN;
    if frame.len() != LEN || frame[FLAGS_AT] & IN_FLIGHT == 0 {
        return None;
    }
    let header: [u8; IndexHeader::LEN] = *frame[PREFIX_LEN..].first_chunk()?;
    (header[0] == INDEX_HEADER_VERSION).then_some(header)
}

fn u16_at(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

fn put_u16(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn reth_at(frame: &[u8], at: usize) -> (u64, u32) {
    let reth = Reth::parse(&std::array::from_fn(|i| frame[at + i]));
    (reth.va, reth.rkey)
}

fn write_reth(frame: &mut [u8], at: usize, va: u64, rkey: u32) {
    frame[at..at + 8].copy_from_slice(&va.to_be_bytes());
    frame[at + 8..at + 12].copy_from_slice(&rkey.to_be_bytes());
}

/// Adds `more` (modulo 2^16) to both lengths.
fn lengthen(frame: &mut [u8], more: u16) {
    put_u16(frame, UDP_LEN_AT, u16_at(frame, UDP_LEN_AT).wrapping_add(more));
    let old = u16_at(frame, TOTAL_LEN_AT);
    change_ipv4(frame, TOTAL_LEN_AT, old.wrapping_add(more));
}

/// Toggles the mark of a packet in flight.
fn mark(frame: &mut [u8]) {
    let flags = u16_at(frame, FLAGS_AT) ^ u16::from(IN_FLIGHT) << 8;
    change_ipv4(frame, FLAGS_AT, flags);
}

/// Changes two bytes of the IPv4 header, and mends its checksum: `~(~checksum + ~old + new)`.
fn change_ipv4(frame: &mut [u8], at: usize, new: u16) {
    let old = u16_at(frame, at);
    put_u16(frame, at, new);
    let sum = u32::from(!u16_at(frame, CHECKSUM_AT)) + u32::from(!old) + u32::from(new);
    put_u16(frame, CHECKSUM_AT, !crate::frame::fold(sum));
}

fn mend(frame: &mut [u8], delta: &InFlightDelta) {
    if let Some(tail) = frame.last_chunk_mut() {
        *tail = delta.mend(u32::from_le_bytes(*tail)).to_le_bytes();
    }
}
