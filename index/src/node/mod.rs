//! Node layouts, byte by byte. All integers are little endian; nodes begin on 64-byte lines.
//!
//! ```text
//!            line 0            line 1            line 2                    last line
//!         ┌────────────────┬─────────────────┬─────────────────┬─────┬─────────────────┐
//! node    │v header        │v entries        │v entries        │ ... │v entries        │
//!         └────────────────┴─────────────────┴─────────────────┴─────┴─────────────────┘
//!          ^ version byte: the same in every line of a whole node, else the read was torn
//! ```
//!
//! NICs read and write a 64-byte line at once but promise no order between lines, so every line carries the
//! node's version (FaRM §4.4, SMART §5). Sherman's front and rear node versions are the versions of the first
//! and the last line. An entry never crosses a line, so its own version needs no second copy; the one exception,
//! entries too wide for a line, keep one in each of their two lines ([`leaf`](self::LeafShape)).
//!
//! * [`NodeHeader`]: what all nodes share, line 0.
//! * [`InternalNode`]: sorted pivots and children.
//! * [`LeafNode`]: unsorted entries.

mod header;
mod internal;
mod leaf;

pub use header::{FIRST_CHILD, FORMAT_INTERNAL, FORMAT_OUT_OF_LINE, MAGIC, NodeHeader, NodeSpec, offsets};
pub use internal::{CHILDREN_PER_LINE, InternalNode, internal_bytes, write_internal};
pub use leaf::{EntryValue, LeafBuilder, LeafNode, LeafShape};

use crate::address::GlobalAddress;
use crate::config::TreeConfig;

/// Bytes of a line: the unit in which NICs access memory at once, and which carries a version.
pub const LINE: usize = 64;

/// Why bytes that were read are not the node that was meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NodeFault {
    /// Fewer bytes than the node has.
    #[error("node of {expected} bytes expected, {found} bytes read")]
    Short {
        /// Bytes read.
        found: usize,
        /// Bytes of the node.
        expected: usize,
    },
    /// The node was written while it was read.
    #[error("torn read: line {line} has another version than line 0")]
    Torn {
        /// The first line that differs.
        line: usize,
    },
    /// An entry of a leaf was written while it was read.
    #[error("torn read: the two versions of leaf entry {slot} differ")]
    TornEntry {
        /// Slot of the entry.
        slot: usize,
    },
    /// No node lies there.
    #[error("no node here: magic {MAGIC:#06x} expected, {found:#06x} found")]
    Magic {
        /// What stands where the magic stands in a node.
        found: u16,
    },
    /// The node's format does not go with its level or with the tree.
    #[error(
        "node at level {level} has format {found}, which is not this tree's: do both ends use the same TreeConfig?"
    )]
    Format {
        /// The node's format code.
        found: u8,
        /// The node's level.
        level: u8,
    },
    /// More entries than fit, or an internal node without any.
    #[error("node claims {found} entries, 1 to {capacity} are possible")]
    Count {
        /// The node's count.
        found: u16,
        /// What a node can hold.
        capacity: usize,
    },
    /// The node was given back to the allocator.
    #[error("node was freed")]
    Free,
    /// Another level than the parent or sibling promised.
    #[error("node at level {found}, level {expected} was expected")]
    Level {
        /// The node's level.
        found: u8,
        /// The level that its parent or left sibling implies.
        expected: u8,
    },
    /// The node says it lives elsewhere.
    #[error("node says its address is {found}, {expected} was read")]
    Address {
        /// The node's own address field.
        found: GlobalAddress,
        /// Where it was read from.
        expected: GlobalAddress,
    },
    /// An index read landed on a node that cannot be on this server.
    #[error("node says its address is {found}, but it was read from memory server {server}")]
    Server {
        /// The node's own address field.
        found: GlobalAddress,
        /// The server that answered.
        server: u16,
    },
    /// The key lies left of the node: the pointer that led here is stale.
    #[error("key is below the node's low fence {low:#x}")]
    KeyLeft {
        /// The node's low fence key, inclusive.
        low: u64,
    },
    /// The key lies right of the node, which has no right sibling.
    #[error("key is at or above the node's high fence {high:#x}, and the node has no sibling")]
    NoSibling {
        /// The node's high fence key, exclusive.
        high: u64,
    },
    /// Too many siblings in a row.
    #[error("{followed} siblings followed without reaching the key")]
    SiblingChain {
        /// Siblings followed.
        followed: u32,
    },
    /// An internal node's child, or a leaf entry's record, is the null pointer.
    #[error("null pointer in slot {slot}")]
    NullPointer {
        /// Slot of the entry.
        slot: usize,
    },
    /// A record was written while it was read.
    #[error("torn read: the record's versions {head} and {tail} differ")]
    TornRecord {
        /// Version before the value.
        head: u32,
        /// Version behind the value.
        tail: u32,
    },
    /// The record belongs to another key: the leaf entry that led here is stale.
    #[error("record of key {found:#x} where a record of key {expected:#x} was expected")]
    RecordKey {
        /// Key in the record.
        found: u64,
        /// Key looked for.
        expected: u64,
    },
    /// The record has another length than the leaf entry said.
    #[error("record with a value of {found} bytes where {expected} bytes were expected")]
    RecordLength {
        /// Length in the record.
        found: u32,
        /// Length in the leaf entry.
        expected: u32,
    },
}

impl NodeFault {
    /// Whether reading the same bytes again may help: something was written while we read.
    #[must_use]
    pub const fn is_torn(&self) -> bool {
        matches!(self, Self::Torn { .. } | Self::TornEntry { .. } | Self::TornRecord { .. })
    }
}

/// A checked view of a node that was read: magic, format, count, free bit and all line versions are right.
/// Level, address and fences depend on how one came here and are the reader's to check.
#[derive(Clone, Copy, Debug)]
pub enum Node<'a> {
    /// Level 1 and up.
    Internal(InternalNode<'a>),
    /// Level 0.
    Leaf(LeafNode<'a>),
}

impl<'a> Node<'a> {
    /// Checks the node at the start of `bytes`, which may hold more: an index read asks for the largest node.
    ///
    /// # Errors
    /// Says what is wrong; never panics, whatever the bytes.
    #[inline]
    pub fn read(config: &TreeConfig, bytes: &'a [u8]) -> Result<Self, NodeFault> {
        let Some(first) = bytes.first_chunk::<LINE>() else {
            return Err(NodeFault::Short { found: bytes.len(), expected: LINE });
        };
        let header = NodeHeader::parse(first);
        if header.magic != MAGIC {
            return Err(NodeFault::Magic { found: header.magic });
        }
        let shape = config.leaf_shape();
        let format = if header.level == 0 { shape.format() } else { FORMAT_INTERNAL };
        if header.format != format {
            return Err(NodeFault::Format { found: header.format, level: header.level });
        }
        let expected = config.node_bytes(header.level) as usize;
        let Some(bytes) = bytes.get(..expected) else {
            return Err(NodeFault::Short { found: bytes.len(), expected });
        };
        let (lines, _) = bytes.as_chunks::<LINE>();
        check_versions(lines, header.level == 0 && shape.is_wide())?;
        if header.is_free() {
            return Err(NodeFault::Free);
        }
        if header.level == 0 {
            Ok(Self::Leaf(LeafNode::new(header, lines, shape)))
        } else {
            let capacity = usize::from(config.fan_out());
            if header.count == 0 || usize::from(header.count) > capacity {
                return Err(NodeFault::Count { found: header.count, capacity });
            }
            Ok(Self::Internal(InternalNode::new(header, lines)))
        }
    }

    /// Line 0.
    #[must_use]
    pub const fn header(&self) -> &NodeHeader {
        match self {
            Self::Internal(node) => node.header(),
            Self::Leaf(node) => node.header(),
        }
    }
}

/// Offset of the version byte in line `index`. It is the first byte, except in the second line of a wide leaf
/// entry, where it is the last, so that the value lies in one piece.
#[must_use]
pub const fn version_offset(index: usize, wide: bool) -> usize {
    if wide && index != 0 && index.is_multiple_of(2) { LINE - 1 } else { 0 }
}

/// Writes `version` into every line of a node.
pub fn stamp_versions(bytes: &mut [u8], version: u8, wide: bool) {
    for (index, line) in bytes.as_chunks_mut::<LINE>().0.iter_mut().enumerate() {
        line[version_offset(index, wide)] = version;
    }
}

#[inline]
fn check_versions(lines: &[[u8; LINE]], wide: bool) -> Result<(), NodeFault> {
    let Some((first, rest)) = lines.split_first() else { return Ok(()) };
    let version = first[0];
    // Without a branch per line: torn reads are rare.
    let mut difference = 0;
    if wide {
        for pair in rest.chunks(2) {
            difference |= pair[0][0] ^ version;
            if let Some(second) = pair.get(1) {
                difference |= second[LINE - 1] ^ version;
            }
        }
    } else {
        for line in rest {
            difference |= line[0] ^ version;
        }
    }
    if difference == 0 { Ok(()) } else { Err(torn(lines, wide)) }
}

#[cold]
fn torn(lines: &[[u8; LINE]], wide: bool) -> NodeFault {
    let line = lines
        .iter()
        .enumerate()
        .position(|(index, line)| line[version_offset(index, wide)] != lines[0][0])
        .unwrap_or_default();
    NodeFault::Torn { line }
}

/// Reads a little-endian word; the caller's offsets are constants or follow from the shape.
#[inline]
fn word(line: &[u8; LINE], at: usize) -> u64 {
    line.get(at..at + 8).and_then(|b| b.first_chunk::<8>()).map_or(0, |b| u64::from_le_bytes(*b))
}
