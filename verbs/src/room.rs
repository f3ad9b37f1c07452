//! Room on the disk for memory that lies in a file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::posix_fallocate;

/// A disk without room.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no room on the disk for {bytes} more bytes of {}: {reason}; make room there", .path.display())]
pub struct NoRoom {
    /// The file.
    pub path: PathBuf,
    /// Bytes that it was to have more.
    pub bytes: u64,
    /// What the operating system says.
    pub reason: String,
}

/// How much of a file has its room.
pub(crate) struct Room {
    file: File,
    path: PathBuf,
    /// Bytes from its beginning on.
    bytes: AtomicU64,
}

impl Room {
    /// Nothing has its room as far as is known.
    pub(crate) fn new(path: &Path, file: File) -> Self {
        Self { file, path: path.to_owned(), bytes: AtomicU64::new(0) }
    }

    /// Bytes that have their room.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Gets room for the first `to` bytes.
    pub(crate) fn reserve(&self, to: u64) -> Result<(), NoRoom> {
        let from = self.bytes();
        if to <= from {
            return Ok(());
        }
        let refuse = |reason: String| NoRoom { path: self.path.clone(), bytes: to - from, reason };
        let (Ok(at), Ok(len)) = (i64::try_from(from), i64::try_from(to - from)) else {
            return Err(refuse("so long no file can be".to_owned()));
        };
        posix_fallocate(&self.file, at, len).map_err(|errno| refuse(errno.desc().to_owned()))?;
        self.bytes.fetch_max(to, Ordering::Relaxed);
        Ok(())
    }
}
