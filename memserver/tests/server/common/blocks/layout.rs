//! The layout: what memory says of a block, and a region's header of all of them.

use std::fmt;

use fatbtree_memserver::SizeClass;
use fatbtree_memserver::grpc::{Describe, MessageError};
use fatbtree_remote_memory::record::RecordPointer;
use fatbtree_remote_memory::{GlobalAddress, HEADER_BYTES, RegionHeader};
use fatbtree_verbs::Memory;

/// Blocks of [`LARGE_BYTES`].
pub const LARGE: SizeClass = SizeClass(0);

/// Blocks of [`SMALL_BYTES`].
pub const SMALL: SizeClass = SizeClass(1);

/// Records of several sizes.
pub const RECORDS: SizeClass = SizeClass(2);

/// All classes, by number.
pub const CLASSES: [SizeClass; 3] = [LARGE, SMALL, RECORDS];

/// Bytes of a large block: an index read brings one.
pub const LARGE_BYTES: u64 = 1024;

/// Bytes of a small block. No chunk is a multiple of it.
pub const SMALL_BYTES: u64 = 384;

/// Name of the structure in a region's header.
const STRUCTURE: [u8; 8] = *b"blocks\0\0";

/// Bytes of each block of a class with one size.
pub fn bytes_of(class: SizeClass) -> u64 {
    match class {
        LARGE => LARGE_BYTES,
        SMALL => SMALL_BYTES,
        other => panic!("blocks of {other} have several sizes"),
    }
}

const MAGIC: u32 = 0xb10c_b10c;
/// Begin of the content.
const CONTENT: usize = 32;

/// A block of one size, alive or freed.
///
/// ```text
/// offset size field
///      0    8 address
///      8    4 magic
///     12    4 version: another one in each state of the block
///     16    4 CRC-32 of all the rest
///     20    4 records that it names
///     24    1 size class
///     25    1 whether it was freed
///     32   12 pointer to a record, and so on
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    pub address: GlobalAddress,
    pub class: SizeClass,
    pub version: u32,
    pub is_free: bool,
}

impl Block {
    /// Block with a content of zeros.
    pub fn zeros(self) -> Vec<u8> {
        self.filled(|_| {})
    }

    /// Block that names records.
    pub fn naming(self, records: &[RecordPointer]) -> Vec<u8> {
        let pointers = records.iter().flat_map(|record| record.to_bytes());
        let write = |content: &mut [u8]| content.iter_mut().zip(pointers).for_each(|(to, from)| *to = from);
        self.with(records.len() as u32, write)
    }

    /// Block with a content that `fill` writes.
    pub fn filled(self, fill: impl FnOnce(&mut [u8])) -> Vec<u8> {
        self.with(0, fill)
    }

    fn with(self, records: u32, fill: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut bytes = vec![0; bytes_of(self.class) as usize];
        fill(&mut bytes[CONTENT..]);
        bytes[..8].copy_from_slice(&self.address.raw().to_le_bytes());
        bytes[8..12].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.version.to_le_bytes());
        bytes[20..24].copy_from_slice(&records.to_le_bytes());
        (bytes[24], bytes[25]) = (self.class.0, self.is_free.into());
        let sum = sum(&bytes);
        bytes[16..20].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The block at an offset, whatever its content. `None` if none was ever written there.
    pub fn at(memory: &Memory, offset: u64) -> Option<Self> {
        let mut head = [0; CONTENT];
        memory.read(offset, &mut head).ok()?;
        let word = |at: usize| u32::from_le_bytes(*head[at..].first_chunk().expect("inside of the head"));
        let address = GlobalAddress(u64::from_le_bytes(*head.first_chunk().expect("a head is longer")));
        let (class, is_free) = (SizeClass(head[24]), head[25] == 1);
        (word(8) == MAGIC).then_some(Self { address, class, version: word(12), is_free })
    }

    /// Whether all bytes of a block are of one writing.
    pub fn is_whole(bytes: &[u8]) -> bool {
        bytes[16..20] == sum(bytes).to_le_bytes()
    }

    /// Records that a large block names.
    pub fn records(bytes: &[u8]) -> Vec<RecordPointer> {
        let count = bytes[20..].first_chunk().map_or(0, |count| u32::from_le_bytes(*count));
        let (pointers, _) = bytes[CONTENT..].as_chunks();
        pointers.iter().take(count as usize).map(RecordPointer::from_bytes).collect()
    }
}

/// Checksum of all bytes of a block but its own.
fn sum(bytes: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&bytes[..16]);
    sum.update(&bytes[20..]);
    sum.finalize()
}

/// Configuration of a region: the large blocks that are loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Shape {
    pub loaded: u32,
}

/// Words for people: `20 blocks`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks", self.loaded)
    }
}

impl Shape {
    /// Offset of the first chunk.
    pub fn chunks(self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.loaded) * LARGE_BYTES
    }

    /// A region's header.
    pub fn header(self, root: GlobalAddress, generation: u64, region_bytes: u64) -> RegionHeader {
        let loaded = self.loaded.to_le_bytes();
        let configuration = std::array::from_fn(|at| loaded.get(at).copied().unwrap_or_default());
        RegionHeader { structure: STRUCTURE, root, generation, region_bytes, configuration }
    }

    /// A header of a region of blocks, with its shape. `None` if it is none, or is being written.
    pub fn of_header(line: &[u8]) -> Option<(RegionHeader, Self)> {
        let header = RegionHeader::parse(line.first_chunk()?, &STRUCTURE)?;
        let loaded = u32::from_le_bytes(*header.configuration.first_chunk()?);
        Some((header, Self { loaded }))
    }
}

/// Description of a region of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Info {
    pub shape: Shape,
    /// A block of the region, as its header says.
    pub root: GlobalAddress,
}

/// Words for people: `20 blocks from 3:0x40`.
impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {}", self.shape, self.root)
    }
}

impl Describe for Info {
    const STRUCTURE: &'static str = "blocks";

    fn encode(&self) -> Vec<u8> {
        self.shape.header(self.root, 0, 0).to_bytes().into()
    }

    fn decode(_server: u16, description: &[u8]) -> Result<Self, MessageError> {
        let found = Shape::of_header(description);
        let (header, shape) =
            found.ok_or_else(|| MessageError::structure("the description is not one of blocks"))?;
        Ok(Self { shape, root: header.root })
    }
}
