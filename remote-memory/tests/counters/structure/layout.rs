//! The layout: what a region's header says of its array.

use std::fmt;

use fatbtree_remote_memory::{GlobalAddress, HEADER_BYTES, RegionHeader, ServerSet, SizeClass};
use serde::{Deserialize, Serialize};

/// Bytes from one counter to the next: a line each, so that a READ never sees half of one.
const STRIDE: u32 = 64;

/// Name of the structure. Its root is the server's array; the shape is its configuration.
pub(crate) const STRUCTURE: [u8; 8] = *b"counters";

/// Memory of an array.
pub(crate) const ARRAY: SizeClass = SizeClass(0);

/// Offset of the word that names all servers by their generations.
pub(crate) const MEMBERS: u64 = HEADER_BYTES as u64;

/// Offset of the first chunk.
pub(crate) const CHUNKS: u64 = MEMBERS + 64;

/// Servers of the structure, a bit for each number, and its counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Shape {
    pub(crate) servers: u32,
    pub(crate) counters: u32,
}

/// Words for people: `4 counters, memory servers 0, 1`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} counters, {}", self.counters, ServerSet(self.servers))
    }
}

impl Shape {
    /// Numbers of its servers.
    pub(crate) fn numbers(self) -> impl Iterator<Item = u16> {
        ServerSet(self.servers).numbers()
    }

    /// Server on which it begins.
    pub(crate) fn home(self) -> u16 {
        self.servers.trailing_zeros() as u16
    }

    /// Bytes of an array.
    pub(crate) fn array_bytes(self) -> u32 {
        self.counters.div_ceil(self.servers.count_ones()) * STRIDE
    }

    /// Place of a counter: the array of which server in their order, and the offset there. `None` if there is no such counter.
    pub(crate) fn place(self, number: u64) -> Option<(usize, u64)> {
        let servers = u64::from(self.servers.count_ones());
        let place = ((number % servers) as usize, number / servers * u64::from(STRIDE));
        (number < self.counters.into()).then_some(place)
    }

    /// A region's header, with the server's array.
    pub(crate) fn header(self, array: GlobalAddress, generation: u64, region_bytes: u64) -> RegionHeader {
        let words = [self.servers.to_le_bytes(), self.counters.to_le_bytes()];
        let configuration =
            std::array::from_fn(|at| words.as_flattened().get(at).copied().unwrap_or_default());
        RegionHeader { structure: STRUCTURE, root: array, generation, region_bytes, configuration }
    }
}

/// The header of a region of counters with its shape. `None` if it is none, or is being written.
pub(crate) fn header_of(line: &[u8]) -> Option<(RegionHeader, Shape)> {
    let header = RegionHeader::parse(line.first_chunk()?, &STRUCTURE)?;
    let word = |at: usize| Some(u32::from_le_bytes(*header.configuration.get(at..)?.first_chunk()?));
    let shape = Shape { servers: word(0)?, counters: word(4)? };
    (shape.servers != 0).then_some((header, shape))
}
