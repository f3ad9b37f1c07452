//! Room on the disk for memory that lies in a file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::posix_fallocate;

/// A disk without room.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no room on the disk for {bytes} more bytes of {}: {reason}; make room there", .path.display())]
pub struct NoRoom {
    /// The file.
    pub path: PathBuf,
    /// Number of additional bytes that were to be reserved.
    pub bytes: u64,
    /// The operating system's error.
    pub reason: String,
}

/// Reasons for which no room on the disk can be reserved for memory in a file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReserveError {
    /// The disk, or the quota of its user, is full.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// Anything else, such as a limit on the length of files or a device that fails.
    #[error("the disk gives no room for {bytes} more bytes of {}, though it is not full: {reason}; look at the disk and the limits of this process", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Number of additional bytes that were to be reserved.
        bytes: u64,
        /// The operating system's error.
        reason: String,
    },
}

/// Reserved part of a file.
pub(crate) struct Room {
    file: File,
    path: PathBuf,
    /// Number of reserved bytes, from the beginning of the file on.
    bytes: AtomicU64,
}

impl Room {
    /// File of which no room is known to be reserved.
    pub(crate) fn new(path: &Path, file: File) -> Self {
        Self { file, path: path.to_owned(), bytes: AtomicU64::new(0) }
    }

    /// Number of reserved bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Reserves room for the first `to` bytes.
    pub(crate) fn reserve(&self, to: u64) -> Result<(), ReserveError> {
        let from = self.bytes();
        if to <= from {
            return Ok(());
        }
        reserve(&self.path, &self.file, from, to)?;
        self.bytes.fetch_max(to, Ordering::Relaxed);
        Ok(())
    }
}

/// Reserves room for the bytes `from..to` of the file at `path`.
pub(crate) fn reserve(path: &Path, file: &File, from: u64, to: u64) -> Result<(), ReserveError> {
    let (path, bytes) = (path.to_owned(), to - from);
    let (Ok(at), Ok(len)) = (i64::try_from(from), i64::try_from(bytes)) else {
        let reason = "so long no file can be".to_owned();
        return Err(ReserveError::Io { path, bytes, reason });
    };
    uninterrupted(|| posix_fallocate(file, at, len)).map_err(|errno| {
        let reason = errno.desc().to_owned();
        match errno {
            Errno::ENOSPC | Errno::EDQUOT => NoRoom { path, bytes, reason }.into(),
            _ => ReserveError::Io { path, bytes, reason },
        }
    })
}

/// Repeats a system call that a signal has broken off.
fn uninterrupted(mut call: impl FnMut() -> nix::Result<()>) -> nix::Result<()> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_full_disk_is_called_full() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "").unwrap();
        // It cannot be written to.
        let room = Room::new(&path, File::open(&path).unwrap());
        let error = room.reserve(4096).unwrap_err();
        assert!(matches!(&error, ReserveError::Io { bytes: 4096, .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(Errno::EBADF.desc()) && text.contains(&path.display().to_string()), "{text}");
        assert!(text.contains("not full") && room.bytes() == 0, "{text}");
        let error = room.reserve(u64::MAX).unwrap_err();
        assert!(matches!(error, ReserveError::Io { .. }), "{error:?}");
    }

    #[test]
    fn a_call_that_a_signal_has_broken_off_is_made_again() {
        let mut left = 3;
        let mut call = |last| {
            uninterrupted(|| {
                left -= 1;
                if left > 0 { Err(Errno::EINTR) } else { last }
            })
        };
        assert_eq!(call(Ok(())), Ok(()));
        assert_eq!(call(Err(Errno::EIO)), Err(Errno::EIO));
    }
}
