//! Emission of one connection's frames: the parts that do not change from frame to frame are computed once.

use crate::frame::{Ipv4, fold, ipv4_header};
use crate::{Bth, ETHERNET_LEN, Extension, ICRC_LEN, IPV4_LEN, PREFIX_LEN, ROCE_UDP_PORT, UDP_LEN, icrc};
use etherparse::{EtherType, Ethernet2Header, UdpHeader};
use std::convert::Infallible;
use std::net::Ipv4Addr;

/// The addresses of a connection, as seen by its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Sender's MAC.
    pub source_mac: [u8; 6],
    /// Receiver's MAC (or its router's).
    pub destination_mac: [u8; 6],
    /// Sender's address.
    pub source_ip: Ipv4Addr,
    /// Receiver's address.
    pub destination_ip: Ipv4Addr,
    /// UDP source port.
    pub source_port: u16,
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
}

impl Default for Flow {
    /// Addresses all zero, an ephemeral port, TOS 0, TTL 64.
    fn default() -> Self {
        Flow {
            source_mac: [0; 6],
            destination_mac: [0; 6],
            source_ip: Ipv4Addr::UNSPECIFIED,
            destination_ip: Ipv4Addr::UNSPECIFIED,
            source_port: 0xc000,
            tos: 0,
            ttl: 64,
        }
    }
}

/// Ethernet, IPv4 and UDP headers of a [`Flow`], ready to be copied in front of a packet.
///
/// They are kept as the ICRC sees them: what it leaves out is all ones, and eight bytes of ones stand before IPv4, where the
/// source MAC and the EtherType will be. So the ICRC is one pass over the frame as it lies in the buffer, and the real
/// values are filled in afterwards.
#[derive(Clone, Debug)]
pub struct HeaderTemplate {
    masked: [u8; PREFIX_LEN],
    /// Source MAC and EtherType.
    link: [u8; icrc::DUMMY_LRH_LEN],
    tos: u8,
    ttl: u8,
    /// Sum of the 16-bit words of the IPv4 header with length, identification and checksum zero.
    sum: u32,
}

const IPV4_AT: usize = ETHERNET_LEN;
const UDP_AT: usize = IPV4_AT + IPV4_LEN;
const BTH_AT: usize = PREFIX_LEN;
const EXTENSION_AT: usize = BTH_AT + Bth::LEN;

/// Offset in a frame at which the message of the ICRC begins.
const MESSAGE_AT: usize = ETHERNET_LEN - icrc::DUMMY_LRH_LEN;

impl HeaderTemplate {
    /// Headers for `flow`; UDP checksum 0, don't-fragment set, as RoCEv2 senders do.
    pub fn new(flow: &Flow) -> HeaderTemplate {
        let link = Ethernet2Header {
            destination: flow.destination_mac,
            source: flow.source_mac,
            ether_type: EtherType::IPV4,
        }
        .to_bytes();
        let fields = Ipv4 {
            tos: flow.tos,
            identification: 0,
            dont_fragment: true,
            ttl: flow.ttl,
            source: flow.source_ip,
            destination: flow.destination_ip,
        };
        let udp = UdpHeader {
            source_port: flow.source_port,
            destination_port: ROCE_UDP_PORT,
            length: 0,
            checksum: 0,
        };
        let mut ip: [u8; IPV4_LEN] = [0; IPV4_LEN];
        ip.copy_from_slice(&ipv4_header(&fields, 0).to_bytes());
        ip[10..12].fill(0);
        let sum = ip.as_chunks::<2>().0.iter().map(|&pair| u32::from(u16::from_be_bytes(pair))).sum();
        let mut masked = [0xff; PREFIX_LEN];
        masked[..MESSAGE_AT].copy_from_slice(&link[..MESSAGE_AT]);
        masked[IPV4_AT..UDP_AT].copy_from_slice(&ip);
        masked[UDP_AT..].copy_from_slice(&udp.to_bytes());
        for at in icrc::MASKED_IP_UDP {
            masked[IPV4_AT + at] = 0xff;
        }
        let link = *link[MESSAGE_AT..].first_chunk().expect("an Ethernet header has 14 bytes");
        HeaderTemplate { masked, link, tos: flow.tos, ttl: flow.ttl, sum }
    }

    /// Writes one frame into `out` (cleared first; it allocates only while it grows): headers, payload, padding, ICRC.
    ///
    /// `bth.pad_count` is set from the payload's length. `extension` must be what `bth.opcode` asks for, and the payload at
    /// most 4096 bytes, the largest path MTU; both are checked in debug builds.
    #[inline]
    pub fn emit(
        &self,
        out: &mut Vec<u8>,
        identification: u16,
        bth: &Bth,
        extension: &Extension,
        payload: &[u8],
    ) {
        let append = |out: &mut Vec<u8>| {
            out.extend_from_slice(payload);
            Ok::<(), Infallible>(())
        };
        let Ok(()) = self.emit_with(out, identification, bth, extension, payload.len(), append);
    }

    /// Writes one frame as [`emit`](Self::emit) does, with a payload of `len` bytes that `append` appends to the
    /// frame. A payload that lies elsewhere than in a slice is then copied once. Missing bytes are filled up with
    /// zeros, and surplus bytes are cut off.
    ///
    /// # Errors
    /// The error of `append`; then `out` is empty.
    #[inline]
    pub fn emit_with<E>(
        &self,
        out: &mut Vec<u8>,
        identification: u16,
        bth: &Bth,
        extension: &Extension,
        len: usize,
        append: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        debug_assert_eq!(
            extension.layout(),
            bth.opcode.layout(),
            "extended headers do not fit {}",
            bth.opcode
        );
        debug_assert!(len <= 4096, "payload exceeds the largest path MTU: {len} bytes");
        let pad = len.wrapping_neg() & 3;
        let extension_len = extension.len();
        let udp_len = (UDP_LEN + Bth::LEN + extension_len + len + pad + ICRC_LEN) as u16;
        let total_len = udp_len.wrapping_add(IPV4_LEN as u16);

        let payload_at = EXTENSION_AT + extension_len;

        out.clear();
        out.extend_from_slice(&self.masked);
        let head: &mut [u8; PREFIX_LEN] = out.first_chunk_mut().expect("these are its first bytes");
        head[IPV4_AT + 2..IPV4_AT + 4].copy_from_slice(&total_len.to_be_bytes());
        head[IPV4_AT + 4..IPV4_AT + 6].copy_from_slice(&identification.to_be_bytes());
        head[UDP_AT + 4..UDP_AT + 6].copy_from_slice(&udp_len.to_be_bytes());
        let masked = Bth { pad_count: pad as u8, resv8a: 0xff, ..*bth };
        out.extend_from_slice(&masked.to_bytes());
        extension.append_to(out);
        if let Err(error) = append(out) {
            out.clear();
            return Err(error);
        }
        // Padding; and whatever was appended, the lengths in the headers are true.
        out.truncate(payload_at + len);
        out.resize(payload_at + len + pad, 0);
        let icrc = crc32fast::hash(&out[MESSAGE_AT..]);
        out.extend_from_slice(&icrc.to_le_bytes());

        // What the ICRC leaves out.
        let checksum = !fold(self.sum + u32::from(total_len) + u32::from(identification));
        let head: &mut [u8; EXTENSION_AT] =
            out.first_chunk_mut().expect("whatever was appended, it is this long");
        head[MESSAGE_AT..IPV4_AT].copy_from_slice(&self.link);
        head[IPV4_AT + 1] = self.tos;
        head[IPV4_AT + 8] = self.ttl;
        head[IPV4_AT + 10..IPV4_AT + 12].copy_from_slice(&checksum.to_be_bytes());
        head[UDP_AT + 6..UDP_AT + 8].fill(0);
        head[BTH_AT + icrc::MASKED_BTH] = bth.resv8a;
        Ok(())
    }
}
