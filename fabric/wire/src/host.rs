//! Hosts, the unit of limits on peers.

use std::net::IpAddr;

/// Host of a peer's address: an IPv4 address itself, or the /64 network of an IPv6 address, whose owner may use all
/// of it.
pub fn host_of(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_host_is_its_network_and_an_embedded_ipv4_address_is_itself() {
        let of = |text: &str| host_of(text.parse().expect("an address")).to_string();
        assert_eq!(of("2001:db8:1:2:aaaa::1"), of("2001:db8:1:2:bbbb::2"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!((of("::ffff:10.0.0.1"), of("10.0.0.2")), ("10.0.0.1".to_owned(), "10.0.0.2".to_owned()));
    }
}
