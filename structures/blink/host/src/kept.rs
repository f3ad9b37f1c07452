//! Trees that outlive their servers: built in files, and found there again.
//!
//! Before a tree from a [folder](TreeFolder) is served, each of its nodes is read, and where the nodes are and lead to: see
//! [`fatbtree_blink::verify_at_hand`]. Records are not read: each has a checksum, which its readers check. In a tree with checksums no other
//! damage to a node is taken for a node either.

use std::sync::Arc;

use fatbtree_blink::layers::KeyCode;
use fatbtree_blink::{Keys, Regions, SUPERBLOCK_BYTES, Superblock, verify_at_hand};
use fatbtree_memserver::{Folder, FolderError, FoundRegion, KeptRegion, Storage};
use fatbtree_verbs::Memory;

use crate::load::{Load, LoadCounts, LoadError, LoadOptions, LoadedTree, bulk_load_in};
use crate::tenant::{WalkLimits, classes};
use crate::values::ValueSource;

/// Storage of trees.
pub type TreeStorage = Storage<LoadCounts>;

/// A folder with a tree.
pub type TreeFolder = Folder<LoadCounts>;

/// Errors from building a tree in a storage.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The keys are not fit for a tree, or the memory is not.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The files of the tree.
    #[error(transparent)]
    Folder(#[from] FolderError),
}

/// Builds a tree beside the one that is served, in a region of up to `limit` bytes. Nothing of it is left if it is not
/// [kept](Storage::keep).
///
/// # Errors
/// See [`BuildError`].
pub fn build_in<S: ValueSource>(
    storage: &mut TreeStorage,
    options: &LoadOptions,
    limit: u64,
    load: Load<'_, S>,
) -> Result<LoadedTree, BuildError> {
    let within = |bytes| match bytes <= limit {
        true => Ok(bytes),
        false => Err(LoadError::OverLimit { bytes, limit }),
    };
    let TreeStorage::Folder(folder) = storage else {
        let anonymous =
            |bytes| Memory::anonymous(within(bytes)?).map_err(|_| LoadError::OutOfMemory { bytes });
        return Ok(bulk_load_in(options, load, anonymous)?);
    };
    let generation = options.generation;
    folder.begin(generation)?;
    let mut trouble = None;
    let memory = |bytes| {
        let bytes = within(bytes)?;
        let room = bytes.saturating_sub(options.spare_bytes);
        folder.new_region(generation, bytes, room).map_err(|error| {
            trouble = Some(error);
            LoadError::OutOfMemory { bytes }
        })
    };
    let built = bulk_load_in(options, load, memory);
    if let Some(error) = trouble {
        return Err(error.into());
    }
    let tree = built?;
    let chunk_classes = Some(folder.fill(generation, &tree.region, &tree.spare)?);
    Ok(LoadedTree { chunk_classes, ..tree })
}

/// The tree that is in a folder, if there is one. Every node is read.
///
/// # Errors
/// When the tree is damaged, or the disk has no room for what the folder has given to clients.
pub fn tree_in(folder: &TreeFolder) -> Result<Option<LoadedTree>, FolderError> {
    let Some(found) = folder.region()? else { return Ok(None) };
    let superblock = Superblock::parse(&found.first_line()?).map_err(|error| found.damaged(error))?;
    let Superblock { partition, mut config, region_bytes, .. } = superblock;
    if config.keys() == Keys::Bytes {
        let mut area = [0; KeyCode::AREA];
        let read = found.region.read(u64::from(SUPERBLOCK_BYTES), &mut area);
        let code = read.ok().and_then(|()| KeyCode::parse_area(&area));
        let none = || found.damaged("what lies behind the superblock is not the code of its keys");
        config = config.with_code(code.ok_or_else(none)?);
    }
    let is = (partition.id, superblock.generation, region_bytes);
    let expected = (folder.owner().partition, found.kept.generation, found.kept.region_bytes);
    if is != expected {
        return Err(found
            .damaged(format_args!("it is partition, generation and bytes {is:?}, expected {expected:?}")));
    }
    let layout = found.layout(classes(&config, &found.kept.counts));
    let memory = Regions::new([(partition.id, Arc::clone(&found.region))]);
    let may_lie = |class, offset, bytes| layout.may_lie(class, offset, bytes);
    verify_at_hand(&memory, &config, partition, may_lie).map_err(|error| found.damaged(error))?;
    let FoundRegion {
        kept: KeptRegion { generation, spare, origin, counts, .. }, region, chunk_classes, ..
    } = found;
    let (chunk_classes, walks) = (Some(chunk_classes), WalkLimits::default());
    Ok(Some(LoadedTree {
        region,
        spare,
        config,
        partition,
        counts,
        generation,
        origin,
        chunk_classes,
        walks,
    }))
}

impl LoadedTree {
    /// Description of the tree's region for a [storage](Storage::keep).
    #[must_use]
    pub fn kept(&self) -> KeptRegion<LoadCounts> {
        KeptRegion {
            generation: self.generation,
            region_bytes: self.region.len(),
            spare: self.spare.clone(),
            origin: self.origin,
            counts: self.counts,
        }
    }
}
