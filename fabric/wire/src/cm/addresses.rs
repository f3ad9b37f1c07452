//! What librdmacm adds: a port as a service, and IP addresses in private data (RDMA IP CM Service, IBTA annex A11).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Service of a TCP-like port of librdmacm (`RDMA_PS_TCP`).
#[must_use]
pub const fn service_id(port: u16) -> u64 {
    0x0000_0000_0106_0000 | port as u64
}

/// Beginning of a request's private data: the addresses that the program named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The sender's port.
    pub source_port: u16,
    /// The sender's address.
    pub source: IpAddr,
    /// The receiver's address, of the same version.
    pub destination: IpAddr,
}

impl Addresses {
    /// Bytes in the private data. The program's own follow, up to 56.
    pub const LEN: usize = 36;

    /// Reads them. `None` if they are of another version of the format, or of no version of IP.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let [major, version, p, q, addresses @ ..] = bytes;
        let (source, destination) = addresses.split_first_chunk::<16>()?;
        let destination = destination.first_chunk::<16>()?;
        let address: fn(&[u8; 16]) -> IpAddr = match (major, version >> 4) {
            (0, 4) => |[.., a, b, c, d]| Ipv4Addr::new(*a, *b, *c, *d).into(),
            (0, 6) => |bytes| Ipv6Addr::from(*bytes).into(),
            _ => return None,
        };
        let source_port = u16::from_be_bytes([*p, *q]);
        Some(Self { source_port, source: address(source), destination: address(destination) })
    }

    /// The bytes.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[1] = if self.source.is_ipv4() { 4 << 4 } else { 6 << 4 };
        bytes[2..4].copy_from_slice(&self.source_port.to_be_bytes());
        for (address, room) in
            [self.source, self.destination].into_iter().zip(bytes[4..].chunks_exact_mut(16))
        {
            match address {
                IpAddr::V4(address) => room[12..].copy_from_slice(&address.octets()),
                IpAddr::V6(address) => room.copy_from_slice(&address.octets()),
            }
        }
        bytes
    }
}
