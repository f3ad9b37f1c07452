//! The checked view of a received frame.

use crate::error::{Expected, Header, ParseError, take};
use crate::prefix::{Prefix, field, foreign};
use crate::{
    Bth, Extension, ICRC_LEN, INDEX_UDP_PORT, IPV4_LEN, IndexHeader, Opcode, PREFIX_LEN, ROCE_UDP_PORT,
    UDP_LEN, icrc,
};
use etherparse::{EtherType, Ethernet2Header, IpDscp, IpEcn, IpFragOffset, IpNumber, Ipv4Header, UdpHeader};
use std::net::Ipv4Addr;

/// Ethernet II addresses; the EtherType is always IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ethernet {
    /// Destination MAC.
    pub destination: [u8; 6],
    /// Source MAC.
    pub source: [u8; 6],
}

/// The fields of an IPv4 header without options or fragments; length and checksum follow from the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// Type of service: DSCP in the upper six bits, ECN in the lower two.
    pub tos: u8,
    /// Identification.
    pub identification: u16,
    /// Whether the don't-fragment flag is set.
    pub dont_fragment: bool,
    /// Time to live.
    pub ttl: u8,
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
}

/// The fields of a UDP header; the destination port follows from whether there is an index header, the length from the
/// rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Source port: RoCEv2 puts the entropy of a queue pair there.
    pub source_port: u16,
    /// Checksum, found right; 0 when the sender computed none, as usual with RoCEv2.
    pub checksum: u16,
}

/// A RoCEv2 frame, or an index read in flight, taken apart. The ICRC is *not* verified by parsing: compare
/// [`icrc`](Self::icrc) with [`expected_icrc`](Self::expected_icrc).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Ethernet.
    pub ethernet: Ethernet,
    /// IPv4.
    pub ipv4: Ipv4,
    /// UDP.
    pub udp: Udp,
    /// The index header, when the IPv4 header has the [mark](IN_FLIGHT) of index reads in flight.
    pub index: Option<IndexHeader>,
    /// Base transport header.
    pub bth: Bth,
    /// Extended headers.
    pub extension: Extension,
    /// Payload without padding.
    pub payload: &'a [u8],
    /// Padding that makes the payload a multiple of four bytes.
    pub padding: &'a [u8],
    /// The ICRC the frame carries, its four bytes as a little-endian number.
    pub icrc: u32,
    /// The frame up to the end of the ICRC.
    bytes: &'a [u8],
}

/// Flag that marks an index read between its first and its last hop, in the seventh byte of an IPv4 header. RFC 791
/// reserves it, and hosts may not set it. So nothing that a host sends, to any UDP port, is taken for an index read.
pub const IN_FLIGHT: u8 = 0x80;

impl<'a> Frame<'a> {
    /// Takes a frame apart and checks lengths, IPv4 checksum and, unless it is 0, the UDP checksum. Bytes after the IPv4
    /// packet (Ethernet padding) are ignored. Never panics.
    pub fn parse(bytes: &'a [u8]) -> Result<Frame<'a>, ParseError> {
        let prefix = Prefix::parse(bytes)?;
        let Prefix { link, ip, udp, is_in_flight, bytes } = &prefix;
        let (bytes, is_in_flight) = (*bytes, *is_in_flight);
        let port = udp.destination_port();
        let expected = if is_in_flight { INDEX_UDP_PORT } else { ROCE_UDP_PORT };
        if port != expected {
            let expected = Expected::Exactly(u32::from(expected));
            return Err(foreign(Header::Udp, "destination port", expected, u32::from(port)));
        }
        prefix.check_udp()?;

        // Index header and BTH.
        let mut offset = PREFIX_LEN;
        let mut index = None;
        if is_in_flight {
            index = Some(IndexHeader::parse(take(bytes, offset, Header::Index)?)?);
            offset += IndexHeader::LEN;
        }
        let bth = Bth::parse(take(bytes, offset, Header::Bth)?)?;
        if index.is_some() && bth.opcode != Opcode::RC_RDMA_READ_REQUEST {
            let expected = Expected::Exactly(u32::from(Opcode::RC_RDMA_READ_REQUEST.0));
            return Err(field(
                Header::Bth,
                "opcode after an index header",
                expected,
                u32::from(bth.opcode.0),
            ));
        }
        offset += Bth::LEN;

        // The rest, from both ends.
        let end = bytes.len().saturating_sub(ICRC_LEN).max(offset);
        let icrc = u32::from_le_bytes(*take(bytes, end, Header::Icrc)?);
        let message = &bytes[..end];
        let extension = Extension::parse(bth.opcode, message, offset)?;
        let body = &message[offset + extension.len()..];
        if !body.len().is_multiple_of(4) {
            let expected = Expected::MultipleOf(4);
            return Err(field(Header::Payload, "length with padding", expected, body.len() as u32));
        }
        let pad = usize::from(bth.pad_count);
        if pad > body.len() {
            let expected = Expected::AtMost(body.len() as u32);
            return Err(field(Header::Bth, "pad count", expected, pad as u32));
        }
        let (payload, padding) = body.split_at(body.len() - pad);

        Ok(Frame {
            ethernet: Ethernet { destination: link.destination(), source: link.source() },
            ipv4: Ipv4 {
                tos: ip.slice()[1],
                identification: ip.identification(),
                dont_fragment: ip.dont_fragment(),
                ttl: ip.ttl(),
                source: ip.source_addr(),
                destination: ip.destination_addr(),
            },
            udp: Udp { source_port: udp.source_port(), checksum: udp.checksum() },
            index,
            bth,
            extension,
            payload,
            padding,
            icrc,
            bytes,
        })
    }

    /// The ICRC this frame should carry: in full for a RoCEv2 frame, and as the hops keep it for an index read in flight.
    #[inline]
    pub fn expected_icrc(&self) -> u32 {
        let expected =
            if self.index.is_some() { icrc::in_flight(self.bytes) } else { icrc::full(self.bytes) };
        expected.expect("a parsed frame has all the headers the ICRC covers")
    }

    /// The bytes of the frame from the Ethernet header to the end of the ICRC, trailing padding cut off.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// UDP destination port.
    pub fn destination_port(&self) -> u16 {
        if self.index.is_some() { INDEX_UDP_PORT } else { ROCE_UDP_PORT }
    }

    /// Writes the frame into `out` (cleared first) from its fields, lengths and IPv4 checksum computed anew, UDP checksum and
    /// ICRC as they are. For a parsed frame the result equals [`bytes`](Self::bytes).
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.clear();
        let link = Ethernet2Header {
            destination: self.ethernet.destination,
            source: self.ethernet.source,
            ether_type: EtherType::IPV4,
        };
        out.extend_from_slice(&link.to_bytes());

        let index_len = if self.index.is_some() { IndexHeader::LEN } else { 0 };
        let udp_len = UDP_LEN
            + index_len
            + Bth::LEN
            + self.extension.len()
            + self.payload.len()
            + self.padding.len()
            + ICRC_LEN;
        let ip = ipv4_header(&self.ipv4, (IPV4_LEN + udp_len) as u16);
        let mut ip = ip.to_bytes();
        if let Some(header) = ip.first_chunk_mut::<IPV4_LEN>()
            && self.index.is_some()
        {
            header[6] |= IN_FLIGHT;
            let checksum = ipv4_checksum(header).to_be_bytes();
            header[10..12].copy_from_slice(&checksum);
        }
        out.extend_from_slice(&ip);
        let udp = UdpHeader {
            source_port: self.udp.source_port,
            destination_port: self.destination_port(),
            length: udp_len as u16,
            checksum: self.udp.checksum,
        };
        out.extend_from_slice(&udp.to_bytes());
        if let Some(index) = &self.index {
            out.extend_from_slice(&index.to_bytes());
        }
        out.extend_from_slice(&self.bth.to_bytes());
        self.extension.append_to(out);
        out.extend_from_slice(self.payload);
        out.extend_from_slice(self.padding);
        out.extend_from_slice(&self.icrc.to_le_bytes());
    }
}

/// The IPv4 header of a packet of `total_len` bytes, checksum included.
pub(crate) fn ipv4_header(fields: &Ipv4, total_len: u16) -> Ipv4Header {
    let mut header = Ipv4Header {
        dscp: IpDscp::try_new(fields.tos >> 2).unwrap_or_default(),
        ecn: IpEcn::try_new(fields.tos & 3).unwrap_or_default(),
        total_len,
        identification: fields.identification,
        dont_fragment: fields.dont_fragment,
        more_fragments: false,
        fragment_offset: IpFragOffset::ZERO,
        time_to_live: fields.ttl,
        protocol: IpNumber::UDP,
        header_checksum: 0,
        source: fields.source.octets(),
        destination: fields.destination.octets(),
        options: Default::default(),
    };
    header.header_checksum = header.calc_header_checksum();
    header
}

/// The checksum an IPv4 header should carry.
#[inline]
pub(crate) fn ipv4_checksum(header: &[u8; IPV4_LEN]) -> u16 {
    let mut words: u32 = 0;
    for (i, pair) in header.as_chunks::<2>().0.iter().enumerate() {
        if i != 5 {
            words += u32::from(u16::from_be_bytes(*pair));
        }
    }
    !fold(words)
}

/// Folds a sum of 16-bit words to 16 bits, carries added back (RFC 1071).
#[inline]
pub(crate) fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}
