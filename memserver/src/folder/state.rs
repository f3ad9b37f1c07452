//! `state.json`: the owner of a folder, the region that is kept in it, and its leftovers.
//!
//! The file is written before any file of a new region is made. So it names every region's files, as those of the kept one or as
//! leftovers. A file that it does not name was put there by another program, and is never touched.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use fatbtree_remote_memory::{MAX_OFFSET, Origin};
use fatbtree_verbs::journal::Disk;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{FolderError, FolderOwner, KeptRegion, failed};

/// Counts of a structure when it is loaded: named numbers, which `state.json` keeps beside those of the region.
pub trait Counts: Clone + Eq + std::fmt::Debug + Serialize + DeserializeOwned {
    /// Name of the structure, for people: `tree`. A folder with another one is refused.
    const STRUCTURE: &'static str;
}

/// Structure of a folder whose `state.json` names none: those that were written before there were others.
const FIRST_STRUCTURE: &str = "tree";

fn first_structure() -> String {
    FIRST_STRUCTURE.to_owned()
}

fn is_first_structure(structure: &str) -> bool {
    structure == FIRST_STRUCTURE
}

/// The version of files and layouts in them.
pub(super) const FORMAT: u32 = 4;

const STATE: &str = "state.json";
const NEW_STATE: &str = "state.json.new";
const FORMER_STATE: &str = "state.json.former";

/// State of a folder.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, bound = "C: Counts")]
pub(super) struct State<C> {
    /// [`Counts::STRUCTURE`]. It is left out where it is a tree, as in older files.
    #[serde(default = "first_structure", skip_serializing_if = "is_first_structure")]
    pub(super) structure: String,
    pub(super) owner: FolderOwner,
    pub(super) chunk_bytes: u64,
    /// Region that was kept last; `None` until the first one is kept.
    pub(super) tree: Option<RegionState<C>>,
    /// Generations whose files may be removed: of regions that were not kept, or not any more.
    pub(super) leftovers: BTreeSet<u64>,
}

/// The region that was kept last. A field that is not known is found by the checksum, which does not cover it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(bound = "C: Counts")]
pub(super) struct RegionState<C> {
    pub(super) generation: u64,
    pub(super) region_bytes: u64,
    /// Begin and end of its chunks.
    pub(super) spare_from: u64,
    pub(super) spare_to: u64,
    #[serde(flatten)]
    pub(super) counts: C,
    /// See [`Origin`].
    pub(super) is_meant: bool,
}

impl<C> From<KeptRegion<C>> for RegionState<C> {
    fn from(kept: KeptRegion<C>) -> Self {
        let KeptRegion { generation, region_bytes, spare, origin, counts } = kept;
        let (spare_from, spare_to, is_meant) = (spare.start, spare.end, origin == Origin::Meant);
        Self { generation, region_bytes, spare_from, spare_to, counts, is_meant }
    }
}

impl<C: Clone> From<&RegionState<C>> for KeptRegion<C> {
    fn from(state: &RegionState<C>) -> Self {
        Self {
            generation: state.generation,
            region_bytes: state.region_bytes,
            spare: state.spare_from..state.spare_to,
            origin: if state.is_meant { Origin::Meant } else { Origin::Begun },
            counts: state.counts.clone(),
        }
    }
}

impl<C> RegionState<C> {
    /// Whether its numbers go together.
    fn can_be(&self) -> bool {
        self.spare_from <= self.spare_to
            && self.spare_to <= self.region_bytes
            && self.region_bytes <= MAX_OFFSET
    }
}

/// The file: the state, and a checksum over its shortest spelling.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, bound = "C: Counts")]
struct Sealed<C> {
    format: u32,
    crc32: u32,
    state: State<C>,
}

/// All that older and newer versions have in common.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

/// Checksum of the state in a file, whatever structure it is of: over its shortest spelling, which is the file's without spaces.
fn sum_of_text(text: &[u8]) -> Option<u32> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let is_kept = |byte: &u8| {
        let is_space = byte.is_ascii_whitespace() && !is_quoted;
        is_quoted ^= *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        !is_space
    };
    let short: Vec<u8> = text.iter().copied().filter(is_kept).collect();
    let begin = b"\"state\":";
    let from = short.windows(begin.len()).position(|part| part == begin)? + begin.len();
    let state = short.get(from..)?.strip_suffix(b"}")?;
    Some(crc32fast::hash(state))
}

/// All that the files of different structures have in common.
#[derive(Deserialize)]
struct Named {
    crc32: u32,
    state: NamedState,
}

#[derive(Deserialize)]
struct NamedState {
    #[serde(default = "first_structure")]
    structure: String,
}

impl<C: Counts> State<C> {
    /// Reads the file; `None` if there is none.
    pub(super) fn read(folder: &Path) -> Result<Option<Self>, FolderError> {
        let path = folder.join(STATE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&path, "reading it")(error)),
        };
        let damaged = |reason: String| FolderError::Damaged { path: path.clone(), reason };
        let version = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()));
        let Version { format } = version?;
        if format != FORMAT {
            return Err(FolderError::Format { path, found: format });
        }
        if let Ok(Named { crc32, state: NamedState { structure: found } }) = serde_json::from_slice(&text)
            && found != C::STRUCTURE
        {
            // A name with a flipped bit is no other structure's.
            if sum_of_text(&text) != Some(crc32) {
                return Err(damaged("it does not match its checksum".to_owned()));
            }
            let path = folder.to_owned();
            return Err(FolderError::Structure { path, found, expected: C::STRUCTURE });
        }
        let sealed = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()));
        let Sealed::<C> { crc32, state, .. } = sealed?;
        match (state.sum() == crc32, state.tree.as_ref().is_none_or(RegionState::can_be)) {
            (true, true) => Ok(Some(state)),
            (false, _) => Err(damaged("it does not match its checksum".to_owned())),
            (true, false) => Err(damaged("its tree's chunks are not inside of its region".to_owned())),
        }
    }

    /// Replaces the file: a process that is killed meanwhile leaves the old one or the new one. A machine that dies may bring the old one
    /// back until the [names are synced](sync_names).
    pub(super) fn write(&self, disk: &dyn Disk, folder: &Path) -> Result<(), FolderError> {
        self.write_as(disk, folder, NEW_STATE)?;
        become_state(disk, folder, NEW_STATE)
    }

    /// Lays a copy beside the file, with its room on the disk, for [`State::restore`].
    pub(super) fn set_aside(&self, disk: &dyn Disk, folder: &Path) -> Result<(), FolderError> {
        self.write_as(disk, folder, FORMER_STATE)
    }

    /// Replaces the file by the copy that was set aside. A rename needs no room, so this works on a full disk.
    pub(super) fn restore(disk: &dyn Disk, folder: &Path) -> Result<(), FolderError> {
        become_state(disk, folder, FORMER_STATE)
    }

    /// Removes the copy that was set aside, if there is one. One that stays does no harm: it is never read.
    pub(super) fn drop_copy(disk: &dyn Disk, folder: &Path) {
        let _ = disk.remove(&folder.join(FORMER_STATE));
    }

    fn write_as(&self, disk: &dyn Disk, folder: &Path, name: &str) -> Result<(), FolderError> {
        let sealed = Sealed { format: FORMAT, crc32: self.sum(), state: self.clone() };
        let text = serde_json::to_vec_pretty(&sealed).expect("it is numbers and a name");
        write_file(disk, &folder.join(name), &text)
    }

    fn sum(&self) -> u32 {
        crc32fast::hash(&serde_json::to_vec(self).expect("it is numbers and a name"))
    }
}

fn become_state(disk: &dyn Disk, folder: &Path, name: &str) -> Result<(), FolderError> {
    let path = folder.join(STATE);
    disk.rename(&folder.join(name), &path).map_err(failed(&path, "replacing it"))
}

/// Writes a file, and brings its content to the disk.
fn write_file(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<(), FolderError> {
    let written = disk.open(path, true).and_then(|file| {
        disk.write(path, &file, 0, bytes)?;
        disk.sync(path, &file)
    });
    written.map_err(failed(path, "writing it"))
}

/// Replaces a file by a `new` one of this content, and waits until that is on the disk. A process that is killed meanwhile, or a machine that
/// fails, leaves the old one or the new one.
pub(super) fn replace(
    disk: &dyn Disk,
    folder: &Path,
    (new, name): (&str, &str),
    bytes: &[u8],
) -> Result<(), FolderError> {
    let (new, path) = (folder.join(new), folder.join(name));
    write_file(disk, &new, bytes)?;
    disk.rename(&new, &path).map_err(failed(&path, "replacing it"))?;
    sync_names(disk, folder)
}

/// Brings the names of a folder's files to the disk, and waits until they are there.
pub(super) fn sync_names(disk: &dyn Disk, folder: &Path) -> Result<(), FolderError> {
    disk.sync_names(folder).map_err(failed(folder, "syncing it"))
}
