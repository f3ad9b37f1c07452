//! Parts of structures that lie over several memory servers: made empty, kept in a folder, found there again.
//!
//! Clients fill such a structure. Its servers begin with empty parts, and an operator has them [begin anew](crate::grpc::empty), or loads a
//! structure that is [laid out](Part::lay) from keys, see [`load_parts`](crate::grpc::load_parts).

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::Arc;

use fatbtree_remote_memory::{GlobalAddress, Origin, SizeClass};
use fatbtree_verbs::Memory;

use crate::chunk_classes::note_chunk_class;
use crate::folder::{Counts, Folder, FolderError, FoundRegion, KeptRegion};
use crate::grpc::{Describe, LoadData};
use crate::lay::{LaidOut, LayError, Laying, Writes};
use crate::storage::Storage;
use crate::tenant::{Loaded, Tenant};

/// Options of a part. Start from [`new`](Self::new) and change what you need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartOptions<S> {
    /// Number of the memory server.
    pub server: u16,
    /// Shape of the structure, the same on all of its servers.
    pub shape: S,
    /// Bytes for what clients write. They cost nothing until they are used.
    pub spare_bytes: u64,
    /// Number of the region's filling: no other one of this server has had it.
    pub generation: u64,
    /// Whether an empty part is meant, or may be in the place of one that was lost.
    pub origin: Origin,
    /// Bytes of a chunk of the server.
    pub chunk_bytes: u64,
}

impl<S> PartOptions<S> {
    /// A part without spare memory, of generation 1, that is meant; chunks of 8 MiB.
    #[must_use]
    pub const fn new(server: u16, shape: S) -> Self {
        Self { server, shape, spare_bytes: 0, generation: 1, origin: Origin::Meant, chunk_bytes: 8 << 20 }
    }
}

/// One server's part of a structure.
pub trait Part:
    Tenant<Request = Infallible, Description: Describe + fmt::Display + Send + Sync> + Send + 'static
{
    /// Shape of the structure. It is chosen when the structure is made, and never changes; a load may make [another](Self::shape_of_load).
    type Shape: Copy + Eq + fmt::Debug + fmt::Display + Send + Sync + 'static;
    /// The shape as a folder's `state.json` says it for people: often the shape itself.
    type Counts: Counts + From<Self::Shape> + Send + 'static;
    /// Reasons for which a part cannot be made.
    type MakeError: std::error::Error + Send + Sync + 'static;

    /// Shape of its structure.
    fn shape(&self) -> Self::Shape;

    /// The shape that a load announces in these words, if a server takes it in the place of `shape`, with which it was started. By default no
    /// other one: a structure lies over the servers of the cluster file.
    fn shape_of_load(shape: &Self::Shape, announced: &str) -> Option<Self::Shape> {
        (announced == shape.to_string()).then_some(*shape)
    }

    /// Whether a load may have a number several times: in structures of this shape numbers are hashes of keys.
    fn may_repeat_numbers(_shape: &Self::Shape) -> bool {
        false
    }

    /// Bytes at the end of a part's region that clients are given in chunks: a folder takes no room for them before. By default all that the
    /// options allow. A part without chunks has none.
    fn spare_bytes(options: &PartOptions<Self::Shape>) -> u64 {
        options.spare_bytes
    }

    /// Address at which the structure begins.
    fn begin(description: &Self::Description) -> GlobalAddress;

    /// Makes an empty part in memory that `region` gives.
    ///
    /// # Errors
    /// When such a part cannot be, or `region` gives no memory.
    fn make_with<E: From<Self::MakeError>>(
        options: &PartOptions<Self::Shape>,
        region: impl FnOnce(u64) -> Result<Memory, E>,
    ) -> Result<Loaded<Self>, E>;

    /// Error of a system that gives no memory for a region.
    fn no_memory(bytes: u64, why: io::Error) -> Self::MakeError;

    /// The part of memory server `server` in a region that was found in a folder, after it was checked.
    ///
    /// # Errors
    /// When the part is damaged.
    fn found(
        server: u16,
        found: FoundRegion<Self::Counts>,
        chunk_bytes: u64,
    ) -> Result<Loaded<Self>, FolderError>;

    /// Lays out a structure of these pairs over all of its servers, as if clients had inserted them. Keys are ascending, and each comes once
    /// unless they [may repeat](Self::may_repeat_numbers). It is called twice: to
    /// count what the structure takes, and to write it. Both times it gives the same.
    ///
    /// # Errors
    /// When the structure does not take the pairs, or `write` refuses.
    fn lay(
        of: &Laying<Self::Shape>,
        data: &dyn LoadData,
        write: &mut Writes<'_>,
    ) -> Result<LaidOut, LayError>;
}

/// Errors from making a part in a storage.
#[derive(Debug, thiserror::Error)]
pub enum MakeInError<E: std::error::Error + 'static> {
    /// The part cannot be made.
    #[error(transparent)]
    Make(#[from] E),
    /// The folder fails.
    #[error(transparent)]
    Folder(FolderError),
}

/// Makes an empty part in memory.
///
/// # Errors
/// When such a part cannot be, or there is no memory.
pub fn make<P: Part>(options: &PartOptions<P::Shape>) -> Result<Loaded<P>, P::MakeError> {
    P::make_with(options, |bytes| Memory::anonymous(bytes).map_err(|why| P::no_memory(bytes, why)))
}

/// Makes an empty part in a storage, beside the one that is served. Nothing of it is left if it is not [kept](Storage::keep): see [`kept`].
///
/// # Errors
/// When such a part cannot be, or there is no memory, or the folder fails.
pub fn make_in<P: Part>(
    storage: &mut Storage<P::Counts>,
    options: &PartOptions<P::Shape>,
) -> Result<Loaded<P>, MakeInError<P::MakeError>> {
    let made = begin_in::<P>(storage, options, 0)?;
    let chunk_classes = match storage {
        Storage::Memory => None,
        Storage::Folder(folder) => {
            let filled = folder.fill(made.generation, &made.region, &made.spare);
            Some(filled.map_err(MakeInError::Folder)?)
        }
    };
    Ok(Loaded { chunk_classes, ..made })
}

/// The same, to be filled: the first `loaded` of the spare bytes have their room, and a [folder](Folder::fill) does not note yet what is
/// written.
pub(crate) fn begin_in<P: Part>(
    storage: &mut Storage<P::Counts>,
    options: &PartOptions<P::Shape>,
    loaded: u64,
) -> Result<Loaded<P>, MakeInError<P::MakeError>> {
    let Storage::Folder(folder) = storage else {
        return Ok(make(options)?);
    };
    folder.begin(options.generation).map_err(MakeInError::Folder)?;
    let region = |bytes: u64| {
        let room = bytes.saturating_sub(P::spare_bytes(options)).saturating_add(loaded);
        folder.new_region(options.generation, bytes, room).map_err(MakeInError::Folder)
    };
    P::make_with(options, region)
}

/// A part that was written into a region that [`begin_in`] has given, after it was checked as one that is found in a folder.
///
/// # Errors
/// When what was written is no whole part.
pub(crate) fn finish<P: Part>(
    made: Loaded<P>,
    chunks: &[SizeClass],
    table: Arc<Memory>,
    chunk_bytes: u64,
) -> Result<Loaded<P>, FolderError> {
    for (chunk, class) in (0..).zip(chunks) {
        note_chunk_class(&table, made.generation, chunk, *class);
    }
    found_again(&made, table, chunk_bytes)
}

/// A part whose memory and table of chunk classes have outlived its server, after it was checked as one that is found in a folder.
///
/// # Errors
/// When the part is damaged.
pub fn found_again<P: Part>(
    part: &Loaded<P>,
    table: Arc<Memory>,
    chunk_bytes: u64,
) -> Result<Loaded<P>, FolderError> {
    let found = FoundRegion::loaded(kept(part), Arc::clone(&part.region), table, chunk_bytes);
    P::found(part.server, found, chunk_bytes)
}

/// Description of a part's region for a [storage](Storage::keep).
#[must_use]
pub fn kept<P: Part>(part: &Loaded<P>) -> KeptRegion<P::Counts> {
    KeptRegion {
        generation: part.generation,
        region_bytes: part.region.len(),
        spare: part.spare.clone(),
        origin: part.origin,
        counts: part.tenant.shape().into(),
    }
}

/// The part that is in a folder, if there is one. `chunk_bytes`: as when the folder was opened.
///
/// # Errors
/// When the part is damaged, or the disk has no room for what the folder has given to clients.
pub fn part_in<P: Part>(
    folder: &Folder<P::Counts>,
    chunk_bytes: u64,
) -> Result<Option<Loaded<P>>, FolderError> {
    let Some(found) = folder.region()? else { return Ok(None) };
    P::found(folder.owner().partition, found, chunk_bytes).map(Some)
}
