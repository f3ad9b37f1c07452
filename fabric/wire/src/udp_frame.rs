//! A frame with a UDP datagram other than RoCE.

use std::net::SocketAddrV4;

use etherparse::{EtherType, Ethernet2Header, UdpHeader};

use crate::error::{Expected, Header, ParseError};
use crate::frame::{Ethernet, Ipv4, ipv4_header};
use crate::prefix::{Prefix, field, udp_checksum};
use crate::{ETHERNET_LEN, IPV4_LEN, PREFIX_LEN, UDP_LEN};

/// A frame of Ethernet, IPv4 without options, UDP, and a payload.
///
/// ```
/// use fatbtree_wire::{Ethernet, UdpFrame};
///
/// let sent = UdpFrame {
///     ethernet: Ethernet { destination: [2, 0, 0, 0, 0, 2], source: [2, 0, 0, 0, 0, 1] },
///     source: "10.0.0.1:40000".parse()?,
///     destination: "10.0.0.2:4793".parse()?,
///     payload: b"a datagram",
/// };
/// let mut frame = Vec::new();
/// sent.emit(&mut frame);
/// assert_eq!(UdpFrame::parse(&frame)?, sent);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpFrame<'a> {
    /// Ethernet.
    pub ethernet: Ethernet,
    /// IPv4 source address and UDP source port.
    pub source: SocketAddrV4,
    /// IPv4 destination address and UDP destination port.
    pub destination: SocketAddrV4,
    /// Payload after the UDP header.
    pub payload: &'a [u8],
}

/// Time to live.
const TTL: u8 = 64;

impl<'a> UdpFrame<'a> {
    /// Length of the longest payload in bytes.
    pub const LONGEST_PAYLOAD: usize = u16::MAX as usize - IPV4_LEN - UDP_LEN;

    /// Takes a frame apart and checks lengths and checksums; a datagram without a checksum is accepted. Bytes after
    /// the IPv4 packet (Ethernet padding) are ignored. Never panics.
    ///
    /// # Errors
    /// What is wrong with it first; [`ParseError::Foreign`] where it is something else.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let prefix = Prefix::parse(bytes)?;
        if prefix.is_in_flight {
            // Between switches it may have this mark; no host should see it.
            return Err(field(
                Header::Ipv4,
                "fragment offset and flags but DF",
                Expected::Exactly(0),
                0x8000,
            ));
        }
        prefix.check_udp()?;
        let Prefix { link, ip, udp, bytes, .. } = prefix;
        Ok(Self {
            ethernet: Ethernet { destination: link.destination(), source: link.source() },
            source: SocketAddrV4::new(ip.source_addr(), udp.source_port()),
            destination: SocketAddrV4::new(ip.destination_addr(), udp.destination_port()),
            payload: &bytes[PREFIX_LEN..],
        })
    }

    /// Writes the frame into `out` (cleared first; it allocates only while it grows), with its checksums.
    ///
    /// # Panics
    /// When the payload is longer than [`LONGEST_PAYLOAD`](Self::LONGEST_PAYLOAD).
    #[inline]
    pub fn emit(&self, out: &mut Vec<u8>) {
        let Self { ethernet, source, destination, payload } = self;
        assert!(payload.len() <= Self::LONGEST_PAYLOAD, "IPv4 has no packet of {} bytes", payload.len());
        let udp_len = (UDP_LEN + payload.len()) as u16;
        let fields = Ipv4 {
            tos: 0,
            identification: 0,
            dont_fragment: true,
            ttl: TTL,
            source: *source.ip(),
            destination: *destination.ip(),
        };
        let link = Ethernet2Header {
            destination: ethernet.destination,
            source: ethernet.source,
            ether_type: EtherType::IPV4,
        };
        let udp = UdpHeader {
            source_port: source.port(),
            destination_port: destination.port(),
            length: udp_len,
            checksum: 0,
        };
        out.clear();
        out.extend_from_slice(&link.to_bytes());
        out.extend_from_slice(&ipv4_header(&fields, IPV4_LEN as u16 + udp_len).to_bytes());
        out.extend_from_slice(&udp.to_bytes());
        out.extend_from_slice(payload);
        let datagram = ETHERNET_LEN + IPV4_LEN;
        let checksum = udp_checksum(source.ip().octets(), destination.ip().octets(), &out[datagram..]);
        out[datagram + 6..datagram + 8].copy_from_slice(&checksum.to_be_bytes());
    }
}
