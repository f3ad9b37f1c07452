//! An empty part of a table, in any memory.

use std::io;
use std::sync::Arc;

use fatbtree_memserver::{Class, FolderError, KeptRegion, Loaded, Origin, Shape as Classes};
use fatbtree_remote::{GlobalAddress, HEADER_BYTES};
use fatbtree_verbs::Memory;

use super::kept::{TableCounts, TableStorage};
use super::{HashTable, TableInfo};
use crate::layout::{BadShape, BucketHeader, Leaf, Shape, entry_offset, write_subtable};
use crate::slot::{MAX_REGION, MAX_SERVERS, Place, Slot};

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

/// Errors from making a table in a storage.
#[derive(Debug, thiserror::Error)]
pub enum MakeInError {
    /// The table cannot be made.
    #[error(transparent)]
    Make(#[from] MakeError),
    /// The folder fails.
    #[error(transparent)]
    Folder(#[from] FolderError),
}

/// Options of a part. Start from [`new`](Self::new) and change what you need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MakeOptions {
    /// Number of the memory server.
    pub server: u16,
    /// Shape of the table, the same on all of its servers.
    pub shape: Shape,
    /// Bytes for what clients write. They cost nothing until they are used.
    pub spare_bytes: u64,
    /// Number of the region's filling: no other one of this server has had it.
    pub generation: u64,
    /// Whether an empty table is meant, or may be in the place of one that was lost.
    pub origin: Origin,
    /// Bytes of a chunk of the server.
    pub chunk_bytes: u64,
}

impl MakeOptions {
    /// A part without spare memory, of generation 1, that is meant; chunks of 8 MiB.
    #[must_use]
    pub const fn new(server: u16, shape: Shape) -> Self {
        Self { server, shape, spare_bytes: 0, generation: 1, origin: Origin::Meant, chunk_bytes: 8 << 20 }
    }
}

/// Size classes of a table, by number.
pub(super) fn classes(shape: &Shape) -> Vec<Class> {
    let pair = u32::try_from(2 * shape.subtable_bytes()).unwrap_or(u32::MAX);
    vec![
        Class { name: "blocks", ..Class::default() },
        Class { name: "pairs of subtables", bytes: pair, ..Class::default() },
    ]
}

/// Offset of the first chunk of a part.
pub(super) const fn spare_from(shape: &Shape, is_first: bool) -> u64 {
    let header = HEADER_BYTES as u64;
    if is_first { header + shape.directory_bytes() + shape.subtable_bytes() } else { header }
}

/// Makes a part in memory that `region` gives.
pub(super) fn make<E: From<MakeError>>(
    options: &MakeOptions,
    region: impl FnOnce(u64) -> Result<Memory, E>,
) -> Result<Loaded<HashTable>, E> {
    let &MakeOptions { server, shape, spare_bytes, generation, origin, chunk_bytes } = options;
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
        spare: spare.clone(),
        generation,
        origin,
        chunk_classes: None,
        shape: Classes { classes: classes(&shape), ..Classes::default() },
        tenant: HashTable { server, info, region, spare, chunk_bytes, marks: Default::default() },
    })
}

/// Makes a part in a storage, beside the one that is served. Nothing of it is left if it is not
/// [kept](fatbtree_memserver::Storage::keep): see [`kept`].
///
/// # Errors
/// When such a table cannot be, or there is no memory, or the folder fails.
pub fn make_in(storage: &mut TableStorage, options: &MakeOptions) -> Result<Loaded<HashTable>, MakeInError> {
    let TableStorage::Folder(folder) = storage else {
        let anonymous = |bytes| Memory::anonymous(bytes).map_err(|why| MakeError::Memory { bytes, why });
        return Ok(make(options, anonymous)?);
    };
    folder.begin(options.generation)?;
    let region = |bytes: u64| {
        let room = bytes.saturating_sub(options.spare_bytes);
        folder.new_region(options.generation, bytes, room).map_err(MakeInError::from)
    };
    let made = make(options, region)?;
    let chunk_classes = Some(folder.fill(options.generation, &made.region, &made.spare)?);
    Ok(Loaded { chunk_classes, ..made })
}

/// Description of a part's region for a [storage](fatbtree_memserver::Storage::keep).
#[must_use]
pub fn kept(part: &Loaded<HashTable>) -> KeptRegion<TableCounts> {
    KeptRegion {
        generation: part.generation,
        region_bytes: part.region.len(),
        spare: part.spare.clone(),
        origin: part.origin,
        counts: TableCounts::from(&part.tenant.info().shape),
    }
}
