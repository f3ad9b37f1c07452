//! Where everything lies: region header, lines of clients, the root, chunks.
//!
//! ```text
//!   region of each server              lines of clients: one for each owner of locks
//!   ┌────────────────────┐ 0           ┌───────────────────────────────────────────────┐
//!   │ region header      │             │ eight words: the leaf on which an operation   │
//!   ├────────────────────┤ 64          │ is announced, or 0                            │
//!   │ lines of clients   │ 4 MiB       └───────────────────────────────────────────────┘
//!   ├────────────────────┤
//!   │ members            │
//!   ├────────────────────┤
//!   │ root               │ on the index's first server
//!   ├────────────────────┤ spare memory
//!   │ chunks: leaves, inner nodes, records
//!   └────────────────────┘
//! ```
//!
//! Pages of lines that no client has used take no memory.

use fatbtree_remote_memory::{GlobalAddress, HEADER_BYTES, RegionHeader, SizeClass, mix};

use crate::entry::{Entry, NodeSize, UNIT};
use crate::key::Prefix;

/// Name of the structure in the region's header.
pub const STRUCTURE: [u8; 8] = *b"dolphin ";

/// Size class of leaves.
pub const LEAVES: SizeClass = SizeClass(0);
/// Size class of inner nodes, of several sizes.
pub const NODES: SizeClass = SizeClass(1);
/// Size class of records, of several sizes.
pub const RECORDS: SizeClass = SizeClass(2);

/// Operations of a client that may change leaves of one server at once.
pub const ANNOUNCEMENTS: usize = 8;

/// Bytes of a client's line.
pub(crate) const LINE_BYTES: u64 = 8 * ANNOUNCEMENTS as u64;

/// Bytes of all lines: owners have numbers of 16 bits.
pub(crate) const LINES_BYTES: u64 = LINE_BYTES << 16;

pub use fatbtree_remote_memory::record::MAX_VALUE;

/// Version of this layout, in the region's header.
const FORMAT: u8 = 3;

/// Shape of an index. It is chosen when the index is made, and never changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "host", derive(serde::Serialize, serde::Deserialize))]
pub struct Shape {
    /// Memory servers that nodes are spread over: a bit for each number.
    pub servers: u32,
    /// Longest value in bytes, up to [`MAX_VALUE`]. A server's chunks hold the record of one.
    ///
    /// With 8 all values have eight bytes, which are in the leaf, and updates need no atomic.
    pub max_value: u32,
}

impl Default for Shape {
    /// One server, number 0; values of eight bytes.
    fn default() -> Self {
        Self { servers: 1, max_value: 8 }
    }
}

/// A shape that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadShape {
    /// No server.
    #[error("an index on no server: name at least one memory server below 32")]
    Servers,
    /// Values of impossible lengths.
    #[error("values of up to {0} bytes: choose 8 to {MAX_VALUE}")]
    Values(u32),
}

impl Shape {
    /// Whether such an index can be.
    ///
    /// # Errors
    /// The first field that is out of bounds.
    pub const fn check(&self) -> Result<(), BadShape> {
        if self.servers == 0 {
            return Err(BadShape::Servers);
        }
        if self.max_value < 8 || self.max_value > MAX_VALUE {
            return Err(BadShape::Values(self.max_value));
        }
        Ok(())
    }

    /// Whether all values have eight bytes.
    #[must_use]
    pub const fn fixed(&self) -> bool {
        self.max_value == 8
    }

    /// The server with the `number`th bit of [`servers`](Self::servers), counted round and round.
    #[must_use]
    pub fn server(&self, number: u32) -> u16 {
        let nth = number % self.servers.count_ones().max(1);
        let rest = (0..nth).fold(self.servers, |servers, _| servers & servers.wrapping_sub(1));
        rest.trailing_zeros() as u16
    }

    /// The server with the root.
    #[must_use]
    pub fn home(&self) -> u16 {
        self.server(0)
    }

    /// Server of the node of a prefix, and of its leaves.
    pub(crate) fn server_of(&self, prefix: Prefix) -> u16 {
        match prefix.depth() {
            0 => self.home(),
            _ => self.server((mix(prefix.word()) >> 32) as u32),
        }
    }

    /// Entry of the root.
    pub(crate) fn root(&self) -> Entry {
        let at = GlobalAddress::new(self.home(), root_offset());
        Entry::inner(0, NodeSize::LARGEST, at).expect("the root lies at the begin of a region")
    }

    /// The header of a server's region.
    #[must_use]
    pub fn header(&self, generation: u64, region_bytes: u64) -> RegionHeader {
        let mut configuration = [0; fatbtree_remote_memory::CONFIGURATION_BYTES];
        configuration[0] = FORMAT;
        configuration[4..8].copy_from_slice(&self.servers.to_le_bytes());
        configuration[8..12].copy_from_slice(&self.max_value.to_le_bytes());
        let root = self.root().at();
        RegionHeader { structure: STRUCTURE, root, generation, region_bytes, configuration }
    }

    /// Shape in a header. `None`: no index's, of another format, or being written.
    #[must_use]
    pub fn of_header(line: &[u8; HEADER_BYTES]) -> Option<Self> {
        let header = RegionHeader::parse(line, &STRUCTURE)?;
        let word = |at: usize| header.configuration[at..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        let shape = Self { servers: word(4), max_value: word(8) };
        let is_right = header.configuration[0] == FORMAT && shape.check().is_ok();
        (is_right && header.root == shape.root().at()).then_some(shape)
    }
}

/// Offset of a client's line.
pub(crate) const fn line_offset(owner: u16) -> u64 {
    HEADER_BYTES as u64 + owner as u64 * LINE_BYTES
}

/// Offset of the word that names the generations of all servers, on each of them.
pub(crate) const fn members_offset() -> u64 {
    HEADER_BYTES as u64 + LINES_BYTES
}

/// Offset of the root.
pub(crate) const fn root_offset() -> u64 {
    (members_offset() + 8).next_multiple_of(UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_read_as_it_was_written() {
        let shape = Shape { servers: 0b1010, max_value: 100 };
        let line = shape.header(3, 1 << 30).to_bytes();
        assert_eq!(Shape::of_header(&line), Some(shape));
        assert_eq!(Shape::of_header(&[0; HEADER_BYTES]), None);
        assert_eq!((shape.home(), shape.server(1), shape.server(2)), (1, 3, 1));
        assert_eq!(Shape { servers: 0, ..shape }.check(), Err(BadShape::Servers));
        assert_eq!(Shape { max_value: 7, ..shape }.check(), Err(BadShape::Values(7)));
        assert!(Shape::default().fixed() && !shape.fixed());
    }

    #[test]
    fn lines_lie_behind_the_header() {
        assert_eq!((line_offset(0), line_offset(1)), (64, 128));
        assert_eq!(line_offset(u16::MAX) + LINE_BYTES, members_offset());
        assert_eq!(members_offset() + 64, root_offset());
    }
}
