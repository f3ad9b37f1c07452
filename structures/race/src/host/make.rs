//! An empty part of a table, in any memory.

use std::io;
use std::sync::Arc;

use fatbtree_memserver::{Class, Loaded, PartOptions, Shape as Classes};
use fatbtree_remote_memory::{GlobalAddress, HEADER_BYTES};
use fatbtree_verbs::Memory;

use super::HashTable;
use crate::layout::{BadShape, BucketHeader, Leaf, Shape, TableInfo, entry_offset, write_subtable};
use crate::slot::{MAX_REGION, MAX_SERVERS, Place, Slot, UNIT};

/// Errors from making a table.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// Such a table cannot be.
    #[error(transparent)]
    Shape(#[from] BadShape),
    /// The server is not one of the table's, or pointers do not reach it.
    #[error(
        "memory server {0} is not in the table's list of servers; those are numbered below {MAX_SERVERS}"
    )]
    Server(u16),
    /// The region is larger than pointers reach.
    #[error("a region of {0} bytes: pointers of a table reach {MAX_REGION}")]
    Region(u64),
    /// The system gives no memory.
    #[error("no memory for a region of {bytes} bytes: {why}")]
    Memory {
        /// Bytes of the region.
        bytes: u64,
        /// The system's reason.
        why: io::Error,
    },
}

/// Options of a part of a table.
pub type MakeOptions = PartOptions<Shape>;

/// Size classes of a table, by number.
pub(super) fn classes(shape: &Shape) -> Vec<Class> {
    let pair = u32::try_from(2 * shape.subtable_bytes()).unwrap_or(u32::MAX);
    vec![
        Class { name: "blocks", ..Class::default() },
        Class { name: "pairs of subtables", bytes: pair, ..Class::default() },
    ]
}

/// What memory servers know of a part.
pub(super) fn served_as(shape: &Shape) -> Classes {
    Classes { classes: classes(shape), ..Classes::default() }
}

/// Offset of the first chunk of a part.
pub(super) const fn spare_from(shape: &Shape, is_first: bool) -> u64 {
    let header = HEADER_BYTES as u64;
    // Another server has the line with the word of members.
    if is_first { header + shape.directory_bytes() + shape.subtable_bytes() } else { header + UNIT }
}

/// Makes a part in memory that `region` gives.
pub(super) fn make<E: From<MakeError>>(
    options: &MakeOptions,
    region: impl FnOnce(u64) -> Result<Memory, E>,
) -> Result<Loaded<HashTable>, E> {
    let &MakeOptions { server, shape, spare_bytes, generation, origin, .. } = options;
    shape.check().map_err(MakeError::Shape)?;
    if server >= MAX_SERVERS || shape.servers >> server & 1 == 0 {
        return Err(MakeError::Server(server).into());
    }
    let header = HEADER_BYTES as u64;
    let directory = GlobalAddress::new(shape.server(0), header);
    let is_first = directory.server() == server;
    let begin = spare_from(&shape, is_first);
    let bytes = begin.saturating_add(spare_bytes);
    if bytes > MAX_REGION {
        return Err(MakeError::Region(bytes).into());
    }
    let region: Arc<Memory> = region(bytes)?.into();
    let write =
        |offset: u64, bytes: &[u8]| region.write(offset, bytes).expect("the region has room for both");
    if is_first {
        let root = header + shape.directory_bytes();
        let place = Place::of(GlobalAddress::new(server, root)).ok_or(MakeError::Region(bytes))?;
        write(header + entry_offset(0), &Leaf { place, depth: 0 }.word().to_le_bytes());
        let mut subtable = vec![0; shape.subtable_bytes() as usize];
        write_subtable(&mut subtable, BucketHeader { depth: 0, suffix: 0 }, |_| Slot::EMPTY);
        write(root, &subtable);
    }
    write(0, &shape.header(directory, generation, bytes).to_bytes());
    let (info, spare) = (TableInfo { shape, directory }, begin..bytes);
    Ok(Loaded {
        server,
        region: Arc::clone(&region),
        spare,
        generation,
        origin,
        chunk_classes: None,
        shape: served_as(&shape),
        tenant: HashTable { server, info, region, marks: Default::default() },
    })
}
