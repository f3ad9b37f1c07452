//! One entry of a leaf, read with the leaf's header and nothing else of it.
//!
//! ```text
//!   leaf   │ line 0: header │ line 1 │ ... │ line n: │k, v│ │ │ ... │
//!             READ, 64 bytes                  READ, 64 bytes, or the two lines of a wide entry
//! ```
//!
//! Both are checked against each other. The page of speculative lookups (`structures/blink/src/speculation/mod.rs`) explains why that is enough,
//! in whatever order they were read.

use std::ops::Range;

use fatbtree_remote_memory::{Check, GlobalAddress};

use super::leaf::{KEY, LeafShape, OCCUPIED};
use super::line::Marks;
use super::{LINE, MAGIC, NodeFault, NodeHeader};
use crate::config::{Integrity, TreeConfig};

/// Lines that the widest entry takes.
pub const MAX_ENTRY_LINES: usize = 2;

/// Bytes of a leaf that hold the entry in `slot`: whole lines.
#[inline]
#[must_use]
pub const fn entry_lines(shape: &LeafShape, slot: usize) -> Range<usize> {
    let line = shape.entry_offset(slot) / LINE;
    let lines = if shape.is_wide() { MAX_ENTRY_LINES } else { 1 };
    line * LINE..(line + lines) * LINE
}

/// Checks that the entry in `slot` of the leaf at `address` is an entry of `key` that counts. `header` is line 0 of the leaf, and `lines`
/// are the [lines](entry_lines) of the entry; both were read at about the same time, in any order. Returns the place of the entry's value
/// in `lines`.
///
/// # Errors
/// When anything is otherwise, or they were written meanwhile; never panics, whatever the bytes.
#[inline]
pub fn read_entry(
    config: &TreeConfig,
    address: GlobalAddress,
    slot: usize,
    key: u64,
    header: &[u8],
    lines: &[u8],
) -> Result<Range<usize>, NodeFault> {
    let shape = config.leaf_shape();
    let place = entry_lines(shape, slot);
    let Some(line) = header.first_chunk::<LINE>() else {
        return Err(NodeFault::Short { found: header.len(), expected: LINE });
    };
    let Some(lines) = lines.get(..place.len()) else {
        return Err(NodeFault::Short { found: lines.len(), expected: place.len() });
    };
    let header = NodeHeader::parse(line);
    check_leaf(config, address, key, &header)?;
    if config.integrity() == Integrity::Checksums
        && Check::SpeculatedChecksum.on()
        && !Marks::Internal.is_summed(line, 0)
    {
        return Err(NodeFault::TornLine { line: 0 });
    }
    if header.is_free() && Check::SpeculatedFree.on() {
        return Err(NodeFault::Free);
    }
    if !header.partner.is_null() && Check::SpeculatedPartner.on() {
        return Err(NodeFault::Partner { partner: header.partner });
    }
    check_lines(shape, line[0], place.start / LINE, lines)?;
    let at = shape.entry_offset(slot) - place.start;
    let entry = &lines[at..at + shape.entry_bytes()];
    let found = entry[KEY..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    if (entry[0] & OCCUPIED == 0 || found != Some(key)) && Check::SpeculatedKey.on() {
        return Err(NodeFault::OtherEntry { slot });
    }
    if shape.is_wide()
        && lines.get(at + shape.rear_state()) != entry.first()
        && Check::SpeculatedEntryVersion.on()
    {
        return Err(NodeFault::TornEntry { slot });
    }
    // A pointer: the key has a longer value by now.
    let value = shape.value_in(entry).ok_or(NodeFault::OtherEntry { slot })?;
    Ok(at + value.start..at + value.end)
}

/// Whether a header is that of a leaf of this tree, at this address, that is responsible for the key.
#[inline]
fn check_leaf(
    config: &TreeConfig,
    address: GlobalAddress,
    key: u64,
    header: &NodeHeader,
) -> Result<(), NodeFault> {
    if !Check::SpeculatedLeaf.on() {
        return Ok(());
    }
    if header.magic != MAGIC {
        return Err(NodeFault::Magic { found: header.magic });
    }
    if header.level != 0 {
        return Err(NodeFault::Level { found: header.level, expected: 0 });
    }
    if header.format != config.leaf_shape().format() || header.integrity() != config.integrity() {
        return Err(NodeFault::Format { found: header.format, level: 0 });
    }
    if header.address != address {
        return Err(NodeFault::Address { found: header.address, expected: address });
    }
    let range = header.range();
    if !range.contains(key) {
        return Err(NodeFault::KeyOutside { key, range });
    }
    Ok(())
}

/// Whether lines of a leaf, of which the first is line `first`, are as they were written, and of the version of its header.
#[inline]
fn check_lines(shape: &LeafShape, version: u8, first: usize, lines: &[u8]) -> Result<(), NodeFault> {
    let (lines, _) = lines.as_chunks::<LINE>();
    for (index, line) in (first..).zip(lines) {
        if shape.integrity() == Integrity::Checksums
            && Check::SpeculatedChecksum.on()
            && !shape.marks().is_summed(line, index)
        {
            return Err(NodeFault::TornLine { line: index });
        }
        if line[shape.marks().version(index)] != version && Check::SpeculatedVersion.on() {
            return Err(NodeFault::Torn { line: index });
        }
    }
    Ok(())
}
