//! Lines of 64 bytes, and what keeps them together: a version in each, and where lines tear, a checksum.
//!
//! ```text
//! header, internal   version at 0, checksum at 12..16 (both are free there)
//! leaf               version at 0, checksum at 1..5
//! leaf of buckets    version at 0, checksum at 60..64, for a line's other fields have their places
//! second line of an  version at 63, checksum at 59..63, so that the entry lies in one piece
//! entry of two lines
//! ```
//!
//! Checksums are there only in trees with [`Integrity::Checksums`]. A checksum is the CRC-32 of the line's other bytes.

use fatbtree_remote_memory::Check;

use super::{LINE, NodeFault};
use crate::config::Integrity;

/// Marking of the lines of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Marks {
    /// The header's line, and all lines of internal nodes.
    Internal,
    /// Leaves whose entries fit in a line.
    Leaf,
    /// Leaves whose entries take two lines each.
    WideLeaf,
    /// Leaves of buckets.
    Buckets,
}

/// Bytes of a checksum.
pub(super) const CHECKSUM: usize = 4;

impl Marks {
    /// Offsets at which a line can have its version, in any kind of node.
    pub(super) const PLACES: [usize; 2] = [0, LINE - 1];

    /// Offset of the version in line `index`.
    pub(super) const fn version(self, index: usize) -> usize {
        match self {
            Marks::WideLeaf if index != 0 && index.is_multiple_of(2) => LINE - 1,
            _ => 0,
        }
    }

    /// Offset of the checksum in line `index`, where there is one.
    const fn checksum(self, index: usize) -> usize {
        match self {
            Marks::WideLeaf if index != 0 && index.is_multiple_of(2) => LINE - 1 - CHECKSUM,
            Marks::Leaf | Marks::WideLeaf if index != 0 => 1,
            Marks::Buckets if index != 0 => LINE - CHECKSUM,
            _ => 12,
        }
    }

    /// Marks every line: to be done last, when all else is written.
    pub(super) fn stamp(self, bytes: &mut [u8], version: u8, integrity: Integrity) {
        for (index, line) in bytes.as_chunks_mut::<LINE>().0.iter_mut().enumerate() {
            line[self.version(index)] = version;
            if integrity == Integrity::Checksums {
                self.sum_line(line, index);
            }
        }
    }

    /// Writes the checksum of line `index` of a node.
    pub(super) fn sum(self, bytes: &mut [u8], index: usize) {
        if let Some(line) = bytes.as_chunks_mut::<LINE>().0.get_mut(index) {
            self.sum_line(line, index);
        }
    }

    fn sum_line(self, line: &mut [u8; LINE], index: usize) {
        let at = self.checksum(index);
        let sum = checksum(line, at);
        line[at..at + CHECKSUM].copy_from_slice(&sum.to_le_bytes());
    }

    /// Whether line `index` of a node matches its checksum.
    pub(super) fn is_summed(self, line: &[u8; LINE], index: usize) -> bool {
        let at = self.checksum(index);
        line[at..at + CHECKSUM] == checksum(line, at).to_le_bytes()
    }

    /// Whether the lines were written together and read whole.
    #[inline]
    pub(super) fn check(self, lines: &[[u8; LINE]], integrity: Integrity) -> Result<(), NodeFault> {
        if integrity == Integrity::Checksums && Check::LineChecksum.on() {
            self.check_sums(lines)?;
        }
        let Some((first, rest)) = lines.split_first() else { return Ok(()) };
        let version = first[0];
        // Without a branch per line: torn reads are rare.
        let mut difference = 0;
        if self == Marks::WideLeaf {
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
        if difference == 0 || !Check::LineVersion.on() { Ok(()) } else { Err(self.torn(lines)) }
    }

    #[cold]
    fn torn(self, lines: &[[u8; LINE]]) -> NodeFault {
        let differs = |(index, line): (usize, &[u8; LINE])| line[self.version(index)] != lines[0][0];
        let line = lines.iter().enumerate().position(differs).unwrap_or_default();
        NodeFault::Torn { line }
    }

    fn check_sums(self, lines: &[[u8; LINE]]) -> Result<(), NodeFault> {
        for (index, line) in lines.iter().enumerate() {
            if !self.is_summed(line, index) {
                return Err(NodeFault::TornLine { line: index });
            }
        }
        Ok(())
    }
}

/// CRC-32 of a line without the bytes at `at`, where the sum itself stands.
fn checksum(line: &[u8; LINE], at: usize) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&line[..at]);
    hasher.update(&line[at + CHECKSUM..]);
    hasher.finalize()
}
