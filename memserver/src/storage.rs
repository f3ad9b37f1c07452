//! Storage of regions: in memory or in a folder.

use crate::folder::{Counts, Folder, FolderError, KeptRegion, MomentsFile, Seal};

/// Storage of regions, for a structure that counts `C` when it is loaded.
#[derive(Debug)]
pub enum Storage<C> {
    /// In memory, as long as the process lives.
    Memory,
    /// In files that outlive it.
    Folder(Box<Folder<C>>),
}

impl<C: Counts> Storage<C> {
    /// Keeps this region: from now on a restarted server serves it. When it is served, [`settle`](Self::settle)
    /// follows; when it is not, [`go_back`](Self::go_back).
    ///
    /// # Errors
    /// When it cannot be written down. Perhaps it stands there all the same, where only the last sync has failed: go back then, too.
    pub fn keep(&mut self, kept: KeptRegion<C>) -> Result<(), FolderError> {
        match self {
            Self::Memory => Ok(()),
            Self::Folder(folder) => folder.keep(kept),
        }
    }

    /// Files of a run of the server: its moments, and the checksums of its end. `None`: nothing outlives the process.
    #[must_use]
    pub fn run(&self) -> Option<(MomentsFile, Seal)> {
        match self {
            Self::Memory => None,
            Self::Folder(folder) => Some((folder.moments(), folder.seal())),
        }
    }

    /// The region that was kept last is served: forgets all others.
    pub fn settle(&mut self) {
        if let Self::Folder(folder) = self {
            folder.settle();
        }
    }

    /// Forgets all regions but the one that was kept last and the one that is served.
    pub fn forget_others(&mut self) {
        if let Self::Folder(folder) = self {
            folder.forget_others();
        }
    }

    /// Goes back to the region that is served, if another one was kept meanwhile, as when the device has refused that one.
    ///
    /// # Errors
    /// When that cannot be written down. Both regions stay in their files then, and [`Folder::begin`] tries again.
    pub fn go_back(&mut self) -> Result<(), FolderError> {
        match self {
            Self::Memory => Ok(()),
            Self::Folder(folder) => folder.go_back(),
        }
    }
}
