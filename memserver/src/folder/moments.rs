//! `moments.json`: the moments of the folder's server, and those that it has heard of others.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fatbtree_verbs::journal::Disk;
use serde::{Deserialize, Serialize};

use super::state::replace;
use super::{FolderError, failed};
use crate::moments::KeptMoments;

const MOMENTS: &str = "moments.json";
const NEW_MOMENTS: &str = "moments.json.new";

/// The file, in a folder that this process has.
#[derive(Debug)]
pub struct MomentsFile {
    folder: PathBuf,
    disk: Arc<dyn Disk>,
}

/// The moments, and a checksum over their shortest spelling.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    crc32: u32,
    moments: KeptMoments,
}

impl MomentsFile {
    pub(super) fn new(folder: &Path, disk: &Arc<dyn Disk>) -> Self {
        Self { folder: folder.to_owned(), disk: Arc::clone(disk) }
    }

    /// `None`: no server has run here yet, or none that knew of moments.
    pub(crate) fn read(&self) -> Result<Option<KeptMoments>, FolderError> {
        let path = self.folder.join(MOMENTS);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&path, "reading it")(error)),
        };
        let damaged = |reason: String| FolderError::Damaged { path: path.clone(), reason };
        let sealed = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()));
        let Sealed { crc32, moments } = sealed?;
        match sum(&moments) == crc32 {
            true => Ok(Some(moments)),
            false => Err(damaged("it does not match its checksum".to_owned())),
        }
    }

    /// Replaces the file, and waits until it is on the disk.
    pub(crate) fn write(&self, moments: &KeptMoments) -> Result<(), FolderError> {
        let sealed = Sealed { crc32: sum(moments), moments: moments.clone() };
        let text = serde_json::to_vec(&sealed).expect("it is numbers");
        replace(&*self.disk, &self.folder, (NEW_MOMENTS, MOMENTS), &text)
    }
}

fn sum(moments: &KeptMoments) -> u32 {
    crc32fast::hash(&serde_json::to_vec(moments).expect("it is numbers"))
}
