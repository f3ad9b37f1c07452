//! The first line of a region: which structure lies in it, and where that begins.
//!
//! ```text
//! offset size field
//!      0    8 structure: its name in ASCII
//!      8    8 address of the root
//!     16    8 generation: one more whenever the region is filled anew
//!     24    8 bytes of the region
//!     32   28 configuration: the structure's own
//!     60    4 CRC-32 of all the rest
//! ```
//!
//! Offset 0 is the null pointer, so no block can lie here. A client that moves the root writes the line anew, under the lock of its
//! address; a reader that finds it torn reads it again.

use crate::address::GlobalAddress;

/// Bytes of a header: one line.
pub const HEADER_BYTES: usize = 64;

/// Bytes that a structure has for its configuration.
pub const CONFIGURATION_BYTES: usize = SUM - CONFIGURATION;

const CONFIGURATION: usize = 32;
const SUM: usize = HEADER_BYTES - 4;

/// Content of a region's first line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionHeader {
    /// Name of the structure, in ASCII.
    pub structure: [u8; 8],
    /// Address at which the structure begins.
    pub root: GlobalAddress,
    /// Number of times that the region has been filled.
    pub generation: u64,
    /// Bytes of the region, padding included.
    pub region_bytes: u64,
    /// The structure's own fields.
    pub configuration: [u8; CONFIGURATION_BYTES],
}

impl RegionHeader {
    /// The line as it lies in memory.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut line = [0; HEADER_BYTES];
        line[..8].copy_from_slice(&self.structure);
        line[8..16].copy_from_slice(&self.root.raw().to_le_bytes());
        line[16..24].copy_from_slice(&self.generation.to_le_bytes());
        line[24..CONFIGURATION].copy_from_slice(&self.region_bytes.to_le_bytes());
        line[CONFIGURATION..SUM].copy_from_slice(&self.configuration);
        let sum = crc32fast::hash(&line[..SUM]);
        line[SUM..].copy_from_slice(&sum.to_le_bytes());
        line
    }

    /// Reads the line, whatever is there.
    #[must_use]
    pub fn from_bytes(line: &[u8; HEADER_BYTES]) -> Self {
        let word = |at: usize| line[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let mut configuration = [0; CONFIGURATION_BYTES];
        configuration.copy_from_slice(&line[CONFIGURATION..SUM]);
        Self {
            structure: word(0).to_le_bytes(),
            root: GlobalAddress(word(8)),
            generation: word(16),
            region_bytes: word(24),
            configuration,
        }
    }

    /// Reads the line of a structure. `None`: another structure's, or being written.
    #[must_use]
    pub fn parse(line: &[u8; HEADER_BYTES], structure: &[u8; 8]) -> Option<Self> {
        let is_whole = line[SUM..] == crc32fast::hash(&line[..SUM]).to_le_bytes();
        Some(Self::from_bytes(line)).filter(|header| is_whole && header.structure == *structure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_read_as_it_was_written_and_every_bit_matters() {
        let written = RegionHeader {
            structure: *b"counters",
            root: GlobalAddress::new(7, 0x1240),
            generation: 5,
            region_bytes: 1 << 33,
            configuration: std::array::from_fn(|at| at as u8),
        };
        let mut line = written.to_bytes();
        assert_eq!(RegionHeader::parse(&line, b"counters"), Some(written));
        assert_eq!(RegionHeader::parse(&line, b"FatB+Tre"), None);
        for bit in 0..HEADER_BYTES * 8 {
            line[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RegionHeader::parse(&line, b"counters"), None, "bit {bit}");
            line[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
