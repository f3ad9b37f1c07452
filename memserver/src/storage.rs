//! Storage for the memory of trees.

use fatbtree_verbs::Memory;

use crate::blink::load::{LoadError, LoadOptions, LoadedTree, bulk_load_in};
use crate::blink::values::ValueSource;
use crate::folder::{Folder, FolderError};

/// Storage of regions.
#[derive(Debug)]
pub enum Storage {
    /// In memory, as long as the process lives.
    Memory,
    /// In files that outlive it.
    Folder(Box<Folder>),
}

/// No tree.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The keys are not fit for it, or the memory.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Its files.
    #[error(transparent)]
    Folder(#[from] FolderError),
}

impl Storage {
    /// Builds a tree beside the one that is served, in a region of up to `limit` bytes. Nothing of it is left if it is not
    /// [kept](Self::keep).
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn build<S: ValueSource>(
        &mut self,
        options: &LoadOptions,
        limit: u64,
        keys: &[u64],
        values: &mut S,
    ) -> Result<LoadedTree, BuildError> {
        let within = |bytes| match bytes <= limit {
            true => Ok(bytes),
            false => Err(LoadError::OverLimit { bytes, limit }),
        };
        let anonymous =
            |bytes| Memory::anonymous(within(bytes)?).map_err(|_| LoadError::OutOfMemory { bytes });
        match self {
            Self::Memory => Ok(bulk_load_in(options, keys, values, anonymous)?),
            Self::Folder(folder) => folder.build(options, keys, values, within),
        }
    }

    /// Keeps this tree: from now on a restarted server serves it. When it is served, [`settle`](Self::settle)
    /// follows; when it is not, [`go_back`](Self::go_back).
    ///
    /// # Errors
    /// When it cannot be written down. Perhaps it stands there all the same, where only the last sync has failed: go back then, too.
    pub fn keep(&mut self, tree: &LoadedTree) -> Result<(), FolderError> {
        match self {
            Self::Memory => Ok(()),
            Self::Folder(folder) => folder.keep(tree),
        }
    }

    /// The tree that was kept last is served: forgets all others.
    pub fn settle(&mut self) {
        if let Self::Folder(folder) = self {
            folder.settle();
        }
    }

    /// Forgets all trees but the one that was kept last and the one that is served.
    pub fn forget_others(&mut self) {
        if let Self::Folder(folder) = self {
            folder.forget_others();
        }
    }

    /// Goes back to the tree that is served, if another one was kept meanwhile, as when the device has refused that one.
    ///
    /// # Errors
    /// When that cannot be written down. Both trees stay in their files then, and the next [`build`](Self::build) tries again.
    pub fn go_back(&mut self) -> Result<(), FolderError> {
        match self {
            Self::Memory => Ok(()),
            Self::Folder(folder) => folder.go_back(),
        }
    }
}
