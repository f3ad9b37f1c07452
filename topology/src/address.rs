//! Addresses: Al-Fares' scheme for IPv4, and MAC addresses derived from it.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// A MAC address; prints and parses as `02:00:0a:01:00:02`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// Default MAC address of the host with `ip`, locally administered: `02:00` and then the four octets.
    ///
    /// One-to-one with the IPv4 address, so it is as unique as that, and easy to recognize in a packet dump.
    pub fn of_ip(ip: Ipv4Addr) -> Self {
        let [a, b, c, d] = ip.octets();
        Self([0x02, 0x00, a, b, c, d])
    }

    /// Whether this is a group address (the lowest bit of the first octet), which no port may own.
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MacAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let problem = || format!("expected six hex octets such as 02:00:0a:01:00:02, found {text:?}");
        let mut octets = [0u8; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().ok_or_else(problem)?;
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(problem());
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| problem())?;
        }
        if parts.next().is_some() { Err(problem()) } else { Ok(Self(octets)) }
    }
}

/// An IPv4 prefix; prints as `10.1.0.0/16`. Bits beyond `len` are zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Prefix {
    address: Ipv4Addr,
    len: u8,
}

impl Prefix {
    /// The prefix of `len` bits (0..=32; more counts as 32) that `address` lies in.
    pub fn new(address: Ipv4Addr, len: u8) -> Self {
        let len = len.min(32);
        let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
        Self { address: Ipv4Addr::from(u32::from(address) & mask), len }
    }

    /// The network address.
    pub fn address(self) -> Ipv4Addr {
        self.address
    }

    /// Length in bits, 0..=32.
    #[allow(clippy::len_without_is_empty, reason = "a length in bits, not a container's")]
    pub fn len(self) -> u8 {
        self.len
    }

    /// Whether `ip` lies in this prefix.
    pub fn contains(self, ip: Ipv4Addr) -> bool {
        Self::new(ip, self.len).address == self.address
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_round_trip_and_refusals() {
        let mac = MacAddress::of_ip(Ipv4Addr::new(10, 1, 0, 2));
        assert_eq!(mac.to_string(), "02:00:0a:01:00:02");
        assert_eq!(mac.to_string().parse(), Ok(mac));
        assert!(!mac.is_group());
        assert!(MacAddress([0xff; 6]).is_group());
        for bad in [
            "",
            "02:00:0a:01:00",
            "02:00:0a:01:00:02:03",
            "2:0:a:1:0:2",
            "02:00:0a:01:00:+2",
            "02-00-0a-01-00-02",
        ] {
            assert!(bad.parse::<MacAddress>().is_err(), "{bad} must not parse");
        }
    }

    #[test]
    fn prefix_masks_and_contains() {
        let p = Prefix::new(Ipv4Addr::new(10, 3, 1, 9), 16);
        assert_eq!(p.to_string(), "10.3.0.0/16");
        assert!(p.contains(Ipv4Addr::new(10, 3, 255, 255)));
        assert!(!p.contains(Ipv4Addr::new(10, 4, 0, 0)));
        let all = Prefix::new(Ipv4Addr::new(10, 3, 1, 9), 0);
        assert_eq!(all.to_string(), "0.0.0.0/0");
        assert!(all.contains(Ipv4Addr::BROADCAST));
        assert_eq!(Prefix::new(Ipv4Addr::new(1, 2, 3, 4), 77).to_string(), "1.2.3.4/32");
    }
}
