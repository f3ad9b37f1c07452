//! `sums-7`: checksums of a region's files, from a server that has stopped until it starts again.
//!
//! While a server runs, clients change its region without its help, so no checksum of the whole can be kept. When it has stopped, nothing
//! changes any more: then each part of `tree-7` and `chunks-7` gets one. The next start compares all of them before anything is read, and
//! removes the file: from then on it would be wrong. So each bit that a disk, or a copy, has changed between a stop and a start is found,
//! whatever structure lies there. After a process was killed there is no such file, and the structure's own checks are all there is.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fatbtree_verbs::journal::Disk;

use super::state::{replace, sync_names};
use super::{CHUNKS, FolderError, SUMS, TREE, failed};

/// Bytes of a file with one checksum.
const PART: usize = 64 << 10;

/// Begins the file.
const MAGIC: [u8; 8] = *b"fbtsums1";

/// A folder whose server stops.
#[derive(Clone, Debug)]
pub struct Seal {
    folder: PathBuf,
    disk: Arc<dyn Disk>,
}

impl Seal {
    pub(super) fn new(folder: &Path, disk: &Arc<dyn Disk>) -> Self {
        Self { folder: folder.to_owned(), disk: Arc::clone(disk) }
    }

    /// Writes checksums of the region of a generation, which nothing changes any more, and waits until they are on the disk.
    ///
    /// # Errors
    /// When the disk fails. Without checksums the next start checks less.
    pub fn write(&self, generation: u64) -> Result<(), FolderError> {
        let (sums, name) = (self.sums(generation)?, format!("{SUMS}-{generation}"));
        // A machine that fails meanwhile leaves all of it, or nothing.
        replace(&*self.disk, &self.folder, (&format!("{name}.new"), &name), &sums)
    }

    /// Compares the files with their checksums, if the server has stopped cleanly, and removes these.
    pub(super) fn check(&self, generation: u64) -> Result<(), FolderError> {
        let path = self.file(SUMS, generation);
        let known = match fs::read(&path) {
            Ok(known) => known,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(&path, "reading it")(error)),
        };
        let body = known.strip_prefix(&MAGIC).and_then(|rest| rest.split_last_chunk::<4>());
        let body = body.filter(|(body, sum)| crc32fast::hash(body) == u32::from_le_bytes(**sum));
        if body.is_none() {
            return Err(FolderError::Damaged { path, reason: "it does not match its checksum".to_owned() });
        }
        let found = self.sums(generation)?;
        if found != known {
            return Err(self.difference(generation, &known, &found));
        }
        self.disk.remove(&path).map_err(failed(&path, "removing it"))?;
        // Before anything changes: a machine that fails must not bring the file back beside a newer region.
        sync_names(&*self.disk, &self.folder)
    }

    /// The file: for each of the two its length and a checksum of each part; then a checksum of all that.
    fn sums(&self, generation: u64) -> Result<Vec<u8>, FolderError> {
        let mut all = MAGIC.to_vec();
        for kind in [TREE, CHUNKS] {
            let path = self.file(kind, generation);
            let (len, parts) = parts(&path).map_err(failed(&path, "reading it"))?;
            all.extend_from_slice(&len.to_le_bytes());
            parts.iter().for_each(|sum| all.extend_from_slice(&sum.to_le_bytes()));
        }
        let sum = crc32fast::hash(&all[MAGIC.len()..]);
        all.extend_from_slice(&sum.to_le_bytes());
        Ok(all)
    }

    /// Says what of which file is not as it was.
    fn difference(&self, generation: u64, known: &[u8], found: &[u8]) -> FolderError {
        let mut at = MAGIC.len();
        for kind in [TREE, CHUNKS] {
            let path = self.file(kind, generation);
            let length = |sums: &[u8]| {
                sums.get(at..).and_then(|rest| rest.first_chunk()).map(|len| u64::from_le_bytes(*len))
            };
            let (was, is) = (length(known), length(found));
            let (Some(was), Some(is)) = (was, is) else { break };
            if was != is {
                let reason = format!("it has {is} bytes, and had {was} when the server stopped");
                return FolderError::Damaged { path, reason };
            }
            at += 8;
            let end = at + 4 * (is as usize).div_ceil(PART);
            let differs = (at..end).step_by(4).position(|at| known.get(at..at + 4) != found.get(at..at + 4));
            if let Some(part) = differs {
                let (from, to) = (part * PART, ((part + 1) * PART).min(is as usize));
                let reason = format!("bytes {from} to {to} are not what they were when the server stopped");
                return FolderError::Damaged { path, reason };
            }
            at = end;
        }
        FolderError::Damaged { path: self.file(SUMS, generation), reason: "it is of other files".to_owned() }
    }

    fn file(&self, kind: &str, generation: u64) -> PathBuf {
        self.folder.join(format!("{kind}-{generation}"))
    }
}

/// Length of a file, and checksums of its parts.
fn parts(path: &Path) -> io::Result<(u64, Vec<u32>)> {
    let (mut file, mut part) = (File::open(path)?, vec![0; PART]);
    let (mut len, mut sums) = (0, Vec::new());
    loop {
        let mut filled = 0;
        while filled < PART {
            match file.read(&mut part[filled..])? {
                0 => break,
                read => filled += read,
            }
        }
        if filled == 0 {
            return Ok((len, sums));
        }
        len += filled as u64;
        sums.push(crc32fast::hash(&part[..filled]));
    }
}
