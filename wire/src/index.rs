//! The index header, 16 bytes directly behind UDP, present only between the first and the last hop of an index read
//! (UDP destination port [`INDEX_UDP_PORT`](crate::INDEX_UDP_PORT)). Big endian:
//!
//! ```text
//! byte 0        1       2       3        4..6        6..8      8..16
//! | version = 1 | flags | epoch | levels | partition | node id | key |
//! ```

use crate::error::{Expected, Header, ParseError};
use std::fmt;

/// The version this crate reads and writes.
pub const INDEX_HEADER_VERSION: u8 = 1;

/// Flag bits of an [`IndexHeader`]: open, unknown bits are kept and print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct IndexFlags(pub u8);

impl IndexFlags {
    /// The packet is on its way up to the core switch that holds the fat root.
    pub const CLIMBING: IndexFlags = IndexFlags(1);

    /// True when every bit of `other` is set.
    pub const fn contains(self, other: IndexFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Display for IndexFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unknown = self.0 & !IndexFlags::CLIMBING.0;
        match (self.contains(IndexFlags::CLIMBING), unknown) {
            (false, 0) => f.write_str("none"),
            (true, 0) => f.write_str("CLIMBING"),
            (false, bits) => write!(f, "unknown {bits:#04x}"),
            (true, bits) => write!(f, "CLIMBING, unknown {bits:#04x}"),
        }
    }
}

/// What an index read carries through the switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct IndexHeader {
    /// State of the walk.
    pub flags: IndexFlags,
    /// The cache load this packet walks; 0 before the fat root gave it one.
    pub epoch: u8,
    /// Tree levels walked so far.
    pub levels: u8,
    /// Memory server the packet goes to.
    pub partition: u16,
    /// Cached node the packet stands at; 0 is none.
    pub node_id: u16,
    /// The key that is looked up.
    pub key: u64,
}

impl IndexHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads a header; the version must be [`INDEX_HEADER_VERSION`].
    #[inline]
    pub fn parse(bytes: &[u8; IndexHeader::LEN]) -> Result<IndexHeader, ParseError> {
        let [version, flags, epoch, levels, p0, p1, n0, n1, key @ ..] = *bytes;
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
            node_id: u16::from_be_bytes([n0, n1]),
            key: u64::from_be_bytes(key),
        })
    }

    /// The bytes on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; IndexHeader::LEN] {
        let mut bytes = [0; IndexHeader::LEN];
        bytes[..4].copy_from_slice(&[INDEX_HEADER_VERSION, self.flags.0, self.epoch, self.levels]);
        bytes[4..6].copy_from_slice(&self.partition.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.node_id.to_be_bytes());
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
            flags: IndexFlags::CLIMBING,
            epoch: 2,
            levels: 3,
            partition: 0x0405,
            node_id: 0x0607,
            key: 0x0809_0a0b_0c0d_0e0f,
        };
        let golden = [1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        assert_eq!(header.to_bytes(), golden);
        assert_eq!(IndexHeader::parse(&golden), Ok(header));
    }

    #[test]
    fn another_version_is_refused_and_unknown_flags_print() {
        let mut bytes = IndexHeader::default().to_bytes();
        bytes[0] = 2;
        assert_eq!(IndexHeader::parse(&bytes).unwrap_err().header(), Header::Index);
        assert_eq!(IndexFlags(0x81).to_string(), "CLIMBING, unknown 0x80");
    }
}
