//! Internal nodes: sorted pivots, each with the child that begins there.
//!
//! ```text
//! line 0      the header; child 0 at offset 48, its pivot is the low fence
//! line 1..    offset  0, 1 byte   version
//!             offset  1, 15 bytes zero; where lines have checksums, that of the line at 12; in line 1 of a node of a layer below the first
//!                                 one, the layer's number at 1 (8 bytes)
//!             offset 16, 16 bytes child 3(line-1)+1: pivot (8), address (8)
//!             offset 32, 16 bytes child 3(line-1)+2
//!             offset 48, 16 bytes child 3(line-1)+3
//! ```
//!
//! Sixteen children make 384 bytes. A pivot is the lowest key of its child. Unused slots are zero.

use fatbtree_remote_memory::{Check, GlobalAddress};

use super::line::Marks;
use super::{FORMAT_INTERNAL, LINE, NodeFault, NodeHeader, NodeSpec, word};
use crate::config::Integrity;

/// Children in each line after the header.
pub const CHILDREN_PER_LINE: usize = 3;

/// Offset of the layer's number in the node.
pub(super) const LAYER_AT: usize = LINE + 1;

const FIRST: usize = 16;
const STEP: usize = 16;

const _: () = assert!(FIRST + CHILDREN_PER_LINE * STEP == LINE && internal_bytes(16) == 384);

/// Bytes of an internal node with room for `fan_out` children.
#[must_use]
pub const fn internal_bytes(fan_out: u16) -> u32 {
    let lines = (fan_out as u32).saturating_sub(1).div_ceil(CHILDREN_PER_LINE as u32);
    (1 + lines) * LINE as u32
}

/// A checked view of an internal node: its pivots ascend, the first is its low fence, and all its children are there.
#[derive(Clone, Copy, Debug)]
pub struct InternalNode<'a> {
    header: NodeHeader,
    /// All lines, the header's included.
    lines: &'a [[u8; LINE]],
}

impl<'a> InternalNode<'a> {
    pub(super) const fn new(header: NodeHeader, lines: &'a [[u8; LINE]]) -> Self {
        Self { header, lines }
    }

    /// Line 0.
    #[must_use]
    pub const fn header(&self) -> &NodeHeader {
        &self.header
    }

    /// Checks that pivots ascend within the fences, and that there is no null pointer.
    #[inline]
    pub(super) fn check_children(&self) -> Result<(), NodeFault> {
        let mut left = self.count().saturating_sub(1);
        let (mut last, mut wrong) = (self.header.low, self.header.first_child.is_null());
        // One branch for all of them, which is almost never taken.
        'lines: for line in &self.lines[1..] {
            for i in 0..CHILDREN_PER_LINE {
                if left == 0 {
                    break 'lines;
                }
                let pivot = word(line, FIRST + i * STEP);
                wrong |= (pivot <= last) | (word(line, FIRST + i * STEP + 8) == 0);
                last = pivot;
                left -= 1;
            }
        }
        if wrong || self.header.range().is_below(last) { self.name_fault() } else { Ok(()) }
    }

    /// The first thing that is wrong with pivots and children.
    #[cold]
    fn name_fault(&self) -> Result<(), NodeFault> {
        let mut last = None;
        for (slot, (pivot, child)) in self.children().enumerate() {
            let ascends = last.is_none_or(|last| last < pivot) && self.header.range().contains(pivot);
            if !ascends && Check::Structure.on() {
                return Err(NodeFault::Pivot { slot, pivot });
            }
            if child.is_null() && Check::NullPointer.on() {
                return Err(NodeFault::NullPointer { slot });
            }
            last = Some(pivot);
        }
        Ok(())
    }

    /// Number of the layer that the node belongs to; 0 of the first one.
    pub(super) fn layer(&self) -> u64 {
        self.lines.get(LAYER_AT / LINE).map_or(0, |line| word(line, LAYER_AT % LINE))
    }

    /// Children of the node, at least 1.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.header.count as usize
    }

    /// Pivot and address of child `slot`, if there is one.
    #[must_use]
    pub fn child(&self, slot: usize) -> Option<(u64, GlobalAddress)> {
        if slot >= self.count() {
            return None;
        }
        let Some(behind) = slot.checked_sub(1) else {
            return Some((self.header.low, self.header.first_child));
        };
        let line = self.lines.get(1 + behind / CHILDREN_PER_LINE)?;
        let at = FIRST + behind % CHILDREN_PER_LINE * STEP;
        Some((word(line, at), GlobalAddress(word(line, at + 8))))
    }

    /// All children from left to right, with their pivots.
    pub fn children(&self) -> impl Iterator<Item = (u64, GlobalAddress)> + '_ {
        (0..self.count()).map_while(|slot| self.child(slot))
    }

    /// The child responsible for `key`, which must not be below the low fence: the last whose pivot is not above it.
    #[inline]
    #[must_use]
    pub fn find(&self, key: u64) -> GlobalAddress {
        let mut left = self.count().saturating_sub(1);
        let mut best = self.header.first_child;
        'lines: for line in &self.lines[1..] {
            for i in 0..CHILDREN_PER_LINE {
                if left == 0 || word(line, FIRST + i * STEP) > key {
                    break 'lines;
                }
                best = GlobalAddress(word(line, FIRST + i * STEP + 8));
                left -= 1;
            }
        }
        best
    }
}

/// Writes an internal node over `bytes`, which must have the node's size.
///
/// `children` are sorted; the pivot of the first is the low fence of `spec`.
///
/// # Panics
/// When `children` is empty or does not fit: the caller chose both the node's size and its contents.
pub fn write_internal(
    bytes: &mut [u8],
    spec: &NodeSpec,
    children: &[(u64, GlobalAddress)],
    integrity: Integrity,
) {
    let (lines, _) = bytes.as_chunks_mut::<LINE>();
    let (first, rest) = lines.split_first_mut().expect("a node has at least its header line");
    let (leftmost, behind) = children.split_first().expect("an internal node has at least one child");
    assert!(behind.len() <= rest.len() * CHILDREN_PER_LINE, "{} children do not fit", children.len());
    debug_assert_eq!(leftmost.0, spec.range.low, "the first pivot is the low fence");
    debug_assert!(children.is_sorted_by(|a, b| a.0 < b.0), "pivots are sorted");
    let count = u16::try_from(children.len()).expect("a node of 4096 bytes holds fewer than 65,536 children");
    NodeHeader::emit(first, spec, FORMAT_INTERNAL, count, leftmost.1, integrity);
    rest.as_flattened_mut().fill(0);
    for (line, children) in rest.iter_mut().zip(behind.chunks(CHILDREN_PER_LINE)) {
        for (entry, (pivot, child)) in line[FIRST..].chunks_exact_mut(STEP).zip(children) {
            entry[..8].copy_from_slice(&pivot.to_le_bytes());
            entry[8..].copy_from_slice(&child.raw().to_le_bytes());
        }
    }
    Marks::Internal.stamp(bytes, spec.version.to_le_bytes()[0], integrity);
}
