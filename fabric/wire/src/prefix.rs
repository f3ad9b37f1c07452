//! Ethernet, IPv4 and UDP of a received frame, checked.

use crate::error::{Expected, Header, ParseError, take};
use crate::frame::{IN_FLIGHT, ipv4_checksum};
use crate::{ETHERNET_LEN, IPV4_LEN, UDP_LEN};
use etherparse::checksum::Sum16BitWords;
use etherparse::{EtherType, Ethernet2HeaderSlice, IpNumber, Ipv4HeaderSlice, UdpHeaderSlice};

/// Headers before a UDP datagram's payload.
pub(crate) struct Prefix<'a> {
    pub(crate) link: Ethernet2HeaderSlice<'a>,
    pub(crate) ip: Ipv4HeaderSlice<'a>,
    pub(crate) udp: UdpHeaderSlice<'a>,
    /// Whether IPv4 has the [mark](IN_FLIGHT).
    pub(crate) is_in_flight: bool,
    /// The frame without what is behind the IPv4 packet.
    pub(crate) bytes: &'a [u8],
}

pub(crate) fn field(header: Header, field: &'static str, expected: Expected, found: u32) -> ParseError {
    ParseError::Field { header, field, expected, found }
}

pub(crate) fn foreign(header: Header, field: &'static str, expected: Expected, found: u32) -> ParseError {
    ParseError::Foreign { header, field, expected, found }
}

impl<'a> Prefix<'a> {
    /// Checks everything but UDP's length and checksum, which are [checked](Self::check_udp) once the port is known
    /// to be right.
    #[inline]
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        // Ethernet.
        let truncated = |header, offset, expected| ParseError::Truncated {
            header,
            offset,
            expected,
            found: bytes.len().saturating_sub(offset),
        };
        let link = Ethernet2HeaderSlice::from_slice(bytes)
            .map_err(|_| truncated(Header::Ethernet, 0, ETHERNET_LEN))?;
        if link.ether_type() != EtherType::IPV4 {
            let expected = Expected::Exactly(u32::from(EtherType::IPV4.0));
            return Err(foreign(Header::Ethernet, "EtherType", expected, u32::from(link.ether_type().0)));
        }

        // IPv4. The first byte is checked before etherparse sees it, so that its errors can only be about length.
        let header: &[u8; IPV4_LEN] = take(bytes, ETHERNET_LEN, Header::Ipv4)?;
        if header[0] != 0x45 {
            let expected = Expected::Exactly(0x45);
            return Err(field(Header::Ipv4, "version and header length", expected, u32::from(header[0])));
        }
        let ip = Ipv4HeaderSlice::from_slice(header)
            .map_err(|_| truncated(Header::Ipv4, ETHERNET_LEN, IPV4_LEN))?;
        let checksum = ipv4_checksum(header);
        if checksum != ip.header_checksum() {
            let expected = Expected::Exactly(u32::from(checksum));
            return Err(field(Header::Ipv4, "header checksum", expected, u32::from(ip.header_checksum())));
        }
        if ip.protocol() != IpNumber::UDP {
            let expected = Expected::Exactly(u32::from(IpNumber::UDP.0));
            return Err(foreign(Header::Ipv4, "protocol", expected, u32::from(ip.protocol().0)));
        }
        let is_in_flight = header[6] & IN_FLIGHT != 0;
        let fragment = u16::from_be_bytes([header[6] & !IN_FLIGHT, header[7]]) & !0x4000;
        if fragment != 0 {
            let (expected, found) = (Expected::Exactly(0), u32::from(fragment));
            return Err(field(Header::Ipv4, "fragment offset and flags but DF", expected, found));
        }
        let total_len = usize::from(ip.total_len());
        let available = bytes.len() - ETHERNET_LEN;
        if total_len > available {
            let expected = Expected::AtMost(available as u32);
            return Err(field(Header::Ipv4, "total length", expected, total_len as u32));
        }
        if total_len < IPV4_LEN + UDP_LEN {
            let expected = Expected::AtLeast((IPV4_LEN + UDP_LEN) as u32);
            return Err(field(Header::Ipv4, "total length", expected, total_len as u32));
        }
        let bytes = &bytes[..ETHERNET_LEN + total_len];
        let udp = UdpHeaderSlice::from_slice(&bytes[ETHERNET_LEN + IPV4_LEN..])
            .map_err(|_| truncated(Header::Udp, ETHERNET_LEN + IPV4_LEN, UDP_LEN))?;
        Ok(Self { link, ip, udp, is_in_flight, bytes })
    }

    /// Checks UDP's length, and its checksum unless that is 0 because the sender has computed none.
    #[inline]
    pub(crate) fn check_udp(&self) -> Result<(), ParseError> {
        let Self { ip, udp, bytes, .. } = self;
        let datagram = &bytes[ETHERNET_LEN + IPV4_LEN..];
        if usize::from(udp.length()) != datagram.len() {
            let expected = Expected::Exactly(datagram.len() as u32);
            return Err(field(Header::Udp, "length", expected, u32::from(udp.length())));
        }
        if udp.checksum() != 0 {
            let checksum = udp_checksum(ip.source(), ip.destination(), datagram);
            if checksum != udp.checksum() {
                let expected = Expected::Exactly(u32::from(checksum));
                return Err(field(Header::Udp, "checksum", expected, u32::from(udp.checksum())));
            }
        }
        Ok(())
    }
}

/// The checksum a UDP datagram over IPv4 should carry (never 0).
pub(crate) fn udp_checksum(source: [u8; 4], destination: [u8; 4], datagram: &[u8]) -> u16 {
    let length = (datagram.len() as u16).to_be_bytes();
    Sum16BitWords::new()
        .add_4bytes(source)
        .add_4bytes(destination)
        .add_2bytes([0, IpNumber::UDP.0])
        .add_2bytes(length)
        .add_slice(&datagram[..6])
        .add_slice(&datagram[UDP_LEN..])
        .to_ones_complement_with_no_zero()
        .to_be()
}
