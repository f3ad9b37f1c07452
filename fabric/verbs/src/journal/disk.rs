//! What journals and folders do to files: one trait, so that a test can lose what was not synced.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use crate::room::{ReserveError, reserve};
use crate::time::Instant;

/// File system under data folders. Each method does what the operating system does.
///
/// Nothing is on the disk before [`sync`](Self::sync), and no name is before [`sync_names`](Self::sync_names). A test overrides methods to
/// note, refuse or lose what is done.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Opens a file for reading and writing, which its owner alone may do. `anew`: creates it, or makes it empty.
    ///
    /// # Errors
    /// As the operating system says.
    fn open(&self, path: &Path, anew: bool) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create(anew).truncate(anew).mode(0o600).open(path)
    }

    /// Writes all bytes at an offset of the file at `path`.
    ///
    /// # Errors
    /// As the operating system says.
    fn write(&self, _path: &Path, file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    /// Reserves room for the file's bytes `from..to`. The file has at least `to` bytes afterwards.
    ///
    /// # Errors
    /// When the disk is full, or fails.
    fn reserve(&self, path: &Path, file: &File, from: u64, to: u64) -> Result<(), ReserveError> {
        reserve(path, file, from, to)
    }

    /// Brings a file's content and length to the disk, and waits until they are there.
    ///
    /// # Errors
    /// When the disk fails. What was written before is then lost, perhaps, and a later success says nothing about it.
    fn sync(&self, _path: &Path, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    /// Gives a file another name, in the place of the file that had that name.
    ///
    /// # Errors
    /// As the operating system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// As the operating system says.
    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    /// Brings the names of a folder's files to the disk, and waits until they are there.
    ///
    /// # Errors
    /// When the disk fails.
    fn sync_names(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }

    /// Time of a clock that never goes back.
    fn now(&self) -> Instant;
}

/// The operating system's files.
#[derive(Clone, Copy, Debug)]
pub struct OsDisk {
    began: std::time::Instant,
}

impl Default for OsDisk {
    fn default() -> Self {
        Self { began: std::time::Instant::now() }
    }
}

impl Disk for OsDisk {
    fn now(&self) -> Instant {
        Instant::ZERO + self.began.elapsed().into()
    }
}
