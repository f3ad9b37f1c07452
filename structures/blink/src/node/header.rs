//! The header that all nodes share: line 0.
//!
//! ```text
//! offset size field
//!      0    1 version of this line = low byte of the node version
//!      1    1 level; leaves are 0
//!      2    2 magic 0xFB7E
//!      4    1 flags: bit 0 free, bit 1 last (no high fence: every key from the low fence up), bit 2 lines have checksums
//!      5    1 format: 0 internal; 1..=64 leaf with in-line values of that many bytes; 255 leaf with pointers; 254 with short values or pointers;
//!             leaves of buckets: 128 more where values are in line, 253 with pointers, 252 with short values or pointers
//!      6    2 count: children of an internal node; in a leaf, entries when it was last written whole
//!      8    4 node version, one more with every whole write; its low byte is in every line
//!     12    4 the line's checksum, or zero
//!     16    8 the node's own address
//!     24    8 low fence key, inclusive
//!     32    8 high fence key, exclusive; u64::MAX and meaningless when "last" is set
//!     40    8 right sibling, 0 = none
//!     48    8 internal nodes: first child, whose pivot is the low fence; leaves: number of the layer, 0 of the first one
//!     56    8 partner, 0 = none: the node that may hold this one's upper keys while it is split or merged
//! ```

use fatbtree_remote_memory::{GlobalAddress, KeyRange};

use super::LINE;
use crate::config::{Integrity, MAX_INLINE_VALUE, POINTER_ROOM};

/// Magic number at offset 2 of every node.
pub const MAGIC: u16 = 0xfb7e;

/// Format code of internal nodes.
pub const FORMAT_INTERNAL: u8 = 0;

/// Format code of leaves whose entries point to records.
pub const FORMAT_OUT_OF_LINE: u8 = 255;

/// Format code of a leaf whose entries have short values, or point to records.
pub const FORMAT_BY_LENGTH: u8 = 254;

/// Format code of the same with room for longer values: so much more than the bytes of the longest. The first code is the one after those of leaves
/// whose values all have one size, which are their numbers of bytes.
pub(super) const FORMAT_LONGER_VALUES: u8 = MAX_INLINE_VALUE - POINTER_ROOM;

/// Format code of the other leaves of buckets: so much more than that of a plain leaf with such values.
pub(super) const FORMAT_BUCKETS: u8 = 128;

/// Format code of leaves of buckets whose entries point to records.
pub(super) const FORMAT_BUCKETS_OUT_OF_LINE: u8 = 253;

/// Format code of leaves of buckets whose entries have short values, or point to records.
pub(super) const FORMAT_BUCKETS_BY_LENGTH: u8 = 252;

/// Offset of the first child of an internal node.
pub const FIRST_CHILD: usize = offsets::FIRST_CHILD;

/// Offsets of the header's fields.
pub mod offsets {
    /// Line version, 1 byte.
    pub const VERSION: usize = 0;
    /// Level, 1 byte.
    pub const LEVEL: usize = VERSION + 1;
    /// Magic, 2 bytes.
    pub const MAGIC: usize = LEVEL + 1;
    /// Flags, 1 byte.
    pub const FLAGS: usize = MAGIC + 2;
    /// Format, 1 byte.
    pub const FORMAT: usize = FLAGS + 1;
    /// Count, 2 bytes.
    pub const COUNT: usize = FORMAT + 1;
    /// Node version, 4 bytes.
    pub const NODE_VERSION: usize = COUNT + 2;
    /// Own address, 8 bytes.
    pub const ADDRESS: usize = NODE_VERSION + 4 + 4;
    /// Low fence key, 8 bytes.
    pub const LOW: usize = ADDRESS + 8;
    /// High fence key, 8 bytes.
    pub const HIGH: usize = LOW + 8;
    /// Sibling, 8 bytes.
    pub const SIBLING: usize = HIGH + 8;
    /// First child, 8 bytes.
    pub const FIRST_CHILD: usize = SIBLING + 8;
    /// Partner, 8 bytes.
    pub const PARTNER: usize = FIRST_CHILD + 8;
    /// Behind the last field.
    pub const END: usize = PARTNER + 8;
}

const _: () = {
    assert!(offsets::LEVEL == 1 && offsets::MAGIC == 2 && offsets::FLAGS == 4 && offsets::FORMAT == 5);
    assert!(offsets::COUNT == 6 && offsets::NODE_VERSION == 8 && offsets::ADDRESS == 16);
    assert!(offsets::LOW == 24 && offsets::HIGH == 32 && offsets::SIBLING == 40);
    assert!(offsets::FIRST_CHILD == 48 && offsets::END == LINE);
};

pub(super) const FREE: u8 = 1 << 0;
pub(super) const LAST: u8 = 1 << 1;
pub(super) const CHECKSUMS: u8 = 1 << 2;

/// The header of a node, as read; see the module for the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeHeader {
    /// Must be [`MAGIC`].
    pub magic: u16,
    /// Leaves are level 0.
    pub level: u8,
    /// Bit 0 free, bit 1 last, bit 2 checksums; others are zero and ignored.
    pub flags: u8,
    /// 0 internal; others say what a leaf's entries are, see the module.
    pub format: u8,
    /// Children, or entries at the last whole write.
    pub count: u16,
    /// One more with every whole write.
    pub version: u32,
    /// The node's own address.
    pub address: GlobalAddress,
    /// Lowest key of the node.
    pub low: u64,
    /// Lowest key right of the node, unless it is the last.
    pub high: u64,
    /// The node to the right at the same level.
    pub sibling: GlobalAddress,
    /// First child of an internal node; of a leaf, number of its layer.
    pub first_child: GlobalAddress,
    /// The node that may hold the upper keys of this one; null but while it is split or merged.
    pub partner: GlobalAddress,
}

/// Description of a node by its writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeSpec {
    /// Address at which the node will lie.
    pub address: GlobalAddress,
    /// Leaves are level 0.
    pub level: u8,
    /// The keys the node is responsible for.
    pub range: KeyRange,
    /// The node to the right, or null.
    pub sibling: GlobalAddress,
    /// Node version.
    pub version: u32,
}

impl NodeHeader {
    /// Reads line 0 of a node; checks nothing.
    #[inline]
    #[must_use]
    pub fn parse(line: &[u8; LINE]) -> Self {
        let u64_at = |at: usize| super::word(line, at);
        let first = u64_at(0).to_le_bytes();
        let second = u64_at(8).to_le_bytes();
        Self {
            level: first[1],
            magic: u16::from_le_bytes([first[2], first[3]]),
            flags: first[4],
            format: first[5],
            count: u16::from_le_bytes([first[6], first[7]]),
            version: u32::from_le_bytes([second[0], second[1], second[2], second[3]]),
            address: GlobalAddress(u64_at(offsets::ADDRESS)),
            low: u64_at(offsets::LOW),
            high: u64_at(offsets::HIGH),
            sibling: GlobalAddress(u64_at(offsets::SIBLING)),
            first_child: GlobalAddress(u64_at(offsets::FIRST_CHILD)),
            partner: GlobalAddress(u64_at(offsets::PARTNER)),
        }
    }

    /// Writes line 0 of a node.
    pub(super) fn emit(
        line: &mut [u8; LINE],
        spec: &NodeSpec,
        format: u8,
        count: u16,
        first_child: GlobalAddress,
        integrity: Integrity,
    ) {
        line.fill(0);
        let version = spec.version.to_le_bytes();
        line[offsets::VERSION] = version[0];
        line[offsets::LEVEL] = spec.level;
        line[offsets::MAGIC..][..2].copy_from_slice(&MAGIC.to_le_bytes());
        let last = if spec.range.high.is_none() { LAST } else { 0 };
        line[offsets::FLAGS] = last | if integrity == Integrity::Checksums { CHECKSUMS } else { 0 };
        line[offsets::FORMAT] = format;
        line[offsets::COUNT..][..2].copy_from_slice(&count.to_le_bytes());
        line[offsets::NODE_VERSION..][..4].copy_from_slice(&version);
        line[offsets::ADDRESS..][..8].copy_from_slice(&spec.address.raw().to_le_bytes());
        line[offsets::LOW..][..8].copy_from_slice(&spec.range.low.to_le_bytes());
        line[offsets::HIGH..][..8].copy_from_slice(&spec.range.high.unwrap_or(u64::MAX).to_le_bytes());
        line[offsets::SIBLING..][..8].copy_from_slice(&spec.sibling.raw().to_le_bytes());
        line[offsets::FIRST_CHILD..][..8].copy_from_slice(&first_child.raw().to_le_bytes());
    }

    /// Whether the node was given back to the allocator.
    #[must_use]
    pub const fn is_free(&self) -> bool {
        self.flags & FREE != 0
    }

    /// Whether the node has no high fence, so that `u64::MAX` is a key like any other.
    #[must_use]
    pub const fn is_last(&self) -> bool {
        self.flags & LAST != 0
    }

    /// The keys the node is responsible for.
    #[must_use]
    pub const fn range(&self) -> KeyRange {
        KeyRange { low: self.low, high: if self.is_last() { None } else { Some(self.high) } }
    }

    /// Marks that tie the node's lines to one write.
    #[must_use]
    pub const fn integrity(&self) -> Integrity {
        if self.flags & CHECKSUMS != 0 { Integrity::Checksums } else { Integrity::LineVersions }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_of_a_header() {
        let spec = NodeSpec {
            address: GlobalAddress::new(2, 0x1240),
            level: 3,
            range: KeyRange { low: 0x1122, high: Some(0x3344) },
            sibling: GlobalAddress::new(2, 0x13c0),
            version: 0x0506_0708,
        };
        let mut line = [0xee; LINE];
        NodeHeader::emit(
            &mut line,
            &spec,
            FORMAT_INTERNAL,
            12,
            GlobalAddress::new(2, 0x40),
            Integrity::LineVersions,
        );
        #[rustfmt::skip]
        let golden: [u8; LINE] = [
            0x08, 3, 0x7e, 0xfb, 0, 0, 12, 0,
            0x08, 0x07, 0x06, 0x05, 0, 0, 0, 0,
            0x40, 0x12, 0, 0, 0, 0, 2, 0,
            0x22, 0x11, 0, 0, 0, 0, 0, 0,
            0x44, 0x33, 0, 0, 0, 0, 0, 0,
            0xc0, 0x13, 0, 0, 0, 0, 2, 0,
            0x40, 0, 0, 0, 0, 0, 2, 0,
            0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(line, golden);
        let header = NodeHeader::parse(&line);
        assert_eq!((header.level, header.count, header.version), (3, 12, 0x0506_0708));
        assert_eq!((header.address, header.sibling), (spec.address, spec.sibling));
        assert_eq!((header.range(), header.is_free()), (spec.range, false));
        assert_eq!(header.integrity(), Integrity::LineVersions);
        line[offsets::FLAGS] |= FREE;
        assert!(NodeHeader::parse(&line).is_free());
    }

    #[test]
    fn last_node_has_no_high_fence() {
        let spec = NodeSpec {
            address: GlobalAddress::new(0, 64),
            level: 0,
            range: KeyRange::ALL,
            sibling: GlobalAddress::NULL,
            version: 1,
        };
        let mut line = [0; LINE];
        NodeHeader::emit(&mut line, &spec, 8, 0, GlobalAddress::NULL, Integrity::Checksums);
        let header = NodeHeader::parse(&line);
        assert!(header.is_last() && header.range().contains(u64::MAX) && header.range().contains(0));
        assert_eq!(header.integrity(), Integrity::Checksums);
    }
}
