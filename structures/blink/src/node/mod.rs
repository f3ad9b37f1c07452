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
//! entries too wide for a line, keep one in each of their two lines ([`leaf`](self::LeafShape)). Where even a line may
//! tear, each has a checksum as well ([`Integrity`]).
//!
//! A node's version goes on from what its memory held before ([`next_version`]), never starts afresh. So a
//! reader that gets some lines from before and some from after a node's memory was used again sees two
//! versions.
//!
//! A node in memory that was a node before is met by stale pointers as soon as it is written, also before anything in the tree
//! leads to it. So it must not say then what the tree does not say: a node is split first, and a key is added after that.
//!
//! * [`NodeHeader`]: what all nodes share, line 0.
//! * [`InternalNode`]: sorted pivots and children.
//! * [`read_bucket`]: two lines of a leaf of buckets by themselves.
//! * [`LeafNode`]: unsorted entries. [`LeafEditor`]: changes one of them. [`read_entry`]: reads one of them by itself.

mod bucket;
mod edit;
mod header;
mod internal;
mod leaf;
mod line;
mod short;
mod speculated;

pub(crate) use bucket::Slice;
pub use bucket::{BUCKET_BYTES, read_bucket};
pub use edit::{LeafEditor, LeafView, NewValue};
pub use header::{
    FIRST_CHILD, FORMAT_BY_LENGTH, FORMAT_INTERNAL, FORMAT_OUT_OF_LINE, MAGIC, NodeHeader, NodeSpec, offsets,
};
pub use internal::{CHILDREN_PER_LINE, InternalNode, internal_bytes, write_internal};
pub(crate) use leaf::each_key_once;
pub use leaf::{EntryValue, LeafBuilder, LeafNode, LeafShape};
pub use speculated::{MAX_ENTRY_LINES, entry_lines, read_entry};

use fatbtree_remote_memory::record::{MARK_BYTES, RecordFault};
use fatbtree_remote_memory::{Check, GlobalAddress, KeyRange};

use crate::config::{Integrity, Keys, MAX_PATH_MTU, TreeConfig};
use crate::layers::LayerId;
use line::Marks;

/// Bytes of a line: the unit in which NICs access memory at once, and which carries a version.
pub const LINE: usize = 64;

/// Highest level of a node. A tree that fills all of a server's 2^48 bytes has about 40 levels with the
/// fewest children that nodes have on average. So a higher level is damage, and no walk down has more steps
/// than this.
pub const MAX_LEVEL: u8 = 64;

// An index read's answer is a node or a record, told apart by what both have at one place.
const _: () = assert!(MARK_BYTES == offsets::MAGIC);

/// Reasons for which bytes that were read are not the expected node.
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
    /// A line was written while it was read.
    #[error("torn read: line {line} does not match its checksum")]
    TornLine {
        /// The first such line.
        line: usize,
    },
    /// An entry of a leaf was written while it was read.
    #[error("torn read: the two versions of leaf entry {slot} differ")]
    TornEntry {
        /// Slot of the entry.
        slot: usize,
    },
    /// A level that no tree has.
    #[error("node at level {found}: no tree has nodes above level {MAX_LEVEL}")]
    Height {
        /// The node's level.
        found: u8,
    },
    /// No node lies there.
    #[error("no node here: magic {MAGIC:#06x} expected, {found:#06x} found")]
    Magic {
        /// The value in the place of the magic.
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
        /// Capacity of a node.
        capacity: usize,
    },
    /// A superblock whose root is the null pointer.
    #[error("the superblock names no root")]
    NoRoot,
    /// The node was given back to the allocator.
    #[error("node was freed")]
    Free,
    /// A node without keys of its own.
    #[error("node begins at key {low:#x} and ends at {high:#x}: its range is empty")]
    Fences {
        /// The node's low fence key, inclusive.
        low: u64,
        /// The node's high fence key, exclusive.
        high: u64,
    },
    /// Pivots out of order, or outside of the fences.
    #[error("pivot {pivot:#x} of child {slot} is not above the one before, or not within the node's fences")]
    Pivot {
        /// The child.
        slot: usize,
        /// Its pivot.
        pivot: u64,
    },
    /// A leaf with two entries of one key: it was written while it was read, or is damaged.
    #[error("torn read: the leaf has two entries of key {key:#x}")]
    KeyTwice {
        /// The key.
        key: u64,
    },
    /// A leaf with a key that does not belong there.
    #[error("key {key:#x} is not within the fences {range}")]
    KeyOutside {
        /// The key.
        key: u64,
        /// The fences.
        range: KeyRange,
    },
    /// The keys of a node do not begin where those of its left neighbour end.
    #[error("its low fence is {found:#x}, but its left neighbour ends at {expected:#x}")]
    Neighbour {
        /// The node's low fence key.
        found: u64,
        /// The left neighbour's high fence key.
        expected: u64,
    },
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
        /// Address that it was read from.
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
    /// The node is being split or merged: its header alone does not say which keys it has.
    #[error("node is being split or merged: its partner is {partner}")]
    Partner {
        /// The node's partner.
        partner: GlobalAddress,
    },
    /// A leaf's slot has no entry, or another key's: the place that led here is stale.
    #[error("slot {slot} of the leaf has no entry of the key")]
    OtherEntry {
        /// The slot.
        slot: usize,
    },
    /// The node is another layer's: the pointer that led here is stale.
    #[error("node of layer {found:#x}, one of layer {expected:#x} was expected")]
    Layer {
        /// The node's layer.
        found: u64,
        /// Expected layer.
        expected: u64,
    },
    /// An entry leads to a layer where keys are numbers.
    #[error("the entry leads to a layer at {layer}, which only keys of bytes have")]
    NoLayers {
        /// Address of the layer.
        layer: GlobalAddress,
    },
    /// The layer to which an entry leads is not there any more, or not yet.
    #[error("no layer of these keys at {layer}")]
    NoLayer {
        /// Address of the layer.
        layer: GlobalAddress,
    },
    /// Too many layers above one another.
    #[error("{passed} layers lead to one another, more than the longest key has")]
    LayerChain {
        /// Layers passed.
        passed: u32,
    },
    /// A record's key of bytes does not belong to the entry that leads to it.
    #[error("the record's key of bytes does not belong to entry {entry:#x}")]
    OtherKey {
        /// The key of the entry.
        entry: u64,
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
    #[error("{followed} siblings followed and partners asked without reaching the key")]
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
    /// The bytes in the place of the key's record are no record of the key.
    #[error(transparent)]
    Record(#[from] RecordFault),
    /// No superblock lies there, or one that was written meanwhile.
    #[error("no whole superblock here: magic {found:#x} found")]
    Superblock {
        /// The value in the place of its magic.
        found: u64,
    },
    /// The superblock is of another region or tree.
    #[error(
        "the superblock says {field} {found}, {expected} was expected: is this the right memory server, and the same TreeConfig?"
    )]
    OtherTree {
        /// The field that differs.
        field: &'static str,
        /// Value in the superblock.
        found: u64,
        /// Value that the client was told.
        expected: u64,
    },
}

impl NodeFault {
    /// Whether reading the same bytes again may help: something was written while we read.
    #[must_use]
    pub const fn is_torn(&self) -> bool {
        matches!(
            self,
            Self::Torn { .. }
                | Self::TornLine { .. }
                | Self::TornEntry { .. }
                | Self::KeyTwice { .. }
                | Self::Superblock { .. }
                | Self::Record(RecordFault::Torn)
        )
    }
}

/// A checked view of a node that was read: magic, format, count, free bit and all line versions are right, its range is not empty, and
/// an internal node's pivots ascend within it and have children. Level, address, and which keys its fences should be depend on how one
/// came here and are the reader's to check. Entries of a leaf are checked when they are taken out.
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
        if header.magic != MAGIC && Check::Magic.on() {
            return Err(NodeFault::Magic { found: header.magic });
        }
        if header.level > MAX_LEVEL && Check::Structure.on() {
            return Err(NodeFault::Height { found: header.level });
        }
        let shape = config.leaf_shape();
        let format = if header.level == 0 { shape.format() } else { FORMAT_INTERNAL };
        let as_configured = header.format == format && header.integrity() == config.integrity();
        if !as_configured && Check::Format.on() {
            return Err(NodeFault::Format { found: header.format, level: header.level });
        }
        let expected = config.node_bytes(header.level) as usize;
        if bytes.len() < expected && Check::Length.on() {
            return Err(NodeFault::Short { found: bytes.len(), expected });
        }
        let (lines, _) = bytes[..bytes.len().min(expected)].as_chunks::<LINE>();
        let marks = if header.level == 0 { shape.marks() } else { Marks::Internal };
        marks.check(lines, config.integrity())?;
        if header.is_free() && Check::Free.on() {
            return Err(NodeFault::Free);
        }
        if header.level != 0 {
            let capacity = usize::from(config.fan_out());
            if (header.count == 0 || usize::from(header.count) > capacity) && Check::Count.on() {
                return Err(NodeFault::Count { found: header.count, capacity });
            }
        }
        if header.range().is_empty() && Check::Structure.on() {
            return Err(NodeFault::Fences { low: header.low, high: header.high });
        }
        let node = Self::view(config, header, lines);
        if let Self::Internal(node) = &node {
            node.check_children()?;
        }
        if config.keys() == Keys::Bytes {
            node.check_layer(config)?;
        }
        Ok(node)
    }

    /// Checks that the node belongs to the layer of `config`. Out of line: trees of numbers are not to pay for it.
    #[inline(never)]
    fn check_layer(&self, config: &TreeConfig) -> Result<(), NodeFault> {
        let (found, expected) = (self.layer(), config.layer().map_or(0, |LayerId(layer)| layer));
        if found != expected && crate::layers::Check::Node.on() {
            return Err(NodeFault::Layer { found, expected });
        }
        Ok(())
    }

    /// Number of the layer that the node belongs to; 0 of the first one.
    fn layer(&self) -> u64 {
        match self {
            Self::Leaf(leaf) => leaf.header().first_child.raw(),
            Self::Internal(node) => node.layer(),
        }
    }

    /// A view of a node that [`read`](Self::read) has checked before.
    #[inline]
    pub(crate) fn of_checked(config: &TreeConfig, bytes: &'a [u8]) -> Self {
        let (lines, _) = bytes.as_chunks::<LINE>();
        let header = NodeHeader::parse(&lines[0]);
        let count = config.node_bytes(header.level) as usize / LINE;
        Self::view(config, header, &lines[..count.min(lines.len())])
    }

    #[inline]
    fn view(config: &TreeConfig, header: NodeHeader, lines: &'a [[u8; LINE]]) -> Self {
        match header.level {
            0 => Self::Leaf(LeafNode::new(header, lines, config.leaf_shape())),
            _ => Self::Internal(InternalNode::new(header, lines)),
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

/// Makes a node, which is written but for that, one of the layer of `config`. The first layer's nodes stay as they are.
pub fn claim(config: &TreeConfig, node: &mut [u8]) {
    let Some(LayerId(layer)) = config.layer() else { return };
    let is_leaf = node[offsets::LEVEL] == 0;
    let at = if is_leaf { FIRST_CHILD } else { internal::LAYER_AT };
    node[at..at + 8].copy_from_slice(&layer.to_le_bytes());
    if config.integrity() == Integrity::Checksums {
        Marks::Internal.sum(node, at / LINE);
    }
}

/// What is written to give a node back, from its start on: its line 0 or, of a leaf of buckets, all of it.
#[must_use]
pub fn freed(config: &TreeConfig, node: &[u8]) -> Vec<u8> {
    with_header(config, node, mark_free)
}

/// What is written to change the partner of a node, from its start on: its line 0 or, of a leaf of buckets, all of it.
#[must_use]
pub fn partnered(config: &TreeConfig, node: &[u8], partner: GlobalAddress) -> Vec<u8> {
    with_header(config, node, |line| set_partner(line, partner))
}

fn with_header(config: &TreeConfig, node: &[u8], change: impl FnOnce(&mut [u8; LINE])) -> Vec<u8> {
    let mut line = *node.first_chunk().expect("a node has at least its header line");
    change(&mut line);
    match config.leaf_shape().buckets() {
        Some(lines) if NodeHeader::parse(&line).level == 0 => {
            let mut leaf = node[..config.leaf_bytes() as usize].to_vec();
            leaf[..LINE].copy_from_slice(&line);
            lines.repeat_header(&mut leaf);
            // The version stays: whichever of the lines a reader gets, one that has been changed says so.
            config.leaf_shape().marks().stamp(&mut leaf, line[0], config.integrity());
            leaf
        }
        _ => line.to_vec(),
    }
}

/// Marks the node whose line 0 this is as given back. Writing this line alone frees the node, but for leaves of buckets ([`freed`]): its memory
/// stays a freed node until it is a node again.
pub fn mark_free(line: &mut [u8; LINE]) {
    line[offsets::FLAGS] |= header::FREE;
    stamp_anew(line);
}

/// Marks the leaf whose line 0 this is as one that is in use, after [`mark_free`].
pub fn revive(line: &mut [u8; LINE]) {
    line[offsets::FLAGS] &= !header::FREE;
    stamp_anew(line);
}

/// Changes the partner of the node whose line 0 this is. Writing this line alone does it, but for leaves of buckets ([`partnered`]): the other
/// lines stay as they are, and so does the node's version.
pub fn set_partner(line: &mut [u8; LINE], partner: GlobalAddress) {
    line[offsets::PARTNER..offsets::END].copy_from_slice(&partner.raw().to_le_bytes());
    stamp_anew(line);
}

/// Gives a line 0 that was changed the marks that belong to it. Its version stays.
fn stamp_anew(line: &mut [u8; LINE]) {
    let (version, integrity) = (line[0], NodeHeader::parse(line).integrity());
    Marks::Internal.stamp(line, version, integrity);
}

/// The version of a node that is written over `memory`, which is as long as the node: it follows the one found there, node or
/// not, and none of the lines has it.
///
/// The header alone does not suffice. After a partial write (the writer or the server died), some lines can
/// have the next version already. Lines of another kind of node have other bytes in the places of this node's
/// versions. A reader would take them for its own.
///
/// Versions go on with every whole write of the same memory, whatever lay there before, so that no reader takes lines of two nodes
/// for one (the low byte is in every line: a reader that sleeps for about 256 writes of one place is not told).
#[must_use]
pub fn next_version(memory: &[u8]) -> u32 {
    if !Check::VersionGoesOn.on() {
        return 1;
    }
    let found = memory.get(offsets::NODE_VERSION..).and_then(|bytes| bytes.first_chunk::<4>());
    let mut version = found.map_or(1, |bytes| u32::from_le_bytes(*bytes).wrapping_add(1));
    let (lines, _) = memory.as_chunks::<LINE>();
    // A node has at most 64 lines with two places each: one of 256 versions is always free.
    let lines = &lines[..lines.len().min(MAX_PATH_MTU as usize / LINE)];
    let is_there = |low: u8| lines.iter().any(|line| Marks::PLACES.iter().any(|&at| line[at] == low));
    while is_there(version.to_le_bytes()[0]) && Check::VersionIsNew.on() {
        version = version.wrapping_add(1);
    }
    version
}

/// Reads a little-endian word; the caller's offsets are constants or follow from the shape.
#[inline]
fn word(line: &[u8; LINE], at: usize) -> u64 {
    line.get(at..at + 8).and_then(|b| b.first_chunk::<8>()).map_or(0, |b| u64::from_le_bytes(*b))
}
