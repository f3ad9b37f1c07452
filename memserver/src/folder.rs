//! A folder that a memory server keeps its region in: a restarted server serves the same structure at the same
//! addresses.
//!
//! ```text
//!   lock         locked by the process that has the folder
//!   state.json   whose it is, which generation is kept, and which are leftovers: replaced as a whole (written, synced, renamed)
//!   state.json.former   what it said before a region was kept that is not served yet: going back to it is a rename
//!   tree-7       the region of generation 7, as far as it was loaded or given out
//!   chunks-7     a word for each chunk that was given out: its class
//!   journal-7    what was changed in both since, in order
//!   sums-7       from a stop until the next start: checksums of tree-7 and chunks-7
//!   moments.json when the server has begun and ended its runs, and what it has heard of others: see `moments`
//! ```
//!
//! **A process that is killed, and a machine that fails,** find the region again as it was at one moment: `tree-7` and `chunks-7` change only
//! when a part of the [journal](fatbtree_verbs::journal) is applied to them, and a start replays the rest. A process that is killed loses
//! nothing that was acknowledged, a machine at most the [interval](Keeping::pace) between two syncs. Free blocks that clients had given back
//! are forgotten, and lost to the structure. Sessions and locks are gone: their clients open new sessions.
//!
//! **An RDMA card** writes the region without the process: [`Keeping::is_written_by_device`]. Then `tree-7` is mapped, and clients write into
//! it. A machine that fails may leave a mixture, because the pages reach the disk in any order.
//!
//! **A file that is not what was written** is refused at the start, by its name. `state.json`, `moments.json`, `journal-7` and every word of
//! `chunks-7` have checksums. A server that stops leaves checksums of all of `tree-7`, which the next start compares. After a process was
//! killed there are none; then the structure checks its content before it is served: a B-link tree reads each of its nodes.
//!
//! **A folder that was replaced by an older copy of itself** is whole. Other servers have heard of a later moment: [`Moments`](crate::Moments)
//! says how that is found before the first session.
//!
//! **A folder that was restored in part** is refused, too: the three files of the generation that `state.json` names must be there, and no
//! files of others. Nothing is removed but what `state.json` calls a leftover.
//!
//! **A disk that is full** refuses loads, and then chunks: what is given to clients has its room before. What is there is served on.
//!
//! **A load that is refused after its region was kept** is undone: the former region's files stay until the new one is served, and so do
//! the new one's while `state.json` names it.

mod keeping;
mod moments;
mod state;
mod sums;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fatbtree_remote_memory::{HEADER_BYTES, Origin, RegionHeader};
use fatbtree_verbs::journal::{Disk, Journal, JournalError, OpenError, Target};
use fatbtree_verbs::{Memory, ReserveError};
use serde::{Deserialize, Serialize};

use crate::chunk::chunk_classes_bytes;
use crate::chunk_classes::{ChunkClasses, MAX_CLASSES};
use crate::layout::{Class, Layout};
use crate::tenant::{Loaded, Shape};
pub use keeping::Keeping;
use keeping::{KeptJournal, free_bytes};
pub use moments::MomentsFile;
pub use state::Counts;
use state::{FORMAT, RegionState, State, sync_names};
pub use sums::Seal;

const LOCK: &str = "lock";

/// Files of a region: the first words of their names.
const KINDS: [&str; 3] = [TREE, CHUNKS, JOURNAL];
const TREE: &str = "tree";
const CHUNKS: &str = "chunks";
const JOURNAL: &str = "journal";
/// Checksums of the others, which need not be there.
const SUMS: &str = "sums";

/// Numbers of the memories in a journal: the places of their files among its targets.
const REGION: u8 = 0;
const CLASSES: u8 = 1;

/// Memory server to which a folder belongs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FolderOwner {
    /// The memory server's name in its cluster file.
    pub server: String,
    /// Its partition.
    pub partition: u16,
    /// Its address on the data path.
    pub address: Ipv4Addr,
}

/// A region that a folder keeps or shall keep, but for its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptRegion<C> {
    /// Number of times that the region was filled: its files are named by it.
    pub generation: u64,
    /// Bytes of the region.
    pub region_bytes: u64,
    /// Offsets of the chunks.
    pub spare: Range<u64>,
    /// Whether the structure is the one that is meant.
    pub origin: Origin,
    /// Counts of the structure when it was loaded.
    pub counts: C,
}

/// A region that was found in a folder. Its structure has not been read yet.
#[derive(Debug)]
pub struct FoundRegion<C> {
    /// Description of the region.
    pub kept: KeptRegion<C>,
    /// The region.
    pub region: Arc<Memory>,
    /// The table of chunk classes.
    pub chunk_classes: Arc<Memory>,
    chunk_bytes: u64,
    path: PathBuf,
}

impl<C> FoundRegion<C> {
    /// A region that was loaded, to be checked as one that was found.
    pub(crate) fn loaded(
        kept: KeptRegion<C>,
        region: Arc<Memory>,
        chunk_classes: Arc<Memory>,
        chunk_bytes: u64,
    ) -> Self {
        Self { kept, region, chunk_classes, chunk_bytes, path: PathBuf::new() }
    }

    /// Places where blocks of these size classes may lie.
    pub fn layout(&self, classes: Vec<Class>) -> Layout {
        Layout {
            classes: classes.into(),
            chunks_from: self.kept.spare.start,
            chunk_bytes: self.chunk_bytes,
            given_out: Some(ChunkClasses::new(Arc::clone(&self.chunk_classes), self.kept.generation)),
        }
    }

    /// The region's first line: its header.
    ///
    /// # Errors
    /// When the region is shorter.
    pub fn first_line(&self) -> Result<[u8; HEADER_BYTES], FolderError> {
        let mut line = [0; HEADER_BYTES];
        self.region.read(0, &mut line).map_err(|out| self.damaged(out))?;
        Ok(line)
    }

    /// Checks what the header says, and where the structure says that chunks begin, against `state.json`.
    ///
    /// # Errors
    /// When they differ.
    pub fn check_header(&self, header: &RegionHeader, spare_from: u64, counts: &C) -> Result<(), FolderError>
    where
        C: PartialEq,
    {
        let is = (header.generation, header.region_bytes, spare_from);
        let expected = (self.kept.generation, self.kept.region_bytes, self.kept.spare.start);
        if is != expected || *counts != self.kept.counts {
            return Err(self.damaged(format_args!(
                "its generation, bytes and first chunk are {is:?}, expected {expected:?}"
            )));
        }
        Ok(())
    }

    /// The region with its checked structure: this is what `server` serves.
    pub fn into_loaded<T>(self, server: u16, shape: Shape, tenant: T) -> Loaded<T> {
        let KeptRegion { generation, spare, origin, .. } = self.kept;
        let (region, chunk_classes) = (self.region, Some(self.chunk_classes));
        Loaded { server, region, spare, generation, origin, chunk_classes, shape, tenant }
    }

    /// Error of a region that is not what was written.
    pub fn damaged(&self, reason: impl fmt::Display) -> FolderError {
        FolderError::Damaged { path: self.path.clone(), reason: reason.to_string() }
    }
}

/// A folder that this process has, with a region of a structure that counts `C` when it is loaded.
#[derive(Debug)]
pub struct Folder<C> {
    path: PathBuf,
    /// Content of `state.json`.
    state: State<C>,
    /// Content of `state.json` before a region was kept that is not served yet: it names the region that is served.
    former: Option<State<C>>,
    keeping: Keeping,
    /// Journals that were opened, by generation.
    journals: Mutex<BTreeMap<u64, KeptJournal>>,
    _lock: File,
}

/// A folder that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The file system.
    #[error("{}: {what}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The attempted action.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// Another process uses the folder.
    #[error("{} is used by another process: stop that memory server first, or name another folder", .path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// Another version.
    #[error(
        "{} has format {found}, expected {FORMAT}: it was written by another version of this program, or is damaged; load into a new folder", .path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// Another structure lies there.
    #[error(
        "{} holds a structure of kind {found:?}, not {expected:?}: start the server with --structure {found}, or name another folder", .path.display()
    )]
    Structure {
        /// The folder.
        path: PathBuf,
        /// Kind of its structure.
        found: String,
        /// Kind that the server is started with.
        expected: &'static str,
    },
    /// The folder belongs to another server.
    #[error(
        "{} belongs to memory server {} (partition {}, {}), not to {} (partition {}, {}): name another folder", .path.display(), .found.server,
        .found.partition, .found.address, .expected.server, .expected.partition, .expected.address
    )]
    Owner {
        /// The folder.
        path: PathBuf,
        /// The server to which it belongs.
        found: Box<FolderOwner>,
        /// The server that opens the folder.
        expected: Box<FolderOwner>,
    },
    /// Chunks of another size.
    #[error("{} was made with chunks of {found} bytes, this server's have {expected}: load into a new folder", .path.display())]
    Chunks {
        /// The folder.
        path: PathBuf,
        /// Bytes of its chunks.
        found: u64,
        /// Bytes of the server's.
        expected: u64,
    },
    /// Some of its files are not there, or others are.
    #[error(
        "{} cannot be used: {reason}. It was restored in part, perhaps: restore all of its files, of one moment, or name another folder; \
         nothing in it was changed", .path.display()
    )]
    Partial {
        /// The folder.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// A file does not get its room: the disk is full, or fails.
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    /// The disk has failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A region that is to be filled has the generation of the one that is served.
    #[error("{} holds a tree of generation {generation}, which is served: build one of another generation", .path.display())]
    Served {
        /// The folder.
        path: PathBuf,
        /// The generation.
        generation: u64,
    },
    /// A file is not what was written.
    #[error(
        "{} is damaged: {reason}; starting again is of no use: restore the folders of all memory servers from copies of one moment, or move the \
         folder away and load anew", .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
}

impl<C: Counts> Folder<C> {
    /// Opens a folder as [`open_with`](Self::open_with) does, with the default way of keeping: no thread, and no sync before a stop.
    ///
    /// # Errors
    /// As [`open_with`](Self::open_with).
    pub fn open(path: &Path, owner: FolderOwner, chunk_bytes: u64) -> Result<Self, FolderError> {
        Self::open_with(path, owner, chunk_bytes, Keeping::default())
    }

    /// Makes the folder if it is not there, and locks it. `chunk_bytes`: as in [`ServerOptions`](crate::ServerOptions).
    ///
    /// # Errors
    /// When another process uses it, or it is another server's or version's, or damaged.
    pub fn open_with(
        path: &Path,
        owner: FolderOwner,
        chunk_bytes: u64,
        keeping: Keeping,
    ) -> Result<Self, FolderError> {
        let at = |name: &str| path.join(name);
        make_folder(&*keeping.disk, path)?;
        let lock = private().create(true).truncate(false).write(true).open(at(LOCK));
        let lock = lock.map_err(failed(&at(LOCK), "opening it"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(FolderError::InUse { path: path.to_owned() }),
            Err(fs::TryLockError::Error(source)) => return Err(failed(&at(LOCK), "locking it")(source)),
        }
        let known = State::read(path)?;
        if let Some(State { owner: found, chunk_bytes: chunks, .. }) = &known {
            let path = path.to_owned();
            if *found != owner {
                return Err(FolderError::Owner { path, found: found.clone().into(), expected: owner.into() });
            }
            if *chunks != chunk_bytes {
                return Err(FolderError::Chunks { path, found: *chunks, expected: chunk_bytes });
            }
        }
        whole(path, known.as_ref())?;
        let state = known.unwrap_or_else(|| State {
            structure: C::STRUCTURE.to_owned(),
            owner,
            chunk_bytes,
            tree: None,
            leftovers: BTreeSet::new(),
        });
        let path = path.to_owned();
        let journals = Mutex::default();
        let mut folder = Self { path, state, former: None, keeping, journals, _lock: lock };
        folder.forget_others();
        Ok(folder)
    }

    /// The region that is in the folder, if there is one. Its structure is not checked here.
    ///
    /// # Errors
    /// When its files are damaged, or the disk has no room for what it has given to clients.
    pub fn region(&self) -> Result<Option<FoundRegion<C>>, FolderError> {
        let Some(state) = &self.state.tree else { return Ok(None) };
        let (kept, chunk_bytes) = (KeptRegion::from(state), self.state.chunk_bytes);
        let (generation, spare) = (kept.generation, &kept.spare);
        self.seal().check(generation)?;
        let path = self.file(TREE, generation);
        let words = Arc::new(self.chunk_classes(spare, generation, false)?);
        let journal = self.open_journal(generation, kept.region_bytes, words.len())?;
        let file = self.open_file(&path, false)?;
        let len = file.metadata().map_err(failed(&path, "asking for its length"))?.len();
        let classes = ChunkClasses::new(Arc::clone(&words), generation);
        let chunks = u32::try_from((spare.end - spare.start) / chunk_bytes.max(1)).unwrap_or(u32::MAX);
        let given_out = classes.given_out(chunks, MAX_CLASSES).map_err(|error| FolderError::Damaged {
            path: self.file(CHUNKS, generation),
            reason: error.to_string(),
        })?;
        let room = bytes_before_chunks(&kept) + given_out.len() as u64 * chunk_bytes;
        if len < room {
            let reason = format!("it has {len} bytes, {room} were written");
            return Err(FolderError::Damaged { path, reason });
        }
        // A copy of the file may have holes where zeros were.
        let region = self.map(&path, file, kept.region_bytes, room)?;
        self.note_in(&journal, &region, &words, generation)?;
        let region = region.into();
        Ok(Some(FoundRegion { kept, region, chunk_classes: words, chunk_bytes, path }))
    }

    /// The file with the moments of the folder's server.
    pub fn moments(&self) -> MomentsFile {
        MomentsFile::new(&self.path, &self.keeping.disk)
    }

    /// What the server needs to leave checksums when it stops.
    pub fn seal(&self) -> Seal {
        Seal::new(&self.path, &self.keeping.disk)
    }

    /// Memory server to which the folder belongs.
    pub fn owner(&self) -> &FolderOwner {
        &self.state.owner
    }

    /// Prepares the folder for a region of another generation. From now on a process that is killed leaves files that `state.json` names.
    ///
    /// # Errors
    /// When the generation is the one that is served, or the file system fails.
    pub fn begin(&mut self, generation: u64) -> Result<(), FolderError> {
        // A region that was kept and refused gives its generation back first, or nothing is built: a restart would serve its files.
        self.go_back()?;
        if self.state.tree.as_ref().is_some_and(|tree| tree.generation == generation) {
            return Err(FolderError::Served { path: self.path.clone(), generation });
        }
        let mut state = self.state.clone();
        state.leftovers.insert(generation);
        self.write(state)
    }

    /// A new region of a generation for which the folder was [prepared](Self::begin). Its first `room` bytes have their room on the disk
    /// before they are written: loaded data, and the padding, which an index read may reach.
    ///
    /// # Errors
    /// When the file system fails, or the disk is full.
    pub fn new_region(&self, generation: u64, bytes: u64, room: u64) -> Result<Memory, FolderError> {
        let path = self.file(TREE, generation);
        let file = self.open_file(&path, true)?;
        let memory = self.map(&path, file, bytes, room)?;
        let half = Journal::half_for(bytes, free_bytes(&self.path)?);
        let journal = self.file(JOURNAL, generation);
        Journal::create(self.disk(), &journal, half, generation)
            .map_err(|error| not_opened(&journal, error))?;
        Ok(memory)
    }

    /// Brings a filled region to the disk, and makes its table of chunk classes. From now on the journal notes what is changed in both.
    ///
    /// # Errors
    /// When the file system fails, or the disk is full.
    pub fn fill(
        &self,
        generation: u64,
        region: &Memory,
        spare: &Range<u64>,
    ) -> Result<Arc<Memory>, FolderError> {
        let classes = self.chunk_classes(spare, generation, true)?;
        for kind in [CHUNKS, TREE] {
            let path = self.file(kind, generation);
            let file = self.open_file(&path, false)?;
            self.disk().sync(&path, &file).map_err(failed(&path, "writing it"))?;
        }
        // Before any state.json names these files as the region's.
        sync_names(self.disk(), &self.path)?;
        let journal = self.open_journal(generation, region.len(), classes.len())?;
        self.note_in(&journal, region, &classes, generation)?;
        Ok(classes.into())
    }

    pub(crate) fn keep(&mut self, kept: KeptRegion<C>) -> Result<(), FolderError> {
        // The first region of a folder is served from now on: there is no other.
        if self.former.is_none() && self.state.tree.is_some() {
            self.state.set_aside(self.disk(), &self.path)?;
            self.former = Some(self.state.clone());
        }
        let mut state = self.state.clone();
        let generation = kept.generation;
        self.sync_notes(generation)?;
        let former = state.tree.replace(kept.into());
        state.leftovers.extend(former.map(|former| former.generation));
        // Last: the region may have been kept before.
        state.leftovers.remove(&generation);
        self.write(state)
    }

    pub(crate) fn go_back(&mut self) -> Result<(), FolderError> {
        let Some(former) = self.former.clone() else { return Ok(()) };
        match State::<C>::restore(self.disk(), &self.path) {
            Ok(()) => {
                self.state = former;
                sync_names(self.disk(), &self.path)?;
            }
            // The copy is gone, perhaps because this is the second try.
            Err(_) => self.write(former)?,
        }
        self.former = None;
        Ok(())
    }

    pub(crate) fn settle(&mut self) {
        self.former = None;
        self.forget_others();
    }

    /// Removes the files of leftovers, except those of the region that is served. What cannot be removed is removed the next time.
    pub(crate) fn forget_others(&mut self) {
        let served = self.former.as_ref().and_then(|former| former.tree.as_ref()).map(|tree| tree.generation);
        if self.former.is_none() {
            State::<C>::drop_copy(self.disk(), &self.path);
        }
        let mut state = self.state.clone();
        state.leftovers.retain(|&generation| {
            if served == Some(generation) {
                return true;
            }
            self.journals().remove(&generation);
            let kinds = KINDS.into_iter().chain([SUMS]);
            let removed = kinds.map(|kind| self.disk().remove(&self.file(kind, generation)));
            let left = removed.filter_map(Result::err);
            let mut left = left.filter(|error| error.kind() != io::ErrorKind::NotFound);
            let error = left.next();
            if let Some(error) = &error {
                tracing::warn!(folder = %self.path.display(), generation, %error, "a former tree was not removed");
            }
            error.is_some()
        });
        // A file that is there again after a power failure must still be called a leftover.
        if state != self.state
            && let Err(error) = sync_names(self.disk(), &self.path).and_then(|()| self.write(state))
        {
            tracing::warn!(%error, "it is not written down that a former tree was removed");
        }
    }

    fn write(&mut self, state: State<C>) -> Result<(), FolderError> {
        state.write(self.disk(), &self.path)?;
        // The new file is there, whether or not it outlives the machine.
        self.state = state;
        sync_names(self.disk(), &self.path)
    }

    fn file(&self, kind: &str, generation: u64) -> PathBuf {
        self.path.join(format!("{kind}-{generation}"))
    }

    fn open_file(&self, path: &Path, anew: bool) -> Result<File, FolderError> {
        self.disk().open(path, anew).map_err(failed(path, "opening it"))
    }

    fn disk(&self) -> &dyn Disk {
        &*self.keeping.disk
    }

    fn journals(&self) -> MutexGuard<'_, BTreeMap<u64, KeptJournal>> {
        self.journals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A region, and the first `room` bytes of it reserved.
    fn map(&self, path: &Path, file: File, bytes: u64, room: u64) -> Result<Memory, FolderError> {
        let memory = Memory::file(path, file, bytes).map_err(failed(path, "mapping it"))?;
        memory.reserve(room)?;
        Ok(memory)
    }

    /// Opens the journal of a region, which brings the region's files to the state that it holds.
    fn open_journal(
        &self,
        generation: u64,
        region_bytes: u64,
        classes_bytes: u64,
    ) -> Result<Arc<Journal>, FolderError> {
        // One that was opened before has written everything when it is dropped.
        self.journals().remove(&generation);
        let mut targets = Vec::new();
        for (kind, len) in [(TREE, region_bytes), (CHUNKS, classes_bytes)] {
            let path = self.file(kind, generation);
            let file = self.open_file(&path, false)?;
            targets.push(Target { path, file, len });
        }
        let Keeping { disk, pace, .. } = &self.keeping;
        let path = self.file(JOURNAL, generation);
        let opened = Journal::open(disk, &path, generation, targets, *pace);
        opened.map_err(|error| not_opened(&path, error))
    }

    /// Has the journal note changes of both memories from now on, unless a device writes them.
    fn note_in(
        &self,
        journal: &Arc<Journal>,
        region: &Memory,
        classes: &Memory,
        generation: u64,
    ) -> Result<(), FolderError> {
        if self.keeping.is_written_by_device {
            return Ok(());
        }
        for (memory, number, kind) in [(region, REGION, TREE), (classes, CLASSES, CHUNKS)] {
            memory.journalled(journal, number).map_err(failed(&self.file(kind, generation), "mapping it"))?;
        }
        let kept = KeptJournal::new(journal, self.keeping.has_threads);
        self.journals().insert(generation, kept.map_err(failed(&self.path, "starting a journal's threads"))?);
        Ok(())
    }

    /// Brings to the disk what was noted since a region was [filled](Self::fill).
    fn sync_notes(&self, generation: u64) -> Result<(), FolderError> {
        if let Some(kept) = self.journals().get(&generation) {
            return Ok(kept.journal.commit().and_then(|()| kept.journal.sync())?);
        }
        let path = self.file(CHUNKS, generation);
        let file = self.open_file(&path, false)?;
        self.disk().sync(&path, &file).map_err(failed(&path, "writing it"))
    }

    fn chunk_classes(&self, spare: &Range<u64>, generation: u64, anew: bool) -> Result<Memory, FolderError> {
        let bytes = chunk_classes_bytes(spare.end - spare.start, self.state.chunk_bytes);
        self.small_file(CHUNKS, generation, bytes, anew)
    }

    /// A file that has all of its room.
    fn small_file(&self, kind: &str, generation: u64, bytes: u64, anew: bool) -> Result<Memory, FolderError> {
        let path = self.file(kind, generation);
        let file = self.open_file(&path, anew)?;
        let len = file.metadata().map_err(failed(&path, "asking for its length"))?.len();
        if !anew && len != bytes {
            let reason = format!("it has {len} bytes, {bytes} were written");
            return Err(FolderError::Damaged { path, reason });
        }
        let memory = Memory::file(&path, file, bytes).map_err(failed(&path, "mapping it"))?;
        memory.reserve(bytes)?;
        Ok(memory)
    }
}

/// Bytes of a region that have their room from the beginning: what was loaded, and the padding after the last chunk.
fn bytes_before_chunks<C>(kept: &KeptRegion<C>) -> u64 {
    kept.spare.start + kept.region_bytes.saturating_sub(kept.spare.end)
}

/// Checks that all files of the kept region are there, and that all others of their kinds are leftovers.
fn whole<C: Counts>(folder: &Path, state: Option<&State<C>>) -> Result<(), FolderError> {
    let partial = |reason: String| FolderError::Partial { path: folder.to_owned(), reason };
    let listing = failed(folder, "listing it");
    let mut missing: BTreeSet<String> =
        state.and_then(|state| state.tree.as_ref()).into_iter().flat_map(names).collect();
    let entries = fs::read_dir(folder).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
    for entry in entries.map_err(listing)? {
        let name = entry.file_name();
        let Some((name, generation)) = name.to_str().and_then(|name| Some((name, generation_of(name)?)))
        else {
            continue;
        };
        let is_kept =
            |state: &State<C>| state.tree.as_ref().is_some_and(|tree| tree.generation == generation);
        if name == format!("{SUMS}-{generation}") && state.is_some_and(is_kept) {
            continue;
        }
        let is_leftover = state.is_some_and(|state| state.leftovers.contains(&generation));
        if !missing.remove(name) && !is_leftover {
            return Err(partial(match state {
                Some(_) => format!("its state.json does not speak of {name}"),
                None => format!("there is {name} in it, but no state.json, which says whose it is"),
            }));
        }
    }
    match missing.first() {
        Some(name) => Err(partial(format!("{name} is missing"))),
        None => Ok(()),
    }
}

fn names<C>(tree: &RegionState<C>) -> [String; KINDS.len()] {
    KINDS.map(|kind| format!("{kind}-{}", tree.generation))
}

/// Generation of a region's file, by its name.
fn generation_of(name: &str) -> Option<u64> {
    let (kind, number) = name.split_once('-')?;
    (KINDS.contains(&kind) || kind == SUMS).then(|| number.parse().ok())?
}

/// Makes a folder, which other users of this machine must not read, and brings its name to the disk.
fn make_folder(disk: &dyn Disk, path: &Path) -> Result<(), FolderError> {
    if path.is_dir() {
        return Ok(());
    }
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(failed(path, "making the folder"))?;
    for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
        // A folder that was there already may not be this user's to open.
        let _ = disk.sync_names(above);
    }
    Ok(())
}

fn not_opened(path: &Path, error: OpenError) -> FolderError {
    match error {
        OpenError::Damaged(damage) => {
            FolderError::Damaged { path: path.to_owned(), reason: damage.to_string() }
        }
        OpenError::Reserve(full) => full.into(),
        OpenError::Io { path, what, source } => FolderError::Io { path, what, source },
    }
}

/// Files that are made can be read by their owner alone.
fn private() -> fs::OpenOptions {
    let mut options = File::options();
    options.mode(0o600);
    options
}

fn failed(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> FolderError + use<> {
    let path = path.to_owned();
    move |source| FolderError::Io { path, what, source }
}
