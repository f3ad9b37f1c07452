//! The index header, 16 bytes directly after UDP, present only between the first and the last hop of an index read
//! ([marked](crate::IN_FLIGHT) in the IPv4 header). Big endian:
//!
//! ```text
//! byte 0        1       2       3        4..6        6      7          8..16
//! | version = 3 | flags | epoch | levels | partition | path | reserved | key |
//! ```
//!
//! A packet says by its address where it stands: nodes have no other name.

use crate::error::{Expected, Header, ParseError};
use std::fmt;

/// The version this crate reads and writes.
pub const INDEX_HEADER_VERSION: u8 = 3;

/// Flag bits of an [`IndexHeader`]: open, unknown bits are kept and print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct IndexFlags(pub u8);

impl IndexFlags {
    /// The packet is on its way up to a switch that holds the fat root.
    pub const CLIMBING: IndexFlags = IndexFlags(1);

    /// The address in RETH is that of an inner node, which may be cached further on. Node sets leave a packet without this flag alone.
    pub const INNER: IndexFlags = IndexFlags(2);

    /// Whether every bit of `other` is set.
    pub const fn contains(self, other: IndexFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Display for IndexFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        let mut separator = "";
        for (flag, name) in [(IndexFlags::CLIMBING, "CLIMBING"), (IndexFlags::INNER, "INNER")] {
            if self.contains(flag) {
                write!(f, "{separator}{name}")?;
                separator = ", ";
            }
            rest &= !flag.0;
        }
        match rest {
            0 if self.0 == 0 => f.write_str("none"),
            0 => Ok(()),
            bits => write!(f, "{separator}unknown {bits:#04x}"),
        }
    }
}

/// Header of an index read on its way through the switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct IndexHeader {
    /// State of the walk.
    pub flags: IndexFlags,
    /// Epoch of the cache load that this packet walks; 0 before the fat root has set it.
    pub epoch: u8,
    /// Tree levels walked so far.
    pub levels: u8,
    /// Memory server the packet goes to.
    pub partition: u16,
    /// Path number, below 64, which chooses the way to a fat root. The first hop draws it from the connection.
    pub path: u8,
    /// Reserved byte, sent as 0. Any value is read, kept and written back. Every hop's ICRC arithmetic covers this
    /// byte, so a hop that refused or cleared it would differ from the switches, which pass it on. Damage here shows
    /// in the ICRC like any other.
    pub reserved: u8,
    /// The key that is looked up.
    pub key: u64,
}

impl IndexHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads a header; the version must be [`INDEX_HEADER_VERSION`].
    #[inline]
    pub fn parse(bytes: &[u8; IndexHeader::LEN]) -> Result<IndexHeader, ParseError> {
        let [version, flags, epoch, levels, p0, p1, path, reserved, key @ ..] = *bytes;
        if version != INDEX_HEADER_VERSION {
            return Err(ParseError::Field {
                header: Header::Index,
                field: "version",
                expected: Expected::Exactly(u32::from(INDEX_HEADER_VERSION)),
                found: u32::from(version),
            });
        }
        Ok(IndexHeader {
            flags: IndexFlags(flags),
            epoch,
            levels,
            partition: u16::from_be_bytes([p0, p1]),
            path,
            reserved,
            key: u64::from_be_bytes(key),
        })
    }

    /// The bytes on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; IndexHeader::LEN] {
        let mut bytes = [0; IndexHeader::LEN];
        bytes[..4].copy_from_slice(&[INDEX_HEADER_VERSION, self.flags.0, self.epoch, self.levels]);
        bytes[4..6].copy_from_slice(&self.partition.to_be_bytes());
        bytes[6..8].copy_from_slice(&[self.path, self.reserved]);
        bytes[8..].copy_from_slice(&self.key.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let header = IndexHeader {
            flags: IndexFlags::INNER,
            epoch: 2,
            levels: 3,
            partition: 0x0405,
            path: 6,
            reserved: 7,
            key: 0x0809_0a0b_0c0d_0e0f,
        };
        let golden = [3, 2, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        assert_eq!(header.to_bytes(), golden);
        assert_eq!(IndexHeader::parse(&golden), Ok(header));
    }

    #[test]
    fn another_version_is_refused_and_unknown_flags_print() {
        let mut bytes = IndexHeader::default().to_bytes();
        bytes[0] = 1;
        assert_eq!(IndexHeader::parse(&bytes).unwrap_err().header(), Header::Index);
        assert_eq!(IndexFlags(0x83).to_string(), "CLIMBING, INNER, unknown 0x80");
        assert_eq!(IndexFlags(0x40).to_string(), "unknown 0x40");
        assert_eq!(IndexFlags::INNER.to_string(), "INNER");
        assert_eq!(IndexFlags(0).to_string(), "none");
    }
}
