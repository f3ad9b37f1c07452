//! The index header, 16 bytes directly after UDP, present only between the first and the last hop of an index read
//! ([marked](crate::IN_FLIGHT) in the IPv4 header). Big endian:
//!
//! ```text
//! byte 0        1       2       3        4..6        6      7       8..16
//! | version = 4 | flags | epoch | levels | partition | path | slice | key |
//! ```
//!
//! A packet says by its address where it stands: nodes have no other name.

use crate::error::{Expected, Header, ParseError};
use std::fmt;

/// The version this crate reads and writes.
pub const INDEX_HEADER_VERSION: u8 = 4;

/// Flag bits of an [`IndexHeader`]: open, unknown bits are kept and print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct IndexFlags(pub u8);

impl IndexFlags {
    /// The packet is on its way up to a switch that holds the fat root.
    pub const CLIMBING: IndexFlags = IndexFlags(1);

    /// The address in RETH is that of an inner node, which may be cached further on. Node sets leave a packet without this flag alone.
    pub const INNER: IndexFlags = IndexFlags(2);

    /// The address in RETH is that of a leaf, to which the walk has led. The last hop adds the offset of the slice to it.
    pub const LEAF: IndexFlags = IndexFlags(4);

    const NAMES: [(IndexFlags, &str); 3] =
        [(Self::CLIMBING, "CLIMBING"), (Self::INNER, "INNER"), (Self::LEAF, "LEAF")];

    /// Whether every bit of `other` is set.
    pub const fn contains(self, other: IndexFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Display for IndexFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        let mut separator = "";
        for (flag, name) in Self::NAMES {
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
    /// Slice of the leaf that the client wants. Bits 7 to 3, which the first hop takes from the same bits of the rkey: the first line in
    /// units of 64 bytes, 0 for the whole leaf. Bits 2 to 0: 0, or the queue on the way to a second pass. Any value is read, kept and
    /// written back, as switches pass it on; damage shows in the ICRC like any other.
    pub slice: u8,
    /// The key that is looked up.
    pub key: u64,
}

impl IndexHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Bits of the [slice](Self::slice) that say where it begins, and of the rkey from which the first hop takes them.
    pub const SLICE_LINE: u8 = 0xf8;

    /// Offset in bytes, from the beginning of the leaf, at which the [slice](Self::slice) begins.
    pub const fn slice_offset(&self) -> u16 {
        ((self.slice & Self::SLICE_LINE) as u16) << 3
    }

    /// Reads a header; the version must be [`INDEX_HEADER_VERSION`].
    #[inline]
    pub fn parse(bytes: &[u8; IndexHeader::LEN]) -> Result<IndexHeader, ParseError> {
        let [version, flags, epoch, levels, p0, p1, path, slice, key @ ..] = *bytes;
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
            slice,
            key: u64::from_be_bytes(key),
        })
    }

    /// The bytes on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; IndexHeader::LEN] {
        let mut bytes = [0; IndexHeader::LEN];
        bytes[..4].copy_from_slice(&[INDEX_HEADER_VERSION, self.flags.0, self.epoch, self.levels]);
        bytes[4..6].copy_from_slice(&self.partition.to_be_bytes());
        bytes[6..8].copy_from_slice(&[self.path, self.slice]);
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
            slice: 7,
            key: 0x0809_0a0b_0c0d_0e0f,
        };
        let golden = [4, 2, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        assert_eq!(header.to_bytes(), golden);
        assert_eq!(IndexHeader::parse(&golden), Ok(header));
    }

    #[test]
    fn a_slice_begins_at_a_line_of_64_bytes_whatever_the_queue() {
        let offset = |slice| IndexHeader { slice, ..IndexHeader::default() }.slice_offset();
        assert_eq!([0, 7, 0x08, 0x0d, 0x80, 0xf8, 0xff].map(offset), [0, 0, 64, 64, 1024, 1984, 1984]);
    }

    #[test]
    fn another_version_is_refused_and_unknown_flags_print() {
        let mut bytes = IndexHeader::default().to_bytes();
        bytes[0] = 1;
        assert_eq!(IndexHeader::parse(&bytes).unwrap_err().header(), Header::Index);
        assert_eq!(IndexFlags(0x87).to_string(), "CLIMBING, INNER, LEAF, unknown 0x80");
        assert_eq!(IndexFlags(0x40).to_string(), "unknown 0x40");
        assert_eq!(IndexFlags::INNER.to_string(), "INNER");
        assert_eq!(IndexFlags::LEAF.to_string(), "LEAF");
        assert_eq!(IndexFlags(0).to_string(), "none");
    }
}
